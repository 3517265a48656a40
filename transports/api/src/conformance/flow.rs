//! Clauses 2 and 7: what a lane takes, when it moves, and what is counted.

use super::{Fixture, memory::Buffer, rig::Rig};
use crate::{LaneId, LaneStats, Post, Slice, Token};

/// Clause 2: `Full` is the answer before `Established`, whatever the other side has done.
pub fn posts_are_full_before_established<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let (a, offer_a, b, offer_b) = rig.prepare(0, 1);
    let buffer = Buffer::new(8, 0);
    let none_accepted = |rig: &mut Rig<F>, when: &str| {
        for lane in [a, b] {
            assert_eq!(rig.try_send(lane, &buffer, 0), None, "clause 2: a send {when}");
            assert_eq!(rig.try_recv(lane, &buffer, 0), None, "clause 2: a receive {when}");
        }
    };
    none_accepted(&mut rig, "before establish");
    rig.endpoint(0).establish(a.id, &offer_b).expect("establish with the peer's offer");
    rig.steps(3);
    none_accepted(&mut rig, "before the peer has established");
    rig.endpoint(1).establish(b.id, &offer_a).expect("establish with the peer's offer");
    none_accepted(&mut rig, "before the event");
    let dst = Buffer::new(8, 0);
    let send = rig.send(a, &Buffer::filled(8, 0, 1), 1);
    let recv = rig.recv(b, &dst, 1);
    rig.finish(&[send, recv]);
    dst.expect_pattern(1, "clause 2: a lane works once it is established");
}

/// Clause 2: a refused post leaves no trace, and a lane accepts no more than it says.
pub fn full_changes_nothing<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let window = rig.endpoint(0).limits().window as usize;
    for (lane, other) in [(a, b), (b, a)] {
        let mut sends = Vec::new();
        let mut stamp = 0;
        while sends.len() <= window + 1 {
            let src = Buffer::filled(500, 1, stamp);
            let Some(token) = rig.try_send(lane, &src, stamp) else { break };
            sends.push(token);
            stamp += 1;
        }
        assert!(!sends.is_empty() || F::SPURIOUS_FULL, "clause 2: an idle lane refused its first send");
        assert!(sends.len() <= window, "more sends were accepted than Limits::window = {window}");
        // Refused, so they must never be seen: their stamps and lengths are wrong.
        let wrong = Buffer::filled(77, 0, 1);
        let refused = (0..3).filter(|_| rig.try_send(lane, &wrong, stamp).is_none()).count();
        assert!(
            refused == 3 || F::SPURIOUS_FULL,
            "clause 2: Full, and then accepted without an event or poll"
        );
        if refused < 3 {
            continue;
        }
        for stamp in 0..stamp {
            let dst = Buffer::new(500, 0);
            let recv = rig.recv(other, &dst, stamp);
            rig.finish(&[recv]);
            dst.expect_pattern(stamp, "clause 2: what was accepted arrives");
        }
        rig.finish(&sends);
    }
    let mut waiting = Vec::new();
    while waiting.len() <= window {
        let Some(token) = rig.try_recv(b, &Buffer::new(8, 0), 0) else { break };
        waiting.push(token);
    }
    assert!(!waiting.is_empty() || F::SPURIOUS_FULL, "clause 2: an idle lane refused its first receive");
    assert!(waiting.len() <= window, "more receives were accepted than Limits::window = {window}");
    rig.abort(b);
    rig.settle(&waiting);

    let src = Buffer::new(1, 0);
    let slice = Slice { addr: src.addr(), len: 1, region: None };
    // SAFETY: nothing is lent, since the lane does not exist.
    let post = unsafe { rig.endpoint(0).post_send(LaneId(u32::MAX), slice, 0, Token(0)) };
    assert_eq!(post, Post::Full, "clause 2: a lane that does not exist accepts nothing");
}

