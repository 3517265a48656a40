//! Proof that plans do what their collective promises: public for the command line and benches, but unstable.
//!
//! Messages have no tags, so all ranks' plans form one fixed graph of events. Its outcome does not depend on timing:
//! one symbolic run proves the result for every run, and what is left to show is that nothing races, that nothing
//! waits in a circle, and that both ends of every message mean the same bytes. Three views:
//!
//! * [`Operation::check`]: each plan on its own; messages pair by pair; order of all conflicting steps; for a barrier,
//!   that everybody's exit follows everybody's entry.
//! * [`Operation::run`]: all ranks' executions over *symbols*. Every result is the expression that it was computed by, so
//!   that missing, repeated, unscaled and unfinished contributions show, and results that may differ in bits.
//! * [`Operation::run_bytes`]: the same over the bytes of a cut: rounds, channels, chunks and slices of odd lengths.
//!
//! Architecture Invariant: pure, like everything that it runs.

mod bytes;
mod fault;
mod machine;
#[cfg(test)]
mod mutation;
mod operation;
mod statics;
mod symbols;
#[cfg(test)]
mod tests;

pub use fault::{Fault, Reason};
pub use machine::Schedule;
pub use operation::Operation;

use crate::plan::partition::{Cut, Partition};
use crate::plan::{Alias, Collective, Layout, Rank};
use bytes::Bytes;
use machine::{Cell, Machine, Region};
use operation::Expected;
use symbols::{Symbols, wrong};

/// How a second operation's memory lies relative to that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Elsewhere, and the two overlap in time as the lane rule allows.
    Disjoint,
    /// In the same buffers, and the two overlap in time: this must fail.
    Shared,
    /// In the same buffers; a rank starts the second when it is done with the first.
    Ordered,
}

impl Operation {
    /// Everything that needs no run.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] found.
    pub fn check(&self) -> Result<(), Fault> {
        for (plan, &alias) in self.plans.iter().zip(&self.aliases) {
            statics::check_plan(plan, self.collective, alias)?;
            statics::check_order(plan)?;
        }
        let senders = statics::match_messages(self)?;
        if self.collective == Collective::Barrier {
            statics::check_barrier(self, &senders)?;
        }
        Ok(())
    }

    /// Runs all ranks together over symbols, and returns the number of actions.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] met: a race, a deadlock, messages that do not match, or a wrong result.
    pub fn run(&self, schedule: Schedule) -> Result<u64, Fault> {
        self.run_walks(&[self], Neighbours::Disjoint, schedule)
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
        self.run_walks(&[self, next], neighbours, schedule)
    }

