//! From a straight-line program to a plan.

use super::{Alias, Collective, Plan, Rank, Shape, Span, Term};

/// Collects the steps of one rank in program order, then derives which may overlap.
///
/// The builder resolves aliases (an in-place call names one memory by two buffers), marks operands `raw` that are the
/// caller's untouched input, and, where `prescale` is set, sends such input through a scaled copy, so that each rank's
/// contribution is scaled exactly once, by its owner.
#[derive(Clone, Debug)]
pub struct Builder {
    _private: (),
}

impl Builder {
    /// An empty program. `nchunks`: into how many chunks a flat buffer is cut.
    /// `prescale`: the reduction multiplies every rank's input before it is combined.
    pub fn new(
        collective: Collective,
        rank: Rank,
        shape: &Shape,
        nchunks: u32,
        alias: Alias,
        prescale: bool,
    ) -> Self {
        let _ = (collective, rank, shape, nchunks, alias, prescale);
        todo!()
    }
    /// The rank whose program this is.
    pub fn rank(&self) -> Rank {
        todo!()
    }
    /// New scratch with the extent of `like` (of the input or output), chunk by chunk.
    pub fn scratch_like(&mut self, like: Span) -> Span {
        let _ = like;
        todo!()
    }
    /// Sends `src` to `to`.
    pub fn send(&mut self, to: Rank, src: Span) {
        let _ = (to, src);
        todo!()
    }
    /// Stores the next message of `from` in `dst`.
    pub fn recv(&mut self, from: Rank, dst: Span) {
        let _ = (from, dst);
        todo!()
    }
    /// `dst = with (+) message of from`; `last`: the result is complete.
    pub fn recv_reduce(&mut self, from: Rank, with: Span, dst: Span, last: bool) {
        let _ = (from, with, dst, last);
        todo!()
    }
    /// `dst = terms[0] (+) terms[1] ...` in that order, each a span of this rank or the next message of a peer.
    /// `raw` of local terms is set by the builder.
    pub fn recv_reduce_many(&mut self, terms: &[Term], dst: Span, last: bool) {
        let _ = (terms, dst, last);
        todo!()
    }
    /// `dst = spans[0] (+) spans[1] ...` in that order.
    pub fn reduce(&mut self, spans: &[Span], dst: Span, last: bool) {
        let _ = (spans, dst, last);
        todo!()
    }
    /// Copies `src` to `dst`; nothing when they are the same memory and nothing is scaled or finished.
    pub fn copy(&mut self, src: Span, dst: Span, last: bool) {
        let _ = (src, dst, last);
        todo!()
    }
    /// Declares that the plan holds only for a whole, uncut operation.
    pub fn unsplittable(&mut self) {
        todo!()
    }
    /// Derives dependencies and lanes, in near-linear time.
    pub fn build(self) -> Plan {
        todo!()
    }
}
