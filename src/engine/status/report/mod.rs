//! What `rondel status` says about a job: who is where, who waits for whom, and who is to blame.
//!
//! Pure: from what the pages said and what the host says of the processes to text. [`JobReport::findings`] has the
//! conclusions as data.

mod text;

use super::{Listing, ProcessState, Status, WaitingFor};
use crate::{
    engine::call::Call,
    plan::{Collective, Rank},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One process of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// Rank within the job.
    pub rank: Rank,
    /// Process.
    pub pid: u32,
    /// Whether it runs.
    pub state: ProcessState,
    /// Its communicators.
    pub statuses: Vec<Status>,
}

/// One job, as far as it is on this host.
#[derive(Clone, Debug, PartialEq)]
pub struct JobReport {
    /// Identifies the job.
    pub job: u64,
    /// Ranks of the job, on all hosts.
    pub nranks: u32,
    /// Those that show a page here.
    pub ranks: Vec<RankReport>,
    /// When they were read, by [`monotonic_now`](super::monotonic_now).
    pub now: Duration,
}

/// A conclusion about one communicator. Ranks are the communicator's.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// Ranks called different things under the same number: the first such number.
    Mismatch {
        /// The fewer.
        ranks: Vec<Rank>,
        /// What they called.
        call: Call,
        /// The more.
        others: Vec<Rank>,
        /// What those called.
        others_call: Call,
    },
    /// A rank that others wait for, and that waits for nobody itself.
    Awaited {
        /// Who.
        rank: Rank,
        /// What is known of it.
        standing: Standing,
        /// Its own call that others wait for; `None` if they have forgotten what they called.
        call: Option<Call>,
        /// Who waits for it, also by way of others.
        waiters: Vec<Rank>,
        /// How long the first of them has waited.
        longest: Duration,
    },
    /// Ranks that wait for each other. In a plan without mistakes that is a message on its way.
    Cycle {
        /// In the order of waiting, each with what it waits in, if it remembers.
        ranks: Vec<(Rank, Option<Call>)>,
        /// Others that wait for one of them.
        waiters: Vec<Rank>,
    },
}

/// Where a rank stands that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It has not entered the call.
    NotEntered(ProcessState),
    /// It is in the call, or nobody knows which call it is.
    Inside(ProcessState),
    /// It has completed the call.
    Completed(ProcessState),
    /// It shows no page of this communicator on this host.
    Unknown,
}

impl JobReport {
    /// A report of each job that was found, read now.
    pub fn of(listing: &Listing) -> Vec<Self> {
        let mut jobs = BTreeMap::new();
        for process in &listing.processes {
            let owner = process.view.owner();
            let job = jobs.entry(owner.job).or_insert_with(|| JobReport {
                job: owner.job,
                nranks: owner.nranks,
                ranks: Vec::new(),
                now: Duration::ZERO,
            });
            job.ranks.push(RankReport {
                rank: owner.rank,
                pid: process.pid,
                state: process.state(),
                statuses: process.view.read_all(),
            });
            job.now = super::monotonic_now();
        }
        jobs.into_values().collect()
    }

    /// The conclusions, by communicator.
    pub fn findings(&self) -> BTreeMap<u64, Vec<Finding>> {
        let analyse = |(comm, members): (_, Members<'_>)| {
            let mut findings = members.mismatches();
            findings.extend(members.culprits(self.now));
            (comm, findings)
        };
        self.communicators().into_iter().map(analyse).collect()
    }

    fn communicators(&self) -> BTreeMap<u64, Members<'_>> {
        let mut communicators = BTreeMap::<_, Members<'_>>::new();
        for owner in &self.ranks {
            for status in &owner.statuses {
                communicators.entry(status.comm).or_default().0.insert(status.rank, (owner, status));
            }
        }
        communicators
    }
}

/// The ranks of one communicator that show a page here.
#[derive(Default)]
struct Members<'a>(BTreeMap<Rank, (&'a RankReport, &'a Status)>);

/// Where a chain of ranks ends each of which waits for the next.
enum End {
    /// At a rank that does not wait itself, with its own call that is waited for.
    Rank(Rank, Standing, Option<Call>),
    /// In itself.
    Cycle(Vec<(Rank, Option<Call>)>),
}

/// A rank that waits, and whom it waits for.
struct Link {
    waiter: Rank,
    peer: Rank,
    /// What the waiter waits in.
    call: Option<Call>,
}

