use super::*;
use crate::{algo, cost::simulate::simulate, plan::partition::Cut, verify::Operation};

fn shape(hosts: u32, each: u32) -> Shape {
    Shape { hosts: (0..hosts * each).map(|rank| rank / each).collect(), ..Shape::flat(hosts * each) }
}

/// Predicted by simulated seconds, of every algorithm and collective at several sizes.
fn ratios(hosts: u32, each: u32) -> Vec<(f64, String)> {
    let (shape, machine) = (shape(hosts, each), Machine::default());
    let formulas = Formulas::new(&shape, &machine);
    let mut ratios = Vec::new();
    let of_vectors = Collective::of_all_ranks().filter(|c| *c != Collective::Barrier);
    for (collective, algorithm) in of_vectors.flat_map(|c| algo::ALL.iter().map(move |a| (c, a))) {
        if !(algorithm.supports)(collective, &shape) {
            continue;
        }
        let plans = Operation::of(algorithm, collective, &shape, |_| true, false).plans;
        for bytes in [4u64 << 10, 64 << 10, 1 << 20, 8 << 20] {
            let blocks = blocks(collective, shape.nranks());
            let cut = Cut {
                count: (bytes / 4 / blocks).max(1),
                element: 4,
                channels: 1,
                round_bytes: 4 << 20,
                slice_bytes: 128 << 10,
            };
            let cutting = Cutting {
                bytes: cut.count * 4 * blocks,
                channels: cut.channels,
                slice_bytes: cut.slice_bytes,
                round_bytes: cut.round_bytes,
            };
            let predicted = formulas.predict(algorithm.name, collective, &cutting).unwrap().seconds;
            let simulated = simulate(&plans, &shape.hosts, cut, &machine).time.as_secs_f64();
            let what = format!(
                "{} {} of {hosts} x {each} ranks, {bytes} B: predicted {:.1} us, simulated {:.1} us",
                algorithm.name,
                collective.name(),
                predicted * 1e6,
                simulated * 1e6
            );
            ratios.push((predicted / simulated, what));
        }
    }
    ratios
}

/// What a comparison of algorithms can bear: most within 30 %, none beyond a factor of two.
#[test]
fn predictions_are_near_the_simulation() {
    let shapes = [(1, 2), (1, 3), (1, 4), (1, 8), (1, 13), (4, 1), (16, 1), (64, 1), (4, 4), (2, 8), (8, 8)];
    let all: Vec<(f64, String)> = shapes.iter().flat_map(|&(hosts, each)| ratios(hosts, each)).collect();
    let off = |ratio: f64| ratio.max(1.0 / ratio);
    let mean = (all.iter().map(|(ratio, _)| off(*ratio).ln()).sum::<f64>() / all.len() as f64).exp();
    assert!(mean < 1.12, "predictions are off by a factor of {mean} on average");
    let far: Vec<_> = all.iter().filter(|(ratio, _)| off(*ratio) > 1.3).collect();
    assert!(far.len() * 8 < all.len(), "{} of {} are off by more than 30 %: {far:#?}", far.len(), all.len());
    let worst: Vec<_> = far.into_iter().filter(|(ratio, _)| off(*ratio) > 2.0).collect();
    assert!(worst.is_empty(), "{worst:#?}");
}

#[test]
fn an_unknown_algorithm_is_not_predicted() {
    let formulas = Formulas::new(&Shape::flat(4), &Machine::default());
    let cutting = Cutting { bytes: 8, channels: 1, slice_bytes: 64, round_bytes: 64 };
    assert_eq!(formulas.predict("telepathy", Collective::AllReduce, &cutting), None);
}

#[test]
fn a_hundred_thousand_ranks_are_predicted() {
    let shape = shape(12_500, 8);
    let formulas = Formulas::new(&shape, &Machine::default());
    let cutting = Cutting { bytes: 64 << 20, channels: 1, slice_bytes: 128 << 10, round_bytes: 8 << 20 };
    let seconds = |name| formulas.predict(name, Collective::AllReduce, &cutting).unwrap().seconds;
    assert!(seconds("tree") < seconds("two_level"));
    assert!(seconds("two_level") < seconds("ring"));
    assert!(seconds("ring") > 2.0 * 99_999.0 * Machine::LOOPBACK.latency.as_secs_f64());
}
