//! Calls as words, and back as far as the words mean one.

use super::log::Record;
use crate::{engine::call::Call, plan::Collective};
use rondel_transport_api::{DataType, ReduceOp, Scalar};

/// A call in one word, but for its number and count.
#[inline]
pub(super) fn encode(call: &Call) -> u64 {
    let op: u64 = match call.op {
        None => 0,
        Some(ReduceOp::Sum) => 1,
        Some(ReduceOp::Prod) => 2,
        Some(ReduceOp::Min) => 3,
        Some(ReduceOp::Max) => 4,
        Some(ReduceOp::Avg) => 5,
        Some(ReduceOp::PreMulSum(_)) => 6,
    };
    u64::from(call.root) << 32 | op << 16 | (call.dtype as u64) << 8 | call.collective as u64
}

/// The call of a record. A pre-multiplied sum comes back with NaN for its scalar, which is not kept.
pub(super) fn decode(record: &Record) -> Option<Call> {
    let [_, seq, code, count] = *record;
    let (root, kind) = halves(code);
    let [collective, dtype, op, unused] = kind.to_le_bytes();
    let op = match op {
        0 => None,
        1 => Some(ReduceOp::Sum),
        2 => Some(ReduceOp::Prod),
        3 => Some(ReduceOp::Min),
        4 => Some(ReduceOp::Max),
        5 => Some(ReduceOp::Avg),
        6 => Some(ReduceOp::PreMulSum(Scalar::Float(f64::NAN))),
        _ => return None,
    };
    let collective = Collective::from_code(collective)?;
    let dtype = *DataType::ALL.get(usize::from(dtype))?;
    (unused == 0).then_some(Call { seq, collective, dtype, op, count, root })
}

pub(super) fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub(super) fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
