//! Status pages: what a rank is doing, readable by others while it computes, sleeps or is stopped.
//!
//! The engine writes its [`StatusPage`] with plain stores in memory that local peers and `rondel status` map as a
//! [`StatusView`]. Nobody needs the rank's help to read it: not its engine, not its watcher, and a rank that was stopped
//! in the middle of writing hides nothing but what it was about to write.

mod code;
mod listing;
mod log;
mod memory;
mod page;
mod passing;
mod process;
pub mod report;
mod socket;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use listing::find_page;
pub use listing::{Listing, Process, list_jobs};
pub use page::StatusPage;
pub use process::{ProcessState, process_state};
pub use socket::{SocketDirectory, StatusSocket};
pub use view::StatusView;

use super::call::Call;
use crate::plan::Rank;
use std::time::Duration;

/// Communicators that one page has room for; later ones work, but are not shown.
pub const SLOTS: usize = 16;
/// Calls that a slot remembers.
pub const RECENT: usize = 64;

/// The time that pages are written in: since the host started, the same for all of its processes. A moment that is known
/// as an [`Instant`](std::time::Instant) is `monotonic_now() - instant.elapsed()`.
pub fn monotonic_now() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec. This clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A communicator's place in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u8);

/// Who a page belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifies the job.
    pub job: u64,
    /// Rank within the job.
    pub rank: Rank,
    /// Ranks of the job.
    pub nranks: u32,
    /// Process.
    pub pid: u32,
}

/// What the engine is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingFor {
    /// Number of the call.
    pub seq: u64,
    /// Index of the plan's step.
    pub step: u32,
    /// A peer that has to act first: a rank of the communicator.
    pub peer: Rank,
    /// It has to send (else: to receive).
    pub receiving: bool,
    /// Since when, on the clock of [`monotonic_now`].
    pub since: Duration,
}

/// What a slot said at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Identifies the communicator within the job.
    pub comm: u64,
    /// The owner's rank in the communicator.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The last collective that was entered, if any was. Sends and receives are not collectives here: they are among the
    /// recent calls only, since their numbers count per peer.
    pub entered: Option<Call>,
    /// Number of the last collective that completed; 0: none.
    pub completed: u64,
    /// What it has been waiting for, if it has for long enough to say so.
    pub waiting: Option<WaitingFor>,
    /// The last calls, sends and receives among them, oldest first.
    pub recent: Vec<Call>,
}

impl Status {
    /// The collective of this number, if it is still among the recent calls.
    pub fn collective(&self, seq: u64) -> Option<Call> {
        let numbered_alike = |call: &&Call| !call.collective.is_point_to_point();
        self.recent.iter().filter(numbered_alike).find(|call| call.seq == seq).copied()
    }
}
