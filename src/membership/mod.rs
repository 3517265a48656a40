//! Who of the job is still there: spreads what was learned, and tells evidence from causes.
//!
//! A state machine without input or output: the watcher feeds it what happens together with the time, and carries out the
//! actions that it asks for. It never reads a clock.
//!
//! * Every rank keeps control links to the ranks at distance 2^k on both sides, counted among those that have not left.
//!   News spread over all links, each piece once per rank.
//! * A closed link is *evidence*: the peer's listener is tried again. A *cause* is the end of a process (seen by its host,
//!   or its listener refuses), silence that its host cannot explain, or what the origin itself declared. Of what fails the
//!   same communicator, or is the fault of the same rank, a rank reports and passes on what it learned first.
//! * A rank that leaves says so on every link before it closes them. Its process may end afterwards. Those who see the
//!   end before they hear the goodbye, which may come a longer way, give it a short grace. While others leave too, an end
//!   that fits a goodbye counts as one: whoever still waits for that rank learns that it left.
//! * A process that is stopped, by a signal or a debugger, is never a cause of death; nor is silence while this process
//!   was stopped itself.

#[cfg(test)]
mod simulation;

use crate::{
    error::{Cause, Failure},
    plan::Rank,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a goodbye may take to arrive after its process was seen to end: by an end that a process which has left would
/// hardly take, and by one that it might.
const GRACE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(500));
/// How long a refused connection waits for those who can see how the process ended.
const BETTER_KNOWLEDGE: Duration = Duration::from_millis(50);
/// A link that was open for this long would have carried its peer's goodbye; a younger one may have come too late for it.
const TRUSTED: Duration = Duration::from_millis(500);
/// How long after a departure an end of the second kind counts as another one: when many leave together, those who would
/// pass a goodbye on may be gone before it reaches them. Covers two courtesies, a refused call and its grace.
const DEPARTURES: Duration = Duration::from_secs(4);
/// How long the rank that should connect has before the other one does it. Also how long after a departure the links are
/// completed anew: when all leave together, nobody needs new ones.
const COURTESY: Duration = Duration::from_secs(1);
/// How soon a peer that can neither be reached nor refuses is tried again.
const REDIAL: Duration = Duration::from_millis(100);

/// Something that everybody has to know.
#[derive(Clone, Debug)]
pub enum News {
    /// The job has failed.
    Failed(Arc<Failure>),
    /// A rank left of its own will, having failed nobody.
    Left(Rank),
}

/// What can be seen of a process from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It runs or sleeps.
    Running,
    /// It is stopped by a signal or a debugger.
    Stopped,
    /// There is no such process any more.
    Gone,
    /// It cannot be seen from here.
    Hidden,
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Connect to a rank, trying once.
    Dial(Rank),
    /// Tell a linked rank.
    Send { to: Rank, news: News },
    /// Tell a linked rank that this one is there.
    Heartbeat(Rank),
    /// Look at a rank's process, or have somebody on its host look; the answer is `handle_sight`.
    Examine(Rank),
    /// Tell the engine. At most once per communicator and culprit.
    Failed(Arc<Failure>),
    /// Tell the engine. At most once per rank.
    Left(Rank),
}

/// The two periods that can be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Between two heartbeats on a link.
    pub(crate) heartbeat: Duration,
    /// Silence on a link after which its peer is examined.
    pub(crate) suspicion: Duration,
}

#[derive(Debug)]
pub(crate) struct Membership {
    me: Rank,
    nranks: u32,
    pace: Pace,
    links: BTreeMap<Rank, Link>,
    left: BTreeSet<Rank>,
    /// Known to be dead.
    dead: BTreeSet<Rank>,
    /// Causes that wait for a goodbye to overtake them.
    condemned: BTreeMap<Rank, Sentence>,
    last_departure: Option<Instant>,
    /// What has failed and whose fault it was; the latter only where all communicators of that rank have failed.
    failures: BTreeMap<(Option<u64>, Option<Rank>), Arc<Failure>>,
    leaving: bool,
    repair: Option<Instant>,
    last_turn: Instant,
    actions: VecDeque<Action>,
}

