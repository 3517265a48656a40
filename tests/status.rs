//! `rondel status` beside a job that runs, as users run both.

use rondel::engine::status::{Listing, Process, ProcessState, SocketDirectory};
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// A job of three ranks that would run for hours, in a runtime directory of its own. Both end with it.
struct Job {
    launcher: Child,
    runtime_dir: PathBuf,
}

impl Job {
    fn start() -> Self {
        let runtime_dir = std::env::temp_dir().join(format!("rondel-status-{}", std::process::id()));
        std::fs::create_dir(&runtime_dir).unwrap();
        let launcher = command("bench all_reduce --ranks 3 -n 100000000 -b 8 -e 8", &runtime_dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { launcher, runtime_dir }
    }
    /// Its processes by rank, once all are there and at work.
    fn processes(&self) -> Vec<Process> {
        let directory = SocketDirectory::at(self.runtime_dir.join("rondel")).unwrap();
        eventually("all ranks show that they have completed something", || {
            let processes = Listing::of(&directory).processes;
            (processes.len() == 3 && processes.iter().all(|process| completed(process) > 0))
                .then_some(processes)
        })
    }
    /// What `rondel status` says about it.
    fn status(&self, job: u64) -> String {
        let output = command(&format!("status --job {job:016x}"), &self.runtime_dir).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Its ranks end with it, also when they are stopped.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        let _ = std::fs::remove_dir_all(&self.runtime_dir);
    }
}

fn command(line: &str, runtime_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rondel"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RONDEL_")) {
        command.env_remove(name);
    }
    command.env("XDG_RUNTIME_DIR", runtime_dir);
    command
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

fn completed(process: &Process) -> u64 {
    process.view.read_all().first().map_or(0, |status| status.completed)
}

fn signal(process: &Process, signal: i32) {
    // SAFETY: a signal to a rank of our own job, whose launcher has not been waited for.
    assert_eq!(unsafe { libc::kill(process.pid as libc::pid_t, signal) }, 0);
}

#[test]
fn a_job_is_shown_with_the_one_that_holds_it_up() {
    let job = Job::start();
    let processes = job.processes();
    let id = processes[0].view.owner().job;
    let text = job.status(id);
    assert!(text.starts_with(&format!("job {id:016x}: 3 of 3 ranks are on this host\n")), "{text}");
    for process in &processes {
        assert!(text.contains(&format!("{}  running", process.pid)), "{text}");
    }

    signal(&processes[1], libc::SIGSTOP);
    let text = eventually("both others wait for the stopped one", || {
        let text = job.status(id);
        text.contains("ranks 0, 2 wait for it").then_some(text)
    });
    assert_eq!(processes[1].state(), ProcessState::Stopped);
    assert!(text.contains(&format!("{}  stopped", processes[1].pid)), "{text}");
    let findings: Vec<&str> = text.lines().filter(|line| line.starts_with("  => ")).collect();
    let culprit = "  => rank 1 is stopped (by a signal or a debugger) ";
    assert!(matches!(findings[..], [finding] if finding.starts_with(culprit)), "{text}");
    assert!(text.lines().any(|line| line.contains("rank 1 to send for ")), "{text}");

    let before = completed(&processes[1]);
    signal(&processes[1], libc::SIGCONT);
    eventually("the job goes on", || (completed(&processes[0]) > before + 1000).then_some(()));
    let text = eventually("nobody waits", || {
        let text = job.status(id);
        text.contains("nobody waits").then_some(text)
    });
    assert!(!text.contains("stopped"), "{text}");
}
