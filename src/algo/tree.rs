//! Double binary tree: logarithmic latency, and yet every rank sends and receives all the time.
//!
//! In one binary tree half of the ranks are leaves, which only send (or only receive), while an inner rank receives
//! twice what it sends. So there are two trees, and each carries one half of the vector. A rank is an inner node of at
//! most one of them.
//!
//! The first tree is the in-order tree over the labels 1..=n, label = position + 1: a label with k trailing zero bits
//! has height k, its children lie 2^(k-1) below and above it, and where the upper child is beyond n, that child's
//! nearest descendant along its lower side takes its place. All odd labels are leaves. The second tree is the same one
//! under labels whose parity is the opposite: for even n mirrored (label -> n + 1 - label), for odd n shifted by one
//! (label -> label - 1; label 1 becomes n, which is odd too, so that rank is a leaf of both).
//!
//! `reduce` and `broadcast` build the trees over all ranks but the root, in the order that follows the root, and the
//! root is the parent of both tops. So it sends (or receives) each half once.
//!
//! With n ranks and a vector of B bytes:
//!
//! | collective   | steps                  | bytes sent per rank, at most |
//! |--------------|------------------------|------------------------------|
//! | `all_reduce` | 2 floor(log2 n)        | 2 B                          |
//! | `reduce`     | 1 + floor(log2 (n-1))  | B                            |
//! | `broadcast`  | 1 + floor(log2 (n-1))  | B                            |
//!
//! An inner rank combines its own and both children's values in one pass.
//!
//! Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.

use super::{Algorithm, Group, local};
use crate::plan::{Builder, Collective, Rank, Shape, Span, Term};

pub(super) const TREE: Algorithm = Algorithm { name: "tree", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast)
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    2
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    if g.len() == 1 {
        return b.copy(Span::input(0, 2), Span::output(0, 2), collective.reduces());
    }
    match collective {
        Collective::AllReduce => all_reduce(b, &g),
        Collective::Reduce => reduce(b, g, shape.root),
        Collective::Broadcast => broadcast(b, g, shape.root),
        _ => unreachable!("`supports` says no"),
    }
}

fn all_reduce(b: &mut Builder, g: &Group) {
    let nodes = [0, 1].map(|tree| Node::of(g, tree));
    for (chunk, node) in (0..).zip(&nodes) {
        node.reduce(b, Span::input(chunk, 1), |_| Span::output(chunk, 1));
    }
    for (chunk, node) in (0..).zip(&nodes) {
        node.broadcast(b, Span::output(chunk, 1));
    }
}

fn reduce(b: &mut Builder, g: Group, root: Rank) {
    let is_root = g.rank() == root;
    for (chunk, node) in (0..).zip(Node::below(g, root)) {
        let src = Span::input(chunk, 1);
        node.reduce(b, src, |b| if is_root { Span::output(chunk, 1) } else { b.scratch_like(src) });
    }
}

fn broadcast(b: &mut Builder, g: Group, root: Rank) {
    let is_root = g.rank() == root;
    let held = |chunk| if is_root { Span::input(chunk, 1) } else { Span::output(chunk, 1) };
    for (chunk, node) in (0..).zip(Node::below(g, root)) {
        node.broadcast(b, held(chunk));
    }
    if is_root {
        b.copy(Span::input(0, 2), Span::output(0, 2), false);
    }
}

/// A rank's place in one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    parent: Option<Rank>,
    children: Vec<Rank>,
}

impl Node {
    /// The place of this rank in the first (0) or second (1) tree over a group.
    fn of(g: &Group, tree: usize) -> Self {
        let (n, rank_of) = (g.len(), |label| rank_at(label, tree, g.ranks()));
        let label = label_of(g.position(), tree, n);
        Node { parent: parent(label, n).map(rank_of), children: children(label, n).map(rank_of).collect() }
    }

    /// The places of this rank in the two trees that hang below a root outside of them.
    fn below(g: Group, root: Rank) -> [Self; 2] {
        let g = g.starting_at(root);
        let others = &g.ranks()[1..];
        if g.rank() == root {
            let child = |tree| rank_at(top(others.len()), tree, others);
            return [0, 1].map(|tree| Node { parent: None, children: vec![child(tree)] });
        }
        let others = Group::new(others.to_vec(), g.rank());
        [0, 1].map(|tree| {
            let node = Node::of(&others, tree);
            Node { parent: node.parent.or(Some(root)), ..node }
        })
    }

    /// Combines `src` of this rank and what its children send; the sum goes on to its parent. `sum` says where a rank
    /// with children holds it.
    fn reduce(&self, b: &mut Builder, src: Span, sum: impl FnOnce(&mut Builder) -> Span) {
        let mut held = src;
        if !self.children.is_empty() {
            held = sum(b);
            let peers = self.children.iter().map(|&child| Term::Peer(child));
            let terms: Vec<Term> = std::iter::once(local(src)).chain(peers).collect();
            b.recv_reduce_many(&terms, held, self.parent.is_none());
        }
        if let Some(parent) = self.parent {
            b.send(parent, held);
        }
    }

