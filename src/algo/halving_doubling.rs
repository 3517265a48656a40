//! Recursive halving, then doubling: the bytes of a ring in a logarithmic number of steps, for any number of ranks.
//!
//! While a rank is concerned with the h blocks that follow it (its own first, to begin with all n), it sends its sums of
//! the upper floor(h/2) of them to the rank at distance ceil(h/2), which finds them to be its first ones, and stays
//! concerned with the lower ceil(h/2). In the end only its own block is left: a reduce-scatter. The same in reverse is
//! an all-gather. Distances are taken around the ring, so nobody has to be folded away where n is no power of two, and
//! for powers of two steps and bytes are those of the exchange between pairs.
//!
//! With n ranks and a vector of B bytes (for all_gather and reduce_scatter: n blocks of B/n):
//!
//! | collective       | steps, at most  | bytes sent per rank | messages sent per rank     |
//! |------------------|-----------------|---------------------|----------------------------|
//! | `all_reduce`     | 2 ceil(log2 n)  | 2(n-1)/n B          | 2 to 4 ceil(log2 n)        |
//! | `reduce_scatter` | ceil(log2 n)    | (n-1)/n B           | n-1                        |
//! | `all_gather`     | ceil(log2 n)    | (n-1)/n B           | n-1                        |
//!
//! In a flat buffer, chunk i belongs to the rank at *position* i: then the blocks of a step are one message, or two
//! where they go around the end. Blocks of a blocked buffer are one message each.
//!
//! Source: Rabenseifner, "Optimization of collective reduction operations", 2004, for pairs; the circulant pattern:
//! Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997, and
//! Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.

use super::{Algorithm, Group};
use crate::plan::{Buf, Builder, Collective, Shape, Span};

pub(super) const HALVING_DOUBLING: Algorithm =
    Algorithm { name: "halving_doubling", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
}

fn chunks(collective: Collective, shape: &Shape) -> u32 {
    if collective == Collective::AllReduce { shape.nranks() } else { 1 }
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    match collective {
        Collective::AllReduce => all_reduce(b, &g),
        Collective::ReduceScatter => reduce_scatter(b, &g),
        Collective::AllGather => all_gather(b, &g),
        _ => unreachable!("`supports` says no"),
    }
}

/// One round of halving: `moved` blocks go `distance` places ahead. Backwards, a round of doubling.
#[derive(Clone, Copy, Debug)]
struct Round {
    distance: usize,
    moved: usize,
}

fn rounds(n: usize) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut held = n;
    while held > 1 {
        rounds.push(Round { distance: held.div_ceil(2), moved: held / 2 });
        held = held.div_ceil(2);
    }
    rounds
}

fn all_reduce(b: &mut Builder, g: &Group) {
    let (n, me) = (g.len(), g.position());
    if n == 1 {
        return b.copy(Span::input(0, 1), Span::output(0, 1), true);
    }
    let rounds = rounds(n);
    let mut held = Buf::Input;
    for &Round { distance, moved } in &rounds {
        for span in around(Buf::Output, me, moved, n) {
            b.recv_reduce(g.behind(distance), Span { buf: held, ..span }, span, distance == 1);
        }
        for span in around(held, me + distance, moved, n) {
            b.send(g.ahead(distance), span);
        }
        if held == Buf::Input && moved < distance {
            // The middle one of an odd number of blocks gets no sum in this round, and leaves with the next one's.
            let middle = ((me + moved) % n) as u32;
            b.copy(Span::input(middle, 1), Span::output(middle, 1), false);
        }
        held = Buf::Output;
    }
    for &Round { distance, moved } in rounds.iter().rev() {
        for span in around(Buf::Output, me + distance, moved, n) {
            b.recv(g.ahead(distance), span);
        }
        for span in around(Buf::Output, me, moved, n) {
            b.send(g.behind(distance), span);
        }
    }
}

/// `len` chunks from `first` on, around the end: one or two spans.
fn around(buf: Buf, first: usize, len: usize, nchunks: usize) -> impl Iterator<Item = Span> {
    let first = first % nchunks;
    let before_end = len.min(nchunks - first);
    [(first, before_end), (0, len - before_end)]
        .into_iter()
        .filter(|&(_, len)| len > 0)
        .map(move |(first, len)| Span { buf, chunk: first as u32, len: len as u32 })
}

fn reduce_scatter(b: &mut Builder, g: &Group) {
    if g.len() == 1 {
        return b.copy(Span::input(0, 1), Span::output(0, 1), true);
    }
    // Where this rank's sum of the block of the rank i places ahead is.
    let mut held: Vec<Span> = (0..g.len()).map(|i| Span::input(g.ahead(i), 1)).collect();
    for Round { distance, moved } in rounds(g.len()) {
        for sum in &mut held[..moved] {
            let before = *sum;
            *sum = match before.buf {
                _ if distance == 1 => Span::output(0, 1),
                Buf::Scratch => before,
                Buf::Input | Buf::Output => b.scratch_like(before),
            };
            b.recv_reduce(g.behind(distance), before, *sum, distance == 1);
        }
        for &sum in &held[distance..distance + moved] {
            b.send(g.ahead(distance), sum);
        }
    }
}

fn all_gather(b: &mut Builder, g: &Group) {
    let block = |i| if i == 0 { Span::input(0, 1) } else { Span::output(g.ahead(i), 1) };
    for Round { distance, moved } in rounds(g.len()).into_iter().rev() {
        for i in distance..distance + moved {
            b.recv(g.ahead(distance), block(i));
        }
        for i in 0..moved {
            b.send(g.behind(distance), block(i));
        }
    }
    b.copy(Span::input(0, 1), Span::output(g.rank(), 1), false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for n in sizes() {
            let shape = Shape::flat(n);
            let rounds = n.next_power_of_two().ilog2();
            let traffic = |collective| Traffic::of(&HALVING_DOUBLING, collective, &shape);
            for (collective, times) in
                [(Collective::ReduceScatter, 1), (Collective::AllGather, 1), (Collective::AllReduce, 2)]
            {
                let traffic = traffic(collective);
                assert!(traffic.steps <= times * rounds, "{n} ranks: {} steps", traffic.steps);
                assert!(!n.is_power_of_two() || traffic.steps == times * rounds, "{n} ranks");
                assert_eq!(traffic.chunks, vec![times * (n - 1); n as usize], "{n} ranks");
            }
            assert!(traffic(Collective::AllGather).messages.iter().all(|&messages| messages == n - 1));
            let all_reduce = traffic(Collective::AllReduce);
            let allowed = 2 * rounds..=4 * rounds;
            assert!(all_reduce.messages.iter().all(|messages| allowed.contains(messages)), "{n} ranks");
        }
    }
}
