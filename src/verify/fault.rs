//! What is wrong with a plan, in words for people.

use crate::plan::{Op, Rank, Span};
use std::fmt;

/// The first thing that was found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose program is wrong, or shows that another one is.
    pub rank: Rank,
    /// The step, and what it does, where one step is to blame.
    pub step: Option<(u32, Op)>,
    /// What is wrong.
    pub reason: Reason,
}

impl Fault {
    pub(super) fn of_result(rank: Rank, at: usize, problem: String) -> Self {
        Fault { rank, step: None, reason: Reason::Result { at, problem } }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        match &self.step {
            Some((step, op)) => write!(f, " step {step} ({}): {}", Words(op), self.reason),
            None => write!(f, ": {}", self.reason),
        }
    }
}

impl std::error::Error for Fault {}

struct Words<'a>(&'a Op);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Op::Send { to, src } => write!(f, "send {} to {to}", src),
            Op::Recv { from, dst } => write!(f, "receive {} from {from}", dst),
            Op::RecvReduce { dst, .. } => write!(f, "receive and reduce into {}", dst),
            Op::Reduce { dst, .. } => write!(f, "reduce into {}", dst),
            Op::Copy { src, dst, .. } => write!(f, "copy {} to {}", src.span, dst),
        }
    }
}

/// Why a plan, or the plans of all ranks together, do not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it and its fields are")]
pub enum Reason {
    #[error("{span} does not lie within that buffer's {chunks} chunks")]
    OutOfRange { span: Span, chunks: u32 },
    #[error("writes {span}, the caller's input")]
    WritesInput { span: Span },
    #[error("names {span}, whose memory has another name in this in-place call")]
    Aliased { span: Span },
    #[error("{span} names several blocks, which are apart once the operation is cut")]
    SeveralBlocks { span: Span },
    #[error("{span} spans two allocations of scratch")]
    TornScratch { span: Span },
    #[error("{one} and {other} differ in length for some counts")]
    ExtentsDiffer { one: Span, other: Span },
    #[error("reads {src} and writes {dst}, which overlap in part")]
    OverlapInPart { src: Span, dst: Span },
    #[error("names rank {peer}, but there are {nranks} ranks")]
    NoSuchPeer { peer: Rank, nranks: u32 },
    #[error("takes two messages of rank {peer} at once")]
    PeerTwice { peer: Rank },
    #[error("has no terms that it could combine as it should")]
    NoTerms,
    #[error("waits for step {on}, which does not come before it")]
    DependsOnLater { on: u32 },
    #[error("touches the same memory as step {with}, but is not ordered after it")]
    Unordered { with: u32 },
    #[error("combines elements, which {collective} does not")]
    Combines { collective: &'static str },
    #[error("finishes a result, which {collective} does not")]
    Finishes { collective: &'static str },
    #[error("sends {sends} messages to rank {to}, which expects {receives}")]
    Unmatched { to: Rank, sends: usize, receives: usize },
    #[error("expects {expected}, but step {step} of rank {from} sends {sent}")]
    LengthsDiffer { from: Rank, step: u32, sent: String, expected: String },
    #[error("reads {span} while it is written")]
    ReadsWhileWritten { span: Span },
    #[error("writes {span} while it is read or written")]
    WritesWhileUsed { span: Span },
    #[error("reads {span}, which nothing was written to")]
    Undefined { span: Span },
    #[error("{span} is marked raw: {marked}; but that it is untouched input is {}", !.marked)]
    RawMark { span: Span, marked: bool },
    #[error("bytes {start}..{end} of {span} do not lie within the buffer's {size}")]
    OutOfBounds { span: Span, start: u64, end: u64, size: u64 },
    #[error("{one} and {other} have {one_len} and {other_len} bytes")]
    SizesDiffer { one: Span, other: Span, one_len: u64, other_len: u64 },
    #[error("combines a result that was finished already")]
    CombinesFinished,
    #[error("combines a contribution that its owner did not scale")]
    CombinesUnscaled,
    #[error("scales what is no untouched contribution")]
    ScalesTwice,
    #[error("finishes a result a second time")]
    FinishesTwice,
    #[error("never ends: deadlock ({waits})")]
    Deadlock { waits: String },
    #[error("element {at} of the output (in units of slices, or bytes) is wrong: {problem}")]
    Result { at: usize, problem: String },
    #[error(
        "element {at} of the output was combined in another order than on rank {other}, so bits may differ"
    )]
    Bits { at: usize, other: Rank },
    #[error("leaves the barrier although rank {unreached} may not have entered it")]
    NotReached { unreached: Rank },
    #[error("cuts the operation differently than rank 0")]
    CutsDiffer,
}
