//! Ranks that stop, sleep, leave or give up while others wait for them.

use crate::{
    job::Job,
    report::stretched,
    threads::{TRANSPORTS, builder, ranks, ranks_that_stay},
};
use rondel::{Communicator, Error, ReduceOp, Result, error::Cause, error::Failure};
use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

/// The failure of a call that must have failed, and how long the call took.
fn failure(call: impl FnOnce() -> Result<()>) -> (Arc<Failure>, Duration) {
    let began = Instant::now();
    match call() {
        Err(Error::Failed(failure)) => (failure, began.elapsed()),
        other => panic!("expected a failure, got {other:?}"),
    }
}

fn all_reduce(comm: &Communicator) -> Result<()> {
    comm.all_reduce(ReduceOp::Sum, &mut [1u32; 1000])
}

#[test]
fn a_stopped_rank_is_named_as_stopped() {
    let start = |transport| {
        let mut job = Job::new(3, "stop").set("RONDEL_TIMEOUT", 3).set("RONDEL_TRANSPORT", transport);
        job.start_all();
        job
    };
    for job in &mut TRANSPORTS.map(start) {
        for rank in 0..2 {
            let report = job.outcome(rank);
            assert_eq!((report.event.as_str(), report.culprit), ("failed", Some(2)), "{report:?}");
            let said = "rank 2: stopped by a signal or a debugger, has not entered all_reduce #2";
            assert!(report.text.contains(said), "{report:?}");
        }
    }
}

#[test]
fn all_ranks_name_the_one_that_is_stopped_however_far_away_it_is() {
    // In a ring, most wait for a rank that waits itself. One second is as long as a rank waits by default before it asks.
    let mut job = Job::new(6, "stop").set("RONDEL_ALGORITHM", "ring").set("RONDEL_TIMEOUT", 1);
    job.start_all();
    for rank in 0..5 {
        let report = job.outcome(rank);
        assert_eq!((report.event.as_str(), report.culprit), ("failed", Some(5)), "{report:?}");
        assert!(report.text.contains("rank 5: stopped by a signal or a debugger"), "{report:?}");
    }
}

#[test]
fn a_rank_that_was_stopped_for_a_while_is_not_dead() {
    let start = |transport| {
        let mut job = Job::new(3, "for a while")
            .set("RONDEL_SUSPICION", 1)
            .set("RONDEL_HEARTBEAT", 0.25)
            .set("RONDEL_TRANSPORT", transport);
        job.start_all();
        job.await_all("joined");
        job.signal(1, libc::SIGSTOP);
        job
    };
    let jobs = TRANSPORTS.map(start);
    std::thread::sleep(Duration::from_millis(2500));
    for job in &jobs {
        job.signal(1, libc::SIGCONT);
    }
    for mut job in jobs {
        for rank in 0..3 {
            let report = job.outcome(rank);
            assert_eq!(report.event, "ok", "{report:?}");
        }
        job.finish(Duration::from_secs(5));
    }
}

#[test]
fn a_rank_that_computes_is_named_as_alive() {
    let patience = builder().timeout(Duration::from_secs(3));
    ranks_that_stay(3, patience, |comm| {
        all_reduce(comm).unwrap();
        if comm.rank() != 1 {
            let (failure, after) = failure(|| all_reduce(comm));
            assert!(after < stretched(Duration::from_secs(5)), "{after:?}");
            assert_eq!(failure.culprit(), Some(1), "{failure}");
            // Whose deadline ends first tells the other.
            assert!(matches!(failure.cause, Cause::Deadline { .. } | Cause::Reported { .. }), "{failure}");
            let said = failure.to_string();
            assert!(said.contains("rank 1: alive, has not entered all_reduce #2"), "{said}");
        }
    });
}

#[test]
fn a_receive_that_nobody_serves_says_what_its_peer_does() {
    let patience = builder().timeout(Duration::from_secs(3));
    ranks_that_stay(2, patience, |comm| {
        for _ in 0..5 {
            all_reduce(comm).unwrap();
        }
        if comm.rank() == 0 {
            let (failure, _) = failure(|| comm.recv(1, &mut [0u8; 10]));
            let said = failure.to_string();
            assert!(said.contains("rank 1: alive; its last collective is #5"), "{said}");
            assert!(said.contains("recv #1 from rank 1"), "{said}");
        }
    });
}

