//! `Sink::Reduce`: the same bits as the kernels give on a staged message.

use super::{
    Fixture,
    memory::{Buffer, pattern},
    rig::{Lane, Rig},
};
use crate::{Combine, DataType, Keep, Operand, Reduction, Scalar, Sink, kernels, random::Random};
use std::num::NonZeroU32;

struct Case {
    reduction: Reduction,
    count: usize,
    in_place: bool,
    raw: bool,
    last: bool,
    keep: Keep,
}

/// Elements whose sums and products stay finite: the top bit of each exponent is clear.
fn operand(dtype: DataType, count: usize, seed: u64) -> Vec<u8> {
    let size = dtype.size();
    let mut bytes = pattern(count * size, seed);
    for element in bytes.chunks_exact_mut(size) {
        match dtype {
            DataType::Bool => element[0] &= 1,
            _ if dtype.is_float() => element[size - 1] &= 0xbf,
            _ => {}
        }
    }
    bytes
}

fn check<F: Fixture>(rig: &mut Rig<F>, from: Lane, to: Lane, case: &Case, stamp: u64) {
    let Case { reduction, count, in_place, raw, last, keep } = *case;
    let len = count * reduction.dtype.size();
    let (with, message) = (Buffer::new(len, 8), Buffer::new(len, 1));
    with.write(&operand(reduction.dtype, count, stamp));
    message.write(&operand(reduction.dtype, count, stamp + 1));
    let expected = Buffer::new(len, 0);
    let operands = [Operand { addr: with.addr(), raw }, Operand { addr: message.addr(), raw: false }];
    // SAFETY: the three buffers are `count` elements long and do not overlap.
    unsafe { kernels::reduce(&reduction, &operands, expected.addr(), count, last, Keep::Keep) };

    let dst = if in_place { with.clone() } else { Buffer::new(len, 16) };
    let with = Operand { addr: with.addr(), raw };
    let sink = Sink::Reduce { reduction, with, dst: dst.addr(), last, keep };
    let lent = vec![dst.clone(), expected.clone()];
    let recv = rig.sink(to, len, sink, stamp, lent);
    let send = rig.send(from, &message, stamp);
    rig.finish(&[send, recv]);
    dst.expect(&expected.read(), &format!("{reduction:?}, {count} elements, in place: {in_place}"));
}

fn reduction(dtype: DataType, random: &mut Random) -> Reduction {
    let combines = [Combine::Sum, Combine::Prod, Combine::Min, Combine::Max];
    let combine = combines[random.below(4) as usize];
    let arithmetic = combine == Combine::Sum && dtype != DataType::Bool;
    let pre = match random.below(3) {
        0 if arithmetic && dtype.is_float() => Some(Scalar::Float(0.25)),
        0 if arithmetic => Some(Scalar::Int(3)),
        _ => None,
    };
    let divide = if arithmetic && !dtype.is_float() { NonZeroU32::new(3) } else { None };
    Reduction { dtype, combine, pre, divide }
}

/// Every type, in and out of place, with lengths that are no multiple of anything.
pub fn reductions_equal_the_kernels<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    if !rig.endpoint(1).limits().reduces {
        return;
    }
    let mut random = Random::new(3);
    let mut stamp = 0;
    for dtype in DataType::ALL {
        for count in [0, 1, 3, 31, 67, 1021, 5003] {
            for in_place in [false, true] {
                let case = Case {
                    reduction: reduction(dtype, &mut random),
                    count,
                    in_place,
                    raw: random.below(2) == 0,
                    last: random.below(2) == 0,
                    keep: Keep::Keep,
                };
                rig.budget = 1 + random.below(3000) as usize;
                check(&mut rig, a, b, &case, stamp);
                stamp += 2;
            }
        }
    }
}

/// Messages that come in many pieces, whole budgets and streaming stores.
pub fn reductions_of_long_messages_equal_the_kernels<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let limits = rig.endpoint(1).limits();
    if !limits.reduces {
        return;
    }
    for (stamp, dtype) in [DataType::F32, DataType::Bf16, DataType::I64, DataType::U8].into_iter().enumerate()
    {
        let count = (limits.max_message as usize / dtype.size()).min(300_007);
        let reduction = Reduction { dtype, combine: Combine::Sum, pre: None, divide: None };
        let case = Case {
            reduction,
            count,
            in_place: stamp % 2 == 0,
            raw: false,
            last: true,
            keep: if stamp < 2 { Keep::Stream } else { Keep::Keep },
        };
        check(&mut rig, a, b, &case, 1000 + stamp as u64 * 2);
    }
}
