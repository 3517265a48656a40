//! Direct exchange: the fewest bytes in the fewest steps, where every pair of ranks has a good path.
//!
//! With n ranks and a vector of B bytes (for all_gather and reduce_scatter: n blocks of B/n):
//!
//! | collective       | steps | bytes sent per rank | messages sent per rank |
//! |------------------|-------|---------------------|------------------------|
//! | `all_reduce`     | 2     | 2(n-1)/n B          | 2(n-1)                 |
//! | `reduce_scatter` | 1     | (n-1)/n B           | n-1                    |
//! | `all_gather`     | 1     | (n-1)/n B           | n-1                    |
//!
//! A block is combined by its owner in one pass over all ranks' values, in the order of rank numbers: k operands cost
//! k reads and one write, where a ring costs 2k reads and k writes, and 16-bit floats are rounded once.
//!
//! Source: textbook (direct reduce-scatter and all-gather by pairwise exchange).

use super::{Algorithm, Group, one_shot};
use crate::plan::{Builder, Collective, Rank, Shape, Span};

pub(super) const DIRECT: Algorithm = Algorithm { name: "direct", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
}

fn chunks(collective: Collective, shape: &Shape) -> u32 {
    if collective == Collective::AllReduce { shape.nranks() } else { 1 }
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    let (input, output) = (|i| Span::input(i, 1), |i| Span::output(i, 1));
    match collective {
        Collective::AllReduce => {
            let own = output(g.rank());
            reduce_scatter(b, &g, input, own);
            all_gather(b, &g, own, output);
        }
        Collective::ReduceScatter => reduce_scatter(b, &g, input, output(0)),
        Collective::AllGather => {
            all_gather(b, &g, input(0), output);
            b.copy(input(0), output(g.rank()), false);
        }
        _ => unreachable!("`supports` says no"),
    }
}

/// Combines `src(r)` of all members in `dst` of member r.
pub(super) fn reduce_scatter(b: &mut Builder, g: &Group, src: impl Fn(Rank) -> Span, dst: Span) {
    for to in g.others() {
        b.send(to, src(to));
    }
    one_shot::combine(b, g, src(g.rank()), dst, true);
}

/// Stores `own` of every other member r in `block(r)`.
pub(super) fn all_gather(b: &mut Builder, g: &Group, own: Span, block: impl Fn(Rank) -> Span) {
    for from in g.others().rev() {
        b.recv(from, block(from));
    }
    for to in g.others() {
        b.send(to, own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for n in sizes() {
            let shape = Shape::flat(n);
            let traffic = |collective| Traffic::of(&DIRECT, collective, &shape);
            let step = u32::from(n > 1);
            traffic(Collective::AllReduce).assert_all(2 * step, 2 * (n - 1), 2 * (n - 1));
            traffic(Collective::ReduceScatter).assert_all(step, n - 1, n - 1);
            traffic(Collective::AllGather).assert_all(step, n - 1, n - 1);
        }
    }
}
