//! A call as every rank must make it: what stamps are computed from, status pages show and mismatches name.

use crate::plan::{Collective, Rank};
use rondel_transport_api::{DataType, ReduceOp};
use std::fmt;

/// One call of a communicator's method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Number of the call on its communicator, from 1. Sends and receives count per peer.
    pub seq: u64,
    /// What is done.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined; only where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Elements of a flat buffer, or of one block.
    pub count: u64,
    /// The root, or the peer of a send or receive.
    pub root: Rank,
}

// The scalar of a pre-multiplied sum may be NaN, and is not part of what ranks must agree on.
impl Eq for Call {}

impl Call {
    /// What every message of the call carries. Equal on all ranks that made the same call with the same `table`.
    pub fn stamp(&self, table: u64) -> u64 {
        let op = match self.op {
            None => 0,
            Some(ReduceOp::Sum) => 1,
            Some(ReduceOp::Prod) => 2,
            Some(ReduceOp::Min) => 3,
            Some(ReduceOp::Max) => 4,
            Some(ReduceOp::Avg) => 5,
            Some(ReduceOp::PreMulSum(_)) => 6,
        };
        // A send meets a receive: both are one kind of message.
        let kind = if self.collective == Collective::Recv { Collective::Send } else { self.collective };
        let root = if kind == Collective::Send { 0 } else { self.root };
        let words = [
            self.seq,
            (kind as u64) << 32 | (self.dtype as u64) << 16 | op,
            self.count,
            u64::from(root),
            table,
        ];
        words.iter().fold(0x243f_6a88_85a3_08d3, |hash, word| {
            let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.collective.name(), self.seq)?;
        match self.collective {
            Collective::Barrier => return Ok(()),
            Collective::Send => write!(f, " to rank {}", self.root)?,
            Collective::Recv => write!(f, " from rank {}", self.root)?,
            _ => {}
        }
        write!(f, " ({} x {}", self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if self.collective.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(")")
    }
}
