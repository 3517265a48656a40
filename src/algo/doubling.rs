//! Recursive doubling: whole vectors, exchanged with partners at distances 1, 2, 4, ... For short vectors.
//!
//! With p the largest power of two up to n, the ranks at the first 2(n-p) positions pair up: the odd one hands its
//! values to the even one, which stands for both, and gets the result in the end. In each of log2 p rounds, everybody
//! who is left exchanges what it has with a partner and combines the two.
//!
//! `all_reduce` of n ranks and B bytes: log2 p steps, up to 2 more where n is not a power of two; sent per rank: B log2 p, for
//! the even one of a pair B more, for the odd one B.
//!
//! Partners combine in the same order, lower position first. So by induction they hold the same bits after each round.
//!
//! Source: textbook; Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
//! 2005.

use super::{Algorithm, Group, local};
use crate::plan::{Builder, Collective, Rank, Shape, Span, Term};

pub(super) const DOUBLING: Algorithm = Algorithm { name: "doubling", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    collective == Collective::AllReduce
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    1
}

fn build(b: &mut Builder, _: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    if g.len() == 1 {
        return b.copy(input, output, true);
    }
    let paired = 2 * (g.len() - (1 << g.len().ilog2()));
    if g.position() >= paired {
        exchange(b, &g, paired, input);
    } else if g.position() % 2 == 1 {
        b.send(g.behind(1), input);
        b.recv(g.behind(1), output);
    } else {
        let both = b.scratch_like(input);
        b.recv_reduce(g.ahead(1), input, both, false);
        exchange(b, &g, paired, both);
        b.send(g.ahead(1), output);
    }
}

/// The rounds among all but the odd ones of the first `paired` positions; `held` is what this rank starts with.
///
/// What a rank sends must stay until the partner has it, and the partner may be waiting for the same. So rounds store
/// into another place than they send from, and two ranks alone, which in place send from their output, do not store there
/// before the exchange is over.
fn exchange(b: &mut Builder, g: &Group, paired: usize, mut held: Span) {
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let even = g.ranks()[..paired].iter().step_by(2);
    let members: Vec<Rank> = even.chain(&g.ranks()[paired..]).copied().collect();
    let g = Group::new(members, g.rank());
    let rounds = g.len().ilog2();
    let waits = paired == 0 && rounds == 1 && b.is_in_place();
    let mut spare = Vec::new();
    for round in 0..rounds {
        let partner = g.ranks()[g.position() ^ (1 << round)];
        let last = round + 1 == rounds && !waits;
        if !last && spare.len() < 2 {
            spare.push(b.scratch_like(input));
        }
        let sum = if last { output } else { spare[round as usize % 2] };
        let mut terms = [local(held), Term::Peer(partner)];
        if g.position() & (1 << round) != 0 {
            terms.reverse();
        }
        b.send(partner, held);
        b.recv_reduce_many(&terms, sum, last);
        held = sum;
    }
    if waits {
        b.copy(held, output, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for n in sizes() {
            let (rounds, excess) = (n.ilog2(), n - (1 << n.ilog2()));
            let of = |rank| match rank {
                _ if rank >= 2 * excess => rounds,
                _ if rank % 2 == 0 => rounds + 1,
                _ => 1,
            };
            let traffic = Traffic::of(&DOUBLING, Collective::AllReduce, &Shape::flat(n));
            let steps = if excess > 0 { rounds + 1..=rounds + 2 } else { rounds..=rounds };
            assert!(steps.contains(&traffic.steps), "{n} ranks: {} steps", traffic.steps);
            assert_eq!(traffic.chunks, (0..n).map(of).collect::<Vec<_>>(), "{n} ranks");
            assert_eq!(traffic.messages, traffic.chunks, "{n} ranks");
        }
    }
}
