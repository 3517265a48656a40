//! Ring: every rank talks to its two neighbours only, and every link carries the least that it can.
//!
//! With n ranks and a vector of B bytes (for all_gather and reduce_scatter: n blocks of B/n):
//!
//! | collective       | steps  | bytes sent per rank |
//! |------------------|--------|---------------------|
//! | `all_reduce`     | 2(n-1) | 2(n-1)/n B          |
//! | `reduce_scatter` | n-1    | (n-1)/n B           |
//! | `all_gather`     | n-1    | (n-1)/n B           |
//! | `broadcast`      | n-1    | B, the last rank 0  |
//! | `reduce`         | n-1    | B, the root 0       |
//!
//! Broadcast and reduce are chains, opened at the root. Their slices follow each other down the chain, so that long
//! vectors take about as long as one hop.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; the chains
//! are textbook.

use super::{Algorithm, Group};
use crate::plan::{Builder, Collective, Rank, Shape, Span};

pub(super) const RING: Algorithm = Algorithm { name: "ring", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    use Collective::*;
    matches!(collective, AllReduce | ReduceScatter | AllGather | Broadcast | Reduce)
}

fn chunks(collective: Collective, shape: &Shape) -> u32 {
    if collective == Collective::AllReduce { shape.nranks() } else { 1 }
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    let (input, output) = (|i| Span::input(i, 1), |i| Span::output(i, 1));
    match collective {
        Collective::AllReduce => all_reduce(b, &g, input, output),
        Collective::ReduceScatter => {
            reduce_scatter(b, &g, input, |b, block| b.scratch_like(input(block)), output(0));
        }
        Collective::AllGather => {
            all_gather(b, &g, input(0), output);
            b.copy(input(0), output(g.rank()), false);
        }
        Collective::Broadcast if g.rank() == shape.root => {
            broadcast(b, g, shape.root, input(0));
            b.copy(input(0), output(0), false);
        }
        Collective::Broadcast => broadcast(b, g, shape.root, output(0)),
        Collective::Reduce => {
            let is_root = g.rank() == shape.root;
            let sum = |b: &mut Builder| if is_root { output(0) } else { b.scratch_like(input(0)) };
            reduce(b, g, shape.root, input(0), sum);
        }
        _ => unreachable!("`supports` says no"),
    }
}

/// Combines `src(r)` of all members in `out(r)` of all members, for every member r.
pub(super) fn all_reduce(b: &mut Builder, g: &Group, src: impl Fn(Rank) -> Span, out: impl Fn(Rank) -> Span) {
    reduce_scatter(b, g, src, |_, block| out(block), out(g.rank()));
    all_gather(b, g, out(g.rank()), out);
}

/// Combines `src(r)` of all members in `dst` of member r. The sum of a block sets out from the member after its owner
/// and grows on its way around; `partial` is where this rank holds what passes through.
pub(super) fn reduce_scatter(
    b: &mut Builder,
    g: &Group,
    src: impl Fn(Rank) -> Span,
    mut partial: impl FnMut(&mut Builder, Rank) -> Span,
    dst: Span,
) {
    if g.len() == 1 {
        return b.copy(src(g.rank()), dst, true);
    }
    let (next, previous) = (g.ahead(1), g.behind(1));
    b.send(next, src(previous));
    for k in 2..g.len() {
        let block = g.behind(k);
        let sum = partial(b, block);
        b.recv_reduce(previous, src(block), sum, false);
        b.send(next, sum);
    }
    b.recv_reduce(previous, src(g.rank()), dst, true);
}

/// Stores `own` of every other member r in `block(r)`.
pub(super) fn all_gather(b: &mut Builder, g: &Group, own: Span, block: impl Fn(Rank) -> Span) {
    let mut held = own;
    for k in 1..g.len() {
        let arriving = block(g.behind(k));
        b.recv(g.behind(1), arriving);
        b.send(g.ahead(1), held);
        held = arriving;
    }
}

/// Brings `held` of the root to `held` of every other member.
pub(super) fn broadcast(b: &mut Builder, g: Group, root: Rank, held: Span) {
    let g = g.starting_at(root);
    if g.position() > 0 {
        b.recv(g.behind(1), held);
    }
    if g.position() + 1 < g.len() {
        b.send(g.ahead(1), held);
    }
}

/// Combines `src` of all members in `sum` of the root; `sum` of the others is where they hold what passes through.
pub(super) fn reduce(
    b: &mut Builder,
    g: Group,
    root: Rank,
    src: Span,
    sum: impl FnOnce(&mut Builder) -> Span,
) {
    let g = g.starting_at(root);
    let is_root = g.position() == 0;
    if g.len() == 1 {
        let sum = sum(b);
        return b.copy(src, sum, true);
    }
    let held = if g.position() == 1 {
        src
    } else {
        let sum = sum(b);
        b.recv_reduce(g.behind(1), src, sum, is_root);
        sum
    };
    if !is_root {
        b.send(g.ahead(1), held);
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
            let traffic = |collective| Traffic::of(&RING, collective, &shape);
            traffic(Collective::AllReduce).assert_all(2 * (n - 1), 2 * (n - 1), 2 * (n - 1));
            traffic(Collective::ReduceScatter).assert_all(n - 1, n - 1, n - 1);
            traffic(Collective::AllGather).assert_all(n - 1, n - 1, n - 1);
        }
    }

    #[test]
    fn chains_send_once_per_link() {
        for (n, root) in sizes().flat_map(|n| [(n, 0), (n, n / 2)]) {
            let shape = Shape::flat(n).with_root(root);
            for (collective, silent) in
                [(Collective::Broadcast, (root + n - 1) % n), (Collective::Reduce, root)]
            {
                let traffic = Traffic::of(&RING, collective, &shape);
                let expected: Vec<u32> = (0..n).map(|rank| u32::from(rank != silent)).collect();
                assert_eq!((traffic.steps, traffic.chunks), (n - 1, expected), "{n} ranks, root {root}");
            }
        }
    }

    #[test]
    fn neighbours_follow_the_order_and_blocks_the_rank() {
        let shape = Shape { order: [2, 0, 1].into(), ..Shape::flat(3) };
        let plan = RING.plan(Collective::AllGather, 0, &shape, Default::default(), false);
        let ops: Vec<_> = plan.steps().iter().map(|step| step.op).collect();
        use crate::plan::Op::{Recv, Send};
        assert_eq!(
            ops[..4],
            [
                Recv { from: 2, dst: Span::output(2, 1) },
                Send { to: 1, src: Span::input(0, 1) },
                Recv { from: 2, dst: Span::output(1, 1) },
                Send { to: 1, src: Span::output(2, 1) },
            ]
        );
    }
}
