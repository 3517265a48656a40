//! Ranks that call different things, abort, leave or never come.

use crate::{
    buffers::Buffers,
    simulation::{Cluster, Started, WORLD, route},
};
use rondel::{
    DataType, Error, ReduceOp, algo,
    engine::{EngineConfig, Route},
    error::{Cause, Failure},
    plan::{Collective, Shape},
};
use rondel_mem::MemConfig;
use std::{sync::Arc, time::Duration};

/// Nothing is buffered: whoever sends waits for whoever receives.
const RENDEZVOUS: MemConfig = MemConfig { eager: 0, window: 16, max_message: u32::MAX, reduces: true };

/// The first or the last algorithm that does a collective.
fn choose(last: bool) -> impl Fn(Collective, u64) -> Route + Clone + Send + 'static {
    move |collective, _| {
        let mut all = algo::ALL.iter().filter(|a| (a.supports)(collective, &Shape::flat(3)));
        route(if last { all.next_back() } else { all.next() }.expect("some algorithm does it"))
    }
}

fn cluster(mem: MemConfig, last: bool) -> Cluster {
    Cluster::new(&Shape::flat(3), mem, choose(last))
}

fn buffers(collective: Collective, count: usize) -> Buffers {
    Buffers::new(collective, &Shape::flat(3), DataType::I64, count, false, 0)
}

/// The failures of those that failed; all must be over within `limit`.
fn failures(cluster: &mut Cluster, started: &[Started], limit: Duration) -> Vec<(usize, Arc<Failure>)> {
    cluster.finish_within(started, limit);
    let failure = |&started: &Started| match cluster.outcome(started) {
        Ok(()) => None,
        Err(Error::Failed(failure)) => Some((started.rank, failure)),
        Err(other) => panic!("{other}"),
    };
    started.iter().filter_map(failure).collect()
}

/// `odd` calls one thing, the others another one.
fn disagree(cluster: &mut Cluster, odd: usize, one: &mut Buffers, other: &mut Buffers) -> Vec<Started> {
    let rest: Vec<usize> = (0..3).filter(|&rank| rank != odd).collect();
    let mut started = cluster.submit_some(one, ReduceOp::Sum, &[odd]);
    started.extend(cluster.submit_some(other, ReduceOp::Sum, &rest));
    started
}

#[test]
fn every_pair_of_different_collectives_is_named() {
    for one in Collective::of_all_ranks() {
        for other in Collective::of_all_ranks().filter(|&other| other != one) {
            for (odd, eager, last) in (0..12).map(|k| (k % 3, [0, 1024][k / 3 % 2], k / 6 == 1)) {
                let what = format!("rank {odd} {}, others {}, eager {eager}", one.name(), other.name());
                let mut cluster = cluster(MemConfig { eager, ..RENDEZVOUS }, last);
                let (mut ours, mut theirs) = (buffers(one, 20), buffers(other, 20));
                let started = disagree(&mut cluster, odd, &mut ours, &mut theirs);
                let failures = failures(&mut cluster, &started, Duration::from_secs(5));
                // Where messages are buffered, a rank may be through before anybody could know.
                assert!(!failures.is_empty() || eager > 0, "{what}: nobody noticed");
                for (rank, failure) in failures {
                    let Cause::Mismatch { rank: a, call, peer: b, peer_call: Some(theirs) } = &failure.cause
                    else {
                        panic!("{what}: rank {rank} says {failure}");
                    };
                    assert!((*a as usize == odd) != (*b as usize == odd), "{what}: {failure}");
                    let odd_one = if *a as usize == odd { call } else { theirs };
                    assert_eq!(odd_one.collective, one, "{what}: {failure}");
                }
            }
        }
    }
}

