//! Clauses 1, 2, 6 and 7: what is sent arrives, once, in order and whole.

use super::{
    Fixture,
    memory::Buffer,
    rig::{Lane, Rig},
};
use crate::{Keep, Post, Sink, Slice, Token, TransportError, random::Random};
use std::ptr;

const SIZES: [usize; 11] = [0, 1, 7, 8, 63, 64, 65, 4 << 10, (64 << 10) + 1, 1 << 20, 5 << 20];

/// Messages of one lane, still to be posted, in both directions.
struct Stream {
    from: Lane,
    to: Lane,
    sends: Vec<(Buffer, u64)>,
    recvs: Vec<(Buffer, u64)>,
    sent: usize,
    received: usize,
    tokens: Vec<Token>,
}

impl Stream {
    fn new(from: Lane, to: Lane, sizes: &[usize], seed: u64) -> Self {
        let stamp = |i: usize| seed.wrapping_mul(31).wrapping_add(i as u64);
        let sends = sizes.iter().enumerate().map(|(i, &n)| (Buffer::filled(n, i % 5, stamp(i)), stamp(i)));
        let recvs = sizes.iter().enumerate().map(|(i, &n)| (Buffer::new(n, i % 3), stamp(i)));
        Self {
            from,
            to,
            sends: sends.collect(),
            recvs: recvs.collect(),
            sent: 0,
            received: 0,
            tokens: Vec::new(),
        }
    }
    /// Posts the next send, if there is one and it is accepted.
    fn post_send<F: Fixture>(&mut self, rig: &mut Rig<F>) {
        let Some((src, stamp)) = self.sends.get(self.sent) else { return };
        if let Some(token) = rig.try_send(self.from, src, *stamp) {
            self.sent += 1;
            self.tokens.push(token);
        }
    }
    fn post_recv<F: Fixture>(&mut self, rig: &mut Rig<F>) {
        let Some((dst, stamp)) = self.recvs.get(self.received) else { return };
        if let Some(token) = rig.try_recv(self.to, dst, *stamp) {
            self.received += 1;
            self.tokens.push(token);
        }
    }
    fn is_posted(&self) -> bool {
        self.sent == self.sends.len() && self.received == self.recvs.len()
    }
    fn check<F: Fixture>(&self, rig: &mut Rig<F>, what: &str) {
        rig.finish(&self.tokens);
        for (dst, stamp) in &self.recvs {
            dst.expect_pattern(*stamp, what);
        }
    }
}

/// Posts and polls in a random order until all streams have arrived.
fn run<F: Fixture>(rig: &mut Rig<F>, streams: &mut [Stream], random: &mut Random, what: &str) {
    while !streams.iter().all(Stream::is_posted) {
        for stream in &mut *streams {
            match random.below(4) {
                0 => stream.post_send(rig),
                1 => stream.post_recv(rig),
                2 => {
                    stream.post_send(rig);
                    stream.post_recv(rig);
                }
                _ => {}
            }
        }
        if random.below(2) == 0 {
            rig.step();
        }
    }
    for stream in streams {
        stream.check(rig, what);
    }
}

fn small_sizes(n: usize, random: &mut Random) -> Vec<usize> {
    let mut size = || {
        let most = 1 << random.below(13);
        random.below(most) as usize
    };
    (0..n).map(|_| size()).collect()
}

/// Clause 1: the i-th send meets the i-th receive, both ways, whichever is posted first.
pub fn messages_meet_by_count<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let mut streams = [
            Stream::new(a, b, &small_sizes(100, &mut random), seed),
            Stream::new(b, a, &small_sizes(100, &mut random), seed + 100),
        ];
        run(&mut rig, &mut streams, &mut random, "clause 1: messages meet by count");
    }
}

/// Clause 1: also long messages, and such as lie at odd addresses; before and after the receive is posted.
pub fn every_size_arrives_at_any_alignment<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let most = rig.endpoint(0).limits().max_message as usize;
    for (i, &size) in SIZES.iter().filter(|&&size| size <= most).enumerate() {
        let offsets = if size > 1 << 20 { 1..2 } else { 0..4 };
        for offset in offsets {
            let stamp = (i * 8 + offset) as u64;
            let (src, dst) = (Buffer::filled(size, offset, stamp), Buffer::new(size, (offset * 3) % 8));
            let recv_first = offset % 2 == 0;
            let early = recv_first.then(|| rig.recv(b, &dst, stamp));
            rig.steps(2);
            let send = rig.send(a, &src, stamp);
            rig.steps(3);
            let recv = early.unwrap_or_else(|| rig.recv(b, &dst, stamp));
            rig.finish(&[send, recv]);
            dst.expect_pattern(stamp, "clause 1: a message of any size arrives whole");
        }
    }
}

/// Clause 1: an empty message is a message, and its address is not looked at.
pub fn empty_messages_need_no_memory<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let after = Buffer::new(3, 0);
    let empty = Sink::Copy { dst: ptr::null_mut(), region: None, keep: Keep::Keep };
    let mut tokens = vec![rig.sink(b, 0, empty, 1, Vec::new())];
    let nothing = Buffer::new(0, 0);
    tokens.push(rig.send(a, &nothing, 1));
    tokens.push(rig.send(a, &Buffer::filled(3, 1, 9), 2));
    tokens.push(rig.recv(b, &after, 2));
    rig.finish(&tokens);
    after.expect_pattern(9, "clause 1: a message after an empty one");
}

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
    let (src, dst) = (Buffer::new(1, 0), Buffer::new(1, 0));
    let slice = Slice { addr: src.addr(), len: 1, region: None };
    // SAFETY: nothing is lent, since the lane does not exist.
    let post = unsafe { rig.endpoint(0).post_send(crate::LaneId(u32::MAX), slice, 0, Token(0)) };
    assert_eq!(post, Post::Full, "clause 2: a lane that does not exist accepts nothing");
    drop(dst);
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

