//! Results, overlap and stalls.

use crate::{
    buffers::Buffers,
    cases::cases,
    simulation::{Cluster, Started, route},
};
use rondel::{
    algo,
    engine::Route,
    plan::{Collective, Shape},
    {DataType, ReduceOp},
};
use rondel_mem::MemConfig;

fn run_all(n: u32, config: MemConfig, counts: &[usize], dtype: DataType, change: fn(Route) -> Route) {
    for (algorithm, collective, shape) in cases(n) {
        let mut cluster = Cluster::new(&shape, config, move |_, _| change(route(algorithm)));
        for (k, &count) in counts.iter().enumerate() {
            for in_place in [false, true] {
                let mut buffers = Buffers::new(collective, &shape, dtype, count, in_place, k as u64);
                let started = cluster.submit_all(&mut buffers, ReduceOp::Sum);
                cluster.finish(&started);
                for started in started {
                    cluster.outcome(started).unwrap();
                }
                buffers.check(&format!(
                    "{} {} n={n} count={count} in_place={in_place}",
                    algorithm.name,
                    collective.name()
                ));
            }
        }
    }
}

#[test]
fn every_algorithm_gives_the_right_result() {
    for (n, counts) in [(1, &[0, 1, 40][..]), (2, &[0, 5, 1000]), (4, &[0, 1, 777]), (8, &[1, 1000])] {
        run_all(n, MemConfig::default(), counts, DataType::F32, |r| r);
    }
}

#[test]
fn long_buffers_take_several_rounds() {
    for (n, count) in [(3, 40_000), (5, 20_000)] {
        run_all(n, MemConfig::default(), &[count], DataType::F32, |r| r);
    }
}

#[test]
fn without_any_buffer_or_fused_reduction() {
    let config = MemConfig { eager: 0, window: 1, reduces: false, ..MemConfig::default() };
    for n in [2, 3, 6] {
        run_all(n, config, &[1, 777], DataType::I64, |r| Route { slice_bytes: 512, ..r });
    }
}

#[test]
fn rounds_channels_and_slices() {
    for n in [2, 3, 5] {
        let small = |r| Route { channels: 3, slice_bytes: 256, round_bytes: 4096, ..r };
        run_all(n, MemConfig::default(), &[9000], DataType::I32, small);
    }
}

#[test]
fn operations_on_the_same_memory_run_one_after_the_other() {
    let shape = Shape::flat(4);
    let ring = algo::Algorithm::named("ring").unwrap();
    let mut cluster =
        Cluster::new(&shape, MemConfig { eager: 0, ..MemConfig::default() }, move |_, _| route(ring));
    let mut buffers = Buffers::new(Collective::AllReduce, &shape, DataType::I64, 10_000, true, 1);
    let first = cluster.submit_all(&mut buffers, ReduceOp::Sum);
    let second = cluster.submit_all(&mut buffers, ReduceOp::Sum);
    cluster.finish(&second);
    cluster.finish(&first);
    // The sum of four equal sums.
    buffers.check_with("twice", |sum| sum.wrapping_mul(4));
}

#[test]
fn many_operations_share_the_lanes() {
    let shape = Shape::flat(3);
    let ring = algo::Algorithm::named("ring").unwrap();
    let mut cluster = Cluster::new(&shape, MemConfig::default(), move |_, _| route(ring));
    let mut all: Vec<Buffers> = (0..20)
        .map(|k| {
            Buffers::new(Collective::AllReduce, &shape, DataType::I32, 100 + 997 * k, k % 2 == 0, k as u64)
        })
        .collect();
    let started: Vec<Vec<Started>> =
        all.iter_mut().map(|buffers| cluster.submit_all(buffers, ReduceOp::Sum)).collect();
    for started in &started {
        cluster.finish(started);
    }
    for buffers in &all {
        buffers.check("shared lanes");
    }
}
