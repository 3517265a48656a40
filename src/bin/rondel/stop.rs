//! Why a command ends early.

use std::fmt;

/// Why a command ends early, and with which exit status.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command line has no meaning; exit status 2, as for what clap refuses.
    Usage(String),
    /// Something failed while running; exit status 1.
    Failed(String),
    /// Another rank of the job failed and has said why.
    Elsewhere,
}

impl Stop {
    /// The exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Stop::Usage(_) => 2,
            Stop::Failed(_) | Stop::Elsewhere => 1,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage(text) | Stop::Failed(text) => f.write_str(text),
            Stop::Elsewhere => f.write_str("another rank failed"),
        }
    }
}

impl From<rondel::Error> for Stop {
    fn from(error: rondel::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}
