//! What the host says about a process.

use std::{fmt, fs};

/// Whether a process runs, by its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessState {
    /// It runs, or sleeps in a system call.
    Running,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It ended, or its number belongs to another process now.
    Dead,
}

/// The state of a process of this host. `started` is [`StatusView::started`](super::StatusView::started): it tells the
/// process from a later one of the same number; 0 leaves that unchecked.
pub fn process_state(pid: u32, started: u64) -> ProcessState {
    match stat(pid) {
        Some((_, now)) if started != 0 && now != started => ProcessState::Dead,
        Some(('T' | 't', _)) => ProcessState::Stopped,
        None | Some(('Z' | 'X' | 'x', _)) => ProcessState::Dead,
        Some(_) => ProcessState::Running,
    }
}

/// When a process started, in clock ticks since the host did.
pub(super) fn started(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, started)| started)
}

/// State letter and start time. The process's name may contain anything, so that fields count from its end.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ProcessState::Running => "running",
            ProcessState::Stopped => "stopped",
            ProcessState::Dead => "dead",
        })
    }
}
