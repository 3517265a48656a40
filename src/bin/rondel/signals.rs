//! Signals that end a run early.

use std::io;

/// Those by which a terminal, a user or a launcher ends a process that may still tidy up.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals that are blocked in this thread, and in those that it starts from now on, so that one thread can wait for them.
#[derive(Clone, Copy)]
pub(crate) struct Signals {
    waited_for: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks [`ENDING`], as far as they are not ignored (as `nohup` does), and `others`.
    pub(crate) fn block(others: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: plain data, initialised by `sigemptyset` below.
        let mut signals: Signals = unsafe { std::mem::zeroed() };
        let wanted = ENDING.iter().filter(|signal| !is_ignored(**signal)).chain(others);
        // SAFETY: both sets live through the calls; the numbers are signals.
        let answer = unsafe {
            libc::sigemptyset(&raw mut signals.waited_for);
            wanted.for_each(|&signal| {
                libc::sigaddset(&raw mut signals.waited_for, signal);
            });
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals.waited_for, &raw mut signals.before)
        };
        if answer == 0 { Ok(signals) } else { Err(io::Error::from_raw_os_error(answer)) }
    }
    /// Blocks until one of them comes, and returns it.
    pub(crate) fn wait(&self) -> io::Result<libc::c_int> {
        let mut signal = 0;
        // SAFETY: the set is initialised, the number outlives the call.
        let answer = unsafe { libc::sigwait(&raw const self.waited_for, &raw mut signal) };
        if answer == 0 { Ok(signal) } else { Err(io::Error::from_raw_os_error(answer)) }
    }
    /// From now on they have the effect in this thread that they had before. Safe between fork and exec.
    pub(crate) fn release(&self) {
        // SAFETY: the set was filled by `block`; the call takes no memory and no locks.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Writing beyond the limit of a file's size (`ulimit -f`) becomes an error that can be said, here and in the ranks that are
/// started, in place of a signal that kills.
pub(crate) fn make_limits_of_files_errors() {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: plain data that the call fills.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the structure outlives the call.
    let answer = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    answer == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// The name of a signal that ends a run.
pub(crate) fn name(signal: libc::c_int) -> String {
    match signal {
        libc::SIGHUP => "SIGHUP".to_owned(),
        libc::SIGINT => "SIGINT".to_owned(),
        libc::SIGPIPE => "SIGPIPE".to_owned(),
        libc::SIGTERM => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    }
}