#[test]
fn calls_that_differ_in_a_detail_are_named() {
    let shape = Shape::flat(3);
    let new = |collective, dtype, count, root| {
        Buffers::new(collective, &shape.clone().with_root(root), dtype, count, false, 0)
    };
    for collective in Collective::of_all_ranks().filter(|&c| c != Collective::Barrier) {
        let mut differing = vec![(DataType::I64, 21, 0), (DataType::I32, 20, 0), (DataType::I64, 0, 0)];
        if collective.has_root() {
            differing.push((DataType::I64, 20, 1));
        }
        for (odd, (dtype, count, root)) in (0..3).flat_map(|odd| differing.iter().map(move |d| (odd, *d))) {
            let mut cluster = cluster(RENDEZVOUS, false);
            let mut ours = new(collective, dtype, count, root);
            let mut theirs = new(collective, DataType::I64, 20, 0);
            let started = disagree(&mut cluster, odd, &mut ours, &mut theirs);
            let failures = failures(&mut cluster, &started, Duration::from_secs(5));
            assert!(!failures.is_empty(), "{}", collective.name());
            for (_, failure) in failures {
                let said = failure.to_string();
                assert!(matches!(failure.cause, Cause::Mismatch { .. }), "{said}");
                let detail = if root == 1 { "root 1)".to_owned() } else { format!("({count} x {dtype}") };
                assert!(said.contains(&detail) && said.contains("(20 x int64"), "{said}");
            }
        }
    }
    let mut cluster = cluster(RENDEZVOUS, false);
    let mut all = buffers(Collective::AllReduce, 20);
    let mut started = cluster.submit_some(&mut all, ReduceOp::Sum, &[0, 1]);
    started.extend(cluster.submit_some(&mut all, ReduceOp::Max, &[2]));
    for (_, failure) in failures(&mut cluster, &started, Duration::from_secs(5)) {
        let said = failure.to_string();
        assert!(said.contains("sum") && said.contains("max"), "{said}");
    }
}

#[test]
fn a_mismatch_that_nobody_explains_is_still_one() {
    for answers_after in [Some(Duration::from_millis(800)), Some(Duration::from_secs(20)), None] {
        let mut cluster = cluster(RENDEZVOUS, false);
        cluster.answers_after = answers_after;
        let (mut ours, mut theirs) = (buffers(Collective::AllReduce, 20), buffers(Collective::AllReduce, 21));
        let started = disagree(&mut cluster, 1, &mut ours, &mut theirs);
        let failures = failures(&mut cluster, &started, Duration::from_secs(3));
        assert_eq!(failures.len(), 3);
        for (_, failure) in failures {
            let Cause::Mismatch { peer_call, .. } = &failure.cause else { panic!("{failure}") };
            let in_time = answers_after.is_some_and(|after| after < Duration::from_secs(1));
            assert_eq!(peer_call.is_some(), in_time, "{failure}");
        }
    }
}

#[test]
fn an_abort_reaches_everybody() {
    for collective in Collective::of_all_ranks() {
        for aborts in 0..3 {
            let mut cluster = cluster(RENDEZVOUS, false);
            let waiting: Vec<usize> = (0..3).filter(|&rank| rank != aborts).collect();
            let mut buffers = buffers(collective, 50);
            let started = cluster.submit_some(&mut buffers, ReduceOp::Sum, &waiting);
            cluster.idle(Duration::from_millis(100));
            let comm = cluster.comm(WORLD, aborts);
            let late: Vec<Started> =
                started.into_iter().filter(|&started| !cluster.is_over(started)).collect();
            cluster.engines[aborts].abort(comm, "no more input");
            for (rank, failure) in failures(&mut cluster, &late, Duration::from_millis(100)) {
                assert_eq!(failure.culprit(), Some(aborts as u32), "rank {rank}: {failure}");
                assert!(failure.to_string().contains("no more input"), "{failure}");
            }
            let mut more = Buffers::new(collective, &Shape::flat(3), DataType::I64, 5, false, 0);
            let again = cluster.submit(WORLD, aborts, more.submission(aborts, ReduceOp::Sum));
            assert!(matches!(again, Err(Error::Failed(_))), "{again:?}");
        }
    }
}

