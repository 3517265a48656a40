//! Starts the local ranks of a run, and looks after them.

use super::{
    args::Member,
    shared::{Reported, Shared, UNIQUE_ID_BYTES},
};
use crate::{signals::Signals, stop::Stop};
use rondel::bootstrap::UniqueId;
use std::{
    collections::BTreeMap,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// The exit status of a rank that has seen wrong values, and of the whole run then.
pub(crate) const WRONG: u8 = 1;
/// How long the others may take to notice that a rank has failed, and to say what they know.
const GRACE: Duration = Duration::from_millis(2500);
/// How long ranks may take to end after they were told to.
const LAST_GRACE: Duration = Duration::from_millis(500);
/// How long rank 0 may take to write what was measured before a signal came.
const SIGNAL_GRACE: Duration = Duration::from_secs(2);
/// How often ranks are looked at after one has failed.
const TICK: Duration = Duration::from_millis(10);

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// All was right.
    Done,
    /// All was done, but values were wrong.
    Wrong,
    /// It gave up because another rank had failed.
    Gave,
    /// It failed and said why.
    Failed(String),
    /// It tidied up after this signal, or nobody reads its output any more.
    Signalled(i32),
    /// It ended in some other way.
    Died(String),
    /// It was killed by us, after another one had failed.
    Killed,
}

/// Runs `nranks` local ranks of the present command line. The answer is the exit status.
pub(crate) fn run(nranks: u32) -> Result<u8, Stop> {
    let refused = |what: &str, e: io::Error| Stop::Failed(format!("cannot {what}: {e}"));
    let signals = Signals::block(&[libc::SIGCHLD]).map_err(|e| refused("block signals", e))?;
    let shared = Shared::create(nranks).map_err(|e| refused("share memory with the ranks", e))?;
    let loopback = Some("=lo");
    let id = UniqueId::generate(None, loopback, None)
        .or_else(|_| UniqueId::generate(None, None, None))
        .map_err(|e| Stop::Failed(e.to_string()))?;
    const { assert!(UniqueId::SIZE == UNIQUE_ID_BYTES) };
    shared.set_unique_id(&id.to_bytes());
    let mut ranks = Ranks { shared: &shared, running: BTreeMap::new(), ends: Vec::new() };
    for rank in 0..nranks {
        let member = Member { rank, nranks, descriptor: shared.descriptor() };
        let child = spawn(member, signals).map_err(|e| refused(&format!("start rank {rank}"), e))?;
        ranks.running.insert(rank, child);
    }
    let signalled = ranks.wait(&signals).map_err(|e| refused("wait for the ranks", e))?;
    let ends = std::mem::take(&mut ranks.ends);
    if let Some(signal) = signalled {
        return Err(Stop::Signal(signal));
    }
    let texts = complaints(&ends);
    if !texts.is_empty() {
        return Err(Stop::Failed(texts.join("\n")));
    }
    Ok(if ends.iter().all(|(_, end)| *end == End::Done) { 0 } else { WRONG })
}

/// Starts a rank that ends when this process does.
fn spawn(member: Member, signals: Signals) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--member").arg(member.to_string());
    command.stdin(Stdio::null());
    let parent = std::process::id();
    let prepare = move || {
        signals.release();
        if member.rank != 0 {
            // What comes from the terminal comes to all at once; rank 0 and this process see to it.
            // SAFETY: a call of the kernel that is allowed between fork and exec.
            unsafe {
                libc::signal(libc::SIGINT, libc::SIG_IGN);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
            }
        }
        // SAFETY: calls of the kernel that are allowed between fork and exec; they touch no memory.
        let inherited = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0
                && libc::fcntl(member.descriptor, libc::F_SETFD, 0) == 0
        };
        // The parent may have ended before the wish was known.
        // SAFETY: as above.
        let orphaned = unsafe { libc::getppid() } as u32 != parent;
        if inherited && !orphaned { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes calls of the kernel only, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// The ranks of a run. Those that still run when it is dropped are killed.
struct Ranks<'a> {
    shared: &'a Shared,
    running: BTreeMap<u32, Child>,
    ends: Vec<(u32, End)>,
}

