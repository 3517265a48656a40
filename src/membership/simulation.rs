//! Many ranks in virtual time: latencies, deaths and departures from a seed.

use super::*;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

const PACE: Pace = Pace { heartbeat: Duration::from_millis(500), suspicion: Duration::from_secs(10) };

#[derive(Clone, Debug)]
enum Event {
    Timer(Rank),
    Up {
        at: Rank,
        peer: Rank,
    },
    Down {
        at: Rank,
        peer: Rank,
    },
    DialFailed {
        at: Rank,
        peer: Rank,
        refused: bool,
    },
    Beat {
        at: Rank,
        from: Rank,
    },
    News {
        at: Rank,
        from: Rank,
        news: News,
    },
    End {
        at: Rank,
        of: Rank,
        clean: bool,
    },
    Sight {
        at: Rank,
        about: Rank,
        sight: Sight,
    },
    Kill(Rank),
    Leave(Rank),
    Gone(Rank),
    /// The rank's process hangs: it neither reads nor writes, and its host (if that answers) sees this.
    Freeze(Rank, Sight),
}

struct World {
    start: Instant,
    now: Instant,
    seed: u64,
    ranks: Vec<Option<Membership>>,
    hosts: Vec<u64>,
    frozen: HashMap<Rank, Sight>,
    links: BTreeSet<(Rank, Rank)>,
    /// Connections keep the order of what they carry.
    arrivals: HashMap<(Rank, Rank), Instant>,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    events: HashMap<u64, Event>,
    next: u64,
    timers: Vec<Option<Instant>>,
    /// What each rank was told, and when.
    failed: Vec<Vec<(Instant, Rank)>>,
    left: Vec<Vec<Rank>>,
}

impl World {
    fn new(seed: u64, n: u32) -> Self {
        let start = Instant::now();
        let mut world = World {
            start,
            now: start,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            ranks: (0..n).map(|me| Some(Membership::new(me, n, PACE, start))).collect(),
            hosts: Vec::new(),
            frozen: HashMap::new(),
            links: BTreeSet::new(),
            arrivals: HashMap::new(),
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            next: 0,
            timers: vec![None; n as usize],
            failed: vec![Vec::new(); n as usize],
            left: vec![Vec::new(); n as usize],
        };
        let hosts = 1 + world.below(3);
        world.hosts = (0..n).map(|_| world.below(hosts)).collect();
        (0..n).for_each(|rank| world.settle(rank));
        world
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % bound
    }
    fn latency(&mut self) -> Duration {
        Duration::from_micros(50 + self.below(20_000))
    }
    fn schedule(&mut self, at: Instant, event: Event) {
        self.next += 1;
        self.queue.push(Reverse((at, self.next)));
        self.events.insert(self.next, event);
    }
    /// In `ms` after the start.
    fn plan(&mut self, ms: u64, event: Event) {
        self.schedule(self.start + Duration::from_millis(ms), event);
    }
    fn carry(&mut self, from: Rank, to: Rank, event: Event) {
        let after = self.now + self.latency();
        let last =
            self.arrivals.get(&(from, to)).map_or(after, |last| after.max(*last + Duration::from_nanos(1)));
        self.arrivals.insert((from, to), last);
        self.schedule(last, event);
    }
    fn run(&mut self, ms: u64) {
        let until = self.start + Duration::from_millis(ms);
        while let Some(&Reverse((at, id))) = self.queue.peek()
            && at <= until
        {
            self.queue.pop();
            self.now = at;
            let event = self.events.remove(&id).expect("scheduled once");
            self.handle(event);
        }
        self.now = until;
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        let at = match event {
            Event::Kill(rank) => return self.end(rank, false),
            Event::Gone(rank) => return self.end(rank, true),
            Event::Freeze(rank, sight) => {
                self.frozen.insert(rank, sight);
                return;
            }
            Event::Leave(rank) => {
                let Some(membership) = &mut self.ranks[rank as usize] else { return };
                membership.leave();
                let linger = if membership.is_linked() { Duration::ZERO } else { Duration::from_millis(200) };
                self.schedule(now + linger, Event::Gone(rank));
                return self.settle(rank);
            }
            Event::Timer(at)
            | Event::Up { at, .. }
            | Event::Down { at, .. }
            | Event::DialFailed { at, .. }
            | Event::Beat { at, .. }
            | Event::News { at, .. }
            | Event::End { at, .. }
            | Event::Sight { at, .. } => at,
        };
        if self.frozen.contains_key(&at) {
            return;
        }
        let Some(membership) = &mut self.ranks[at as usize] else { return };
        match event {
            Event::Timer(_) => {
                if self.timers[at as usize].is_none_or(|due| due > now) {
                    return;
                }
                self.timers[at as usize] = None;
                membership.handle_timeout(now);
            }
            Event::Up { peer, .. } => membership.handle_link_up(peer, now),
            Event::Down { peer, .. } => {
                self.links.remove(&(at.min(peer), at.max(peer)));
                membership.handle_link_down(peer, now);
            }
            Event::DialFailed { peer, refused, .. } => membership.handle_dial_failed(peer, refused, now),
            Event::Beat { from, .. } => membership.handle_heard(from, now),
            Event::News { from, news, .. } => {
                membership.handle_heard(from, now);
                membership.handle_news(from, news, now);
            }
            Event::End { of, clean, .. } => membership.handle_process_end(of, "seen".into(), clean, now),
            Event::Sight { about, sight, .. } => membership.handle_sight(about, sight, now),
            Event::Kill(_) | Event::Leave(_) | Event::Gone(_) | Event::Freeze(..) => {}
        }
        self.settle(at);
    }

