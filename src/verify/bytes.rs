//! Values as bytes, cut by the partition, and added up without carry from byte to byte.

use super::Reason;
use super::machine::Values;
use crate::plan::partition::{Partition, Piece};
use crate::plan::{Plan, Rank, Span};
use std::ops::Range;

/// The pieces of the walks over one channel.
#[derive(Debug)]
pub(super) struct Bytes {
    pub(super) partition: Partition,
    /// By walk.
    pub(super) pieces: Vec<Piece>,
}

impl Bytes {
    /// Byte `at` of a rank's input, as good as random.
    pub(super) fn input(rank: Rank, at: u64) -> u8 {
        let mixed =
            (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 37) as u8
    }
}

impl Values for Bytes {
    type Value = u8;

    fn cells(&self, walk: usize, plan: &Plan, span: Span, slice: u32) -> Range<u64> {
        self.partition.bytes(plan, &self.pieces[walk], span, slice)
    }

    fn scale(&mut self, _walk: usize, value: u8) -> Result<u8, Reason> {
        Ok(value)
    }

    fn combine(&mut self, terms: &[u8]) -> Result<u8, Reason> {
        Ok(terms.iter().fold(0, |sum, &term| sum.wrapping_add(term)))
    }

    fn finish(&mut self, value: u8) -> Result<u8, Reason> {
        Ok(value)
    }
}
