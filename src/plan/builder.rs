//! From a straight-line program to a plan.

use super::dependencies::Tracker;
use super::{
    Alias, Buf, Collective, Lane, LaneIndex, Layout, Op, Operand, Plan, Rank, Shape, Span, Step, Term, Terms,
};
use std::collections::HashMap;

/// Collects the steps of one rank in program order, then derives which may overlap.
///
/// The builder resolves aliases (an in-place call names one memory by two buffers), marks operands `raw` that are the
/// caller's untouched input, and, where `prescale` is set, sends such input through a scaled copy, so that each rank's
/// contribution is scaled exactly once, by its owner.
///
/// # Panics
///
/// A program that names memory which does not exist, or whose bytes are not determined, is a mistake in an algorithm:
/// every method panics on it and says which step of which rank is wrong.
#[derive(Clone, Debug)]
pub struct Builder {
    rank: Rank,
    nranks: u32,
    nchunks: u32,
    input: Layout,
    output: Layout,
    alias: Alias,
    scales: bool,
    ops: Vec<Op>,
    terms: Vec<Term>,
    scratch: Vec<u32>,
    scratch_runs: Vec<u32>,
    /// For each chunk of the input, whether this program has overwritten it.
    overwritten: Vec<bool>,
    /// Scaled copies of untouched input, for sends.
    scaled: HashMap<Span, Span>,
    /// The first span of several blocks, and the step that names it.
    several_blocks: Option<(usize, Span)>,
    splittable: bool,
}

impl Builder {
    /// An empty program. `nchunks`: into how many chunks a flat buffer is cut.
    /// `prescale`: the reduction multiplies every rank's input before it is combined.
    pub fn new(
        collective: Collective,
        rank: Rank,
        shape: &Shape,
        nchunks: u32,
        alias: Alias,
        prescale: bool,
    ) -> Self {
        let (input, output) = (collective.input(rank, shape), collective.output(rank, shape));
        let (inputs, outputs) = (input.chunks(nchunks), output.chunks(nchunks));
        let fits = match alias {
            Alias::None => true,
            Alias::InputAt(at) => u64::from(at) + u64::from(inputs) <= u64::from(outputs),
            Alias::OutputAt(at) => u64::from(at) + u64::from(outputs) <= u64::from(inputs),
        };
        assert!(
            fits,
            "rank {rank}: {alias:?} is no in-place form of {}: its input has {inputs} chunks, its output {outputs}",
            collective.name()
        );
        Builder {
            rank,
            nranks: shape.nranks(),
            nchunks,
            input,
            output,
            alias,
            scales: prescale && collective.reduces(),
            ops: Vec::new(),
            terms: Vec::new(),
            scratch: Vec::new(),
            scratch_runs: Vec::new(),
            overwritten: vec![false; inputs as usize],
            scaled: HashMap::new(),
            several_blocks: None,
            splittable: true,
        }
    }

    /// The rank whose program this is.
    pub fn rank(&self) -> Rank {
        self.rank
    }
    /// Whether input and output share memory on this rank. Messages must not depend on it, only where results wait.
    pub fn is_in_place(&self) -> bool {
        self.alias != Alias::None
    }

    /// New scratch with the extent of `like` (of the input or output), chunk by chunk.
    pub fn scratch_like(&mut self, like: Span) -> Span {
        let like = self.resolve(like);
        let run = self.scratch.len() as u32;
        for chunk in like.chunk..like.chunk + like.len {
            let logical = match like.buf {
                Buf::Scratch => self.scratch[chunk as usize],
                Buf::Input | Buf::Output => chunk,
            };
            self.scratch.push(logical);
            self.scratch_runs.push(run);
        }
        Span { buf: Buf::Scratch, chunk: run, len: like.len }
    }

    /// Sends `src` to `to`.
    pub fn send(&mut self, to: Rank, src: Span) {
        let mut src = self.name(src);
        if self.scales && self.is_raw(src) {
            src = self.scaled_copy(src);
        }
        self.check_peer(to);
        self.ops.push(Op::Send { to, src });
    }

    /// Stores the next message of `from` in `dst`.
    pub fn recv(&mut self, from: Rank, dst: Span) {
        self.check_peer(from);
        let dst = self.destination(dst);
        self.ops.push(Op::Recv { from, dst });
    }

    /// `dst = with (+) message of from`; `last`: the result is complete.
    pub fn recv_reduce(&mut self, from: Rank, with: Span, dst: Span, last: bool) {
        self.recv_reduce_many(
            &[Term::Local(Operand { span: with, raw: false }), Term::Peer(from)],
            dst,
            last,
        );
    }