    fn settle(&mut self, me: Rank) {
        while let Some(action) = self.ranks[me as usize].as_mut().and_then(Membership::poll_action) {
            self.carry_out(me, action);
        }
        let due = self.ranks[me as usize].as_ref().and_then(Membership::next_timeout);
        if let Some(due) = due.map(|due| due.max(self.now))
            && self.timers[me as usize].is_none_or(|set| due < set)
        {
            self.timers[me as usize] = Some(due);
            self.schedule(due, Event::Timer(me));
        }
    }

    fn carry_out(&mut self, me: Rank, action: Action) {
        match action {
            Action::Dial(peer) if self.ranks[peer as usize].is_none() => {
                self.carry(peer, me, Event::DialFailed { at: me, peer, refused: true });
            }
            Action::Dial(peer) => {
                if self.links.insert((me.min(peer), me.max(peer))) {
                    self.carry(me, peer, Event::Up { at: peer, peer: me });
                    self.carry(peer, me, Event::Up { at: me, peer });
                }
            }
            Action::Send { to, news } => self.carry(me, to, Event::News { at: to, from: me, news }),
            Action::Heartbeat(to) => self.carry(me, to, Event::Beat { at: to, from: me }),
            Action::Examine(about) => {
                let sight = self.frozen.get(&about).copied().unwrap_or(Sight::Running);
                self.carry(about, me, Event::Sight { at: me, about, sight });
            }
            Action::Failed(failure) => {
                self.failed[me as usize].push((self.now, failure.culprit().expect("a rank is named")));
            }
            Action::Left(rank) => self.left[me as usize].push(rank),
        }
    }

    /// The process is gone: its connections close after what they carry, its host sees it at once.
    fn end(&mut self, rank: Rank, clean: bool) {
        self.ranks[rank as usize] = None;
        for (a, b) in self.links.clone() {
            if a == rank || b == rank {
                let peer = if a == rank { b } else { a };
                self.carry(rank, peer, Event::Down { at: peer, peer: rank });
            }
        }
        for at in 0..self.ranks.len() as Rank {
            if at != rank && self.hosts[at as usize] == self.hosts[rank as usize] {
                let after = self.now + Duration::from_micros(self.below(5_000));
                self.schedule(after, Event::End { at, of: rank, clean });
            }
        }
    }
    fn survivors(&self) -> Vec<Rank> {
        (0..self.ranks.len() as Rank).filter(|rank| self.ranks[*rank as usize].is_some()).collect()
    }
}

