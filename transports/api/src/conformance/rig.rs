//! Endpoints driven in turn by one thread, with every event checked.

use super::{Fixture, memory::Buffer};
use crate::{Endpoint, Event, Keep, LaneId, Post, Sink, Slice, Token, TransportError};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Instant,
};

/// One end of a lane: which endpoint and which of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    pub(super) end: usize,
    pub(super) id: LaneId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Send,
    Recv,
}

pub(super) type Outcome = Result<(), TransportError>;

pub(super) struct Rig<F> {
    // Endpoints go before the buffers that are lent to them.
    ends: Vec<Option<Box<dyn Endpoint>>>,
    paused: HashSet<usize>,
    established: HashSet<Lane>,
    closed: HashMap<Lane, Option<TransportError>>,
    posts: HashMap<Token, Posted>,
    queues: HashMap<(Lane, Direction), VecDeque<Token>>,
    next_token: u64,
    /// What each poll may move.
    pub(super) budget: usize,
    /// Whether a round of polls flushes first.
    pub(super) flushes: bool,
    events: Vec<Event>,
    pub(super) fixture: F,
}

struct Posted {
    lane: Lane,
    direction: Direction,
    outcome: Option<Outcome>,
    /// Kept until the event.
    lent: Vec<Buffer>,
}

impl<F: Fixture> Rig<F> {
    pub(super) fn new(n: usize) -> Self {
        let fixture = F::new();
        let ends: Vec<_> = fixture.endpoints(n).into_iter().map(Some).collect();
        assert_eq!(ends.len(), n, "Fixture::endpoints({n}) gave {} endpoints", ends.len());
        Self {
            ends,
            paused: HashSet::new(),
            established: HashSet::new(),
            closed: HashMap::new(),
            posts: HashMap::new(),
            queues: HashMap::new(),
            next_token: 1,
            budget: 1 << 20,
            flushes: true,
            events: Vec::new(),
            fixture,
        }
    }
    /// Two endpoints with one lane.
    pub(super) fn pair() -> (Self, Lane, Lane) {
        let mut rig = Self::new(2);
        let (a, b) = rig.connect(0, 1);
        (rig, a, b)
    }
    pub(super) fn endpoint(&mut self, end: usize) -> &mut dyn Endpoint {
        &mut **self.ends[end].as_mut().expect("a killed endpoint is not used")
    }
    /// Gives the endpoints away, with the fixture that they need.
    pub(super) fn dismantle(mut self) -> (F, Vec<Box<dyn Endpoint>>) {
        let ends = self.ends.drain(..).flatten().collect();
        (self.fixture, ends)
    }

    /// A lane that one side has prepared, with the offers of both sides.
    pub(super) fn prepare(&mut self, i: usize, j: usize) -> (Lane, crate::Offer, Lane, crate::Offer) {
        let (at_i, at_j) = (self.endpoint(i).advert(), self.endpoint(j).advert());
        let (a, offer_a) = self.endpoint(i).prepare(&at_j).expect("prepare towards a reachable peer");
        let (b, offer_b) = self.endpoint(j).prepare(&at_i).expect("prepare towards a reachable peer");
        (Lane { end: i, id: a }, offer_a, Lane { end: j, id: b }, offer_b)
    }
    pub(super) fn connect(&mut self, i: usize, j: usize) -> (Lane, Lane) {
        let (a, offer_a, b, offer_b) = self.prepare(i, j);
        self.endpoint(i).establish(a.id, &offer_b).expect("establish with the peer's offer");
        self.endpoint(j).establish(b.id, &offer_a).expect("establish with the peer's offer");
        self.until("both ends of a lane are established", |rig| {
            rig.established.contains(&a) && rig.established.contains(&b)
        });
        (a, b)
    }

