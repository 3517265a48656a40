//! Operations on memory that peers map: results, mixtures with plain memory, and every order of letting go.

use crate::{
    job::Job,
    threads::{builder, ranks, ranks_over, ranks_that_stay},
};
use rondel::{Buffer, Communicator, Element, Error, Group, ReduceOp, Rendezvous, plan::Rank};
use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

/// Elements at some place of memory of one kind.
enum Held<T: Element> {
    Mapped(Buffer<T>, usize),
    Plain(Vec<T>),
}

impl<T: Element> Deref for Held<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Held::Mapped(buffer, at) => &buffer[*at..],
            Held::Plain(vec) => vec,
        }
    }
}

impl<T: Element> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Held::Mapped(buffer, at) => &mut buffer[*at..],
            Held::Plain(vec) => vec,
        }
    }
}

/// Which memory the ranks use for inputs and for outputs.
#[derive(Clone, Copy, Debug)]
struct Mixture {
    inputs: fn(usize) -> bool,
    outputs: fn(usize) -> bool,
    /// Elements before the first one in mapped memory.
    at: usize,
}

const MIXTURES: [Mixture; 4] = [
    Mixture { inputs: |_| true, outputs: |_| true, at: 0 },
    Mixture { inputs: |_| true, outputs: |_| true, at: 3 },
    Mixture { inputs: |rank| rank.is_multiple_of(2), outputs: |rank| rank.is_multiple_of(2), at: 1 },
    Mixture { inputs: |rank| !rank.is_multiple_of(2), outputs: |rank| rank.is_multiple_of(2), at: 17 },
];

struct Part<'a> {
    comm: &'a Communicator,
    mixture: Mixture,
    count: usize,
    n: usize,
    rank: usize,
}

/// What stands in element `i` of a rank's input: small, so that sums are exact.
fn value(rank: usize, i: usize) -> u32 {
    (rank * 7 + i % 1013) as u32
}

impl Part<'_> {
    fn held(&self, mapped: bool, len: usize, of: impl Fn(usize) -> u32) -> Held<u32> {
        let mut held = match mapped {
            true => Held::Mapped(self.comm.buffer(len + self.mixture.at).expect("memory"), self.mixture.at),
            false => Held::Plain(vec![0; len]),
        };
        held.iter_mut().enumerate().for_each(|(i, element)| *element = of(i));
        held
    }
    fn input(&self, len: usize) -> Held<u32> {
        self.held((self.mixture.inputs)(self.rank), len, |i| value(self.rank, i))
    }
    fn output(&self, len: usize) -> Held<u32> {
        self.held((self.mixture.outputs)(self.rank), len, |_| u32::MAX)
    }
    fn sum(&self, i: usize) -> u32 {
        (0..self.n).map(|rank| value(rank, i)).sum()
    }
    fn check(&self, what: &str, got: &[u32], expected: impl Fn(usize) -> u32) {
        for (i, &element) in got.iter().enumerate() {
            let Part { mixture, n, rank, .. } = self;
            assert_eq!(
                element,
                expected(i),
                "{what}, rank {rank} of {n}, {mixture:?}: element {i} of {}",
                got.len()
            );
        }
    }

    fn reductions(&self) {
        let Part { comm, count, n, rank, .. } = *self;
        let (input, mut output) = (self.input(count), self.output(count));
        comm.all_reduce_to(ReduceOp::Sum, &input, &mut output).expect("all ranks call it");
        self.check("all_reduce", &output, |i| self.sum(i));
        self.check("the input of all_reduce", &input, |i| value(rank, i));
        let mut buffer = input;
        comm.all_reduce(ReduceOp::Sum, &mut buffer).expect("all ranks call it");
        self.check("all_reduce in place", &buffer, |i| self.sum(i));

        let (mut input, mut output) = (self.input(count * n), self.output(count));
        comm.reduce_scatter(ReduceOp::Sum, &input, &mut output).expect("all ranks call it");
        self.check("reduce_scatter", &output, |i| self.sum(rank * count + i));
        comm.reduce_scatter_in_place(ReduceOp::Sum, &mut input).expect("all ranks call it");
        let own = &input[rank * count..][..count];
        self.check("reduce_scatter in place", own, |i| self.sum(rank * count + i));

        let root = n - 1;
        let (mut input, mut output) = (self.input(count), self.output(if rank == root { count } else { 0 }));
        comm.reduce_to(ReduceOp::Sum, root as Rank, &input, &mut output).expect("all ranks call it");
        self.check("reduce", &output, |i| self.sum(i));
        comm.reduce(ReduceOp::Sum, root as Rank, &mut input).expect("all ranks call it");
        self.check("reduce in place", &input, |i| if rank == root { self.sum(i) } else { value(rank, i) });
    }

    fn moves(&self) {
        let Part { comm, count, n, rank, .. } = *self;
        let (input, mut output) = (self.input(count), self.output(count * n));
        comm.all_gather(&input, &mut output).expect("all ranks call it");
        self.check("all_gather", &output, |i| value(i / count, i % count));
        output.fill(u32::MAX);
        output[rank * count..][..count].copy_from_slice(&input);
        comm.all_gather_in_place(&mut output).expect("all ranks call it");
        self.check("all_gather in place", &output, |i| value(i / count, i % count));

        let (input, mut output) = (self.input(count * n), self.output(count * n));
        comm.all_to_all(&input, &mut output).expect("all ranks call it");
        self.check("all_to_all", &output, |i| value(i / count, rank * count + i % count));

        let root = n / 2;
        let mut buffer = self.input(count);
        comm.broadcast(root as Rank, &mut buffer).expect("all ranks call it");
        self.check("broadcast", &buffer, |i| value(root, i));

        let whole = if rank == root { count * n } else { 0 };
        let (input, mut output) = (self.input(count), self.output(whole));
        comm.gather(root as Rank, &input, &mut output).expect("all ranks call it");
        self.check("gather", &output, |i| value(i / count, i % count));
        let (input, mut output) = (self.input(whole), self.output(count));
        comm.scatter(root as Rank, &input, &mut output).expect("all ranks call it");
        self.check("scatter", &output, |i| value(root, rank * count + i));

        let (right, left) = ((rank + 1) % n, (rank + n - 1) % n);
        let (input, mut output) = (self.input(count), self.output(count));
        let mut group = Group::new();
        group.send(comm, right as Rank, &input).expect("a rank");
        group.recv(comm, left as Rank, &mut output).expect("a rank");
        group.end().expect("all ranks call it");
        self.check("a ring of sends", &output, |i| value(left, i));
    }
}

