//! What a rank of a job says on its standard output, one line each, and how it is read there.

use rondel::{Error, plan::Rank};
use std::{io::Write, time::Duration};

/// Begins every report: the test harness writes to the same stream.
const MARK: &str = "@@report|";

/// Something that a rank did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) rank: Rank,
    /// On the clock that all processes of the host share.
    pub(crate) at: Duration,
    pub(crate) event: String,
    /// The rank that a failure names.
    pub(crate) culprit: Option<Rank>,
    /// An error's sentence, or whatever the event is about.
    pub(crate) text: String,
}

impl Report {
    pub(crate) fn new(rank: Rank, event: &str, text: impl ToString) -> Self {
        Self { rank, at: monotonic_now(), event: event.into(), culprit: None, text: text.to_string() }
    }
    /// How a call went: `ok`, `usage`, `setup` or `failed`.
    pub(crate) fn outcome<T>(rank: Rank, outcome: &Result<T, Error>) -> Self {
        match outcome {
            Ok(_) => Self::new(rank, "ok", ""),
            Err(Error::Failed(failure)) => {
                Self { culprit: failure.culprit(), ..Self::new(rank, "failed", failure) }
            }
            Err(error @ Error::Setup(_)) => Self::new(rank, "setup", error),
            Err(error) => Self::new(rank, "usage", error),
        }
    }
    pub(crate) fn send(&self) {
        let culprit = self.culprit.map_or("-".to_owned(), |rank| rank.to_string());
        let text = self.text.replace('\n', " ");
        let line = format!("\n{MARK}{}|{}|{}|{culprit}|{text}\n", self.rank, self.at.as_nanos(), self.event);
        // One write, so that lines of several threads do not mix. A reader that has gone ends nothing here.
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix(MARK)?.splitn(5, '|');
        Some(Self {
            rank: fields.next()?.parse().ok()?,
            at: Duration::from_nanos(fields.next()?.parse().ok()?),
            event: fields.next()?.into(),
            culprit: fields.next()?.parse().ok(),
            text: fields.next()?.into(),
        })
    }
}

/// The clock that reports carry.
pub(crate) fn monotonic_now() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A bound that holds where every thread gets a CPU, stretched on a machine that others keep busy.
pub(crate) fn stretched(bound: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // These tests alone bring about some load of their own.
    bound.mul_f64((load / cpus as f64 / 4.0).max(1.0))
}
