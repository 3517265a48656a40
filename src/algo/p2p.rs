//! Point to point: one message to, or from, the peer that the shape names as its root.
//!
//! `send` and `recv` of B bytes: one step; the sender sends B. A message of a rank to itself never becomes a plan.

use super::Algorithm;
use crate::plan::{Builder, Collective, Shape, Span};

pub(super) const P2P: Algorithm = Algorithm { name: "p2p", supports, chunks, build };

fn supports(collective: Collective, shape: &Shape) -> bool {
    collective.is_point_to_point() && shape.nranks() > 1
}

fn chunks(_: Collective, _: &Shape) -> u32 {
    1
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    match collective {
        Collective::Send => b.send(shape.root, Span::input(0, 1)),
        Collective::Recv => b.recv(shape.root, Span::output(0, 1)),
        _ => unreachable!("`supports` says no"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Alias, Op};

    #[test]
    fn one_message_meets_the_other_end() {
        let op = |collective, rank, peer| {
            let plan = P2P.plan(collective, rank, &Shape::flat(3).with_root(peer), Alias::None, false);
            assert_eq!(plan.steps().len(), 1);
            plan.steps()[0].op
        };
        assert_eq!(op(Collective::Send, 0, 2), Op::Send { to: 2, src: Span::input(0, 1) });
        assert_eq!(op(Collective::Recv, 2, 0), Op::Recv { from: 0, dst: Span::output(0, 1) });
    }
}
