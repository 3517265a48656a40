//! Clauses 1 and 6: what is sent arrives, once, in order and whole.

use super::{
    Fixture,
    memory::{Buffer, pattern},
    rig::{Lane, Rig},
};
use crate::{Keep, Sink, Token, TransportError, random::Random};
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
            src.write(&pattern(size, stamp));
            unposted.push((Buffer::new(size, 0), stamp));
            let mut post_receives = |rig: &mut Rig<F>| {
                for (dst, stamp) in unposted.drain(..) {
                    receives.push((rig.recv(b, &dst, stamp), dst, stamp));
                }
            };
            // Without receives a send may be refused, finish early or not finish: give each a chance.
            let send = rig.try_send(a, &src, stamp).unwrap_or_else(|| {
                post_receives(&mut rig);
                rig.send(a, &src, stamp)
            });
            rig.steps(4);
            if !rig.is_done(send) {
                post_receives(&mut rig);
                rig.finish(&[send]);
            }
            src.write(&vec![0xee; size]);
        }
        for (dst, stamp) in unposted {
            receives.push((rig.recv(b, &dst, stamp), dst, stamp));
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
