//! Many engines in one thread, over `mem`, with a clock that is a variable.

mod watchers;

use crate::buffers::Buffers;
use rondel::{
    Error, ReduceOp,
    algo::Algorithm,
    engine::{
        CommId, CommSpec, Engine, EngineConfig, OperationId, Path, Route, Submission, Submitted, call::Call,
    },
    plan::{Collective, Rank, Shape},
};
use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{Acceptor, Advert, Config, Endpoint, Transport, handshake::Key};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use watchers::Letter;

/// Virtual time that passes when nothing moves.
const TICK: Duration = Duration::from_millis(20);
/// The communicator that every cluster begins with: all ranks.
pub(crate) const WORLD: usize = 0;

pub(crate) fn route(algorithm: &'static Algorithm) -> Route {
    Route { algorithm, channels: 1, slice_bytes: 16 << 10, round_bytes: 64 << 10 }
}

/// An operation of one rank (of the job).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Started {
    pub(crate) rank: usize,
    /// `None`: it was over at once.
    operation: Option<OperationId>,
}

/// A communicator of the cluster.
#[derive(Debug)]
struct Team {
    id: u64,
    members: Arc<[Rank]>,
    /// What each rank's engine calls it, by rank of the job.
    comms: Vec<Option<CommId>>,
}

/// One engine a rank, and what the watchers would do between them.
pub(crate) struct Cluster {
    pub(crate) engines: Vec<Engine>,
    pub(crate) now: Duration,
    /// `now` in milliseconds, for endpoints that delay events.
    clock: Arc<AtomicU64>,
    config: EngineConfig,
    adverts: Vec<Advert>,
    teams: Vec<Team>,
    alive: Vec<bool>,
    left: Vec<bool>,
    /// How long the answer to an inquiry takes; `None`: nobody ever answers.
    pub(crate) answers_after: Option<Duration>,
    letters: Vec<Letter>,
    /// What each rank called, by communicator and number; only collectives are remembered, as on status pages.
    entered: HashMap<(usize, u64, u64), Call>,
    /// Number of each rank's last collective, by communicator.
    last: HashMap<(usize, u64), u64>,
    calls: u64,
}

impl Cluster {
    pub(crate) fn new(
        shape: &Shape,
        config: MemConfig,
        routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    ) -> Self {
        Self::with_config(shape, config, EngineConfig::default(), routes)
    }

    pub(crate) fn with_config(
        shape: &Shape,
        mem: MemConfig,
        config: EngineConfig,
        routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    ) -> Self {
        let endpoints = endpoints(shape.nranks(), mem);
        Self::over(shape, endpoints, Arc::default(), config, routes)
    }

    /// Over endpoints that may have been decorated. `clock` is advanced in milliseconds of virtual time.
    pub(crate) fn over(
        shape: &Shape,
        endpoints: Vec<Box<dyn Endpoint>>,
        clock: Arc<AtomicU64>,
        config: EngineConfig,
        routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    ) -> Self {
        let adverts: Vec<_> = endpoints.iter().map(|endpoint| endpoint.advert()).collect();
        let engine = |endpoint| Engine::new(config.clone(), vec![endpoint], None);
        let mut cluster = Self {
            alive: vec![true; endpoints.len()],
            left: vec![false; endpoints.len()],
            engines: endpoints.into_iter().map(engine).collect(),
            now: Duration::ZERO,
            clock,
            config,
            adverts,
            teams: Vec::new(),
            answers_after: Some(Duration::ZERO),
            letters: Vec::new(),
            entered: HashMap::new(),
            last: HashMap::new(),
            calls: 0,
        };
        let everybody: Vec<Rank> = (0..shape.nranks()).collect();
        cluster.add_communicator(&everybody, shape, routes);
        cluster
    }