#[test]
fn results_are_the_same_in_every_mixture() {
    for nranks in 1..=5 {
        ranks(nranks, |comm| {
            for (mixture, count) in
                MIXTURES.iter().flat_map(|mixture| [1, 5003, 70_001].map(|count| (*mixture, count)))
            {
                let part =
                    Part { comm: &comm, mixture, count, n: nranks as usize, rank: comm.rank() as usize };
                part.reductions();
                part.moves();
            }
        });
    }
}

#[test]
fn more_than_a_round_in_one_buffer() {
    ranks(3, |comm| {
        // Input, output and what is around them lie in one buffer.
        let count = (3 << 20) + 11;
        let mut buffer = comm.buffer::<f32>(2 * count + 30).expect("memory");
        assert!(buffer.is_mapped() && buffer.iter().all(|&element| element == 0.0));
        let (input, rest) = buffer[5..].split_at_mut(count);
        let output = &mut rest[9..][..count];
        for round in 1..4u8 {
            input.fill(f32::from(round) + comm.rank() as f32);
            comm.all_reduce_to(ReduceOp::Sum, input, output).expect("all ranks call it");
            assert!(output.iter().all(|&sum| sum == 3.0 * f32::from(round) + 3.0));
        }
        let around = buffer[..5].iter().chain(&buffer[5 + count..][..9]).chain(&buffer[2 * count + 14..]);
        assert!(around.into_iter().all(|&element| element == 0.0));
    });
}

#[test]
fn large_messages_are_not_copied() {
    ranks_over("shm", 2, |comm| {
        let before = comm.stats();
        assert_eq!(before.buffer_bytes, 0);
        let mut buffer = comm.buffer::<u8>(3 << 20).expect("memory");
        comm.all_reduce(ReduceOp::Max, &mut buffer).expect("both call it");
        let after = comm.stats();
        assert_eq!(after.buffer_bytes, 3 << 20);
        let peer = 1 - comm.rank() as usize;
        assert!(
            after.sent_bytes[peer] - before.sent_bytes[peer] >= 3 << 20,
            "what is read in place was sent"
        );
        comm.barrier().expect("both call it");
        drop(buffer);
        assert_eq!(comm.stats().buffer_bytes, 0);
    });
}

