//! What a rank does in one collective, as data.
//!
//! A [`Plan`] is a straight-line program for one rank over *chunks*. Read top to bottom it is its meaning; which steps
//! may overlap is derived by the [`Builder`] from the spans that they touch. Messages have no tags: the i-th send of a
//! lane meets the i-th receive of its other end, so all ranks' plans together form one fixed graph of events whose
//! outcome does not depend on timing.
//!
//! A plan describes one *round* of an operation; [`partition`] says which bytes its chunks and slices are.
//!
//! Architecture Invariant: nothing in `plan`, `algo`, `verify`, `cost` and `engine::execution` does input or output,
//! reads a clock or uses `unsafe`.

#[forbid(unsafe_code)]
mod builder;
#[forbid(unsafe_code)]
mod collective;
#[forbid(unsafe_code)]
mod dependencies;
#[forbid(unsafe_code)]
pub mod partition;

pub use builder::Builder;
pub use collective::{Collective, Layout, Shape};

use std::fmt;
use std::ops::Range;

/// Number of a rank within its communicator.
pub type Rank = u32;

/// The three memories that a plan names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buf {
    /// The caller's send buffer. Never written.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Memory of one execution. Every chunk of it has the extent of a chunk of the input or output.
    Scratch,
}

/// `len` consecutive chunks of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which buffer.
    pub buf: Buf,
    /// First chunk.
    pub chunk: u32,
    /// Chunks, at least one.
    pub len: u32,
}

impl Span {
    /// `len` chunks of the input.
    pub fn input(chunk: u32, len: u32) -> Self {
        Span { buf: Buf::Input, chunk, len }
    }
    /// `len` chunks of the output.
    pub fn output(chunk: u32, len: u32) -> Self {
        Span { buf: Buf::Output, chunk, len }
    }
    /// Chunk `index` of this span alone.
    pub fn at(self, index: u32) -> Self {
        debug_assert!(index < self.len);
        Span { buf: self.buf, chunk: self.chunk + index, len: 1 }
    }
    /// `len` chunks of this span from `index` on.
    pub fn sub(self, index: u32, len: u32) -> Self {
        debug_assert!(index + len <= self.len);
        Span { buf: self.buf, chunk: self.chunk + index, len }
    }
    /// Whether the two share a chunk.
    pub fn overlaps(self, other: Span) -> bool {
        self.buf == other.buf && self.chunk < other.chunk + other.len && other.chunk < self.chunk + self.len
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buf = match self.buf {
            Buf::Input => "input",
            Buf::Output => "output",
            Buf::Scratch => "scratch",
        };
        match self.len {
            1 => write!(f, "{buf}[{}]", self.chunk),
            len => write!(f, "{buf}[{}..{}]", self.chunk, u64::from(self.chunk) + u64::from(len)),
        }
    }
}

/// A span that is read by a reduction or copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// What is read.
    pub span: Span,
    /// It is the caller's untouched input, so that the reduction's `pre` scale applies here.
    pub raw: bool,
}

/// One term of a reduction, in the order of combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// Memory of this rank.
    Local(Operand),
    /// The next message from a peer.
    Peer(Rank),
}

impl Term {
    /// The memory, if it is local.
    pub fn local(&self) -> Option<Operand> {
        match *self {
            Term::Local(operand) => Some(operand),
            Term::Peer(_) => None,
        }
    }
    /// The peer, if it is a message.
    pub fn peer(&self) -> Option<Rank> {
        match *self {
            Term::Local(_) => None,
            Term::Peer(peer) => Some(peer),
        }
    }
}

/// What a step does. Lists live in the plan: [`Plan::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sends a span to a peer.
    Send {
        /// Receiver.
        to: Rank,
        /// What is sent.
        src: Span,
    },
    /// Stores the next message of a peer.
    Recv {
        /// Sender.
        from: Rank,
        /// Where it goes.
        dst: Span,
    },
    /// `dst = terms[0] (+) terms[1] (+) ...`, at least one of them [`Term::Peer`]; each peer at most once.
    RecvReduce {
        /// The operands, as a range of the plan's terms.
        terms: Terms,
        /// Where the result goes; may equal a local term.
        dst: Span,
        /// The result is complete: it is finished (divided) here.
        last: bool,
    },
    /// `dst = terms[0] (+) terms[1] (+) ...`, all local.
    Reduce {
        /// The operands, as a range of the plan's terms.
        terms: Terms,
        /// Where the result goes; may equal a term.
        dst: Span,
        /// The result is complete: it is finished (divided) here.
        last: bool,
    },
    /// Copies a span; scales it where `src.raw` and the reduction has a pre-scale, finishes it where `last`.
    Copy {
        /// What is copied.
        src: Operand,
        /// Where it goes.
        dst: Span,
        /// The result is complete: it is finished (divided) here.
        last: bool,
    },
}

impl Op {
    /// The memory that is written, if any.
    pub fn dst(&self) -> Option<Span> {
        match *self {
            Op::Send { .. } => None,
            Op::Recv { dst, .. }
            | Op::RecvReduce { dst, .. }
            | Op::Reduce { dst, .. }
            | Op::Copy { dst, .. } => Some(dst),
        }
    }
}

/// A range of [`Plan::terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// First.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

/// One side of the traffic with one peer. A step belongs to the lanes that it sends or receives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Messages to a peer.
    Send(Rank),
    /// Messages from a peer.
    Recv(Rank),
}

impl Lane {
    /// The other end.
    pub fn peer(self) -> Rank {
        match self {
            Lane::Send(peer) | Lane::Recv(peer) => peer,
        }
    }
}

/// An index of [`Plan::lanes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneIndex(pub u32);

