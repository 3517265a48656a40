//! What the executor costs: a restart, and one action with its end.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rondel::algo::Algorithm;
use rondel::engine::execution::Execution;
use rondel::plan::{Alias, Collective, LaneIndex, Shape};
use std::sync::Arc;

/// Restarts and walks a whole plan, every action being over as soon as all that can start has started.
fn walk(execution: &mut Execution, started: &mut Vec<rondel::engine::execution::Action>) {
    execution.restart();
    for lane in 0..execution.plan().lanes().len() as u32 {
        execution.open_lane(LaneIndex(lane));
    }
    while !execution.is_done() {
        while let Some(action) = execution.poll_action() {
            started.push(action);
        }
        while let Some(action) = started.pop() {
            execution.handle_done(action);
        }
    }
}

fn executions(criterion: &mut Criterion) {
    let cases = [
        ("ring", 2, 1),
        ("ring", 8, 1),
        ("ring", 8, 8),
        ("ring", 64, 4),
        ("one_shot", 8, 1),
        ("tree", 8, 16),
    ];
    for (name, nranks, slices) in cases {
        let algorithm = Algorithm::named(name).expect("an algorithm of this name");
        let plan = algorithm.plan(Collective::AllReduce, 0, &Shape::flat(nranks), Alias::InputAt(0), false);
        let actions = plan.steps().len() as u64 * u64::from(slices);
        let mut execution = Execution::new(Arc::new(plan), slices);
        let mut started = Vec::new();
        let mut group = criterion.benchmark_group(format!("{name}/{nranks} ranks/{slices} slices"));
        group.bench_function("restart", |bencher| bencher.iter(|| execution.restart()));
        group.throughput(Throughput::Elements(actions));
        group.bench_function("walk", |bencher| bencher.iter(|| walk(&mut execution, &mut started)));
        group.finish();
    }
}

criterion_group!(benches, executions);
criterion_main!(benches);
