//! Values as expressions, each built once: equal numbers mean equal expressions, and so equal bits.
//!
//! Two terms are combined without order, as floating point does; three or more are combined in one pass, whose rounding
//! may differ from that of a chain of pairs, so it is another expression.

use super::machine::{Cell, Machine, Region, Schedule, Values};
use super::operation::Expected;
use super::{Fault, Neighbours, Operation, Reason};
use crate::plan::{Collective, Plan, Rank, Span};
use std::collections::HashMap;
use std::ops::Range;

/// A number of an expression.
pub(super) type Symbol = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Expression {
    /// A unit of a rank's input.
    Input(Rank, u32),
    /// A contribution that its owner has scaled.
    Scaled(Symbol),
    /// Two terms, the smaller number first.
    Pair(Symbol, Symbol),
    /// One more term of the same pass.
    Further(Symbol, Symbol),
    Finished(Symbol),
}

/// All expressions of a run, over units: slices of single chunks.
#[derive(Debug)]
pub(super) struct Symbols {
    expressions: Vec<Expression>,
    /// Whether every contribution in an expression is scaled.
    scaled: Vec<bool>,
    numbers: HashMap<Expression, Symbol>,
    slices: u32,
    /// By walk, whether contributions are to be scaled.
    prescale: Vec<bool>,
}

impl Symbols {
    pub(super) fn new(operations: &[&Operation], slices: u32) -> Self {
        let prescales = |operation: &&Operation| operation.prescale && operation.collective.reduces();
        Symbols {
            expressions: Vec::new(),
            scaled: Vec::new(),
            numbers: HashMap::new(),
            slices,
            prescale: operations.iter().map(prescales).collect(),
        }
    }

    pub(super) fn input(&mut self, walk: usize, rank: Rank, unit: u32) -> Symbol {
        self.number(Expression::Input(rank, unit), !self.prescale[walk])
    }

    fn number(&mut self, expression: Expression, scaled: bool) -> Symbol {
        *self.numbers.entry(expression).or_insert_with(|| {
            self.expressions.push(expression);
            self.scaled.push(scaled);
            self.expressions.len() as Symbol - 1
        })
    }

    fn is_finished(&self, symbol: Symbol) -> bool {
        matches!(self.expressions[symbol as usize], Expression::Finished(_))
    }

    /// Checks that a symbol is the finished sum of this unit of every rank's input, each once.
    pub(super) fn check_sum(&self, symbol: Symbol, unit: u32, nranks: u32) -> Result<(), String> {
        let Expression::Finished(sum) = self.expressions[symbol as usize] else {
            return Err("it was not finished".into());
        };
        let mut times = vec![0u32; nranks as usize];
        let mut stack = vec![sum];
        while let Some(symbol) = stack.pop() {
            match self.expressions[symbol as usize] {
                Expression::Pair(a, b) | Expression::Further(a, b) => stack.extend([a, b]),
                Expression::Scaled(of) | Expression::Finished(of) => stack.push(of),
                Expression::Input(rank, theirs) if theirs == unit => {
                    times[rank as usize] += 1;
                    if times[rank as usize] > 1 {
                        return Err(format!("it has rank {rank}'s contribution twice"));
                    }
                }
                Expression::Input(rank, theirs) => {
                    return Err(format!("it has unit {theirs} of rank {rank}'s input, not unit {unit}"));
                }
            }
        }
        match times.iter().position(|&times| times == 0) {
            Some(rank) => Err(format!("rank {rank}'s contribution is missing")),
            None if !self.scaled[symbol as usize] => Err("a contribution was not scaled".into()),
            None => Ok(()),
        }
    }

    /// Checks that a symbol is this unit of this rank's input.
    pub(super) fn check_copy(&self, symbol: Symbol, rank: Rank, unit: u32) -> Result<(), String> {
        match self.expressions[symbol as usize] {
            Expression::Input(found, theirs) if (found, theirs) == (rank, unit) => Ok(()),
            Expression::Input(found, theirs) => {
                Err(format!("it is unit {theirs} of rank {found}, not unit {unit} of rank {rank}"))
            }
            _ => Err(format!("it is a result, not unit {unit} of rank {rank}")),
        }
    }
}

impl Values for Symbols {
    type Value = Symbol;

    fn cells(&self, _walk: usize, _plan: &Plan, span: Span, slice: u32) -> Range<u64> {
        let first = u64::from(span.chunk) * u64::from(self.slices) + u64::from(slice) * u64::from(span.len);
        first..first + u64::from(span.len)
    }

    fn scale(&mut self, walk: usize, value: Symbol) -> Result<Symbol, Reason> {
        if !self.prescale[walk] {
            return Ok(value);
        }
        match self.expressions[value as usize] {
            Expression::Input(..) => Ok(self.number(Expression::Scaled(value), true)),
            _ => Err(Reason::ScalesTwice),
        }
    }

    fn combine(&mut self, terms: &[Symbol]) -> Result<Symbol, Reason> {
        if terms.iter().any(|&term| self.is_finished(term)) {
            return Err(Reason::CombinesFinished);
        }
        if terms.iter().any(|&term| !self.scaled[term as usize]) {
            return Err(Reason::CombinesUnscaled);
        }
        let (first, second) = (terms[0].min(terms[1]), terms[0].max(terms[1]));
        let mut value = self.number(Expression::Pair(first, second), true);
        for &term in &terms[2..] {
            value = self.number(Expression::Further(value, term), true);
        }
        Ok(value)
    }

    fn finish(&mut self, value: Symbol) -> Result<Symbol, Reason> {
        if self.is_finished(value) {
            return Err(Reason::FinishesTwice);
        }
        Ok(self.number(Expression::Finished(value), self.scaled[value as usize]))
    }
}

