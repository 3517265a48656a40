//! What the executor costs an action, with nothing below it.
//!
//! Every action is reported over as soon as it is given out, so the walk never waits: what is left is bookkeeping.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rondel::{
    algo::Algorithm,
    engine::execution::Execution,
    plan::{Alias, Collective, LaneIndex, Shape},
};
use std::{hint::black_box, sync::Arc};

fn walk(execution: &mut Execution) -> u64 {
    execution.restart();
    for lane in 0..execution.plan().lanes().len() {
        execution.open_lane(LaneIndex(lane as u32));
    }
    let mut actions = 0;
    while let Some(action) = execution.poll_action() {
        execution.handle_done(action);
        actions += 1;
    }
    assert!(execution.is_done());
    actions
}

fn executor(c: &mut Criterion) {
    let mut group = c.benchmark_group("executor");
    for (name, nranks, slices) in
        [("one_shot", 2, 1), ("doubling", 4, 1), ("direct", 4, 8), ("ring", 8, 8), ("ring", 64, 4), ("tree", 64, 8)]
    {
        let algorithm = Algorithm::named(name).expect("it exists");
        let shape = Shape::flat(nranks);
        let plan = algorithm.plan(Collective::AllReduce, 0, &shape, Alias::InputAt(0), false);
        let mut execution = Execution::new(Arc::new(plan), slices);
        let actions = walk(&mut execution);
        group.throughput(Throughput::Elements(actions));
        group.bench_function(format!("{name} n={nranks} slices={slices}"), |b| {
            b.iter(|| black_box(walk(&mut execution)));
        });
    }
    group.finish();
}

criterion_group!(benches, executor);
criterion_main!(benches);
