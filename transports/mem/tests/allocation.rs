//! A message allocates nothing once its lane has been used.

mod harness;

use harness::{connect, recv, send};
use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{Post, conformance::open_all};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread.
struct Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more, and nobody to ask for it.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn warm_messages_allocate_nothing() {
    let hub = MemTransport::new(MemConfig { eager: 1000, ..MemConfig::default() });
    let mut ends = open_all(&hub, 2);
    let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
    let (lane_a, lane_b) = connect(&mut *a, &mut *b);
    let (src, mut dst) = (vec![1; 5000], vec![0; 5000]);
    let mut events = Vec::with_capacity(64);
    let mut warm = 0;
    for round in 0..100 {
        if round == 10 {
            warm = ALLOCATIONS.get();
        }
        for size in [8, 5000] {
            // SAFETY: the vectors outlive the endpoints' use of them.
            unsafe {
                assert_eq!(send(&mut *a, lane_a, &src[..size], round, 1), Post::Accepted);
                assert_eq!(recv(&mut *b, lane_b, &mut dst[..size], round, 2), Post::Accepted);
            }
            for _ in 0..2 {
                for end in [&mut a, &mut b] {
                    end.flush();
                    end.poll(&mut events, 1 << 20);
                }
            }
            assert_eq!(events.len(), 2);
            events.clear();
        }
    }
    assert!(warm > 0, "the counter works");
    assert_eq!(ALLOCATIONS.get() - warm, 0);
}
