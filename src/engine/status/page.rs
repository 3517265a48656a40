//! The page's layout and its writer.

use super::{
    Owner, RECENT, SLOTS, SlotId, Status, WaitingFor,
    code::{decode, encode, halves, pair},
    log::{Log, Record},
    memory::{self, Mapping},
};
use crate::{engine::call::Call, plan::Rank};
use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering, fence},
    time::Duration,
};

const MAGIC: u64 = u64::from_le_bytes(*b"rondelst");
/// Changes with the layout and with the meaning of any word.
const VERSION: u64 = 1;
/// A reading is repeated this often at most when its slot changes hands meanwhile.
const ATTEMPTS: usize = 64;

/// All of a page. Only atomics, so that any mapping of any content is valid for it. Slots' heads come before all logs, so
/// that looking through the slots touches one memory page and unused logs stay unallocated.
#[repr(C, align(64))]
pub(super) struct Layout {
    header: Header,
    heads: [Head; SLOTS],
    logs: [Logs; SLOTS],
}

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU64,
    job: AtomicU64,
    /// Rank above, nranks below.
    rank: AtomicU64,
    pid: AtomicU64,
    /// When the process started, as its host counts ([`super::process::started`]).
    started: AtomicU64,
}

#[repr(C, align(64))]
struct Head {
    /// Odd while the slot is taken. Whoever reads the slot finds the same number before and after.
    generation: AtomicU64,
    comm: AtomicU64,
    /// Rank above, nranks below.
    rank: AtomicU64,
    completed: AtomicU64,
}

/// Collectives and sends/receives apart, so that many of the latter do not push out the last collective. Twice as long as
/// what readers want, so that they find it even when a whole ring of calls is entered while they read.
#[repr(C)]
struct Logs {
    waiting: Log<4>,
    collectives: Log<{ 2 * RECENT }>,
    peers: Log<{ 2 * RECENT }>,
}

/// The page of this process's context.
///
/// Any thread may read. Only one at a time may write: the engine's driver, which holds the engine's lock. Two writers at
/// once would do no harm to memory, but would show nonsense.
#[derive(Debug)]
pub struct StatusPage {
    mapping: Mapping,
    descriptor: OwnedFd,
}

impl StatusPage {
    /// A page in a sealed memfd.
    ///
    /// # Errors
    /// The kernel's, if there is no memory or no descriptor left.
    pub fn create(owner: &Owner) -> io::Result<Self> {
        let (descriptor, mapping) = memory::create()?;
        let header = &mapping.page().header;
        header.job.store(owner.job, Ordering::Relaxed);
        header.rank.store(pair(owner.rank, owner.nranks), Ordering::Relaxed);
        header.pid.store(u64::from(owner.pid), Ordering::Relaxed);
        header.started.store(super::process::started(owner.pid).unwrap_or(0), Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(StatusPage { mapping, descriptor })
    }
    /// The memory's descriptor, for passing to local peers.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.mapping.page().owner()
    }
    /// Makes room for a communicator; `None` when the page is full.
    pub fn open_slot(&self, comm: u64, rank: Rank, nranks: u32) -> Option<SlotId> {
        let page = self.mapping.page();
        let free = |head: &Head| head.generation.load(Ordering::Relaxed).is_multiple_of(2);
        let slot = page.heads.iter().position(free)?;
        let (head, logs) = (&page.heads[slot], &page.logs[slot]);
        // Whoever still reads the last owner's words sees its closing, which came before this fence.
        fence(Ordering::Release);
        head.comm.store(comm, Ordering::Relaxed);
        head.rank.store(pair(rank, nranks), Ordering::Relaxed);
        head.completed.store(0, Ordering::Relaxed);
        logs.waiting.clear();
        logs.collectives.clear();
        logs.peers.clear();
        head.generation.store(head.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        Some(SlotId(slot as u8))
    }
    /// The communicator is gone.
    pub fn close_slot(&self, slot: SlotId) {
        let generation = &self.mapping.page().heads[usize::from(slot.0)].generation;
        let now = generation.load(Ordering::Relaxed);
        if !now.is_multiple_of(2) {
            generation.store(now.wrapping_add(1), Ordering::Release);
        }
    }
    /// A call was entered. A few plain stores: it is on the warm path of an 8-byte operation.
    ///
    /// Sends and receives are remembered among the recent calls, but [`Status::entered`] stays the last collective: they
    /// count per peer, and their numbers compare with nothing else.
    #[inline]
    pub fn entered(&self, slot: SlotId, call: &Call) {
        let logs = &self.mapping.page().logs[usize::from(slot.0)];
        let order = logs.collectives.count().wrapping_add(logs.peers.count());
        let record = [order, call.seq, encode(call), call.count];
        if call.collective.is_point_to_point() {
            logs.peers.push(record);
        } else {
            logs.collectives.push(record);
        }
    }
    /// The collective of this number completed. One plain store. Not for sends and receives, which count per peer.
    #[inline]
    pub fn completed(&self, slot: SlotId, seq: u64) {
        self.mapping.page().heads[usize::from(slot.0)].completed.store(seq, Ordering::Release);
    }
    /// What is waited for; `None`: nothing any more.
    pub fn waiting(&self, slot: SlotId, waiting: Option<WaitingFor>) {
        let record = waiting.map_or([0; 4], |waiting| {
            let flags = 1 | u64::from(waiting.receiving) << 1;
            let since = u64::try_from(waiting.since.as_nanos()).unwrap_or(u64::MAX);
            [flags, waiting.seq, pair(waiting.peer, waiting.step), since]
        });
        self.mapping.page().logs[usize::from(slot.0)].waiting.push(record);
    }
    /// The status of one communicator, by its id.
    pub fn read(&self, comm: u64) -> Option<Status> {
        self.mapping.page().read(comm)
    }
}

impl Layout {
    /// Whether it is a page of this version; else what is wrong with it.
    pub(super) fn check(&self) -> Result<(), String> {
        let magic = self.header.magic.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if magic != MAGIC {
            return Err(format!(
                "it begins with {magic:#018x}, a status page of rondel begins with {MAGIC:#018x}"
            ));
        }
        let version = self.header.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(format!(
                "its layout has version {version}, this rondel reads version {VERSION}: use the same release as the job"
            ));
        }
        Ok(())
    }
    pub(super) fn owner(&self) -> Owner {
        let (rank, nranks) = halves(self.header.rank.load(Ordering::Relaxed));
        Owner {
            job: self.header.job.load(Ordering::Relaxed),
            rank,
            nranks,
            pid: self.header.pid.load(Ordering::Relaxed) as u32,
        }
    }
    pub(super) fn started(&self) -> u64 {
        self.header.started.load(Ordering::Relaxed)
    }
    pub(super) fn read(&self, comm: u64) -> Option<Status> {
        (0..SLOTS).find_map(|slot| self.read_slot(slot, Some(comm)))
    }
    pub(super) fn read_all(&self) -> Vec<Status> {
        (0..SLOTS).filter_map(|slot| self.read_slot(slot, None)).collect()
    }

