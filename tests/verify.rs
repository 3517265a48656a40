//! Every algorithm, for many shapes, proven by the verifier.

use rondel::algo::{ALL, Algorithm};
use rondel::plan::partition::Cut;
use rondel::plan::{Collective, Layout, Rank, Shape};
use rondel::verify::{Neighbours, Operation, Schedule};

/// How much is tried of one operation.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// One placement, one schedule.
    Once,
    /// In and out of place and mixed, with and without scaling, several slicings, schedules and windows.
    Full,
}

/// A permutation of `0..n`, another one for each seed.
fn shuffled(n: u32, seed: u64) -> Box<[u32]> {
    let mut keyed: Vec<(u64, u32)> =
        (0..n).map(|rank| (hash(seed.wrapping_mul(1 << 32) + u64::from(rank)), rank)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, rank)| rank).collect()
}

fn hash(value: u64) -> u64 {
    let mixed = (value ^ value >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
}

/// Ranks on these hosts, given by rank and renumbered by first appearance, in a random order.
fn on_hosts(hosts: &[u32], seed: u64) -> Shape {
    let mut seen: Vec<u32> = Vec::new();
    let numbers = hosts.iter().map(|host| match seen.iter().position(|other| other == host) {
        Some(number) => number as u32,
        None => {
            seen.push(*host);
            seen.len() as u32 - 1
        }
    });
    let hosts: Box<[u32]> = numbers.collect();
    Shape { order: shuffled(hosts.len() as u32, seed), hosts, root: 0 }
}

/// All ranks on one host in their own and in a random order; hosts of equal and of unequal size, with neighbouring and
/// with scattered ranks; a host for each rank.
fn shapes(n: u32) -> Vec<Shape> {
    let by_rank = |host: &dyn Fn(u32) -> u32| (0..n).map(host).collect::<Vec<_>>();
    let flat = Shape::flat(n);
    let mut shapes = vec![flat.clone(), Shape { order: shuffled(n, 1), ..flat }];
    for local in [2, 4] {
        if n.is_multiple_of(local) && n > local {
            shapes.push(on_hosts(&by_rank(&|rank| rank / local), 2));
            shapes.push(on_hosts(&by_rank(&|rank| rank % (n / local)), 3));
        }
    }
    if n > 2 {
        shapes.push(on_hosts(&by_rank(&|rank| u32::from(rank > n / 3)), 4));
        shapes.push(on_hosts(&by_rank(&|rank| hash(u64::from(rank)) as u32 % 3), 5));
    }
    if n > 1 {
        shapes.push(on_hosts(&by_rank(&|rank| rank), 6));
    }
    shapes
}

fn roots(collective: Collective, n: u32) -> std::ops::Range<Rank> {
    if collective.has_root() { 0..n } else { 0..1 }
}

fn verify(algorithm: &Algorithm, collective: Collective, shape: &Shape, depth: Depth) -> u64 {
    let mut actions = 0;
    let placements: &[&dyn Fn(Rank) -> bool] = match depth {
        Depth::Once => &[&|rank| rank % 2 == 0],
        Depth::Full => &[&|_| false, &|_| true, &|rank| hash(u64::from(rank)).is_multiple_of(2)],
    };
    for (at, in_place) in placements.iter().enumerate() {
        let prescale = at % 2 == 0;
        let operation = Operation::of(algorithm, collective, shape, in_place, prescale);
        let fail = |fault| panic!("{} {collective:?} {shape:?} placement {at}: {fault}", algorithm.name);
        operation.check().unwrap_or_else(fail);
        let schedules: &[(u32, u32)] = match depth {
            Depth::Once => &[(1, u32::MAX)],
            Depth::Full => &[(1, u32::MAX), (1, 1), (2, 1), (2, u32::MAX), (5, 1)],
        };
        // Slices of many ranks take long and show nothing new.
        let few = |(slices, _): &&(u32, u32)| slices * shape.nranks() <= 128;
        for &(slices, window) in schedules.iter().filter(few) {
            let seed = u64::from(slices * 7 + shape.root) + at as u64;
            let schedule = Schedule { slices, window, seed };
            actions += operation.run(schedule).unwrap_or_else(|fault| {
                panic!("{} {collective:?} {shape:?} placement {at} {schedule:?}: {fault}", algorithm.name)
            });
        }
    }
    actions
}

/// Verifies every algorithm and collective for `n` ranks, and returns how much ran.
fn sweep(n: u32) -> (u32, u64) {
    let (mut operations, mut actions) = (0, 0);
    for (number, shape) in shapes(n).iter().enumerate() {
        for algorithm in ALL {
            for collective in Collective::of_all_ranks() {
                for root in roots(collective, n) {
                    let shape = shape.clone().with_root(root);
                    if (algorithm.supports)(collective, &shape) {
                        let full = n <= 9 || root == 0 && (n <= 17 || number < 3);
                        let depth = if full { Depth::Full } else { Depth::Once };
                        actions += verify(algorithm, collective, &shape, depth);
                        operations += 1;
                    }
                }
            }
        }
    }
    (operations, actions)
}

#[test]
fn up_to_9_ranks() {
    let operations: u32 = (1..=9).map(|n| sweep(n).0).sum();
    assert!(operations > 1000, "{operations} operations are not all there are");
}

#[test]
fn up_to_13_ranks() {
    (10..=13).for_each(|n| assert!(sweep(n).0 > 100));
}

#[test]
fn up_to_17_ranks() {
    (14..=17).for_each(|n| assert!(sweep(n).0 > 100));
}

#[test]
fn up_to_32_ranks() {
    [24, 32].into_iter().for_each(|n| assert!(sweep(n).0 > 100));
}

#[test]
fn up_to_64_ranks() {
    assert!(sweep(64).0 > 100);
}

#[test]
fn transfers() {
    for n in 2..=5 {
        let shape = Shape::flat(n);
        for algorithm in ALL.iter().filter(|algorithm| (algorithm.supports)(Collective::Send, &shape)) {
            for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
                if from != to {
                    let operation = Operation::transfer(algorithm, &shape, from, to);
                    operation.check().unwrap();
                    for slices in [1, 2, 5] {
                        operation.run(Schedule { slices, window: 1, seed: 1 }).unwrap();
                    }
                    let cut =
                        Cut { count: 1001, element: 3, channels: 2, round_bytes: 1000, slice_bytes: 100 };
                    operation.run_bytes(cut, Schedule { slices: 1, window: u32::MAX, seed: 1 }).unwrap();
                }
            }
        }
    }
}

