//! The verifier verified: plans with one random mistake each must be found wrong.

use super::machine::Random;
use super::{Operation, Schedule};
use crate::algo::{ALL, Algorithm};
use crate::plan::{Alias, Buf, Builder, Collective, Op, Plan, Rank, Shape, Span, Term};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mistake {
    /// A step is missing.
    Drop,
    /// A step happens twice.
    Repeat,
    /// Two neighbouring steps change places.
    Swap,
    /// A span is one chunk off.
    Shift,
    /// A message goes to, or is expected from, another rank.
    Peer,
    /// A result is finished too early, or not at all.
    Last,
    /// An operand is scaled that must not be, or the other way round.
    Raw,
    /// Two terms of a reduction change places.
    Terms,
    /// A dependency is missing.
    Dependency,
}

const MISTAKES: [Mistake; 9] = [
    Mistake::Drop,
    Mistake::Repeat,
    Mistake::Swap,
    Mistake::Shift,
    Mistake::Peer,
    Mistake::Last,
    Mistake::Raw,
    Mistake::Terms,
    Mistake::Dependency,
];

/// The program of one rank, before it is built.
struct Program<'a> {
    algorithm: &'a Algorithm,
    collective: Collective,
    shape: &'a Shape,
    alias: Alias,
    rank: Rank,
}

impl Program<'_> {
    fn builder(&self) -> Builder {
        let chunks = (self.algorithm.chunks)(self.collective, self.shape);
        let mut builder = Builder::new(self.collective, self.rank, self.shape, chunks, self.alias, true);
        (self.algorithm.build)(&mut builder, self.collective, self.shape);
        builder
    }

    /// The plan with one mistake of this kind, and whether it is sure to matter; `None` where there is no place for it.
    fn broken(&self, mistake: Mistake, random: &mut Random) -> Option<(Plan, bool)> {
        let right = self.builder().build();
        if mistake == Mistake::Dependency {
            let dependencies = right.dependency_count();
            return (dependencies > 0).then(|| (right.without_dependency(random.below(dependencies)), true));
        }
        let mut builder = self.builder();
        let (ops, terms) = builder.program();
        if ops.is_empty() {
            return None;
        }
        let at = random.below(ops.len());
        let is_barrier = self.collective == Collective::Barrier;
        let mut certain = true;
        match mistake {
            Mistake::Drop => {
                // A token that nobody is told of any more.
                certain = !(is_barrier && matches!(ops[at], Op::Copy { .. }));
                ops.remove(at);
            }
            Mistake::Repeat => {
                // A result that is no message and no operand of itself is the same the second time.
                certain = !right.step_lanes(at as u32).is_empty();
                ops.insert(at, ops[at]);
            }
            Mistake::Swap => {
                if at + 1 == ops.len() || ops[at] == ops[at + 1] {
                    return None;
                }
                // Independent steps may change places, and contributions may come in another order; not so messages.
                let lanes = |step: usize| right.step_lanes(step as u32);
                certain = !is_barrier && lanes(at).iter().any(|lane| lanes(at + 1).contains(lane));
                ops.swap(at, at + 1);
            }
            Mistake::Shift => {
                // A barrier's tokens mean nothing, only who waits for them.
                certain = !is_barrier;
                let mut spans = spans(&mut ops[at], terms);
                let which = random.below(spans.len());
                let span = &mut *spans[which];
                let chunks = match span.buf {
                    Buf::Input => right.input().chunks(right.nchunks()),
                    Buf::Output => right.output().chunks(right.nchunks()),
                    Buf::Scratch => right.scratch().len() as u32,
                };
                if chunks == span.len {
                    return None;
                }
                span.chunk = if span.chunk + span.len < chunks { span.chunk + 1 } else { span.chunk - 1 };
            }
            Mistake::Peer => {
                let peer = peer(&mut ops[at], terms)?;
                *peer = (*peer + 1 + random.below(right.nranks() as usize - 1) as u32) % right.nranks();
            }
            Mistake::Last => match &mut ops[at] {
                Op::RecvReduce { last, .. } | Op::Reduce { last, .. } | Op::Copy { last, .. } => {
                    *last = !*last
                }
                Op::Send { .. } | Op::Recv { .. } => return None,
            },
            Mistake::Raw => match &mut ops[at] {
                Op::Copy { src, .. } => src.raw = !src.raw,
                Op::RecvReduce { terms: range, .. } | Op::Reduce { terms: range, .. } => {
                    let terms = &mut terms[range.start as usize..range.end as usize];
                    let local = terms.iter_mut().find_map(|term| match term {
                        Term::Local(operand) => Some(operand),
                        Term::Peer(_) => None,
                    })?;
                    local.raw = !local.raw;
                }
                Op::Send { .. } | Op::Recv { .. } => return None,
            },
            Mistake::Terms => {
                let (Op::RecvReduce { terms: range, .. } | Op::Reduce { terms: range, .. }) = ops[at] else {
                    return None;
                };
                let terms = &mut terms[range.start as usize..range.end as usize];
                if terms.len() < 3 {
                    return None;
                }
                // Where nobody else computes the same result, any order will do.
                certain = false;
                terms.swap(1, 2);
            }
            Mistake::Dependency => unreachable!("handled above"),
        }
        Some((builder.build(), certain))
    }
}

