//! Operations that overlap: with each other, with their owner's work, and from several threads.

use crate::threads::ranks;
use rondel::ReduceOp;

#[test]
fn a_scope_overlaps_operations() {
    ranks(3, |comm| {
        for round in 0..20u64 {
            let count = [0, 1, 3000, 300_000][round as usize % 4];
            let (mut first, mut second) = (vec![round; count], vec![1u64; count]);
            let mut root = vec![u64::from(comm.rank()) + round; count];
            let counted = comm
                .scope(|s| {
                    s.all_reduce(ReduceOp::Sum, &mut first).unwrap();
                    s.all_reduce(ReduceOp::Sum, &mut second).unwrap();
                    s.broadcast(2, &mut root).unwrap();
                    count
                })
                .unwrap();
            assert_eq!(counted, count);
            assert!(first.iter().all(|&sum| sum == 3 * round));
            assert!(second.iter().all(|&sum| sum == 3));
            assert!(root.iter().all(|&value| value == 2 + round));
        }
    });
}

#[test]
fn a_scope_waits_when_its_closure_panics() {
    ranks(2, |comm| {
        let mut buffer = vec![1u32; 200_000];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let scope = comm.scope(|s| {
                s.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
                std::panic::resume_unwind(Box::new("on purpose"));
            });
            scope.unwrap()
        }));
        assert!(panicked.is_err());
        assert!(buffer.iter().all(|&sum| sum == 2));
    });
}

#[test]
fn work_gives_its_buffer_back() {
    ranks(4, |comm| {
        let n = u64::from(comm.nranks());
        let sums = comm.start_all_reduce(ReduceOp::Sum, vec![1u64; 50_000]).unwrap();
        let mut gathered = vec![0u64; 4 * 1000];
        gathered[comm.rank() as usize * 1000..][..1000].fill(u64::from(comm.rank()));
        let gathered = comm.start_all_gather(gathered).unwrap();
        let mut tested = comm.start_broadcast(3, vec![u64::from(comm.rank()); 10]).unwrap();
        drop(comm.start_reduce_scatter(ReduceOp::Max, vec![0u8; 4 * 100]).unwrap());
        while !tested.test().unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(tested.wait().unwrap(), vec![3; 10]);
        let gathered = gathered.wait().unwrap();
        assert!(gathered.iter().enumerate().all(|(i, &rank)| rank == i as u64 / 1000));
        assert!(sums.wait().unwrap().iter().all(|&sum| sum == n));
    });
}

#[test]
fn a_send_may_be_under_way_during_a_barrier() {
    ranks(2, |comm| {
        let peer = 1 - comm.rank();
        for count in [1usize, 1000, 1 << 20] {
            let sent = comm.start_send(peer, vec![comm.rank(); count]).unwrap();
            comm.barrier().unwrap();
            let mut got = vec![u32::MAX; count];
            comm.recv(peer, &mut got).unwrap();
            assert!(got.iter().all(|&rank| rank == peer));
            drop(sent);
        }
    });
}

#[test]
fn threads_share_a_context() {
    const THREADS: u32 = 4;
    ranks(2, |comm| {
        let children: Vec<_> =
            (0..THREADS).map(|_| comm.split(Some(0), 0).unwrap().expect("a color was given")).collect();
        std::thread::scope(|scope| {
            for (number, child) in children.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..100usize {
                        let count = (number * 7919 + round * 131) % 20_000;
                        let mut buffer = vec![round as u32; count];
                        child.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
                        assert!(buffer.iter().all(|&sum| sum == 2 * round as u32), "thread {number}");
                    }
                });
            }
            for _ in 0..100 {
                comm.barrier().unwrap();
            }
        });
    });
}
