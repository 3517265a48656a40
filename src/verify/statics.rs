//! What can be said of plans without running them.

use super::{Fault, Operation, Reason};
use crate::plan::{Alias, Buf, Collective, Lane, Layout, Op, Plan, Rank, Span, Term};
use std::collections::HashMap;
use std::ops::Range;

/// Checks one rank's plan on its own.
pub(super) fn check_plan(plan: &Plan, collective: Collective, alias: Alias) -> Result<(), Fault> {
    for (step, op) in (0..).zip(plan.steps().iter().map(|step| step.op)) {
        let fault = |reason| Fault { rank: plan.rank(), step: Some((step, op)), reason };
        let reads: Vec<Span> = plan.reads(&op).map(|operand| operand.span).collect();
        for &span in reads.iter().chain(&op.dst()) {
            check_span(plan, alias, span).map_err(fault)?;
        }
        let first = reads.first().copied().or(op.dst());
        for &other in reads.iter().chain(&op.dst()) {
            if let Some(one) = first.filter(|&one| !same_extent(plan, one, other)) {
                return Err(fault(Reason::ExtentsDiffer { one, other }));
            }
        }
        if let Some(dst) = op.dst() {
            check_destination(alias, &reads, dst).map_err(fault)?;
        }
        check_terms(plan, &op).map_err(fault)?;
        check_meaning(collective, &op).map_err(fault)?;
        if let Some(on) = plan.dependencies(step).iter().map(|on| on.step).find(|&on| on >= step) {
            return Err(fault(Reason::DependsOnLater { on }));
        }
    }
    Ok(())
}

/// Checks that the dependencies order all steps that touch the same memory, whatever the timing.
pub(super) fn check_order(plan: &Plan) -> Result<(), Fault> {
    let before = Before::new(plan);
    // Who has written and read each chunk so far.
    let mut writes: HashMap<(Buf, u32), Vec<(u32, Span)>> = HashMap::new();
    let mut reads: HashMap<(Buf, u32), Vec<(u32, Span)>> = HashMap::new();
    for (step, op) in (0..).zip(plan.steps().iter().map(|step| step.op)) {
        let read = plan.reads(&op).map(|operand| (operand.span, false));
        let accesses: Vec<(Span, bool)> = read.chain(op.dst().map(|dst| (dst, true))).collect();
        for &(span, is_write) in &accesses {
            for chunk in span.chunk..span.chunk + span.len {
                let writers = writes.get(&(span.buf, chunk)).into_iter();
                let readers = reads.get(&(span.buf, chunk)).filter(|_| is_write).into_iter();
                let unordered = |&&(with, other): &&(u32, Span)| !before.holds(step, with, span != other);
                if let Some(&(with, _)) = writers.chain(readers).flatten().find(unordered) {
                    let reason = Reason::Unordered { with };
                    return Err(Fault { rank: plan.rank(), step: Some((step, op)), reason });
                }
            }
        }
        for (span, is_write) in accesses {
            let accesses = if is_write { &mut writes } else { &mut reads };
            for chunk in span.chunk..span.chunk + span.len {
                accesses.entry((span.buf, chunk)).or_default().push((step, span));
            }
        }
    }
    Ok(())
}

/// For each step, which steps are over before it. Two bits each: the same slice, and all slices.
struct Before {
    words: usize,
    bits: Vec<u64>,
}

impl Before {
    /// The first bit of each pair.
    const SAME: u64 = 0x5555_5555_5555_5555;

    fn new(plan: &Plan) -> Self {
        let words = (2 * plan.steps().len()).div_ceil(64);
        let mut bits = Vec::with_capacity(words * plan.steps().len());
        for step in 0..plan.steps().len() as u32 {
            let mut ours = vec![0u64; words];
            for dependency in plan.dependencies(step) {
                let on = dependency.step as usize;
                for (ours, theirs) in ours.iter_mut().zip(&bits[on * words..(on + 1) * words]) {
                    // If it is over as a whole, then in all slices so is what it waited for slice by slice.
                    let widened = if dependency.whole { (theirs & Self::SAME) << 1 } else { 0 };
                    *ours |= theirs | widened;
                }
                let pair = if dependency.whole { 3 } else { 1 };
                ours[on / 32] |= pair << (2 * (on % 32));
            }
            bits.extend(ours);
        }
        Before { words, bits }
    }

