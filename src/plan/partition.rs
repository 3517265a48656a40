//! Which bytes a chunk and a slice are: count -> rounds -> channels -> chunks -> slices.
//!
//! Everything here is the same arithmetic on every rank. Boundaries fall on whole elements, padded to 64 bytes where
//! the count allows it; where it does not, trailing chunks and slices are empty, and both ends skip them.

use super::{Plan, Span};
use std::ops::Range;

/// How an operation is cut. A pure function of what every rank knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Elements of a flat buffer, or of one block of a blocked one.
    pub count: u64,
    /// Bytes of one element.
    pub element: u32,
    /// Channels that share each round.
    pub channels: u32,
    /// Bytes of one rank's largest buffer that a round may cover, over all channels.
    pub round_bytes: u64,
    /// Wanted bytes of a slice.
    pub slice_bytes: u64,
}

/// An operation cut into rounds, channels, chunks and slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    _private: (),
}

/// The part of an operation that one execution of a plan covers: one channel of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First element, within the flat buffer or within each block.
    pub first: u64,
    /// Elements.
    pub len: u64,
    /// Elements of a full chunk of a flat buffer (`len` for a blocked one).
    pub chunk: u64,
    /// Elements of a whole block (`count`), the distance between blocks.
    pub stride: u64,
}

impl Partition {
    /// Cuts an operation. All channels follow plans with the layouts and `nchunks` of `plan`.
    pub fn new(plan: &Plan, cut: Cut) -> Self {
        let _ = (plan, cut);
        todo!()
    }
    /// Rounds, at least one, also for a count of zero.
    pub fn rounds(&self) -> u32 {
        todo!()
    }
    /// Channels with work.
    pub fn channels(&self) -> u32 {
        todo!()
    }
    /// Slices that each step is cut into.
    pub fn slices(&self) -> u32 {
        todo!()
    }
    /// What one execution covers.
    pub fn piece(&self, round: u32, channel: u32) -> Piece {
        let _ = (round, channel);
        todo!()
    }
    /// Bytes of one scratch set that serves every round and channel of this partition (one set per execution).
    pub fn scratch_bytes(&self, plan: &Plan) -> u64 {
        let _ = plan;
        todo!()
    }
    /// Byte range of one slice of a span within its buffer: input and output from the buffer's start, scratch from the
    /// scratch set's start. Empty slices are skipped by both ends. O(1).
    pub fn bytes(&self, plan: &Plan, piece: &Piece, span: Span, slice: u32) -> Range<u64> {
        let _ = (plan, piece, span, slice);
        todo!()
    }
}
