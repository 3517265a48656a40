//! What an operation costs, in closed form.
//!
//! An algorithm is described by the *steps* that its ranks take together: how many messages the busiest rank sends and
//! receives in one, how many of them leave the busiest host, and what part of the vector a message has. Two times
//! follow for a message of L bytes in s slices: how long CPUs and ports are *busy*, and how long the *path* is of a
//! message from its post to its end. Steps follow each other in one of three ways (see `Flow`). A round posts on a
//! lane when the round before has posted all it has there; so where a lane serves all steps, hardly more than one flight
//! is saved by the overlap of rounds, and where each step has its own, rounds follow each other as CPUs and ports allow.

use super::{
    LinkRate, Machine, Rates,
    spread::{Halving, Spread},
};
use crate::plan::{Collective, Shape};

/// How an operation of some size is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cutting {
    /// Bytes of the largest buffer of any rank.
    pub bytes: u64,
    /// Channels.
    pub channels: u32,
    /// Wanted bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes of the largest buffer in a round.
    pub round_bytes: u64,
}

/// A prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Until the last rank has its result.
    pub seconds: f64,
    /// Messages that wait for each other in a round.
    pub steps: u32,
}

/// What is known of a shape on a machine: made once, asked often.
#[derive(Clone, Debug)]
pub struct Formulas {
    spread: Spread,
    rates: Rates,
}

/// How steps follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// A step begins when the one before is over.
    Apart,
    /// A slice of a step begins when the same slice of the one before is over; every rank takes every step.
    Along,
    /// As before, but each step is another rank's: a rank does only its own part.
    Down,
}

/// What all ranks do at the same time.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// How often.
    times: f64,
    /// What part of the round a message has.
    part: f64,
    /// Seconds of the busiest CPU for sending and for receiving one slice of each of its messages, and one message.
    sending: f64,
    receiving: f64,
    one: f64,
    /// Seconds of the busiest CPU for each byte of a message that it moves itself, out and in.
    moving_out: f64,
    moving_in: f64,
    /// Seconds of flight.
    alpha: f64,
    /// Seconds for each byte of a message: on its way alone, of the busiest port, and of CPU for combining.
    wire: f64,
    port: f64,
    combine: f64,
    /// Nothing is combined before all messages are there.
    late: bool,
}

impl Step {
    /// This one and another one by the same rank, at the same time on different ports.
    fn beside(self, other: Step) -> Step {
        Step {
            sending: self.sending + other.sending,
            receiving: self.receiving + other.receiving,
            moving_out: self.moving_out + other.moving_out,
            moving_in: self.moving_in + other.moving_in,
            port: self.port.max(other.port),
            combine: self.combine + other.combine,
            ..self
        }
    }

    fn busy(&self, message: f64, slices: f64) -> f64 {
        let bytes = self.moving_out + self.moving_in + self.combine;
        let cpu = (self.sending + self.receiving) * slices + bytes * message;
        cpu.max(self.port * message)
    }

    /// From the first post of a message in `slices` to the end of all.
    fn path(&self, message: f64, slices: f64) -> f64 {
        let slice = message / slices;
        let sent = self.sending * slices + self.moving_out * message;
        let last_sent = sent + self.alpha + self.wire * slice + self.one;
        let ports = self.one + self.alpha + self.port * message + self.one;
        let taken = self.receiving * slices + self.moving_in * message;
        let taken = self.one + self.wire * slice + self.alpha + taken;
        let combined = if self.late { message } else { slice };
        (last_sent.max(ports).max(taken) + self.combine * combined).max(self.busy(message, slices))
    }
}

impl Formulas {
    /// Ranks outside of the fullest host: so many messages from elsewhere come to one rank where all send to all.
    pub fn incast(&self) -> u32 {
        self.spread.outside()
    }

    /// For these ranks on this machine.
    pub fn new(shape: &Shape, machine: &Machine) -> Self {
        Formulas { spread: Spread::of(shape), rates: machine.rates() }
    }

