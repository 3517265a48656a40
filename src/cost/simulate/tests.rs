use super::*;
use crate::{
    algo::Algorithm,
    plan::{Collective, Shape},
    verify::Operation,
};
use rondel_transport_api::Link;

const ALPHA: f64 = 5e-6;
const BETA: f64 = 1e-9;
const GAMMA: f64 = 0.125e-9;
const O: f64 = 0.5e-6;

fn machine() -> Machine {
    let link = Link {
        latency: Duration::from_secs_f64(ALPHA),
        overhead: Duration::from_secs_f64(O),
        bytes_per_sec: 1.0 / BETA,
    };
    Machine { gamma: GAMMA, eager: u64::MAX, ..Machine::new(link, link) }
}

fn cut(count: u64, slice_bytes: u64) -> Cut {
    Cut { count, element: 4, channels: 1, round_bytes: u64::MAX, slice_bytes }
}

fn seconds_of(name: &str, collective: Collective, shape: &Shape, cut: Cut, machine: &Machine) -> f64 {
    let algorithm = Algorithm::named(name).unwrap();
    let plans = Operation::of(algorithm, collective, shape, |_| false, false).plans;
    simulate(&plans, &shape.hosts, cut, machine).time.as_secs_f64()
}

#[track_caller]
fn assert_close(simulated: f64, formula: f64, what: &str) {
    let ratio = simulated / formula;
    assert!((0.96..1.04).contains(&ratio), "{what}: {simulated:.3e} s, by the formula {formula:.3e} s");
}

/// Ranks on hosts of their own.
fn apart(n: u32) -> Shape {
    Shape { hosts: (0..n).collect(), ..Shape::flat(n) }
}

/// One message on its way, processors included.
fn hop(bytes: f64) -> f64 {
    2.0 * O + ALPHA + BETA * bytes
}

#[test]
fn ring_all_reduce_is_as_in_the_textbook() {
    for n in [2, 3, 8, 16, 64] {
        for bytes in [64 * 1024u64, 16 << 20] {
            let simulated =
                seconds_of("ring", Collective::AllReduce, &apart(n), cut(bytes / 4, u64::MAX), &machine());
            let (p, chunk) = (f64::from(n), bytes as f64 / f64::from(n));
            let formula = 2.0 * (p - 1.0) * hop(chunk) + (p - 1.0) * GAMMA * chunk;
            assert_close(simulated, formula, &format!("{n} ranks, {bytes} B"));
        }
    }
}

#[test]
fn doubling_and_halving_are_as_in_the_textbook() {
    for n in [2u32, 4, 16, 64] {
        for bytes in [1024u64, 4 << 20] {
            if n > 4 && bytes > 1024 {
                // Ranks whose blocks go around the end run ahead of the others there.
                continue;
            }
            let (log, b, p) = (f64::from(n.ilog2()), bytes as f64, f64::from(n));
            let of = |name| {
                let cut = cut(bytes / 4, u64::MAX);
                seconds_of(name, Collective::AllReduce, &apart(n), cut, &machine())
            };
            assert_close(of("doubling"), log * (hop(b) + GAMMA * b), &format!("doubling {n} {bytes}"));
            let formula = 2.0 * log * hop(0.0) + (p - 1.0) / p * b * (2.0 * BETA + GAMMA);
            // Blocks around the end travel as a message of their own.
            let more = 4.0 * log * O;
            let simulated = of("halving_doubling");
            assert!(
                simulated > 0.97 * formula && simulated < 1.2 * (formula + more),
                "halving_doubling of {n} ranks, {bytes} B: {simulated:.3e} s, {formula:.3e} s"
            );
        }
    }
}

#[test]
fn slices_follow_each_other_down_a_chain() {
    for (n, slices) in [(2u32, 1u64), (8, 1), (8, 16), (16, 64)] {
        let (bytes, slice) = (4u64 << 20, (4u64 << 20) / slices);
        let simulated =
            seconds_of("ring", Collective::Broadcast, &apart(n), cut(bytes / 4, slice), &machine());
        let stage = BETA * slice as f64;
        let formula = f64::from(n - 1) * hop(slice as f64) + (slices - 1) as f64 * stage;
        assert_close(simulated, formula, &format!("{n} ranks, {slices} slices"));
    }
}

