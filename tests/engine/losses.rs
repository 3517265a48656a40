//! Dying ranks and breaking lanes, at every moment of every algorithm.

use crate::{
    buffers::Buffers,
    cases::{Random, cases, soak},
    faults::{benign, faulty_cluster},
    simulation::{Cluster, Started, WORLD, route},
};
use rondel::{
    DataType, Error, ReduceOp,
    algo::Algorithm,
    engine::{EngineConfig, Route},
    error::{Cause, Failure},
    plan::{Collective, Rank, Shape},
};
use rondel_mem::MemConfig;
use rondel_transport_api::{
    LaneId,
    faults::{Faults, Loss},
};
use std::{sync::Arc, time::Duration};

/// After this, an operation that nobody tells what happened gives up.
const TIMEOUT: Duration = Duration::from_secs(6);

/// A cluster with several communicators, in one of which an operation is under way.
struct Trial {
    cluster: Cluster,
    nranks: u32,
    /// All ranks, like the one that the operation runs on.
    twin: usize,
    /// All but the victim.
    others: usize,
    /// The victim and one other.
    pair: usize,
    buffers: Buffers,
    /// Operations that are not over.
    started: Vec<Started>,
    failures: Vec<(usize, Arc<Failure>)>,
    what: String,
}

/// What is swept over besides the moment.
struct Setting<'a> {
    case: &'a (&'static Algorithm, Collective, Shape),
    victim: usize,
    /// Chooses counts, transports and benign faults.
    seed: u64,
}

impl Trial {
    fn new(setting: &Setting, loss: Option<Loss>) -> Self {
        let &Setting { case: (algorithm, collective, shape), victim, seed } = setting;
        let mut random = Random::new(seed);
        let mem = MemConfig {
            eager: [0, 1024][random.below(2)],
            window: [1, 16][random.below(2)],
            reduces: random.chance(50),
            ..MemConfig::default()
        };
        let way = Route { slice_bytes: 64, round_bytes: [256, 4096][random.below(2)], ..route(algorithm) };
        let noisy = random.chance(30);
        let n = shape.nranks();
        let faults: Vec<Faults> = (0..n as usize)
            .map(|rank| Faults {
                loss: loss.filter(|_| rank == victim),
                ..if noisy { benign(&mut random) } else { Faults::default() }
            })
            .collect();
        let config = EngineConfig { timeout: TIMEOUT, ..EngineConfig::default() };
        let mut cluster = faulty_cluster(shape, mem, config, move |_, _| way, |rank| faults[rank].clone());
        let ring = route(Algorithm::named("ring").expect("it exists"));
        let everybody: Vec<Rank> = (0..n).collect();
        let others: Vec<Rank> = (0..n).filter(|&rank| rank as usize != victim).collect();
        let pair = [victim as Rank, others[0]];
        let mut team = |members: &[Rank]| {
            cluster.add_communicator(members, &Shape::flat(members.len() as u32), move |_, _| ring)
        };
        let (twin, others, pair) = (team(&everybody), team(&others), team(&pair));
        let count = [1, 2, 9, 80][random.below(4)];
        let mut buffers = Buffers::new(*collective, shape, DataType::I64, count, random.chance(50), seed);
        let started = cluster.submit_all(&mut buffers, ReduceOp::Sum);
        let what = format!(
            "{} {} of {shape:?}, {count} elements, {mem:?}, seed {seed}, victim {victim}, {loss:?}",
            algorithm.name,
            collective.name()
        );
        Self { cluster, nranks: n, twin, others, pair, buffers, started, failures: Vec::new(), what }
    }

    /// Takes the outcomes of what is over: a result that is there is right, and the memory is its owner's again.
    fn take_outcomes(&mut self) {
        for started in std::mem::take(&mut self.started) {
            let rank = started.rank;
            if !self.cluster.is_alive(rank) {
                continue;
            }
            if !self.cluster.is_over(started) {
                self.started.push(started);
                continue;
            }
            match self.cluster.outcome(started) {
                Ok(()) => {
                    let verdict = self.buffers.verdict(rank as Rank, |value| value);
                    assert_eq!(verdict, Ok(()), "{}: it succeeded", self.what);
                }
                Err(Error::Failed(failure)) => self.failures.push((rank, failure)),
                Err(other) => panic!("{}: {other}", self.what),
            }
            self.buffers.spoil(rank);
        }
    }

    /// Until everything is over, and for a while longer.
    fn finish(&mut self, limit: Duration) {
        let end = self.cluster.now + limit;
        loop {
            self.take_outcomes();
            if self.started.is_empty() {
                break;
            }
            let now = self.cluster.now;
            assert!(now <= end, "{}: rank {} is stuck", self.what, self.started[0].rank);
            self.cluster.step();
        }
        self.cluster.idle(Duration::from_millis(1500));
        for rank in (0..self.nranks as usize).filter(|&rank| self.cluster.is_alive(rank)) {
            assert!(self.buffers.is_spoiled(rank), "{}: memory of rank {rank} was written", self.what);
            assert_eq!(self.cluster.engines[rank].unfinished(), 0, "{}: rank {rank}", self.what);
        }
    }

    fn assert_culprit(&self, culprit: Rank) {
        for (rank, failure) in &self.failures {
            assert_eq!(failure.culprit(), Some(culprit), "{}: rank {rank} says {failure}", self.what);
        }
    }

