//! The collectives: which buffers they have, and what must stand in them afterwards.

use super::{Alias, Rank};

/// A collective operation. Its root (or, for send and receive, its peer) is part of the [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "the field's standard names")]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    Barrier,
    Send,
    Recv,
}

/// How a buffer is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The rank has no such buffer.
    Absent,
    /// `count` elements, cut into the plan's `nchunks`.
    Flat,
    /// This many blocks of `count` elements one after the other; chunk i is (the round's part of) block i.
    Blocked(u32),
}

impl Layout {
    /// Chunks of the buffer, where a flat one is cut into `nchunks`.
    pub const fn chunks(self, nchunks: u32) -> u32 {
        match self {
            Layout::Absent => 0,
            Layout::Flat => nchunks,
            Layout::Blocked(blocks) => blocks,
        }
    }
}

impl Collective {
    /// Every one, in the order of their codes: `ALL[c as usize]` is `c`. There is no other list.
    pub const ALL: [Collective; 11] = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
        Collective::Gather,
        Collective::Scatter,
        Collective::Barrier,
        Collective::Send,
        Collective::Recv,
    ];

    /// Those that all ranks call together: all but send and receive.
    pub fn of_all_ranks() -> impl DoubleEndedIterator<Item = Collective> + Clone {
        Self::ALL.into_iter().filter(|collective| !collective.is_point_to_point())
    }
    /// The one of a code, which is what `as u8` makes of it.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
    /// Its name in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllToAll => "all_to_all",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Barrier => "barrier",
            Collective::Send => "send",
            Collective::Recv => "recv",
        }
    }
    /// Whether it is between two ranks: a send or a receive.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Collective::Send | Collective::Recv)
    }
    /// Whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }
    /// Whether one rank is special.
    pub const fn has_root(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }
    /// How `rank`'s input is cut. `count` of a blocked buffer is that of one block.
    pub fn input(self, rank: Rank, shape: &Shape) -> Layout {
        self.input_at(rank == shape.root, shape.nranks())
    }
    /// How `rank`'s output is cut.
    pub fn output(self, rank: Rank, shape: &Shape) -> Layout {
        self.output_at(rank == shape.root, shape.nranks())
    }
    /// How the input of the root, or of another rank, is cut.
    pub fn input_at(self, root: bool, nranks: u32) -> Layout {
        match self {
            Collective::AllReduce | Collective::Reduce | Collective::Barrier | Collective::Send => {
                Layout::Flat
            }
            Collective::Broadcast if root => Layout::Flat,
            Collective::ReduceScatter | Collective::AllToAll => Layout::Blocked(nranks),
            Collective::Scatter if root => Layout::Blocked(nranks),
            Collective::AllGather | Collective::Gather => Layout::Blocked(1),
            Collective::Broadcast | Collective::Scatter | Collective::Recv => Layout::Absent,
        }
    }
    /// How the output of the root, or of another rank, is cut.
    pub fn output_at(self, root: bool, nranks: u32) -> Layout {
        match self {
            Collective::AllReduce | Collective::Broadcast | Collective::Recv => Layout::Flat,
            Collective::Reduce if root => Layout::Flat,
            Collective::AllGather | Collective::AllToAll => Layout::Blocked(nranks),
            Collective::Gather if root => Layout::Blocked(nranks),
            Collective::ReduceScatter | Collective::Scatter => Layout::Blocked(1),
            Collective::Reduce | Collective::Gather | Collective::Barrier | Collective::Send => {
                Layout::Absent
            }
        }
    }
    /// How the buffers of an in-place call of `rank` lie in each other; `None` where it has only one buffer, or no
    /// in-place form.
    pub fn in_place(self, rank: Rank, shape: &Shape) -> Option<Alias> {
        match self {
            Collective::AllReduce => Some(Alias::InputAt(0)),
            Collective::Broadcast | Collective::Reduce if rank == shape.root => Some(Alias::InputAt(0)),
            Collective::AllGather => Some(Alias::InputAt(rank)),
            Collective::ReduceScatter => Some(Alias::OutputAt(rank)),
            Collective::Gather if rank == shape.root => Some(Alias::InputAt(rank)),
            Collective::Scatter if rank == shape.root => Some(Alias::OutputAt(rank)),
            Collective::Broadcast
            | Collective::Reduce
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::Barrier
            | Collective::Send
            | Collective::Recv => None,
        }
    }
}

/// Who takes part, and where they are. The same on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// A permutation of the ranks: the order in which they follow each other on rings and in trees. Blocks are always
    /// named by rank, never by position in here.
    pub order: Box<[Rank]>,
    /// The host of each rank, by rank. Hosts are numbered from 0 in order of first appearance.
    pub hosts: Box<[u32]>,
    /// The root of a rooted collective, the peer of a send or receive; 0 otherwise.
    pub root: Rank,
}

impl Shape {
    /// `nranks` ranks in their natural order, all on one host.
    pub fn flat(nranks: u32) -> Self {
        Shape { order: (0..nranks).collect(), hosts: vec![0; nranks as usize].into(), root: 0 }
    }
    /// The same with another root.
    pub fn with_root(mut self, root: Rank) -> Self {
        self.root = root;
        self
    }
    /// Ranks.
    pub fn nranks(&self) -> u32 {
        self.order.len() as u32
    }
    /// Hosts.
    pub fn nhosts(&self) -> u32 {
        self.hosts.iter().max().map_or(0, |h| h + 1)
    }
    /// Ranks on the host of a rank, with itself.
    pub fn ranks_beside(&self, rank: Rank) -> u32 {
        let host = self.hosts[rank as usize];
        self.hosts.iter().filter(|&&other| other == host).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back_to_their_collective() {
        for (code, collective) in (0..).zip(Collective::ALL) {
            assert_eq!((collective as u8, Collective::from_code(code)), (code, Some(collective)));
            let of_this_name = Collective::ALL.into_iter().filter(|other| other.name() == collective.name());
            assert_eq!(of_this_name.collect::<Vec<_>>(), [collective]);
        }
        assert_eq!(Collective::from_code(Collective::ALL.len() as u8), None);
    }

    #[test]
    fn all_but_two_are_of_all_ranks() {
        assert_eq!(Collective::of_all_ranks().count(), Collective::ALL.len() - 2);
        assert!(Collective::of_all_ranks().all(|collective| !collective.is_point_to_point()));
    }
}
