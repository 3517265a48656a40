//! Pairwise exchange: in step d, a rank sends to the one d places ahead and receives from the one d places behind.
//!
//! `all_to_all` of n blocks of B bytes: n-1 steps, (n-1) B sent per rank. At every step each rank has one sender and one
//! receiver, so that nobody is flooded; no step waits for the one before it.
//!
//! Source: textbook.

use super::{Algorithm, Group};
use crate::plan::{Builder, Collective, Shape, Span};

pub(super) const PAIRWISE: Algorithm = Algorithm { name: "pairwise", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    collective == Collective::AllToAll
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    1
}

fn build(b: &mut Builder, _: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    for (to, from) in g.others().zip(g.others().rev()) {
        b.recv(from, Span::output(from, 1));
        b.send(to, Span::input(to, 1));
    }
    b.copy(Span::input(g.rank(), 1), Span::output(g.rank(), 1), false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for n in sizes() {
            let traffic = Traffic::of(&PAIRWISE, Collective::AllToAll, &Shape::flat(n));
            traffic.assert_all(u32::from(n > 1), n - 1, n - 1);
        }
    }
}
