//! Every fault of the decorator happens, and only as far as it was asked for.

mod harness;

use harness::{connect, poll, recv, send};
use rondel_mem::MemTransport;
use rondel_transport_api::{
    Endpoint, Event, LaneId, Post, TransportError,
    conformance::open_all,
    faults::{Clock, Counts, Delay, Faults, Faulty, Flip, Loss, Short, Storm},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

const LEN: usize = 600;

/// A plain sender and a receiver with faults, with some lanes between them.
struct Bench {
    a: Box<dyn Endpoint>,
    b: Faulty,
    lanes: Vec<(LaneId, LaneId)>,
    src: Vec<Vec<u8>>,
    dst: Vec<Vec<u8>>,
    posted: Vec<u64>,
    /// What the receiver reported, in order.
    events: Vec<Event>,
}

impl Bench {
    fn new(lanes: usize, faults: Faults) -> Self {
        let mut ends = open_all(&MemTransport::default(), 2);
        let (b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
        let mut b = Faulty::new(b, faults);
        let lanes: Vec<_> = (0..lanes).map(|_| connect(&mut *a, &mut b)).collect();
        let src = (0..lanes.len()).map(|lane| vec![lane as u8 + 1; LEN]).collect();
        let dst = vec![vec![0; LEN]; lanes.len()];
        let posted = vec![0; lanes.len()];
        Self { a, b, lanes, src, dst, posted, events: Vec::new() }
    }
    /// Tries to post the next message of a lane on both ends. Tokens: lane * 1000 + number.
    fn post(&mut self, lane: usize) -> Post {
        let (at_a, at_b) = self.lanes[lane];
        let number = self.posted[lane];
        let token = lane as u64 * 1000 + number;
        // SAFETY: the vectors live as long as the endpoints; every receive of a lane stores the same bytes.
        unsafe {
            let post = recv(&mut self.b, at_b, &mut self.dst[lane], number, token);
            if post == Post::Accepted {
                assert_eq!(send(&mut *self.a, at_a, &self.src[lane], number, token), Post::Accepted);
                self.posted[lane] += 1;
            }
            post
        }
    }
    fn step(&mut self) {
        poll(&mut *self.a);
        self.events.extend(poll(&mut self.b));
    }
    /// Sends `n` messages on each lane, one after the other, and waits for all.
    fn run(&mut self, n: u64) {
        for number in 0..n {
            for lane in 0..self.lanes.len() {
                while self.post(lane) == Post::Full {
                    self.step();
                }
            }
            if number % 3 == 0 {
                self.step();
            }
        }
        let due = n as usize * self.lanes.len();
        for _ in 0..10_000 {
            if self.events.len() >= due {
                return;
            }
            self.step();
        }
        panic!("{} of {due} receives are done", self.events.len());
    }
    fn done(&self) -> Vec<u64> {
        let done = |event: &Event| match event {
            Event::Done { token } => Some(token.0),
            _ => None,
        };
        self.events.iter().filter_map(done).collect()
    }
    fn is_in_order(&self, lane: u64) -> bool {
        let of_lane: Vec<_> = self.done().into_iter().filter(|token| token / 1000 == lane).collect();
        of_lane.is_sorted()
    }
}

#[test]
fn nothing_happens_unless_asked_for() {
    let mut bench = Bench::new(3, Faults::default());
    bench.run(30);
    assert_eq!(bench.b.counts(), Counts::default());
    assert_eq!(bench.dst, bench.src);
}

#[test]
fn delays_count_polls() {
    let delay = Some(Delay { per_mille: 1000, most: 1 });
    let mut bench = Bench::new(1, Faults { delay, ..Faults::default() });
    let before = bench.b.counts().delayed;
    assert_eq!(bench.post(0), Post::Accepted);
    bench.step();
    assert!(bench.events.is_empty(), "the event is one poll late");
    bench.step();
    assert_eq!(bench.done(), [0]);
    assert_eq!(bench.b.counts().delayed - before, 1);
}

#[test]
fn delays_follow_a_virtual_clock() {
    let clock = Arc::new(AtomicU64::new(0));
    let delay = Some(Delay { per_mille: 1000, most: 1 });
    let faults = Faults { delay, clock: Clock::Virtual(clock.clone()), ..Faults::default() };
    let mut ends = open_all(&MemTransport::default(), 2);
    let mut b = Faulty::new(ends.pop().expect("two"), faults);
    let mut a = ends.pop().expect("two");
    let (lane_a, offer_a) = a.prepare(&b.advert()).expect("reachable");
    let (lane_b, offer_b) = b.prepare(&a.advert()).expect("reachable");
    a.establish(lane_a, &offer_b).expect("the peer's offer");
    b.establish(lane_b, &offer_a).expect("the peer's offer");
    let mut dst = [0; 8];
    for _ in 0..100 {
        assert!(poll(&mut b).is_empty(), "time stands still");
        // SAFETY: nothing is lent, since the post is refused.
        let early = unsafe { recv(&mut b, lane_b, &mut dst, 0, 0) };
        assert_eq!(early, Post::Full, "the caller has not seen Established");
    }
    clock.fetch_add(1, Ordering::Relaxed);
    assert!(matches!(poll(&mut b)[..], [Event::Established { .. }]));
    // SAFETY: the array lives as long as the endpoint and is not touched.
    assert_eq!(unsafe { recv(&mut b, lane_b, &mut dst, 0, 0) }, Post::Accepted);
}

#[test]
fn storms_refuse_and_pass() {
    let storm = Some(Storm { per_mille: 200, most: 4 });
    let mut bench = Bench::new(2, Faults { storm, ..Faults::default() });
    let mut longest = 0;
    for _ in 0..100 {
        let mut refused = 0;
        while bench.post(0) == Post::Full {
            bench.step();
            refused += 1;
        }
        longest = longest.max(refused);
        bench.step();
    }
    assert!(bench.b.counts().refused > 10, "{:?}", bench.b.counts());
    assert!(longest > 1, "a storm outlives a poll");
    bench.step();
    assert_eq!(bench.done().len(), 100);
}

#[test]
fn lanes_overtake_each_other_but_not_themselves() {
    let delay = Some(Delay { per_mille: 500, most: 4 });
    for (shuffle, delay) in [(true, None), (false, delay), (true, delay)] {
        let mut bench = Bench::new(4, Faults { shuffle, delay, ..Faults::default() });
        bench.run(50);
        assert!(bench.b.counts().overtaken > 10, "{:?}", bench.b.counts());
        assert!(!bench.done().is_sorted_by_key(|token| token % 1000), "{:?}", bench.done());
        assert!((0..4).all(|lane| bench.is_in_order(lane)), "{:?}", bench.done());
        assert_eq!(bench.dst, bench.src);
    }
}

#[test]
fn short_moves_cut_messages() {
    let short = Some(Short { per_mille: 1000, most: 50 });
    let mut bench = Bench::new(1, Faults { short, ..Faults::default() });
    let before = bench.b.counts().short;
    bench.run(1);
    // A poll moves 64 bytes at most, since its budget is rounded up to that.
    assert!(bench.b.counts().short - before >= LEN as u64 / 64, "{:?}", bench.b.counts());
    assert_eq!(bench.dst, bench.src);
}

#[test]
fn a_lane_is_lost_at_its_moment() {
    for (after, chosen) in [(0, None), (7, None), (7, Some(1))] {
        // An endpoint of mem numbers its lanes from 0.
        let lane = chosen.map(|lane: usize| LaneId(lane as u32));
        let mut bench = Bench::new(3, Faults { loss: Some(Loss { after, lane }), ..Faults::default() });
        let mut at_peer = Vec::new();
        for round in 0..12 {
            // Refused on the lane that was lost.
            let _ = bench.post(round % 3);
            bench.events.extend(poll(&mut bench.b));
            at_peer.extend(poll(&mut *bench.a));
            bench.events.extend(poll(&mut bench.b));
        }
        assert_eq!(bench.b.counts().lost, 1);
        let closed = |events: &[Event]| {
            let is_closed = |event: &&Event| {
                matches!(event, Event::Closed { cause: Some(TransportError::Lost { .. }), .. })
            };
            events.iter().filter(is_closed).count()
        };
        assert_eq!((closed(&bench.events), closed(&at_peer)), (1, 1), "after {after}: {:?}", bench.events);
        let lost = if after == 0 { 0 } else { chosen.unwrap_or((after as usize - 1) % 3) };
        let is_lost =
            |event: &Event| matches!(event, Event::Closed { lane, .. } if *lane == bench.lanes[lost].1);
        assert!(bench.events.iter().any(is_lost), "after {after}: {:?}", bench.events);
    }
}

#[test]
fn one_bit_of_one_message_is_flipped() {
    for bit in [0, 9, LEN as u64 * 8 - 1, LEN as u64 * 8 + 3] {
        let mut bench = Bench::new(1, Faults { flip: Some(Flip { message: 2, bit }), ..Faults::default() });
        for number in 0..4 {
            bench.dst[0].fill(0);
            assert_eq!(bench.post(0), Post::Accepted);
            bench.step();
            let flipped: u32 =
                bench.dst[0].iter().zip(&bench.src[0]).map(|(d, s)| (d ^ s).count_ones()).sum();
            assert_eq!(flipped, u32::from(number == 2), "message {number}");
            if number == 2 {
                let at = (bit % (LEN as u64 * 8)) as usize;
                assert_eq!(bench.dst[0][at / 8] ^ bench.src[0][at / 8], 1 << (at % 8));
            }
        }
        assert_eq!(bench.b.counts().flipped, 1);
        assert_eq!(bench.done().len(), 4, "the endpoint itself notices nothing");
    }
}

#[test]
fn a_seed_gives_the_same_faults_again() {
    let counts = |seed| {
        let faults = Faults {
            seed,
            delay: Some(Delay { per_mille: 300, most: 5 }),
            storm: Some(Storm { per_mille: 100, most: 5 }),
            shuffle: true,
            short: Some(Short { per_mille: 300, most: 500 }),
            ..Faults::default()
        };
        let mut bench = Bench::new(3, faults);
        bench.run(40);
        (bench.b.counts(), bench.done())
    };
    assert_eq!(counts(1), counts(1));
    assert_ne!(counts(1), counts(2));
}
