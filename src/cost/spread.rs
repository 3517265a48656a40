//! How the messages of a step spread over hosts: how many leave or enter the busiest one together.

use crate::plan::{Rank, Shape};

/// A shape, as the formulas see it.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    pub(super) nranks: u32,
    pub(super) nhosts: u32,
    /// Ranks on the fullest host, and on the emptiest.
    pub(super) most: u32,
    pub(super) fewest: u32,
    /// Between neighbours in the order, around the end.
    pub(super) ring: u32,
    /// For each distance 1, 2, 4, ... below the number of ranks: between partners of recursive doubling.
    pub(super) doubling: Box<[u32]>,
    /// For each round of recursive halving around the ring.
    pub(super) halving: Box<[Halving]>,
    /// For each height of the binary tree over the order: between nodes of that height and their parents.
    pub(super) tree: Box<[u32]>,
    /// Between all its nodes and their parents.
    pub(super) tree_crossing: u32,
}

/// One round of recursive halving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving {
    /// Blocks that each rank sends.
    pub(super) blocks: u32,
    pub(super) crossing: u32,
}

impl Spread {
    pub(super) fn of(shape: &Shape) -> Self {
        let n = shape.nranks() as usize;
        let mut ranks = vec![0; shape.nhosts() as usize];
        for &host in &shape.hosts {
            ranks[host as usize] += 1;
        }
        let mut busiest = Busiest::new(shape);
        let heights = n.ilog2();
        Spread {
            nranks: n as u32,
            nhosts: shape.nhosts(),
            most: ranks.iter().copied().max().unwrap_or(0),
            fewest: ranks.iter().copied().min().unwrap_or(0),
            ring: busiest.of((0..n).map(|at| (at, (at + 1) % n))),
            doubling: doubling(n, &mut busiest),
            halving: halving(n, &mut busiest),
            tree: (0..heights).map(|height| busiest.of(tree_edges(n, height))).collect(),
            tree_crossing: busiest.of((0..heights).flat_map(|height| tree_edges(n, height))),
        }
    }

    /// Ranks outside of the fullest host.
    pub(super) fn outside(&self) -> u32 {
        self.nranks - self.most
    }
}

/// Among the ranks that stay when excess ones have been folded away, every one has a partner at each distance.
fn doubling(n: usize, busiest: &mut Busiest<'_>) -> Box<[u32]> {
    let rounds = n.ilog2();
    let folded = n - (1 << rounds);
    let position = |member: usize| if member < folded { 2 * member } else { member + folded };
    let pairs = |round: u32| (0..1 << rounds).map(move |m: usize| (position(m), position(m ^ (1 << round))));
    (0..rounds).map(|round| busiest.of(pairs(round))).collect()
}

fn halving(n: usize, busiest: &mut Busiest<'_>) -> Box<[Halving]> {
    let mut rounds = Vec::new();
    let mut held = n;
    while held > 1 {
        let distance = held.div_ceil(2);
        let crossing = busiest.of((0..n).map(|at| (at, (at + distance) % n)));
        rounds.push(Halving { blocks: (held / 2) as u32, crossing });
        held = distance;
    }
    rounds.into()
}

/// Nodes of one height and their parents, in the in-order tree over labels 1..=n: the parent of a label with k trailing
/// zeros has k + 1 of them, or more where that one is beyond n.
fn tree_edges(n: usize, height: u32) -> impl Iterator<Item = (usize, usize)> {
    let up = |label: usize| {
        let height = label.trailing_zeros();
        (label & !(1 << height)) | (2 << height)
    };
    let labels = (1usize << height..=n).step_by(2 << height);
    labels.filter_map(move |label| {
        let ancestors = std::iter::successors(Some(up(label)), |&label| Some(up(label)));
        let parent = ancestors.take_while(|&label| label < 4 * n).find(|&label| label <= n)?;
        Some((label - 1, parent - 1))
    })
}

/// Counts messages by host.
struct Busiest<'a> {
    order: &'a [Rank],
    hosts: &'a [u32],
    leaving: Vec<u32>,
    entering: Vec<u32>,
}

impl<'a> Busiest<'a> {
    fn new(shape: &'a Shape) -> Self {
        let nhosts = shape.nhosts() as usize;
        Busiest {
            order: &shape.order,
            hosts: &shape.hosts,
            leaving: vec![0; nhosts],
            entering: vec![0; nhosts],
        }
    }

    /// Messages between positions that leave, or enter, the host where these are most.
    fn of(&mut self, messages: impl Iterator<Item = (usize, usize)>) -> u32 {
        if self.leaving.len() < 2 {
            return 0;
        }
        self.leaving.fill(0);
        self.entering.fill(0);
        let host = |position: usize| self.hosts[self.order[position] as usize] as usize;
        for (from, to) in messages.map(|(from, to)| (host(from), host(to))).filter(|(from, to)| from != to) {
            self.leaving[from] += 1;
            self.entering[to] += 1;
        }
        self.leaving.iter().chain(&self.entering).copied().max().unwrap_or(0)
    }
}