#[test]
fn without_shared_memory_it_is_plain() {
    ranks_over("tcp", 2, |comm| {
        let mut buffer = comm.buffer::<u64>(100_000).expect("memory");
        assert!(!buffer.is_mapped() && buffer.iter().all(|&element| element == 0));
        buffer.fill(u64::from(comm.rank()) + 1);
        comm.all_reduce(ReduceOp::Sum, &mut buffer).expect("both call it");
        assert!(buffer.iter().all(|&sum| sum == 3));
        assert_eq!(comm.stats().buffer_bytes, 0);
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    ranks(1, |comm| {
        assert!(comm.buffer::<u32>(0).expect("nothing").is_empty());
        for len in [usize::MAX, usize::MAX / 4, 1 << 50] {
            let Err(Error::Usage(error)) = comm.buffer::<u32>(len) else { panic!("{len} elements") };
            assert!(error.what.starts_with(&format!("buffer: {len} elements of ")), "{}", error.what);
        }
        comm.barrier().expect("it is as healthy as before");
    });
}

#[test]
fn a_buffer_outlives_its_communicator_and_serves_others() {
    let sum = |comm: &Communicator, buffer: &mut Buffer<u32>| {
        buffer.fill(1);
        comm.all_reduce(ReduceOp::Sum, buffer).expect("all ranks call it");
        assert!(buffer.iter().all(|&sum| sum == comm.nranks()));
    };
    let kept = ranks(2, |comm| {
        let mut buffer = comm.buffer::<u32>(300_000).expect("memory");
        let half = comm.split(Some(0), 0).expect("all ranks call it").expect("a part");
        sum(&comm, &mut buffer);
        sum(&half, &mut buffer);
        drop(comm);
        sum(&half, &mut buffer);
        drop(half);
        buffer
    });
    let kept = std::sync::Mutex::new(kept);
    ranks(2, |comm| {
        let mut buffer = kept.lock().expect("no rank panics").pop().expect("one for each");
        sum(&comm, &mut buffer);
        let mut fresh = comm.buffer::<u32>(300_000).expect("memory");
        drop(buffer);
        sum(&comm, &mut fresh);
    });
}

#[test]
fn many_buffers_come_and_go() {
    ranks(2, |comm| {
        let mut kept: Vec<Buffer<u32>> = Vec::new();
        // More at a time than a peer is shown.
        for round in 0..200u32 {
            let mut buffer = comm.buffer::<u32>(50_000).expect("memory");
            buffer.fill(round);
            comm.all_reduce(ReduceOp::Sum, &mut buffer).expect("both call it");
            assert!(buffer.iter().all(|&sum| sum == 2 * round), "round {round}");
            if kept.len() < 80 {
                kept.push(buffer);
            } else {
                let old = (round * 31 % 80) as usize;
                kept[old] = buffer;
            }
        }
        assert_eq!(comm.stats().buffer_bytes, 80 * (200_000u64.next_multiple_of(4096)));
    });
}

#[test]
fn a_failure_lets_go_of_buffers() {
    let patience = builder().timeout(Duration::from_secs(1));
    ranks_that_stay(2, patience, |comm| {
        let mut buffer = comm.buffer::<u32>(1 << 20).expect("memory");
        comm.all_reduce(ReduceOp::Sum, &mut buffer).expect("both call it");
        if comm.rank() == 0 {
            comm.all_reduce(ReduceOp::Sum, &mut buffer).expect_err("the other rank does not call it");
            // It is ours again.
            buffer.fill(9);
            assert!(buffer.iter().all(|&element| element == 9));
        }
        drop(buffer);
        assert_eq!(comm.stats().buffer_bytes, 0);
    });
}

#[test]
fn a_forked_child_that_drops_its_copy_disturbs_nobody() {
    let comm = builder().connect(Rendezvous::local().expect("alone")).expect("alone");
    let mut buffer = Some(comm.buffer::<u32>(1 << 20).expect("memory"));
    buffer.as_mut().expect("it was made").fill(5);
    // SAFETY: the child drops its copy, which takes no lock but the allocator's, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(buffer.take());
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended as it wanted to");
    let buffer = buffer.expect("dropped in the child alone");
    assert!(buffer.iter().all(|&element| element == 5));
    assert_eq!(comm.stats().buffer_bytes, 4 << 20);
}

#[test]
fn ranks_that_are_killed_are_named_while_their_memory_is_read() {
    for (round, sleep_us) in [0, 500, 3000, 20_000, 7_000, 12_000].into_iter().enumerate() {
        let (nranks, victim) = (2 + round as u32 % 3, round as u32 % 2);
        let mut job = Job::new(nranks, "buffers forever").set("RONDEL_TRANSPORT", "shm");
        job.start_all();
        job.await_all("working");
        std::thread::sleep(Duration::from_micros(sleep_us));
        job.signal(victim, libc::SIGKILL);
        for rank in (0..nranks).filter(|&rank| rank != victim) {
            let report = job.outcome(rank);
            assert_eq!((report.event.as_str(), report.culprit), ("failed", Some(victim)), "{report:?}");
        }
        job.finish(Duration::from_secs(4));
    }
}

#[test]
fn ranks_that_are_stopped_now_and_then_harm_nobody() {
    let mut job = Job::new(3, "buffers for a while").set("RONDEL_TRANSPORT", "shm");
    job.start_all();
    job.await_all("joined");
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(130));
        job.signal(round % 3, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(130));
        job.signal(round % 3, libc::SIGCONT);
    }
    for rank in 0..3 {
        let report = job.outcome(rank);
        assert_eq!(report.event, "ok", "{report:?}");
    }
    job.finish(Duration::from_secs(5));
}
