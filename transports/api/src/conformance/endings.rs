//! Clauses 3, 4, 9 and 11: every way in which a lane ends.

use super::{
    Fixture,
    memory::Buffer,
    rig::{Lane, Rig},
};
use crate::{Token, TransportError};

/// Posts sends of mixed lengths until the lane is full or `n` are posted. Returns the tokens and lengths.
fn post_sends<F: Fixture>(rig: &mut Rig<F>, lane: Lane, n: u64) -> Vec<(Token, usize)> {
    let mut sends = Vec::new();
    for stamp in 0..n {
        let size = [10, 2000, 0, 100_000, 64][stamp as usize % 5];
        let Some(token) = rig.try_send(lane, &Buffer::filled(size, 1, stamp), stamp) else { break };
        sends.push((token, size));
    }
    sends
}

fn tokens(sends: &[(Token, usize)]) -> Vec<Token> {
    sends.iter().map(|&(token, _)| token).collect()
}

fn expect_full<F: Fixture>(rig: &mut Rig<F>, lane: Lane) {
    let buffer = Buffer::new(4, 0);
    assert_eq!(rig.try_send(lane, &buffer, 0), None, "clause 11: a send after Closed");
    assert_eq!(rig.try_recv(lane, &buffer, 0), None, "clause 11: a receive after Closed");
    // Ending what has ended is no error and no news.
    rig.close(lane);
    rig.abort(lane);
    rig.steps(5);
}

fn expect_goodbye<F: Fixture>(rig: &mut Rig<F>, lane: Lane) {
    let cause = rig.closed(lane);
    assert!(cause.is_none(), "clause 11: a goodbye has no cause, got {cause:?}");
    expect_full(rig, lane);
}

/// Clause 11: what was accepted before `close` is delivered, then both ends are closed without a cause.
pub fn a_graceful_close_delivers_what_was_accepted<F: Fixture>() {
    for post_first in [true, false] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let sends = post_sends(&mut rig, a, 5);
        let mut received = Vec::new();
        if !post_first {
            rig.close(a);
            rig.steps(3);
        }
        for (stamp, &(_, size)) in sends.iter().enumerate() {
            let dst = Buffer::new(size, 0);
            received.push((rig.recv(b, &dst, stamp as u64), dst, stamp as u64));
        }
        if post_first {
            rig.close(a);
        }
        for (recv, dst, stamp) in received {
            rig.finish(&[recv]);
            dst.expect_pattern(stamp, "clause 11: delivered before Closed");
        }
        rig.finish(&tokens(&sends));
        expect_goodbye(&mut rig, a);
        expect_goodbye(&mut rig, b);
    }
}

/// Clause 11: the linger is bounded, though the peer never polls again.
pub fn a_graceful_close_needs_no_peer<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let mut posted = tokens(&post_sends(&mut rig, a, 20));
    posted.extend(rig.try_recv(a, &Buffer::new(30, 0), 0));
    rig.pause(b.end);
    rig.close(a);
    rig.settle(&posted);
    rig.closed(a);
    expect_full(&mut rig, a);
}

/// Clause 11: receives whose message never comes fail at both ends.
pub fn a_close_fails_receives_without_message<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let mut waiting = Vec::new();
    for lane in [a, b] {
        for stamp in 0..rig.endpoint(0).limits().window.min(3) {
            let dst = Buffer::new(50_000, 0);
            waiting.push(rig.recv(lane, &dst, stamp.into()));
        }
    }
    rig.steps(5);
    rig.close(a);
    rig.settle(&waiting);
    expect_goodbye(&mut rig, a);
    expect_goodbye(&mut rig, b);
    for token in waiting {
        assert!(!rig.is_done(token), "a receive is done though nothing was sent");
    }
}

/// Clause 11: with and without messages under way.
pub fn both_ends_may_close_at_once<F: Fixture>() {
    for n in [0, 4] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let mut posted = tokens(&post_sends(&mut rig, a, n));
        posted.extend(tokens(&post_sends(&mut rig, b, n)));
        rig.close(a);
        rig.close(b);
        rig.settle(&posted);
        expect_goodbye(&mut rig, a);
        expect_goodbye(&mut rig, b);
    }
}