/// Cuts with few elements for the number of ranks, and odd ones with several rounds, channels and slices.
fn cuts(n: u32, blocked: bool) -> Vec<Cut> {
    let whole = Cut { count: 0, element: 1, channels: 1, round_bytes: 1 << 20, slice_bytes: 1 << 16 };
    let n = u64::from(n);
    let mut cuts = Vec::new();
    for (at, count) in [0, 1, n - 1, n, n + 1, 2 * n + 3].into_iter().enumerate() {
        let element = [1, 2, 3, 8, 12][(at + n as usize) % 5];
        cuts.push(Cut { count, element, channels: 1 + at as u32 % 2, ..whole });
    }
    for element in [1, 2, 3, 8, 12] {
        // About as many elements in each chunk.
        let count = if blocked { 81 } else { 64 * n + 17 };
        cuts.push(Cut {
            count,
            element,
            channels: 3,
            round_bytes: 24 * n * u64::from(element),
            slice_bytes: 64,
        });
    }
    let count = if blocked { 129 } else { 129 * n + 1 };
    cuts.push(Cut { count, element: 4, slice_bytes: 128, ..whole });
    cuts
}

fn sweep_bytes(n: u32, shapes: impl Iterator<Item = Shape>) {
    for shape in shapes {
        for algorithm in ALL {
            for collective in Collective::of_all_ranks() {
                let blocked = matches!(collective.input(0, &shape), Layout::Blocked(_))
                    || matches!(collective.output(0, &shape), Layout::Blocked(_));
                let shape = shape.clone().with_root(n / 2 * u32::from(collective.has_root()));
                if !(algorithm.supports)(collective, &shape) {
                    continue;
                }
                let operation = Operation::of(algorithm, collective, &shape, |rank| rank % 3 != 1, false);
                for (seed, cut) in (0..).zip(cuts(n, blocked)) {
                    let barrier = collective == Collective::Barrier;
                    let cut = if barrier { Cut { count: 1, element: 1, ..cut } } else { cut };
                    let window = if seed % 2 == 0 { 1 } else { u32::MAX };
                    let run = operation.run_bytes(cut, Schedule { slices: 1, window, seed });
                    run.unwrap_or_else(|fault| {
                        panic!("{} {collective:?} {shape:?} {cut:?}: {fault}", algorithm.name)
                    });
                }
            }
        }
    }
}

#[test]
fn bytes_up_to_6_ranks() {
    (1..=6).for_each(|n| sweep_bytes(n, shapes(n).into_iter()));
}

#[test]
fn bytes_up_to_9_ranks() {
    (7..=9).for_each(|n| sweep_bytes(n, shapes(n).into_iter()));
}

#[test]
fn bytes_of_16_and_17_ranks() {
    [16, 17].into_iter().for_each(|n| sweep_bytes(n, shapes(n).into_iter().skip(1).step_by(3)));
}

#[test]
fn operations_follow_each_other_on_shared_lanes() {
    let mut detected = [0, 0];
    for n in [2, 3, 4, 7, 9] {
        let shape = on_hosts(&(0..n).map(|rank| rank / 2).collect::<Vec<_>>(), 1);
        let operation = |algorithm: &Algorithm, collective: Collective, in_place: bool| {
            let shape = shape.clone().with_root(u32::from(collective.has_root()));
            (algorithm.supports)(collective, &shape)
                .then(|| Operation::of(algorithm, collective, &shape, |_| in_place, true))
        };
        let all: Vec<Operation> = ALL
            .iter()
            .flat_map(|algorithm| {
                Collective::of_all_ranks().map(move |collective| operation(algorithm, collective, n % 2 == 0))
            })
            .flatten()
            .collect();
        for (at, first) in all.iter().enumerate() {
            for (seed, second) in (at as u64..).zip(&all) {
                let schedule =
                    Schedule { slices: 1 + (seed % 2) as u32, window: [1, u32::MAX][at % 2], seed };
                first.run_then(second, Neighbours::Disjoint, schedule).unwrap_or_else(|fault| {
                    panic!("{:?} then {:?}, {n} ranks: {fault}", first.collective, second.collective)
                });
            }
            let moves_data = first.collective != Collective::Barrier;
            for seed in 0..4 {
                let schedule = Schedule { slices: 2, window: u32::MAX, seed };
                let ordered = first.run_then(first, Neighbours::Ordered, schedule);
                ordered.unwrap_or_else(|fault| panic!("{:?} twice, {n} ranks: {fault}", first.collective));
                let shared = first.run_then(first, Neighbours::Shared, schedule);
                detected[0] += usize::from(moves_data);
                detected[1] += usize::from(moves_data && shared.is_err());
            }
        }
    }
    let [runs, faults] = detected;
    assert!(faults == runs, "of {runs} pairs on the same buffers, {faults} were found to race");
}
