//! Reports of made-up jobs.

use super::super::{report::*, *};
use crate::plan::Collective;
use rondel_transport_api::{DataType, ReduceOp};
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1000);

fn all_reduce(seq: u64) -> Call {
    let op = Some(ReduceOp::Sum);
    Call { seq, collective: Collective::AllReduce, dtype: DataType::F32, op, count: 1024, root: 0 }
}

fn to_peer(collective: Collective, seq: u64, peer: Rank) -> Call {
    Call { seq, collective, dtype: DataType::U8, op: None, count: 8, root: peer }
}

fn waiting(seq: u64, peer: Rank, seconds: f64) -> Option<WaitingFor> {
    Some(WaitingFor { seq, step: 3, peer, receiving: true, since: NOW - Duration::from_secs_f64(seconds) })
}

/// A rank of the job's communicator that made these calls, and completed all collectives but an awaited one.
fn rank(rank: Rank, nranks: u32, recent: Vec<Call>, waiting: Option<WaitingFor>) -> RankReport {
    let is_collective = |call: &&Call| !call.collective.is_point_to_point();
    let entered = recent.iter().rfind(is_collective).copied();
    let last = entered.map_or(0, |call| call.seq);
    let completed = if waiting.is_some_and(|waiting| waiting.seq == last) { last - 1 } else { last };
    let status = Status { comm: 1, rank, nranks, entered, completed, waiting, recent };
    RankReport { rank, pid: 4000 + rank, state: ProcessState::Running, statuses: vec![status] }
}

fn job(nranks: u32, ranks: Vec<RankReport>) -> JobReport {
    JobReport { job: 0xabc, nranks, ranks, now: NOW }
}

fn findings(ranks: Vec<RankReport>) -> Vec<String> {
    job(8, ranks).findings()[&1].iter().map(ToString::to_string).collect()
}

#[test]
fn a_job_that_works_is_shown_and_nobody_blamed() {
    let mut ranks = vec![rank(0, 3, vec![all_reduce(1), all_reduce(2)], None), rank(2, 3, vec![], None)];
    ranks[0].statuses[0].completed = 1;
    ranks[1].state = ProcessState::Stopped;
    ranks.push(RankReport { rank: 1, pid: 4001, state: ProcessState::Running, statuses: vec![] });
    let expected = "\
job 0000000000000abc: 3 of 4 ranks are on this host
rank 1 (process 4001, running) has no communicator

communicator 0000000000000001 of 3 ranks
  rank  of job  pid   state    completed  entered                            waits for
  0     0       4000  running  #1         all_reduce #2 (1024 x float, sum)  -
  2     2       4002  stopped  -          -                                  -
  nobody waits
";
    assert_eq!(job(4, ranks).to_string(), expected);
}

#[test]
fn who_has_not_entered_is_found_at_the_end_of_the_chain() {
    let ring = |rank_: Rank| {
        let peer = (rank_ + 7) % 8;
        rank(rank_, 8, vec![all_reduce(811), all_reduce(812)], waiting(812, peer, 10.0 + f64::from(rank_)))
    };
    let mut ranks: Vec<_> = (0..8).map(ring).collect();
    ranks[5] = rank(5, 8, vec![all_reduce(811)], None);
    let report = job(8, ranks.clone());
    let expected = Finding::Awaited {
        rank: 5,
        standing: Standing::NotEntered(ProcessState::Running),
        call: Some(all_reduce(812)),
        waiters: vec![0, 1, 2, 3, 4, 6, 7],
        longest: Duration::from_secs(17),
    };
    assert_eq!(report.findings()[&1], [expected]);
    let text = report.to_string();
    let line = "\n  0     0       4000  running  #811       all_reduce #812 (1024 x float, sum)  \
                rank 7 to send for 10.0 s (step 4 of #812)\n";
    assert!(text.contains(line), "{text}");
    let line =
        "\n  => rank 5 is alive and has not entered all_reduce #812; 7 ranks wait for it, for 17.0 s\n";
    assert!(text.ends_with(line), "{text}");

    ranks[5].state = ProcessState::Stopped;
    assert_eq!(
        findings(ranks.clone()),
        ["rank 5 is stopped (by a signal or a debugger) and has not entered all_reduce #812; \
          7 ranks wait for it, for 17.0 s"]
    );
    ranks[5] = ring(5);
    ranks[5].state = ProcessState::Dead;
    assert_eq!(
        findings(ranks.clone()),
        ["rank 5 is dead in all_reduce #812; 7 ranks wait for it, for 17.0 s"]
    );
    ranks.remove(5);
    assert_eq!(
        findings(ranks),
        ["rank 5 shows nothing on this host and is awaited in all_reduce #812: look where it runs; \
          7 ranks wait for it, for 17.0 s"]
    );
}