    /// Whether `earlier`, its same slice or all of it, is over before a slice of `step`.
    fn holds(&self, step: u32, earlier: u32, whole: bool) -> bool {
        let word = self.bits[step as usize * self.words + earlier as usize / 32];
        word >> (2 * (earlier % 32) + u32::from(whole)) & 1 == 1
    }
}

fn check_span(plan: &Plan, alias: Alias, span: Span) -> Result<(), Reason> {
    let (chunks, layout) = match span.buf {
        Buf::Input => (plan.input().chunks(plan.nchunks()), plan.input()),
        Buf::Output => (plan.output().chunks(plan.nchunks()), plan.output()),
        Buf::Scratch => (plan.scratch().len() as u32, Layout::Absent),
    };
    let Some(end) = span.chunk.checked_add(span.len).filter(|&end| span.len > 0 && end <= chunks) else {
        return Err(Reason::OutOfRange { span, chunks });
    };
    if matches!((alias, span.buf), (Alias::InputAt(_), Buf::Input) | (Alias::OutputAt(_), Buf::Output)) {
        return Err(Reason::Aliased { span });
    }
    if matches!(layout, Layout::Blocked(_)) && span.len > 1 && plan.is_splittable() {
        return Err(Reason::SeveralBlocks { span });
    }
    if span.buf == Buf::Scratch && plan.scratch_run(span.chunk) != plan.scratch_run(end - 1) {
        return Err(Reason::TornScratch { span });
    }
    Ok(())
}

/// Whether two spans of one plan are equally long for every count: chunks of a flat buffer differ, blocks do not.
fn same_extent(plan: &Plan, one: Span, other: Span) -> bool {
    one.len == other.len && (is_blocked(plan) || plan.extent_of(one) == plan.extent_of(other))
}

fn is_blocked(plan: &Plan) -> bool {
    matches!(plan.input(), Layout::Blocked(_)) || matches!(plan.output(), Layout::Blocked(_))
}

fn check_destination(alias: Alias, reads: &[Span], dst: Span) -> Result<(), Reason> {
    if dst.buf == Buf::Input && !matches!(alias, Alias::OutputAt(_)) {
        return Err(Reason::WritesInput { span: dst });
    }
    match reads.iter().find(|&&src| src != dst && src.overlaps(dst)) {
        Some(&src) => Err(Reason::OverlapInPart { src, dst }),
        None => Ok(()),
    }
}

fn check_terms(plan: &Plan, op: &Op) -> Result<(), Reason> {
    let nranks = plan.nranks();
    let peers: Vec<Rank> = match *op {
        Op::Send { to: peer, .. } | Op::Recv { from: peer, .. } => vec![peer],
        Op::RecvReduce { terms, .. } | Op::Reduce { terms, .. } => {
            plan.terms(terms).iter().filter_map(Term::peer).collect()
        }
        Op::Copy { .. } => Vec::new(),
    };
    if let Some(&peer) = peers.iter().find(|&&peer| peer >= nranks) {
        return Err(Reason::NoSuchPeer { peer, nranks });
    }
    if let Some((_, &peer)) = peers.iter().enumerate().find(|(at, peer)| peers[..*at].contains(peer)) {
        return Err(Reason::PeerTwice { peer });
    }
    match *op {
        Op::RecvReduce { .. } if peers.is_empty() => Err(Reason::NoTerms),
        Op::Reduce { terms, .. } if !peers.is_empty() || terms.end - terms.start < 2 => Err(Reason::NoTerms),
        _ => Ok(()),
    }
}

fn check_meaning(collective: Collective, op: &Op) -> Result<(), Reason> {
    let (combines, last) = match *op {
        Op::Send { .. } | Op::Recv { .. } => (false, false),
        Op::RecvReduce { last, .. } | Op::Reduce { last, .. } => (true, last),
        Op::Copy { last, .. } => (false, last),
    };
    if collective.reduces() {
        return Ok(());
    }
    let collective = collective.name();
    match (combines, last) {
        (true, _) => Err(Reason::Combines { collective }),
        (_, true) => Err(Reason::Finishes { collective }),
        (false, false) => Ok(()),
    }
}

/// Steps of one rank and the messages that they get, each as the sender and its step.
pub(super) type Senders = Vec<Vec<(u32, (Rank, u32))>>;

