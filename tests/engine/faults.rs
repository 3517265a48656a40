//! Faults that the contract of transports allows change nothing; a flipped bit does not get past the checks.

use crate::{
    buffers::Buffers,
    cases::{Random, cases, soak},
    simulation::{Cluster, Started, endpoints, route},
};
use rondel::{
    DataType, ReduceOp,
    algo::Algorithm,
    engine::{EngineConfig, Route},
    plan::{Collective, Shape},
};
use rondel_mem::MemConfig;
use rondel_transport_api::{
    Endpoint,
    faults::{Clock, Delay, Faults, Faulty, Flip, Short, Storm},
};
use std::sync::{Arc, atomic::AtomicU64};

/// A cluster whose endpoints have faults, with delays in milliseconds of its virtual time.
pub(crate) fn faulty_cluster(
    shape: &Shape,
    mem: MemConfig,
    config: EngineConfig,
    routes: impl Fn(Collective, u64) -> Route + Clone + Send + 'static,
    faults: impl Fn(usize) -> Faults,
) -> Cluster {
    let clock = Arc::<AtomicU64>::default();
    let decorate = |(rank, endpoint): (usize, Box<dyn Endpoint>)| {
        let faults = Faults { clock: Clock::Virtual(clock.clone()), ..faults(rank) };
        Box::new(Faulty::new(endpoint, faults)) as Box<dyn Endpoint>
    };
    let endpoints = endpoints(shape.nranks(), mem).into_iter().enumerate().map(decorate).collect();
    Cluster::over(shape, endpoints, clock, config, routes)
}

/// Some of the faults that must not change any result.
pub(crate) fn benign(random: &mut Random) -> Faults {
    Faults {
        seed: random.next(),
        delay: random.chance(70).then(|| Delay { per_mille: 200, most: 1 + random.below(60) as u64 }),
        storm: random.chance(70).then(|| Storm { per_mille: 100, most: 1 + random.below(4) as u64 }),
        short: random.chance(70).then(|| Short { per_mille: 300, most: 1 + random.below(300) as u64 }),
        shuffle: random.chance(70),
        ..Faults::default()
    }
}

/// Every combination of what transports may offer.
fn transports() -> impl Iterator<Item = MemConfig> {
    let with = |eager, window, reduces| MemConfig { eager, window, reduces, ..MemConfig::default() };
    (0..8).map(move |k| with(if k & 1 == 0 { 0 } else { 1024 }, if k & 2 == 0 { 1 } else { 16 }, k & 4 == 0))
}

/// A route with some number of channels, slices and rounds.
fn any_route(algorithm: &'static Algorithm, random: &mut Random) -> Route {
    Route {
        algorithm,
        channels: 1 + random.below(3) as u32,
        slice_bytes: [64, 256, 16 << 10][random.below(3)],
        round_bytes: [512, 2048, 64 << 10][random.below(3)],
    }
}