/// A lane that was offered, or established on one side only, ends when it is told to.
pub fn a_lane_may_close_before_it_is_established<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    for abort in [false, true] {
        let (a, _, b, offer_b) = rig.prepare(0, 1);
        let (c, _, d, offer_d) = rig.prepare(0, 1);
        rig.endpoint(0).establish(c.id, &offer_d).expect("establish with the peer's offer");
        rig.steps(3);
        for lane in [a, b, c, d] {
            if abort { rig.abort(lane) } else { rig.close(lane) }
        }
        for lane in [a, b, c, d] {
            rig.closed(lane);
            expect_full(&mut rig, lane);
        }
        let late = rig.endpoint(0).establish(a.id, &offer_b);
        assert!(late.is_err(), "a closed lane was established");
    }
}

/// Clause 11: who closes a lane while both ends connect does not leave the other waiting.
pub fn a_close_while_connecting_reaches_the_peer<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    for steps in 0..6 {
        for first in [true, false] {
            let (a, offer_a, b, offer_b) = rig.prepare(0, 1);
            rig.endpoint(0).establish(a.id, &offer_b).expect("establish with the peer's offer");
            rig.endpoint(1).establish(b.id, &offer_a).expect("establish with the peer's offer");
            rig.steps(steps);
            let (leaver, other) = if first { (a, b) } else { (b, a) };
            rig.close(leaver);
            rig.closed(leaver);
            rig.closed(other);
        }
    }
}

/// Clauses 3 and 4: each post has one event, then `Closed` with a cause, and then nothing is written.
pub fn an_abort_gives_every_token_one_event<F: Fixture>() {
    for steps in [0, 1, 2, 3, 5, 9] {
        let (mut rig, a, b) = Rig::<F>::pair();
        rig.budget = 50_000;
        let mut posted = Vec::new();
        let mut written = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            for stamp in 0..3 {
                let dst = Buffer::new(300_000, 0);
                let Some(token) = rig.try_recv(to, &dst, stamp) else { break };
                posted.push(token);
                written.push((to, dst));
            }
            for stamp in 0..3 {
                let src = Buffer::filled(300_000, 0, stamp);
                let Some(token) = rig.try_send(from, &src, stamp) else { break };
                posted.push(token);
            }
        }
        rig.steps(steps);
        rig.abort(a);
        let cause = rig.closed(a);
        assert!(
            matches!(cause, Some(TransportError::Closed { .. })),
            "the end that aborts is closed for the reason it gave, got {cause:?}"
        );
        let frozen: Vec<_> =
            written.iter().filter(|(lane, _)| *lane == a).map(|(_, dst)| (dst, dst.read())).collect();
        expect_full(&mut rig, a);
        rig.settle(&posted);
        assert!(rig.closed(b).is_some(), "the peer of an aborted lane is closed for a cause");
        expect_full(&mut rig, b);
        for (dst, before) in frozen {
            dst.expect(&before, "clause 4: written after Closed");
        }
    }
}

/// Clause 9: a peer that is gone without a goodbye fails what is posted, then closes the lane; also an idle one.
pub fn a_dead_peer_is_noticed<F: Fixture>() {
    for (sends, recvs) in [(0, 0), (0, 2), (3, 2)] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let mut posted = Vec::new();
        for stamp in 0..recvs {
            posted.extend(rig.try_recv(a, &Buffer::new(200_000, 0), stamp));
        }
        for stamp in 0..sends {
            posted.extend(rig.try_send(a, &Buffer::filled(200_000, 0, stamp), stamp));
        }
        rig.steps(4);
        rig.kill(b.end);
        rig.settle(&posted);
        let cause = rig.closed(a);
        assert!(cause.is_some(), "clause 9: the death of a peer is a cause");
        expect_full(&mut rig, a);
    }
}

/// A lane's end is its own affair: others between the same endpoints go on.
pub fn other_lanes_outlive_an_abort<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let (a, b) = rig.connect(0, 1);
    let (c, d) = rig.connect(0, 1);
    let (src, dst) = (Buffer::filled(400_000, 0, 1), Buffer::new(400_000, 0));
    rig.budget = 20_000;
    let pair = [rig.recv(d, &dst, 1), rig.send(c, &src, 1)];
    rig.steps(3);
    rig.abort(a);
    rig.closed(a);
    rig.closed(b);
    rig.finish(&pair);
    dst.expect_pattern(1, "a lane beside an aborted one");
    let (e, f) = rig.connect(0, 1);
    assert!(e.id != a.id || f.id != b.id, "a new lane looks like the one that ended");
    let pair = [rig.recv(e, &dst, 2), rig.send(f, &src, 2)];
    rig.finish(&pair);
}