    /// `dst = terms[0] (+) terms[1] ...` in that order, each a span of this rank or the next message of a peer.
    /// `raw` of local terms is set by the builder.
    pub fn recv_reduce_many(&mut self, terms: &[Term], dst: Span, last: bool) {
        for (i, term) in terms.iter().enumerate() {
            if let Some(peer) = term.peer() {
                self.check_peer(peer);
                assert!(!terms[..i].contains(term), "{}: takes two messages of rank {peer}", self.place());
            }
        }
        assert!(
            terms.iter().any(|term| term.peer().is_some()),
            "{}: receives from nobody; a reduction of local terms is `reduce`",
            self.place()
        );
        let terms = self.push_terms(terms);
        let dst = self.destination(dst);
        self.check_operands(terms, dst);
        self.ops.push(Op::RecvReduce { terms, dst, last });
    }

    /// `dst = spans[0] (+) spans[1] ...` in that order. One span alone is a [`copy`](Builder::copy).
    pub fn reduce(&mut self, spans: &[Span], dst: Span, last: bool) {
        assert!(!spans.is_empty(), "{}: reduces no operands", self.place());
        if let &[span] = spans {
            return self.copy(span, dst, last);
        }
        let terms: Vec<Term> = spans.iter().map(|&span| Term::Local(Operand { span, raw: false })).collect();
        let terms = self.push_terms(&terms);
        let dst = self.destination(dst);
        self.check_operands(terms, dst);
        self.ops.push(Op::Reduce { terms, dst, last });
    }

    /// Copies `src` to `dst`; nothing when they are the same memory and nothing is scaled or finished.
    pub fn copy(&mut self, src: Span, dst: Span, last: bool) {
        let src = self.operand(src);
        if self.resolve(dst) == src.span && !last && !(src.raw && self.scales) {
            return;
        }
        let dst = self.destination(dst);
        self.check_overlap(src.span, dst);
        self.ops.push(Op::Copy { src, dst, last });
    }

    /// Declares that the plan holds only for a whole, uncut operation.
    pub fn unsplittable(&mut self) {
        self.splittable = false;
    }

    /// Derives dependencies and lanes, in near-linear time.
    pub fn build(self) -> Plan {
        if let (true, Some((step, span))) = (self.splittable, self.several_blocks) {
            panic!(
                "rank {} step {step}: {span} names several blocks, whose parts do not follow each other when the \
                 operation is cut; use one step per block, or declare the plan unsplittable",
                self.rank
            );
        }
        let mut plan = Plan {
            rank: self.rank,
            nranks: self.nranks,
            nchunks: self.nchunks,
            input: self.input,
            output: self.output,
            scratch: self.scratch.into(),
            scratch_runs: self.scratch_runs.into(),
            steps: Box::default(),
            terms: self.terms.into(),
            dependencies: Box::default(),
            step_lanes: Box::default(),
            lanes: Box::default(),
            splittable: self.splittable,
        };
        plan.derive(&self.ops);
        plan
    }

    /// The program itself, for tests that break it.
    #[cfg(test)]
    pub(crate) fn program(&mut self) -> (&mut Vec<Op>, &mut Vec<Term>) {
        (&mut self.ops, &mut self.terms)
    }

    /// Turns a span that a step names into the one name of its memory.
    fn name(&mut self, span: Span) -> Span {
        let blocked = match span.buf {
            Buf::Input => matches!(self.input, Layout::Blocked(_)),
            Buf::Output => matches!(self.output, Layout::Blocked(_)),
            Buf::Scratch => false,
        };
        if blocked && span.len > 1 && self.several_blocks.is_none() {
            self.several_blocks = Some((self.ops.len(), span));
        }
        self.resolve(span)
    }

    fn resolve(&self, span: Span) -> Span {
        let chunks = match span.buf {
            Buf::Input => self.input.chunks(self.nchunks),
            Buf::Output => self.output.chunks(self.nchunks),
            Buf::Scratch => self.scratch.len() as u32,
        };
        assert!(
            span.len > 0 && span.chunk.checked_add(span.len).is_some_and(|end| end <= chunks),
            "{}: {span} does not lie within that buffer's {chunks} chunks",
            self.place()
        );
        assert!(
            span.buf != Buf::Scratch
                || self.scratch_runs[span.chunk as usize]
                    == self.scratch_runs[(span.chunk + span.len - 1) as usize],
            "{}: {span} spans two allocations of scratch, which do not follow each other in memory",
            self.place()
        );
        match (self.alias, span.buf) {
            (Alias::InputAt(at), Buf::Input) => Span { buf: Buf::Output, chunk: span.chunk + at, ..span },
            (Alias::OutputAt(at), Buf::Output) => Span { buf: Buf::Input, chunk: span.chunk + at, ..span },
            _ => span,
        }
    }

    /// The chunks of a resolved span that are the caller's input, as indices of `overwritten`; what is left of the
    /// span is not input.
    fn input_part(&self, span: Span) -> std::ops::Range<usize> {
        let at = match (self.alias, span.buf) {
            (Alias::InputAt(at), Buf::Output) => at,
            (Alias::None | Alias::OutputAt(_), Buf::Input) => 0,
            _ => return 0..0,
        };
        let clamp = |chunk: u32| (chunk.saturating_sub(at) as usize).min(self.overwritten.len());
        clamp(span.chunk)..clamp(span.chunk + span.len)
    }

