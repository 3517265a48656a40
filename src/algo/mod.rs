//! The algorithms: pure functions from a shape and a rank to a plan.
//!
//! One file per shape of communication; each head states steps, bytes on the wire and source. An algorithm is a few
//! lines over building blocks, which are functions over a `Group` of ranks; `two_level` is nothing but a composition
//! of the blocks of others. Positions in the order of a shape say who is whose neighbour; blocks are named by rank.
//!
//! For n ranks on H hosts and a vector of B bytes (for gather, scatter and all_to_all: blocks of B bytes); bytes are those
//! that the busiest rank sends, log is the logarithm to base 2:
//!
//! | algorithm          | collectives                | steps        | bytes      | best for                  |
//! |--------------------|----------------------------|--------------|------------|---------------------------|
//! | `ring`             | all_reduce                 | 2(n-1)       | 2(n-1)/n B | long vectors              |
//! |                    | reduce_scatter, all_gather | n-1          | (n-1)/n B  | long vectors              |
//! |                    | broadcast, reduce          | n-1          | B          | long vectors              |
//! | `tree`             | all_reduce                 | 2 log n      | 2 B        | middle lengths, many ranks |
//! |                    | broadcast, reduce          | 1 + log(n-1) | B          | middle lengths, many ranks |
//! | `one_shot`         | all_reduce, broadcast      | 1            | (n-1) B    | a few bytes, few ranks    |
//! |                    | reduce                     | 1            | B          | a few bytes, few ranks    |
//! |                    | gather                     | 1            | B          | all lengths               |
//! |                    | scatter                    | 1            | (n-1) B    | all lengths               |
//! | `direct`           | all_reduce                 | 2            | 2(n-1)/n B | ranks of one host         |
//! |                    | reduce_scatter, all_gather | 1            | (n-1)/n B  | ranks of one host         |
//! | `doubling`         | all_reduce                 | log n (+ 2)  | B log n    | a few bytes, many ranks   |
//! | `halving_doubling` | all_reduce                 | 2 log n      | 2(n-1)/n B | middle lengths            |
//! |                    | reduce_scatter, all_gather | log n        | (n-1)/n B  | short blocks, many ranks  |
//! | `two_level`        | all_reduce                 | 2 H          | see there  | several hosts             |
//! |                    | reduce_scatter, all_gather | H            | see there  | several hosts, all equal  |
//! |                    | broadcast, reduce          | H            | see there  | several hosts             |
//! | `pairwise`         | all_to_all                 | n-1          | (n-1) B    | all lengths               |
//! | `dissemination`    | barrier                    | log n        | tokens     |                           |
//! | `p2p`              | send, recv                 | 1            | B          |                           |

mod direct;
mod dissemination;
mod doubling;
mod group;
mod halving_doubling;
mod one_shot;
mod p2p;
mod pairwise;
mod ring;
#[cfg(test)]
mod traffic;
mod tree;
mod two_level;

use crate::plan::{Alias, Builder, Collective, Operand, Plan, Rank, Shape, Span, Term};
use group::Group;

/// One way to do one or several collectives.
#[derive(Clone, Copy)]
pub struct Algorithm {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// Whether it does a collective on this shape.
    pub supports: fn(Collective, &Shape) -> bool,
    /// Into how many chunks it cuts a flat buffer.
    pub chunks: fn(Collective, &Shape) -> u32,
    /// Writes one rank's program.
    pub build: fn(&mut Builder, Collective, &Shape),
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every algorithm there is. Tests iterate it, the tuner iterates it; there is no other list.
pub const ALL: &[Algorithm] = &[
    ring::RING,
    tree::TREE,
    one_shot::ONE_SHOT,
    direct::DIRECT,
    doubling::DOUBLING,
    halving_doubling::HALVING_DOUBLING,
    two_level::TWO_LEVEL,
    pairwise::PAIRWISE,
    dissemination::DISSEMINATION,
    p2p::P2P,
];

impl Algorithm {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Algorithm> {
        ALL.iter().find(|a| a.name == name)
    }

    /// The plan of one rank.
    ///
    /// # Panics
    ///
    /// If the algorithm does not support the collective on this shape.
    pub fn plan(
        &self,
        collective: Collective,
        rank: Rank,
        shape: &Shape,
        alias: Alias,
        prescale: bool,
    ) -> Plan {
        assert!(
            (self.supports)(collective, shape),
            "{} does no {} of {} ranks on {} hosts; ask `supports` first",
            self.name,
            collective.name(),
            shape.nranks(),
            shape.nhosts()
        );
        let mut builder =
            Builder::new(collective, rank, shape, (self.chunks)(collective, shape), alias, prescale);
        (self.build)(&mut builder, collective, shape);
        builder.build()
    }
}

/// A term of a reduction that is memory of this rank.
fn local(span: Span) -> Term {
    Term::Local(Operand { span, raw: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn names_find_their_algorithms() {
        for algorithm in ALL {
            let found = Algorithm::named(algorithm.name).map(|found| found.name);
            assert_eq!(found, Some(algorithm.name));
        }
        assert!(Algorithm::named("RING").is_none());
    }

    #[test]
    fn a_rank_alone_only_copies() {
        let shape = Shape::flat(1);
        for algorithm in ALL {
            for collective in Collective::of_all_ranks().filter(|c| *c != Collective::Barrier) {
                if (algorithm.supports)(collective, &shape) {
                    let plan = algorithm.plan(collective, 0, &shape, Alias::None, false);
                    assert!(plan.lanes().is_empty(), "{algorithm:?} {}", collective.name());
                    assert_eq!(plan.steps().len(), 1, "{algorithm:?} {}", collective.name());
                }
            }
        }
    }

    #[test]
    fn planning_for_many_ranks_is_quick() {
        let shape = Shape::flat(100_000);
        for name in ["ring", "tree", "doubling", "halving_doubling"] {
            let algorithm = Algorithm::named(name).unwrap();
            let start = Instant::now();
            algorithm.plan(Collective::AllReduce, 54_321, &shape, Alias::InputAt(0), true);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(1), "{name} took {took:?}");
        }
    }

    #[test]
    #[should_panic(expected = "ring does no all_to_all of 4 ranks on 1 hosts")]
    fn a_plan_that_is_not_supported_is_refused() {
        ring::RING.plan(Collective::AllToAll, 0, &Shape::flat(4), Alias::None, false);
    }
}