    /// What an algorithm takes that does the collective, by name; `None` where no algorithm has this name.
    pub fn predict(&self, algorithm: &str, collective: Collective, cutting: &Cutting) -> Option<Prediction> {
        if self.spread.nranks == 1 {
            let seconds = self.rates.gamma * cutting.bytes as f64;
            return Some(Prediction { seconds, steps: 0 });
        }
        let mut total = Total::new(self, collective, cutting);
        match algorithm {
            "one_shot" => self.one_shot(collective, &mut total),
            "direct" => self.direct(collective, &mut total),
            "doubling" => self.doubling(&mut total),
            "halving_doubling" => self.halving_doubling(collective, &mut total),
            "ring" => self.ring(collective, &mut total),
            "tree" => self.tree(collective, &mut total),
            "two_level" => self.two_level(collective, &mut total),
            "pairwise" => total.add(Flow::Apart, &[self.everyone(0.0, 1.0)], 1.0),
            "dissemination" => {
                let steps: Vec<Step> = (0..self.spread.nranks.next_power_of_two().ilog2())
                    .map(|_| self.exchange(self.spread.nhosts.min(2) - 1, 1.0, 0.0))
                    .collect();
                total.add(Flow::Apart, &steps, 1.0);
            }
            "p2p" => total.add(Flow::Apart, &[self.exchange(self.spread.nhosts.min(2) - 1, 1.0, 0.0)], 1.0),
            _ => return None,
        }
        Some(Prediction { seconds: total.seconds(), steps: (total.steps + 0.5) as u32 })
    }

    /// Every rank sends to one and receives from one; `crossing` of these messages leave the busiest host.
    fn exchange(&self, crossing: u32, part: f64, combine: f64) -> Step {
        let link = if crossing > 0 { self.rates.across } else { self.rates.within };
        // The CPUs of both ends share the work for a byte inside of a host.
        let moving = if crossing > 0 { 0.0 } else { link.beta / 2.0 };
        Step {
            times: 1.0,
            part,
            sending: link.overhead,
            receiving: link.overhead,
            one: link.overhead,
            moving_out: moving,
            moving_in: moving,
            alpha: link.alpha,
            wire: link.beta - moving,
            port: link.beta * f64::from(crossing),
            combine: combine * self.rates.gamma,
            late: false,
        }
    }

    /// A busiest rank sends to `inside` ranks of its host and to `outside` others, and receives from as many; `crossing`
    /// messages leave the busiest host.
    fn fan(&self, inside: u32, outside: u32, crossing: u32, part: f64, combine: f64) -> Step {
        let Rates { within, across, gamma, staging, .. } = &self.rates;
        let of = |value: fn(&LinkRate) -> f64| {
            f64::from(inside) * value(within) + f64::from(outside) * value(across)
        };
        let last = if outside > 0 { across } else { within };
        let sending = of(|link| link.overhead);
        Step {
            times: 1.0,
            part,
            sending,
            receiving: sending,
            one: last.overhead,
            moving_out: f64::from(inside) * within.beta / 2.0,
            moving_in: f64::from(inside) * within.beta / 2.0,
            alpha: last.alpha,
            wire: if outside > 0 { last.beta } else { last.beta / 2.0 },
            port: f64::from(crossing) * across.beta,
            combine: combine
                * (gamma + if inside + outside > 1 { *staging } else { 0.0 })
                * f64::from(inside + outside),
            late: false,
        }
    }

    /// Every rank to every other one.
    fn everyone(&self, combine: f64, part: f64) -> Step {
        let outside = self.spread.outside();
        self.fan(self.spread.most - 1, outside, self.spread.most * outside, part, combine)
    }

    /// One rank to every other one, or the other way around.
    fn rooted(&self, combine: f64) -> Step {
        let outside = self.spread.outside();
        let step = self.fan(self.spread.most - 1, outside, outside, 1.0, combine);
        if combine > 0.0 {
            Step { sending: step.one, moving_out: step.wire, ..step }
        } else {
            Step { receiving: 0.0, moving_in: 0.0, ..step }
        }
    }

