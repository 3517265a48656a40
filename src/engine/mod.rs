//! The engine: walks the plans of all operations of a context over its endpoints.
//!
//! * [`execution`] (pure): which step and slice may start now.
//! * `prepare`: a call's plan, partition and executions, kept for the next call of the same kind.
//! * `drive`: the one place that knows both actions and endpoints: turns actions into posts, and events into progress.
//! * `straight`: the short way of small operations, without any of that.
//! * `staging`: reductions that the endpoint does not do itself: receive beside, then combine.
//! * `buffers`: memory that endpoints made for callers, and which of their posts lie in it.
//! * `lane`: lanes on demand, and whose turn it is on them.
//! * `vigil`: what a waiting engine notices: stalls, deadlines, lost lanes; and how operations fail.
//! * [`progress`]: who drives, and how the others wait.
//! * [`status`]: what others can read while this rank computes.
//!
//! Architecture Invariant: an [`Engine`] reads no clock and talks to nobody but endpoints; `now` is an argument, and what
//! it has to tell other ranks it leaves as [`Command`]s. So the same engine runs in virtual time.

mod buffers;
pub mod call;
mod drive;
#[forbid(unsafe_code)]
pub mod execution;
mod lane;
mod memory;
mod prepare;
pub mod progress;
mod staging;
pub mod status;
mod straight;
mod vigil;

pub use prepare::Route;
pub use straight::Submitted;

use crate::{
    bootstrap::{Asked, LaneOffer, Notice},
    error::{Cause, Error, Failure, Result},
    plan::{Alias, Collective, Rank, Shape},
};
use buffers::Buffers;
use call::Call;
use lane::{EarlyOffer, Lane};
use memory::Pool;
pub(crate) use prepare::MAX_CHANNELS;
use prepare::{Prepared, Run};
use rondel_transport_api::{Advert, Endpoint, Event, HostDevice, LaneId, Operand, Reduction};
use staging::Staged;
use status::{SlotId, StatusPage};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

/// Index of a run (one execution in flight).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunId(u32);

/// An operation in flight; becomes invalid when its result is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationId {
    slot: u32,
    generation: u32,
}

/// A communicator of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommId(usize);

/// What the engine has to tell other ranks. Ranks are those of the job.
#[derive(Clone, Debug)]
pub enum Command {
    /// Our half of a lane.
    Offer {
        /// For whom.
        to: Rank,
        /// The half.
        offer: LaneOffer,
    },
    /// Ask what a rank is doing.
    Inquire {
        /// Which rank.
        about: Rank,
        /// About which call of which communicator.
        asked: Asked,
    },
    /// The job has failed.
    Declare(Arc<Failure>),
}

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// After how long a waiting operation asks its peers what they are doing.
    pub stall_after: Duration,
    /// After how long a warning is logged.
    pub warn_after: Duration,
    /// How long a lost lane may wait for news of its cause.
    pub grace: Duration,
    /// How long an operation may take.
    pub timeout: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            stall_after: Duration::from_secs(1),
            warn_after: Duration::from_secs(10),
            grace: Duration::from_millis(1200),
            timeout: Duration::from_secs(30 * 60),
        }
    }
}

/// A communicator as the engine must know it.
pub struct CommSpec {
    /// Identifies it within the job.
    pub id: u64,
    /// This rank.
    pub rank: Rank,
    /// For each rank of the communicator, its rank in the job.
    pub members: Arc<[Rank]>,
    /// For each rank of the communicator, which of our endpoints reaches it and with which of its adverts.
    pub paths: Vec<Option<Path>>,
    /// Order and hosts of the ranks.
    pub shape: Shape,
    /// Which way a collective goes, by its bytes. The same on all ranks.
    pub routes: Box<dyn Fn(Collective, u64) -> Route + Send>,
    /// Version of that table: ranks with another one are told apart.
    pub table: u64,
}

impl fmt::Debug for CommSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommSpec").field("id", &self.id).field("rank", &self.rank).finish_non_exhaustive()
    }
}

/// How a pair of ranks is connected.
#[derive(Clone, Debug)]
pub struct Path {
    /// Index of our endpoint.
    pub endpoint: usize,
    /// The peer's advert that it reaches.
    pub advert: Advert,
    /// The transport's name.
    pub transport: &'static str,
}

/// Memory and traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that the whole context holds: lanes and their buffers, scratch and staging.
    pub memory_bytes: u64,
    /// Lanes that the communicator has.
    pub lanes: u32,
    /// Bytes of [`Buffer`](crate::Buffer)s that peers can map, of the whole context.
    pub buffer_bytes: u64,
    /// Payload bytes that left, by peer.
    pub sent_bytes: Vec<u64>,
    /// Payload bytes that arrived, by peer.
    pub received_bytes: Vec<u64>,
    /// Operations that completed.
    pub operations: u64,
}