/// A cause that becomes a failure then, unless a goodbye comes.
#[derive(Debug)]
struct Sentence {
    due: Instant,
    cause: Cause,
    /// It may be the end of a rank that has left.
    doubtful: bool,
}

/// A link that is there, or that should be.
#[derive(Debug)]
struct Link {
    phase: Phase,
    /// Last sign of life, or when the wait for one began.
    heard: Instant,
    beat: Instant,
    /// Somebody was asked to look at the silent peer.
    examining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The peer should connect, until then.
    Expected(Instant),
    /// This rank is connecting; `lost`: there was a link before that would have carried a goodbye, and closed without one.
    Dialling {
        lost: bool,
    },
    /// To be dialled again then.
    Pausing {
        until: Instant,
        lost: bool,
    },
    Up {
        since: Instant,
    },
}

impl Membership {
    pub(crate) fn new(me: Rank, nranks: u32, pace: Pace, now: Instant) -> Self {
        let mut this = Self {
            me,
            nranks,
            pace,
            links: BTreeMap::new(),
            left: BTreeSet::new(),
            dead: BTreeSet::new(),
            condemned: BTreeMap::new(),
            last_departure: None,
            failures: BTreeMap::new(),
            leaving: false,
            repair: None,
            last_turn: now,
            actions: VecDeque::new(),
        };
        this.complete_links(now);
        this
    }
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
    /// It left or is dead.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        self.left.contains(&rank) || self.dead.contains(&rank)
    }
    /// Every rank that should know of this one's leaving has a link over which it is told.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.values().all(|link| matches!(link.phase, Phase::Up { .. }))
    }

    /// A link is open for messages, whoever opened it.
    pub(crate) fn handle_link_up(&mut self, rank: Rank, now: Instant) {
        if self.is_gone(rank) {
            return;
        }
        let beat = now + self.pace.heartbeat;
        self.links.insert(rank, Link { phase: Phase::Up { since: now }, heard: now, beat, examining: false });
        let failed = self.failures.values().cloned().map(News::Failed);
        let own = self.leaving.then_some(News::Left(self.me));
        let known: Vec<News> =
            failed.chain(self.left.iter().map(|&rank| News::Left(rank))).chain(own).collect();
        self.actions.extend(known.into_iter().map(|news| Action::Send { to: rank, news }));
    }
    /// The last link to a rank closed or broke.
    pub(crate) fn handle_link_down(&mut self, rank: Rank, now: Instant) {
        if self.is_gone(rank) || self.leaving {
            self.links.remove(&rank);
            return;
        }
        let Some(link) = self.links.get_mut(&rank) else { return };
        let lost = matches!(link.phase, Phase::Up { since } if now.duration_since(since) >= TRUSTED);
        link.phase = Phase::Dialling { lost };
        match self.condemned.remove(&rank) {
            Some(sentence) if lost => self.fail(sentence.cause, now),
            Some(sentence) => drop(self.condemned.insert(rank, sentence)),
            None => self.actions.push_back(Action::Dial(rank)),
        }
    }
    /// Dialling came to nothing. `refused`: the peer's host is there and says that nobody listens any more.
    pub(crate) fn handle_dial_failed(&mut self, rank: Rank, refused: bool, now: Instant) {
        let Some(link) = self.links.get_mut(&rank) else { return };
        let Phase::Dialling { lost } = link.phase else { return };
        if self.leaving {
            self.links.remove(&rank);
            return;
        }
        link.phase = Phase::Pausing { until: now + REDIAL, lost };
        if refused {
            let how = "its host refuses connections to it: its process has ended".to_owned();
            let grace = if lost { BETTER_KNOWLEDGE } else { GRACE.1 };
            self.condemn(rank, Cause::ProcessEnded { rank, how }, !lost, now + grace);
        }
    }
    /// A sign of life came over a link.
    pub(crate) fn handle_heard(&mut self, rank: Rank, now: Instant) {
        if let Some(link) = self.links.get_mut(&rank) {
            link.heard = now;
        }
    }
    /// The end of a process was seen. `doubtful`: a rank that has left may end like this.
    pub(crate) fn handle_process_end(&mut self, rank: Rank, how: String, doubtful: bool, now: Instant) {
        let silenced = self.links.get(&rank).is_some_and(|link| {
            matches!(link.phase, Phase::Dialling { lost: true } | Phase::Pausing { lost: true, .. })
        });
        let cause = Cause::ProcessEnded { rank, how };
        if silenced {
            self.fail(cause, now);
        } else {
            let grace = if doubtful { GRACE.1 } else { GRACE.0 };
            self.condemn(rank, cause, doubtful, now + grace);
        }
    }
    /// The answer to [`Action::Examine`].
    pub(crate) fn handle_sight(&mut self, rank: Rank, sight: Sight, now: Instant) {
        let Some(link) = self.links.get_mut(&rank) else { return };
        if !std::mem::take(&mut link.examining) {
            return;
        }
        let silence = now.duration_since(link.heard);
        match sight {
            // It is looked at again after the same time.
            Sight::Stopped => link.heard = now,
            // What it said came while somebody looked.
            _ if silence < self.pace.suspicion => {}
            Sight::Gone => {
                let how = "its host does not see its process any more".to_owned();
                self.fail(Cause::ProcessEnded { rank, how }, now);
            }
            Sight::Running | Sight::Hidden => self.fail(Cause::Silent { rank, silence }, now),
        }
    }
    /// News came over the link of `from`.
    pub(crate) fn handle_news(&mut self, from: Rank, news: News, now: Instant) {
        match news {
            News::Failed(failure) => self.learn(failure, Some(from), now),
            News::Left(rank) => self.depart(rank, Some(from), now),
        }
    }
    /// This rank declares that something has failed.
    pub(crate) fn declare(&mut self, failure: Failure, now: Instant) {
        self.learn(Arc::new(failure), None, now);
    }
    /// This rank leaves: it says goodbye to everybody, and nothing is a failure to it any more.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.condemned.clear();
        self.spread(&News::Left(self.me), None);
    }
    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let links = self.links.values().flat_map(|link| {
            let silent = (!link.examining && !self.leaving).then_some(link.heard + self.pace.suspicion);
            let phase = match link.phase {
                Phase::Up { .. } => Some(link.beat),
                Phase::Expected(until) | Phase::Pausing { until, .. } => Some(until),
                Phase::Dialling { .. } => None,
            };
            silent.into_iter().chain(phase)
        });
        links.chain(self.condemned.values().map(|sentence| sentence.due)).chain(self.repair).min()
    }
    /// To be called after everything that had arrived by `now` was handled.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.forgive_own_absence(now);
        if self.repair.is_some_and(|due| due <= now) {
            self.repair = None;
            self.complete_links(now);
        }
        while let Some(rank) = self.condemned.iter().find(|(_, s)| s.due <= now).map(|(rank, _)| *rank) {
            self.carry_out_sentence(rank, now);
        }
        let judging = !self.leaving;
        for (&rank, link) in &mut self.links {
            match link.phase {
                Phase::Up { .. } if link.beat <= now => {
                    link.beat = now + self.pace.heartbeat;
                    self.actions.push_back(Action::Heartbeat(rank));
                }
                Phase::Expected(until) if until <= now => {
                    link.phase = Phase::Dialling { lost: false };
                    self.actions.push_back(Action::Dial(rank));
                }
                Phase::Pausing { until, lost } if until <= now => {
                    link.phase = Phase::Dialling { lost };
                    self.actions.push_back(Action::Dial(rank));
                }
                _ => {}
            }
            if judging && !link.examining && link.heard + self.pace.suspicion <= now {
                link.examining = true;
                self.actions.push_back(Action::Examine(rank));
            }
        }
    }

    /// Somebody who was stopped, or whose host was, has heard nobody in that time and must not blame them.
    fn forgive_own_absence(&mut self, now: Instant) {
        let due = self.next_timeout().map_or(now, |due| due.max(self.last_turn));
        if now.saturating_duration_since(due) > self.pace.suspicion / 4 {
            for link in self.links.values_mut() {
                link.heard = now;
            }
        }
        self.last_turn = now;
    }

    fn condemn(&mut self, rank: Rank, cause: Cause, doubtful: bool, due: Instant) {
        if self.is_gone(rank) || self.leaving {
            return;
        }
        if self.condemned.get(&rank).is_none_or(|earlier| earlier.doubtful && !doubtful) {
            self.condemned.insert(rank, Sentence { due, cause, doubtful });
        }
    }

    fn carry_out_sentence(&mut self, rank: Rank, now: Instant) {
        let Some(sentence) = self.condemned.remove(&rank) else { return };
        let departing = self.last_departure.is_some_and(|last| now.duration_since(last) < DEPARTURES);
        if sentence.doubtful && departing {
            self.depart(rank, None, now);
        } else {
            self.fail(sentence.cause, now);
        }
    }

    fn fail(&mut self, cause: Cause, now: Instant) {
        if !self.leaving {
            let failure = Failure { origin: self.me, comm: None, cause, waiting: None, agreed: false };
            self.learn(Arc::new(failure), None, now);
        }
    }

    fn learn(&mut self, failure: Arc<Failure>, from: Option<Rank>, now: Instant) {
        let culprit = if failure.comm.is_none() { failure.culprit() } else { None };
        let key = (failure.comm, culprit);
        if self.failures.contains_key(&key) {
            return;
        }
        if let Cause::ProcessEnded { rank, .. } | Cause::Silent { rank, .. } = &failure.cause {
            self.bury(*rank, now);
        }
        self.spread(&News::Failed(failure.clone()), from);
        self.failures.insert(key, failure.clone());
        if !self.leaving {
            self.actions.push_back(Action::Failed(failure));
        }
    }

    fn bury(&mut self, rank: Rank, now: Instant) {
        self.dead.insert(rank);
        self.condemned.remove(&rank);
        self.links.remove(&rank);
        self.repair.get_or_insert(now + COURTESY);
    }

    fn depart(&mut self, rank: Rank, from: Option<Rank>, now: Instant) {
        if rank == self.me || rank >= self.nranks || !self.left.insert(rank) {
            return;
        }
        self.condemned.remove(&rank);
        self.links.remove(&rank);
        self.repair.get_or_insert(now + COURTESY);
        self.spread(&News::Left(rank), from);
        self.last_departure = Some(now);
        if !self.leaving {
            self.actions.push_back(Action::Left(rank));
        }
    }

    fn spread(&mut self, news: &News, except: Option<Rank>) {
        for (&to, link) in &self.links {
            if matches!(link.phase, Phase::Up { .. }) && Some(to) != except {
                self.actions.push_back(Action::Send { to, news: news.clone() });
            }
        }
    }

    /// Sees to it that there is a link to every rank at distance 2^k among those that have not left.
    fn complete_links(&mut self, now: Instant) {
        if self.leaving {
            return;
        }
        let beat = now + self.pace.heartbeat;
        for rank in self.neighbours() {
            if self.links.contains_key(&rank) {
                continue;
            }
            let phase = if self.me < rank {
                self.actions.push_back(Action::Dial(rank));
                Phase::Dialling { lost: false }
            } else {
                Phase::Expected(now + COURTESY)
            };
            self.links.insert(rank, Link { phase, heard: now, beat, examining: false });
        }
    }

    fn neighbours(&self) -> BTreeSet<Rank> {
        let present: Vec<Rank> = (0..self.nranks).filter(|rank| !self.is_gone(*rank)).collect();
        let Ok(position) = present.binary_search(&self.me) else { return BTreeSet::new() };
        let n = present.len();
        let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
        distances
            .take_while(|&distance| distance < n)
            .flat_map(|distance| [(position + distance) % n, (position + n - distance) % n])
            .map(|position| present[position])
            .filter(|&rank| rank != self.me)
            .collect()
    }
}