    /// Passes on to its children what its parent sends, or what the top of the tree has in `held`.
    fn broadcast(&self, b: &mut Builder, held: Span) {
        if let Some(parent) = self.parent {
            b.recv(parent, held);
        }
        for &child in &self.children {
            b.send(child, held);
        }
    }
}

/// The label of a position in the first (0) or second (1) tree over n ranks.
fn label_of(position: usize, tree: usize, n: usize) -> usize {
    match (tree, n % 2) {
        (0, _) => position + 1,
        (_, 0) => n - position,
        _ => {
            if position == 0 {
                n
            } else {
                position
            }
        }
    }
}

/// The rank that has a label in the first (0) or second (1) tree over `ranks`.
fn rank_at(label: usize, tree: usize, ranks: &[Rank]) -> Rank {
    let n = ranks.len();
    match (tree, n % 2) {
        (0, _) => ranks[label - 1],
        (_, 0) => ranks[n - label],
        _ => ranks[label % n],
    }
}

/// The label of the top of the tree over 1..=n: the largest power of two among them.
fn top(n: usize) -> usize {
    1 << n.ilog2()
}

fn parent(label: usize, n: usize) -> Option<usize> {
    let (mut ancestor, mut bit) = (label, 1 << label.trailing_zeros());
    while ancestor != top(n) {
        ancestor = (ancestor & !bit) | (bit << 1);
        bit <<= 1;
        if ancestor <= n {
            return Some(ancestor);
        }
    }
    None
}

fn children(label: usize, n: usize) -> impl Iterator<Item = usize> {
    let reach = (1 << label.trailing_zeros()) >> 1;
    let below = (reach > 0).then(|| label - reach);
    let above = std::iter::successors(Some(reach), |&step| Some(step / 2))
        .take_while(|&step| step > 0)
        .map(|step| label + step)
        .find(|&child| child <= n);
    below.into_iter().chain(above)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    fn nodes(n: u32, tree: usize) -> Vec<Node> {
        let group = |rank| Group::all(&Shape::flat(n), rank);
        (0..n).map(|rank| Node::of(&group(rank), tree)).collect()
    }

    #[test]
    fn both_are_trees_over_all_ranks() {
        for n in sizes().chain(18..200) {
            for tree in 0..2 {
                let nodes = nodes(n, tree);
                assert_eq!(nodes.iter().filter(|node| node.parent.is_none()).count(), 1, "{n} ranks");
                for (rank, node) in (0..).zip(&nodes) {
                    assert!(node.children.len() <= 2);
                    assert!(
                        node.children.iter().all(|&child| nodes[child as usize].parent == Some(rank)),
                        "{n} ranks: a child of {rank} has another parent"
                    );
                    if let Some(parent) = node.parent {
                        assert!(nodes[parent as usize].children.contains(&rank), "{n} ranks: {rank}");
                    }
                    let up = |at: &u32| nodes[*at as usize].parent;
                    let depth = std::iter::successors(Some(rank), up).take(n as usize + 1).count() - 1;
                    assert!(depth <= n.ilog2() as usize, "{n} ranks: {rank} is {depth} below the top");
                }
            }
        }
    }

    #[test]
    fn nobody_is_an_inner_node_twice() {
        for n in sizes().chain(18..200) {
            let twice = nodes(n, 0)
                .iter()
                .zip(&nodes(n, 1))
                .position(|(first, second)| !first.children.is_empty() && !second.children.is_empty());
            assert_eq!(twice, None, "{n} ranks");
        }
    }

    #[test]
    fn all_reduce_traffic_is_as_stated() {
        for n in sizes() {
            let traffic = Traffic::of(&TREE, Collective::AllReduce, &Shape::flat(n));
            assert_eq!(traffic.steps, 2 * n.ilog2(), "{n} ranks");
            assert_eq!(traffic.messages.iter().sum::<u32>(), 4 * (n - 1), "{n} ranks");
            assert_eq!(traffic.chunks, traffic.messages);
            assert!(traffic.chunks.iter().all(|&halves| halves <= 4), "{n} ranks: {traffic:?}");
        }
    }

    #[test]
    fn rooted_traffic_is_as_stated() {
        for (n, root) in sizes().skip(1).flat_map(|n| [(n, 0), (n, n / 2)]) {
            for collective in [Collective::Reduce, Collective::Broadcast] {
                let traffic = Traffic::of(&TREE, collective, &Shape::flat(n).with_root(root));
                assert_eq!(traffic.steps, 1 + (n - 1).ilog2(), "{n} ranks");
                assert_eq!(traffic.chunks.iter().sum::<u32>(), 2 * (n - 1), "{n} ranks");
                assert!(traffic.chunks.iter().all(|&halves| halves <= 2), "{n} ranks: {traffic:?}");
                let of_root = if collective == Collective::Reduce { 0 } else { 2 };
                assert_eq!(traffic.chunks[root as usize], of_root, "{n} ranks");
            }
        }
    }
}
