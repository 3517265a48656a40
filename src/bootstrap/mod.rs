//! How ranks find each other, and the thread that watches over them afterwards.
//!
//! [`Rendezvous`] says where the job meets. [`Watcher`] is one thread per context, asleep in epoll: it owns the one
//! listening port, the control links, heartbeats and process descriptors; it carries lane offers, answers inquiries from
//! the status page while its rank computes, and spreads news of failures. It never takes the engine's lock.

use crate::{
    engine::{call::Call, status::StatusPage},
    error::{Failure, SetupError},
    plan::Rank,
};
use rondel_transport_api::{Acceptor, Advert, Offer, handshake::Key};
use std::{
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// What the watcher is started with.
#[derive(Clone, Debug)]
pub struct WatcherConfig {
    /// The job's secret.
    pub key: Key,
    /// Port or range of ports to listen on; `None`: any.
    pub ports: Option<std::ops::RangeInclusive<u16>>,
    /// Interfaces, with NCCL's syntax.
    pub socket_ifname: Option<String>,
    /// 4 or 6 restricts the address family.
    pub socket_family: Option<u8>,
    /// Every link says something at least this often.
    pub heartbeat: Duration,
    /// A link that was silent for this long makes its peer suspect.
    pub suspicion: Duration,
}

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// The adverts of its open endpoints, in the order of its preference.
    pub adverts: Vec<Advert>,
}

/// A rank as the others know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Rank within the job.
    pub rank: Rank,
    /// Equal for processes that share a kernel and a network namespace.
    pub host: [u8; 16],
    /// For people.
    pub hostname: String,
    /// Process id, in its own namespace.
    pub pid: u32,
    /// Where its watcher listens, best first.
    pub addresses: Vec<SocketAddr>,
    /// What it said about itself.
    pub card: Card,
}

/// A job that all ranks have joined.
#[derive(Clone, Debug)]
pub struct Job {
    /// Identifies the job; the same on all ranks, new for every job.
    pub id: u64,
    /// This rank.
    pub rank: Rank,
    /// All ranks, in order.
    pub members: Arc<[Member]>,
}

/// Half of a lane on its way to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneOffer {
    /// The communicator.
    pub comm: u64,
    /// Which of the lanes between the two ranks.
    pub channel: u16,
    /// Which pair of endpoints: the position of the advert that both sides chose.
    pub endpoint: u8,
    /// The transport's part.
    pub offer: Offer,
}

/// What a peer's watcher (or its host's) answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Who was asked about (rank of the job).
    pub about: Rank,
    /// The communicator that was asked about.
    pub comm: u64,
    /// The number of the call that was asked about.
    pub seq: u64,
    /// The last collective that it entered; 0: none.
    pub entered: u64,
    /// The last collective that it completed.
    pub completed: u64,
    /// What it called under that number, if it still remembers.
    pub call: Option<Call>,
    /// Whether it runs.
    pub liveness: Liveness,
}

/// Whether a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its watcher answered.
    Alive,
    /// Its host sees it stopped by a signal or a debugger.
    Stopped,
    /// Nobody answered for it within the time.
    NoAnswer,
}

/// What the watcher has for the engine.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A peer's half of a lane.
    Offer {
        /// The peer (rank of the job).
        from: Rank,
        /// Its half.
        offer: LaneOffer,
    },
    /// The answer to an inquiry.
    Answer(Answer),
    /// The job has failed. `failure.origin` and its ranks are ranks of the job.
    Failed(Arc<Failure>),
    /// A rank said goodbye: it will take part in nothing any more.
    Left(Rank),
}

/// The handle of the thread. Dropping it ends the thread, with a goodbye where one is still owed.
#[derive(Debug)]
pub struct Watcher {
    _private: (),
}

impl Watcher {
    /// Opens the listener and starts the thread.
    pub fn start(config: WatcherConfig) -> Result<Self, SetupError> {
        let _ = config;
        todo!()
    }
    /// Where endpoints get their incoming connections from.
    pub fn acceptor(&self) -> &Arc<Acceptor> {
        todo!()
    }
    /// Joins the job. Blocks until all ranks are there, the deadline ends or `abort` is set.
    pub fn join(
        &self,
        rendezvous: &Rendezvous,
        card: Card,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<Job, SetupError> {
        let _ = (rendezvous, card, deadline, abort);
        todo!()
    }
    /// This rank's page; made by `join`.
    pub fn status(&self) -> &Arc<StatusPage> {
        todo!()
    }
    /// Carries half of a lane to a peer. Does not block.
    pub fn send_offer(&self, to: Rank, offer: LaneOffer) {
        let _ = (to, offer);
        todo!()
    }
    /// Asks what a peer is doing. The answer comes as a notice, within two seconds in any case. Does not block.
    pub fn inquire(&self, about: Rank, comm: u64, seq: u64) {
        let _ = (about, comm, seq);
        todo!()
    }
    /// Tells everybody that the job has failed. Does not block.
    pub fn declare(&self, failure: &Failure) {
        let _ = failure;
        todo!()
    }
    /// The next notice. One relaxed load when there is none.
    pub fn notice(&self) -> Option<Notice> {
        todo!()
    }
    /// Readable while notices wait.
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

/// Where the ranks of a job meet.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    _private: (),
}
