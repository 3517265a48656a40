//! What the plans of all ranks put on the wire, for tests of the formulas that the files state.

use super::Algorithm;
use crate::plan::{Alias, Collective, Op, Plan, Rank, Shape, Term};
use std::collections::HashMap;

/// Numbers of ranks that formulas are tested for.
pub(super) fn sizes() -> impl Iterator<Item = u32> {
    (1..=17).chain([64])
}

/// What one operation sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Messages on the longest chain of messages that wait for each other.
    pub(super) steps: u32,
    /// Messages that each rank sends.
    pub(super) messages: Vec<u32>,
    /// Chunks or blocks that each rank sends.
    pub(super) chunks: Vec<u32>,
}

impl Traffic {
    pub(super) fn of(algorithm: &Algorithm, collective: Collective, shape: &Shape) -> Self {
        let plan = |rank| algorithm.plan(collective, rank, shape, Alias::None, false);
        let plans: Vec<Plan> = (0..shape.nranks()).map(plan).collect();
        let sent = |plan: &Plan| plan.steps().iter().filter_map(|step| sent_by(&step.op)).collect::<Vec<_>>();
        Traffic {
            steps: longest_chain(&plans),
            messages: plans.iter().map(|plan| sent(plan).len() as u32).collect(),
            chunks: plans.iter().map(|plan| sent(plan).iter().map(|&(_, chunks)| chunks).sum()).collect(),
        }
    }

    /// Asserts that every rank sends this.
    pub(super) fn assert_all(&self, steps: u32, messages: u32, chunks: u32) {
        let n = self.messages.len();
        let expected = Traffic { steps, messages: vec![messages; n], chunks: vec![chunks; n] };
        assert_eq!(*self, expected, "{n} ranks");
    }
}

fn sent_by(op: &Op) -> Option<(Rank, u32)> {
    match *op {
        Op::Send { to, src } => Some((to, src.len)),
        _ => None,
    }
}

/// Gives every step the number of messages that must come before its end, one after the other.
fn longest_chain(plans: &[Plan]) -> u32 {
    let awaited: Vec<_> = plans.iter().map(|plan| awaited_by(plan, plans)).collect();
    let mut levels: Vec<Vec<Option<u32>>> = plans.iter().map(|plan| vec![None; plan.steps().len()]).collect();
    let mut unknown: Vec<(usize, usize)> =
        plans.iter().enumerate().flat_map(|(p, plan)| (0..plan.steps().len()).map(move |s| (p, s))).collect();
    while !unknown.is_empty() {
        let before = unknown.len();
        unknown.retain(|&(p, s)| {
            let local = plans[p].dependencies(s as u32).iter().map(|d| levels[p][d.step as usize]);
            let arrived = awaited[p][s].iter().map(|&(from, step)| Some(levels[from][step]? + 1));
            levels[p][s] = local.chain(arrived).try_fold(0, |level, next| Some(level.max(next?)));
            levels[p][s].is_none()
        });
        assert!(unknown.len() < before, "steps wait for each other: {unknown:?}");
    }
    levels.into_iter().flatten().flatten().max().unwrap_or(0)
}

/// For each step of a plan, the sends (rank and step) that it receives from.
fn awaited_by(plan: &Plan, plans: &[Plan]) -> Vec<Vec<(usize, usize)>> {
    let mut received: HashMap<Rank, usize> = HashMap::new();
    let mut sender = |from: Rank| {
        let count = received.entry(from).or_default();
        *count += 1;
        let sends = plans[from as usize].steps().iter().enumerate();
        let mut sends = sends.filter(|(_, step)| sent_by(&step.op).is_some_and(|(to, _)| to == plan.rank()));
        let (step, _) = sends.nth(*count - 1).expect("every receive has its send");
        (from as usize, step)
    };
    let of = |op: &Op| match *op {
        Op::Recv { from, .. } => vec![sender(from)],
        Op::RecvReduce { terms, .. } => {
            plan.terms(terms).iter().filter_map(Term::peer).map(&mut sender).collect()
        }
        Op::Send { .. } | Op::Reduce { .. } | Op::Copy { .. } => Vec::new(),
    };
    plan.steps().iter().map(|step| &step.op).map(of).collect()
}
