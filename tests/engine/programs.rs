//! Random programs on several communicators at once, against a model that does one operation after the other.

use crate::{
    cases::{Random, soak},
    faults::{benign, faulty_cluster},
    model::{ARENA, Step, order, step},
    simulation::{Cluster, Started, route},
};
use rondel::{
    Error,
    algo::{self, Algorithm},
    engine::{EngineConfig, Route},
    error::{Cause, Failure},
    plan::{Collective, Rank, Shape},
};
use rondel_mem::MemConfig;
use rondel_transport_api::faults::{Faults, Loss};
use std::time::Duration;

/// Communicators, what is done on them, and in which order each rank begins it.
struct Program {
    seed: u64,
    nranks: u32,
    /// Members of each communicator, in its order; the first one has all ranks.
    teams: Vec<Vec<Rank>>,
    steps: Vec<Step>,
    /// For each rank: (step, part) in its order.
    orders: Vec<Vec<(usize, usize)>>,
}

impl Program {
    fn new(random: &mut Random, seed: u64) -> Self {
        let nranks = 2 + random.below(3) as u32;
        let mut teams: Vec<Vec<Rank>> = vec![(0..nranks).collect()];
        for _ in 0..1 + random.below(2) {
            let mut members: Vec<Rank> = (0..nranks).collect();
            for k in 0..members.len() {
                members.swap(k, random.below(nranks as usize));
            }
            members.truncate(2 + random.below(members.len() - 1));
            teams.push(members);
        }
        let steps: Vec<Step> = (0..10 + random.below(31)).map(|_| step(random, &teams)).collect();
        let orders = (0..nranks as usize).map(|rank| order(random, rank, &steps)).collect();
        Self { seed, nranks, teams, steps, orders }
    }

