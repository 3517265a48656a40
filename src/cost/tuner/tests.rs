use super::*;
use crate::{
    cost::{formula::blocks, simulate::simulate},
    plan::partition::Cut,
    verify::Operation,
};
use std::time::Instant;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn shape(hosts: u32, each: u32) -> Shape {
    Shape { hosts: (0..hosts * each).map(|rank| rank / each).collect(), ..Shape::flat(hosts * each) }
}

fn tuner(hosts: u32, each: u32) -> Tuner {
    Tuner::for_machine(&shape(hosts, each), &Machine::default(), None, None)
}

/// A collective's table, for people.
fn table(tuner: &Tuner, collective: Collective) -> String {
    let range = |(from, route): &(u64, Route)| {
        let (slice, round) = (short_bytes(route.slice_bytes), short_bytes(route.round_bytes));
        format!("{}+ {} ({slice}/{round})", short_bytes(*from), route.algorithm.name)
    };
    let ranges: Vec<String> = tuner.ranges(collective).iter().map(range).collect();
    format!("{}: {}", collective.name(), ranges.join(", "))
}

#[track_caller]
fn assert_choice(tuner: &Tuner, collective: Collective, expected: &[(u64, &str)]) {
    for &(bytes, name) in expected {
        let chosen = tuner.route(collective, bytes).algorithm.name;
        assert_eq!(chosen, name, "{bytes} B; {}", table(tuner, collective));
    }
}

#[test]
fn every_algorithm_is_chosen_where_it_is_best() {
    use Collective::*;
    assert_choice(
        &tuner(1, 2),
        AllReduce,
        &[
            (0, "one_shot"),
            (8, "one_shot"),
            (16 * KIB, "one_shot"),
            (64 * KIB, "direct"),
            (64 * MIB, "direct"),
        ],
    );
    let four = [(8, "doubling"), (64 * KIB, "doubling"), (128 * KIB, "direct"), (64 * MIB, "direct")];
    assert_choice(&tuner(1, 4), AllReduce, &four);
    let sharing = Machine::default().with_ranks_per_cpu(2.0);
    assert_choice(&Tuner::for_machine(&shape(1, 4), &sharing, None, None), AllReduce, &four);
    let eight = tuner(1, 8);
    assert_choice(&eight, AllReduce, &[(8, "doubling"), (32 * KIB, "doubling"), (MIB, "direct")]);
    assert_choice(&eight, Broadcast, &[(8, "one_shot"), (256 * KIB, "tree"), (64 * MIB, "ring")]);
    assert_choice(
        &tuner(1, 64),
        AllReduce,
        &[(8, "doubling"), (256 * KIB, "halving_doubling"), (64 * MIB, "direct")],
    );
    let apart = tuner(64, 1);
    assert_choice(
        &apart,
        AllReduce,
        &[(8, "doubling"), (512 * KIB, "halving_doubling"), (2 * MIB, "tree"), (64 * MIB, "ring")],
    );
    assert_choice(&apart, ReduceScatter, &[(8, "direct"), (MIB, "halving_doubling")]);
    assert_choice(&apart, Reduce, &[(8, "tree"), (64 * KIB, "tree"), (64 * MIB, "ring")]);
    assert_choice(&tuner(8, 8), AllReduce, &[(8, "doubling"), (256 * KIB, "two_level")]);
    assert_choice(
        &tuner(2, 4),
        AllReduce,
        &[(8, "doubling"), (64 * KIB, "two_level"), (64 * MIB, "two_level")],
    );
}

#[test]
fn every_size_has_a_way() {
    for (hosts, each) in (1..=17).map(|n| (1, n)).chain([(3, 1), (2, 3), (5, 2), (17, 1)]) {
        let (shape, tuner) = (shape(hosts, each), tuner(hosts, each));
        for collective in Collective::ALL {
            let ranges = tuner.ranges(collective);
            assert_eq!(ranges[0].0, 0, "{}", table(&tuner, collective));
            assert!(ranges.is_sorted_by(|a, b| a.0 < b.0), "{}", table(&tuner, collective));
            let alone = collective.is_point_to_point() && shape.nranks() == 1;
            for (from, route) in ranges {
                assert!(alone || (route.algorithm.supports)(collective, &shape));
                assert_eq!(tuner.route(collective, from).algorithm.name, route.algorithm.name);
                assert!((MIB..=8 * MIB).contains(&route.round_bytes) && route.channels == 1);
            }
            tuner.route(collective, u64::MAX);
        }
    }
}