    fn run_walks(
        &self,
        operations: &[&Operation],
        neighbours: Neighbours,
        schedule: Schedule,
    ) -> Result<u64, Fault> {
        let uncut = operations.iter().any(|operation| !operation.is_splittable());
        let slices = if uncut { 1 } else { schedule.slices };
        let mut memory: Vec<Vec<Cell<u32>>> = vec![Vec::new(); self.plans.len()];
        let mut regions = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            assert_eq!(operation.nranks(), self.nranks(), "operations on shared lanes have the same ranks");
            if at > 0 && neighbours != Neighbours::Disjoint {
                regions.push(Vec::clone(&regions[0]));
                continue;
            }
            let allocate = |(rank, memory): (usize, &mut Vec<Cell<u32>>)| {
                let plan = &operation.plans[rank];
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
            };
            regions.push(memory.iter_mut().enumerate().map(allocate).collect::<Vec<_>>());
        }
        let overlap = if neighbours == Neighbours::Ordered { 1 } else { operations.len() };
        let mut machine = Machine::new(Symbols::new(operations, slices), memory, overlap, schedule);
        for (operation, regions) in operations.iter().zip(regions) {
            machine.add_walk(&operation.plans, slices, regions);
        }
        machine.run(|machine, walk, rank| fill_symbols(machine, operations[walk], walk, rank, slices))?;
        for (walk, operation) in operations.iter().enumerate() {
            if neighbours == Neighbours::Disjoint || walk + 1 == operations.len() {
                check_symbols(&machine, operation, walk, slices)?;
            }
        }
        Ok(machine.actions)
    }

    /// Runs all ranks together over the bytes of an operation that is cut like this; the rounds of a channel overlap on
    /// their lanes, with two sets of scratch. Returns the number of actions.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] met, which may also be that ranks cut differently, or that bytes lie out of bounds.
    pub fn run_bytes(&self, cut: Cut, schedule: Schedule) -> Result<u64, Fault> {
        const SCRATCH_SETS: usize = 2;
        let partitions: Vec<Partition> = self.plans.iter().map(|plan| Partition::new(plan, cut)).collect();
        let partition = &partitions[0];
        if let Some(rank) = partitions.iter().position(|other| other != partition) {
            return Err(Fault { rank: rank as Rank, step: None, reason: Reason::CutsDiffer });
        }
        let element = u64::from(cut.element);
        let (mut memory, mut regions) = (Vec::new(), vec![Vec::new(); SCRATCH_SETS]);
        for plan in &self.plans {
            let bytes = |layout| match layout {
                Layout::Absent => 0,
                Layout::Flat => cut.count * element,
                Layout::Blocked(blocks) => u64::from(blocks) * cut.count * element,
            };
            let [input, output, scratch] =
                [bytes(plan.input()), bytes(plan.output()), partition.scratch_bytes(plan)]
                    .map(|len| len as usize);
            for (set, regions) in regions.iter_mut().enumerate() {
                regions.push([
                    Region { start: 0, len: input },
                    Region { start: input, len: output },
                    Region { start: input + output + set * scratch, len: scratch },
                ]);
            }
            memory.push(vec![Cell::default(); input + output + SCRATCH_SETS * scratch]);
        }
        self.fill_bytes(&mut memory, &regions[0], cut);
        let mut actions = 0;
        for channel in 0..partition.channels() {
            let pieces = (0..partition.rounds()).map(|round| partition.piece(round, channel)).collect();
            let values = Bytes { partition: partition.clone(), pieces };
            let mut machine = Machine::new(values, memory, SCRATCH_SETS, schedule);
            for round in 0..partition.rounds() {
                let regions = regions[round as usize % SCRATCH_SETS].clone();
                machine.add_walk(&self.plans, partition.slices(), regions);
            }
            machine.run(|_, _, _| {})?;
            actions += machine.actions;
            memory = machine.memory;
        }
        self.check_bytes(&memory, &regions[0], cut)?;
        Ok(actions)
    }

    fn is_splittable(&self) -> bool {
        self.plans.iter().all(|plan| plan.is_splittable())
    }

    fn fill_bytes(&self, memory: &mut [Vec<Cell<u8>>], regions: &[[Region; 3]], cut: Cut) {
        for (rank, memory) in memory.iter_mut().enumerate() {
            let (start, _) = self.places(rank, &regions[rank], cut.count as usize * cut.element as usize);
            for (at, cell) in memory[start.start..start.start + start.len].iter_mut().enumerate() {
                cell.fill(Bytes::input(rank as Rank, at as u64));
            }
        }
    }

    fn check_bytes(&self, memory: &[Vec<Cell<u8>>], regions: &[[Region; 3]], cut: Cut) -> Result<(), Fault> {
        let block = cut.count * u64::from(cut.element);
        for (rank, memory) in memory.iter().enumerate() {
            let (_, output) = self.places(rank, &regions[rank], block as usize);
            for at in 0..output.len {
                let (blocks, within) = match self.plans[rank].output() {
                    Layout::Blocked(_) => (at as u64 / block, at as u64 % block),
                    Layout::Flat | Layout::Absent => (0, at as u64),
                };
                let wanted = match self.expected(rank as Rank, blocks as u32) {
                    Expected::Copy { rank, block: from } => {
                        Bytes::input(rank, u64::from(from) * block + within)
                    }
                    Expected::Sum { block: from } => (0..self.nranks()).fold(0u8, |sum, rank| {
                        sum.wrapping_add(Bytes::input(rank, u64::from(from) * block + within))
                    }),
                };
                let found = &memory[output.start + at];
                if !found.defined || found.value != wanted {
                    let problem =
                        format!("found {} instead of {wanted}, defined: {}", found.value, found.defined);
                    return Err(wrong(rank as Rank, at, problem));
                }
            }
        }
        Ok(())
    }

    /// Where a rank's input and output are. `chunk`: cells of a chunk (of a block, for bytes).
    fn places(&self, rank: usize, regions: &[Region; 3], chunk: usize) -> (Region, Region) {
        let [input, output, _] = *regions;
        match self.aliases[rank] {
            Alias::None => (input, output),
            Alias::InputAt(at) => (Region { start: output.start + at as usize * chunk, ..input }, output),
            Alias::OutputAt(at) => (input, Region { start: input.start + at as usize * chunk, ..output }),
        }
    }
}

/// The number that tells units of one walk's input from those of another.
fn unit(walk: usize, unit: usize) -> u32 {
    (walk as u32) << 28 | unit as u32
}

/// What the caller puts into the input of `rank`. Memory that is still in use stays as it is: the program will race on
/// it, or miss its input.
fn fill_symbols(machine: &mut Machine<Symbols>, operation: &Operation, walk: usize, rank: Rank, slices: u32) {
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

fn check_symbols(
    machine: &Machine<Symbols>,
    operation: &Operation,
    walk: usize,
    slices: u32,
) -> Result<(), Fault> {
    let mut first: Option<(Rank, Vec<u32>)> = None;
    for rank in 0..operation.nranks() {
        let regions = machine.walks[walk].regions[rank as usize];
        let (_, output) = operation.places(rank as usize, &regions, slices as usize);
        let cells = &machine.memory[rank as usize][output.start..output.start + output.len];
        if let Some(at) = cells.iter().position(|cell| !cell.defined) {
            return Err(wrong(rank, at, "nothing was written to it".into()));
        }
        let results: Vec<u32> = cells.iter().map(|cell| cell.value).collect();
        if let Some((other, theirs)) =
            first.as_ref().filter(|_| operation.collective == Collective::AllReduce)
        {
            if let Some(at) = (0..results.len()).find(|&at| results[at] != theirs[at]) {
                // Say what is missing, if anything is; else the order differs.
                check_unit(machine, operation, walk, rank, slices, at, results[at])?;
                return Err(Fault { rank, step: None, reason: Reason::Bits { at, other: *other } });
            }
            continue;
        }
        for (at, &found) in results.iter().enumerate() {
            check_unit(machine, operation, walk, rank, slices, at, found)?;
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
    slices: u32,
    at: usize,
    found: u32,
) -> Result<(), Fault> {
    let slices = slices as usize;
    let from = |block: u32| unit(walk, block as usize * slices + at % slices);
    let checked = match operation.expected(rank, (at / slices) as u32) {
        Expected::Sum { block } => machine.values.check_sum(found, from(block), operation.nranks()),
        Expected::Copy { rank, block } => machine.values.check_copy(found, rank, from(block)),
    };
    checked.map_err(|problem| wrong(rank, at, problem))
}
