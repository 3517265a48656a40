//! Why a command ends early.

use crate::signals;
use std::{fmt, io};

/// Why a command ends early, and with which exit status.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command line has no meaning; exit status 2, as for what clap refuses.
    Usage(String),
    /// Something failed while running; exit status 1.
    Failed(String),
    /// Another rank of the job failed and has said why.
    Elsewhere,
    /// A signal ended it, or whoever read its output has gone; exit status 128 and the signal. Whoever did it knows.
    Signal(libc::c_int),
}

impl Stop {
    /// Of an output that cannot be written.
    pub(crate) fn unwritable(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::Signal(libc::SIGPIPE),
            _ => Stop::Failed(format!("the output cannot be written: {error}")),
        }
    }
    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Stop::Usage(_) => 2,
            Stop::Failed(_) | Stop::Elsewhere => 1,
            Stop::Signal(signal) => 128 + *signal as u8,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage(text) | Stop::Failed(text) => f.write_str(text),
            Stop::Elsewhere => f.write_str("another rank failed"),
            Stop::Signal(libc::SIGPIPE) => f.write_str("nobody reads the output any more"),
            Stop::Signal(signal) => write!(f, "ended by {}", signals::name(*signal)),
        }
    }
}

impl From<rondel::Error> for Stop {
    fn from(error: rondel::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}
