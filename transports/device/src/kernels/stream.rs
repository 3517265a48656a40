//! Stores that bypass the cache.

/// A cache line. Non-temporal stores pay only when they fill whole ones.
pub(super) const LINE: usize = 64;

/// Copies `len` bytes, whole lines of them past the cache where the architecture can. Needs a [`fence`] before anybody
/// else may be told.
///
/// # Safety
/// Both ranges are valid and do not overlap; `dst` is aligned to a [`LINE`].
#[inline]
pub(super) unsafe fn store(src: *const u8, dst: *mut u8, len: usize) {
    debug_assert!(dst.addr().is_multiple_of(LINE));
    #[cfg(target_arch = "x86_64")]
    let streamed = {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        const STEP: usize = size_of::<__m128i>();
        let whole = len - len % LINE;
        for line in (0..whole).step_by(LINE) {
            for at in (line..line + LINE).step_by(STEP) {
                // SAFETY: below `len`; the destination is aligned because its start is.
                unsafe { _mm_stream_si128(dst.add(at).cast(), _mm_loadu_si128(src.add(at).cast())) };
            }
        }
        whole
    };
    #[cfg(not(target_arch = "x86_64"))]
    let streamed = 0;
    // SAFETY: the caller's promise.
    unsafe { src.add(streamed).copy_to_nonoverlapping(dst.add(streamed), len - streamed) };
}

/// Orders the stores of [`store`], which are weakly ordered, before all later ones.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