    pub(super) fn try_send(&mut self, lane: Lane, src: &Buffer, stamp: u64) -> Option<Token> {
        let token = Token(self.next_token);
        let slice = Slice { addr: src.addr(), len: src.len() as u32, region: src.region() };
        // SAFETY: `accept` keeps the buffer until the event; tests do not write to it before.
        let post = unsafe { self.endpoint(lane.end).post_send(lane.id, slice, stamp, token) };
        self.accept(post, lane, Direction::Send, vec![src.clone()])
    }
    pub(super) fn try_recv(&mut self, lane: Lane, dst: &Buffer, stamp: u64) -> Option<Token> {
        let sink = Sink::Copy { dst: dst.addr(), region: dst.region(), keep: Keep::Keep };
        self.try_sink(lane, dst.len(), sink, stamp, vec![dst.clone()])
    }
    /// As [`try_recv`](Self::try_recv), into any sink whose memory `lent` keeps alive.
    pub(super) fn try_sink(
        &mut self,
        lane: Lane,
        len: usize,
        sink: Sink,
        stamp: u64,
        lent: Vec<Buffer>,
    ) -> Option<Token> {
        let token = Token(self.next_token);
        // SAFETY: `accept` keeps the buffers until the event; tests do not touch them before.
        let post = unsafe { self.endpoint(lane.end).post_recv(lane.id, len as u32, sink, stamp, token) };
        self.accept(post, lane, Direction::Recv, lent)
    }
    fn accept(&mut self, post: Post, lane: Lane, direction: Direction, lent: Vec<Buffer>) -> Option<Token> {
        let token = Token(self.next_token);
        self.next_token += 1;
        if post == Post::Full {
            return None;
        }
        assert!(self.established.contains(&lane), "clause 2: a post was accepted before Established");
        assert!(!self.closed.contains_key(&lane), "clause 11: a post was accepted after Closed");
        self.posts.insert(token, Posted { lane, direction, outcome: None, lent });
        self.queues.entry((lane, direction)).or_default().push_back(token);
        Some(token)
    }
    /// Posts, polling while the lane is full.
    pub(super) fn send(&mut self, lane: Lane, src: &Buffer, stamp: u64) -> Token {
        self.insist("a send is accepted", |rig| rig.try_send(lane, src, stamp))
    }
    pub(super) fn recv(&mut self, lane: Lane, dst: &Buffer, stamp: u64) -> Token {
        self.insist("a receive is accepted", |rig| rig.try_recv(lane, dst, stamp))
    }
    pub(super) fn sink(
        &mut self,
        lane: Lane,
        len: usize,
        sink: Sink,
        stamp: u64,
        lent: Vec<Buffer>,
    ) -> Token {
        self.insist("a receive is accepted", |rig| rig.try_sink(lane, len, sink, stamp, lent.clone()))
    }
    /// A post that must be accepted now, except by endpoints that may say `Full` at any time.
    pub(super) fn at_once(&mut self, what: &str, post: impl FnMut(&mut Self) -> Option<Token>) -> Token {
        let mut post = post;
        if let Some(token) = post(self) {
            return token;
        }
        assert!(F::SPURIOUS_FULL, "{what}: Full");
        self.insist(what, post)
    }
    fn insist(&mut self, what: &str, mut post: impl FnMut(&mut Self) -> Option<Token>) -> Token {
        let deadline = Instant::now() + F::PATIENCE;
        loop {
            if let Some(token) = post(self) {
                return token;
            }
            self.step();
            assert!(Instant::now() < deadline, "hang: not seen within {:?}: {what}", F::PATIENCE);
        }
    }

    pub(super) fn close(&mut self, lane: Lane) {
        self.endpoint(lane.end).close(lane.id);
    }
    pub(super) fn abort(&mut self, lane: Lane) {
        let reason = "the test says so".to_owned();
        self.endpoint(lane.end).abort(lane.id, TransportError::Closed { reason });
    }
    /// Polls an endpoint no more.
    pub(super) fn pause(&mut self, end: usize) {
        self.paused.insert(end);
    }
    pub(super) fn kill(&mut self, end: usize) {
        let endpoint = self.ends[end].take().expect("killed once");
        self.fixture.kill(endpoint);
    }

