//! The host kernels: n-ary reduction and copying.
//!
//! # What a reduction computes
//!
//! Operands are combined from left to right. Every [`Level`] gives the same bits:
//!
//! * Integers wrap. Any byte of a `bool` but 0 is true; 0 and 1 are written.
//! * f32 and f64 are rounded after every step. 16- and 8-bit floats are combined in f32 and rounded once, at the end of
//!   the call, to nearest, ties to even; fp8 saturates to the largest finite value. Subnormal numbers are kept.
//! * A NaN operand makes the result NaN, also of min and max. The NaN written is canonical: 0x7fc00000 for f32,
//!   0x7ff8000000000000 for f64, 0x7e00 for f16, 0x7fc0 for bf16, 0x7f for f8e4m3, 0x7e for f8e5m2. min and max put -0
//!   below +0. So none of the four operators depends on the order of two operands.
//! * A `raw` operand is multiplied by `pre` *and rounded to its type* before it is combined. So it makes no difference
//!   whether a rank reads its own input raw, or its peer receives the same input scaled by a call with one operand.
//! * One operand that is neither scaled nor divided is copied as it is, NaN payloads included.
//!
//! The floating-point environment must be the default one (a thread that flushes subnormals gets other bits).
//!
//! # How
//!
//! A `number` fixes the arithmetic of a type; `loops` run it, vectorised by the compiler, or, for 16-bit floats on x86-64,
//! `packed` does with registers from `x86`; a `table` per level holds the instances. Two to four operands are combined
//! in one pass; whatever else is asked for (more operands, scaling, division, streaming, a destination that equals one of
//! three operands) happens block by block in the first-level cache.

mod blocks;
mod loops;
mod number;
#[cfg(target_arch = "x86_64")]
mod packed;
mod stream;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::{fmt, sync::OnceLock};

use crate::{Keep, Operand, Reduction};

/// Results of at least this many bytes bypass the cache where [`Keep::Stream`] allows it: a transport may hand over a large
/// result in pieces of this size. Below, the fence and the partial lines cost more than they save.
pub const STREAM_FROM: usize = 8 << 10;

/// A set of CPU features that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the architecture has; on x86-64 that includes SSE2.
    Portable,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The levels that this CPU has, slowest first.
    pub fn available() -> &'static [Level] {
        static AVAILABLE: OnceLock<Vec<Level>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            let levels = [
                (Level::Portable, true),
                #[cfg(target_arch = "x86_64")]
                (Level::Avx2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")),
                #[cfg(target_arch = "x86_64")]
                (
                    Level::Avx512,
                    is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512dq"),
                ),
            ];
            // Each level counts on the ones below.
            levels.into_iter().take_while(|level| level.1).map(|level| level.0).collect()
        })
    }
    /// The fastest level that this CPU has: what [`reduce`] uses.
    pub fn best() -> Level {
        *Self::available().last().expect("the portable level is always there")
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        })
    }
}

/// `dst = operands[0] (+) operands[1] (+) ...` over `count` elements, in that order; see the [module](self) for what that
/// means bit by bit. `last` applies the reduction's `divide`. No alignment is required.
///
/// # Panics
/// There is no operand, or the reduction is not [valid](Reduction::validate).
///
/// # Safety
/// Every operand and `dst` are valid for `count` elements; `dst` may equal an operand, but not overlap one otherwise.
pub unsafe fn reduce(
    reduction: &Reduction,
    operands: &[Operand],
    dst: *mut u8,
    count: usize,
    last: bool,
    keep: Keep,
) {
    // SAFETY: the caller's promise.
    unsafe { reduce_at(Level::best(), reduction, operands, dst, count, last, keep) }
}

/// [`reduce`] with the kernels of a given level, for tests and measurements.
///
/// # Panics
/// As `reduce`, and if this CPU does not have the level.
///
/// # Safety
/// As `reduce`.
pub unsafe fn reduce_at(
    level: Level,
    reduction: &Reduction,
    operands: &[Operand],
    dst: *mut u8,
    count: usize,
    last: bool,
    keep: Keep,
) {
    assert!(level <= Level::best(), "this CPU has no {level} kernels, the best it has are {}", Level::best());
    if let Err(error) = reduction.validate() {
        panic!("{error}");
    }
    let job = blocks::Job {
        kernels: table::kernels(level, reduction.dtype, reduction.combine),
        size: reduction.dtype.size(),
        pre: reduction.pre,
        divide: reduction.divide.filter(|_| last).map(std::num::NonZero::get),
    };
    // SAFETY: the caller's promise; the CPU has the level.
    unsafe { job.run(operands, dst, count, keep) }
}

/// Copies `len` bytes that do not overlap.
///
/// # Safety
/// Both ranges are valid and do not overlap.
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, keep: Keep) {
    if keep == Keep::Stream && len >= STREAM_FROM {
        let lead = dst.align_offset(stream::LINE);
        // SAFETY: the caller's promise; `lead` is less than a line, and so than `len`.
        unsafe {
            src.copy_to_nonoverlapping(dst, lead);
            stream::store(src.add(lead), dst.add(lead), len - lead);
        }
        stream::fence();
    } else {
        // SAFETY: the caller's promise.
        unsafe { src.copy_to_nonoverlapping(dst, len) };
    }
}