/// "Each lane and direction accepts at least one post without help from any shared pool."
pub fn a_lane_needs_no_help_from_other_lanes<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let lanes: Vec<_> = (0..24).map(|_| rig.connect(0, 1)).collect();
    let (free, busy) = lanes.split_first().expect("there are 24");
    let mut stuck = Vec::new();
    // Three passes with polls between: what the shared pools could absorb is absorbed.
    for pass in 0..3 {
        for &(a, b) in busy {
            for lane in [a, b] {
                for _ in 0..rig.endpoint(0).limits().window {
                    let Some(token) = rig.try_send(lane, &Buffer::filled(3000, 0, pass), pass) else { break };
                    stuck.push(token);
                }
            }
        }
        rig.steps(5);
    }
    let (a, b) = *free;
    for (from, to) in [(a, b), (b, a)] {
        for stamp in 0..5 {
            let (src, dst) = (Buffer::filled(70_000, 1, stamp), Buffer::new(70_000, 2));
            let send = rig.at_once("an idle lane takes a send", |rig| rig.try_send(from, &src, stamp));
            let recv = rig.at_once("an idle lane takes a receive", |rig| rig.try_recv(to, &dst, stamp));
            rig.finish(&[send, recv]);
            dst.expect_pattern(stamp, "a lane beside 23 full ones");
        }
    }
    for &(a, b) in busy {
        rig.abort(a);
        rig.abort(b);
    }
    rig.settle(&stuck);
}

/// Clause 7: one flush after a batch of posts is enough, on any number of lanes.
pub fn one_flush_moves_a_batch<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let lanes: Vec<_> = (0..5).map(|_| rig.connect(0, 1)).collect();
    rig.flushes = false;
    let mut tokens = Vec::new();
    let mut received = Vec::new();
    for (i, &(a, b)) in lanes.iter().enumerate() {
        for stamp in 0..3 {
            let (src, dst) = (Buffer::filled(900 * (i + 1), 0, stamp), Buffer::new(900 * (i + 1), 0));
            let Some(send) = rig.try_send(a, &src, stamp) else { break };
            tokens.push(send);
            received.push((b, dst, stamp));
        }
    }
    rig.endpoint(0).flush();
    for (lane, dst, stamp) in &received {
        tokens.push(rig.recv(*lane, dst, *stamp));
        rig.endpoint(1).flush();
    }
    rig.finish(&tokens);
    for (_, dst, stamp) in &received {
        dst.expect_pattern(*stamp, "clause 7: one flush for a batch");
    }
}

/// A poll with hardly any budget still makes progress, and no lane starves another.
pub fn small_budgets_make_progress<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let (long, other) = (rig.connect(0, 1), rig.connect(0, 1));
    let (src, dst) = (Buffer::filled(100_000, 1, 1), Buffer::new(100_000, 3));
    rig.budget = 100;
    let mut tokens = vec![rig.recv(long.1, &dst, 1), rig.send(long.0, &src, 1)];
    for stamp in 0..20 {
        let small = Buffer::new(10, 0);
        let pair =
            [rig.send(other.0, &Buffer::filled(10, 0, stamp), stamp), rig.recv(other.1, &small, stamp)];
        rig.finish(&pair);
        small.expect_pattern(stamp, "a short message beside a long one");
    }
    rig.budget = 0;
    rig.steps(10);
    rig.budget = 1;
    rig.steps(10);
    rig.budget = 1000;
    rig.finish(&tokens);
    dst.expect_pattern(1, "a long message in small pieces");
    tokens.clear();
    // A budget of 1 alone must suffice as well.
    rig.budget = 1;
    let (src, dst) = (Buffer::filled(2000, 1, 2), Buffer::new(2000, 3));
    let pair = [rig.recv(long.1, &dst, 2), rig.send(long.0, &src, 2)];
    rig.finish(&pair);
    dst.expect_pattern(2, "a message in tiny pieces");
}

/// `lane_stats` counts payload and messages of each lane; `memory` is not zero and follows the lanes.
pub fn lanes_are_counted<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let (a, b) = rig.connect(0, 1);
    let (c, _) = rig.connect(0, 1);
    let mut tokens = Vec::new();
    for (stamp, size) in [100, 0, 70_000].into_iter().enumerate() {
        tokens.push(rig.recv(b, &Buffer::new(size, 0), stamp as u64));
        tokens.push(rig.send(a, &Buffer::filled(size, 0, 1), stamp as u64));
    }
    rig.finish(&tokens);
    let sent = rig.endpoint(0).lane_stats(a.id);
    let received = rig.endpoint(1).lane_stats(b.id);
    assert_eq!((sent.sent_messages, sent.sent_bytes), (3, 70_100));
    assert_eq!((sent.received_messages, sent.received_bytes), (0, 0));
    assert_eq!((received.received_messages, received.received_bytes), (3, 70_100));
    assert_eq!((received.sent_messages, received.sent_bytes), (0, 0));
    assert_eq!(rig.endpoint(0).lane_stats(c.id), LaneStats::default());
    let before = rig.endpoint(0).memory();
    assert!(before > 0);
    rig.connect(0, 1);
    assert!(rig.endpoint(0).memory() >= before, "memory() shrank though a lane was added");
}
