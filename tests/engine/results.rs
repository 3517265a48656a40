//! Results, overlap and stalls.

use crate::simulation::{Buffers, Cluster, route};
use rondel::{
    algo,
    engine::{EngineConfig, OperationId, Route},
    plan::{Alias, Collective, Shape},
    {DataType, Error, ReduceOp},
};
use rondel_mem::MemConfig;

/// Every collective that an algorithm does, with roots at both ends.
fn cases(n: u32) -> Vec<(&'static algo::Algorithm, Collective, Shape)> {
    use Collective::*;
    let all = [AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll, Gather, Scatter];
    let mut cases = Vec::new();
    for algorithm in algo::ALL {
        for collective in all {
            let mut shapes = vec![Shape::flat(n)];
            if collective.has_root() && n > 1 {
                shapes.push(Shape::flat(n).with_root(n - 1));
            }
            if n > 3 {
                let hosts = (0..n).map(|rank| rank / 3).collect();
                shapes.push(Shape { hosts, ..Shape::flat(n) });
            }
            shapes.retain(|shape| (algorithm.supports)(collective, shape));
            cases.extend(shapes.into_iter().map(|shape| (algorithm, collective, shape)));
        }
    }
    cases
}

fn run_all(n: u32, config: MemConfig, counts: &[usize], dtype: DataType, change: fn(Route) -> Route) {
    for (algorithm, collective, shape) in cases(n) {
        let mut cluster = Cluster::new(&shape, config, move |_, _| change(route(algorithm)));
        for (k, &count) in counts.iter().enumerate() {
            for in_place in [false, true] {
                let mut buffers = Buffers::new(collective, &shape, dtype, count, in_place, k as u64);
                let started = cluster.submit_all(&mut buffers, ReduceOp::Sum);
                cluster.finish(&started);
                for (rank, operation) in started.iter().enumerate() {
                    cluster.engines[rank].take_outcome(*operation).expect("it is over").unwrap();
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
    for n in [1, 2, 3, 4, 5, 8] {
        run_all(n, MemConfig::default(), &[0, 1, 5, 1000, 40_000], DataType::F32, |r| r);
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
    let started: Vec<Vec<OperationId>> =
        all.iter_mut().map(|buffers| cluster.submit_all(buffers, ReduceOp::Sum)).collect();
    for started in &started {
        cluster.finish(started);
    }
    for buffers in &all {
        buffers.check("shared lanes");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    let shape = Shape::flat(3);
    let ring = algo::Algorithm::named("ring").unwrap();
    let config = EngineConfig { timeout: std::time::Duration::from_secs(5), ..EngineConfig::default() };
    let mut cluster = Cluster::with_config(&shape, MemConfig::default(), config, move |_, _| route(ring));
    let mut buffers = Buffers::new(Collective::AllReduce, &shape, DataType::F32, 100, true, 0);
    let started = cluster.submit_some(&mut buffers, ReduceOp::Sum, &[0, 2]);
    cluster.finish(&started);
    let error = cluster.engines[0].take_outcome(started[0]).expect("it is over").unwrap_err();
    let Error::Failed(failure) = error else { panic!("{error}") };
    assert_eq!(failure.culprit(), Some(1), "{failure}");
    assert!(failure.to_string().contains("has not entered"), "{failure}");
}

#[test]
fn disagreeing_calls_are_named_with_both_calls() {
    let shape = Shape::flat(2);
    let ring = algo::Algorithm::named("ring").unwrap();
    let one_shot = algo::Algorithm::named("one_shot").unwrap();
    let choose = move |collective, _| match collective {
        Collective::AllReduce => route(ring),
        _ => route(one_shot),
    };
    let mut cluster = Cluster::new(&shape, MemConfig::default(), choose);
    let mut ours = Buffers::new(Collective::AllReduce, &shape, DataType::F32, 100, true, 0);
    let mut theirs = Buffers::new(Collective::AllReduce, &shape, DataType::F32, 101, true, 0);
    let mut started = cluster.submit_some(&mut ours, ReduceOp::Sum, &[0]);
    started.extend(cluster.submit_some(&mut theirs, ReduceOp::Sum, &[1]));
    cluster.finish(&started);
    let error = cluster.engines[0].take_outcome(started[0]).expect("it is over").unwrap_err().to_string();
    assert!(error.contains("100") && error.contains("101"), "{error}");
    let _ = Alias::None;
}
