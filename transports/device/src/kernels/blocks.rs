//! One call: in one pass where a kernel does all that is asked, otherwise block by block in the first-level cache.

use std::mem::MaybeUninit;

use super::{STREAM_FROM, copy, stream, table::Kernels};
use crate::{Keep, Operand, Scalar};

/// Bytes of a block's accumulators. One block of each of four operands and of a result lie well within 32 KiB.
const BLOCK: usize = 4 << 10;
/// The most operands that one kernel combines.
const DIRECT: usize = 4;

/// A block of memory, uninitialised.
#[repr(C, align(64))]
struct Block(MaybeUninit<[u8; BLOCK]>);

impl Block {
    const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// What a call does to its operands.
pub(super) struct Job {
    pub(super) kernels: &'static Kernels,
    /// Bytes of an element.
    pub(super) size: usize,
    /// Multiplied into raw operands.
    pub(super) pre: Option<Scalar>,
    /// Divides the result.
    pub(super) divide: Option<u32>,
}

impl Job {
    /// # Safety
    /// As [`reduce`](super::reduce); the CPU has the level that the kernels are of.
    pub(super) unsafe fn run(&self, operands: &[Operand], dst: *mut u8, count: usize, keep: Keep) {
        let bytes = count * self.size;
        let in_place = operands.iter().any(|operand| operand.addr == dst.cast_const());
        // In place, the lines are in the cache already; unaligned elements never fill whole lines.
        let stream = keep == Keep::Stream
            && bytes >= STREAM_FROM
            && !in_place
            && dst.addr().is_multiple_of(self.size)
            && cfg!(target_arch = "x86_64");
        let plain = self.divide.is_none() && operands.iter().all(|operand| self.scalar(operand).is_none());
        // SAFETY: the caller's promise; a kernel that reads what it writes is not used but for `fold`.
        unsafe {
            match *operands {
                [] => panic!("a reduction needs at least one operand"),
                [one] if plain && in_place => debug_assert_eq!(one.addr, dst),
                [one] if plain => copy(one.addr, dst, bytes, keep),
                [a, b] if plain && in_place => {
                    let other = if a.addr == dst { b } else { a };
                    (self.kernels.fold)(other.addr, dst, count);
                }
                [_, _] | [_, _, _] | [_, _, _, _] if plain && !in_place && !stream => {
                    let mut srcs = [dst.cast_const(); DIRECT];
                    for (src, operand) in srcs.iter_mut().zip(operands) {
                        *src = operand.addr;
                    }
                    (self.kernels.combine[operands.len() - 2])(srcs.as_ptr(), dst, count);
                }
                _ => self.run_blocks(operands, dst, count, stream),
            }
        }
    }

    /// What an operand is to be multiplied with.
    fn scalar(&self, operand: &Operand) -> Option<Scalar> {
        self.pre.filter(|_| operand.raw)
    }

    /// # Safety
    /// As `run`; `stream` only for an aligned destination that is no operand.
    unsafe fn run_blocks(&self, operands: &[Operand], dst: *mut u8, count: usize, stream: bool) {
        let step = BLOCK / self.kernels.wide_size;
        let aliased = operands.iter().any(|o| o.addr == dst.cast_const());
        let mut result = Block::new();
        let mut done = 0;
        // The first block of a streamed result ends where a line does, and so do all but the last.
        let lead = if stream { dst.align_offset(stream::LINE) / self.size } else { 0 };
        let mut next = if lead > 0 { lead } else { step };
        while done < count {
            let n = next.min(count - done);
            let offset = done * self.size;
            let streamed = stream && dst.addr().wrapping_add(offset).is_multiple_of(stream::LINE);
            // SAFETY: the block lies within the caller's ranges.
            unsafe {
                let to = dst.add(offset);
                let target = if streamed || aliased { result.start() } else { to };
                self.block(operands, offset, target, n);
                if let Some(divisor) = self.divide {
                    (self.kernels.divide)(target, n, divisor);
                }
                if streamed {
                    stream::store(target, to, n * self.size);
                } else if aliased {
                    target.copy_to_nonoverlapping(to, n * self.size);
                }
            }
            done += n;
            next = step;
        }
        if stream {
            stream::fence();
        }
    }

    /// Combines the `n` elements at byte `offset` of every operand.
    ///
    /// # Safety
    /// The operands are valid there, `target` is valid for `n` elements and overlaps no operand; the accumulators of `n`
    /// elements fit into a block.
    unsafe fn block(&self, operands: &[Operand], offset: usize, target: *mut u8, n: usize) {
        let mut scaled = [const { Block::new() }; DIRECT];
        // SAFETY: the caller's promise; scratch blocks overlap nothing.
        unsafe {
            // The operand itself, or a scaled copy of it in `scratch`.
            let source = |operand: &Operand, scratch: *mut u8| {
                let addr = operand.addr.add(offset);
                let Some(scalar) = self.scalar(operand) else { return addr };
                (self.kernels.scale)(addr, scratch, n, scalar);
                scratch.cast_const()
            };
            match operands {
                [] => {}
                [one] => {
                    let from = source(one, target);
                    if from != target.cast_const() {
                        from.copy_to_nonoverlapping(target, n * self.size);
                    }
                }
                few if few.len() <= DIRECT => {
                    let mut srcs = [target.cast_const(); DIRECT];
                    for ((src, operand), block) in srcs.iter_mut().zip(few).zip(&mut scaled) {
                        *src = source(operand, block.start());
                    }
                    (self.kernels.combine[few.len() - 2])(srcs.as_ptr(), target, n);
                }
                [first, others @ ..] => {
                    let [scratch, wide, ..] = &mut scaled;
                    (self.kernels.widen)(source(first, scratch.start()), wide.start(), n);
                    for operand in others {
                        (self.kernels.accumulate)(source(operand, scratch.start()), wide.start(), n);
                    }
                    (self.kernels.narrow)(wide.start(), target, n);
                }
            }
        }
    }
}