#[test]
fn leaving_while_others_wait_is_a_failure_that_names_the_rank() {
    // It leaves after they began to wait, just before, or long before.
    for idle in [None, Some(Duration::ZERO), Some(Duration::from_secs(30))] {
        let mut cluster = cluster(MemConfig::default(), false);
        let mut first = buffers(Collective::AllReduce, 10);
        let started = cluster.submit_all(&mut first, ReduceOp::Sum);
        cluster.finish(&started);
        let mut second = buffers(Collective::AllReduce, 10);
        let mut waiting = Vec::new();
        if idle.is_none() {
            waiting = cluster.submit_some(&mut second, ReduceOp::Sum, &[0, 2]);
        }
        cluster.leave(1);
        if let Some(idle) = idle {
            cluster.idle(idle);
            waiting = cluster.submit_some(&mut second, ReduceOp::Sum, &[0, 2]);
        }
        let failures = failures(&mut cluster, &waiting, Duration::from_secs(2));
        assert_eq!(failures.len(), 2);
        for (_, failure) in failures {
            assert!(matches!(failure.cause, Cause::Left { rank: 1 }), "idle {idle:?}: {failure}");
        }
    }
}

#[test]
fn whoever_has_done_its_part_may_leave() {
    let mut cluster = cluster(RENDEZVOUS, false);
    let mut buffers = buffers(Collective::Broadcast, 10);
    let early = cluster.submit_some(&mut buffers, ReduceOp::Sum, &[0, 1]);
    cluster.finish(&early[..1]);
    assert!(!cluster.is_over(early[1]), "rank 1 passes on to rank 2, which has not come");
    cluster.leave(0);
    cluster.idle(Duration::from_secs(5));
    let late = cluster.submit_some(&mut buffers, ReduceOp::Sum, &[2]);
    cluster.finish_within(&[early[1], late[0]], Duration::from_secs(1));
    for started in [early[0], early[1], late[0]] {
        cluster.outcome(started).unwrap();
    }
    buffers.check("broadcast");
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    for collective in Collective::of_all_ranks() {
        let config = EngineConfig { timeout: Duration::from_secs(5), ..EngineConfig::default() };
        let mut cluster = Cluster::with_config(&Shape::flat(3), RENDEZVOUS, config, choose(true));
        let mut buffers = buffers(collective, 10);
        let started = cluster.submit_some(&mut buffers, ReduceOp::Sum, &[0, 2]);
        for (_, failure) in failures(&mut cluster, &started, Duration::from_secs(6)) {
            assert!(matches!(failure.cause, Cause::Deadline { .. }), "{failure}");
            assert_eq!(failure.culprit(), Some(1), "{failure}");
            assert!(failure.to_string().contains("has not entered"), "{failure}");
        }
    }
}

#[test]
fn an_operation_that_waited_for_the_memory_of_a_failed_one_goes_on() {
    let mut cluster = cluster(RENDEZVOUS, false);
    let twin = cluster.add_communicator(&[0, 1, 2], &Shape::flat(3), choose(false));
    let mut buffers = buffers(Collective::AllGather, 10);
    // Ranks 0 and 1 wait for rank 2 with buffers that the next call uses too.
    let first = cluster.submit_some(&mut buffers, ReduceOp::Sum, &[0, 1]);
    cluster.idle(Duration::from_millis(100));
    let second = cluster.submit_on(twin, &mut buffers, ReduceOp::Sum);
    cluster.idle(Duration::from_millis(100));
    let comm = cluster.comm(WORLD, 2);
    cluster.engines[2].abort(comm, "changed its mind");
    assert_eq!(failures(&mut cluster, &first, Duration::from_secs(1)).len(), 2);
    assert!(failures(&mut cluster, &second, Duration::from_secs(1)).is_empty());
    buffers.check("the second call");
}
