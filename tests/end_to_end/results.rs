//! Every collective gives what it says, for 1 to 9 ranks and counts from nothing to several rounds.

use crate::threads::{TRANSPORTS, builder, ranks, ranks_over};
use half::bf16;
use rondel::{Communicator, Element, ReduceOp, plan::Rank};
use std::fmt::Debug;

const COUNTS: [usize; 5] = [0, 1, 7, 1023, 100_000];

/// What stands in element `i` of rank `rank`'s input: small, so that sums are exact in every type.
fn value(rank: usize, i: usize) -> usize {
    (rank * 3 + i) % 5
}

fn filled<T>(rank: usize, count: usize, of: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(|i| of(value(rank, i))).collect()
}

fn check<T: PartialEq + Debug + Copy>(what: &str, got: &[T], expected: impl Fn(usize) -> T) {
    for (i, &element) in got.iter().enumerate() {
        assert_eq!(element, expected(i), "{what}: element {i} of {}", got.len());
    }
}

fn sum(nranks: usize, i: usize) -> usize {
    (0..nranks).map(|rank| value(rank, i)).sum()
}

#[test]
fn a_job_of_one_rank_needs_no_meeting_place() {
    let comm = builder().connect(rondel::Rendezvous::local().unwrap()).unwrap();
    reductions(&comm, 1023);
    moves(&comm, 1023);
    rooted_moves(&comm, 1023);
    comm.barrier().unwrap();
}

#[test]
fn reductions_of_every_shape() {
    for (nranks, transport) in (1..=9).flat_map(|n| TRANSPORTS.map(|transport| (n, transport))) {
        ranks_over(transport, nranks, |comm| {
            for count in COUNTS {
                reductions(&comm, count);
            }
        });
    }
}

fn reductions(comm: &Communicator, count: usize) {
    let (n, rank) = (comm.nranks() as usize, comm.rank() as usize);
    let float = |v: usize| v as f32;
    let input = filled(rank, count, float);

    let mut buffer = input.clone();
    comm.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
    check("all_reduce in place", &buffer, |i| sum(n, i) as f32);

    let mut output = vec![-1.0; count];
    comm.all_reduce_to(ReduceOp::Sum, &input, &mut output).unwrap();
    check("all_reduce", &output, |i| sum(n, i) as f32);
    check("all_reduce's input", &input, |i| float(value(rank, i)));

    let blocks = filled(rank, count * n, float);
    let mut output = vec![-1.0; count];
    comm.reduce_scatter(ReduceOp::Sum, &blocks, &mut output).unwrap();
    check("reduce_scatter", &output, |i| sum(n, rank * count + i) as f32);

    let mut buffer = blocks.clone();
    comm.reduce_scatter_in_place(ReduceOp::Sum, &mut buffer).unwrap();
    let own = &buffer[rank * count..][..count];
    check("reduce_scatter in place", own, |i| sum(n, rank * count + i) as f32);

    for root in 0..n {
        let mut buffer = input.clone();
        comm.reduce(ReduceOp::Sum, root as Rank, &mut buffer).unwrap();
        let expected = |i| if rank == root { sum(n, i) as f32 } else { float(value(rank, i)) };
        check("reduce in place", &buffer, expected);

        let mut output = vec![-1.0; if rank == root { count } else { 0 }];
        comm.reduce_to(ReduceOp::Sum, root as Rank, &input, &mut output).unwrap();
        check("reduce", &output, |i| sum(n, i) as f32);
    }
}

#[test]
fn moves_of_every_shape() {
    for (nranks, transport) in (1..=9).flat_map(|n| TRANSPORTS.map(|transport| (n, transport))) {
        ranks_over(transport, nranks, |comm| {
            for count in COUNTS {
                moves(&comm, count);
                rooted_moves(&comm, count);
            }
            comm.barrier().unwrap();
        });
    }
}

/// An element that says where it was written: by which rank, and at which place.
fn origin(rank: usize, i: usize) -> u64 {
    (rank as u64) << 32 | i as u64
}