/// An operation to start.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    /// The call; its `seq` is given by the engine.
    pub call: Call,
    /// The reduction; ignored where nothing is combined.
    pub reduction: Reduction,
    /// The caller's input, null where there is none. Written only where `alias` puts the output inside it.
    pub input: *mut u8,
    /// The caller's output, null where there is none.
    pub output: *mut u8,
    /// How the two lie.
    pub alias: Alias,
    /// Another bound than the configured one.
    pub timeout: Option<Duration>,
}

pub(crate) struct Port {
    pub(crate) endpoint: Box<dyn Endpoint>,
    /// Something was posted since the last flush.
    pub(crate) dirty: bool,
    /// Engine lane by the endpoint's lane.
    pub(crate) lanes: HashMap<LaneId, u32>,
    /// It combines host memory while it receives.
    pub(crate) reduces: bool,
}

pub(crate) struct Comm {
    pub(crate) spec: CommSpec,
    /// Engine lane by (peer, channel).
    pub(crate) lanes: HashMap<(Rank, u16), u32>,
    /// Last number of a collective.
    pub(crate) seq: u64,
    /// Last number of a send to and a receive from each peer.
    pub(crate) p2p_seq: Vec<[u64; 2]>,
    /// Prepared calls by key, and the last one.
    pub(crate) prepared: HashMap<prepare::Key, u32>,
    pub(crate) last: Option<(prepare::Key, u32)>,
    /// Operations that still have rounds to start, per channel, in order.
    /// The first 16 queues are the channels'; each peer has one for sends and one for receives behind them.
    pub(crate) issue: Vec<VecDeque<OperationId>>,
    pub(crate) failure: Option<Arc<Failure>>,
    pub(crate) slot: Option<SlotId>,
    pub(crate) closed: bool,
    pub(crate) completed: u64,
}

pub(crate) struct Operation {
    pub(crate) generation: u32,
    pub(crate) comm: usize,
    pub(crate) prepared: u32,
    pub(crate) submission: Submission,
    pub(crate) stamp: u64,
    /// For each channel, the next round to start.
    pub(crate) next_round: [u32; MAX_CHANNELS],
    /// Runs of this operation that are under way, per channel.
    pub(crate) under_way: [u32; MAX_CHANNELS],
    /// Runs that are not over, started or not.
    pub(crate) runs_left: u32,
    /// Operations on overlapping memory that must be over first.
    pub(crate) after: Vec<OperationId>,
    pub(crate) deadline: Duration,
    pub(crate) vigil: vigil::Vigil,
    pub(crate) outcome: Option<Result<()>>,
}

/// Walks the plans of all operations of a context over its endpoints.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) ports: Vec<Port>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) comms: Vec<Comm>,
    pub(crate) early_offers: Vec<EarlyOffer>,
    pub(crate) prepared: Vec<Option<Prepared>>,
    pub(crate) runs: Vec<Option<Box<Run>>>,
    pub(crate) free_runs: Vec<u32>,
    pub(crate) operations: Vec<Option<Operation>>,
    pub(crate) free_operations: Vec<(u32, u32)>,
    /// Runs that may have something to start.
    pub(crate) ready: Vec<RunId>,
    /// Runs that an endpoint refused something, and at which step.
    pub(crate) refused: Vec<(RunId, u32)>,
    pub(crate) staged: Vec<Option<Staged>>,
    pub(crate) free_staged: Vec<u32>,
    pub(crate) owing: Vec<u32>,
    pub(crate) pool: Pool,
    pub(crate) buffers: Buffers,
    /// Operands of the reduction that is being made: one list, used again and again.
    pub(crate) operands: Vec<Operand>,
    pub(crate) device: HostDevice,
    pub(crate) events: Vec<Event>,
    /// Events of others, by endpoint, that came while a call went the short way.
    pub(crate) foreign: Vec<(usize, Event)>,
    pub(crate) commands: Vec<Command>,
    pub(crate) page: Option<Arc<StatusPage>>,
    pub(crate) lost: Vec<vigil::LostLane>,
    /// Ranks of the job that said goodbye: communicators to come cannot count on them.
    pub(crate) gone: Vec<Rank>,
    pub(crate) unfinished: u32,
    pub(crate) now: Duration,
}

// SAFETY: the raw pointers of submissions are on loan until their operation is over; whoever submits promises that they
// stay valid wherever the engine is driven from.
unsafe impl Send for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("ports", &self.ports.len())
            .field("lanes", &self.lanes.len())
            .field("unfinished", &self.unfinished)
            .finish_non_exhaustive()
    }
}

