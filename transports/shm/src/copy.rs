//! Copying into slots.

/// How far ahead of the copy its lines are asked for.
const AHEAD: usize = 2 << 10;
const LINE: usize = crate::record::LINE as usize;

/// Asks for the line of an address for writing. Any address will do.
#[inline(always)]
pub(crate) fn own_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that touches no register or memory; CPUs without it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint that touches no register or memory.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Copies a piece that shares its line with the flag.
///
/// # Safety
/// Both ranges are valid and do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise. The lengths of one element need no call.
    unsafe {
        match len {
            8 => dst.cast::<u64>().write_unaligned(src.cast::<u64>().read_unaligned()),
            4 => dst.cast::<u32>().write_unaligned(src.cast::<u32>().read_unaligned()),
            _ => src.copy_to_nonoverlapping(dst, len),
        }
    }
}

/// Copies a piece into the lines of a slot, which the peer has read and thereby holds: each is asked for well before it is
/// written, since such misses do not overlap by themselves.
///
/// # Safety
/// Both ranges are valid and do not overlap.
pub(crate) unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    let own = |from: usize| {
        (from..(from + AHEAD).min(len)).step_by(LINE).for_each(|at| own_line(dst.wrapping_add(at)))
    };
    own(0);
    let mut at = 0;
    while at < len {
        own(at + AHEAD);
        let step = AHEAD.min(len - at);
        // SAFETY: the caller's promise.
        unsafe { src.add(at).copy_to_nonoverlapping(dst.add(at), step) };
        at += step;
    }
}