    /// A communicator of some ranks of the job; `shape` is that of the members. Returns its index.
    pub(crate) fn add_communicator(
        &mut self,
        members: &[Rank],
        shape: &Shape,
        routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    ) -> usize {
        let id = 7 + self.teams.len() as u64;
        let members: Arc<[Rank]> = members.into();
        let mut comms = vec![None; self.engines.len()];
        for (rank, &of_job) in members.iter().enumerate() {
            let path = |&peer: &Rank| {
                let advert = self.adverts[peer as usize].clone();
                (peer != of_job).then_some(Path { endpoint: 0, advert, transport: "mem" })
            };
            let spec = CommSpec {
                id,
                rank: rank as Rank,
                members: members.clone(),
                paths: members.iter().map(path).collect(),
                shape: shape.clone(),
                routes: Box::new(routes.clone()),
                table: 1,
            };
            comms[of_job as usize] = Some(self.engines[of_job as usize].add_communicator(spec));
        }
        self.teams.push(Team { id, members, comms });
        self.teams.len() - 1
    }

    /// What the engine of a rank of the job calls a communicator.
    pub(crate) fn comm(&self, team: usize, rank: usize) -> CommId {
        self.teams[team].comms[rank].expect("the rank is a member")
    }

    pub(crate) fn submit_all(&mut self, buffers: &mut Buffers, op: ReduceOp) -> Vec<Started> {
        let all: Vec<usize> = (0..self.engines.len()).collect();
        self.submit_some(buffers, op, &all)
    }

    /// Only these ranks make the call.
    pub(crate) fn submit_some(
        &mut self,
        buffers: &mut Buffers,
        op: ReduceOp,
        ranks: &[usize],
    ) -> Vec<Started> {
        let submit = |&rank: &usize| {
            let submission = buffers.submission(rank, op);
            self.submit(WORLD, rank, submission).expect("the communicator is healthy")
        };
        ranks.iter().map(submit).collect()
    }

    /// A call of every member of a communicator.
    pub(crate) fn submit_on(&mut self, team: usize, buffers: &mut Buffers, op: ReduceOp) -> Vec<Started> {
        let members = self.teams[team].members.clone();
        let submit = |(rank, &of_job): (usize, &Rank)| {
            let submission = buffers.submission(rank, op);
            self.submit(team, of_job as usize, submission).expect("the communicator is healthy")
        };
        members.iter().enumerate().map(submit).collect()
    }

    /// One rank's part of a call. Its buffers must live until the operation is over, as all tests see to.
    pub(crate) fn submit(
        &mut self,
        team: usize,
        rank: usize,
        submission: Submission,
    ) -> Result<Started, Error> {
        let (id, comm) = (self.teams[team].id, self.comm(team, rank));
        self.calls += 1;
        let (engine, now) = (&mut self.engines[rank], self.now);
        // Every other call goes the short way as far as that leads: calls in line and calls on it must get along.
        // SAFETY: tests keep the buffers, untouched, until the operation is over or its engine is gone.
        let operation = match self.calls % 2 {
            // SAFETY: as above.
            0 => Some(unsafe { engine.submit(comm, submission) }?),
            // SAFETY: as above.
            _ => match unsafe { engine.run(comm, submission, || now, |_| {}) }? {
                Submitted::Over => None,
                Submitted::Started(operation) => Some(operation),
            },
        };
        if !submission.call.collective.is_point_to_point() {
            let seq = self.last.entry((rank, id)).or_default();
            *seq += 1;
            self.entered.insert((rank, id, *seq), Call { seq: *seq, ..submission.call });
        }
        Ok(Started { rank, operation })
    }

    /// Every rank's part of a call, without starting it.
    pub(crate) fn submissions(&self, buffers: &mut Buffers, op: ReduceOp) -> Vec<Submission> {
        (0..self.engines.len()).map(|rank| buffers.submission(rank, op)).collect()
    }

