//! All ranks' executions on a virtual clock.
//!
//! A message goes through five moments, each an event: it is *posted*; it *departs* when its sender's CPU has handed it
//! over; it *arrives* with its first byte, and has *landed* with its last one; and the receive is *done* when the
//! receiver's CPU has taken it. CPUs and ports serve one thing at a time, in the order in which things come to them.

use super::{LinkRate, Machine, Rates};
use crate::{
    engine::execution::{Action, Execution},
    plan::{
        Lane, LaneIndex, Op, Plan, Rank, Span,
        partition::{Cut, Partition, Piece},
    },
};
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Rounds of one channel that are under way at once, as in the engine.
const ROUNDS_AHEAD: usize = 2;

/// What a simulated operation took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// From the call, which all ranks make at once, to the end of the last rank.
    pub time: Duration,
    /// Messages that all ranks sent together.
    pub messages: u64,
    /// Bytes that all ranks sent together.
    pub bytes: u64,
}

/// Runs one operation: `plans` by rank, `hosts` the host of each rank.
///
/// # Panics
///
/// When the plans do not fit each other, so that a rank waits for ever. Plans that the verifier passed do fit.
pub fn simulate(plans: &[Arc<Plan>], hosts: &[u32], cut: Cut, machine: &Machine) -> Simulated {
    let mut simulation = Simulation::new(plans, hosts, cut, machine);
    for rank in 0..plans.len() as Rank {
        for channel in 0..simulation.ranks[rank as usize].channels.len() {
            for _ in 0..ROUNDS_AHEAD {
                simulation.start_round(rank, channel);
            }
        }
        simulation.poll(rank);
    }
    simulation.run();
    let stuck = simulation.ranks.iter().position(|rank| rank.channels.iter().any(|c| !c.active.is_empty()));
    assert_eq!(stuck, None, "this rank waits for ever");
    Simulated {
        time: Duration::from_secs_f64(simulation.now),
        messages: simulation.messages.len() as u64,
        bytes: simulation.messages.iter().map(|message| message.len).sum(),
    }
}

/// One rank's part.
struct RankState {
    plan: Arc<Plan>,
    partition: Partition,
    channels: Vec<Channel>,
    cpu: f64,
}

/// One channel of one rank: rounds, one after the other on the same lanes.
struct Channel {
    /// For each lane of the plan, the pipe that it is an end of.
    pipes: Vec<u32>,
    /// Rounds under way, oldest first.
    active: VecDeque<Round>,
    /// An execution that no round uses.
    idle: Option<Execution>,
    next_round: u32,
}

struct Round {
    number: u32,
    piece: Piece,
    execution: Execution,
}

/// An action of one round of a rank.
#[derive(Clone, Copy, Debug)]
struct Doing {
    rank: Rank,
    channel: u32,
    round: u32,
    action: Action,
}

/// One direction between two ranks, on one channel.
struct Pipe {
    to: Rank,
    link: LinkRate,
    /// Seconds of CPU for each byte at either end, and seconds of ports.
    moving: f64,
    beta: f64,
    port_out: u32,
    port_in: u32,
    /// Receives that were posted, and messages that departed.
    posted: u64,
    departed: u64,
    /// Messages at the sender that wait for the receiver's post.
    held: VecDeque<u32>,
    /// Messages that landed before their receive was posted.
    landed: VecDeque<u32>,
    /// Receives that wait for their message.
    receives: VecDeque<u32>,
}

struct Message {
    pipe: u32,
    len: u64,
    sender: Doing,
}

struct Receive {
    doing: Doing,
    missing: u32,
    /// Seconds of CPU when everything is there.
    combine: f64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Departs(u32),
    Arrives(u32),
    Landed(u32),
    Done(Doing),
}

struct Timed {
    at: f64,
    order: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    /// The greatest is the earliest, for a heap that gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.order.cmp(&self.order))
    }
}

