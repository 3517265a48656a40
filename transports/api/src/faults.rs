//! A decorator that makes any endpoint misbehave, within the contract or beyond it, the same way in every run.
//!
//! Delays, `Full` storms, shuffling and short moves stay within the contract: whatever is built on endpoints must give
//! the same results with them. A lost lane must be reported, a flipped bit must be found by a check.
//!
//! ```
//! use rondel_transport_api::faults::{Delay, Faults, Storm};
//! let faults = Faults {
//!     seed: 7,
//!     delay: Some(Delay { per_mille: 300, most: 5 }),
//!     storm: Some(Storm { per_mille: 50, most: 4 }),
//!     shuffle: true,
//!     ..Faults::default()
//! };
//! # let _ = faults;
//! ```
//!
//! Everything follows from the seed and from the calls that the endpoint gets. No clock is read.

mod held;
mod nudge;

use crate::{
    Advert, Allocation, Config, Endpoint, Event, LaneId, LaneStats, Limits, Link, Offer, Port, Post, Region,
    RegionId, Sink, Slice, Token, Transport, TransportError, Unavailable, random::Random,
};
use held::{Direction, Held};
use nudge::Nudge;
use std::{
    collections::HashMap,
    fmt, io,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// What goes wrong, and how often. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Where all chances come from.
    pub seed: u64,
    /// Holds events back. Their order within a lane and direction stays.
    pub delay: Option<Delay>,
    /// Answers `Full` for a while.
    pub storm: Option<Storm>,
    /// Delivers events of different lanes and directions in a random order.
    pub shuffle: bool,
    /// Polls with a tiny budget.
    pub short: Option<Short>,
    /// Ends a lane, once.
    pub loss: Option<Loss>,
    /// Damages a received message, once.
    pub flip: Option<Flip>,
    /// What delays are measured with.
    pub clock: Clock,
}

/// What delays are measured with.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The endpoint's own polls.
    #[default]
    Polls,
    /// A virtual clock that someone else advances, in any unit.
    Virtual(Arc<AtomicU64>),
}

/// Events that come late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Chance of each event, in thousandths.
    pub per_mille: u32,
    /// Longest delay, in units of the [`Clock`]; at least 1.
    pub most: u64,
}

/// A lane and direction that refuses posts for a number of polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// Chance that a post starts one, in thousandths.
    pub per_mille: u32,
    /// Longest storm in polls; at least 1.
    pub most: u64,
}

/// Polls that hardly move anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Chance of each poll, in thousandths.
    pub per_mille: u32,
    /// Largest budget of such a poll in bytes; at least 1.
    pub most: u64,
}

/// The end of a lane, as if its connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// It happens when this many posts of the endpoint are done.
    pub after: u64,
    /// The lane; `None`: the one whose post was the last of them (the next post's, if `after` is 0).
    pub lane: Option<LaneId>,
}

/// One flipped bit in what a receive stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flip {
    /// Which of the endpoint's received messages, from 0; empty ones are not counted.
    pub message: u64,
    /// Which bit, modulo the message's bits.
    pub bit: u64,
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events held back.
    pub delayed: u64,
    /// Posts refused by a storm.
    pub refused: u64,
    /// Events that were delivered before one of another lane or direction that had come earlier.
    pub overtaken: u64,
    /// Polls with a tiny budget.
    pub short: u64,
    /// Lanes ended.
    pub lost: u64,
    /// Bits flipped.
    pub flipped: u64,
}

/// An endpoint with faults.
pub struct Faulty {
    inner: Box<dyn Endpoint>,
    faults: Faults,
    random: Random,
    polls: u64,
    posts: HashMap<Token, Posted>,
    held: Held,
    /// Until which poll a lane and direction refuses.
    storms: HashMap<(LaneId, Direction), u64>,
    fresh: Vec<Event>,
    done: u64,
    received: u64,
    counts: Counts,
    nudge: Nudge,
}