impl Ranks<'_> {
    /// Returns when no rank runs any more; with the signal that ended the run, if one did.
    fn wait(&mut self, signals: &Signals) -> io::Result<Option<i32>> {
        while !self.running.is_empty() && !self.ends.iter().any(|(_, end)| is_failure(end)) {
            match signals.wait()? {
                libc::SIGCHLD => self.reap(),
                signal => {
                    self.end_by(signal, signals);
                    return Ok(Some(signal));
                }
            }
        }
        let signalled = self.ends.iter().find_map(|(_, end)| match end {
            End::Signalled(signal) => Some(*signal),
            _ => None,
        });
        if signalled.is_none() {
            let stuck = |ranks: &Self| ranks.shared.waiting() as usize >= ranks.running.len();
            self.reap_until(GRACE, stuck);
            self.shared.abort();
            self.reap_until(LAST_GRACE, |_| false);
        }
        self.kill();
        Ok(signalled)
    }
    /// Lets rank 0 write what it has, while the others stand still: they have no cause to complain of its end. Another
    /// signal ends this process at once, and the ranks with it.
    fn end_by(&mut self, signal: i32, signals: &Signals) {
        signals.release();
        for (rank, child) in self.running.iter().rev() {
            let signal = if *rank == 0 { signal } else { libc::SIGSTOP };
            // SAFETY: a signal to a child that was not collected yet, so that the number is still its own.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
        self.reap_until(SIGNAL_GRACE, |ranks| !ranks.running.contains_key(&0));
        self.kill();
    }
    /// Collects ranks until all have ended, `enough` is, or the time is over.
    fn reap_until(&mut self, patience: Duration, enough: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + patience;
        while !self.running.is_empty() && !enough(self) && Instant::now() < deadline {
            std::thread::sleep(TICK);
            self.reap();
        }
    }
    /// Collects the ranks that have ended.
    fn reap(&mut self) {
        let (shared, ends) = (self.shared, &mut self.ends);
        self.running.retain(|rank, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ends.push((*rank, end_of(status, shared.reported(*rank))));
                false
            }
            Err(e) => {
                ends.push((*rank, End::Died(format!("cannot be waited for: {e}"))));
                false
            }
        });
    }
    fn kill(&mut self) {
        for (rank, mut child) in std::mem::take(&mut self.running) {
            // It may have ended by itself meanwhile, which is as good.
            let _ = child.kill();
            let _ = child.wait();
            self.ends.push((rank, End::Killed));
        }
    }
}

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_failure(end: &End) -> bool {
    !matches!(end, End::Done | End::Wrong)
}

fn end_of(status: ExitStatus, reported: Reported) -> End {
    match (status.code(), reported) {
        (Some(0), _) => End::Done,
        (Some(_), Reported::GaveUp) => End::Gave,
        (Some(_), Reported::Failed(text)) => End::Failed(text),
        (Some(code), Reported::Nothing) if code == i32::from(WRONG) => End::Wrong,
        (Some(code @ 129..=159), Reported::Nothing) => End::Signalled(code - 128),
        (Some(code), Reported::Nothing) => End::Died(format!("exited with status {code}")),
        (None, _) => End::Died(format!("was killed by signal {}", status.signal().unwrap_or(0))),
    }
}

/// Texts that are printed at most.
const MOST_TEXTS: usize = 8;

/// One line for each distinct text, with the ranks that said it; first who died.
fn complaints(ends: &[(u32, End)]) -> Vec<String> {
    let mut died: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut failed: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, end) in ends {
        match end {
            End::Died(text) => died.entry(text).or_default().push(*rank),
            End::Failed(text) => failed.entry(text).or_default().push(*rank),
            End::Done | End::Wrong | End::Gave | End::Signalled(_) | End::Killed => {}
        }
    }
    let said = failed.len();
    let died = died.iter().map(|(text, ranks)| format!("{} {text}", named(ranks)));
    let failed = failed.iter().take(MOST_TEXTS).map(|(text, ranks)| format!("{}: {text}", named(ranks)));
    let mut lines: Vec<String> = died.chain(failed).collect();
    if said > MOST_TEXTS {
        lines.push(format!("{} more ranks failed with other texts", said - MOST_TEXTS));
    }
    lines
}

fn named(ranks: &[u32]) -> String {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_said_once_with_its_ranks() {
        let ends = [
            (2, End::Died("was killed by signal 9".into())),
            (3, End::Failed("rank 2 died".into())),
            (0, End::Failed("rank 2 died".into())),
            (1, End::Failed("rank 2 is silent".into())),
            (4, End::Gave),
            (5, End::Killed),
            (6, End::Wrong),
        ];
        assert_eq!(
            complaints(&ends),
            ["rank 2 was killed by signal 9", "ranks 0, 3: rank 2 died", "rank 1: rank 2 is silent"]
        );
        assert_eq!(complaints(&[(0, End::Done), (1, End::Wrong)]), Vec::<String>::new());
    }

    #[test]
    fn many_different_texts_are_cut() {
        let ends: Vec<(u32, End)> =
            (0..20).map(|rank| (rank, End::Failed(format!("error {rank:02}")))).collect();
        let lines = complaints(&ends);
        assert_eq!(lines.len(), MOST_TEXTS + 1);
        assert_eq!(lines[MOST_TEXTS], "12 more ranks failed with other texts");
    }

    #[test]
    fn ends_are_told_apart() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let failed = Reported::Failed("why".into());
        assert_eq!(end_of(exited(0), Reported::Nothing), End::Done);
        assert_eq!(end_of(exited(1), Reported::Nothing), End::Wrong);
        assert_eq!(end_of(exited(1), failed), End::Failed("why".into()));
        assert_eq!(end_of(exited(1), Reported::GaveUp), End::Gave);
        assert_eq!(end_of(exited(101), Reported::Nothing), End::Died("exited with status 101".into()));
        assert_eq!(end_of(exited(130), Reported::Nothing), End::Signalled(2));
        let killed = end_of(ExitStatus::from_raw(9), Reported::Nothing);
        assert_eq!(killed, End::Died("was killed by signal 9".into()));
    }
}
