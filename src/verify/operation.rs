//! The plans of all ranks for one operation, and what must come of them.

use super::machine::Region;
use crate::algo::Algorithm;
use crate::plan::{Alias, Builder, Collective, Plan, Rank, Shape};
use std::sync::Arc;

/// One collective as all ranks plan it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Which one; for point to point [`Collective::Send`].
    pub collective: Collective,
    /// Who takes part. The root of a send is its receiver.
    pub shape: Shape,
    /// Who sends in a send; nobody otherwise.
    pub sender: Option<Rank>,
    /// How each rank's buffers lie.
    pub aliases: Box<[Alias]>,
    /// Whether the reduction scales every rank's input.
    pub prescale: bool,
    /// What each rank does.
    pub plans: Box<[Arc<Plan>]>,
}

/// What an output element must be, given in blocks (or the whole of a flat buffer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The sum over all ranks of this block of their inputs.
    Sum { block: u32 },
    /// This block of this rank's input.
    Copy { rank: Rank, block: u32 },
}

impl Operation {
    /// A collective of all ranks, which `algorithm` must support. `in_place`: which ranks call in place, where the
    /// collective has such a form.
    pub fn of(
        algorithm: &Algorithm,
        collective: Collective,
        shape: &Shape,
        in_place: impl Fn(Rank) -> bool,
        prescale: bool,
    ) -> Self {
        let aliases: Box<[Alias]> = (0..shape.nranks())
            .map(|rank| collective.in_place(rank, shape).filter(|_| in_place(rank)).unwrap_or(Alias::None))
            .collect();
        let plan =
            |rank: Rank| Arc::new(algorithm.plan(collective, rank, shape, aliases[rank as usize], prescale));
        let plans = (0..shape.nranks()).map(plan).collect();
        Operation { collective, shape: shape.clone(), sender: None, aliases, prescale, plans }
    }

    /// A message from one rank to another one; the others do nothing.
    pub fn transfer(algorithm: &Algorithm, shape: &Shape, from: Rank, to: Rank) -> Self {
        let plan = |rank: Rank| {
            let (collective, peer) =
                if rank == from { (Collective::Send, to) } else { (Collective::Recv, from) };
            let shape = shape.clone().with_root(peer);
            if rank == from || rank == to {
                algorithm.plan(collective, rank, &shape, Alias::None, false)
            } else {
                Builder::new(Collective::Barrier, rank, &shape, 1, Alias::None, false).build()
            }
        };
        Operation {
            collective: Collective::Send,
            shape: shape.clone().with_root(to),
            sender: Some(from),
            aliases: vec![Alias::None; shape.nranks() as usize].into(),
            prescale: false,
            plans: (0..shape.nranks()).map(|rank| Arc::new(plan(rank))).collect(),
        }
    }

    /// Ranks.
    pub fn nranks(&self) -> u32 {
        self.shape.nranks()
    }

    /// What must stand in a block of a rank's output, or in all of a flat one.
    pub(super) fn expected(&self, rank: Rank, block: u32) -> Expected {
        match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Barrier => Expected::Sum { block },
            Collective::ReduceScatter => Expected::Sum { block: rank },
            Collective::AllGather | Collective::Gather => Expected::Copy { rank: block, block: 0 },
            Collective::Broadcast => Expected::Copy { rank: self.shape.root, block },
            Collective::AllToAll => Expected::Copy { rank: block, block: rank },
            Collective::Scatter => Expected::Copy { rank: self.shape.root, block: rank },
            Collective::Send | Collective::Recv => {
                Expected::Copy { rank: self.sender.unwrap_or(self.shape.root), block }
            }
        }
    }

    pub(super) fn is_splittable(&self) -> bool {
        self.plans.iter().all(|plan| plan.is_splittable())
    }

    /// Where a rank's input and output are. `chunk`: cells of a chunk (of a block, for bytes).
    pub(super) fn places(&self, rank: usize, regions: &[Region; 3], chunk: usize) -> (Region, Region) {
        let [input, output, _] = *regions;
        match self.aliases[rank] {
            Alias::None => (input, output),
            Alias::InputAt(at) => (Region { start: output.start + at as usize * chunk, ..input }, output),
            Alias::OutputAt(at) => (input, Region { start: input.start + at as usize * chunk, ..output }),
        }
    }
}