impl Operation {
    /// Runs all ranks together over symbols, and returns the number of actions.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] met: a race, a deadlock, messages that do not match, or a wrong result.
    pub fn run(&self, schedule: Schedule) -> Result<u64, Fault> {
        run_walks(&[self], Neighbours::Disjoint, schedule)
    }

    /// Runs this operation and then another one, which all ranks start without waiting for each other.
    ///
    /// # Errors
    ///
    /// As for [`run`](Operation::run). With [`Neighbours::Shared`] a fault is what should come.
    ///
    /// # Panics
    ///
    /// When the two differ in ranks or, sharing buffers, in layouts.
    pub fn run_then(
        &self,
        next: &Operation,
        neighbours: Neighbours,
        schedule: Schedule,
    ) -> Result<u64, Fault> {
        run_walks(&[self, next], neighbours, schedule)
    }
}

fn run_walks(operations: &[&Operation], neighbours: Neighbours, schedule: Schedule) -> Result<u64, Fault> {
    let uncut = operations.iter().any(|operation| !operation.is_splittable());
    let slices = if uncut { 1 } else { schedule.slices };
    let mut memory = vec![Vec::new(); operations[0].plans.len()];
    let mut regions: Vec<Vec<[Region; 3]>> = Vec::new();
    for operation in operations {
        assert_eq!(operation.plans.len(), memory.len(), "operations on shared lanes have the same ranks");
        regions.push(match regions.first() {
            Some(first) if neighbours != Neighbours::Disjoint => first.clone(),
            _ => operation
                .plans
                .iter()
                .zip(&mut memory)
                .map(|(plan, memory)| allocate(memory, plan, slices))
                .collect(),
        });
    }
    let overlap = if neighbours == Neighbours::Ordered { 1 } else { operations.len() };
    let mut machine = Machine::new(Symbols::new(operations, slices), memory, overlap, schedule);
    for (operation, regions) in operations.iter().zip(regions) {
        machine.add_walk(&operation.plans, slices, regions);
    }
    machine.run(|machine, walk, rank| fill(machine, operations[walk], walk, rank))?;
    for (walk, operation) in operations.iter().enumerate() {
        if neighbours == Neighbours::Disjoint || walk + 1 == operations.len() {
            check_results(&machine, operation, walk)?;
        }
    }
    Ok(machine.actions)
}

/// Memory for the input, output and scratch of a plan.
fn allocate(memory: &mut Vec<Cell<Symbol>>, plan: &Plan, slices: u32) -> [Region; 3] {
    let chunks = [
        plan.input().chunks(plan.nchunks()),
        plan.output().chunks(plan.nchunks()),
        plan.scratch().len() as u32,
    ];
    chunks.map(|chunks| {
        let region = Region { start: memory.len(), len: (chunks * slices) as usize };
        memory.resize(region.start + region.len, Cell::default());
        region
    })
}

/// The number that tells units of one walk's input from those of another.
fn unit(walk: usize, unit: usize) -> u32 {
    (walk as u32) << 28 | unit as u32
}

/// What the caller puts into the input of `rank`. Memory that is still in use stays as it is: the program will race on
/// it, or miss its input.
fn fill(machine: &mut Machine<Symbols>, operation: &Operation, walk: usize, rank: Rank) {
    let slices = machine.values.slices;
    let regions = machine.walks[walk].regions[rank as usize];
    let (input, _) = operation.places(rank as usize, &regions, slices as usize);
    for at in 0..input.len {
        let value = machine.values.input(walk, rank, unit(walk, at));
        let cell = &mut machine.memory[rank as usize][input.start + at];
        if !cell.is_used() {
            cell.fill(value);
        }
    }
}

fn check_results(machine: &Machine<Symbols>, operation: &Operation, walk: usize) -> Result<(), Fault> {
    let slices = machine.values.slices;
    let mut first: Option<(Rank, Vec<u32>)> = None;
    for rank in 0..operation.nranks() {
        let regions = machine.walks[walk].regions[rank as usize];
        let (_, output) = operation.places(rank as usize, &regions, slices as usize);
        let cells = &machine.memory[rank as usize][output.start..output.start + output.len];
        if let Some(at) = cells.iter().position(|cell| !cell.defined) {
            return Err(Fault::of_result(rank, at, "nothing was written to it".into()));
        }
        let results: Vec<u32> = cells.iter().map(|cell| cell.value).collect();
        if let Some((other, theirs)) =
            first.as_ref().filter(|_| operation.collective == Collective::AllReduce)
        {
            if let Some(at) = (0..results.len()).find(|&at| results[at] != theirs[at]) {
                // Say what is missing, if anything is; else the order differs.
                check_unit(machine, operation, walk, rank, at, results[at])?;
                return Err(Fault { rank, step: None, reason: Reason::Bits { at, other: *other } });
            }
            continue;
        }
        for (at, &found) in results.iter().enumerate() {
            check_unit(machine, operation, walk, rank, at, found)?;
        }
        first.get_or_insert((rank, results));
    }
    Ok(())
}

fn check_unit(
    machine: &Machine<Symbols>,
    operation: &Operation,
    walk: usize,
    rank: Rank,
    at: usize,
    found: u32,
) -> Result<(), Fault> {
    let slices = machine.values.slices as usize;
    let from = |block: u32| unit(walk, block as usize * slices + at % slices);
    let checked = match operation.expected(rank, (at / slices) as u32) {
        Expected::Sum { block } => machine.values.check_sum(found, from(block), operation.nranks()),
        Expected::Copy { rank, block } => machine.values.check_copy(found, rank, from(block)),
    };
    checked.map_err(|problem| Fault::of_result(rank, at, problem))
}