    /// All of it goes well, and memory is what the model says; also where ranks dawdle, and leave as soon as they have
    /// done their part.
    fn run(&self, random: &mut Random) {
        let mut arenas = self.arenas();
        let mut model = arenas.clone();
        self.steps.iter().for_each(|step| step.apply(&mut model));

        let mut cluster = self.cluster(random, None);
        let habits = Habits { death: None, leaving: random.chance(30) };
        let started = self.start(random, &mut cluster, &mut arenas, habits);
        if habits.leaving {
            for _ in 0..1000 {
                self.let_go(&mut cluster, &started);
                cluster.step();
            }
        }
        let all: Vec<Started> = started.into_iter().map(|(_, started)| started).collect();
        cluster.finish(&all);
        for started in all {
            cluster.outcome(started).unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        }
        for (rank, (arena, model)) in arenas.iter().zip(&model).enumerate() {
            let wrong = arena.iter().zip(model).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "seed {}, rank {rank}: {:?}", self.seed, self.steps);
        }
    }

    /// A rank dies on the way. Everything of the others ends: well, where it was no member. Returns how many operations
    /// failed.
    fn run_with_death(&self, random: &mut Random) -> usize {
        let mut arenas = self.arenas();
        let mut cluster = self.cluster(random, None);
        let death = Death {
            victim: random.below(arenas.len()),
            after: random.below(2 * self.steps.len()),
            news: Duration::from_millis([0, 100, 500][random.below(3)]),
        };
        let habits = Habits { death: Some(death), leaving: false };
        let started = self.start(random, &mut cluster, &mut arenas, habits);
        self.end(&mut cluster, &mut arenas, started, |team, failure| {
            assert!(self.teams[team].contains(&(death.victim as Rank)), "seed {}: {failure}", self.seed);
            assert_eq!(failure.culprit(), self.rank_in(team, death.victim), "seed {}: {failure}", self.seed);
        })
    }

    /// A lane breaks on the way. Everything ends, and only operations of one communicator fail. Returns how many.
    fn run_with_loss(&self, random: &mut Random) -> usize {
        let mut arenas = self.arenas();
        let loss = Loss { after: random.below(60) as u64, lane: None };
        let at = random.below(arenas.len());
        let mut cluster = self.cluster(random, Some((at, loss)));
        let started = self.start(random, &mut cluster, &mut arenas, Habits::default());
        let mut failed = None;
        self.end(&mut cluster, &mut arenas, started, |team, failure| {
            assert!(matches!(failure.cause, Cause::LaneLost { .. }), "seed {}: {failure}", self.seed);
            assert_eq!(*failed.get_or_insert(team), team, "seed {}: {failure}", self.seed);
        })
    }

    /// Waits for the end of everything; then nobody touches any memory. Returns how many operations failed.
    fn end(
        &self,
        cluster: &mut Cluster,
        arenas: &mut [Vec<i64>],
        started: Vec<(usize, Started)>,
        mut check: impl FnMut(usize, &Failure),
    ) -> usize {
        let all: Vec<Started> = started.iter().map(|&(_, started)| started).collect();
        cluster.finish_within(&all, Duration::from_secs(5));
        let mut failures = 0;
        for (team, started) in started {
            if !cluster.is_alive(started.rank) {
                continue;
            }
            match cluster.outcome(started) {
                Ok(()) => {}
                Err(Error::Failed(failure)) => {
                    check(team, &failure);
                    failures += 1;
                }
                Err(other) => panic!("seed {}: {other}", self.seed),
            }
        }
        arenas.iter_mut().for_each(|arena| arena.fill(-1));
        cluster.idle(Duration::from_millis(1500));
        assert!(arenas.iter().flatten().all(|&value| value == -1), "seed {}: memory was written", self.seed);
        failures
    }

    fn rank_in(&self, team: usize, of_job: usize) -> Option<Rank> {
        self.teams[team].iter().position(|&member| member as usize == of_job).map(|rank| rank as Rank)
    }

    fn arenas(&self) -> Vec<Vec<i64>> {
        let fresh = |rank: u32| (0..ARENA).map(|k| (rank as usize * 1000 + k) as i64).collect();
        (0..self.nranks).map(fresh).collect()
    }

    /// Begins every rank's parts in its order, the ranks in any order. Returns what was begun, by communicator.
    fn start(
        &self,
        random: &mut Random,
        cluster: &mut Cluster,
        arenas: &mut [Vec<i64>],
        Habits { death, leaving }: Habits,
    ) -> Vec<(usize, Started)> {
        let mut started = Vec::new();
        let mut next = vec![0; arenas.len()];
        let pace = 1 + random.below(12);
        for turn in 0.. {
            if let Some(Death { victim, news, .. }) = death.filter(|death| death.after == turn) {
                cluster.kill(victim);
                cluster.report_end(victim, news);
            }
            let has_more = |&rank: &usize| cluster.is_alive(rank) && next[rank] < self.orders[rank].len();
            let ranks: Vec<usize> = (0..arenas.len()).filter(has_more).collect();
            if ranks.is_empty() && death.is_none_or(|death| death.after <= turn) {
                break;
            }
            for _ in 0..random.below(pace) {
                cluster.look(random.below(arenas.len()));
            }
            if leaving {
                self.let_go(cluster, &started);
                if random.chance(3) {
                    cluster.idle(Duration::from_secs(2));
                }
            }
            if ranks.is_empty() {
                continue;
            }
            let rank = ranks[random.below(ranks.len())];
            let (step, part) = self.orders[rank][next[rank]];
            next[rank] += 1;
            let step = &self.steps[step];
            let nranks = self.teams[step.team].len() as u32;
            let submission = step.parts[part].submission(step, nranks, &mut arenas[rank]);
            match cluster.submit(step.team, rank, submission) {
                Ok(operation) => started.push((step.team, operation)),
                // What has failed already is no news; without faults, the model finds what is missing.
                Err(Error::Failed(_)) => {}
                Err(other) => panic!("seed {}: {other}", self.seed),
            }
        }
        started
    }

    /// Whoever has done its part says goodbye.
    fn let_go(&self, cluster: &mut Cluster, started: &[(usize, Started)]) {
        for rank in 0..self.orders.len() {
            let of_rank = || started.iter().map(|&(_, started)| started).filter(|s| s.rank == rank);
            let has_begun_all = of_rank().count() == self.orders[rank].len();
            if has_begun_all && !cluster.has_left(rank) && of_rank().all(|started| cluster.is_over(started)) {
                cluster.leave(rank);
            }
        }
    }

    fn cluster(&self, random: &mut Random, loss: Option<(usize, Loss)>) -> Cluster {
        let mem = MemConfig {
            eager: [0, 64, 1024][random.below(3)],
            window: [1, 2, 16][random.below(3)],
            reduces: random.chance(50),
            ..MemConfig::default()
        };
        let faults: Vec<Faults> = (0..self.nranks as usize)
            .map(|rank| Faults {
                loss: loss.filter(|(at, _)| *at == rank).map(|(_, loss)| loss),
                ..if random.chance(50) { benign(random) } else { Faults::default() }
            })
            .collect();
        let mut routes = (0..self.teams.len()).map(|_| random.next()).collect::<Vec<_>>().into_iter();
        let mut choose = |nranks| {
            let seed = routes.next().expect("one a communicator");
            move |collective, bytes| any_route(seed, nranks, collective, bytes)
        };
        let shape = Shape::flat(self.nranks);
        let config = EngineConfig::default();
        let mut cluster =
            faulty_cluster(&shape, mem, config, choose(self.nranks), |rank| faults[rank].clone());
        for members in &self.teams[1..] {
            let nranks = members.len() as u32;
            cluster.add_communicator(members, &Shape::flat(nranks), choose(nranks));
        }
        cluster
    }
}

