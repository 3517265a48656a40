//! Cores that this process may run on.

use std::io;

/// Their numbers, in ascending order.
pub(crate) fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: a set of bits, for which all zeros is valid; the call fills it, and its answer is checked.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Err(io::Error::last_os_error());
        }
        set
    };
    // SAFETY: every number is below the size of the set.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Restricts this thread, and those that it starts, to the allowed core number `nth` mod their number.
pub(crate) fn bind_to_nth_core(nth: u32) -> io::Result<()> {
    let cores = allowed_cores()?;
    let core = cores[nth as usize % cores.len()];
    // SAFETY: as above; `core` came out of such a set.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_has_one_core_left() {
        let bound = std::thread::spawn(|| {
            let before = allowed_cores().unwrap();
            bind_to_nth_core(before.len() as u32 + 1).unwrap();
            (before.clone(), allowed_cores().unwrap())
        });
        let (before, after) = bound.join().unwrap();
        assert_eq!(after, [before[1 % before.len()]]);
    }
}