    /// Another call on a communicator of a living rank fails at once.
    fn assert_dead(&mut self, team: usize, rank: usize) {
        let mut buffers =
            Buffers::new(Collective::AllReduce, &Shape::flat(self.nranks), DataType::I64, 4, true, 1);
        let answer = self.cluster.submit(team, rank, buffers.submission(rank, ReduceOp::Sum));
        assert!(matches!(answer, Err(Error::Failed(_))), "{}: rank {rank} got {answer:?}", self.what);
    }

    /// A communicator works as if nothing had happened.
    fn assert_healthy(&mut self, team: usize, nranks: u32) {
        let shape = Shape::flat(nranks);
        let mut buffers = Buffers::new(Collective::AllReduce, &shape, DataType::I64, 20, true, 5);
        let started = self.cluster.submit_on(team, &mut buffers, ReduceOp::Sum);
        self.cluster.finish_within(&started, Duration::from_secs(3));
        for started in started {
            let outcome = self.cluster.outcome(started);
            outcome.unwrap_or_else(|error| panic!("{}: another communicator: {error}", self.what));
        }
        buffers.check(&self.what);
    }
}

/// A rank is killed after `moment` looks of engines; `news`: how long its host takes to tell. Returns whether the
/// operation was over before.
fn kill(setting: &Setting, moment: usize, news: Option<Duration>) -> bool {
    let mut trial = Trial::new(setting, None);
    trial.what += &format!(", killed at {moment}, news after {news:?}");
    let (victim, n) = (setting.victim, trial.nranks);
    for look in 0..moment {
        trial.cluster.look(look % n as usize);
    }
    trial.take_outcomes();
    if trial.started.is_empty() {
        return true;
    }
    trial.cluster.kill(victim);
    if let Some(after) = news {
        trial.cluster.report_end(victim, after);
    }
    trial.finish(news.map_or(TIMEOUT, |after| after) + Duration::from_millis(200));
    trial.assert_culprit(victim as Rank);
    for (_, failure) in trial.failures.iter().filter(|_| news.is_some()) {
        assert!(matches!(failure.cause, Cause::ProcessEnded { .. }), "{}: {failure}", trial.what);
    }
    if news.is_some() {
        let survivors: Vec<usize> = (0..n as usize).filter(|&rank| rank != victim).collect();
        for &rank in &survivors {
            trial.assert_dead(WORLD, rank);
            trial.assert_dead(trial.twin, rank);
        }
        trial.assert_dead(trial.pair, survivors[0]);
    }
    trial.assert_healthy(trial.others, n - 1);
    false
}

/// Goes through the moments of an operation, until it was `over` a few times in a row before the moment came: where
/// the transport delays, it may take much longer in one trial than in the next. Returns how many trials were in time.
fn sweep(mut over: impl FnMut(u64) -> bool) -> usize {
    let (mut in_time, mut too_late) = (0, 0);
    for moment in 0..100 {
        if over(moment) {
            too_late += 1;
        } else {
            in_time += 1;
            too_late = 0;
        }
        if too_late == 4 {
            break;
        }
    }
    in_time
}

#[test]
fn a_rank_that_dies_is_named_by_every_survivor() {
    let (mut seed, mut trials) = (0, 0);
    for case in (0..soak()).flat_map(|_| [3, 4]).flat_map(cases) {
        for victim in 0..case.2.nranks() as usize {
            trials += sweep(|moment| {
                seed += 1;
                let news = [Some(0), Some(300), None][seed as usize % 3].map(Duration::from_millis);
                kill(&Setting { case: &case, victim, seed }, moment as usize, news)
            });
        }
    }
    assert!(trials > 1000, "only {trials} trials: ranks die too late");
}

/// A lane breaks, and nobody dies. Returns whether all went well.
fn lose(setting: &Setting, loss: Loss) -> bool {
    let mut trial = Trial::new(setting, Some(loss));
    let grace = EngineConfig::default().grace;
    // Benign delays and the other rank's blame come on top.
    trial.finish(grace + Duration::from_millis(2500));
    if trial.failures.is_empty() {
        return true;
    }
    for (rank, failure) in &trial.failures {
        let Cause::LaneLost { peer, .. } = failure.cause else { panic!("{}: {failure}", trial.what) };
        let ends = [failure.origin, peer];
        assert!(ends.contains(&(setting.victim as Rank)) && ends[0] != ends[1], "{}: {failure}", trial.what);
        assert!(failure.waiting.is_some(), "{}: rank {rank} waited for nothing?", trial.what);
    }
    let n = trial.nranks;
    for rank in 0..n as usize {
        trial.assert_dead(WORLD, rank);
    }
    trial.assert_healthy(trial.twin, n);
    trial.assert_healthy(trial.others, n - 1);
    trial.assert_healthy(trial.pair, 2);
    false
}

#[test]
fn a_lane_that_breaks_fails_its_communicator_alone() {
    let (mut seed, mut trials) = (1 << 32, 0);
    for case in (0..soak()).flat_map(|_| [3, 4]).flat_map(cases) {
        for victim in 0..case.2.nranks() as usize {
            // The lane that the moment comes to, or a given one, also where it is idle then.
            for lane in [None, Some(LaneId(0)), Some(LaneId(1))] {
                trials += sweep(|after| {
                    seed += 1;
                    lose(&Setting { case: &case, victim, seed }, Loss { after, lane })
                });
            }
        }
    }
    assert!(trials > 1000, "only {trials} trials: lanes break too late");
}