    fn one_shot(&self, collective: Collective, total: &mut Total) {
        match collective {
            Collective::AllReduce => {
                total.add(Flow::Apart, &[self.everyone(1.0, 1.0)], 1.0);
                total.copy(self.rates.gamma);
            }
            Collective::Reduce => total.add(Flow::Apart, &[self.rooted(1.0)], 1.0),
            _ => total.add(Flow::Apart, &[self.rooted(0.0)], 1.0),
        }
    }

    fn direct(&self, collective: Collective, total: &mut Total) {
        let part =
            if collective == Collective::AllReduce { 1.0 / f64::from(self.spread.nranks) } else { 1.0 };
        let scatter = Step { late: self.spread.nranks > 2, ..self.everyone(1.0, part) };
        let steps = [scatter, self.everyone(0.0, part)];
        let steps = match collective {
            Collective::AllReduce => &steps[..],
            Collective::ReduceScatter => &steps[..1],
            _ => &steps[1..],
        };
        total.add(Flow::Along, steps, part);
    }

    fn doubling(&self, total: &mut Total) {
        let folds = !self.spread.nranks.is_power_of_two();
        let fold = folds.then(|| self.exchange(self.spread.ring, 1.0, 1.0));
        let rounds = self.spread.doubling.iter().map(|&crossing| self.exchange(crossing, 1.0, 1.0));
        let mut steps: Vec<Step> = fold.into_iter().chain(rounds).collect();
        let own = steps.clone();
        steps.extend(folds.then(|| self.exchange(self.spread.ring, 1.0, 0.0)));
        total.add_parts(Flow::Along, &steps, &own, 1.0);
        if self.spread.nranks == 2 {
            total.copy(self.rates.gamma);
        }
    }

    fn halving_doubling(&self, collective: Collective, total: &mut Total) {
        let flat = collective == Collective::AllReduce;
        let block = if flat { 1.0 / f64::from(self.spread.nranks) } else { 1.0 };
        // Blocks of a flat buffer are one message, or two where they go around the end. As long as that they fill a pipe
        // less well than slices do: simulated between hosts, and measured with 8 ranks on one.
        let (here, away) = if flat { (self.rates.waiting, 1.25) } else { (1.0, 1.0) };
        let step = |combine: f64| {
            move |round: &Halving| {
                let blocks = f64::from(round.blocks);
                let messages = if flat { blocks.min(2.0) } else { blocks };
                self.mixed(round.crossing, blocks * block, combine).map(|step| Step {
                    sending: step.sending * messages,
                    receiving: step.receiving * messages,
                    moving_out: step.moving_out * here,
                    moving_in: step.moving_in * here,
                    wire: step.wire * away,
                    port: step.port * away,
                    ..step
                })
            }
        };
        let down = self.spread.halving.iter().flat_map(step(1.0));
        let up = self.spread.halving.iter().rev().flat_map(step(0.0));
        let steps: Vec<Step> = match collective {
            Collective::AllReduce => down.chain(up).collect(),
            Collective::ReduceScatter => down.collect(),
            _ => up.collect(),
        };
        total.add(if flat { Flow::Apart } else { Flow::Along }, &steps, block);
    }

    /// A step that leaves the host for some ranks only, as the path of one block sees it: partly inside, partly across.
    fn mixed(&self, crossing: u32, part: f64, combine: f64) -> [Step; 2] {
        let across = f64::from(crossing * self.spread.nhosts) / f64::from(self.spread.nranks);
        let across = across.min(1.0);
        [(1.0 - across, 0), (across, crossing)]
            .map(|(times, crossing)| Step { times, ..self.exchange(crossing, part, combine) })
    }