/// Bytes that one poll of an endpoint may move before the others get their turn.
const POLL_BUDGET: usize = 1 << 20;

impl Engine {
    /// An engine over these endpoints. `page`: where to publish what it does.
    pub fn new(
        config: EngineConfig,
        endpoints: Vec<Box<dyn Endpoint>>,
        page: Option<Arc<StatusPage>>,
    ) -> Self {
        let port = |endpoint: Box<dyn Endpoint>| Port {
            reduces: endpoint.limits().reduces,
            endpoint,
            dirty: false,
            lanes: HashMap::new(),
        };
        Self {
            config,
            ports: endpoints.into_iter().map(port).collect(),
            lanes: Vec::new(),
            comms: Vec::new(),
            early_offers: Vec::new(),
            prepared: Vec::new(),
            runs: Vec::new(),
            free_runs: Vec::new(),
            operations: Vec::new(),
            free_operations: Vec::new(),
            ready: Vec::new(),
            refused: Vec::new(),
            staged: Vec::new(),
            free_staged: Vec::new(),
            owing: Vec::new(),
            pool: Pool::default(),
            buffers: Buffers::default(),
            operands: Vec::new(),
            device: HostDevice,
            events: Vec::new(),
            foreign: Vec::new(),
            commands: Vec::new(),
            page,
            lost: Vec::new(),
            gone: Vec::new(),
            unfinished: 0,
            now: Duration::ZERO,
        }
    }

    /// Adds a communicator. Offers for it that came early are answered now.
    pub fn add_communicator(&mut self, spec: CommSpec) -> CommId {
        let nranks = spec.members.len();
        let slot =
            self.page.as_ref().and_then(|page| page.open_slot(spec.id, spec.rank, spec.members.len() as u32));
        let id = spec.id;
        self.comms.push(Comm {
            spec,
            lanes: HashMap::new(),
            seq: 0,
            p2p_seq: vec![[0; 2]; nranks],
            prepared: HashMap::new(),
            last: None,
            issue: (0..MAX_CHANNELS + 2 * nranks).map(|_| VecDeque::new()).collect(),
            failure: None,
            slot,
            closed: false,
            completed: 0,
        });
        let early = std::mem::take(&mut self.early_offers);
        let (ours, others): (Vec<_>, Vec<_>) = early.into_iter().partition(|early| early.offer.comm == id);
        self.early_offers = others;
        for EarlyOffer { from, offer } in ours {
            self.handle_offer(from, offer);
        }
        let comm = self.comms.len() - 1;
        for job_rank in self.gone.clone() {
            self.handle_left_of(comm, job_rank);
        }
        CommId(comm)
    }

    /// Starts an operation. It moves when [`step`](Engine::step) is called.
    ///
    /// # Safety
    /// The buffers are valid for the call and nobody else touches them until the operation is over
    /// ([`take_outcome`](Engine::take_outcome) returned), also when it fails.
    pub unsafe fn submit(&mut self, comm: CommId, submission: Submission) -> Result<OperationId> {
        if let Some(failure) = &self.comms[comm.0].failure {
            return Err(Error::Failed(failure.clone()));
        }
        let prepared = self.prepare(comm.0, &submission)?;
        let submission = self.number(comm.0, submission);
        Ok(self.enqueue(comm.0, prepared, submission))
    }

    /// Gives the call its number on the communicator, and publishes that it was entered.
    fn number(&mut self, comm: usize, mut submission: Submission) -> Submission {
        let comm = &mut self.comms[comm];
        let call = &mut submission.call;
        call.seq = match call.collective {
            Collective::Send | Collective::Recv => {
                let direction = usize::from(call.collective == Collective::Recv);
                let seq = &mut comm.p2p_seq[call.root as usize][direction];
                *seq += 1;
                *seq
            }
            _ => {
                comm.seq += 1;
                comm.seq
            }
        };
        if let (Some(page), Some(slot)) = (&self.page, comm.slot) {
            page.entered(slot, call);
        }
        submission
    }

    /// Makes progress: starts what may start, moves bytes, handles what happened. Returns whether anything moved.
    pub fn step(&mut self, now: Duration) -> bool {
        self.now = now;
        self.pump();
        let mut moved = false;
        for port in 0..self.ports.len() {
            let mut events = std::mem::take(&mut self.events);
            moved |= self.ports[port].endpoint.poll(&mut events, POLL_BUDGET);
            moved |= !events.is_empty();
            for event in events.drain(..) {
                self.handle_event(port, event);
            }
            self.events = events;
        }
        if moved || !self.refused.is_empty() || !self.owing.is_empty() {
            self.retry_refused();
            self.pump();
        }
        moved
    }