    /// Whether a resolved span is the caller's untouched input.
    fn is_raw(&self, span: Span) -> bool {
        let untouched = self.overwritten[self.input_part(span)].iter().filter(|&&gone| !gone).count();
        assert!(
            untouched == 0 || untouched == span.len as usize,
            "{}: {span} mixes {untouched} chunks of untouched input with others; name them in separate steps",
            self.place()
        );
        untouched > 0
    }

    fn operand(&mut self, span: Span) -> Operand {
        let span = self.name(span);
        Operand { span, raw: self.is_raw(span) }
    }

    fn destination(&mut self, span: Span) -> Span {
        let span = self.name(span);
        assert!(
            span.buf != Buf::Input || matches!(self.alias, Alias::OutputAt(_)),
            "{}: writes {span}, the caller's input",
            self.place()
        );
        let input = self.input_part(span);
        self.overwritten[input].fill(true);
        span
    }

    fn push_terms(&mut self, terms: &[Term]) -> Terms {
        let start = self.terms.len() as u32;
        for term in terms {
            let term = match *term {
                Term::Local(Operand { span, .. }) => Term::Local(self.operand(span)),
                Term::Peer(peer) => Term::Peer(peer),
            };
            self.terms.push(term);
        }
        Terms { start, end: self.terms.len() as u32 }
    }

    /// The copy of a raw span that the reduction has scaled. Valid as long as the span is raw: memory that has been
    /// overwritten never is again.
    fn scaled_copy(&mut self, src: Span) -> Span {
        if let Some(&copy) = self.scaled.get(&src) {
            return copy;
        }
        let dst = self.scratch_like(src);
        self.ops.push(Op::Copy { src: Operand { span: src, raw: true }, dst, last: false });
        self.scaled.insert(src, dst);
        dst
    }

    fn check_operands(&self, terms: Terms, dst: Span) {
        for operand in self.terms[terms.start as usize..terms.end as usize].iter().filter_map(Term::local) {
            self.check_overlap(operand.span, dst);
        }
    }

    fn check_overlap(&self, src: Span, dst: Span) {
        assert!(
            src == dst || !src.overlaps(dst),
            "{}: reads {src} and writes {dst}, which overlap in part; they must be equal or disjoint",
            self.place()
        );
    }

    fn check_peer(&self, peer: Rank) {
        assert!(peer < self.nranks, "{}: peer {peer} of {} ranks", self.place(), self.nranks);
    }

    fn place(&self) -> String {
        format!("rank {} step {}", self.rank, self.ops.len())
    }
}

impl Plan {
    /// Fills in what follows from the operations: steps, dependencies and lanes.
    fn derive(&mut self, ops: &[Op]) {
        let inputs = self.input.chunks(self.nchunks);
        let outputs = self.output.chunks(self.nchunks);
        let numbered = |span: Span| match span.buf {
            Buf::Input => (span.chunk, span),
            Buf::Output => (inputs + span.chunk, span),
            Buf::Scratch => (inputs + outputs + span.chunk, span),
        };
        let mut tracker = Tracker::new(inputs as usize + outputs as usize + self.scratch.len(), ops.len());
        let mut lanes = LaneTable::default();
        let mut steps = Vec::with_capacity(ops.len());
        let mut reads = Vec::new();
        for &op in ops {
            reads.clear();
            reads.extend(self.reads(&op).map(|operand| numbered(operand.span)));
            let dependencies = tracker.step(&reads, op.dst().map(numbered));
            let first_lane = lanes.of_steps.len() as u32;
            match op {
                Op::Send { to, .. } => lanes.push(Lane::Send(to)),
                Op::Recv { from, .. } => lanes.push(Lane::Recv(from)),
                Op::RecvReduce { terms, .. } => {
                    let peers = self.terms(terms).iter().filter_map(Term::peer);
                    peers.for_each(|peer| lanes.push(Lane::Recv(peer)));
                }
                Op::Reduce { .. } | Op::Copy { .. } => {}
            }
            steps.push(Step {
                op,
                first_dependency: dependencies.start,
                end_dependency: dependencies.end,
                first_lane,
                end_lane: lanes.of_steps.len() as u32,
            });
        }
        self.steps = steps.into();
        self.dependencies = tracker.into_dependencies();
        self.step_lanes = lanes.of_steps.into();
        self.lanes = lanes.lanes.into();
    }
}

/// Numbers the lanes in the order in which the program meets them.
#[derive(Default)]
struct LaneTable {
    numbers: HashMap<Lane, LaneIndex>,
    lanes: Vec<Lane>,
    of_steps: Vec<LaneIndex>,
}

impl LaneTable {
    fn push(&mut self, lane: Lane) {
        let index = *self.numbers.entry(lane).or_insert_with(|| {
            self.lanes.push(lane);
            LaneIndex(self.lanes.len() as u32 - 1)
        });
        self.of_steps.push(index);
    }
}

#[cfg(test)]
mod tests;
