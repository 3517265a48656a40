//! The measuring loop.
//!
//! One batch is a barrier, some operations back to back, and the slowest rank's time divided by their number. Unless the
//! number is fixed, a warm-up chooses it so that a batch takes a few milliseconds, and as many batches are run as fit
//! into half a second; their median is the result. Every element is checked before and after.

use super::{meeting::Meeting, stats::Spread};
use crate::stop::Stop;
use std::fmt;

/// One prepared operation.
pub(crate) trait Subject {
    /// Does it once, on whatever the buffers hold.
    fn run(&mut self) -> Result<(), Stop>;
    /// Writes the input and reads the result, one access per cache line, as a program between two operations does.
    fn touch(&mut self);
    /// Fills the input and spoils the output.
    fn fill(&mut self);
    /// How many elements of this rank's result are wrong after `fill` and `run`.
    fn wrong(&mut self) -> u64;
    /// Makes data that stays finite however often the operation is repeated on it.
    fn settle(&mut self);
}

/// How the times of the ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Across {
    /// Rank 0's.
    #[value(name = "0", alias = "rank0")]
    Rank0,
    /// The average.
    #[value(name = "1", alias = "avg")]
    Average,
    /// The fastest rank's.
    #[value(name = "2", alias = "min")]
    Min,
    /// The slowest rank's.
    #[value(name = "3", alias = "max")]
    Max,
}

/// How many operations are timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Count {
    /// This many, in one batch.
    Fixed(u64),
    /// Batches of about `batch_us`, at most `most` of them.
    Batches {
        /// Microseconds that a batch takes.
        batch_us: f64,
        /// Batches at most.
        most: u32,
    },
}

/// How a cell is measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// How many operations are timed.
    pub(crate) count: Count,
    /// Operations before everything else.
    pub(crate) warmup: u64,
    /// How the times of the ranks become one.
    pub(crate) across: Across,
    /// The input is rewritten before and the result read after each operation; what that costs is taken off.
    pub(crate) dirty: bool,
    /// Operations that are checked before and again after the timing; 0: none.
    pub(crate) checks: u32,
    /// Single operations at the start of the latency pass that do not count.
    pub(crate) skip: u64,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warmup iters: {} ", self.warmup)?;
        match self.count {
            Count::Fixed(iters) => write!(f, "iters: {iters}")?,
            Count::Batches { batch_us, most } => {
                write!(f, "batches: 5 to {} of {} ms", most.max(5), batch_us / 1e3)?;
            }
        }
        write!(f, " validation: {}{}", self.checks, if self.dirty { " dirty" } else { "" })
    }
}

/// What was measured, the same on all ranks but for `latency.times`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timing {
    /// Median of the batches, per operation.
    pub(crate) median_us: f64,
    /// Fastest batch.
    pub(crate) min_us: f64,
    /// Slowest batch.
    pub(crate) max_us: f64,
    /// Operations in a batch.
    pub(crate) iters: u64,
    /// Single operations.
    pub(crate) latency: Latency,
    /// Wrong elements on all ranks; `None` if unchecked.
    pub(crate) wrong: Option<u64>,
}

/// Times of single operations, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latency {
    /// Over this rank's operations; of these, the worst rank's where that is larger.
    pub(crate) spread: Spread,
    /// This rank's times.
    pub(crate) times: Vec<f64>,
}

const MIN_ITERS: f64 = 3.0;
const MAX_ITERS: u64 = 50_000;
/// All batches together take about this long.
const ALL_BATCHES_US: f64 = 5e5;
const MIN_BATCHES: f64 = 5.0;
/// The pass that times single operations takes about this long.
const LATENCY_US: f64 = 5e4;

/// More single operations than this are not timed: each time is kept.
const MOST_SAMPLES: u64 = 100_000;

/// Measures one cell.
pub(crate) fn measure(
    subject: &mut impl Subject,
    meeting: &mut impl Meeting,
    schedule: &Schedule,
) -> Result<Timing, Stop> {
    let mut bench = Bench { subject, meeting, schedule };
    let mut wrong = bench.check()?;
    bench.subject.settle();
    for _ in 0..schedule.warmup {
        bench.subject.run()?;
    }
    let (iters, mut batches) = match schedule.count {
        Count::Fixed(iters) => (iters, vec![bench.batch(iters)?]),
        Count::Batches { batch_us, most } => bench.batches(batch_us, most)?,
    };
    batches.sort_by(f64::total_cmp);
    let median_us = batches[batches.len() / 2];
    let samples = match schedule.count {
        Count::Fixed(iters) => iters.min(MOST_SAMPLES),
        Count::Batches { batch_us, .. } => {
            (LATENCY_US.min(10.0 * batch_us) / median_us).clamp(MIN_BATCHES, 10_000.0) as u64
        }
    };
    let latency = bench.latency(samples)?;
    wrong += bench.check()?;
    Ok(Timing {
        median_us,
        min_us: batches[0],
        max_us: batches[batches.len() - 1],
        iters,
        latency,
        wrong: (schedule.checks > 0).then_some(wrong),
    })
}

