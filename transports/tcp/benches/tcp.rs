//! Lanes against bare sockets in the same run, between two threads of one host. Times are one way.

#[path = "../tests/rig/mod.rs"]
mod rig;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rig::{Door, endpoint};
use rondel_transport_api::{
    Combine, DataType, Endpoint, Event, Keep, LaneId, Operand, Post, Reduction, Sink, Slice, Token,
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

const BUDGET: usize = 1 << 20;
/// Fruitless polls before an end gives up its CPU: each has one of its own.
const SPINS: u32 = 5_000;

/// What both ends of a run do, over and over.
#[derive(Clone, Copy)]
enum Job {
    /// There and back.
    PingPong,
    /// Both send and receive at once.
    Exchange,
    /// As `Exchange`, but what comes in is added to what is there.
    Reduce,
    /// One direction, four messages at a time; an empty message back ends the run.
    Stream,
}

type Run = (Job, usize, u64);

/// One end of a lane.
struct End {
    endpoint: Box<dyn Endpoint>,
    lane: LaneId,
    events: Vec<Event>,
    src: Vec<f32>,
    dst: Vec<f32>,
}

impl End {
    fn send(&mut self, bytes: usize) {
        let src = Slice { addr: self.src.as_ptr().cast(), len: bytes as u32, region: None };
        // SAFETY: nobody writes to `src`.
        let post = unsafe { self.endpoint.post_send(self.lane, src, 7, Token(0)) };
        assert_eq!(post, Post::Accepted);
    }
    fn recv(&mut self, bytes: usize, reduces: bool) {
        let dst = self.dst.as_mut_ptr().cast();
        let reduction = Reduction { dtype: DataType::F32, combine: Combine::Sum, pre: None, divide: None };
        let with = Operand { addr: self.src.as_ptr().cast(), raw: false };
        let sink = if reduces {
            Sink::Reduce { reduction, with, dst, last: true, keep: Keep::Keep }
        } else {
            Sink::Copy { dst, region: None, keep: Keep::Keep }
        };
        // SAFETY: `dst` is used by nobody else, and `src` is only read.
        let post = unsafe { self.endpoint.post_recv(self.lane, bytes as u32, sink, 7, Token(1)) };
        assert_eq!(post, Post::Accepted);
    }
    fn wait(&mut self, mut posts: usize) {
        self.endpoint.flush();
        let mut idle = 0;
        while posts > 0 {
            idle = if self.endpoint.poll(&mut self.events, BUDGET) { 0 } else { idle + 1 };
            for event in self.events.drain(..) {
                assert!(matches!(event, Event::Done { .. }), "{event:?}");
                posts -= 1;
            }
            if idle > SPINS {
                thread::yield_now();
            }
        }
    }
    fn run(&mut self, (job, bytes, times): Run, first: bool) {
        match job {
            Job::PingPong => {
                for _ in 0..times {
                    self.recv(bytes, false);
                    if first {
                        self.send(bytes);
                        self.wait(2);
                    } else {
                        self.wait(1);
                        self.send(bytes);
                        self.wait(1);
                    }
                }
            }
            Job::Exchange | Job::Reduce => {
                for _ in 0..times {
                    self.recv(bytes, matches!(job, Job::Reduce));
                    self.send(bytes);
                    self.wait(2);
                }
            }
            Job::Stream => {
                for _ in 0..times.div_ceil(4) {
                    for _ in 0..4 {
                        if first { self.send(bytes) } else { self.recv(bytes, false) }
                    }
                    self.wait(4);
                }
                if first {
                    self.recv(0, false)
                } else {
                    self.send(0)
                }
                self.wait(1);
            }
        }
    }
}

fn connect() -> (Door, Door, End, End) {
    let doors = [0, 1].map(|_| Door::open(Ipv4Addr::LOCALHOST.into()));
    let mut ends: Vec<_> =
        doors.iter().zip(0..).map(|(door, rank)| endpoint(&door.config(rank, 1))).collect();
    let adverts: Vec<_> = ends.iter().map(|end| end.advert()).collect();
    let (a, offer_a) = ends[0].prepare(&adverts[1]).expect("reached");
    let (b, offer_b) = ends[1].prepare(&adverts[0]).expect("reached");
    ends[0].establish(a, &offer_b).expect("an offer");
    ends[1].establish(b, &offer_a).expect("an offer");
    let (mut events, mut open) = (Vec::new(), 0);
    while open < 2 {
        for end in &mut ends {
            end.poll(&mut events, BUDGET);
        }
        open += events.drain(..).filter(|event| matches!(event, Event::Established { .. })).count();
    }
    let floats = 16 << 20;
    let mut ends = ends.into_iter().zip([a, b]).map(|(endpoint, lane)| End {
        endpoint,
        lane,
        events: Vec::with_capacity(64),
        src: vec![1.0; floats],
        dst: vec![0.0; floats],
    });
    let [door_a, door_b] = doors;
    (door_a, door_b, ends.next().expect("two"), ends.next().expect("two"))
}

/// The other end, on a thread of its own, and how to set it to work.
fn partner(mut run: impl FnMut(Run) + Send + 'static) -> Sender<Run> {
    let (orders, work): (Sender<Run>, Receiver<Run>) = channel();
    thread::spawn(move || work.iter().for_each(&mut run));
    orders
}

fn timed(orders: &Sender<Run>, run: Run, mut act: impl FnMut(Run)) -> Duration {
    let (job, bytes, _) = run;
    // Both are there before the clock starts.
    orders.send((Job::PingPong, 8, 1)).expect("the other end lives");
    orders.send((job, bytes, run.2)).expect("the other end lives");
    act((Job::PingPong, 8, 1));
    let start = Instant::now();
    act(run);
    if matches!(job, Job::PingPong) { start.elapsed() / 2 } else { start.elapsed() }
}

/// The same ping-pong over a socket, without a lane.
fn raw_run(stream: &mut TcpStream, buffer: &mut [u8], (_, bytes, times): Run, first: bool) {
    for _ in 0..times {
        for sends in [first, !first] {
            let (mut at, mut idle) = (0, 0);
            while at < bytes {
                let moved = if sends {
                    stream.write(&buffer[at..bytes])
                } else {
                    stream.read(&mut buffer[at..bytes])
                };
                match moved {
                    Ok(moved) => (at, idle) = (at + moved, 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => idle += 1,
                    Err(error) => panic!("{error}"),
                }
                if idle > SPINS {
                    thread::yield_now();
                }
            }
        }
    }
}

fn lanes(criterion: &mut Criterion) {
    let (_door, _other_door, mut end, mut other) = connect();
    let orders = partner(move |run| other.run(run, false));
    let jobs = [
        ("pingpong", Job::PingPong, &[8, 4 << 10, 64 << 10][..]),
        ("stream", Job::Stream, &[64 << 10, 1 << 20]),
        ("exchange", Job::Exchange, &[64 << 10, 1 << 20, 32 << 20]),
        ("reduce", Job::Reduce, &[64 << 10, 1 << 20, 32 << 20]),
    ];
    for (name, job, sizes) in jobs {
        let mut group = criterion.benchmark_group(name);
        for &bytes in sizes {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new("lane", bytes), |bencher| {
                bencher.iter_custom(|times| timed(&orders, (job, bytes, times), |run| end.run(run, true)));
            });
        }
    }
}

fn sockets(criterion: &mut Criterion) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let mut other = listener.accept().expect("accepted").0;
    for stream in [&stream, &other] {
        stream.set_nonblocking(true).expect("nonblocking");
        stream.set_nodelay(true).expect("no delay");
    }
    let mut other_buffer = vec![0; 1 << 20];
    let orders = partner(move |run| raw_run(&mut other, &mut other_buffer, run, false));
    let mut buffer = vec![0; 1 << 20];
    let mut group = criterion.benchmark_group("pingpong");
    for bytes in [8, 48, 4 << 10, 64 << 10] {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("socket", bytes), |bencher| {
            bencher.iter_custom(|times| {
                timed(&orders, (Job::PingPong, bytes, times), |run| {
                    raw_run(&mut stream, &mut buffer, run, true)
                })
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = lanes, sockets
}
criterion_main!(benches);