struct Simulation {
    rates: Rates,
    eager: u64,
    ranks: Vec<RankState>,
    pipes: Vec<Pipe>,
    /// When each port is free: one for each rank inside its host, then one for each host.
    ports_out: Vec<f64>,
    ports_in: Vec<f64>,
    messages: Vec<Message>,
    receives: Vec<Receive>,
    events: BinaryHeap<Timed>,
    order: u64,
    now: f64,
}

impl Simulation {
    fn new(plans: &[Arc<Plan>], hosts: &[u32], cut: Cut, machine: &Machine) -> Self {
        let nhosts = hosts.iter().max().map_or(0, |host| host + 1) as usize;
        let mut simulation = Simulation {
            rates: machine.rates(),
            eager: machine.eager,
            ranks: Vec::new(),
            pipes: Vec::new(),
            ports_out: vec![0.0; plans.len() + nhosts],
            ports_in: vec![0.0; plans.len() + nhosts],
            messages: Vec::new(),
            receives: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            now: 0.0,
        };
        let mut known = HashMap::new();
        for plan in plans {
            let partition = Partition::new(plan, cut);
            let channels = (0..partition.channels()).map(|channel| Channel {
                pipes: simulation.pipes_of(plan, channel, hosts, &mut known),
                active: VecDeque::new(),
                idle: None,
                next_round: 0,
            });
            let channels = channels.collect();
            simulation.ranks.push(RankState { plan: plan.clone(), partition, channels, cpu: 0.0 });
        }
        simulation
    }

    fn pipes_of(
        &mut self,
        plan: &Plan,
        channel: u32,
        hosts: &[u32],
        known: &mut HashMap<(Rank, Rank, u32), u32>,
    ) -> Vec<u32> {
        let nranks = hosts.len() as u32;
        let pipe = |lane: &Lane| {
            let (from, to) = match *lane {
                Lane::Send(to) => (plan.rank(), to),
                Lane::Recv(from) => (from, plan.rank()),
            };
            *known.entry((from, to, channel)).or_insert_with(|| {
                let (from_host, to_host) = (hosts[from as usize], hosts[to as usize]);
                let inside = from_host == to_host;
                let link = if inside { self.rates.within } else { self.rates.across };
                self.pipes.push(Pipe {
                    to,
                    link,
                    moving: if inside { link.beta / 2.0 } else { 0.0 },
                    beta: if inside { 0.0 } else { link.beta },
                    port_out: if inside { from } else { nranks + from_host },
                    port_in: if inside { to } else { nranks + to_host },
                    posted: 0,
                    departed: 0,
                    held: VecDeque::new(),
                    landed: VecDeque::new(),
                    receives: VecDeque::new(),
                });
                self.pipes.len() as u32 - 1
            })
        };
        plan.lanes().iter().map(pipe).collect()
    }

    fn run(&mut self) {
        while let Some(Timed { at, event, .. }) = self.events.pop() {
            self.now = at;
            match event {
                Event::Departs(message) => self.depart(message),
                Event::Arrives(message) => {
                    let (len, pipe) = (self.messages[message as usize].len, self.pipe_of(message));
                    let (beta, port) = (pipe.beta, pipe.port_in as usize);
                    let landed = occupy(&mut self.ports_in[port], at, beta * len as f64);
                    self.schedule(landed, Event::Landed(message));
                }
                Event::Landed(message) => self.land(message),
                Event::Done(doing) => self.finish(doing),
            }
        }
    }

    /// The next round of a channel, if there is one. The round before it, if any, may still be posting.
    fn start_round(&mut self, rank: Rank, channel: usize) {
        let RankState { plan, partition, channels, .. } = &mut self.ranks[rank as usize];
        let state = &mut channels[channel];
        if state.next_round == partition.rounds() {
            return;
        }
        let mut execution = match state.idle.take() {
            Some(mut execution) => {
                execution.restart();
                execution
            }
            None => Execution::new(plan.clone(), partition.slices()),
        };
        for lane in (0..plan.lanes().len() as u32).map(LaneIndex) {
            if state.active.back().is_none_or(|before| before.execution.has_posted_all(lane)) {
                execution.open_lane(lane);
            }
        }
        let number = state.next_round;
        let piece = partition.piece(number, channel as u32);
        state.active.push_back(Round { number, piece, execution });
        state.next_round += 1;
    }