#[test]
fn a_tree_has_the_depth_of_its_ranks_and_the_bandwidth_of_a_chain() {
    for n in [8u32, 16, 64] {
        let of = |bytes: u64, slice| {
            let cut = cut(bytes / 4, slice);
            seconds_of("tree", Collective::Broadcast, &apart(n), cut, &machine())
        };
        let depth = f64::from(1 + (n - 1).ilog2());
        let small = of(64, u64::MAX);
        assert!(
            small > (depth - 1.0) * hop(0.0) && small < depth * (hop(0.0) + 4.0 * O),
            "{n} ranks: {small:e} s"
        );
        let (bytes, slice) = (64u64 << 20, 64 << 10);
        let ratio = of(bytes, slice) / (BETA * bytes as f64);
        assert!((1.0..1.6).contains(&ratio), "{n} ranks: {ratio} times the bytes of the vector");
    }
}

#[test]
fn ranks_of_a_host_share_its_port() {
    let shape = Shape { hosts: [0, 0, 0, 0, 1, 1, 1, 1].into(), ..Shape::flat(8) };
    let bytes = 32u64 << 20;
    let simulated =
        seconds_of("pairwise", Collective::AllToAll, &shape, cut(bytes / 32, u64::MAX), &machine());
    // Four ranks send four blocks each.
    let formula = 16.0 * (bytes / 8) as f64 * BETA;
    assert_close(simulated, formula, "four ranks on each of two hosts");
}

#[test]
fn ranks_that_share_a_processor_take_turns() {
    let of = |machine: &Machine| {
        seconds_of("doubling", Collective::AllReduce, &apart(4), cut(2, u64::MAX), machine)
    };
    assert_close(of(&machine()), 2.0 * (2.0 * O + ALPHA), "alone");
    assert_close(of(&machine().with_ranks_per_cpu(2.0)), 2.0 * (4.0 * O + ALPHA), "two on each");
}

#[test]
fn a_long_message_waits_for_its_receiver() {
    let shape = apart(2);
    let bytes = 1u64 << 20;
    let of = |eager| {
        let machine = Machine { eager, ..machine() };
        let plans = Operation::transfer(Algorithm::named("p2p").unwrap(), &shape, 0, 1).plans;
        simulate(&plans, &shape.hosts, cut(bytes / 4, u64::MAX), &machine).time.as_secs_f64()
    };
    let formula = hop(bytes as f64);
    assert_close(of(u64::MAX), formula, "eager");
    assert_close(of(0), formula, "the receive was posted at once");
}

#[test]
fn rounds_and_channels_move_the_same_bytes() {
    let algorithm = Algorithm::named("ring").unwrap();
    let shape = apart(4);
    let plans = Operation::of(algorithm, Collective::AllReduce, &shape, |_| false, false).plans;
    let of = |channels, round_bytes| {
        let cut = Cut { channels, round_bytes, ..cut(1 << 20, 64 << 10) };
        simulate(&plans, &shape.hosts, cut, &machine())
    };
    let whole = of(1, u64::MAX);
    assert_eq!(whole.bytes, 6 * (4 << 20));
    for (channels, rounds) in [(1, 8), (3, 1), (4, 8)] {
        let parts = of(channels, (4 << 20) / rounds);
        assert_eq!(parts.bytes, whole.bytes);
        assert!(parts.messages >= whole.messages);
        let ratio = parts.time.as_secs_f64() / whole.time.as_secs_f64();
        assert!((0.9..1.2).contains(&ratio), "{channels} channels, {rounds} rounds: {ratio}");
    }
}

#[test]
fn many_ranks_are_simulated_quickly() {
    let shape = apart(64);
    let plans =
        Operation::of(Algorithm::named("ring").unwrap(), Collective::AllReduce, &shape, |_| false, false)
            .plans;
    let started = std::time::Instant::now();
    let simulated = simulate(&plans, &shape.hosts, cut(1 << 20, 32 << 10), &machine());
    assert_eq!(simulated.messages, 64 * 126 * 2);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "took {took:?}");
}

#[test]
fn nothing_takes_no_time() {
    let simulated = seconds_of("ring", Collective::AllReduce, &apart(3), cut(0, u64::MAX), &machine());
    assert_eq!(simulated, 0.0);
}
