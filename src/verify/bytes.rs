//! Values as bytes, cut by the partition, and added up without carry from byte to byte.

use super::machine::{Cell, Machine, Region, Schedule, Values};
use super::operation::Expected;
use super::{Fault, Operation, Reason};
use crate::plan::partition::{Cut, Partition, Piece};
use crate::plan::{Layout, Plan, Rank, Span};
use std::ops::Range;

/// Rounds that are under way at once, each with scratch of its own.
const SCRATCH_SETS: usize = 2;

/// The pieces of the walks over one channel.
#[derive(Debug)]
struct Bytes {
    partition: Partition,
    /// By walk.
    pieces: Vec<Piece>,
}

impl Bytes {
    /// Byte `at` of a rank's input, as good as random.
    fn input(rank: Rank, at: u64) -> u8 {
        let mixed =
            (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 37) as u8
    }
}

impl Values for Bytes {
    type Value = u8;

    fn cells(&self, walk: usize, plan: &Plan, span: Span, slice: u32) -> Range<u64> {
        self.partition.bytes(plan, &self.pieces[walk], span, slice)
    }

    fn scale(&mut self, _walk: usize, value: u8) -> Result<u8, Reason> {
        Ok(value)
    }

    fn combine(&mut self, terms: &[u8]) -> Result<u8, Reason> {
        Ok(terms.iter().fold(0, |sum, &term| sum.wrapping_add(term)))
    }

    fn finish(&mut self, value: u8) -> Result<u8, Reason> {
        Ok(value)
    }
}

impl Operation {
    /// Runs all ranks together over the bytes of an operation that is cut like this; the rounds of a channel overlap on
    /// their lanes, with two sets of
    /// scratch. Returns the number of actions.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] met, which may also be that ranks cut differently, or that bytes lie out of bounds.
    pub fn run_bytes(&self, cut: Cut, schedule: Schedule) -> Result<u64, Fault> {
        let partitions: Vec<Partition> = self.plans.iter().map(|plan| Partition::new(plan, cut)).collect();
        let partition = &partitions[0];
        if let Some(rank) = partitions.iter().position(|other| other != partition) {
            return Err(Fault { rank: rank as Rank, step: None, reason: Reason::CutsDiffer });
        }
        let sets: [Vec<[Region; 3]>; SCRATCH_SETS] = std::array::from_fn(|set| {
            self.plans.iter().map(|plan| regions(plan, partition, cut, set)).collect()
        });
        let end = |[.., scratch]: &[Region; 3]| scratch.start + scratch.len;
        let mut memory: Vec<_> =
            sets[SCRATCH_SETS - 1].iter().map(|regions| vec![Cell::default(); end(regions)]).collect();
        self.fill(&mut memory, &sets[0], cut);
        let mut actions = 0;
        for channel in 0..partition.channels() {
            let pieces = (0..partition.rounds()).map(|round| partition.piece(round, channel)).collect();
            let values = Bytes { partition: partition.clone(), pieces };
            let mut machine = Machine::new(values, memory, SCRATCH_SETS, schedule);
            for round in 0..partition.rounds() as usize {
                machine.add_walk(&self.plans, partition.slices(), sets[round % SCRATCH_SETS].clone());
            }
            machine.run(|_, _, _| {})?;
            actions += machine.actions;
            memory = machine.memory;
        }
        self.check_bytes(&memory, &sets[0], cut)?;
        Ok(actions)
    }

    fn fill(&self, memory: &mut [Vec<Cell<u8>>], regions: &[[Region; 3]], cut: Cut) {
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
                    return Err(Fault::of_result(rank as Rank, at, problem));
                }
            }
        }
        Ok(())
    }
}

/// Where a rank's buffers are, with this set of scratch.
fn regions(plan: &Plan, partition: &Partition, cut: Cut, set: usize) -> [Region; 3] {
    let flat = cut.count * u64::from(cut.element);
    let bytes = |layout| match layout {
        Layout::Absent => 0,
        Layout::Flat => flat,
        Layout::Blocked(blocks) => u64::from(blocks) * flat,
    };
    let lens = [bytes(plan.input()), bytes(plan.output()), partition.scratch_bytes(plan)];
    let [input, output, scratch] = lens.map(|len| len as usize);
    [
        Region { start: 0, len: input },
        Region { start: input, len: output },
        Region { start: input + output + set * scratch, len: scratch },
    ]
}
