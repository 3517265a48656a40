//! How ranks find each other, and the thread that watches over them afterwards.
//!
//! [`Rendezvous`] says where the job meets. [`Watcher`] is one thread per context, asleep in epoll: it owns the one
//! listening port, the control links, heartbeats and process descriptors; it carries lane offers, answers inquiries from
//! the status page while its rank computes, and spreads news of failures. It never takes the engine's lock.

#[doc(hidden)]
pub mod codec;
mod descriptors;
mod doorway;
mod exhibit;
mod framed;
mod inquiry;
mod join;
mod launcher;
mod links;
mod listener;
mod poller;
mod process;
mod rendezvous;
mod root;
#[cfg(test)]
mod tests;
mod unique_id;
mod watcher;
#[doc(hidden)]
pub mod wire;

pub(crate) use descriptors::{explained, is_exhausted, provide as provide_descriptors};
pub use rendezvous::{Rendezvous, Store};
pub use unique_id::UniqueId;
pub use wire::Asked;

use crate::{
    engine::{
        call::Call,
        status::{Owner, SocketDirectory, StatusPage, StatusSocket},
    },
    error::{Failure, SetupError},
    membership::Pace,
    plan::Rank,
};
use doorway::Doorway;
use rondel_transport_api::{Acceptor, Advert, Offer, handshake::Key};
use std::{
    any::Any,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicBool},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use watcher::{Command, Joined, Shared, Thread};

/// How long a rank that cannot take part tries to say so.
const DECLINE_WITHIN: Duration = Duration::from_secs(2);

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
    /// What `XDG_RUNTIME_DIR` says: where the status page is shown to this user's other processes. It is not a condition:
    /// where no directory can be used, the job runs without being shown.
    pub runtime_dir: Option<PathBuf>,
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
    /// The call that was asked about, if it has made it and still remembers.
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

/// The handle of the thread. Dropping it ends the thread within 200 ms, with a goodbye to the ranks of the job.
///
/// A forked child has a copy of the handle, but no thread. Dropping the copy says nothing to anybody; the descriptors that
/// the child has inherited from the thread are closed when it calls `exec` or ends.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    acceptor: Arc<Acceptor>,
    page: OnceLock<Arc<StatusPage>>,
    runtime_dir: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread lives in: it does not follow into a fork.
    pid: u32,
}

