//! Dissemination: after round k, a rank has heard of the 2^(k+1) - 1 ranks before it.
//!
//! `barrier` of n ranks: ceil(log2 n) rounds of one message each. Its input is a token that the engine supplies.
//!
//! Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.

use super::{Algorithm, Group};
use crate::plan::{Builder, Collective, Shape, Span};

pub(super) const DISSEMINATION: Algorithm = Algorithm { name: "dissemination", supports, chunks, build };

fn supports(collective: Collective, _: &Shape) -> bool {
    collective == Collective::Barrier
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    1
}

/// A message of round k must follow *all* messages that its sender got in the rounds before. The token of the rounds
/// before is copied over the one that arrived, which makes whatever reads the result wait for both; and no message
/// waits until an earlier one has been taken.
fn build(b: &mut Builder, _: Collective, shape: &Shape) {
    let g = Group::all(shape, b.rank());
    let mut heard = Span::input(0, 1);
    let mut distance = 1;
    while distance < g.len() {
        let arriving = b.scratch_like(Span::input(0, 1));
        b.recv(g.behind(distance), arriving);
        b.send(g.ahead(distance), heard);
        if distance > 1 {
            b.copy(heard, arriving, false);
        }
        heard = arriving;
        distance *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::{Traffic, sizes};

    #[test]
    fn traffic_is_as_stated() {
        for n in sizes() {
            let rounds = n.next_power_of_two().ilog2();
            let traffic = Traffic::of(&DISSEMINATION, Collective::Barrier, &Shape::flat(n));
            traffic.assert_all(rounds, rounds, rounds);
        }
    }
}
