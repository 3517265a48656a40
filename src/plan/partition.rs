//! Which bytes a chunk and a slice are: count -> rounds -> channels -> chunks -> slices.
//!
//! Everything here is the same arithmetic on every rank. Boundaries fall on whole elements, padded to 64 bytes where
//! the count allows it; where it does not, trailing chunks and slices are empty, and both ends skip them.
//!
//! A barrier moves no elements of its caller: it is cut as one element of one byte, in a buffer of the engine's own.

use super::{Buf, Layout, Plan, Span};
use std::ops::Range;

/// Boundaries are multiples of this many bytes where the count allows it.
const LINE: u64 = 64;

/// How an operation is cut. A pure function of what every rank knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Elements of a flat buffer, or of one block of a blocked one.
    pub count: u64,
    /// Bytes of one element.
    pub element: u32,
    /// Channels that share each round.
    pub channels: u32,
    /// Bytes of one rank's largest buffer that a round may cover, over all channels. A round covers at least 64 bytes
    /// (or the least multiple of whole elements above) of the buffer or of each block, whatever is asked for.
    pub round_bytes: u64,
    /// Wanted bytes of a slice, at least 64.
    pub slice_bytes: u64,
}

/// An operation cut into rounds, channels, chunks and slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    count: u64,
    element: u64,
    /// The least number of elements that fills whole lines.
    line: u64,
    /// Chunks of a flat buffer; `None`: the buffers are blocked.
    nchunks: Option<u32>,
    /// Elements of a full round.
    round: u64,
    rounds: u32,
    /// Channels with work in the first round.
    channels: u32,
    slices: u32,
    /// Bytes from one run of scratch to the next, for each chunk of it.
    scratch_stride: u64,
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
    ///
    /// # Panics
    ///
    /// When an element has no bytes or there are no channels.
    pub fn new(plan: &Plan, cut: Cut) -> Self {
        assert!(
            cut.element > 0 && cut.channels > 0,
            "{cut:?}: elements need bytes, operations need channels"
        );
        let element = u64::from(cut.element);
        let blocked =
            matches!(plan.input(), Layout::Blocked(_)) || matches!(plan.output(), Layout::Blocked(_));
        let mut partition = Partition {
            count: cut.count,
            element,
            line: LINE / gcd(LINE, element),
            nchunks: (!blocked).then_some(plan.nchunks()),
            round: cut.count,
            rounds: 1,
            channels: 1,
            slices: 1,
            scratch_stride: 0,
        };
        if plan.is_splittable() {
            // The root's buffer of a rooted collective has as many blocks as there are ranks, and all must agree.
            let blocks = if blocked { u64::from(plan.nranks()) } else { 1 };
            partition.cut_rounds(cut.round_bytes / blocks / element);
            partition.cut_channels(cut.channels);
        }
        let chunk_bytes = partition.piece(0, 0).chunk.saturating_mul(element);
        if plan.is_splittable() {
            let slices = chunk_bytes.div_ceil(cut.slice_bytes.max(LINE)).max(1);
            partition.slices = u32::try_from(slices).unwrap_or(u32::MAX);
        }
        partition.scratch_stride = pad(chunk_bytes, LINE);
        partition
    }

    /// Rounds, at least one, also for a count of zero.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Channels with work.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// Slices that each step is cut into.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// What one execution covers. The first piece is the largest; a later one may be empty.
    pub fn piece(&self, round: u32, channel: u32) -> Piece {
        debug_assert!(round < self.rounds && channel < self.channels);
        let start = self.round.saturating_mul(u64::from(round)).min(self.count);
        let in_round = self.round.min(self.count - start);
        let share = self.share(in_round, self.channels);
        let first = share.saturating_mul(u64::from(channel)).min(in_round);
        let len = share.min(in_round - first);
        let chunk = match self.nchunks {
            Some(nchunks) => self.chunk(len, nchunks),
            None => len,
        };
        Piece { first: start + first, len, chunk, stride: self.count }
    }

    /// Bytes of one scratch set that serves every round and channel of this partition (one set per execution).
    pub fn scratch_bytes(&self, plan: &Plan) -> u64 {
        self.scratch_stride.saturating_mul(plan.scratch().len() as u64)
    }

    /// Byte range of one slice of a span within its buffer: input and output from the buffer's start, scratch from the
    /// scratch set's start. Empty slices are skipped by both ends. O(1).
    pub fn bytes(&self, plan: &Plan, piece: &Piece, span: Span, slice: u32) -> Range<u64> {
        let logical = plan.extent_of(span);
        let (before, len) = self.elements(piece, logical);
        let start = match span.buf {
            Buf::Input | Buf::Output => before.saturating_mul(self.element),
            Buf::Scratch => {
                let run = plan.scratch_run(span.chunk);
                let within = u64::from(span.chunk - run).saturating_mul(piece.chunk);
                let within = within.saturating_mul(self.element);
                u64::from(run).saturating_mul(self.scratch_stride).saturating_add(within)
            }
        };
        let slice_len = self.share(len, self.slices);
        let first = slice_len.saturating_mul(u64::from(slice)).min(len);
        let end = first.saturating_add(slice_len).min(len);
        let byte = |element: u64| start.saturating_add(element.saturating_mul(self.element));
        byte(first)..byte(end)
    }

    /// Sets rounds of even lengths, none above `most` elements.
    fn cut_rounds(&mut self, most: u64) {
        // Rounds are counted in 32 bits.
        let least = pad(self.count.div_ceil(u64::from(u32::MAX)), self.line);
        let most = (most / self.line * self.line).max(self.line).max(least);
        if self.count > most {
            let even = self.count.div_ceil(self.count.div_ceil(most));
            self.round = pad(even, self.line);
            self.rounds = self.count.div_ceil(self.round) as u32;
        }
    }

    fn cut_channels(&mut self, channels: u32) {
        let share = self.share(self.round, channels).max(1);
        self.channels = self.round.div_ceil(share).max(1) as u32;
    }

    /// The even share of one of `parts`, in whole lines.
    fn share(&self, len: u64, parts: u32) -> u64 {
        if parts == 1 { len } else { pad(len.div_ceil(u64::from(parts)), self.line) }
    }

    /// Elements of a full chunk. Few elements are not padded, so that every chunk has some while there are any.
    fn chunk(&self, len: u64, nchunks: u32) -> u64 {
        let even = len.div_ceil(u64::from(nchunks.max(1)));
        let few = len.saturating_mul(self.element) < u64::from(nchunks) * 2 * LINE;
        if few || nchunks == 1 { even } else { pad(even, self.line) }
    }

    /// Where consecutive logical chunks begin in their buffer, and how many elements they have.
    fn elements(&self, piece: &Piece, chunks: Range<u32>) -> (u64, u64) {
        if self.nchunks.is_none() {
            let first = u64::from(chunks.start).saturating_mul(piece.stride).saturating_add(piece.first);
            return (first, u64::from(chunks.end - chunks.start).saturating_mul(piece.len));
        }
        let at = |chunk: u32| piece.chunk.saturating_mul(u64::from(chunk)).min(piece.len);
        (piece.first + at(chunks.start), at(chunks.end) - at(chunks.start))
    }
}

/// `value`, up to a multiple of `unit`.
fn pad(value: u64, unit: u64) -> u64 {
    value.div_ceil(unit).saturating_mul(unit)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
