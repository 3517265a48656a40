//! What a job costs: the time to start, memory, and nothing that stays behind.

use crate::{
    job::Job,
    report::{monotonic_now, stretched},
};
use std::time::Duration;

#[test]
fn many_local_ranks_start_soon() {
    const RANKS: u32 = 32;
    let began = monotonic_now();
    let mut job = Job::start(RANKS, "join");
    let joined = (0..RANKS).map(|rank| job.await_event(rank, "joined").at).max().unwrap_or_default();
    let took = joined.saturating_sub(began);
    eprintln!("{RANKS} local ranks joined within {took:?}");
    // On an idle machine it is a tenth of this.
    assert!(took < stretched(Duration::from_secs(10)), "{took:?}");
    for rank in 0..RANKS {
        assert_eq!(job.outcome(rank).event, "ok");
    }
    job.finish(Duration::from_secs(10));
}

#[test]
fn a_communicator_needs_little_memory() {
    const RANKS: u32 = 8;
    let mut job = Job::start(RANKS, "memory");
    let mut bytes_of =
        |rank, event| -> u64 { job.await_event(rank, event).text.parse().expect("a number of bytes") };
    for rank in 0..RANKS {
        let (counted, grown) = (bytes_of(rank, "memory"), bytes_of(rank, "resident"));
        eprintln!("rank {rank}: {counted} bytes counted, {grown} more resident");
        assert!(counted > 0 && counted < 8 << 20, "rank {rank} holds {counted} bytes");
        // Beside the buffers: code that was touched first, the allocator's slack, thread stacks.
        assert!(grown < 16 << 20, "rank {rank} grew by {grown} bytes");
    }
    for rank in 0..RANKS {
        assert_eq!(job.outcome(rank).event, "ok");
    }
    job.finish(Duration::from_secs(5));
}