fn spans<'a>(op: &'a mut Op, terms: &'a mut [Term]) -> Vec<&'a mut Span> {
    match op {
        Op::Send { src, .. } => vec![src],
        Op::Recv { dst, .. } => vec![dst],
        Op::Copy { src, dst, .. } => vec![&mut src.span, dst],
        Op::RecvReduce { terms: range, dst, .. } | Op::Reduce { terms: range, dst, .. } => {
            let terms = &mut terms[range.start as usize..range.end as usize];
            let local = terms.iter_mut().filter_map(|term| match term {
                Term::Local(operand) => Some(&mut operand.span),
                Term::Peer(_) => None,
            });
            local.chain([dst]).collect()
        }
    }
}

fn peer<'a>(op: &'a mut Op, terms: &'a mut [Term]) -> Option<&'a mut Rank> {
    match op {
        Op::Send { to: peer, .. } | Op::Recv { from: peer, .. } => Some(peer),
        Op::RecvReduce { terms: range, .. } => {
            let terms = &mut terms[range.start as usize..range.end as usize];
            terms.iter_mut().find_map(|term| match term {
                Term::Peer(peer) => Some(peer),
                Term::Local(_) => None,
            })
        }
        Op::Reduce { .. } | Op::Copy { .. } => None,
    }
}

/// Whether a mistake in the plan of one rank is found, statically or by one of a few runs.
fn is_found(operation: &Operation) -> bool {
    let run = |seed: u64| {
        let slices = 1 + (seed % 2) as u32;
        operation.run(Schedule { slices, window: u32::MAX, seed }).is_err()
    };
    operation.check().is_err() || (0..6).any(run)
}

#[test]
fn mistakes_in_plans_are_found() {
    let mut counts: BTreeMap<Mistake, u32> = BTreeMap::new();
    let mut missed = Vec::new();
    let mut random = Random::new(1);
    for n in [2, 4, 5, 8] {
        let hosts = (0..n).map(|rank| rank / 2).collect();
        let shape = Shape { hosts, ..Shape::flat(n) };
        for (algorithm, collective) in ALL
            .iter()
            .flat_map(|algorithm| Collective::of_all_ranks().map(move |collective| (algorithm, collective)))
        {
            if !(algorithm.supports)(collective, &shape) {
                continue;
            }
            let right = Operation::of(algorithm, collective, &shape, |rank| rank % 2 == 0, true);
            for mistake in MISTAKES {
                for _ in 0..32 {
                    let rank = random.below(n as usize) as Rank;
                    let alias = right.aliases[rank as usize];
                    let program = Program { algorithm, collective, shape: &shape, alias, rank };
                    let Some((plan, certain)) = program.broken(mistake, &mut random) else { continue };
                    let mut wrong = right.clone();
                    wrong.plans[rank as usize] = Arc::new(plan);
                    *counts.entry(mistake).or_default() += 1;
                    if certain && !is_found(&wrong) {
                        let name = (algorithm.name, collective.name());
                        missed.push(format!("{name:?}, {n} ranks: {mistake:?} on rank {rank}"));
                    }
                }
            }
        }
    }
    assert!(MISTAKES.iter().all(|mistake| counts[mistake] > 20), "too few were made: {counts:?}");
    assert!(missed.is_empty(), "of {counts:?}, {} were not found: {missed:#?}", missed.len());
}