#[test]
fn equal_arguments_make_equal_tables() {
    let (one, other) = (tuner(4, 4), tuner(4, 4));
    assert_eq!(one.version(), other.version());
    for collective in Collective::ALL {
        assert_eq!(table(&one, collective), table(&other, collective));
    }
    let versions = [
        one.version(),
        tuner(2, 8).version(),
        tuner(1, 16).version(),
        Tuner::for_machine(&shape(4, 4), &Machine::default(), Algorithm::named("ring"), None).version(),
        Tuner::for_machine(&shape(4, 4), &Machine::default(), None, Some(2)).version(),
        Tuner::for_machine(&shape(4, 4), &Machine::new(Machine::LOOPBACK, Machine::LOOPBACK), None, None)
            .version(),
    ];
    let mut distinct = versions.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), versions.len(), "{versions:x?}");
}

#[test]
fn a_fixed_algorithm_does_what_it_can() {
    let tuner = Tuner::for_machine(&shape(1, 4), &Machine::default(), Algorithm::named("ring"), Some(3));
    assert_choice(&tuner, Collective::AllReduce, &[(8, "ring"), (MIB, "ring")]);
    assert_choice(&tuner, Collective::Barrier, &[(1, "dissemination")]);
    assert_choice(&tuner, Collective::AllToAll, &[(MIB, "pairwise")]);
    assert_eq!(tuner.route(Collective::AllReduce, 8).channels, 3);
    assert_eq!(tuner.candidates(Collective::AllReduce, 8).len(), 1);
}

#[test]
fn candidates_come_best_first() {
    let candidates = tuner(1, 4).candidates(Collective::AllReduce, 8);
    assert_eq!(candidates.len(), 6);
    assert_eq!(candidates[0].0, "doubling");
    assert!(candidates.is_sorted_by_key(|candidate| candidate.1));
    assert!(candidates[0].1 > Duration::from_micros(5));
}

#[test]
fn a_table_is_made_quickly_and_told_in_a_line() {
    let started = Instant::now();
    tuner(64, 1);
    let took = started.elapsed();
    assert!(took < Duration::from_millis(100), "took {took:?}");
    assert_eq!(tuner(1, 2).summary(), "; table: all_reduce <36K one_shot, direct");
    assert_eq!(tuner(1, 1).summary().matches(',').count(), 0);
}

/// Simulated seconds of a way.
fn measure(route: &Route, collective: Collective, shape: &Shape, bytes: u64) -> f64 {
    let plans = Operation::of(route.algorithm, collective, shape, |_| true, false).plans;
    let blocks = blocks(collective, shape.nranks());
    let cut = Cut {
        count: (bytes / 4 / blocks).max(1),
        element: 4,
        channels: route.channels,
        round_bytes: route.round_bytes,
        slice_bytes: route.slice_bytes,
    };
    simulate(&plans, &shape.hosts, cut, &Machine::default()).time.as_secs_f64()
}

#[test]
fn the_choice_is_hardly_slower_than_the_best() {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let (mut logs, mut count) = (0.0, 0);
    for (hosts, each) in [(1, 2), (1, 4), (1, 8), (1, 16), (4, 1), (16, 1), (2, 4)] {
        let (shape, tuner) = (shape(hosts, each), tuner(hosts, each));
        for collective in [AllReduce, ReduceScatter, AllGather, Broadcast, Reduce] {
            for bytes in [8, KIB, 16 * KIB, 128 * KIB, MIB, 8 * MIB, 64 * MIB] {
                let cut = |a| tuner.best_cut(a, collective, bytes, None).route;
                let all = tuner
                    .able(collective)
                    .into_iter()
                    .map(|a| (measure(&cut(a), collective, &shape, bytes), a));
                let (best, name) = all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                let chosen = tuner.route(collective, bytes);
                let regret = measure(&chosen, collective, &shape, bytes) / best;
                (logs, count) = (logs + regret.ln(), count + 1);
                assert!(
                    regret < 1.3,
                    "{} of {hosts} x {each} ranks, {bytes} B: {:?} takes {regret:.2} times as long as {name:?}",
                    collective.name(),
                    chosen.algorithm
                );
            }
        }
    }
    let mean = (logs / f64::from(count)).exp();
    assert!(mean < 1.1, "{mean}");
}