    /// Somewhere on the ring each step crosses between hosts, at the pace of that link.
    fn ring(&self, collective: Collective, total: &mut Total) {
        let steps = f64::from(self.spread.nranks - 1);
        let flat = collective == Collective::AllReduce;
        let part = if flat { 1.0 / f64::from(self.spread.nranks) } else { 1.0 };
        let (mut path, mut own) = (Vec::with_capacity(4), Vec::with_capacity(2));
        let chain = matches!(collective, Collective::Broadcast | Collective::Reduce);
        // A CPU that moves bytes takes and combines all that has come before it sends on what it has.
        let inside = self.spread.ring == 0 && self.spread.nranks > 2;
        let behind = if inside && collective == Collective::Reduce { 1.6 } else { 1.0 };
        let mut phase = |combine| {
            let steps_of = |step: Step| Step { times: step.times * steps, ..step };
            path.extend(self.mixed(self.spread.ring, part, combine).map(steps_of));
            let times = if chain { 1.0 } else { steps };
            let step = self.exchange(self.spread.ring, part, combine);
            let (moving_out, moving_in) = (step.moving_out * behind, step.moving_in * behind);
            own.push(Step { times, moving_out, moving_in, combine: step.combine * behind, ..step });
        };
        if collective.reduces() {
            phase(1.0);
        }
        if matches!(collective, Collective::AllReduce | Collective::AllGather | Collective::Broadcast) {
            phase(0.0);
        }
        total.add_parts(if chain { Flow::Down } else { Flow::Along }, &path, &own, part);
    }

    /// Two trees, half of the vector on each. An inner node has two children, and is a leaf of the other tree.
    fn tree(&self, collective: Collective, total: &mut Total) {
        let Spread { nranks, most, tree_crossing, .. } = self.spread;
        let rooted = collective != Collective::AllReduce;
        let children = if nranks > 2 || rooted { 2.0 } else { 1.0 };
        // Inner nodes of one tree hold up those of the other one, less so where both directions are in use.
        let wait = if rooted && nranks > 2 { 1.4 } else { 1.0 };
        let level = |crossing: u32, combine: f64| {
            let step = self.exchange(crossing, 0.5, children * combine);
            let (up, down) = if combine > 0.0 { (children, 1.0) } else { (1.0, children) };
            let port = if crossing > 1 { step.port } else { children * step.port };
            Step {
                sending: down * step.sending,
                receiving: up * step.receiving,
                moving_out: down * step.moving_out,
                moving_in: up * step.moving_in,
                port,
                ..step
            }
        };
        let own = |combine: f64| {
            let crossing = tree_crossing * if most > 1 { 2 } else { 1 };
            let step = self.exchange(crossing, 0.5, children * combine);
            let sides = if nranks > 2 || !rooted { children } else { 1.0 };
            Step {
                sending: sides * step.sending,
                receiving: sides * step.receiving,
                moving_out: sides * step.moving_out * wait,
                moving_in: sides * step.moving_in * wait,
                port: step.port * wait,
                ..step
            }
        };
        // The root of a rooted collective is on top of both trees.
        let top = (rooted && !nranks.is_power_of_two()).then_some(u32::from(self.spread.nhosts > 1));
        let levels = || self.spread.tree.iter().copied().chain(top);
        let (mut path, mut parts) =
            (Vec::with_capacity(2 * self.spread.tree.len() + 1), Vec::with_capacity(2));
        if collective.reduces() {
            path.extend(levels().map(|crossing| level(crossing, 1.0)));
            parts.push(own(1.0));
        }
        if collective != Collective::Reduce {
            path.extend(levels().map(|crossing| level(crossing, 0.0)));
            parts.push(own(0.0));
        }
        total.add_parts(Flow::Down, &path, &parts, 0.5);
    }