    /// Starts whatever may start, and hands it to the endpoints.
    fn pump(&mut self) {
        while let Some(run) = self.ready.pop() {
            self.advance(run);
        }
        for port in &mut self.ports {
            if port.dirty {
                port.dirty = false;
                port.endpoint.flush();
            }
        }
    }

    /// Nobody drives for a while: what was handed to the endpoints reaches peers that sleep, too.
    pub fn pause(&mut self) {
        for port in &mut self.ports {
            port.endpoint.pause();
        }
    }

    /// Handles what the watcher has to say.
    pub fn handle_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Offer { from, offer } => self.handle_offer(from, offer),
            Notice::Answer(answer) => self.handle_answer(answer),
            Notice::Failed(failure) => self.handle_news(&failure),
            Notice::Left(rank) => self.handle_left(rank),
        }
    }

    /// What it has to tell other ranks, oldest first.
    pub fn take_commands(&mut self) -> impl Iterator<Item = Command> + '_ {
        self.commands.drain(..)
    }

    /// Whether there are commands to take.
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether an operation is over.
    pub fn is_over(&self, operation: OperationId) -> bool {
        self.operation(operation).is_none_or(|operation| operation.outcome.is_some())
    }

    /// The result of an operation that is over, once.
    pub fn take_outcome(&mut self, operation: OperationId) -> Option<Result<()>> {
        let found = self.operations.get_mut(operation.slot as usize)?;
        if found.as_ref().is_none_or(|o| o.generation != operation.generation || o.outcome.is_none()) {
            return None;
        }
        let outcome = found.take()?.outcome;
        self.free_operations.push((operation.slot, operation.generation + 1));
        outcome
    }

    /// Operations that are not over.
    pub fn unfinished(&self) -> u32 {
        self.unfinished
    }

    /// Why a communicator is dead, if it is.
    pub fn failure(&self, comm: CommId) -> Option<&Arc<Failure>> {
        self.comms[comm.0].failure.as_ref()
    }

    /// Ends a communicator from this side: all its operations fail, all other ranks are told.
    pub fn abort(&mut self, comm: CommId, reason: &str) {
        let rank = self.comms[comm.0].spec.rank;
        let cause = Cause::Aborted { rank, reason: reason.to_owned() };
        self.fail(comm.0, cause, true);
    }

    /// Leaves a communicator: its lanes say goodbye, and its memory is given back.
    pub fn close(&mut self, id: CommId) {
        let comm = &mut self.comms[id.0];
        comm.closed = true;
        if let (Some(page), Some(slot)) = (&self.page, comm.slot.take()) {
            page.close_slot(slot);
        }
        for prepared in comm.prepared.drain().map(|(_, slot)| slot as usize) {
            if self.prepared[prepared].as_ref().is_some_and(Prepared::is_unused) {
                self.prepared[prepared] = None;
            }
        }
        comm.last = None;
        self.lost.retain(|lost| lost.comm != id.0);
        let comm = &self.comms[id.0];
        for &lane in comm.lanes.values() {
            let lane = &self.lanes[lane as usize];
            if lane.phase != lane::Phase::Closed {
                self.ports[lane.endpoint].endpoint.close(lane.id);
            }
        }
    }

    /// Whether every lane of a closed communicator has ended.
    pub fn is_closed(&self, comm: CommId) -> bool {
        self.comms[comm.0].lanes.values().all(|&lane| self.lanes[lane as usize].phase == lane::Phase::Closed)
    }

    /// Memory and traffic of a communicator's lanes, and the memory that the whole context holds.
    pub fn stats(&self, comm: CommId) -> Stats {
        let endpoints: usize = self.ports.iter().map(|port| port.endpoint.memory()).sum();
        let comm = &self.comms[comm.0];
        let nranks = comm.spec.members.len();
        let mut stats = Stats {
            memory_bytes: (endpoints + self.pool.bytes()) as u64,
            buffer_bytes: self.buffers.bytes() as u64,
            lanes: comm.lanes.len() as u32,
            sent_bytes: vec![0; nranks],
            received_bytes: vec![0; nranks],
            operations: comm.completed,
        };
        for (&(peer, _), &lane) in &comm.lanes {
            let lane = &self.lanes[lane as usize];
            let of_lane = self.ports[lane.endpoint].endpoint.lane_stats(lane.id);
            stats.sent_bytes[peer as usize] += of_lane.sent_bytes;
            stats.received_bytes[peer as usize] += of_lane.received_bytes;
        }
        stats
    }

    pub(crate) fn operation(&self, id: OperationId) -> Option<&Operation> {
        self.operations.get(id.slot as usize)?.as_ref().filter(|o| o.generation == id.generation)
    }

    pub(crate) fn operation_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.operations.get_mut(id.slot as usize)?.as_mut().filter(|o| o.generation == id.generation)
    }
}