    /// One slot, if it is taken (by `comm`, if given) and makes sense.
    fn read_slot(&self, slot: usize, comm: Option<u64>) -> Option<Status> {
        let head = &self.heads[slot];
        for _ in 0..ATTEMPTS {
            let generation = head.generation.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if generation.is_multiple_of(2)
                || comm.is_some_and(|comm| head.comm.load(Ordering::Relaxed) != comm)
            {
                return None;
            }
            let snapshot = self.snapshot(slot);
            fence(Ordering::Acquire);
            if head.generation.load(Ordering::Relaxed) == generation
                && let Some(snapshot) = snapshot
            {
                return snapshot.decode();
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The slot's words as they belong together; `None` if they changed too fast.
    ///
    /// What is written later is read earlier: a call that is seen completed is seen entered. Changes of what is waited for
    /// are rare, so that a reading during which it changed is given up.
    fn snapshot(&self, slot: usize) -> Option<Snapshot> {
        let (head, logs) = (&self.heads[slot], &self.logs[slot]);
        let (waiting, changes) = logs.waiting.newest(1);
        let completed = head.completed.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let (collectives, _) = logs.collectives.newest(RECENT);
        let (peers, _) = logs.peers.newest(RECENT);
        let (rank, nranks) = halves(head.rank.load(Ordering::Relaxed));
        let snapshot = Snapshot {
            comm: head.comm.load(Ordering::Relaxed),
            rank,
            nranks,
            completed,
            waiting: waiting.last().copied().unwrap_or_default(),
            collectives,
            peers,
        };
        fence(Ordering::Acquire);
        let whole = (!snapshot.collectives.is_empty() || completed == 0) && logs.waiting.count() == changes;
        whole.then_some(snapshot)
    }
}

/// A slot's words at one moment, not yet looked at.
struct Snapshot {
    comm: u64,
    rank: Rank,
    nranks: u32,
    completed: u64,
    waiting: Record,
    collectives: Vec<Record>,
    peers: Vec<Record>,
}

impl Snapshot {
    /// What they mean; `None` if they mean nothing, as only memory that somebody else wrote to can.
    fn decode(mut self) -> Option<Status> {
        let [flags, seq, ends, since] = self.waiting;
        let (peer, step) = halves(ends);
        let waiting = match flags {
            0 => None,
            1 | 3 => Some(WaitingFor {
                seq,
                step,
                peer,
                receiving: flags == 3,
                since: Duration::from_nanos(since),
            }),
            _ => return None,
        };
        let entered = match self.collectives.last() {
            Some(record) => Some(decode(record)?),
            None => None,
        };
        self.collectives.append(&mut self.peers);
        self.collectives.sort_by_key(|record| record[0]);
        let oldest = self.collectives.len().saturating_sub(RECENT);
        let recent = self.collectives[oldest..].iter().map(decode).collect::<Option<_>>()?;
        let valid = self.rank < self.nranks && waiting.is_none_or(|waiting| waiting.peer < self.nranks);
        valid.then_some(Status {
            comm: self.comm,
            rank: self.rank,
            nranks: self.nranks,
            entered,
            completed: self.completed,
            waiting,
            recent,
        })
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner().fmt(f)
    }
}
