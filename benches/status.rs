//! What a status page costs its writer on every call, and its readers.

use criterion::{Criterion, criterion_group, criterion_main};
use rondel::{
    engine::{
        call::Call,
        status::{Owner, StatusPage, StatusView},
    },
    plan::Collective,
};
use rondel_transport_api::{DataType, ReduceOp};
use std::hint::black_box;

fn status(criterion: &mut Criterion) {
    let owner = Owner { job: 1, rank: 0, nranks: 2, pid: std::process::id() };
    let page = StatusPage::create(&owner).expect("memory for a page");
    let view = StatusView::map(page.descriptor()).expect("our own page");
    let slot = page.open_slot(1, 0, 2).expect("an empty page");
    let mut call = Call {
        seq: 0,
        collective: Collective::AllReduce,
        dtype: DataType::F32,
        op: Some(ReduceOp::Sum),
        count: 2,
        root: 0,
    };
    let mut group = criterion.benchmark_group("status");
    group.bench_function("entered and completed", |bencher| {
        bencher.iter(|| {
            call.seq += 1;
            page.entered(slot, black_box(&call));
            page.completed(slot, call.seq);
        });
    });
    group.bench_function("read", |bencher| bencher.iter(|| black_box(view.read(black_box(1)))));
    group.finish();
}

criterion_group!(benches, status);
criterion_main!(benches);
