//! What the engine adds to a transport: whole calls of one rank, over an endpoint that is done with every post at once.

use criterion::{Criterion, criterion_group, criterion_main};
use rondel::{
    DataType, ReduceOp,
    algo::Algorithm,
    bootstrap::Notice,
    engine::{
        CommId, CommSpec, Command, Engine, EngineConfig, Path, Route, Submission, Submitted,
        call::Call,
        status::{Owner, StatusPage},
    },
    plan::{Alias, Collective, Rank, Shape},
};
use rondel_transport_api::{
    Advert, Endpoint, Event, LaneId, LaneStats, Limits, Link, Offer, Post, Region, RegionId, Sink, Slice,
    Token, TransportError,
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Moves nothing, and says at the next poll that everything is done.
struct Eager {
    over: Vec<Event>,
    lanes: u32,
    wakeup: File,
}

const LINK: Link = Link { latency: Duration::ZERO, overhead: Duration::ZERO, bytes_per_sec: 1e9 };

fn advert() -> Advert {
    Advert { transport: "eager".to_owned(), domain: Vec::new(), address: Vec::new(), link: LINK }
}

impl Endpoint for Eager {
    fn advert(&self) -> Advert {
        advert()
    }
    fn reaches(&self, _: &Advert) -> Option<Link> {
        Some(LINK)
    }
    fn limits(&self) -> Limits {
        Limits { max_message: u32::MAX, eager: u32::MAX, window: u32::MAX, reduces: true }
    }
    fn register(&mut self, _: Region) -> Result<RegionId, TransportError> {
        Ok(RegionId(0))
    }
    fn deregister(&mut self, _: RegionId) {}
    fn prepare(&mut self, _: &Advert) -> Result<(LaneId, Offer), TransportError> {
        self.lanes += 1;
        Ok((LaneId(self.lanes - 1), Offer(Vec::new())))
    }
    fn establish(&mut self, lane: LaneId, _: &Offer) -> Result<(), TransportError> {
        self.over.push(Event::Established { lane });
        Ok(())
    }
    unsafe fn post_send(&mut self, _: LaneId, _: Slice, _: u64, token: Token) -> Post {
        self.over.push(Event::Done { token });
        Post::Accepted
    }
    unsafe fn post_recv(&mut self, _: LaneId, _: u32, _: Sink, _: u64, token: Token) -> Post {
        self.over.push(Event::Done { token });
        Post::Accepted
    }
    fn flush(&mut self) {}
    fn poll(&mut self, events: &mut Vec<Event>, _: usize) -> bool {
        events.append(&mut self.over);
        !events.is_empty()
    }
    fn arm(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
    fn close(&mut self, _: LaneId) {}
    fn abort(&mut self, _: LaneId, _: TransportError) {}
    fn lane_stats(&self, _: LaneId) -> LaneStats {
        LaneStats::default()
    }
    fn memory(&self) -> usize {
        0
    }
}

/// Rank 0 of a communicator whose other ranks are always there.
fn engine(nranks: u32, algorithm: &'static str) -> (Engine, CommId) {
    let endpoint =
        Eager { over: Vec::new(), lanes: 0, wakeup: File::open("/dev/null").expect("it is always there") };
    let owner = Owner { job: 1, rank: 0, nranks, pid: std::process::id() };
    let page = StatusPage::create(&owner).expect("memory for a page");
    let mut engine = Engine::new(EngineConfig::default(), vec![Box::new(endpoint)], Some(Arc::new(page)));
    let algorithm = Algorithm::named(algorithm).expect("an algorithm of this name");
    let path = |peer: Rank| (peer != 0).then(|| Path { endpoint: 0, advert: advert(), transport: "eager" });
    let route = Route { algorithm, channels: 1, slice_bytes: 128 << 10, round_bytes: 2 << 20 };
    let comm = engine.add_communicator(CommSpec {
        id: 1,
        rank: 0,
        members: (0..nranks).collect(),
        paths: (0..nranks).map(path).collect(),
        shape: Shape::flat(nranks),
        routes: Box::new(move |_, _| route),
        table: 1,
    });
    (engine, comm)
}

fn call(engine: &mut Engine, comm: CommId, submission: Submission) {
    // SAFETY: the buffers of the submission outlive the benchmark, and the endpoint does not touch them.
    let submitted = unsafe { engine.run(comm, submission, || Duration::ZERO, |_| {}) };
    let Submitted::Started(operation) = submitted.expect("the communicator is healthy") else { return };
    loop {
        let commands: Vec<Command> = engine.take_commands().collect();
        for command in commands {
            if let Command::Offer { to, offer } = command {
                engine.handle_notice(Notice::Offer { from: to, offer });
            }
        }
        engine.step(Duration::ZERO);
        if let Some(outcome) = engine.take_outcome(operation) {
            return outcome.expect("nothing can fail");
        }
    }
}

fn calls(criterion: &mut Criterion) {
    for (nranks, algorithm) in [(2, "one_shot"), (4, "one_shot"), (4, "doubling"), (8, "ring")] {
        let (mut engine, comm) = engine(nranks, algorithm);
        let input = vec![1f32; 2 * nranks as usize];
        let mut output = input.clone();
        let submission = Submission {
            call: Call {
                seq: 0,
                collective: Collective::AllReduce,
                dtype: DataType::F32,
                op: Some(ReduceOp::Sum),
                count: input.len() as u64,
                root: 0,
            },
            reduction: ReduceOp::Sum.reduction(DataType::F32, nranks).expect("f32 can be added"),
            input: input.as_ptr().cast_mut().cast(),
            output: output.as_mut_ptr().cast(),
            alias: Alias::None,
            timeout: None,
        };
        criterion.bench_function(&format!("call/{algorithm}/{nranks} ranks"), |bencher| {
            bencher.iter(|| call(&mut engine, comm, submission));
        });
    }
}

criterion_group!(benches, calls);
criterion_main!(benches);