#[test]
fn a_rank_that_leaves_is_named() {
    for leaver in 0..3 {
        ranks(3, |comm| {
            all_reduce(&comm).unwrap();
            if comm.rank() != leaver {
                let (failure, after) = failure(|| all_reduce(&comm));
                assert_eq!(failure.culprit(), Some(leaver), "{failure}");
                assert!(matches!(failure.cause, Cause::Left { .. }), "{failure}");
                assert!(after < stretched(Duration::from_secs(3)), "{after:?}");
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_a_child_is_named() {
    for is_used in [true, false] {
        ranks_that_stay(3, builder(), |comm| {
            let child = comm.split(Some(0), 0).unwrap().expect("a color was given");
            if is_used {
                all_reduce(&child).unwrap();
            }
            if comm.rank() == 2 {
                drop(child);
            } else {
                let (failure, after) = failure(|| all_reduce(&child));
                assert_eq!(failure.culprit(), Some(2), "{failure}");
                assert!(after < stretched(Duration::from_secs(3)), "{after:?}");
            }
            all_reduce(comm).unwrap();
        });
    }
}

#[test]
fn a_rank_that_left_long_ago_is_named() {
    ranks(3, |comm| {
        let pair = comm.split((comm.rank() < 2).then_some(0), 0).unwrap();
        all_reduce(&comm).unwrap();
        if let Some(pair) = pair {
            // Longer than anybody waits for news of what became of a lane, and the same number of times on both ranks.
            for _ in 0..100 {
                all_reduce(&pair).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            let (failure, after) = failure(|| all_reduce(&comm));
            assert!(matches!(failure.cause, Cause::Left { rank: 2 }), "{failure}");
            assert!(after < stretched(Duration::from_secs(1)), "{after:?}");
            all_reduce(&pair).unwrap();
        }
    });
}

#[test]
fn a_rank_that_has_done_its_part_may_leave() {
    ranks(3, |comm| {
        all_reduce(&comm).unwrap();
        let mut buffer = [comm.rank()];
        match comm.rank() {
            0 => comm.send(1, &buffer).unwrap(),
            1 => {
                // Rank 2 is late for its part, rank 0 has left meanwhile.
                comm.recv(2, &mut buffer).unwrap();
                assert_eq!(buffer, [2]);
                comm.recv(0, &mut buffer).unwrap();
                assert_eq!(buffer, [0]);
            }
            _ => {
                std::thread::sleep(Duration::from_millis(2500));
                comm.send(1, &buffer).unwrap();
            }
        }
    });
}

#[test]
fn abort_from_another_thread_ends_all_ranks() {
    let entered = Barrier::new(3);
    ranks(3, |comm| {
        all_reduce(&comm).unwrap();
        let aborter = comm.aborter();
        entered.wait();
        let began = Instant::now();
        std::thread::scope(|scope| {
            if comm.rank() == 1 {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(200));
                    aborter.abort("the loss is NaN");
                });
            }
            // Rank 2 computes meanwhile, and learns of it when it calls.
            if comm.rank() == 2 {
                std::thread::sleep(Duration::from_millis(700));
            }
            let (failure, _) = failure(|| all_reduce(&comm));
            assert!(began.elapsed() < stretched(Duration::from_millis(1200)), "{:?}", began.elapsed());
            assert_eq!(failure.culprit(), Some(1), "{failure}");
            assert!(failure.to_string().contains("rank 1 aborted: the loss is NaN"), "{failure}");
        });
    });
}

#[test]
fn a_failed_communicator_stays_failed_and_ends_soon() {
    let through = Barrier::new(3);
    ranks(3, |comm| {
        all_reduce(&comm).unwrap();
        // An abort also ends what others have not finished yet.
        through.wait();
        if comm.rank() == 0 {
            comm.aborter().abort("enough");
        }
        failure(|| all_reduce(&comm));
        for _ in 0..3 {
            let (failure, after) = failure(|| all_reduce(&comm));
            assert_eq!(failure.culprit(), Some(0), "{failure}");
            assert!(after < stretched(Duration::from_millis(100)), "{after:?}");
        }
        assert!(comm.failure().is_some());
        let left = Instant::now();
        drop(comm);
        assert!(left.elapsed() < stretched(Duration::from_secs(2)), "{:?}", left.elapsed());
    });
}

#[test]
fn work_of_a_failed_communicator_ends() {
    let through = Barrier::new(2);
    ranks_that_stay(2, builder(), |comm| {
        all_reduce(comm).unwrap();
        through.wait();
        if comm.rank() == 0 {
            let first = comm.start_all_reduce(ReduceOp::Sum, vec![1u32; 300_000]).unwrap();
            let second = comm.start_recv(1, vec![0u8; 10]).unwrap();
            comm.aborter().abort("enough");
            assert!(matches!(first.wait(), Err(Error::Failed(_))));
            drop(second);
            assert!(matches!(comm.start_send(1, vec![0u8; 10]), Err(Error::Failed(_))));
        }
    });
}

#[test]
fn a_failure_of_one_communicator_frees_what_waits_for_its_memory() {
    let through = Barrier::new(2);
    ranks_that_stay(2, builder(), |comm| {
        let child = comm.split(Some(0), 0).unwrap().expect("a color was given");
        all_reduce(&child).unwrap();
        through.wait();
        if comm.rank() == 0 {
            let mut buffer = vec![1u32; 1000];
            let raw = rondel::comm::RawCall {
                collective: rondel::plan::Collective::AllReduce,
                dtype: rondel::DataType::U32,
                op: Some(ReduceOp::Sum),
                count: buffer.len(),
                root: 0,
                send: buffer.as_ptr().cast(),
                recv: buffer.as_mut_ptr().cast(),
            };
            // SAFETY: the buffer outlives both calls, and only they touch it until both are over.
            let (first, second) = unsafe { (child.start_call(raw), comm.start_call(raw)) };
            child.aborter().abort("enough");
            assert!(matches!(child.wait_call(first.unwrap()), Err(Error::Failed(_))));
            comm.wait_call(second.unwrap()).unwrap();
            assert!(buffer.iter().all(|&sum| sum == 2));
        } else {
            all_reduce(comm).unwrap();
        }
    });
}
