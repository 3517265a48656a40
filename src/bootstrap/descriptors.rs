//! File descriptors: whether a process may have as many as its part in a job needs.
//!
//! Whoever runs out of them in the middle of a job looks like a peer that died, so it is found out before.

use crate::{error::SetupError, plan::Rank};
use std::io;

/// What the watcher, an endpoint and a few handshakes take, whatever the number of ranks.
const FIXED: u64 = 24;
/// For one peer: a lane, and its process if it is on this host.
const PER_PEER: u64 = 2;
/// Peers that a rank talks to at least: all, up to this number; above, the algorithms have few neighbours.
const NEIGHBOURS: u64 = 64;

/// What must be done so that a process has enough.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Enough,
    /// The soft limit is to become this.
    Raise(u64),
    /// Even the hard limit is below what is needed.
    TooFew {
        need: u64,
    },
}

/// `used`: descriptors that are open already. `lanes`: sockets between two ranks at most.
fn judge(used: u64, soft: u64, hard: u64, nranks: u32, lanes: u64) -> Verdict {
    let peers = u64::from(nranks.saturating_sub(1));
    let need = used + FIXED + PER_PEER * peers.min(NEIGHBOURS);
    let wish = used + FIXED + (PER_PEER + lanes) * peers;
    if hard < need {
        Verdict::TooFew { need }
    } else if soft < wish && soft < hard {
        Verdict::Raise(wish.min(hard))
    } else {
        Verdict::Enough
    }
}

/// Raises this process's soft limit as far as its part in the job may need.
///
/// # Errors
/// [`SetupError::Config`] if the hard limit is too low: the sentence names the rank, what it needs and what it may have.
pub(crate) fn provide(rank: Rank, nranks: u32, lanes: u64) -> Result<(), SetupError> {
    // Where the system does not say, the refusals that follow will.
    let Some((soft, hard)) = limits() else { return Ok(()) };
    match judge(used(), soft, hard, nranks, lanes) {
        Verdict::Enough => Ok(()),
        Verdict::Raise(to) => {
            raise(to, hard);
            Ok(())
        }
        Verdict::TooFew { need } => Err(SetupError::Config(format!(
            "rank {rank} needs about {need} file descriptors in a job of {nranks} ranks and may have {hard}: raise the \
             limit (ulimit -n {need}, or more)"
        ))),
    }
}

/// Raises the soft limit to the hard one: a root has a connection to every rank until all are there, and does not know
/// how many there will be.
pub(crate) fn provide_for_root() {
    if let Some((_, hard)) = limits().filter(|(soft, hard)| soft < hard) {
        raise(hard, hard);
    }
}

/// Whether the system refused because there are no descriptors left, in the process or on the host.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The error, and what to do where there are no descriptors left.
pub(crate) fn explained(error: &io::Error) -> String {
    if !is_exhausted(error) {
        return error.to_string();
    }
    let have = limits().map_or_else(String::new, |(soft, _)| format!(", now {soft}"));
    format!("{error}; raise the limit of open files (ulimit -n{have})")
}

fn limits() -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which outlives it.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (answer == 0).then_some((limit.rlim_cur, limit.rlim_max))
}

/// Where it fails, the refusals that follow say so.
fn raise(to: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: hard };
    // SAFETY: the call reads the structure, which outlives it.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
        tracing::debug!("raised the limit of open files to {to}");
    }
}

/// Descriptors that are open, as far as the system says.
fn used() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_raised_or_refused() {
        let need = 5 + FIXED + PER_PEER * 7;
        assert_eq!(judge(5, 1024, 4096, 8, 1), Verdict::Enough);
        assert_eq!(judge(5, need - 1, need - 1, 8, 1), Verdict::TooFew { need });
        assert_eq!(judge(5, need, need, 8, 1), Verdict::Enough);
        assert_eq!(judge(5, 16, need, 8, 1), Verdict::Raise(need));
        assert_eq!(judge(5, 16, 4096, 8, 1), Verdict::Raise(need + 7));
        // Many ranks wish for more than they need.
        assert_eq!(judge(5, 1024, 65536, 10_000, 1), Verdict::Raise(5 + FIXED + 3 * 9999));
        assert_eq!(judge(5, 1024, 1024, 10_000, 1), Verdict::Enough);
        assert_eq!(judge(5, 64, 64, 1, 1), Verdict::Enough);
    }

    #[test]
    fn descriptors_that_are_open_are_counted() {
        let before = used();
        let file = std::fs::File::open("/dev/null").unwrap();
        // Other tests open and close theirs at the same time.
        assert!(before > 2 && used() > 2 && file.metadata().is_ok());
        assert!(limits().is_some_and(|(soft, hard)| soft <= hard));
    }

    #[test]
    fn what_to_do_is_said_where_descriptors_are_missing() {
        let text = explained(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(text.contains("raise the limit of open files (ulimit -n, now "), "{text}");
        assert_eq!(explained(&io::Error::from_raw_os_error(libc::EPERM)).matches("ulimit").count(), 0);
    }
}
