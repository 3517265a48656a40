//! An ordered set of ranks, seen by one of them.

use crate::plan::{Rank, Shape, Span, Term};

/// The ranks that follow one pattern together, and the place of this rank among them.
///
/// Neighbours are defined by position; buffers are not: whoever builds on a group names a block by the rank that it
/// belongs to. So a pattern means the same over all ranks of a communicator, over those of one host, or over one rank
/// of each host, and larger patterns are compositions of smaller ones.
#[derive(Clone, Debug)]
pub(super) struct Group {
    ranks: Vec<Rank>,
    position: usize,
}

impl Group {
    /// `ranks`, seen by `rank`, which must be one of them.
    pub(super) fn new(ranks: Vec<Rank>, rank: Rank) -> Self {
        let position = ranks.iter().position(|&member| member == rank);
        let position = position.expect("a rank sees only groups that it belongs to");
        Group { ranks, position }
    }

    /// All ranks of a shape, in its order.
    pub(super) fn all(shape: &Shape, rank: Rank) -> Self {
        Group::new(shape.order.to_vec(), rank)
    }

    /// The same members, with `first` in front and the others following as before, around the end.
    pub(super) fn starting_at(mut self, first: Rank) -> Self {
        let rank = self.rank();
        let front = self.ranks.iter().position(|&member| member == first);
        self.ranks.rotate_left(front.expect("the first rank of a group is one of its members"));
        Group::new(self.ranks, rank)
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The members, by position.
    pub(super) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// This rank.
    pub(super) fn rank(&self) -> Rank {
        self.ranks[self.position]
    }

    /// The member that comes `distance` places after this rank, around the end; at most `len` places.
    pub(super) fn ahead(&self, distance: usize) -> Rank {
        self.ranks[(self.position + distance) % self.len()]
    }

    /// The member that comes `distance` places before this rank, around the end; at most `len` places.
    pub(super) fn behind(&self, distance: usize) -> Rank {
        self.ranks[(self.position + self.len() - distance) % self.len()]
    }

    /// All others, from the one after this rank on. If each member walks it to send, and backwards to receive, then
    /// everybody serves another peer at each step.
    pub(super) fn others(&self) -> impl DoubleEndedIterator<Item = Rank> + '_ {
        (1..self.len()).map(|distance| self.ahead(distance))
    }

    /// One term from every member, in the order of rank numbers, so that the result does not depend on who combines
    /// them: `local` of this rank, the next message of each other.
    pub(super) fn terms(&self, local: Span) -> Vec<Term> {
        let mut ranks = self.ranks.clone();
        ranks.sort_unstable();
        let term = |rank| if rank == self.rank() { super::local(local) } else { Term::Peer(rank) };
        ranks.into_iter().map(term).collect()
    }
}
