//! Errors, divided by what the caller can do about them.

use crate::{engine::call::Call, plan::Rank};
use rondel_transport_api::TransportError;
use std::{fmt, sync::Arc, time::Duration};

/// The result of everything that can go wrong.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The call was wrong. Nothing was started, no buffer was touched, the communicator is healthy.
    Usage(UsageError),
    /// A communicator could not be made; it never existed.
    Setup(Arc<SetupError>),
    /// The communicator is dead. Destroy it; make another one of the ranks that are left.
    Failed(Arc<Failure>),
}

/// A call that was wrong: what was given, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError {
    /// The sentence.
    pub what: String,
}

/// Why a communicator could not be made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// Settings that contradict each other or have no meaning.
    Config(String),
    /// Not all ranks came before the deadline.
    Missing {
        /// Who did not come.
        ranks: Vec<Rank>,
        /// Ranks of the job.
        nranks: u32,
        /// How long was waited.
        waited: Duration,
        /// Where the root listens.
        root: String,
    },
    /// Joining failed.
    Bootstrap(String),
    /// Two ranks have no transport in common.
    NoPath {
        /// One end.
        from: Rank,
        /// The other end.
        to: Rank,
        /// Every transport that was tried, and why not.
        tried: Vec<(String, String)>,
    },
    /// No transport could be opened here.
    NoTransport(Vec<(String, String)>),
    /// It was aborted from another thread.
    Aborted,
}

/// Why a communicator is dead. The first cause that this rank learned of.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rank that saw the cause first.
    pub origin: Rank,
    /// The communicator that failed; `None`: every communicator that contains the culprit.
    pub comm: Option<u64>,
    /// What happened.
    pub cause: Cause,
    /// What this rank was waiting for when it learned of it.
    pub waiting: Option<Waiting>,
    /// Whether all survivors agreed on the cause. Not yet done by this version: always false.
    pub agreed: bool,
}

/// What killed a communicator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A rank's process ended.
    ProcessEnded {
        /// Whose.
        rank: Rank,
        /// How that is known ("killed by signal 9", "exited with status 1", "its host refuses connections").
        how: String,
    },
    /// A rank did not answer for too long.
    Silent {
        /// Who.
        rank: Rank,
        /// For how long.
        silence: Duration,
    },
    /// A lane broke though its peer is not known to be dead.
    LaneLost {
        /// The peer.
        peer: Rank,
        /// What the transport saw.
        error: TransportError,
    },
    /// Two ranks called different things.
    Mismatch {
        /// One rank.
        rank: Rank,
        /// What it called.
        call: Call,
        /// Another rank.
        peer: Rank,
        /// What that one called; `None` if only its stamp is known.
        peer_call: Option<Call>,
    },
    /// The deadline passed.
    Deadline {
        /// How long was waited.
        after: Duration,
        /// What was found out about the ranks that were waited for.
        peers: Vec<(Rank, String)>,
    },
    /// Somebody called abort.
    Aborted {
        /// Who.
        rank: Rank,
        /// Its reason, if it gave one.
        reason: String,
    },
    /// A rank destroyed its communicator while others still wait for it.
    Left {
        /// Who.
        rank: Rank,
    },
    /// A device failed.
    Device {
        /// Whose.
        rank: Rank,
        /// What it said.
        what: String,
    },
    /// Something that cannot happen happened; please report it.
    Bug(String),
    /// A cause that another rank reported, in its words.
    Reported {
        /// The rank at fault, as far as the origin knows.
        rank: Rank,
        /// The origin's sentence.
        what: String,
    },
}

/// What a rank was waiting for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// In which call.
    pub call: Call,
    /// For whom.
    pub peers: Vec<Rank>,
    /// The step of the plan, in words.
    pub step: String,
    /// Over which transport.
    pub transport: String,
    /// For how long.
    pub since: Duration,
}

impl UsageError {
    #[expect(clippy::new_ret_no_self, reason = "nobody needs one that is not yet an error")]
    pub(crate) fn new(what: impl Into<String>) -> Error {
        Error::Usage(UsageError { what: what.into() })
    }
}

impl Failure {
    /// The rank that the cause names: the dead, silent or different one.
    pub fn culprit(&self) -> Option<Rank> {
        match &self.cause {
            Cause::ProcessEnded { rank, .. }
            | Cause::Silent { rank, .. }
            | Cause::Aborted { rank, .. }
            | Cause::Left { rank }
            | Cause::Device { rank, .. }
            | Cause::Reported { rank, .. } => Some(*rank),
            Cause::LaneLost { peer, .. } | Cause::Mismatch { peer, .. } => Some(*peer),
            Cause::Deadline { peers, .. } => peers.first().map(|p| p.0),
            Cause::Bug(_) => None,
        }
    }
}