fn moves(comm: &Communicator, count: usize) {
    let (n, rank) = (comm.nranks() as usize, comm.rank() as usize);
    let own: Vec<u64> = (0..count).map(|i| origin(rank, i)).collect();
    let gathered = |i: usize| origin(i / count, i % count);

    let mut output = vec![u64::MAX; count * n];
    comm.all_gather(&own, &mut output).unwrap();
    check("all_gather", &output, gathered);

    let mut buffer = vec![u64::MAX; count * n];
    buffer[rank * count..][..count].copy_from_slice(&own);
    comm.all_gather_in_place(&mut buffer).unwrap();
    check("all_gather in place", &buffer, gathered);

    let input: Vec<u64> = (0..count * n).map(|i| origin(rank, i)).collect();
    let mut output = vec![u64::MAX; count * n];
    comm.all_to_all(&input, &mut output).unwrap();
    check("all_to_all", &output, |i| origin(i / count, rank * count + i % count));

    if n > 1 {
        let (right, left) = ((rank + 1) % n, (rank + n - 1) % n);
        let mut output = vec![u64::MAX; count];
        let mut group = rondel::Group::new();
        group.send(comm, right as Rank, &own).unwrap();
        group.recv(comm, left as Rank, &mut output).unwrap();
        group.end().unwrap();
        check("a ring of sends", &output, |i| origin(left, i));
    }
}

fn rooted_moves(comm: &Communicator, count: usize) {
    let (n, rank) = (comm.nranks() as usize, comm.rank() as usize);
    let own: Vec<u64> = (0..count).map(|i| origin(rank, i)).collect();
    for root in 0..n {
        let whole = if rank == root { count * n } else { 0 };

        let mut buffer = own.clone();
        comm.broadcast(root as Rank, &mut buffer).unwrap();
        check("broadcast", &buffer, |i| origin(root, i));

        let mut output = vec![u64::MAX; whole];
        comm.gather(root as Rank, &own, &mut output).unwrap();
        check("gather", &output, |i| origin(i / count, i % count));

        let input: Vec<u64> = (0..whole).map(|i| origin(root, i)).collect();
        let mut output = vec![u64::MAX; count];
        comm.scatter(root as Rank, &input, &mut output).unwrap();
        check("scatter", &output, |i| origin(root, rank * count + i));
    }
}

/// All-reduces inputs of one type and compares with what is computed here.
fn typed<T: Element + PartialEq + Debug>(
    comm: &Communicator,
    op: ReduceOp,
    of: impl Fn(usize, usize) -> T,
    expected: impl Fn(usize) -> T,
) {
    let rank = comm.rank() as usize;
    let mut buffer: Vec<T> = (0..4097).map(|i| of(rank, i)).collect();
    comm.all_reduce(op, &mut buffer).unwrap();
    check(&format!("{op} of {}", T::DTYPE), &buffer, expected);
}

#[test]
fn types_and_operators() {
    for nranks in [1, 2, 3, 4, 8] {
        ranks(nranks, |comm| {
            let n = nranks as usize;
            let all = || (0..n).map(|rank| rank as i64);
            typed(&comm, ReduceOp::Max, |rank, i| rank as i64 - i as i64, |i| n as i64 - 1 - i as i64);
            typed(&comm, ReduceOp::Min, |rank, i| rank as i32 - i as i32, |i| -(i as i32));
            let wrapped =
                |i: usize| all().fold(0u8, |sum, rank| sum.wrapping_add((rank * 50 + i as i64) as u8));
            typed(&comm, ReduceOp::Sum, |rank, i| (rank * 50 + i) as u8, wrapped);
            typed(&comm, ReduceOp::Sum, |rank, i| (rank + i) % n == 0, |_| true);
            typed(&comm, ReduceOp::Prod, |rank, i| (rank + i) % n != 0, |_| false);
            let average = |i: usize| all().map(|rank| rank + i as i64).sum::<i64>() / n as i64;
            typed(&comm, ReduceOp::Avg, |rank, i| (rank + i) as i64, average);
        });
    }
    for nranks in [2, 4, 8] {
        ranks(nranks, |comm| {
            let small = |i: usize| (i % 3) as f32;
            let average = |i: usize| bf16::from_f32(small(i));
            typed(&comm, ReduceOp::Avg, |_, i| bf16::from_f32(small(i)), average);
            let op = ReduceOp::PreMulSum(rondel::Scalar::Float(0.5));
            typed(&comm, op, |_, i| small(i) as f64, |i| small(i) as f64 * f64::from(nranks) / 2.0);
        });
    }
}

#[test]
fn more_than_a_round() {
    ranks(3, |comm| {
        let (n, rank) = (comm.nranks() as usize, comm.rank() as usize);
        let count = 5 << 20;
        let mut buffer = filled(rank, count, |v| v as f32);
        comm.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
        check("all_reduce of 20 MiB", &buffer, |i| sum(n, i) as f32);
        let block = (7 << 20) + 13;
        let mut output = vec![0u8; block * n];
        comm.all_gather(&vec![rank as u8; block], &mut output).unwrap();
        check("all_gather of 21 MiB", &output, |i| (i / block) as u8);
    });
}
