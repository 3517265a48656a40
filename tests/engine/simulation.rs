//! Many engines in one thread, over `mem`, with a clock that is a variable.

use rondel::{
    DataType, ReduceOp,
    algo::Algorithm,
    bootstrap::{Answer, Liveness, Notice},
    engine::{
        CommId, CommSpec, Command, Engine, EngineConfig, OperationId, Path, Route, Submission, call::Call,
    },
    plan::{Alias, Collective, Layout, Rank, Shape},
};
use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{Acceptor, Config, Endpoint, Transport, handshake::Key};
use std::{collections::HashMap, sync::Arc, time::Duration};

const COMM: u64 = 7;
/// Virtual time that passes when nothing moves.
const TICK: Duration = Duration::from_millis(20);

pub(crate) fn route(algorithm: &'static Algorithm) -> Route {
    Route { algorithm, channels: 1, slice_bytes: 16 << 10, round_bytes: 64 << 10 }
}

/// One engine a rank, and what the watchers would do between them.
pub(crate) struct Cluster {
    pub(crate) engines: Vec<Engine>,
    comms: Vec<CommId>,
    pub(crate) now: Duration,
    /// Last call entered by each rank, and what it was by number.
    entered: Vec<HashMap<u64, Call>>,
    seq: Vec<u64>,
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
        Self::over(shape, endpoints, config, routes)
    }

    /// Over endpoints that may have been decorated.
    pub(crate) fn over(
        shape: &Shape,
        endpoints: Vec<Box<dyn Endpoint>>,
        config: EngineConfig,
        routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    ) -> Self {
        let n = shape.nranks();
        let adverts: Vec<_> = endpoints.iter().map(|endpoint| endpoint.advert()).collect();
        let members: Arc<[Rank]> = (0..n).collect();
        let mut engines = Vec::new();
        let mut comms = Vec::new();
        for (rank, endpoint) in endpoints.into_iter().enumerate() {
            let mut engine = Engine::new(config.clone(), vec![endpoint], None);
            let path = |peer: usize| {
                (peer != rank).then(|| Path { endpoint: 0, advert: adverts[peer].clone(), transport: "mem" })
            };
            comms.push(engine.add_communicator(CommSpec {
                id: COMM,
                rank: rank as Rank,
                members: members.clone(),
                paths: (0..n as usize).map(path).collect(),
                shape: shape.clone(),
                routes: Box::new(routes.clone()),
                table: 1,
            }));
            engines.push(engine);
        }
        let entered = vec![HashMap::new(); n as usize];
        Self { engines, comms, now: Duration::ZERO, entered, seq: vec![0; n as usize] }
    }

    pub(crate) fn submit_all(&mut self, buffers: &mut Buffers, op: ReduceOp) -> Vec<OperationId> {
        let all: Vec<usize> = (0..self.engines.len()).collect();
        self.submit_some(buffers, op, &all)
    }

    /// Only these ranks make the call.
    pub(crate) fn submit_some(
        &mut self,
        buffers: &mut Buffers,
        op: ReduceOp,
        ranks: &[usize],
    ) -> Vec<OperationId> {
        let submit = |&rank: &usize| {
            let submission = buffers.submission(rank, op);
            self.seq[rank] += 1;
            let seq = self.seq[rank];
            self.entered[rank].insert(seq, Call { seq, ..submission.call });
            // SAFETY: the buffers outlive the cluster's work on them: tests keep them until `finish` returned.
            unsafe { self.engines[rank].submit(self.comms[rank], submission) }
                .expect("the communicator is healthy")
        };
        ranks.iter().map(submit).collect()
    }

    /// Every rank's part of a call, without starting it.
    pub(crate) fn submissions(&self, buffers: &mut Buffers, op: ReduceOp) -> Vec<Submission> {
        (0..self.engines.len()).map(|rank| buffers.submission(rank, op)).collect()
    }

    /// Starts a call on every rank and runs it to its end.
    pub(crate) fn run(&mut self, submissions: &[Submission]) {
        let mut started = [None; 64];
        for (rank, submission) in submissions.iter().enumerate() {
            // SAFETY: the buffers outlive the call, which is over when this returns.
            let submitted = unsafe { self.engines[rank].submit(self.comms[rank], *submission) };
            started[rank] = Some(submitted.expect("the communicator is healthy"));
        }
        for _ in 0..10_000_000 {
            let mut over = 0;
            for rank in 0..submissions.len() {
                let Some(operation) = started[rank] else {
                    over += 1;
                    continue;
                };
                self.engines[rank].step(self.now);
                if self.engines[rank].has_commands() {
                    self.deliver(rank);
                }
                if let Some(outcome) = self.engines[rank].take_outcome(operation) {
                    outcome.expect("it goes well");
                    started[rank] = None;
                }
            }
            if over == submissions.len() {
                return;
            }
        }
        panic!("not over: {:?}", self.engines);
    }

    /// One look of every rank. Returns whether anything moved.
    pub(crate) fn step(&mut self) -> bool {
        let mut moved = false;
        for rank in 0..self.engines.len() {
            moved |= self.engines[rank].step(self.now);
            moved |= self.deliver(rank);
        }
        if !moved {
            self.now += TICK;
            for engine in &mut self.engines {
                engine.keep_vigil(self.now);
            }
        }
        moved
    }

    /// Until every rank's operation is over: `operations[i]` may be any rank's.
    pub(crate) fn finish(&mut self, operations: &[OperationId]) {
        let over = |cluster: &Cluster| {
            cluster.engines.iter().all(|engine| operations.iter().all(|operation| engine.is_over(*operation)))
        };
        for _ in 0..2_000_000 {
            if over(self) {
                return;
            }
            self.step();
        }
        panic!("not over after {:?} of virtual time: {:?}", self.now, self.engines);
    }

    /// Does for a rank what its watcher would do.
    fn deliver(&mut self, from: usize) -> bool {
        let commands: Vec<Command> = self.engines[from].take_commands().collect();
        let any = !commands.is_empty();
        for command in commands {
            match command {
                Command::Offer { to, offer } => {
                    self.engines[to as usize].handle_notice(Notice::Offer { from: from as Rank, offer });
                }
                Command::Inquire { about, comm, seq } => {
                    let entered = self.seq[about as usize];
                    let answer = Answer {
                        about,
                        comm,
                        seq,
                        entered,
                        completed: 0,
                        call: self.entered[about as usize].get(&seq).copied(),
                        liveness: Liveness::Alive,
                    };
                    self.engines[from].handle_notice(Notice::Answer(answer));
                }
                Command::Declare(failure) => {
                    for rank in (0..self.engines.len()).filter(|&rank| rank != from) {
                        self.engines[rank].handle_notice(Notice::Failed(failure.clone()));
                    }
                }
            }
        }
        any
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

/// Every rank's buffers of one call, filled so that each result is known.
pub(crate) struct Buffers {
    collective: Collective,
    shape: Shape,
    dtype: DataType,
    count: usize,
    seed: u64,
    in_place: Vec<Alias>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Buffers {
    pub(crate) fn new(
        collective: Collective,
        shape: &Shape,
        dtype: DataType,
        count: usize,
        in_place: bool,
        seed: u64,
    ) -> Self {
        let ranks = 0..shape.nranks();
        let blocks = |layout| match layout {
            Layout::Absent => 0,
            Layout::Flat => 1,
            Layout::Blocked(blocks) => blocks as usize,
        };
        let mut buffers = Self {
            collective,
            shape: shape.clone(),
            dtype,
            count,
            seed,
            in_place: ranks
                .clone()
                .map(|rank| collective.in_place(rank, shape).filter(|_| in_place).unwrap_or(Alias::None))
                .collect(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        for rank in ranks {
            let elements = blocks(collective.input(rank, shape)) * count;
            let input: Vec<u8> =
                (0..elements).flat_map(|k| buffers.encode(buffers.value(rank, k as u64))).collect();
            let mut output = vec![0xaa; blocks(collective.output(rank, shape)) * count * dtype.size()];
            if let Alias::InputAt(block) = buffers.in_place[rank as usize] {
                let at = block as usize * count * dtype.size();
                output[at..at + input.len()].copy_from_slice(&input);
            }
            buffers.inputs.push(input);
            buffers.outputs.push(output);
        }
        buffers
    }

    /// Small integers, so that every sum is exact in every type.
    fn value(&self, rank: Rank, k: u64) -> i64 {
        ((u64::from(rank) * 7 + k * 3 + self.seed) % 11) as i64
    }

    fn encode(&self, value: i64) -> Vec<u8> {
        match self.dtype {
            DataType::F32 => (value as f32).to_le_bytes().to_vec(),
            DataType::I32 => (value as i32).to_le_bytes().to_vec(),
            DataType::I64 => value.to_le_bytes().to_vec(),
            other => panic!("the tests do not use {other}"),
        }
    }

    fn submission(&mut self, rank: usize, op: ReduceOp) -> Submission {
        let at =
            |buffer: &mut Vec<u8>| if buffer.is_empty() { std::ptr::null_mut() } else { buffer.as_mut_ptr() };
        let (mut input, mut output) = (at(&mut self.inputs[rank]), at(&mut self.outputs[rank]));
        let block = |block: u32| block as usize * self.count * self.dtype.size();
        match self.in_place[rank] {
            Alias::None => {}
            Alias::InputAt(at) => input = output.wrapping_add(block(at)),
            Alias::OutputAt(at) => output = input.wrapping_add(block(at)),
        }
        Submission {
            call: Call {
                seq: 0,
                collective: self.collective,
                dtype: self.dtype,
                op: self.collective.reduces().then_some(op),
                count: self.count as u64,
                root: self.shape.root,
            },
            reduction: op.reduction(self.dtype, self.shape.nranks()).unwrap(),
            input,
            output,
            alias: self.in_place[rank],
            timeout: None,
        }
    }

    pub(crate) fn check(&self, what: &str) {
        self.check_with(what, |value| value);
    }

    /// Every element of every output is what `finish` makes of what the collective promises.
    pub(crate) fn check_with(&self, what: &str, finish: impl Fn(i64) -> i64) {
        let n = self.shape.nranks();
        let (root, count) = (self.shape.root, self.count as u64);
        let sum = |k| (0..n).map(|rank| self.value(rank, k)).sum();
        for rank in 0..n {
            let expect = |k: u64| -> i64 {
                let (block, within) = (k.checked_div(count).unwrap_or(0), k.checked_rem(count).unwrap_or(0));
                match self.collective {
                    Collective::AllReduce | Collective::Reduce => sum(k),
                    Collective::ReduceScatter => sum(u64::from(rank) * count + k),
                    Collective::AllGather | Collective::Gather => self.value(block as Rank, within),
                    Collective::Broadcast => self.value(root, k),
                    Collective::AllToAll => self.value(block as Rank, u64::from(rank) * count + within),
                    Collective::Scatter => self.value(root, u64::from(rank) * count + k),
                    other => panic!("the tests do not check {}", other.name()),
                }
            };
            let output = match self.in_place[rank as usize] {
                Alias::OutputAt(block) => {
                    let bytes = self.count * self.dtype.size();
                    &self.inputs[rank as usize][block as usize * bytes..][..bytes]
                }
                _ => &self.outputs[rank as usize][..],
            };
            for (k, element) in output.chunks_exact(self.dtype.size()).enumerate() {
                let expected = self.encode(finish(expect(k as u64)));
                assert_eq!(element, expected, "{what}: rank {rank}, element {k}");
            }
        }
    }
}