    /// Starts everything that a rank can start.
    fn poll(&mut self, rank: Rank) {
        for channel in 0..self.ranks[rank as usize].channels.len() {
            let mut at = 0;
            while at < self.ranks[rank as usize].channels[channel].active.len() {
                let rounds = &mut self.ranks[rank as usize].channels[channel].active;
                let Some(action) = rounds[at].execution.poll_action() else {
                    at += 1;
                    continue;
                };
                let round = rounds[at].number;
                self.open_next(rank, channel, at, action);
                self.start(Doing { rank, channel: channel as u32, round, action });
                // An empty action is over at once, and may have ended the round.
                at = 0;
            }
        }
    }

    /// The round after this one may use the lanes where this one has posted everything.
    fn open_next(&mut self, rank: Rank, channel: usize, at: usize, action: Action) {
        let RankState { plan, channels, .. } = &mut self.ranks[rank as usize];
        let rounds = &mut channels[channel].active;
        if at + 1 < rounds.len() {
            for &lane in plan.step_lanes(action.step) {
                if rounds[at].execution.has_posted_all(lane) {
                    rounds[at + 1].execution.open_lane(lane);
                }
            }
        }
    }

    fn start(&mut self, doing: Doing) {
        let state = &self.ranks[doing.rank as usize];
        let plan = state.plan.clone();
        let op = plan.steps()[doing.action.step as usize].op;
        let span = match op {
            Op::Send { src, .. } => src,
            Op::Recv { dst, .. }
            | Op::RecvReduce { dst, .. }
            | Op::Reduce { dst, .. }
            | Op::Copy { dst, .. } => dst,
        };
        let len = self.len(doing, span);
        if len == 0 {
            return self.end(doing);
        }
        let gamma = self.rates.gamma * len as f64;
        match op {
            Op::Send { .. } => self.send(doing, len),
            Op::Recv { .. } => self.receive(doing, 0.0),
            // As many passes as operands, less the one that a pass combines with.
            Op::RecvReduce { terms, .. } => {
                let messages = self.pipes_used(doing).len();
                let staging =
                    if messages > 1 { self.rates.staging * (len * messages as u64) as f64 } else { 0.0 };
                self.receive(doing, gamma * f64::from(terms.end - terms.start - 1) + staging);
            }
            Op::Reduce { terms, .. } => self.compute(doing, gamma * f64::from(terms.end - terms.start - 1)),
            Op::Copy { .. } => self.compute(doing, gamma),
        }
    }

    fn send(&mut self, sender: Doing, len: u64) {
        let pipe = self.pipes_used(sender)[0];
        self.messages.push(Message { pipe, len, sender });
        let Pipe { link, moving, .. } = self.pipes[pipe as usize];
        let seconds = link.overhead + moving * len as f64;
        let handed_over = occupy(&mut self.ranks[sender.rank as usize].cpu, self.now, seconds);
        self.schedule(handed_over, Event::Departs(self.messages.len() as u32 - 1));
    }

    fn receive(&mut self, doing: Doing, combine: f64) {
        let pipes = self.pipes_used(doing);
        let receive = self.receives.len() as u32;
        self.receives.push(Receive { doing, missing: pipes.len() as u32, combine });
        for pipe in pipes {
            let state = &mut self.pipes[pipe as usize];
            state.posted += 1;
            state.receives.push_back(receive);
            if let Some(message) = state.held.pop_front() {
                let asked = self.now + state.link.alpha;
                self.transmit(message, asked);
            }
            if let Some(message) = self.pipes[pipe as usize].landed.pop_front() {
                self.take(message);
            }
        }
    }

