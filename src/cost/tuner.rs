//! Which algorithm, how many channels and which slices a collective of some size is done with.
//!
//! For each collective, the closed forms of [`formula`](super::formula) are asked at all powers of two, and where two
//! neighbours choose differently, the size at which the choice turns is searched between them. The result is a table
//! of sizes, computed when a communicator is made. All arithmetic is additions, multiplications, divisions and
//! comparisons of `f64`, which have the same results on all machines: so have all ranks the same table.
//!
//! A prediction is as good as its constants, and each step waits for the slowest rank, of which the model knows nothing.
//! So among algorithms that are predicted to be about as fast as the best one, that of the fewest steps is chosen.

use super::{
    Machine,
    formula::{Cutting, Formulas},
};
use crate::{
    algo::{self, Algorithm},
    engine::Route,
    plan::{Collective, Shape},
};
use rondel_transport_api::Link;
use std::{fmt::Write, time::Duration};

/// A prediction within this factor of the best is as good.
const AS_GOOD: f64 = 1.08;
/// When more ranks than these of other hosts send to one at once, and more than `INCAST_BYTES` together, buffers of
/// switches overflow, which the model does not know. Then algorithms are preferred in which ranks have few peers.
const INCAST: u32 = 16;
const INCAST_BYTES: u64 = 64 << 10;
/// Powers of two at which/// Powers of two at which predictions are made: 1 B to 1 GiB. Larger operations go like the largest.
const GRID: std::ops::RangeInclusive<u32> = 0..=30;
/// Halvings of the distance between two powers of two, where the choice turns between them.
const REFINEMENTS: u32 = 3;
/// Slices to choose from, the preferred one first. Sockets and caches like 128 KiB best; long chains want less.
const SLICES: [u64; 2] = [128 << 10, 32 << 10];
/// Rounds to choose from, the preferred one first: short rounds stay in the cache and need little scratch, but for many
/// ranks they leave little to a chunk.
const ROUNDS: [u64; 3] = [2 << 20, 4 << 20, 8 << 20];

/// Among algorithms of equal steps and times, the one that has the fewest messages or the simplest pattern.
const PREFERENCE: [&str; 6] = ["one_shot", "direct", "doubling", "tree", "ring", "halving_doubling"];

/// Chooses by size. The same on every rank that was given the same arguments.
#[derive(Clone, Debug)]
pub struct Tuner {
    shape: Shape,
    formulas: Formulas,
    fixed: Option<&'static Algorithm>,
    channels: u32,
    /// For each collective, by its number: from which size in bytes on which way. Sizes grow, from zero.
    table: Vec<Vec<(u64, Route)>>,
    version: u64,
}

/// One way, and what it is predicted to cost.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    route: Route,
    seconds: f64,
    steps: u32,
}

impl Tuner {
    /// For ranks of this shape, whose hosts are joined by `across` and whose ranks within a host by `within`. `fixed`
    /// and `channels` restrict the choice.
    pub fn new(
        shape: &Shape,
        within: Link,
        across: Link,
        fixed: Option<&'static Algorithm>,
        channels: Option<u32>,
    ) -> Self {
        Tuner::for_machine(shape, &Machine::new(within, across), fixed, channels)
    }

    /// For ranks of this shape on this machine. An algorithm that is `fixed` is taken for the collectives that it does.
    /// There is one channel where `channels` does not ask for more: one thread drives all channels of a rank over the
    /// same port, and slices keep that busy already.
    pub fn for_machine(
        shape: &Shape,
        machine: &Machine,
        fixed: Option<&'static Algorithm>,
        channels: Option<u32>,
    ) -> Self {
        let mut tuner = Tuner {
            shape: shape.clone().with_root(0),
            formulas: Formulas::new(shape, machine),
            fixed,
            channels: channels.unwrap_or(1).max(1),
            table: Vec::new(),
            version: 0,
        };
        tuner.table = Collective::ALL.into_iter().map(|collective| tuner.tabulate(collective)).collect();
        tuner.version = tuner.digest();
        tuner
    }

