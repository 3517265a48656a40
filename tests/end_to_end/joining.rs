//! Jobs that cannot come together: what each rank is told.

use crate::{job::Job, report::stretched, threads::builder};
use rondel::{Error, Rendezvous, bootstrap::UniqueId, error::SetupError, plan::Rank};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

fn turned_away(job: &mut Job, rank: Rank, words: &[&str]) {
    let report = job.outcome(rank);
    assert_eq!(report.event, "setup", "{report:?}");
    assert!(words.iter().all(|word| report.text.contains(word)), "expected {words:?}: {report:?}");
}

#[test]
fn ranks_that_do_not_come_are_listed() {
    let mut job = Job::new(5, "join").set("RONDEL_JOIN_TIMEOUT", 1.5);
    for rank in [0, 2, 4] {
        job.start_rank(rank, &[]);
    }
    let place = format!("127.0.0.1:{}", job.port);
    for rank in [0, 2, 4] {
        turned_away(&mut job, rank, &["2 of 5 ranks did not join", "missing: 1, 3", &place]);
    }
    job.finish(Duration::from_secs(5));
}

#[test]
fn without_rank_0_nobody_joins() {
    let mut job = Job::new(2, "join").set("RONDEL_JOIN_TIMEOUT", 1);
    job.start_rank(1, &[]);
    turned_away(&mut job, 1, &["rank 1 of 2", "Start rank 0"]);
    job.finish(Duration::from_secs(5));
}

#[test]
fn a_rank_that_is_taken_twice() {
    let mut job = Job::new(3, "join").set("RONDEL_JOIN_TIMEOUT", 20);
    job.start_rank(0, &[]);
    job.start_rank(1, &[]);
    job.start_rank(1, &[]);
    turned_away(&mut job, 1, &["rank 1 is taken twice", "Give every process a rank of its own"]);
    job.start_rank(2, &[]);
    for rank in [0, 2] {
        assert_eq!(job.outcome(rank).event, "ok");
    }
    job.finish(Duration::from_secs(5));
}

#[test]
fn a_wrong_key_and_two_jobs_at_one_address() {
    let mut job = Job::new(2, "join").set("RONDEL_JOIN_TIMEOUT", 20);
    job.start_rank(0, &[]);
    let mut stranger = Job::new(2, "join").set("RONDEL_JOIN_TIMEOUT", 20);
    stranger.port = job.port;
    // Let the first job have the port.
    std::thread::sleep(Duration::from_millis(500));
    for rank in 0..2 {
        stranger.start_rank(rank, &[("RONDEL_KEY", "another")]);
        turned_away(&mut stranger, rank, &["cannot join at", "key", "give each its own address"]);
    }
    stranger.finish(Duration::from_secs(5));
    job.start_rank(1, &[]);
    for rank in 0..2 {
        assert_eq!(job.outcome(rank).event, "ok");
    }
    job.finish(Duration::from_secs(5));
}

#[test]
fn ranks_that_were_told_different_numbers_of_ranks() {
    let mut job = Job::new(2, "join").set("RONDEL_JOIN_TIMEOUT", 20);
    job.start_rank(0, &[]);
    job.start_rank(1, &[("RONDEL_NRANKS", "3")]);
    turned_away(&mut job, 1, &["there are 3 ranks", "2", "give every rank the same number"]);
}

#[test]
fn joining_can_be_aborted() {
    let id = UniqueId::generate(None, Some("lo"), None).expect("an id");
    let rendezvous = Rendezvous::unique_id(&id, 1, 2).expect("a rank in range");
    let abort = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            abort.store(true, Ordering::Relaxed);
        });
        let error = builder().abort_flag(abort.clone()).connect(rendezvous).expect_err("rank 0 is not there");
        let is_aborted = matches!(&error, Error::Setup(why) if matches!(**why, SetupError::Aborted));
        assert!(is_aborted, "{error}");
    });
    assert!(began.elapsed() < stretched(Duration::from_secs(1)), "{:?}", began.elapsed());
}