struct Posted {
    lane: LaneId,
    direction: Direction,
    sink: Option<(Sink, u32)>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("faults", &self.faults)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// Decorates an endpoint.
    pub fn new(inner: Box<dyn Endpoint>, faults: Faults) -> Self {
        Self {
            inner,
            random: Random::new(faults.seed),
            faults,
            polls: 0,
            posts: HashMap::new(),
            held: Held::default(),
            storms: HashMap::new(),
            fresh: Vec::new(),
            done: 0,
            received: 0,
            counts: Counts::default(),
            nudge: Nudge::default(),
        }
    }
    /// How often each fault has happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn now(&self) -> u64 {
        match &self.faults.clock {
            Clock::Polls => self.polls,
            Clock::Virtual(clock) => clock.load(Relaxed),
        }
    }
    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.random.below(1000) < per_mille.into()
    }
    /// Whether a post must be refused: before the caller has seen `Established`, and in a storm.
    fn refuses(&mut self, lane: LaneId, direction: Direction) -> bool {
        if !self.held.is_open(lane) {
            return true;
        }
        let Some(storm) = self.faults.storm else { return false };
        let raging = self.storms.get(&(lane, direction)).is_some_and(|&until| self.polls < until);
        if raging || self.happens(storm.per_mille) {
            if !raging {
                let until = self.polls + 1 + self.random.below(storm.most.max(1));
                self.storms.insert((lane, direction), until);
            }
            self.counts.refused += 1;
            return true;
        }
        false
    }
    fn track(&mut self, post: Post, token: Token, posted: Posted) -> Post {
        if post == Post::Accepted {
            self.posts.insert(token, posted);
        }
        post
    }
    /// Takes an event of the inner endpoint in.
    fn admit(&mut self, event: Event) {
        let (lane, direction) = match &event {
            Event::Established { lane } | Event::Closed { lane, .. } => (*lane, None),
            Event::Done { token } | Event::Failed { token, .. } => {
                let Some(posted) = self.posts.remove(token) else { return };
                if matches!(event, Event::Done { .. }) {
                    self.done += 1;
                    self.flip(&posted);
                    self.lose(posted.lane);
                }
                (posted.lane, Some(posted.direction))
            }
        };
        let mut due = self.now();
        if let Some(delay) = self.faults.delay
            && self.happens(delay.per_mille)
        {
            due += 1 + self.random.below(delay.most.max(1));
            self.counts.delayed += 1;
        }
        self.held.push(lane, direction, due, event);
    }
    /// The message is done, but its receiver does not know yet: the memory is still lent to us.
    fn flip(&mut self, posted: &Posted) {
        let Some((sink, len)) = posted.sink.filter(|&(_, len)| len > 0) else { return };
        let number = self.received;
        self.received += 1;
        let Some(flip) = self.faults.flip.filter(|flip| flip.message == number) else { return };
        let (Sink::Copy { dst, .. } | Sink::Reduce { dst, .. }) = sink;
        let bit = flip.bit % (u64::from(len) * 8);
        // SAFETY: the sink is lent until its event, which we hold; the bit lies within the message.
        unsafe { *dst.add((bit / 8) as usize) ^= 1 << (bit % 8) };
        self.counts.flipped += 1;
    }
    /// A loss after nothing is done comes with the first post.
    fn lose_at_first_post(&mut self, lane: LaneId) {
        if self.done == 0 && self.faults.loss.is_some_and(|loss| loss.after == 0) {
            self.lose(lane);
        }
    }
    fn lose(&mut self, last: LaneId) {
        let Some(loss) = self.faults.loss.filter(|loss| self.done >= loss.after) else { return };
        self.faults.loss = None;
        let lane = loss.lane.unwrap_or(last);
        let reason = format!("the fault decorator ended it after {} posts were done", self.done);
        self.inner.abort(lane, TransportError::Lost { peer: format!("lane {}", lane.0), reason });
        self.counts.lost += 1;
    }
}