impl Failure {
    /// The same failure with other numbers for the ranks. What another rank waited for is left out; a rank that has no
    /// number on the other side turns the cause into its sentence.
    pub(crate) fn renamed(&self, rename: impl Fn(Rank) -> Option<Rank>) -> Failure {
        let cause = self.cause.renamed(&rename).unwrap_or_else(|| Cause::Reported {
            rank: self.culprit().and_then(&rename).unwrap_or(0),
            what: self.cause.to_string(),
        });
        let origin = rename(self.origin).unwrap_or(self.origin);
        Failure { origin, comm: self.comm, cause, waiting: None, agreed: self.agreed }
    }
}

impl Cause {
    fn renamed(&self, rename: impl Fn(Rank) -> Option<Rank>) -> Option<Cause> {
        let mut cause = self.clone();
        match &mut cause {
            Cause::ProcessEnded { rank, .. }
            | Cause::Silent { rank, .. }
            | Cause::Aborted { rank, .. }
            | Cause::Left { rank }
            | Cause::Device { rank, .. }
            | Cause::Reported { rank, .. }
            | Cause::LaneLost { peer: rank, .. } => *rank = rename(*rank)?,
            Cause::Mismatch { rank, peer, .. } => {
                *rank = rename(*rank)?;
                *peer = rename(*peer)?;
            }
            Cause::Deadline { peers, .. } => {
                for (rank, _) in peers {
                    *rank = rename(*rank)?;
                }
            }
            Cause::Bug(_) => {}
        }
        Some(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(e) => f.write_str(&e.what),
            Error::Setup(e) => e.fmt(f),
            Error::Failed(e) => e.fmt(f),
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupError::Config(what) | SetupError::Bootstrap(what) => f.write_str(what),
            SetupError::Missing { ranks, nranks, waited, root } => write!(
                f,
                "{} of {nranks} ranks did not join at {root} within {:.1} s; missing: {}. Start them, or check that \
                 they can reach that address and were given the same number of ranks",
                ranks.len(),
                waited.as_secs_f64(),
                Ranks(ranks)
            ),
            SetupError::NoPath { from, to, tried } => {
                write!(f, "no transport connects rank {from} with rank {to}:")?;
                tried.iter().try_for_each(|(name, why)| write!(f, " {name}: {why};"))
            }
            SetupError::NoTransport(tried) => {
                write!(f, "no transport can be used on this host:")?;
                tried.iter().try_for_each(|(name, why)| write!(f, " {name}: {why};"))
            }
            SetupError::Aborted => f.write_str("joining was aborted from another thread"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        if let Some(waiting) = &self.waiting {
            write!(f, "; this rank was in {waiting}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::ProcessEnded { rank, how } => write!(f, "rank {rank} died: {how}"),
            Cause::Silent { rank, silence } => {
                write!(f, "rank {rank} has been silent for {:.1} s", silence.as_secs_f64())
            }
            Cause::LaneLost { peer, error } => write!(f, "the lane to rank {peer} broke: {error}"),
            Cause::Mismatch { rank, call, peer, peer_call } => {
                write!(f, "ranks disagree: rank {rank} called {call}, rank {peer} called ")?;
                match peer_call {
                    Some(theirs) => theirs.fmt(f)?,
                    None => f.write_str("something else")?,
                }
                f.write_str(". All ranks must make the same calls in the same order")
            }
            Cause::Deadline { after, peers } => {
                write!(f, "not finished within {:.1} s", after.as_secs_f64())?;
                peers.iter().try_for_each(|(rank, what)| write!(f, "; rank {rank}: {what}"))
            }
            Cause::Aborted { rank, reason } if reason.is_empty() => write!(f, "rank {rank} aborted"),
            Cause::Aborted { rank, reason } => write!(f, "rank {rank} aborted: {reason}"),
            Cause::Left { rank } => {
                write!(f, "rank {rank} destroyed its communicator while this rank still waits for it")
            }
            Cause::Device { rank, what } => write!(f, "the device of rank {rank} failed: {what}"),
            Cause::Bug(what) => write!(f, "internal error, please report it: {what}"),
            Cause::Reported { what, .. } => f.write_str(what),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, waiting {:.1} s for rank {} over {} ({})",
            self.call,
            self.since.as_secs_f64(),
            Ranks(&self.peers),
            self.transport,
            self.step
        )
    }
}

/// A list of ranks for people: at most twelve are written out.
pub(crate) struct Ranks<'a>(pub(crate) &'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rank) in self.0.iter().take(12).enumerate() {
            write!(f, "{}{rank}", if i > 0 { ", " } else { "" })?;
        }
        if self.0.len() > 12 { write!(f, " and {} more", self.0.len() - 12) } else { Ok(()) }
    }
}

impl std::error::Error for Error {}
impl std::error::Error for SetupError {}
impl std::error::Error for Failure {}