/// Pairs the i-th send of every lane with the i-th receive, and checks that their numbers and lengths agree.
pub(super) fn match_messages(operation: &Operation) -> Result<Senders, Fault> {
    let mut sends: HashMap<(Rank, Rank), Vec<u32>> = HashMap::new();
    let mut receives: HashMap<(Rank, Rank), Vec<u32>> = HashMap::new();
    for plan in &operation.plans {
        for step in 0..plan.steps().len() as u32 {
            for lane in plan.step_lanes(step) {
                match plan.lanes()[lane.0 as usize] {
                    Lane::Send(to) => sends.entry((plan.rank(), to)).or_default().push(step),
                    Lane::Recv(from) => receives.entry((from, plan.rank())).or_default().push(step),
                }
            }
        }
    }
    let mut senders: Senders = vec![Vec::new(); operation.plans.len()];
    let mut lanes: Vec<(Rank, Rank)> = sends.keys().chain(receives.keys()).copied().collect();
    lanes.sort_unstable();
    lanes.dedup();
    for (from, to) in lanes {
        let sends = sends.get(&(from, to)).map_or(&[][..], Vec::as_slice);
        let receives = receives.get(&(from, to)).map_or(&[][..], Vec::as_slice);
        if sends.len() != receives.len() {
            let reason = Reason::Unmatched { to, sends: sends.len(), receives: receives.len() };
            return Err(Fault { rank: from, step: None, reason });
        }
        for (&send, &receive) in sends.iter().zip(receives) {
            check_message(operation, (from, send), (to, receive))?;
            senders[to as usize].push((receive, (from, send)));
        }
    }
    Ok(senders)
}

fn check_message(operation: &Operation, send: (Rank, u32), receive: (Rank, u32)) -> Result<(), Fault> {
    let (sender, receiver) = (&operation.plans[send.0 as usize], &operation.plans[receive.0 as usize]);
    let sent = sender.reads(&sender.steps()[send.1 as usize].op).map(|src| sender.extent_of(src.span)).next();
    let op = receiver.steps()[receive.1 as usize].op;
    let expected = op.dst().map(|dst| receiver.extent_of(dst));
    let blocked = is_blocked(sender) || is_blocked(receiver);
    let comparable = |chunks: Option<Range<u32>>| {
        let chunks = chunks.unwrap_or_default();
        if blocked { 0..chunks.end - chunks.start } else { chunks }
    };
    let (sent, expected) = (comparable(sent), comparable(expected));
    if sent == expected {
        return Ok(());
    }
    let words = |chunks: Range<u32>| format!("chunks {}..{}", chunks.start, chunks.end);
    let (sent, expected) = (words(sent), words(expected));
    let reason = Reason::LengthsDiffer { from: send.0, step: send.1, sent, expected };
    Err(Fault { rank: receive.0, step: Some((receive.1, op)), reason })
}

/// Checks that nobody leaves a barrier before all have entered it.
///
/// A step knows of the ranks whose entry must come before its end, whatever the timing: its own, those that its
/// dependencies know of, and those that the sender of its message knew of.
pub(super) fn check_barrier(operation: &Operation, senders: &Senders) -> Result<(), Fault> {
    let words = operation.plans.len().div_ceil(64);
    let mut known: Vec<Vec<Vec<u64>>> =
        operation.plans.iter().map(|plan| vec![vec![0; words]; plan.steps().len()]).collect();
    for (rank, steps) in known.iter_mut().enumerate() {
        steps.iter_mut().for_each(|step| step[rank / 64] |= 1 << (rank % 64));
    }
    let mut changed = true;
    while changed {
        changed = false;
        for plan in &operation.plans {
            let rank = plan.rank();
            let own = (0..plan.steps().len() as u32)
                .flat_map(|step| plan.dependencies(step).iter().map(move |on| (step, (rank, on.step))));
            for (step, (from, before)) in own.chain(senders[rank as usize].iter().copied()) {
                let theirs = known[from as usize][before as usize].clone();
                for (ours, theirs) in known[rank as usize][step as usize].iter_mut().zip(theirs) {
                    changed |= theirs & !*ours != 0;
                    *ours |= theirs;
                }
            }
        }
    }
    for (rank, steps) in (0..).zip(&known) {
        let knows = |other: u32| {
            other == rank || steps.iter().any(|step| step[other as usize / 64] >> (other % 64) & 1 == 1)
        };
        if let Some(unreached) = (0..operation.nranks()).find(|&other| !knows(other)) {
            return Err(Fault { rank, step: None, reason: Reason::NotReached { unreached } });
        }
    }
    Ok(())
}
