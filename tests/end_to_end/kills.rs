//! Ranks that are killed at random moments. `RONDEL_SOAK=1` makes more of them.

use crate::{job::Job, report::stretched, threads::TRANSPORTS};
use std::time::Duration;

/// A seeded sequence, so that a round can be named by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % bound
    }
}

#[test]
fn survivors_name_the_dead_rank() {
    let rounds = if std::env::var_os("RONDEL_SOAK").is_some() { 200 } else { 30 };
    let mut slowest = Duration::ZERO;
    for seed in 0..rounds {
        slowest = slowest.max(kill_one(seed));
    }
    eprintln!("{rounds} ranks killed; the slowest survivor knew after {slowest:?}");
}

/// How long it took until every survivor knew.
fn kill_one(seed: u64) -> Duration {
    let mut random = Random(seed);
    let nranks = 2 + random.below(4) as u32;
    let victim = random.below(u64::from(nranks)) as u32;
    let transport = TRANSPORTS[seed as usize % TRANSPORTS.len()];
    let mut job = Job::new(nranks, "forever").set("RONDEL_TRANSPORT", transport);
    job.start_all();
    job.await_all("working");
    std::thread::sleep(Duration::from_micros(random.below(30_000)));
    let killed = job.signal(victim, libc::SIGKILL);
    let mut slowest = Duration::ZERO;
    for rank in (0..nranks).filter(|&rank| rank != victim) {
        let report = job.outcome(rank);
        let after = report.at.saturating_sub(killed);
        let named = (report.event.as_str(), report.culprit) == ("failed", Some(victim));
        assert!(
            named && after < stretched(Duration::from_secs(2)),
            "seed {seed}: rank {victim} of {nranks} over {transport} was killed, rank {rank} said after {after:?}: {report:?}"
        );
        let leaving: u64 = job.await_event(rank, "left").text.parse().expect("microseconds");
        assert!(
            Duration::from_micros(leaving) < stretched(Duration::from_secs(2)),
            "seed {seed}: leaving took rank {rank} {leaving} us"
        );
        slowest = slowest.max(after);
    }
    job.finish(Duration::from_secs(4));
    slowest
}