    /// Which way a collective goes whose largest buffer on any rank has `bytes`.
    pub fn route(&self, collective: Collective, bytes: u64) -> Route {
        let ranges = &self.table[collective as usize];
        ranges[ranges.partition_point(|&(from, _)| from <= bytes) - 1].1
    }

    /// Every algorithm that does the collective, with its predicted time, best first.
    pub fn candidates(&self, collective: Collective, bytes: u64) -> Vec<(&'static str, Duration)> {
        let able = self.able(collective).into_iter();
        let mut all: Vec<Candidate> = able.map(|a| self.best_cut(a, collective, bytes, None)).collect();
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        all.iter().map(|c| (c.route.algorithm.name, Duration::from_secs_f64(c.seconds))).collect()
    }

    /// The table of a collective: from which size in bytes on which way it goes, until the next one's size.
    pub fn ranges(&self, collective: Collective) -> Vec<(u64, Route)> {
        self.table[collective as usize].clone()
    }

    /// Changes whenever the table does: ranks with another table must not talk to each other.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What people want to see of the table in one line, as the end of a sentence.
    pub fn summary(&self) -> String {
        let mut line = String::from("; table: all_reduce");
        let ranges = &self.table[Collective::AllReduce as usize];
        for (at, (_, route)) in ranges.iter().enumerate() {
            let name = route.algorithm.name;
            match ranges.get(at + 1) {
                Some((_, next)) if next.algorithm.name == name => {}
                Some((end, _)) => {
                    let _ = write!(line, " <{} {name},", short_bytes(*end));
                }
                None => {
                    let _ = write!(line, " {name}");
                }
            }
        }
        line
    }

