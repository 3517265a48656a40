//! Clause 8: whoever arms, polls and waits is woken.

use super::{
    Fixture,
    memory::Buffer,
    rig::{Lane, Rig},
};
use crate::{Endpoint, Event, Keep, Post, Sink, Slice, Token, random::Random};
use std::{
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

const ROUNDS: u64 = 3000;
const SIZE: usize = 24;

/// One end of a lane whose thread sleeps whenever it has nothing to do.
struct Sleeper {
    endpoint: Box<dyn Endpoint>,
    lane: crate::LaneId,
    random: Random,
    src: Buffer,
    dst: Buffer,
    events: Vec<Event>,
    sent: u64,
    received: u64,
    posted: u64,
    closed: bool,
}

/// Odd tokens are receives.
const RECV: u64 = 1;

impl Sleeper {
    fn new(endpoint: Box<dyn Endpoint>, lane: Lane, seed: u64) -> Self {
        Self {
            endpoint,
            lane: lane.id,
            random: Random::new(seed),
            src: Buffer::filled(SIZE, 0, 1),
            dst: Buffer::new(SIZE, 0),
            events: Vec::new(),
            sent: 0,
            received: 0,
            posted: 0,
            closed: false,
        }
    }
    /// Polls once; returns whether anything happened.
    fn poll(&mut self) -> bool {
        let moved = self.endpoint.poll(&mut self.events, 1 << 16);
        for event in self.events.drain(..) {
            match event {
                Event::Done { token } if token.0 % 2 == RECV => self.received += 1,
                Event::Done { .. } => self.sent += 1,
                Event::Closed { .. } => self.closed = true,
                Event::Failed { error, .. } => panic!("a post failed: {error}"),
                Event::Established { .. } => {}
            }
        }
        moved
    }
    /// One message in each direction at most is under way, so what is refused is taken after a poll.
    fn send(&mut self, number: u64) {
        self.posting(|it| {
            let src = Slice { addr: it.src.addr(), len: it.src.len() as u32, region: it.src.region() };
            // SAFETY: the buffer lives as long as the endpoint, and is not written.
            unsafe { it.endpoint.post_send(it.lane, src, number, Token(number * 2)) }
        });
    }
    fn recv(&mut self, number: u64) {
        self.posting(|it| {
            let sink = Sink::Copy { dst: it.dst.addr(), region: None, keep: Keep::Keep };
            // SAFETY: the buffer lives as long as the endpoint, and has one receive at a time.
            unsafe {
                it.endpoint.post_recv(it.lane, it.dst.len() as u32, sink, number, Token(number * 2 + RECV))
            }
        });
        self.posted += 1;
    }
    fn posting(&mut self, mut post: impl FnMut(&mut Self) -> Post) {
        let patience = Instant::now() + Duration::from_secs(5);
        while post(self) == Post::Full {
            self.poll();
            assert!(Instant::now() < patience, "a lane stayed Full for 5 s");
        }
        self.endpoint.flush();
    }
    /// Clause 8 to the letter, at random moments: arm, poll, then wait.
    fn sleep_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            if self.random.below(3) == 0 {
                self.poll();
                continue;
            }
            self.endpoint.arm().expect("arm");
            if self.random.below(8) == 0 {
                thread::sleep(Duration::from_micros(self.random.below(60)));
            }
            if self.poll() || condition(self) {
                continue;
            }
            wait(&[&*self.endpoint], what);
        }
    }
}

/// Sleeps until one of the endpoints has something to say.
fn wait(endpoints: &[&dyn Endpoint], what: &str) {
    // SAFETY: epoll_create1 takes no pointers; the calls below are given a live descriptor and live structures.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert!(epoll >= 0, "epoll_create1");
        for endpoint in endpoints {
            let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let fd = endpoint.wakeup().as_raw_fd();
            assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut interest), 0, "epoll_ctl");
        }
        let mut woken = libc::epoll_event { events: 0, u64: 0 };
        let ready = libc::epoll_wait(epoll, &mut woken, 1, 5000);
        libc::close(epoll);
        assert!(ready != 0, "clause 8: nobody woke a sleeper for 5 s; it waited for {what}");
    }
}

fn sleepers<F: Fixture>(n: usize, seed: u64) -> (F, Vec<Sleeper>) {
    let mut rig = Rig::<F>::new(n);
    let lanes: Vec<_> = (0..n).step_by(2).map(|i| rig.connect(i, i + 1)).collect();
    let (fixture, endpoints) = rig.dismantle();
    let lanes = lanes.into_iter().flat_map(|(a, b)| [a, b]);
    let sleepers = endpoints.into_iter().zip(lanes).enumerate();
    (fixture, sleepers.map(|(i, (endpoint, lane))| Sleeper::new(endpoint, lane, seed + i as u64)).collect())
}