struct Bench<'a, S, M> {
    subject: &'a mut S,
    meeting: &'a mut M,
    schedule: &'a Schedule,
}

impl<S: Subject, M: Meeting> Bench<'_, S, M> {
    /// Wrong elements of all ranks.
    fn check(&mut self) -> Result<u64, Stop> {
        let mut wrong = 0.0;
        for _ in 0..self.schedule.checks {
            self.subject.fill();
            self.meeting.barrier()?;
            self.subject.run()?;
            let here = self.subject.wrong() as f64;
            wrong += self.meeting.gather(here)?.iter().sum::<f64>();
        }
        Ok(wrong as u64)
    }
    /// Warms up, finds how many operations fit into a batch, and runs the batches.
    fn batches(&mut self, batch_us: f64, most: u32) -> Result<(u64, Vec<f64>), Stop> {
        let mut iters = MIN_ITERS as u64;
        // The smallest time counts: any one may hold a scheduler slice of somebody else's.
        let mut per = self.batch(iters)?;
        for _ in 0..2 {
            if per * iters as f64 >= batch_us {
                break;
            }
            per = per.min(self.batch(iters)?);
        }
        while per * (iters as f64) < batch_us / 4.0 && iters < MAX_ITERS {
            iters = MAX_ITERS.min(iters * 3);
            per = per.min(self.batch(iters)?);
        }
        let fewest = if per > 5e4 { 1.0 } else { MIN_ITERS };
        iters = (batch_us / per).clamp(fewest, MAX_ITERS as f64) as u64;
        let most = f64::from(most).max(MIN_BATCHES);
        let count = (ALL_BATCHES_US / (per * iters as f64)).clamp(MIN_BATCHES, most) as u32;
        let times = (0..count).map(|_| self.batch(iters)).collect::<Result<_, _>>()?;
        Ok((iters, times))
    }
    /// Microseconds of one operation among `iters`.
    fn batch(&mut self, iters: u64) -> Result<f64, Stop> {
        if !self.schedule.dirty {
            return self.timed(iters, S::run);
        }
        let both = self.timed(iters, |subject| {
            subject.touch();
            subject.run()
        })?;
        let touching = self.timed(iters, |subject| {
            subject.touch();
            Ok(())
        })?;
        Ok((both - touching).max(1e-3))
    }
    fn timed(&mut self, iters: u64, once: impl Fn(&mut S) -> Result<(), Stop>) -> Result<f64, Stop> {
        self.meeting.barrier()?;
        let start = self.meeting.now_us();
        for _ in 0..iters {
            once(self.subject)?;
        }
        let here = (self.meeting.now_us() - start) / iters as f64;
        let times = self.meeting.gather(here)?;
        Ok(match self.schedule.across {
            Across::Rank0 => times[0],
            Across::Average => times.iter().sum::<f64>() / times.len() as f64,
            Across::Min => times.into_iter().fold(f64::INFINITY, f64::min),
            Across::Max => times.into_iter().fold(0.0, f64::max),
        })
    }
    /// Times single operations.
    fn latency(&mut self, samples: u64) -> Result<Latency, Stop> {
        self.meeting.barrier()?;
        let mut times = Vec::with_capacity(samples as usize);
        for sample in 0..samples + self.schedule.skip {
            if self.schedule.dirty {
                self.subject.touch();
            }
            let start = self.meeting.now_us();
            self.subject.run()?;
            if sample >= self.schedule.skip {
                times.push(self.meeting.now_us() - start);
            }
        }
        let mut spread = Spread::of(&times);
        for worst in [&mut spread.p50, &mut spread.p95, &mut spread.p99, &mut spread.max] {
            *worst = self.meeting.gather(*worst)?.into_iter().fold(0.0, f64::max);
        }
        Ok(Latency { spread, times })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    /// One rank of which every operation takes `cost_us` on a clock that nothing else moves.
    struct Fake {
        clock: Rc<Cell<f64>>,
        cost_us: f64,
        touch_us: f64,
        runs: u64,
        wrong: u64,
    }

    impl Subject for Fake {
        fn run(&mut self) -> Result<(), Stop> {
            self.runs += 1;
            self.clock.set(self.clock.get() + self.cost_us);
            Ok(())
        }
        fn touch(&mut self) {
            self.clock.set(self.clock.get() + self.touch_us);
        }
        fn fill(&mut self) {}
        fn wrong(&mut self) -> u64 {
            self.wrong
        }
        fn settle(&mut self) {}
    }

    /// The other ranks take `factors` times as long as this one.
    struct FakeMeeting {
        clock: Rc<Cell<f64>>,
        factors: Vec<f64>,
        barriers: u64,
    }

    impl Meeting for FakeMeeting {
        fn barrier(&mut self) -> Result<(), Stop> {
            self.barriers += 1;
            Ok(())
        }
        fn gather(&mut self, value: f64) -> Result<Vec<f64>, Stop> {
            Ok(self.factors.iter().map(|factor| factor * value).collect())
        }
        fn now_us(&self) -> f64 {
            self.clock.get()
        }
    }

    fn schedule(count: Count) -> Schedule {
        Schedule { count, warmup: 0, across: Across::Max, dirty: false, checks: 1, skip: 0 }
    }

    const BATCHES: Count = Count::Batches { batch_us: 5000.0, most: 31 };

    fn measured(cost_us: f64, wrong: u64, factors: &[f64], schedule: &Schedule) -> (Timing, u64) {
        let clock = Rc::new(Cell::new(0.0));
        let mut subject = Fake { clock: clock.clone(), cost_us, touch_us: 0.25, runs: 0, wrong };
        let mut meeting = FakeMeeting { clock, factors: factors.to_vec(), barriers: 0 };
        let timing = measure(&mut subject, &mut meeting, schedule).unwrap();
        (timing, subject.runs)
    }

    #[test]
    fn a_batch_takes_the_time_it_should() {
        let (timing, runs) = measured(2.0, 0, &[1.0], &schedule(BATCHES));
        assert_eq!((timing.iters, timing.median_us, timing.wrong), (2500, 2.0, Some(0)));
        // Two checks; 3 x 3, then 9, 27, 81, 243 and 729 to warm up; 31 batches; 25,000 us of single operations.
        assert_eq!(runs, 2 + 9 + 9 + 27 + 81 + 243 + 729 + 31 * 2500 + 10_000);
    }

    #[test]
    fn slow_operations_get_few_iterations_and_at_least_five_batches() {
        let (timing, runs) = measured(60_000.0, 0, &[1.0], &schedule(BATCHES));
        assert_eq!(timing.iters, 1);
        assert_eq!(runs, 2 + 3 + 8 + 5);
        let (timing, _) = measured(4000.0, 0, &[1.0], &schedule(BATCHES));
        assert_eq!(timing.iters, 3);
    }

    #[test]
    fn the_fastest_operations_stop_at_the_most_iterations() {
        let (timing, _) = measured(0.001, 0, &[1.0], &schedule(BATCHES));
        assert_eq!(timing.iters, 50_000);
    }

    #[test]
    fn ranks_are_joined_as_asked() {
        for (across, want) in
            [(Across::Rank0, 2.0), (Across::Average, 3.0), (Across::Min, 1.0), (Across::Max, 6.0)]
        {
            let schedule = Schedule { across, ..schedule(Count::Fixed(10)) };
            let (timing, _) = measured(2.0, 0, &[1.0, 0.5, 3.0], &schedule);
            assert_eq!(timing.median_us, want, "{across:?}");
        }
    }

    #[test]
    fn a_fixed_number_is_one_batch() {
        let fixed = Schedule { warmup: 4, ..schedule(Count::Fixed(20)) };
        let (timing, runs) = measured(2.0, 0, &[1.0], &fixed);
        assert_eq!((timing.iters, timing.latency.times.len()), (20, 20));
        assert_eq!(runs, 1 + 4 + 20 + 20 + 1);
    }

    #[test]
    fn what_touching_costs_is_taken_off() {
        let dirty = Schedule { dirty: true, ..schedule(Count::Fixed(10)) };
        let (timing, _) = measured(2.0, 0, &[1.0], &dirty);
        assert_eq!(timing.median_us, 2.0);
        assert_eq!(timing.latency.spread.p99, 2.0);
    }

    #[test]
    fn wrong_elements_of_all_ranks_and_both_checks_are_counted() {
        let (timing, _) = measured(2.0, 5, &[1.0, 1.0, 0.0], &schedule(Count::Fixed(1)));
        assert_eq!(timing.wrong, Some(20));
        let unchecked = Schedule { checks: 0, ..schedule(Count::Fixed(1)) };
        assert_eq!(measured(2.0, 5, &[1.0], &unchecked).0.wrong, None);
    }

    #[test]
    fn the_first_single_operations_are_skipped() {
        let skipping = Schedule { skip: 3, ..schedule(Count::Fixed(10)) };
        let (timing, runs) = measured(2.0, 0, &[1.0], &skipping);
        assert_eq!((timing.latency.times.len(), runs), (10, 1 + 10 + 13 + 1));
    }
}
