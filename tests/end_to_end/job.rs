//! A job of processes. Each is this test binary again, which runs nothing but [`crate::worker`].

use crate::{
    report::{Report, monotonic_now, stretched},
    worker::SCENARIO,
};
use rondel::plan::Rank;
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicU16, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

/// No rank of any test takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes that are killed, and waited for, when this is dropped.
pub(crate) struct Job {
    scenario: String,
    nranks: u32,
    pub(crate) port: u16,
    settings: Vec<(String, String)>,
    ranks: Vec<(Rank, Child)>,
    sender: Sender<Report>,
    reports: Receiver<Report>,
    seen: Vec<Report>,
}

impl Job {
    /// A job whose ranks are still to be started.
    pub(crate) fn new(nranks: u32, scenario: &str) -> Self {
        let (sender, reports) = channel();
        Self {
            scenario: scenario.into(),
            nranks,
            port: free_port(),
            settings: Vec::new(),
            ranks: Vec::new(),
            sender,
            reports,
            seen: Vec::new(),
        }
    }
    /// A job whose ranks all run.
    pub(crate) fn start(nranks: u32, scenario: &str) -> Self {
        let mut job = Self::new(nranks, scenario);
        job.start_all();
        job
    }
    /// Sets a variable for the ranks that are started afterwards.
    pub(crate) fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.into(), value.to_string()));
        self
    }
    pub(crate) fn start_all(&mut self) {
        for rank in 0..self.nranks {
            self.start_rank(rank, &[]);
        }
    }
    /// Starts one process with further variables.
    pub(crate) fn start_rank(&mut self, rank: Rank, settings: &[(&str, &str)]) {
        let program = std::env::current_exe().expect("the path of this test");
        let mut child = Command::new(program)
            .args(["worker::worker", "--exact", "--nocapture", "--test-threads=1"])
            .env_clear()
            .env("RONDEL_ROOT", format!("127.0.0.1:{}", self.port))
            .env("RONDEL_NRANKS", self.nranks.to_string())
            .env("RONDEL_RANK", rank.to_string())
            .env("RONDEL_KEY", "end to end")
            .env(SCENARIO, &self.scenario)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process for a rank");
        let output = child.stdout.take().expect("its output is a pipe");
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for report in lines.filter_map(|line| Report::parse(&line)) {
                // A job that is over reads no more.
                let _ = sender.send(report);
            }
        });
        self.ranks.push((rank, child));
    }

    /// Sends a signal to a rank. Returns when.
    pub(crate) fn signal(&self, rank: Rank, signal: i32) -> Duration {
        let (_, child) = self.ranks.iter().find(|(r, _)| *r == rank).expect("it was started");
        let at = monotonic_now();
        // SAFETY: takes no pointers; the process is our child and not yet waited for, so the number is its own.
        let answer = unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        assert_eq!(answer, 0, "signal {signal} to rank {rank}");
        at
    }

    /// Waits until a rank has reported an event, and returns the report.
    pub(crate) fn await_event(&mut self, rank: Rank, event: &str) -> Report {
        let what = format!("rank {rank} to report {event:?}");
        self.await_that(&what, |report| report.rank == rank && report.event == event)
    }
    /// Waits until every rank has reported an event.
    pub(crate) fn await_all(&mut self, event: &str) {
        for rank in 0..self.nranks {
            self.await_event(rank, event);
        }
    }
    fn await_that(&mut self, what: &str, is: impl Fn(&Report) -> bool) -> Report {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.seen.iter().find(|report| is(report)) {
                return found.clone();
            }
            match self.reports.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(report) => self.seen.push(report),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("waited {PATIENCE:?} for {what} in {:?}; reports: {:#?}", self.scenario, self.seen)
                }
            }
        }
    }

    /// The report of how a rank's part ended: `ok`, `usage`, `setup` or `failed`.
    pub(crate) fn outcome(&mut self, rank: Rank) -> Report {
        let ends = ["ok", "usage", "setup", "failed"];
        let is = |report: &Report| report.rank == rank && ends.contains(&report.event.as_str());
        self.await_that(&format!("rank {rank} to end"), is)
    }

    /// Waits until all processes have ended by themselves, at most for `bound`.
    pub(crate) fn finish(mut self, bound: Duration) {
        let end = Instant::now() + stretched(bound);
        for (rank, child) in &mut self.ranks {
            while child.try_wait().expect("a child can be waited for").is_none() {
                assert!(
                    Instant::now() < end,
                    "the process of rank {rank} remains after {bound:?} in {:?}; reports: {:#?}",
                    self.scenario,
                    self.seen
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (_, child) in &mut self.ranks {
            // One that has ended needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port that nobody listens on, outside the range that the kernel takes ports for connections from.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 15_000;
    const PORTS: u16 = 15_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = (std::process::id() % 500) as u16 * 30;
    for _ in 0..PORTS {
        let port = FIRST + own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