/// Answers `rounds` messages.
fn answer(mut sleeper: Sleeper, rounds: u64) -> Sleeper {
    for round in 0..rounds {
        sleeper.recv(round);
        sleeper.sleep_until("a ping", |it| it.received > round);
        sleeper.send(round);
        sleeper.sleep_until("the end of its pong", |it| it.sent > round);
    }
    // Clause 7: nobody polls it any more.
    sleeper.endpoint.pause();
    sleeper
}

/// Two threads that sleep between messages, many times over.
pub fn no_wakeup_is_lost_in_a_pingpong<F: Fixture>() {
    let (_fixture, pair) = sleepers::<F>(2, 1);
    play_pingpong(pair, ROUNDS);
}

/// The same with long messages from memory of the endpoints' (clause 12), whose senders wait until they are read.
pub fn no_wakeup_is_lost_from_allocated_memory<F: Fixture>() {
    const LONG: usize = 200_000;
    let (_fixture, mut pair) = sleepers::<F>(2, 5);
    for it in &mut pair {
        let Ok(made) = it.endpoint.allocate(LONG + 4096) else { return };
        (it.src, it.dst) = (Buffer::within(&made, 64, LONG, 1), Buffer::new(LONG, 0));
    }
    play_pingpong(pair, ROUNDS / 6);
}

fn play_pingpong(mut pair: Vec<Sleeper>, rounds: u64) {
    let (mut ponger, mut pinger) = (pair.pop(), pair.pop());
    let (ponger, pinger) = (ponger.take().expect("two"), pinger.as_mut().expect("two"));
    thread::scope(|scope| {
        let ponger = scope.spawn(|| answer(ponger, rounds));
        for round in 0..rounds {
            pinger.recv(round);
            pinger.send(round);
            pinger.sleep_until("a pong", |it| it.received > round);
        }
        pinger.sleep_until("the end of its pings", |it| it.sent == rounds);
        pinger.endpoint.pause();
        // The endpoint stays until both are through.
        drop(ponger.join().expect("the other thread"));
    });
    pinger.dst.expect_pattern(1, "clause 8: the last message");
}

/// One thread sleeps for two endpoints at once, in one epoll.
pub fn no_wakeup_is_lost_with_two_endpoints<F: Fixture>() {
    let (_fixture, mut ends) = sleepers::<F>(4, 9);
    let others = [ends.remove(1), ends.remove(2)];
    let rounds = ROUNDS / 2;
    thread::scope(|scope| {
        let threads = others.map(|it| scope.spawn(move || answer(it, rounds)));
        for it in &mut ends {
            it.recv(0);
            it.send(0);
        }
        while ends.iter().any(|it| it.received < rounds || it.sent < rounds) {
            for it in &mut ends {
                it.endpoint.arm().expect("arm");
            }
            let mut moved = false;
            for it in &mut ends {
                moved |= it.poll();
                let next = it.posted;
                if it.received == next && it.sent == next && next < rounds {
                    it.recv(next);
                    it.send(next);
                    moved = true;
                }
            }
            if !moved {
                let endpoints: Vec<&dyn Endpoint> = ends.iter().map(|it| &*it.endpoint).collect();
                wait(&endpoints, "a pong on either of two endpoints");
            }
        }
        for thread in threads {
            drop(thread.join().expect("another thread"));
        }
    });
}

/// The end of a lane is something that a sleeper needs to know.
pub fn a_close_wakes_a_sleeper<F: Fixture>() {
    for death in [false, true] {
        let (fixture, mut pair) = sleepers::<F>(2, 20);
        let mut sleeper = pair.pop().expect("two");
        let mut leaver = pair.pop().expect("two");
        thread::scope(|scope| {
            let sleeping = scope.spawn(move || {
                sleeper.sleep_until("the end of its lane", |it| it.closed);
                sleeper
            });
            thread::sleep(Duration::from_millis(5));
            if death {
                fixture.kill(leaver.endpoint);
            } else {
                leaver.endpoint.close(leaver.lane);
                leaver.sleep_until("the end of the lane that it closed", |it| it.closed);
                drop(leaver.endpoint);
            }
            drop(sleeping.join().expect("the sleeper"));
        });
    }
}