/// An earlier step that must be over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Index of the earlier step.
    pub step: u32,
    /// All of its slices must be over. Otherwise slice s waits for slice s only.
    pub whole: bool,
}

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub op: Op,
    first_dependency: u32,
    end_dependency: u32,
    first_lane: u32,
    end_lane: u32,
}

/// Where the input lies inside the output for an in-place call, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alias {
    /// The buffers are disjoint.
    #[default]
    None,
    /// Input chunk 0 is output chunk `0` + this.
    InputAt(u32),
    /// Output chunk 0 is input chunk `0` + this.
    OutputAt(u32),
}

/// What one rank does in one round of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    rank: Rank,
    nranks: u32,
    /// Chunks that a flat buffer is cut into (a blocked buffer has a chunk per block).
    nchunks: u32,
    input: Layout,
    output: Layout,
    /// The logical chunk whose extent each scratch chunk has.
    scratch: Box<[u32]>,
    /// The first scratch chunk of the allocation that each scratch chunk belongs to.
    scratch_runs: Box<[u32]>,
    steps: Box<[Step]>,
    terms: Box<[Term]>,
    dependencies: Box<[Dependency]>,
    step_lanes: Box<[LaneIndex]>,
    lanes: Box<[Lane]>,
    splittable: bool,
}

impl Plan {
    /// The rank that follows it.
    pub fn rank(&self) -> Rank {
        self.rank
    }
    /// Ranks of the communicator.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }
    /// Chunks that a flat buffer is cut into.
    pub fn nchunks(&self) -> u32 {
        self.nchunks
    }
    /// How the input is cut.
    pub fn input(&self) -> Layout {
        self.input
    }
    /// How the output is cut.
    pub fn output(&self) -> Layout {
        self.output
    }
    /// For each scratch chunk, the logical chunk whose extent it has.
    pub fn scratch(&self) -> &[u32] {
        &self.scratch
    }
    /// The first scratch chunk of the run that scratch chunk `chunk` lies in. The chunks of a run follow each other in
    /// memory without gaps.
    pub fn scratch_run(&self, chunk: u32) -> u32 {
        self.scratch_runs[chunk as usize]
    }
    /// The program.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
    /// The operands of a reduction.
    pub fn terms(&self, terms: Terms) -> &[Term] {
        &self.terms[terms.start as usize..terms.end as usize]
    }
    /// The local memory that an operation reads, in the order of its terms.
    pub fn reads(&self, op: &Op) -> impl Iterator<Item = Operand> + '_ {
        let (single, terms) = match *op {
            Op::Send { src, .. } => (Some(Operand { span: src, raw: false }), Terms { start: 0, end: 0 }),
            Op::Copy { src, .. } => (Some(src), Terms { start: 0, end: 0 }),
            Op::Recv { .. } => (None, Terms { start: 0, end: 0 }),
            Op::RecvReduce { terms, .. } | Op::Reduce { terms, .. } => (None, terms),
        };
        single.into_iter().chain(self.terms(terms).iter().filter_map(Term::local))
    }
    /// What must be over before a step starts.
    pub fn dependencies(&self, step: u32) -> &[Dependency] {
        let step = &self.steps[step as usize];
        &self.dependencies[step.first_dependency as usize..step.end_dependency as usize]
    }
    /// The lanes that a step uses, as indices of [`lanes`](Plan::lanes); none for a local step.
    pub fn step_lanes(&self, step: u32) -> &[LaneIndex] {
        let step = &self.steps[step as usize];
        &self.step_lanes[step.first_lane as usize..step.end_lane as usize]
    }
    /// Every lane that the plan uses.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }
    /// Whether an operation may be cut into rounds, channels and slices under this plan.
    pub fn is_splittable(&self) -> bool {
        self.splittable
    }
    /// For each step, whether nothing of what it stores is read by a later one: it is part of the result, or in the way
    /// of it.
    pub fn stores_for_good(&self) -> Box<[bool]> {
        let buffer = |layout: Layout| vec![false; layout.chunks(self.nchunks) as usize];
        let mut read = [buffer(self.input), buffer(self.output), vec![false; self.scratch.len()]];
        let chunks = |span: Span| span.chunk as usize..(span.chunk + span.len) as usize;
        let mut for_good: Box<[bool]> = vec![false; self.steps.len()].into();
        for (step, last) in self.steps.iter().zip(&mut for_good).rev() {
            if let Some(dst) = step.op.dst() {
                *last = !read[dst.buf as usize][chunks(dst)].contains(&true);
            }
            for operand in self.reads(&step.op) {
                read[operand.span.buf as usize][chunks(operand.span)].fill(true);
            }
        }
        for_good
    }
    /// The logical extent of a span: which chunks' sizes it has.
    pub fn extent_of(&self, span: Span) -> Range<u32> {
        match span.buf {
            Buf::Scratch => {
                let first = self.scratch[span.chunk as usize];
                first..first + span.len
            }
            Buf::Input | Buf::Output => span.chunk..span.chunk + span.len,
        }
    }

    /// The same plan without one of its dependencies, for tests that break it.
    #[cfg(test)]
    pub(crate) fn without_dependency(mut self, number: usize) -> Self {
        let mut dependencies = self.dependencies.to_vec();
        dependencies.remove(number);
        self.dependencies = dependencies.into();
        for step in &mut self.steps {
            step.first_dependency -= u32::from(step.first_dependency as usize > number);
            step.end_dependency -= u32::from(step.end_dependency as usize > number);
        }
        self
    }

    /// How many dependencies there are in all.
    #[cfg(test)]
    pub(crate) fn dependency_count(&self) -> usize {
        self.dependencies.len()
    }
}
