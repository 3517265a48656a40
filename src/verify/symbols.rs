//! Values as expressions, each built once: equal numbers mean equal expressions, and so equal bits.
//!
//! Two terms are combined without order, as floating point does; three or more are combined in one pass, whose rounding
//! may differ from that of a chain of pairs, so it is another expression.

use super::machine::Values;
use super::{Fault, Operation, Reason};
use crate::plan::{Plan, Rank, Span};
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

/// A fault without a step.
pub(super) fn wrong(rank: Rank, at: usize, problem: String) -> Fault {
    Fault { rank, step: None, reason: Reason::Result { at, problem } }
}