    fn able(&self, collective: Collective) -> Vec<&'static Algorithm> {
        let does = |algorithm: &&Algorithm| (algorithm.supports)(collective, &self.shape);
        match self.fixed.filter(does) {
            Some(fixed) => vec![fixed],
            None => algo::ALL.iter().filter(does).collect(),
        }
    }

    fn tabulate(&self, collective: Collective) -> Vec<(u64, Route)> {
        let able = self.able(collective);
        if able.is_empty() {
            // A rank alone sends nothing to anybody: what it is told here is never followed.
            let algorithm = Algorithm::named("p2p").expect("it is in the list");
            return vec![(0, self.route_by(algorithm, SLICES[0], ROUNDS[0]))];
        }
        let choice = |bytes, last: Option<&Route>| self.choose(&able, collective, bytes, last);
        let mut ranges = vec![(0, choice(0, None))];
        let mut low = 0;
        for exponent in GRID {
            let high = 1 << exponent;
            self.refine(&choice, (low, high), REFINEMENTS, &mut ranges);
            low = high;
        }
        ranges
    }

    /// Appends where the choice turns between two sizes, the lower of which has the last range.
    fn refine(
        &self,
        choice: &impl Fn(u64, Option<&Route>) -> Route,
        (low, high): (u64, u64),
        depth: u32,
        ranges: &mut Vec<(u64, Route)>,
    ) {
        let last = ranges.last().map(|(_, last)| *last);
        let at_high = choice(high, last.as_ref());
        if last.is_some_and(|last| is_same(&last, &at_high)) {
            return;
        }
        let middle = low + (high - low) / 2;
        if depth > 0 && middle > low {
            self.refine(choice, (low, middle), depth - 1, ranges);
            self.refine(choice, (middle, high), depth - 1, ranges);
        } else {
            ranges.push((high, at_high));
        }
    }

    /// The way for a size; `last` is that of the next smaller one, which is kept while it is as good as the best.
    fn choose(
        &self,
        able: &[&'static Algorithm],
        collective: Collective,
        bytes: u64,
        last: Option<&Route>,
    ) -> Route {
        let mut all: Vec<Candidate> =
            able.iter().map(|a| self.best_cut(a, collective, bytes, last)).collect();
        if self.formulas.incast() > INCAST && bytes > INCAST_BYTES {
            let floods = |c: &Candidate| matches!(c.route.algorithm.name, "one_shot" | "direct");
            if !all.iter().all(floods) {
                all.retain(|candidate| !floods(candidate));
            }
        }
        let best = all.iter().map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min);
        all.retain(|candidate| candidate.seconds <= best * AS_GOOD);
        let is_last = |c: &&Candidate| last.is_some_and(|last| last.algorithm.name == c.route.algorithm.name);
        if let Some(kept) = all.iter().find(is_last) {
            return kept.route;
        }
        // Equal ones differ by the rounding of their sums.
        let nanoseconds = |candidate: &Candidate| (candidate.seconds * 1e9) as u64;
        let place = |c: &Candidate| PREFERENCE.iter().position(|name| *name == c.route.algorithm.name);
        let chosen = all.iter().min_by_key(|c| (c.steps, nanoseconds(c), place(c)));
        chosen.expect("the best one is as good as itself").route
    }

    /// The best slices and rounds for an algorithm: those of `last`, or the preferred ones, where others are not clearly
    /// better.
    fn best_cut(
        &self,
        algorithm: &'static Algorithm,
        collective: Collective,
        bytes: u64,
        last: Option<&Route>,
    ) -> Candidate {
        let predict = |slice, round| self.predict(algorithm, collective, bytes, slice, round);
        let mut best = match last.filter(|last| last.algorithm.name == algorithm.name) {
            Some(last) => predict(last.slice_bytes, last.round_bytes),
            None => predict(SLICES[0], ROUNDS[0]),
        };
        // A slice or round that is as large as all there is is no choice.
        for slice in SLICES.into_iter().filter(|&slice| slice == SLICES[0] || bytes > slice) {
            for (at, &round) in ROUNDS.iter().enumerate() {
                if at > 0 && bytes <= ROUNDS[at - 1] {
                    break;
                }
                let candidate = predict(slice, round);
                if candidate.seconds * AS_GOOD < best.seconds {
                    best = candidate;
                }
            }
        }
        best
    }

    fn predict(
        &self,
        algorithm: &'static Algorithm,
        collective: Collective,
        bytes: u64,
        slice_bytes: u64,
        round_bytes: u64,
    ) -> Candidate {
        let cutting = Cutting { bytes, channels: self.channels, slice_bytes, round_bytes };
        let prediction = self.formulas.predict(algorithm.name, collective, &cutting);
        let prediction = prediction.expect("every algorithm has a formula");
        Candidate {
            route: self.route_by(algorithm, slice_bytes, round_bytes),
            seconds: prediction.seconds,
            steps: prediction.steps,
        }
    }

    fn route_by(&self, algorithm: &'static Algorithm, slice_bytes: u64, round_bytes: u64) -> Route {
        Route { algorithm, channels: self.channels, slice_bytes, round_bytes }
    }

    /// FNV-1a over everything that ranks must agree on.
    fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        let mut mix = |value: u64| {
            for byte in value.to_le_bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        };
        for (&rank, &host) in self.shape.order.iter().zip(&self.shape.hosts) {
            mix(u64::from(rank) << 32 | u64::from(host));
        }
        for (number, ranges) in self.table.iter().enumerate() {
            mix(number as u64);
            for (from, route) in ranges {
                mix(*from);
                route.algorithm.name.bytes().for_each(|byte| mix(u64::from(byte)));
                mix(u64::from(route.channels));
                mix(route.slice_bytes);
                mix(route.round_bytes);
            }
        }
        digest
    }
}

fn is_same(a: &Route, b: &Route) -> bool {
    a.algorithm.name == b.algorithm.name && (a.slice_bytes, a.round_bytes) == (b.slice_bytes, b.round_bytes)
}

/// Bytes in the largest unit that leaves whole numbers, rounded down.
fn short_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..1_048_576 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

#[cfg(test)]
mod tests;