    fn compute(&mut self, doing: Doing, seconds: f64) {
        let over = occupy(&mut self.ranks[doing.rank as usize].cpu, self.now, seconds);
        self.schedule(over, Event::Done(doing));
    }

    fn depart(&mut self, message: u32) {
        let len = self.messages[message as usize].len;
        let pipe = &mut self.pipes[self.messages[message as usize].pipe as usize];
        pipe.departed += 1;
        let must_wait = len > self.eager && pipe.posted < pipe.departed;
        if must_wait || !pipe.held.is_empty() {
            pipe.held.push_back(message);
        } else {
            self.transmit(message, self.now);
        }
    }

    fn transmit(&mut self, message: u32, earliest: f64) {
        let Message { pipe, len, sender } = self.messages[message as usize];
        let Pipe { link, beta, port_out, .. } = self.pipes[pipe as usize];
        let seconds = beta * len as f64;
        let gone = occupy(&mut self.ports_out[port_out as usize], earliest, seconds);
        self.schedule(gone, Event::Done(sender));
        self.schedule(gone - seconds + link.alpha, Event::Arrives(message));
    }

    fn land(&mut self, message: u32) {
        let number = self.messages[message as usize].pipe;
        let pipe = &mut self.pipes[number as usize];
        if pipe.receives.is_empty() {
            pipe.landed.push_back(message);
        } else {
            self.take(message);
        }
    }

    /// A message and its receive are both there.
    fn take(&mut self, message: u32) {
        let Message { pipe, len, .. } = self.messages[message as usize];
        let Pipe { to, link, moving, .. } = self.pipes[pipe as usize];
        let receive = self.pipes[pipe as usize].receives.pop_front().expect("there is one");
        let Receive { doing, missing, combine } = &mut self.receives[receive as usize];
        *missing -= 1;
        let seconds = link.overhead + moving * len as f64 + if *missing == 0 { *combine } else { 0.0 };
        let taken = occupy(&mut self.ranks[to as usize].cpu, self.now, seconds);
        if *missing == 0 {
            let doing = *doing;
            self.schedule(taken, Event::Done(doing));
        }
    }

    fn finish(&mut self, doing: Doing) {
        self.end(doing);
        self.poll(doing.rank);
    }

    fn end(&mut self, doing: Doing) {
        let channel = &mut self.ranks[doing.rank as usize].channels[doing.channel as usize];
        let at = channel.active.iter().position(|round| round.number == doing.round);
        let at = at.expect("a round is active until all its actions are over");
        let round = &mut channel.active[at];
        round.execution.handle_done(doing.action);
        if round.execution.is_done() {
            channel.idle = channel.active.remove(at).map(|round| round.execution);
            self.start_round(doing.rank, doing.channel as usize);
        }
    }

    fn len(&self, doing: Doing, span: Span) -> u64 {
        let RankState { plan, partition, channels, .. } = &self.ranks[doing.rank as usize];
        let rounds = &channels[doing.channel as usize].active;
        let round = rounds.iter().find(|round| round.number == doing.round).expect("it is active");
        let bytes = partition.bytes(plan, &round.piece, span, doing.action.slice);
        bytes.end - bytes.start
    }

    fn pipes_used(&self, doing: Doing) -> Vec<u32> {
        let RankState { plan, channels, .. } = &self.ranks[doing.rank as usize];
        let pipes = &channels[doing.channel as usize].pipes;
        plan.step_lanes(doing.action.step).iter().map(|lane| pipes[lane.0 as usize]).collect()
    }

    fn pipe_of(&self, message: u32) -> &Pipe {
        &self.pipes[self.messages[message as usize].pipe as usize]
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.order += 1;
        self.events.push(Timed { at, order: self.order, event });
    }
}

/// Keeps what serves one thing at a time busy for some seconds from `now` or from when it is free; returns the end.
fn occupy(free: &mut f64, now: f64, seconds: f64) -> f64 {
    *free = free.max(now) + seconds;
    *free
}

#[cfg(test)]
mod tests;
