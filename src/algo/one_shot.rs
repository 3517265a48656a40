//! One-shot: everything in one step, for vectors so short that only the number of steps counts.
//!
//! With n ranks and a vector (for gather and scatter: a block) of B bytes:
//!
//! | collective   | steps | bytes sent per rank          |
//! |--------------|-------|------------------------------|
//! | `all_reduce` | 1     | (n-1) B                      |
//! | `reduce`     | 1     | B, the root 0                |
//! | `broadcast`  | 1     | the root (n-1) B, others 0   |
//! | `gather`     | 1     | B, the root 0                |
//! | `scatter`    | 1     | the root (n-1) B, others 0   |
//!
//! Reductions combine all ranks' values in one pass in the order of rank numbers. So every rank of an all_reduce gets
//! the same bits, and 16-bit floats are rounded once.
//!
//! Source: textbook ("flat tree", "all-to-all broadcast").

use super::{Algorithm, Group};
use crate::plan::{Builder, Collective, Rank, Shape, Span};

pub(super) const ONE_SHOT: Algorithm = Algorithm { name: "one_shot", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    use Collective::*;
    matches!(collective, AllReduce | Reduce | Broadcast | Gather | Scatter)
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    1
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let is_root = g.rank() == shape.root;
    match collective {
        Collective::AllReduce => all_reduce(b, &g),
        Collective::Reduce if is_root => combine(b, &g, input, output, true),
        Collective::Reduce => b.send(shape.root, input),
        Collective::Broadcast => {
            broadcast(b, &g, shape.root, if is_root { input } else { output });
            if is_root {
                b.copy(input, output, false);
            }
        }
        Collective::Gather if is_root => {
            for from in g.others().rev() {
                b.recv(from, Span::output(from, 1));
            }
            b.copy(input, Span::output(g.rank(), 1), false);
        }
        Collective::Gather => b.send(shape.root, input),
        Collective::Scatter if is_root => {
            for to in g.others() {
                b.send(to, Span::input(to, 1));
            }
            b.copy(Span::input(g.rank(), 1), output, false);
        }
        Collective::Scatter => b.recv(shape.root, output),
        _ => unreachable!("`supports` says no"),
    }
}

/// In place the sum waits in scratch: a rank could otherwise neither store it before all peers had taken its input, nor
/// take theirs.
fn all_reduce(b: &mut Builder, g: &Group) {
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    if g.len() == 1 {
        return b.copy(input, output, true);
    }
    for to in g.others() {
        b.send(to, input);
    }
    if !b.is_in_place() {
        return combine(b, g, input, output, true);
    }
    let sum = b.scratch_like(input);
    combine(b, g, input, sum, false);
    b.copy(sum, output, true);
}

/// Combines `local` and the next message of every other member in `dst`.
pub(super) fn combine(b: &mut Builder, g: &Group, local: Span, dst: Span, last: bool) {
    if g.len() == 1 {
        return b.copy(local, dst, last);
    }
    b.recv_reduce_many(&g.terms(local), dst, last);
}

/// Brings `held` of the root to `held` of every other member.
pub(super) fn broadcast(b: &mut Builder, g: &Group, root: Rank, held: Span) {
    if g.rank() != root {
        return b.recv(root, held);
    }
    for to in g.others() {
        b.send(to, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for (n, root) in sizes().flat_map(|n| [(n, 0), (n, n / 2)]) {
            let shape = Shape::flat(n).with_root(root);
            let steps = u32::from(n > 1);
            Traffic::of(&ONE_SHOT, Collective::AllReduce, &Shape::flat(n)).assert_all(steps, n - 1, n - 1);
            for (collective, of_root, of_others) in [
                (Collective::Reduce, 0, 1),
                (Collective::Gather, 0, 1),
                (Collective::Broadcast, n - 1, 0),
                (Collective::Scatter, n - 1, 0),
            ] {
                let traffic = Traffic::of(&ONE_SHOT, collective, &shape);
                let expected: Vec<u32> =
                    (0..n).map(|rank| if rank == root { of_root } else { of_others }).collect();
                assert_eq!(traffic.chunks, expected, "{} of {n} ranks", collective.name());
                assert_eq!(traffic.steps, steps, "{} of {n} ranks", collective.name());
            }
        }
    }

    #[test]
    fn operands_are_combined_by_rank_number() {
        let order = [3, 1, 0, 2];
        let g = Group::new(order.to_vec(), 1);
        let own = Span::input(0, 1);
        use crate::plan::Term::Peer;
        assert_eq!(g.terms(own), [Peer(0), super::super::local(own), Peer(2), Peer(3)]);
    }
}