/// One cluster under benign faults.
struct Trial {
    cluster: Cluster,
    case: (&'static Algorithm, Collective, Shape),
    in_place: bool,
    what: String,
}

impl Trial {
    fn new(
        case: &(&'static Algorithm, Collective, Shape),
        mem: MemConfig,
        in_place: bool,
        seed: u64,
    ) -> Self {
        let (algorithm, collective, shape) = case;
        let mut random = Random::new(seed);
        let way = any_route(algorithm, &mut random);
        let faults: Vec<Faults> = (0..shape.nranks()).map(|_| benign(&mut random)).collect();
        let what = format!(
            "{} {} of {shape:?}, in place: {in_place}, {mem:?}, seed {seed}",
            algorithm.name,
            collective.name()
        );
        let config = EngineConfig::default();
        let cluster = faulty_cluster(shape, mem, config, move |_, _| way, |rank| faults[rank].clone());
        Self { cluster, case: case.clone(), in_place, what }
    }

    fn buffers(&self, count: usize, seed: u64) -> Buffers {
        let (_, collective, shape) = &self.case;
        Buffers::new(*collective, shape, DataType::I32, count, self.in_place, seed)
    }

    fn start(&mut self, buffers: &mut Buffers) -> Vec<Started> {
        self.cluster.submit_all(buffers, ReduceOp::Sum)
    }

    fn end(&mut self, started: Vec<Started>, buffers: &Buffers) {
        self.cluster.finish(&started);
        for started in started {
            self.cluster.outcome(started).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        }
        buffers.check(&self.what);
    }

    fn assert_idle(&self) {
        for engine in &self.cluster.engines {
            assert_eq!(engine.unfinished(), 0, "{}: {engine:?}", self.what);
        }
    }
}

#[test]
fn benign_faults_change_no_result() {
    let mut seed = 0;
    for _ in 0..soak() {
        for case in (2..=6).flat_map(cases) {
            for (mem, in_place) in transports().flat_map(|mem| [(mem, false), (mem, true)]) {
                seed += 1;
                let mut random = Random::new(seed ^ 0xfeed);
                let mut trial = Trial::new(&case, mem, in_place, seed);
                let counts = [0, 1, 5, 70, 400, 900];
                let mut count = || counts[random.below(counts.len())];
                let (mut first, mut second) = (trial.buffers(count(), 1), trial.buffers(count(), 2));
                let both = [trial.start(&mut first), trial.start(&mut second)];
                let [started_first, started_second] = both;
                trial.end(started_second, &second);
                trial.end(started_first, &first);
                trial.assert_idle();
                let mut third = trial.buffers(count(), 3);
                let started = trial.start(&mut third);
                trial.end(started, &third);
                trial.assert_idle();
            }
        }
    }
}

#[test]
fn repetition_takes_no_more_memory() {
    for (k, case) in cases(4).into_iter().enumerate() {
        let mem = transports().nth(k % 8).expect("there are 8");
        let mut trial = Trial::new(&case, mem, k % 3 == 0, k as u64);
        let mut memory = Vec::new();
        for repetition in 0..60 {
            let mut buffers = trial.buffers(600, repetition);
            let started = trial.start(&mut buffers);
            trial.end(started, &buffers);
            let engines = trial.cluster.engines.iter().enumerate();
            let of = |(rank, engine): (usize, &rondel::engine::Engine)| {
                engine.stats(trial.cluster.comm(crate::simulation::WORLD, rank)).memory_bytes
            };
            memory.push(engines.map(of).sum::<u64>());
        }
        // How much is in flight at once depends on the timing; the first half has seen the most of it.
        assert!(memory[59] <= memory[29], "{}: {memory:?}", trial.what);
    }
}

/// Whether every rank has the right result although (or because) one message of one rank is damaged.
fn survives(case: &(&'static Algorithm, Collective, Shape), rank: usize, flip: Flip) -> bool {
    let (algorithm, collective, shape) = case;
    let way = route(algorithm);
    let faults = |of: usize| Faults { flip: (of == rank).then_some(flip), ..Faults::default() };
    let mut cluster =
        faulty_cluster(shape, MemConfig::default(), EngineConfig::default(), move |_, _| way, faults);
    let mut buffers = Buffers::new(*collective, shape, DataType::I64, 7, false, flip.bit);
    let started = cluster.submit_all(&mut buffers, ReduceOp::Sum);
    cluster.finish(&started);
    (0..shape.nranks()).all(|rank| buffers.verdict(rank, |value| value).is_ok())
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut random = Random::new(3);
    for case in [3, 4].into_iter().flat_map(cases).filter(|case| case.1 != Collective::Barrier) {
        let mut noticed = 0;
        for rank in 0..case.2.nranks() as usize {
            let mut flip = |message| Flip { message, bit: random.next() };
            let messages = (0..).take_while(|&message| !survives(&case, rank, flip(message))).count() as u64;
            // That was the first message which does not exist, and not one whose damage nobody saw.
            let later = messages + 1..messages + 4;
            assert!(later.into_iter().all(|message| survives(&case, rank, flip(message))), "{case:?}");
            noticed += messages;
        }
        let n = u64::from(case.2.nranks());
        if (case.0.name, case.1) == ("ring", Collective::AllReduce) {
            assert_eq!(noticed, n * 2 * (n - 1), "{case:?}");
        }
        assert!(noticed >= n - 1, "{case:?}: only {noticed} messages");
    }
}
