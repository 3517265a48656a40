//! A call of a shape that was called before allocates nothing.

use crate::{
    buffers::Buffers,
    simulation::{Cluster, route},
};
use rondel::{DataType, ReduceOp, algo::Algorithm, engine::Route, plan::Collective, plan::Shape};
use rondel_mem::MemConfig;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Counts the allocations of this thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of the engines in one call of every rank.
fn allocations(cluster: &mut Cluster, buffers: &mut Buffers) -> u64 {
    let submissions = cluster.submissions(buffers, ReduceOp::Sum);
    let before = ALLOCATIONS.with(Cell::get);
    cluster.run(&submissions);
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_second_call_of_a_shape_allocates_nothing() {
    let n = 4;
    for name in ["ring", "one_shot", "doubling", "direct", "halving_doubling", "tree"] {
        let algorithm = Algorithm::named(name).expect("it exists");
        for (reduces, count) in [(true, 2), (true, 50_000), (false, 50_000)] {
            let shape = Shape::flat(n);
            let config = MemConfig { reduces, ..MemConfig::default() };
            let routes = move |_, _| Route { channels: 2, ..route(algorithm) };
            let mut cluster = Cluster::new(&shape, config, routes);
            let mut buffers = Buffers::new(Collective::AllReduce, &shape, DataType::F32, count, false, 0);
            let first = allocations(&mut cluster, &mut buffers);
            assert!(first > 0, "the counter counts nothing");
            let again: Vec<u64> = (0..4).map(|_| allocations(&mut cluster, &mut buffers)).collect();
            // Queues may still grow in the second call, when its timing differs from the first one's.
            assert_eq!(&again[2..], [0, 0], "{name}, {count} elements: {again:?} after {first}");
            buffers.check(name);
        }
    }
}
