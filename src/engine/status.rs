//! Status pages: what a rank is doing, readable by others while it computes, sleeps or is stopped.
//!
//! The engine writes its page with plain stores between two bumps of a sequence number (a seqlock), in memory that local
//! peers and `rondel status` map. Nobody needs the rank's help to read it.

use super::call::Call;
use crate::plan::Rank;
use std::{io, os::fd::BorrowedFd, time::Duration};

/// Communicators that one page has room for; later ones work, but are not shown.
pub const SLOTS: usize = 16;
/// Calls that a slot remembers.
pub const RECENT: usize = 64;

/// The page of this process's context. Written by the engine's driver only.
#[derive(Debug)]
pub struct StatusPage {
    _private: (),
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
    /// A peer that has to act first.
    pub peer: Rank,
    /// It has to send (else: to receive).
    pub receiving: bool,
    /// Since when.
    pub since: Duration,
}

/// What a slot said at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Identifies the communicator within the job.
    pub comm: u64,
    /// Rank and size of the communicator.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The last collective that was entered, if any was.
    pub entered: Option<Call>,
    /// Number of the last collective that completed; 0: none.
    pub completed: u64,
    /// What it has been waiting for, if it has for long enough to say so.
    pub waiting: Option<WaitingFor>,
    /// The last calls, oldest first.
    pub recent: Vec<Call>,
}

impl StatusPage {
    /// A page in a sealed memfd.
    pub fn create(owner: &Owner) -> io::Result<Self> {
        let _ = owner;
        todo!()
    }
    /// The memory's descriptor, for passing to local peers.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        todo!()
    }
    /// Makes room for a communicator; `None` when the page is full.
    pub fn open_slot(&self, comm: u64, rank: Rank, nranks: u32) -> Option<SlotId> {
        let _ = (comm, rank, nranks);
        todo!()
    }
    /// The communicator is gone.
    pub fn close_slot(&self, slot: SlotId) {
        let _ = slot;
        todo!()
    }
    /// A call was entered. A few plain stores: it is on the warm path of an 8-byte operation.
    pub fn entered(&self, slot: SlotId, call: &Call) {
        let _ = (slot, call);
        todo!()
    }
    /// The call of this number completed.
    pub fn completed(&self, slot: SlotId, seq: u64) {
        let _ = (slot, seq);
        todo!()
    }
    /// What is waited for; `None`: nothing any more.
    pub fn waiting(&self, slot: SlotId, waiting: Option<WaitingFor>) {
        let _ = (slot, waiting);
        todo!()
    }
    /// The status of one communicator, by its id.
    pub fn read(&self, comm: u64) -> Option<Status> {
        let _ = comm;
        todo!()
    }
}

/// Somebody else's page, mapped read-only.
#[derive(Debug)]
pub struct StatusView {
    _private: (),
}

impl StatusView {
    /// Maps and checks a page: size, seals, magic, version. Foreign memory, so every field is validated when read.
    pub fn map(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let _ = descriptor;
        todo!()
    }
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        todo!()
    }
    /// The status of one communicator, by its id.
    pub fn read(&self, comm: u64) -> Option<Status> {
        let _ = comm;
        todo!()
    }
    /// All of them.
    pub fn read_all(&self) -> Vec<Status> {
        todo!()
    }
}