#[test]
fn a_rank_that_is_held_up_elsewhere_is_not_to_blame() {
    // 0 waits for 1 in #2; 1 has not entered #2, since it waits for 2 in #1; 2 is at work there.
    let mut ranks = vec![
        rank(0, 3, vec![all_reduce(1), all_reduce(2)], waiting(2, 1, 2.0)),
        rank(1, 3, vec![all_reduce(1)], waiting(1, 2, 3.0)),
        rank(2, 3, vec![all_reduce(1)], None),
    ];
    ranks[2].statuses[0].completed = 0;
    let at_work = "rank 2 is alive, in all_reduce #1 and waits for nobody: it is at work, or what it sent is on \
                   its way; ranks 0, 1 wait for it, for 3.0 s";
    assert_eq!(findings(ranks.clone()), [at_work]);
    ranks[2].statuses[0].completed = 1;
    let done = "rank 2 is alive and has completed all_reduce #1: what it sent is on its way, or lost; \
                ranks 0, 1 wait for it, for 3.0 s";
    assert_eq!(findings(ranks), [done]);
}

#[test]
fn calls_that_differ_are_named_with_both() {
    let broadcast = Call { collective: Collective::Broadcast, op: None, root: 2, ..all_reduce(7) };
    let agree = |rank_, peer| rank(rank_, 4, vec![all_reduce(6), all_reduce(7)], waiting(7, peer, 1.5));
    let different = rank(3, 4, vec![all_reduce(6), broadcast, all_reduce(8)], waiting(7, 2, 1.0));
    let mut ranks = vec![agree(0, 3), agree(1, 0), agree(2, 1), different];
    ranks[3].statuses[0].completed = 6;
    assert_eq!(
        findings(ranks),
        [
            "rank 3 called broadcast #7 (1024 x float, root 2) where ranks 0, 1, 2 called all_reduce #7 \
             (1024 x float, sum): all ranks must make the same calls in the same order",
            "4 ranks wait for each other: rank 0 in all_reduce #7, rank 3 in broadcast #7, rank 2 in all_reduce #7, \
             rank 1 in all_reduce #7; a message is on its way, or the calls do not match"
        ]
    );
    // Of equal camps the one with rank 0 counts as right; a scalar that did not survive is no difference.
    let scale = |scalar| Some(ReduceOp::PreMulSum(rondel_transport_api::Scalar::Float(scalar)));
    let count = Call { count: 1000, ..all_reduce(2) };
    let ranks = vec![
        rank(0, 2, vec![Call { op: scale(f64::NAN), ..all_reduce(1) }, all_reduce(2)], None),
        rank(1, 2, vec![Call { op: scale(2.0), ..all_reduce(1) }, count], None),
    ];
    assert_eq!(
        findings(ranks),
        [
            "rank 1 called all_reduce #2 (1000 x float, sum) where rank 0 called all_reduce #2 (1024 x float, sum): \
          all ranks must make the same calls in the same order"
        ]
    );
}

#[test]
fn sends_and_receives_are_matched_per_peer() {
    let recv = |seq, peer| to_peer(Collective::Recv, seq, peer);
    let send = |seq, peer| to_peer(Collective::Send, seq, peer);
    // 0 and 2 wait for 1, whose numbers for other peers do not count.
    let waiters = [
        rank(0, 3, vec![all_reduce(9), recv(3, 1)], waiting(3, 1, 4.0)),
        rank(2, 3, vec![all_reduce(9), send(3, 1)], waiting(3, 1, 5.0)),
    ];
    let mut ranks = waiters.to_vec();
    ranks.insert(1, rank(1, 3, vec![all_reduce(9), send(7, 2), send(2, 0)], None));
    assert_eq!(
        findings(ranks),
        [
            "rank 1 is alive and has not entered send #3 to rank 0; rank 0 waits for it, for 4.0 s",
            "rank 1 is alive and has not entered recv #3 from rank 2; rank 2 waits for it, for 5.0 s"
        ]
    );
    let mut ranks = waiters.to_vec();
    ranks.insert(1, rank(1, 3, vec![all_reduce(9), send(3, 0)], waiting(3, 0, 1.0)));
    assert_eq!(
        findings(ranks),
        [
            "ranks 0, 1 wait for each other: rank 0 in recv #3 from rank 1, rank 1 in send #3 to rank 0; a message is \
          on its way, or the calls do not match; held up by that: rank 2"
        ]
    );
}

#[test]
fn any_statuses_make_a_report() {
    let ranks = (0..4).map(|r| {
        let mut report = rank(r, 4, vec![all_reduce(1)], waiting(u64::MAX, r, 0.0));
        report.statuses[0].waiting = Some(WaitingFor { since: Duration::MAX, ..waiting(9, r, 0.0).unwrap() });
        report
    });
    let text = job(4, ranks.collect()).to_string();
    assert!(
        text.contains("rank 0 wait for each other: rank 0 in a call that it does not remember"),
        "{text}"
    );
}