#[test]
fn a_death_is_named_once_by_every_survivor_within_a_second() {
    for seed in 0..2500 {
        let n = 2 + (seed % 16) as u32;
        let mut world = World::new(seed, n);
        let victim = world.below(u64::from(n)) as Rank;
        let at = world.below(3000);
        world.plan(at, Event::Kill(victim));
        world.run(at + 3000);
        // Before all links are up, the rank that waits to be called takes a second to call itself.
        let bound = if at >= 1200 { 1000 } else { 2000 };
        for rank in world.survivors() {
            let told = &world.failed[rank as usize];
            assert_eq!(told.len(), 1, "seed {seed}: rank {rank} was told {told:?} of the death of {victim}");
            let after = told[0].0.duration_since(world.start + Duration::from_millis(at));
            assert_eq!(told[0].1, victim, "seed {seed}");
            assert!(after < Duration::from_millis(bound), "seed {seed}: rank {rank} knew after {after:?}");
            assert!(world.left[rank as usize].is_empty());
        }
    }
}

#[test]
fn who_says_goodbye_is_no_failure() {
    for seed in 0..4000 {
        let n = 2 + (seed % 14) as u32;
        let mut world = World::new(seed, n);
        // Spread out, or nearly together, and sometimes before all links are up.
        let spread = [2500, 60][(seed / 16 % 2) as usize];
        let begin = world.below(1500);
        let leavers: BTreeSet<Rank> =
            (0..1 + world.below(u64::from(n))).map(|_| world.below(u64::from(n)) as Rank).collect();
        for &rank in &leavers {
            let at = begin + world.below(spread);
            world.plan(at, Event::Leave(rank));
        }
        world.run(6000);
        for rank in world.survivors() {
            let told = &world.failed[rank as usize];
            assert!(told.is_empty(), "seed {seed}: rank {rank} was told of {told:?}, leavers {leavers:?}");
            let mut left = world.left[rank as usize].clone();
            left.sort_unstable();
            assert_eq!(left, leavers.iter().copied().collect::<Vec<_>>(), "seed {seed}: rank {rank}");
        }
    }
}

#[test]
fn two_deaths_among_departures_are_both_named() {
    for seed in 0..2000 {
        let n = 5 + (seed % 12) as u32;
        let mut world = World::new(seed, n);
        let first = world.below(u64::from(n)) as Rank;
        let second = (first + 1 + world.below(u64::from(n) - 1) as Rank) % n;
        let leaver = (0..n).find(|rank| *rank != first && *rank != second).expect("there are five");
        for (rank, event) in
            [(first, Event::Kill(first)), (second, Event::Kill(second)), (leaver, Event::Leave(leaver))]
        {
            let at = 1500 + world.below(500);
            assert!(rank < n);
            world.plan(at, event);
        }
        world.run(7000);
        for rank in world.survivors() {
            let mut named: Vec<Rank> = world.failed[rank as usize].iter().map(|told| told.1).collect();
            named.sort_unstable();
            let mut expected = vec![first, second];
            expected.sort_unstable();
            assert_eq!(named, expected, "seed {seed}: rank {rank}");
            assert_eq!(world.left[rank as usize], [leaver], "seed {seed}: rank {rank}");
        }
    }
}

#[test]
fn silence_is_fatal_unless_the_process_is_stopped() {
    for seed in 0..300 {
        let n = 2 + (seed % 9) as u32;
        let sight = [Sight::Stopped, Sight::Running, Sight::Hidden][(seed % 3) as usize];
        let mut world = World::new(seed, n);
        let victim = world.below(u64::from(n)) as Rank;
        world.plan(2000, Event::Freeze(victim, sight));
        world.run(30_000);
        for rank in world.survivors().into_iter().filter(|rank| *rank != victim) {
            let told = &world.failed[rank as usize];
            if sight == Sight::Stopped {
                assert!(
                    told.is_empty(),
                    "seed {seed}: rank {rank} blames the stopped rank {victim}: {told:?}"
                );
            } else {
                assert_eq!(told.len(), 1, "seed {seed}: rank {rank}");
                assert_eq!(told[0].1, victim, "seed {seed}");
                let after = told[0].0.duration_since(world.start);
                assert!(after < Duration::from_secs(14), "seed {seed}: rank {rank} knew after {after:?}");
            }
        }
    }
}

#[test]
fn who_was_stopped_itself_blames_nobody() {
    let start = Instant::now();
    let mut membership = Membership::new(0, 2, PACE, start);
    membership.handle_link_up(1, start);
    let late = start + Duration::from_secs(60);
    membership.handle_timeout(late);
    while let Some(action) = membership.poll_action() {
        assert!(!matches!(action, Action::Examine(_) | Action::Failed(_)), "{action:?}");
    }
}