    fn two_level(&self, collective: Collective, total: &mut Total) {
        let Spread { nhosts, most, fewest: rails, .. } = self.spread;
        let combine = f64::from(u8::from(collective.reduces()));
        let hops = f64::from(nhosts - 1);
        let inside = |part: f64, combine: f64| self.fan(most - 1, 0, 0, part, combine);
        let rail =
            |rails: u32, part: f64, combine: f64| Step { times: hops, ..self.exchange(rails, part, combine) };
        match collective {
            Collective::AllReduce => {
                let (part, chunk) = (1.0 / f64::from(rails), 1.0 / f64::from(rails * nhosts));
                let steps =
                    [inside(part, 1.0), rail(rails, chunk, 1.0), rail(rails, chunk, 0.0), inside(part, 0.0)];
                total.add(Flow::Apart, &steps, chunk);
            }
            Collective::ReduceScatter | Collective::AllGather => {
                let (fan, hop) = (inside(1.0, combine), rail(rails, 1.0, combine));
                // One hop less than there are hosts.
                let hop_port = hop.port * hops / (hops + 1.0);
                let own = Step { times: hops + 1.0, ..fan.beside(Step { port: hop_port, ..hop }) };
                total.add_parts(Flow::Along, &[fan, hop], &[own], 1.0);
            }
            _ => {
                let (fan, hop) = (inside(1.0, combine), self.exchange(1, 1.0, combine));
                total.add_parts(Flow::Down, &[rail(1, 1.0, combine), fan], &[hop.beside(fan)], 1.0);
            }
        }
    }
}

/// Adds up the steps of one operation.
struct Total {
    channels: f64,
    slice_bytes: f64,
    rounds: f64,
    /// Bytes of one round: of a flat buffer, or of one block.
    round: f64,
    /// Seconds of the first round, and of each further one.
    first: f64,
    next: f64,
    steps: f64,
}

impl Total {
    fn new(formulas: &Formulas, collective: Collective, cutting: &Cutting) -> Self {
        let blocks = blocks(collective, formulas.spread.nranks) as f64;
        let bytes = cutting.bytes as f64;
        let rounds = cutting.bytes.div_ceil(cutting.round_bytes.max(1)).max(1) as f64;
        Total {
            channels: f64::from(cutting.channels),
            slice_bytes: cutting.slice_bytes as f64,
            rounds,
            round: bytes / blocks / rounds,
            first: 0.0,
            next: 0.0,
            steps: 0.0,
        }
    }

    /// Adds steps that every rank takes. `chunk`: what part of a round the chunk has whose size decides about slices.
    fn add(&mut self, flow: Flow, steps: &[Step], chunk: f64) {
        self.add_parts(flow, steps, steps, chunk);
    }

    /// The same, where the steps of the longest `path` are not those that the busiest rank does itself, its `own`.
    fn add_parts(&mut self, flow: Flow, path: &[Step], own: &[Step], chunk: f64) {
        let share = self.round * chunk / self.channels;
        let slices = (share / self.slice_bytes).ceil().max(1.0) * self.channels;
        let (mut fill, mut apart, mut flight) = (0.0, 0.0, 0.0f64);
        for step in path {
            let message = self.round * step.part;
            let alone = step.path(message / slices, 1.0);
            fill += step.times * alone;
            apart += step.times * step.path(message, slices);
            flight = flight.max(alone - step.busy(message / slices, 1.0));
            self.steps += step.times;
        }
        let (mut busy, mut busy_slice) = (0.0, 0.0);
        for step in own {
            let message = self.round * step.part;
            busy += step.times * step.busy(message, slices);
            busy_slice += step.times * step.busy(message / slices, 1.0);
        }
        let (first, next) = match flow {
            Flow::Apart => (apart, apart - flight),
            Flow::Along => (fill.max(busy + flight), fill - flight),
            Flow::Down => (fill + busy - busy_slice, busy),
        };
        self.first += first;
        self.next += next.max(busy);
    }

    /// A copy of the whole round at the end: in place, as most programs call, the result waits in scratch.
    fn copy(&mut self, gamma: f64) {
        self.first += gamma * self.round;
        self.next += gamma * self.round;
    }

    fn seconds(&self) -> f64 {
        self.first + (self.rounds - 1.0) * self.next
    }
}

/// Blocks of the largest buffer of any rank.
pub(super) fn blocks(collective: Collective, nranks: u32) -> u64 {
    match collective {
        Collective::ReduceScatter
        | Collective::AllGather
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => u64::from(nranks),
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
