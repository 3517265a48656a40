//! What a lane takes between two threads that are pinned to CPUs 0 and 1: fastest and median batch.
//!
//! ```text
//! cargo bench -p rondel-shm                # all
//! cargo bench -p rondel-shm -- exchange    # lines whose job has that name
//! ```
//!
//! `alone` is the time of an end's own instructions. Ping-pong times are one way; the others are per message, and for `exchange` and `reduce` that is one each way.

#![expect(clippy::print_stdout, reason = "figures for whoever runs it")]

use rondel_shm::ShmTransport;
use rondel_transport_api::{
    Combine, DataType, Endpoint, Event, Keep, LaneId, Operand, Post, Reduction, Sink, Slice, Token,
    conformance::open_all,
};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

const BUDGET: usize = 1 << 20;
/// Fruitless polls before an end gives up its CPU to others who want it.
const SPINS: u32 = 20_000;
/// How long a batch is to take.
const BATCH: Duration = Duration::from_micros(500);
/// How long all batches of a line are to take.
const LINE: Duration = Duration::from_secs(1);

/// What both ends of a run do, over and over.
#[derive(Clone, Copy, Debug)]
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
    fn run(&mut self, job: Job, bytes: usize, times: u64, first: bool) {
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
                    self.send(bytes);
                    self.recv(bytes, matches!(job, Job::Reduce));
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

fn connect() -> [End; 2] {
    let mut ends = open_all(&ShmTransport, 2);
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
    let mut ends = ends.into_iter().zip([a, b]).map(|(endpoint, lane)| End {
        endpoint,
        lane,
        events: Vec::with_capacity(64),
        src: vec![1.0; 16 << 20],
        dst: vec![0.0; 16 << 20],
    });
    [(); 2].map(|()| ends.next().expect("two"))
}

fn pin(cpu: usize) {
    // SAFETY: an all-zero set is a valid one, and the call reads no more than its size. One that fails leaves the thread
    // where it was.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Microseconds of one message, of every batch.
fn measure(ends: &mut [End; 2], job: Job, bytes: usize) -> Vec<f64> {
    let [first, second] = ends;
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| second.run(job, bytes, 64, false));
        first.run(job, bytes, 64, true);
    });
    let each = begin.elapsed() / 64;
    let times = (BATCH.as_nanos() / each.as_nanos().max(1)).clamp(4, 100_000) as u64 / 4 * 4;
    let batches = (LINE.as_nanos() / (each.as_nanos().max(1) * u128::from(times))).clamp(12, 300) as usize;
    let line = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for _ in 0..batches {
                line.wait();
                second.run(job, bytes, times, false);
            }
        });
        let here = scope.spawn(|| {
            pin(0);
            let batch = |_| {
                line.wait();
                let begin = Instant::now();
                first.run(job, bytes, times, true);
                begin.elapsed().as_secs_f64() * 1e6 / times as f64
            };
            (0..batches).map(batch).collect()
        });
        here.join().expect("the measuring thread")
    })
}

/// Microseconds that one end spends on an exchange when everything is there already: both ends in one thread.
fn measure_alone(ends: &mut [End; 2], bytes: usize) -> Vec<f64> {
    const TIMES: u32 = 2_000;
    let batch = |_| {
        let begin = Instant::now();
        for _ in 0..TIMES {
            for end in ends.iter_mut() {
                end.send(bytes);
                end.recv(bytes, false);
                end.endpoint.flush();
            }
            ends.iter_mut().for_each(|end| end.wait(2));
        }
        begin.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TIMES)
    };
    (0..300).map(batch).collect()
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut ends = connect();
    println!("{:>10} {:>10} {:>12} {:>12} {:>10}", "job", "bytes", "fastest us", "median us", "GB/s");
    if wanted.is_empty() || wanted.contains(&"alone".to_owned()) {
        let mut all = measure_alone(&mut ends, 8);
        all.sort_by(f64::total_cmp);
        let (fastest, median) = (all[0], all[all.len() / 2]);
        println!("{:>10} {:>10} {fastest:>12.3} {median:>12.3}", "alone", 8);
    }
    let jobs: [(Job, &[usize]); 4] = [
        (Job::PingPong, &[8, 64, 1 << 10, 4 << 10]),
        (Job::Exchange, &[8, 1 << 10]),
        (Job::Reduce, &[8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]),
        (Job::Stream, &[64 << 10, 1 << 20, 16 << 20]),
    ];
    for (job, sizes) in jobs {
        let name = format!("{job:?}").to_lowercase();
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        for &bytes in sizes {
            let mut all = measure(&mut ends, job, bytes);
            all.sort_by(f64::total_cmp);
            let legs = if matches!(job, Job::PingPong) { 2.0 } else { 1.0 };
            let (fastest, median) = (all[0] / legs, all[all.len() / 2] / legs);
            let rate = bytes as f64 / fastest * 1e-3;
            println!("{name:>10} {bytes:>10} {fastest:>12.3} {median:>12.3} {rate:>10.2}");
        }
    }
}