    /// Polls every endpoint once. Returns whether anything moved.
    pub(super) fn step(&mut self) -> bool {
        self.fixture.tick();
        let mut moved = false;
        for end in 0..self.ends.len() {
            if self.paused.contains(&end) {
                continue;
            }
            let Some(endpoint) = &mut self.ends[end] else { continue };
            if self.flushes {
                endpoint.flush();
            }
            let mut events = std::mem::take(&mut self.events);
            moved |= endpoint.poll(&mut events, self.budget);
            for event in events.drain(..) {
                self.handle(end, event);
            }
            self.events = events;
        }
        if !moved {
            std::thread::yield_now();
        }
        moved
    }
    pub(super) fn steps(&mut self, n: usize) {
        for _ in 0..n {
            self.step();
        }
    }
    pub(super) fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + F::PATIENCE;
        while !condition(self) {
            self.step();
            assert!(Instant::now() < deadline, "hang: not seen within {:?}: {what}", F::PATIENCE);
        }
    }
    /// Polls until all tokens are done.
    pub(super) fn finish(&mut self, tokens: &[Token]) {
        self.settle(tokens);
        for &token in tokens {
            let posted = &self.posts[&token];
            if let Some(Err(error)) = &posted.outcome {
                panic!("a {:?} on {:?} failed: {error}", posted.direction, posted.lane);
            }
        }
    }
    /// Polls until all tokens have their event.
    pub(super) fn settle(&mut self, tokens: &[Token]) {
        self.until("every post has its event", |rig| tokens.iter().all(|&t| rig.outcome(t).is_some()));
    }
    /// Polls until a lane's end is closed and returns the cause.
    pub(super) fn closed(&mut self, lane: Lane) -> Option<TransportError> {
        self.until("the lane is Closed", |rig| rig.closed.contains_key(&lane));
        let open = self.posts.values().find(|p| p.lane == lane && p.outcome.is_none());
        assert!(open.is_none(), "clause 3: Closed came before the event of a post");
        self.closed[&lane].clone()
    }
    pub(super) fn outcome(&self, token: Token) -> Option<&Outcome> {
        self.posts[&token].outcome.as_ref()
    }
    pub(super) fn is_done(&self, token: Token) -> bool {
        matches!(self.outcome(token), Some(Ok(())))
    }

    fn handle(&mut self, end: usize, event: Event) {
        match event {
            Event::Done { token } => self.handle_outcome(end, token, Ok(())),
            Event::Failed { token, error } => self.handle_outcome(end, token, Err(error)),
            Event::Established { lane } => {
                let lane = Lane { end, id: lane };
                assert!(!self.closed.contains_key(&lane), "{lane:?}: Established after Closed");
                assert!(self.established.insert(lane), "{lane:?}: Established twice");
            }
            Event::Closed { lane, cause } => {
                let lane = Lane { end, id: lane };
                assert!(self.closed.insert(lane, cause).is_none(), "{lane:?}: Closed twice");
            }
        }
    }
    fn handle_outcome(&mut self, end: usize, token: Token, outcome: Outcome) {
        let posted = self.posts.get_mut(&token);
        let posted = posted.unwrap_or_else(|| panic!("an event of {token:?}, which was never accepted"));
        let Posted { lane, direction, .. } = *posted;
        assert_eq!(lane.end, end, "an event of {token:?} came from another endpoint than it was posted to");
        assert!(
            posted.outcome.is_none(),
            "clause 3: a second event of {token:?} ({direction:?} on {lane:?})"
        );
        assert!(!self.closed.contains_key(&lane), "clause 4: an event of {token:?} after Closed");
        let queue = self.queues.get_mut(&(lane, direction)).expect("it was posted");
        if outcome.is_ok() {
            assert_eq!(
                queue.front(),
                Some(&token),
                "clause 1: a {direction:?} on {lane:?} is done out of order"
            );
        }
        queue.retain(|&other| other != token);
        posted.outcome = Some(outcome);
        for buffer in posted.lent.drain(..) {
            buffer.check_guards("at an event");
        }
    }
}