/// What ranks do besides the program.
#[derive(Clone, Copy, Debug, Default)]
struct Habits {
    death: Option<Death>,
    /// They dawdle, and leave when they have done their part.
    leaving: bool,
}

/// When a rank dies, in begun operations of all ranks, and how long its host takes to tell.
#[derive(Clone, Copy, Debug)]
struct Death {
    victim: usize,
    after: usize,
    news: Duration,
}

/// Any way of doing a collective, the same on every rank.
fn any_route(seed: u64, nranks: u32, collective: Collective, bytes: u64) -> Route {
    // A send and its receive are cut alike.
    let kind = if collective == Collective::Recv { Collective::Send } else { collective };
    let mut random = Random::new(seed ^ (kind as u64) << 32 ^ bytes);
    let all: Vec<&'static Algorithm> =
        algo::ALL.iter().filter(|a| (a.supports)(collective, &Shape::flat(nranks))).collect();
    Route {
        channels: 1 + random.below(3) as u32,
        slice_bytes: [16, 64, 4096][random.below(3)],
        round_bytes: [128, 256, 4096][random.below(3)],
        ..route(all[random.below(all.len())])
    }
}

#[test]
fn random_programs_do_what_the_model_says() {
    for seed in 0..2500 * soak() {
        let mut random = Random::new(seed);
        Program::new(&mut random, seed).run(&mut random);
    }
}

#[test]
fn a_death_within_a_program_ends_what_it_must_and_nothing_else() {
    let mut failures = 0;
    for seed in 0..1000 * soak() {
        let mut random = Random::new(seed ^ 0xdead);
        failures += Program::new(&mut random, seed).run_with_death(&mut random);
    }
    assert!(failures > 2000, "only {failures} operations failed: the deaths came too late");
}

#[test]
fn a_lane_lost_within_a_program_ends_one_communicator() {
    let mut failures = 0;
    for seed in 0..1000 * soak() {
        let mut random = Random::new(seed ^ 0x1057);
        failures += Program::new(&mut random, seed).run_with_loss(&mut random);
    }
    assert!(failures > 2000, "only {failures} operations failed: the losses came too late");
}