impl Watcher {
    /// Opens the listener and starts the thread.
    ///
    /// # Errors
    /// [`SetupError::Config`] if no port of the range is free or no interface fits, [`SetupError::Bootstrap`] if the
    /// system refuses descriptors or a thread.
    pub fn start(config: WatcherConfig) -> Result<Self, SetupError> {
        let refused =
            |e: std::io::Error| SetupError::Bootstrap(format!("cannot start the watcher: {}", explained(&e)));
        let (listener, addresses) =
            listener::open(config.ports.clone(), config.socket_ifname.as_deref(), config.socket_family)?;
        let shared = Arc::new(Shared::new().map_err(refused)?);
        let acceptor = Arc::new(Acceptor::new(addresses).map_err(refused)?);
        let doorway = Doorway::new(vec![listener], config.key.clone()).map_err(refused)?;
        let pace = Pace { heartbeat: config.heartbeat, suspicion: config.suspicion };
        let thread = std::thread::Builder::new().name("rondel-watcher".into()).spawn({
            let (shared, acceptor, key) = (shared.clone(), acceptor.clone(), config.key.clone());
            move || match Thread::new(shared.clone(), acceptor, doorway, key, pace) {
                Ok(thread) => run(thread, &shared),
                Err(e) => watcher::report_end(&shared, 0, e.to_string()),
            }
        });
        Ok(Self {
            thread: Some(thread.map_err(refused)?),
            shared,
            acceptor,
            page: OnceLock::new(),
            runtime_dir: config.runtime_dir,
            pid: std::process::id(),
        })
    }
    /// Where endpoints get their incoming connections from.
    pub fn acceptor(&self) -> &Arc<Acceptor> {
        &self.acceptor
    }
    /// Joins the job. Blocks until all ranks are there, the deadline ends or `abort` is set (which is noticed within
    /// 50 ms, except while the system resolves a host name).
    ///
    /// # Errors
    /// [`SetupError::Missing`] with the ranks that did not come, on every rank that did; [`SetupError::Bootstrap`] if the
    /// root turned this rank away or could not be reached; [`SetupError::Config`] if this process cannot be what the
    /// rendezvous says; [`SetupError::Aborted`].
    pub fn join(
        &self,
        rendezvous: &Rendezvous,
        card: Card,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<Job, SetupError> {
        self.join_as(self.seat(rendezvous.rank(), card), rendezvous, deadline, abort)
    }

    /// Tells the other ranks why this one cannot take part, so that they need not wait for it. Returns when the root has
    /// heard it; [`DECLINE_WITHIN`] at the latest.
    pub(crate) fn decline(&self, rendezvous: &Rendezvous, why: &str, abort: &AtomicBool) {
        let seat = self.seat(rendezvous.rank(), Card { adverts: Vec::new() });
        let until = Instant::now() + DECLINE_WITHIN;
        // It comes back as this rank's refusal, or there is nobody to tell.
        let _ = rendezvous.meet(self, seat, Some(why), until, abort);
    }

    fn seat(&self, rank: Rank, card: Card) -> wire::Seat {
        wire::Seat {
            member: Member {
                rank,
                host: process::host_id(),
                hostname: process::hostname(),
                pid: std::process::id(),
                addresses: self.acceptor.addresses().to_vec(),
                card,
            },
            process: process::own_id(),
        }
    }

    fn join_as(
        &self,
        seat: wire::Seat,
        rendezvous: &Rendezvous,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<Job, SetupError> {
        if self.page.get().is_some() {
            return Err(SetupError::Config(
                "this watcher has joined a job already: start another one".into(),
            ));
        }
        codec::check_member(&seat.member)?;
        let rank = seat.member.rank;
        let (job, seats) = rendezvous.meet(self, seat, None, deadline, abort)?;
        let owner = Owner { job, rank, nranks: rendezvous.nranks(), pid: std::process::id() };
        let page = StatusPage::create(&owner)
            .map_err(|e| SetupError::Bootstrap(format!("cannot make the status page: {}", explained(&e))))?;
        let page = self.page.get_or_init(|| Arc::new(page)).clone();
        let members = seats.iter().map(|seat| seat.member.clone()).collect();
        let socket = show(&page, self.runtime_dir.as_deref());
        self.shared.command(Command::Joined(Box::new(Joined { job, me: rank, seats, page, socket })));
        Ok(Job { id: job, rank, members })
    }
    /// This rank's page; made by `join`.
    ///
    /// # Panics
    /// Before `join` has succeeded.
    pub fn status(&self) -> &Arc<StatusPage> {
        self.page.get().expect("the status page is made by joining")
    }
    /// Carries half of a lane to a peer. Does not block.
    pub fn send_offer(&self, to: Rank, offer: LaneOffer) {
        self.shared.command(Command::Offer { to, offer });
    }
    /// Asks what a peer is doing. The answer comes as a notice, within two seconds in any case. Does not block.
    pub fn inquire(&self, about: Rank, asked: Asked) {
        self.shared.command(Command::Inquire { about, asked });
    }
    /// Tells everybody that the job has failed. Does not block. Does nothing if it has failed before.
    pub fn declare(&self, failure: &Failure) {
        self.shared.command(Command::Declare(Box::new(failure.clone())));
    }
    /// The next notice. One relaxed load when there is none.
    pub fn notice(&self) -> Option<Notice> {
        self.shared.notice()
    }
    /// Readable while notices wait.
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.shared.notice_bell.as_fd()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            // The descriptors are the parent's too, the thread is the parent's alone.
            std::mem::forget(thread);
            return;
        }
        self.shared.command(Command::Leave);
        // A panic in there was reported as a notice.
        let _ = thread.join();
    }
}

/// Makes the page visible to `rondel status`, which is worth a warning but no failure if it cannot be done.
fn show(page: &Arc<StatusPage>, runtime_dir: Option<&Path>) -> Option<StatusSocket> {
    let directory = SocketDirectory::of_user(runtime_dir);
    directory
        .and_then(|directory| StatusSocket::serve(&directory, page.clone()))
        .inspect_err(|e| tracing::warn!("`rondel status` will not show this process: {e}"))
        .ok()
}

fn run(mut thread: Thread, shared: &Shared) {
    let end = catch_unwind(AssertUnwindSafe(|| thread.run()));
    let what = match end {
        Ok(Ok(())) => return,
        Ok(Err(e)) => e.to_string(),
        Err(panic) => panic_text(&*panic),
    };
    watcher::report_end(shared, thread.rank(), what);
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