/// No deadlock when both ends send more than anything buffers, before either receives.
pub fn both_directions_move_at_once<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let most = rig.endpoint(0).limits().max_message as usize;
    let sizes: Vec<_> = [1 << 20, 5 << 20, 1, 1 << 20].iter().map(|&size| most.min(size)).collect();
    let mut streams = [Stream::new(a, b, &sizes, 1), Stream::new(b, a, &sizes, 2)];
    for stream in &mut streams {
        stream.post_send(&mut rig);
    }
    rig.steps(10);
    run(&mut rig, &mut streams, &mut Random::new(1), "long messages both ways at once");
}

/// Clause 6: after `Done` the source is the caller's again, though the message may not have been received yet.
pub fn sources_may_be_overwritten_after_done<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    for (round, size) in [5, 64, 1000, 5000, 300_000].into_iter().enumerate() {
        let src = Buffer::new(size, round % 3);
        let (mut receives, mut unposted) = (Vec::new(), Vec::new());
        for stamp in 0..12 {
            src.write(&super::memory::pattern(size, stamp));
            let send = rig.send(a, &src, stamp);
            let dst = Buffer::new(size, 0);
            unposted.push((dst, stamp));
            // Without receives a send may finish early or not at all: give both a chance.
            rig.steps(4);
            while !rig.is_done(send) {
                for (dst, stamp) in unposted.drain(..) {
                    let token = rig.recv(b, &dst, stamp);
                    receives.push((token, dst, stamp));
                }
                rig.finish(&[send]);
            }
            src.write(&vec![0xee; size]);
        }
        for (dst, stamp) in unposted {
            let token = rig.recv(b, &dst, stamp);
            receives.push((token, dst, stamp));
        }
        for (token, dst, stamp) in receives {
            rig.finish(&[token]);
            dst.expect_pattern(stamp, "clause 6: the source was overwritten after Done");
        }
    }
}

/// Clause 1: a mismatch is named with both values, and `dst` is not written beyond the posted length.
pub fn mismatched_lengths_and_stamps_are_named<F: Fixture>() {
    for (sent, posted, their_stamp, our_stamp) in [
        (100, 60, 5, 5),
        (60, 100, 5, 5),
        (0, 1, 5, 5),
        (1, 0, 5, 5),
        (400_000, 300_000, 5, 5),
        (300_000, 400_000, 5, 5),
        (64, 64, 5, u64::MAX),
        (400_000, 64, 5, 6),
    ] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let good = Buffer::new(9, 0);
        let first = [rig.send(a, &Buffer::filled(9, 0, 3), 1), rig.recv(b, &good, 1)];
        rig.finish(&first);
        let dst = Buffer::new(posted, 1);
        let tokens = [rig.send(a, &Buffer::filled(sent, 0, 4), their_stamp), rig.recv(b, &dst, our_stamp)];
        rig.settle(&tokens[1..]);
        let seen = rig.outcome(tokens[1]).cloned();
        let Some(Err(TransportError::Mismatch {
            message,
            our_len,
            their_len,
            our_stamp: ours,
            their_stamp: theirs,
        })) = seen
        else {
            panic!("clause 1: {sent} bytes met a receive of {posted}; expected a Mismatch, got {seen:?}");
        };
        assert_eq!(
            (message, our_len, their_len, ours, theirs),
            (1, posted as u64, sent as u64, our_stamp, their_stamp),
            "clause 1: (message, our_len, their_len, our_stamp, their_stamp)"
        );
        dst.check_guards("clause 1: a mismatch");
        rig.abort(a);
        rig.abort(b);
        rig.closed(a);
        rig.closed(b);
        rig.settle(&tokens);
        dst.check_guards("clause 1: a mismatch");
    }
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
        while let None = rig.try_recv(*lane, dst, *stamp).map(|token| tokens.push(token)) {
            rig.step();
        }
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

/// Random lengths, orders and budgets on all lanes of four endpoints that are fully connected, twice.
pub fn random_traffic_on_a_mesh<F: Fixture>() {
    let mut rig = Rig::<F>::new(4);
    let mut random = Random::new(7);
    let mut streams = Vec::new();
    for i in 0..4 {
        for j in 0..i {
            for _ in 0..2 {
                let (a, b) = rig.connect(i, j);
                for (from, to) in [(a, b), (b, a)] {
                    let mut sizes = small_sizes(20, &mut random);
                    sizes.push(random.below(200_000) as usize);
                    streams.push(Stream::new(from, to, &sizes, random.next()));
                }
            }
        }
    }
    for budget in [1 << 20, 3000] {
        rig.budget = budget;
        let half = streams.len() / 2;
        let later = streams.split_off(half);
        run(&mut rig, &mut streams, &mut random, "random traffic on a mesh");
        streams = later;
    }
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
    assert_eq!(rig.endpoint(0).lane_stats(c.id), crate::LaneStats::default());
    let before = rig.endpoint(0).memory();
    assert!(before > 0);
    rig.connect(0, 1);
    assert!(rig.endpoint(0).memory() >= before, "memory() shrank though a lane was added");
}