impl Members<'_> {
    /// The first number under which not all called the same. What follows it is out of step anyway.
    fn mismatches(&self) -> Vec<Finding> {
        let mut calls = BTreeMap::<u64, BTreeMap<u64, (Call, Vec<Rank>)>>::new();
        for (rank, (_, status)) in &self.0 {
            let own: BTreeMap<_, _> = status
                .recent
                .iter()
                .chain(&status.entered)
                .filter(|c| is_collective(c))
                .map(|c| (c.seq, c))
                .collect();
            for (seq, call) in own {
                let same = calls.entry(seq).or_default().entry(call.stamp(0)).or_insert((*call, Vec::new()));
                same.1.push(*rank);
            }
        }
        let Some(mut camps) = calls.into_values().find(|camps| camps.len() > 1).map(Vec::from_iter) else {
            return Vec::new();
        };
        // The largest camp first, of equal ones the one with the lowest rank.
        camps.sort_by_key(|(_, (_, ranks))| (usize::MAX - ranks.len(), ranks[0]));
        let (_, (others_call, others)) = camps.remove(0);
        let against =
            |(_, (call, ranks))| Finding::Mismatch { ranks, call, others: others.clone(), others_call };
        camps.into_iter().map(against).collect()
    }

    /// Follows every waiter to the end of its chain: a rank that does not wait, or a cycle.
    fn culprits(&self, now: Duration) -> Vec<Finding> {
        let mut awaited = BTreeMap::new();
        let mut cycles = BTreeMap::new();
        for (&rank, (_, status)) in &self.0 {
            let Some(waiting) = &status.waiting else { continue };
            match self.end_of_chain(link(status, waiting)) {
                // A rank that is stopped or dead may be found to hold up itself, by way of others.
                End::Rank(culprit, ..) if culprit == rank => {}
                End::Rank(culprit, standing, call) => {
                    let same_call = call.map(|call| (call.seq, call.collective, call.root));
                    let (_, waiters, longest) = awaited.entry((culprit, standing, same_call)).or_insert((
                        call,
                        Vec::new(),
                        Duration::ZERO,
                    ));
                    waiters.push(rank);
                    *longest = now.saturating_sub(waiting.since).max(*longest);
                }
                End::Cycle(ranks) => {
                    let members: BTreeSet<_> = ranks.iter().map(|(rank, _)| *rank).collect();
                    let is_outside = !members.contains(&rank);
                    let (_, waiters) = cycles.entry(members).or_insert((ranks, Vec::new()));
                    waiters.extend(is_outside.then_some(rank));
                }
            }
        }
        let awaited = awaited.into_iter().map(|((rank, standing, _), (call, waiters, longest))| {
            Finding::Awaited { rank, standing, call, waiters, longest }
        });
        let cycles = cycles.into_values().map(|(ranks, waiters)| Finding::Cycle { ranks, waiters });
        awaited.chain(cycles).collect()
    }

    fn end_of_chain(&self, mut link: Link) -> End {
        let mut chain = vec![(link.waiter, link.call)];
        loop {
            let standing = self.standing(&link);
            // One that has completed the call waits for something else, and is not held up in this one.
            let held_up = match standing {
                Standing::NotEntered(ProcessState::Running) | Standing::Inside(ProcessState::Running) => {
                    self.0.get(&link.peer).and_then(|(_, peer)| Some((peer, peer.waiting.as_ref()?)))
                }
                _ => None,
            };
            let Some((peer, waiting)) = held_up else {
                return End::Rank(link.peer, standing, link.call.map(|call| counterpart(&call, link.waiter)));
            };
            if let Some(start) = chain.iter().position(|(seen, _)| *seen == link.peer) {
                return End::Cycle(chain.split_off(start));
            }
            link = self::link(peer, waiting);
            chain.push((link.waiter, link.call));
        }
    }

    fn standing(&self, link: &Link) -> Standing {
        let Some((owner, peer)) = self.0.get(&link.peer) else { return Standing::Unknown };
        match &link.call {
            None => Standing::Inside(owner.state),
            Some(call) if is_collective(call) => match peer.entered.map_or(0, |call| call.seq) {
                entered if entered < call.seq => Standing::NotEntered(owner.state),
                _ if peer.completed < call.seq => Standing::Inside(owner.state),
                _ => Standing::Completed(owner.state),
            },
            Some(call) => {
                let wanted = counterpart(call, link.waiter);
                let meets = |own: &Call| own.collective == wanted.collective && own.root == wanted.root;
                match peer.recent.iter().any(|own| meets(own) && own.seq >= wanted.seq) {
                    true => Standing::Inside(owner.state),
                    false => Standing::NotEntered(owner.state),
                }
            }
        }
    }
}

/// Whom a rank waits for and in what. A number that could be that of a collective or of a send is the collective's, while
/// that is not complete.
fn link(status: &Status, waiting: &WaitingFor) -> Link {
    let is_of_collective =
        status.completed < waiting.seq && status.entered.is_some_and(|entered| waiting.seq <= entered.seq);
    let is_meant = |call: &&Call| {
        call.seq == waiting.seq
            && if is_of_collective {
                is_collective(call)
            } else {
                !is_collective(call) && call.root == waiting.peer
            }
    };
    let call = status.recent.iter().rev().chain(&status.entered).find(is_meant).copied();
    Link { waiter: status.rank, peer: waiting.peer, call }
}

/// What `waiter`'s peer has to call to meet this call.
fn counterpart(call: &Call, waiter: Rank) -> Call {
    match call.collective {
        Collective::Send => Call { collective: Collective::Recv, root: waiter, ..*call },
        Collective::Recv => Call { collective: Collective::Send, root: waiter, ..*call },
        _ => *call,
    }
}

fn is_collective(call: &Call) -> bool {
    !call.collective.is_point_to_point()
}