    /// Starts a call on every rank and runs it to its end, without any allocation of the harness.
    pub(crate) fn run(&mut self, submissions: &[Submission]) {
        let mut started = [None; 64];
        for (rank, submission) in submissions.iter().enumerate() {
            let comm = self.comm(WORLD, rank);
            let now = self.now;
            // SAFETY: the buffers outlive the call, which is over when this returns.
            let submitted = unsafe { self.engines[rank].run(comm, *submission, || now, |_| {}) };
            started[rank] = match submitted.expect("the communicator is healthy") {
                Submitted::Over => None,
                Submitted::Started(operation) => Some(operation),
            };
        }
        for _ in 0..10_000_000 {
            if started.iter().all(Option::is_none) {
                return;
            }
            for (rank, slot) in started.iter_mut().enumerate() {
                let Some(operation) = *slot else { continue };
                self.look(rank);
                if let Some(outcome) = self.engines[rank].take_outcome(operation) {
                    outcome.expect("it goes well");
                    *slot = None;
                }
            }
        }
        panic!("not over: {:?}", self.engines);
    }

    /// One look of every rank that is alive. Returns whether anything moved.
    pub(crate) fn step(&mut self) -> bool {
        let mut moved = self.deliver();
        for rank in 0..self.engines.len() {
            moved |= self.look(rank);
        }
        if !moved {
            self.now += TICK;
            self.clock.store(self.now.as_millis() as u64, Relaxed);
            for rank in 0..self.engines.len() {
                if self.alive[rank] {
                    self.engines[rank].keep_vigil(self.now);
                    self.carry(rank);
                }
            }
        }
        moved
    }

    /// One look of one rank. Returns whether anything moved.
    pub(crate) fn look(&mut self, rank: usize) -> bool {
        if !self.alive[rank] {
            return false;
        }
        let mut moved = self.engines[rank].step(self.now);
        moved |= self.carry(rank);
        moved | self.deliver()
    }

    /// Until these operations are over, or their rank is dead.
    pub(crate) fn finish(&mut self, started: &[Started]) {
        self.finish_within(started, Duration::MAX);
    }

    /// The same, and no more than `limit` of virtual time may pass.
    pub(crate) fn finish_within(&mut self, started: &[Started], limit: Duration) {
        let end = self.now.saturating_add(limit);
        for _ in 0..500_000 {
            if started.iter().all(|started| self.is_over(*started)) {
                return;
            }
            assert!(self.now <= end, "not over after {limit:?} of virtual time: {:?}", self.engines);
            self.step();
        }
        panic!("not over after {:?} of virtual time: {:?}", self.now, self.engines);
    }

    /// Until this much virtual time has passed.
    pub(crate) fn idle(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    pub(crate) fn is_over(&self, Started { rank, operation }: Started) -> bool {
        !self.alive[rank] || operation.is_none_or(|operation| self.engines[rank].is_over(operation))
    }

    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        self.alive[rank]
    }

    /// How an operation ended, once.
    pub(crate) fn outcome(&mut self, Started { rank, operation }: Started) -> Result<(), Error> {
        let outcome = |operation| self.engines[rank].take_outcome(operation).expect("it is over");
        operation.map_or(Ok(()), outcome)
    }

    /// A rank's process ends without a word.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.alive[rank] = false;
        self.engines[rank] = Engine::new(self.config.clone(), Vec::new(), None);
    }
}

pub(crate) fn endpoints(n: u32, mem: MemConfig) -> Vec<Box<dyn Endpoint>> {
    let hub = MemTransport::new(mem);
    let open = |rank| {
        let config = Config {
            key: Key([0; 32]),
            rank,
            acceptor: Arc::new(Acceptor::new(Vec::new()).unwrap()),
            linger: Duration::ZERO,
            silence: Duration::from_secs(10),
            socket_ifname: None,
            socket_family: None,
            sockets_per_lane: 1,
        };
        let port = hub.discover(&config).unwrap().remove(0);
        hub.open(&port, &config).unwrap()
    };
    (0..n).map(open).collect()
}