impl Endpoint for Faulty {
    fn advert(&self) -> Advert {
        self.inner.advert()
    }
    fn reaches(&self, peer: &Advert) -> Option<Link> {
        self.inner.reaches(peer)
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn register(&mut self, memory: Region) -> Result<RegionId, TransportError> {
        self.inner.register(memory)
    }
    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }
    fn allocate(&mut self, len: usize) -> Result<Allocation, TransportError> {
        self.inner.allocate(len)
    }
    fn prepare(&mut self, peer: &Advert) -> Result<(LaneId, Offer), TransportError> {
        self.inner.prepare(peer)
    }
    fn establish(&mut self, lane: LaneId, peer: &Offer) -> Result<(), TransportError> {
        self.inner.establish(lane, peer)
    }

    unsafe fn post_send(&mut self, lane: LaneId, src: Slice, stamp: u64, token: Token) -> Post {
        if self.refuses(lane, Direction::Send) {
            return Post::Full;
        }
        // SAFETY: the caller's promise is the same.
        let post = unsafe { self.inner.post_send(lane, src, stamp, token) };
        let post = self.track(post, token, Posted { lane, direction: Direction::Send, sink: None });
        if post == Post::Accepted {
            self.lose_at_first_post(lane);
        }
        post
    }
    unsafe fn post_recv(&mut self, lane: LaneId, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        if self.refuses(lane, Direction::Recv) {
            return Post::Full;
        }
        // SAFETY: the caller's promise is the same.
        let post = unsafe { self.inner.post_recv(lane, len, sink, stamp, token) };
        let posted = Posted { lane, direction: Direction::Recv, sink: Some((sink, len)) };
        let post = self.track(post, token, posted);
        if post == Post::Accepted {
            self.lose_at_first_post(lane);
        }
        post
    }
    fn flush(&mut self) {
        self.inner.flush();
    }
    fn pause(&mut self) {
        self.inner.pause();
    }
    fn poll(&mut self, events: &mut Vec<Event>, budget: usize) -> bool {
        self.polls += 1;
        let mut budget = budget;
        if let Some(short) = self.faults.short
            && self.happens(short.per_mille)
        {
            budget = budget.min(1 + self.random.below(short.most.max(1)) as usize);
            self.counts.short += 1;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        let moved = self.inner.poll(&mut fresh, budget);
        for event in fresh.drain(..) {
            self.admit(event);
        }
        self.fresh = fresh;

        let before = events.len();
        let now = self.now();
        let shuffle = self.faults.shuffle.then_some(&mut self.random);
        self.counts.overtaken += self.held.release(now, shuffle, events);
        let polls = self.polls;
        self.storms.retain(|_, &mut until| polls < until);
        if !self.held.is_empty() || !self.storms.is_empty() {
            // Only further polls bring these to an end, and nothing else wakes a sleeper for them.
            self.nudge.wake();
        }
        moved || events.len() > before
    }

    fn arm(&mut self) -> io::Result<()> {
        self.inner.arm()?;
        self.nudge.arm(self.inner.wakeup())
    }
    fn wakeup(&self) -> BorrowedFd<'_> {
        self.nudge.wakeup(self.inner.wakeup())
    }

    fn close(&mut self, lane: LaneId) {
        self.inner.close(lane);
    }
    fn abort(&mut self, lane: LaneId, cause: TransportError) {
        self.inner.abort(lane, cause);
    }
    fn lane_stats(&self, lane: LaneId) -> LaneStats {
        self.inner.lane_stats(lane)
    }
    fn memory(&self) -> usize {
        self.inner.memory()
    }
}

/// A transport whose endpoints have faults, each from a seed of its own (the faults' and its rank).
#[derive(Debug)]
pub struct FaultyTransport<T> {
    inner: T,
    faults: Faults,
}

impl<T: Transport> FaultyTransport<T> {
    /// Decorates every endpoint that `inner` opens.
    pub fn new(inner: T, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl<T: Transport> Transport for FaultyTransport<T> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn discover(&self, config: &Config) -> Result<Vec<Port>, Unavailable> {
        self.inner.discover(config)
    }
    fn open(&self, port: &Port, config: &Config) -> Result<Box<dyn Endpoint>, TransportError> {
        let mut faults = self.faults.clone();
        faults.seed ^= Random::new(config.rank.into()).next();
        Ok(Box::new(Faulty::new(self.inner.open(port, config)?, faults)))
    }
}
