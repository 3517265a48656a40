//! The host kernels.

use crate::{Keep, Operand, Reduction};

/// `dst = operands[0] (+) operands[1] (+) ...` over `count` elements, in that order.
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
    let _ = (reduction, operands, dst, count, last, keep);
    todo!()
}

/// Copies `len` bytes that do not overlap.
///
/// # Safety
/// Both ranges are valid and do not overlap.
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize, keep: Keep) {
    let _ = (src, dst, len, keep);
    todo!()
}
