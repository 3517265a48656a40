//! What a waiting engine notices, and how operations fail.
//!
//! A lane that breaks is evidence, not a cause: the engine gives the watchers a moment to tell what happened before it
//! blames the lane. A stamp that differs is asked about, so that both calls can be named.

use super::{
    Command, Engine, Operation, OperationId,
    call::Call,
    lane::Phase,
    prepare::Run,
    status::{WaitingFor, monotonic_now},
};
use crate::{
    bootstrap::{Answer, Asked, Liveness, explained, is_exhausted},
    error::{Cause, Error, Failure, Ranks, Waiting},
    plan::{Collective, Lane, LaneIndex, Op, Rank},
};
use rondel_transport_api::TransportError;
use std::{sync::Arc, time::Duration};

/// Communicators up to this size are asked in whole when the direct peers of a stalled rank are not to blame.
const ASK_ALL: usize = 256;
/// How long an answer about a mismatch is waited for. Shorter than the grace of the lane, which broke with it at both ends.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What is known about an operation that takes long.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    started: Duration,
    moved: Duration,
    asked: Option<Duration>,
    asked_all: bool,
    warned: bool,
    published: bool,
    answers: Vec<Answer>,
    mismatch: Option<Suspicion>,
}

/// A message of another call came from a peer, which is asked what it called.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    peer: Rank,
    since: Duration,
    /// The number that it was asked about last.
    seq: u64,
}

/// The lanes to a peer of a communicator have ended, or will: known until it is clear that they are needed.
#[derive(Debug)]
pub(crate) struct LostLane {
    pub(crate) comm: usize,
    peer: Rank,
    /// `None`: the peer said goodbye.
    error: Option<TransportError>,
    since: Duration,
}

impl Vigil {
    pub(crate) fn new(now: Duration) -> Self {
        Vigil { started: now, moved: now, ..Vigil::default() }
    }
    /// Whether the status page says what it waits for.
    pub(crate) fn is_published(&self) -> bool {
        self.published
    }
    /// Something of the operation was finished.
    pub(crate) fn progress(&mut self, now: Duration) {
        self.moved = now;
        self.asked = None;
        self.asked_all = false;
    }
}

impl Engine {
    /// Looks after operations that wait. Call it now and then while nothing moves.
    pub fn keep_vigil(&mut self, now: Duration) {
        self.now = now;
        self.judge_lost_lanes();
        for slot in 0..self.operations.len() {
            let Some(operation) = self.operations[slot].as_ref().filter(|o| o.outcome.is_none()) else {
                continue;
            };
            let id = OperationId { slot: slot as u32, generation: operation.generation };
            let (vigil, deadline) = (&operation.vigil, operation.deadline);
            let idle = now.saturating_sub(vigil.moved);
            // Answers, and those to the questions that they lead to, are to come before the deadline.
            let stall_after = self.config.stall_after.min(deadline.saturating_sub(vigil.started) / 3);
            let asked_for = vigil.asked.map(|at| now.saturating_sub(at));
            if let Some(Suspicion { peer, since, .. }) = vigil.mismatch {
                if now.saturating_sub(since) > ANSWER_WITHIN {
                    self.fail_mismatch(id, operation.submission.call, peer, None);
                }
            } else if now >= deadline {
                self.fail_deadline(id);
            } else if idle >= stall_after {
                let (asked_all, warned) = (vigil.asked_all, vigil.warned);
                match asked_for {
                    None => self.ask(id, false),
                    Some(ago) if !asked_all && (ago > stall_after || self.peers_wait_too(id)) => {
                        self.ask(id, true);
                    }
                    Some(ago) if ago > self.config.warn_after => self.ask(id, asked_all),
                    Some(_) => {}
                }
                if idle >= self.config.warn_after && !warned {
                    self.warn(id);
                }
            }
        }
    }

    /// Ends communicators that lost a lane, where nobody named a cause in time. A peer that said goodbye is missed only by
    /// operations that need it.
    fn judge_lost_lanes(&mut self) {
        let (now, grace) = (self.now, self.config.grace);
        let lost = std::mem::take(&mut self.lost);
        for lane in lost {
            let LostLane { comm, peer, .. } = lane;
            if self.comms[comm].failure.is_some() || self.comms[comm].closed {
                continue;
            }
            // Who is not needed now may be needed later.
            if now.saturating_sub(lane.since) < grace || !self.needs(comm, peer) {
                self.lost.push(lane);
                continue;
            }
            let cause = match lane.error {
                Some(TransportError::Io { source, .. }) if is_exhausted(&source) => {
                    let rank = self.comms[comm].spec.rank;
                    let what = format!("rank {rank} cannot connect to rank {peer}: {}", explained(&source));
                    Cause::Reported { rank, what }
                }
                Some(error) => Cause::LaneLost { peer, error },
                None => Cause::Left { rank: peer },
            };
            self.fail(comm, cause, true);
        }
    }

    /// Whether an unfinished operation waits for a lane to this peer that does not stand. While a lane stands, it delivers
    /// what its peer left behind.
    fn needs(&self, comm: usize, peer: Rank) -> bool {
        let gone = |lane: u32| {
            let lane = &self.lanes[lane as usize];
            lane.peer == peer && lane.phase != Phase::Ready
        };
        let run_needs = |run: &Run| {
            let unposted =
                run.lanes.iter().enumerate().any(|(index, &lane)| {
                    gone(lane) && !run.execution.has_posted_all(LaneIndex(index as u32))
                });
            unposted
                || run.execution.waiting_for().any(|action| {
                    let lanes = run.plan.step_lanes(action.step);
                    lanes.iter().any(|index| gone(run.lanes[index.0 as usize]))
                })
        };
        let has_more_rounds = |operation: &Operation| {
            let prepared = self.prepared[operation.prepared as usize].as_ref();
            prepared.is_some_and(|prepared| {
                prepared.lanes.iter().enumerate().any(|(channel, lanes)| {
                    operation.next_round[channel] < prepared.partition.rounds()
                        && lanes.iter().any(|&lane| gone(lane))
                })
            })
        };
        let unfinished = |operation: &&Operation| operation.comm == comm && operation.outcome.is_none();
        self.runs.iter().flatten().any(|run| run.comm == comm && run_needs(run))
            || self.operations.iter().flatten().filter(unfinished).any(has_more_rounds)
    }

    /// Asks those whom an operation waits for (or everybody) what they are doing.
    fn ask(&mut self, id: OperationId, everybody: bool) {
        let now = self.now;
        let Some(operation) = self.operation(id) else { return };
        let (comm, seq) = (operation.comm, operation.submission.call.seq);
        let spec = &self.comms[comm].spec;
        let peers = if everybody && spec.members.len() <= ASK_ALL {
            (0..spec.members.len() as Rank).filter(|&rank| rank != spec.rank).collect()
        } else {
            self.waits_for(id).0
        };
        let (comm_id, members) = (spec.id, spec.members.clone());
        for peer in peers {
            let asked = Asked::collective(comm_id, seq);
            self.commands.push(Command::Inquire { about: members[peer as usize], asked });
        }
        self.publish_waiting(id);
        if let Some(operation) = self.operation_mut(id) {
            operation.vigil.asked = Some(now);
            operation.vigil.published = true;
            operation.vigil.asked_all |= everybody;
        }
    }

    /// All whom an operation waits for have said that they are in the same call: somebody else is to blame.
    fn peers_wait_too(&self, id: OperationId) -> bool {
        let Some(operation) = self.operation(id) else { return false };
        let (members, seq) = (&self.comms[operation.comm].spec.members, operation.submission.call.seq);
        let waits = |peer: Rank| {
            let about = members[peer as usize];
            let mut answers = operation.vigil.answers.iter().filter(|answer| answer.about == about);
            answers.any(|answer| answer.liveness == Liveness::Alive && answer.entered >= seq)
        };
        self.waits_for(id).0.into_iter().all(waits)
    }

    fn publish_waiting(&self, id: OperationId) {
        let Some(operation) = self.operation(id) else { return };
        let (Some(page), Some(slot)) = (&self.page, self.comms[operation.comm].slot) else { return };
        let (peers, first) = self.waits_for(id);
        if let (Some(&peer), Some((step, receiving))) = (peers.first(), first) {
            page.waiting(
                slot,
                Some(WaitingFor {
                    seq: operation.submission.call.seq,
                    step,
                    peer,
                    receiving,
                    since: monotonic_now().saturating_sub(self.now.saturating_sub(operation.vigil.moved)),
                }),
            );
        }
    }

    /// The peers whom an operation waits for, and the first step that does.
    fn waits_for(&self, id: OperationId) -> (Vec<Rank>, Option<(u32, bool)>) {
        let mut peers = Vec::new();
        let mut first = None;
        let mut add = |(step, lane): (u32, Lane)| {
            first = first.or(Some((step, matches!(lane, Lane::Recv(_)))));
            if !peers.contains(&lane.peer()) {
                peers.push(lane.peer());
            }
        };
        for run in self.runs.iter().flatten().filter(|run| run.operation == id) {
            run.execution.waiting_for().flat_map(|action| lanes_of(run, action.step)).for_each(&mut add);
        }
        // A lane that does not stand yet, or no more, refuses.
        for &(run, step) in &self.refused {
            if let Some(run) = self.runs[run.0 as usize].as_ref().filter(|run| run.operation == id) {
                lanes_of(run, step).for_each(&mut add);
            }
        }
        (peers, first)
    }

    /// What an operation waits for, in words.
    fn waiting(&self, id: OperationId) -> Option<Waiting> {
        let operation = self.operation(id)?;
        let (peers, first) = self.waits_for(id);
        let run = self.runs.iter().flatten().find(|run| run.operation == id);
        let step = match (run, first) {
            (Some(run), Some((step, _))) => describe(run, step),
            _ => "not started".to_owned(),
        };
        let spec = &self.comms[operation.comm].spec;
        let path = peers.first().and_then(|&peer| spec.paths[peer as usize].as_ref());
        Some(Waiting {
            call: operation.submission.call,
            peers,
            step,
            transport: path.map_or("nothing", |path| path.transport).to_owned(),
            since: self.now.saturating_sub(operation.vigil.moved),
        })
    }

    fn warn(&mut self, id: OperationId) {
        let Some(waiting) = self.waiting(id) else { return };
        let what = self.operation(id).map(|o| self.findings(o.comm, &o.vigil.answers, &o.submission.call));
        let findings: Vec<String> =
            what.unwrap_or_default().iter().map(|(rank, what)| format!("rank {rank}: {what}")).collect();
        tracing::warn!("{waiting}; {}", findings.join("; "));
        if let Some(operation) = self.operation_mut(id) {
            operation.vigil.warned = true;
        }
    }

    pub(super) fn handle_answer(&mut self, answer: Answer) {
        let Some(comm) = self.comms.iter().position(|c| c.spec.id == answer.comm && !c.closed) else {
            return;
        };
        let Some(peer) = self.comms[comm].rank_of(answer.about) else { return };
        for slot in 0..self.operations.len() {
            let Some(operation) = self.operations[slot].as_mut() else { continue };
            let call = operation.submission.call;
            if operation.outcome.is_some() || operation.comm != comm {
                continue;
            }
            let id = OperationId { slot: slot as u32, generation: operation.generation };
            if let Some(suspicion) = operation.vigil.mismatch
                && (suspicion.peer, suspicion.seq) == (peer, answer.seq)
            {
                return self.judge(id, suspicion, answer.call);
            }
            if call.seq != answer.seq {
                continue;
            }
            operation.vigil.answers.retain(|known| known.about != answer.about);
            operation.vigil.answers.push(answer.clone());
            let point_to_point = call.collective.is_point_to_point();
            let theirs =
                answer.call.filter(|theirs| !point_to_point && !theirs.collective.is_point_to_point());
            let table = self.comms[comm].spec.table;
            if theirs.is_some_and(|theirs| theirs.stamp(table) != call.stamp(table)) {
                return self.fail_mismatch(id, call, peer, theirs);
            }
        }
    }

    /// Names the call at which two ranks went apart. The message that showed it may belong to an earlier one than the
    /// operation that received it: where the calls are equal, or the peer has not come so far, the one before is asked for.
    fn judge(&mut self, id: OperationId, suspicion: Suspicion, theirs: Option<Call>) {
        let Suspicion { peer, seq, .. } = suspicion;
        let Some(operation) = self.operation(id) else { return };
        let (comm, call) = (&self.comms[operation.comm], operation.submission.call);
        if call.collective.is_point_to_point() {
            // A send and its receive have the same number, which no earlier one can have spoilt.
            let differs = |theirs: &Call| theirs.stamp(comm.spec.table) != call.stamp(comm.spec.table);
            return self.fail_mismatch(id, call, peer, theirs.filter(differs));
        }
        let ours = match (call.collective, &self.page) {
            _ if seq == call.seq => Some(call),
            (_, Some(page)) => page.read(comm.spec.id).and_then(|status| status.collective(seq)),
            (_, None) => None,
        };
        let Some(ours) = ours else { return self.fail_mismatch(id, call, peer, None) };
        let differs = |theirs: &Call| theirs.stamp(comm.spec.table) != ours.stamp(comm.spec.table);
        if theirs.as_ref().is_some_and(differs) {
            return self.fail_mismatch(id, ours, peer, theirs);
        }
        let (about, comm) = (comm.spec.members[peer as usize], comm.spec.id);
        let asked = Asked::collective(comm, seq - 1);
        self.commands.push(Command::Inquire { about, asked });
        if let Some(operation) = self.operation_mut(id) {
            operation.vigil.mismatch = Some(Suspicion { seq: seq - 1, ..suspicion });
        }
    }

    /// What the answers say about the ranks that did not do their part, culprits first.
    fn findings(&self, comm: usize, answers: &[Answer], call: &Call) -> Vec<(Rank, String)> {
        let mut found: Vec<(u8, Rank, String)> = answers
            .iter()
            .filter_map(|answer| self.comms[comm].rank_of(answer.about).map(|rank| (rank, answer)))
            .map(|(rank, answer)| {
                let (order, what) = finding(answer, call);
                (order, rank, what)
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, rank, what)| (rank, what)).collect()
    }

    fn fail_deadline(&mut self, id: OperationId) {
        let Some(operation) = self.operation(id) else { return };
        let (comm, after) = (operation.comm, self.now.saturating_sub(operation.vigil.started));
        let mut peers = self.findings(comm, &operation.vigil.answers, &operation.submission.call);
        if peers.is_empty() {
            peers = self.waits_for(id).0.into_iter().map(|rank| (rank, "waited for".to_owned())).collect();
        }
        self.fail_waiting(comm, Cause::Deadline { after, peers }, Some(id), true);
    }

    /// `call`, `theirs`: what this rank and the peer called where they went apart.
    fn fail_mismatch(&mut self, id: OperationId, call: Call, peer: Rank, theirs: Option<Call>) {
        let Some(comm) = self.operation(id).map(|operation| operation.comm) else { return };
        let rank = self.comms[comm].spec.rank;
        let cause = Cause::Mismatch { rank, call, peer, peer_call: theirs };
        self.fail_waiting(comm, cause, Some(id), true);
    }

    /// A post failed though nobody closed its lane here.
    pub(super) fn handle_broken(&mut self, comm: usize, peer: Rank, id: OperationId, error: TransportError) {
        let now = self.now;
        if !matches!(error, TransportError::Mismatch { .. }) {
            let left = matches!(error, TransportError::Left { .. });
            return self.lose(comm, peer, (!left).then_some(error));
        }
        let spec = &self.comms[comm].spec;
        let (about, us, comm_id) = (spec.members[peer as usize], spec.rank, spec.id);
        let Some(operation) = self.operation_mut(id) else { return };
        if operation.vigil.mismatch.is_none() {
            let Call { seq, collective, .. } = operation.submission.call;
            operation.vigil.mismatch = Some(Suspicion { peer, since: now, seq });
            let between = match collective {
                Collective::Send => Some((Collective::Recv, us)),
                Collective::Recv => Some((Collective::Send, us)),
                _ => None,
            };
            self.commands.push(Command::Inquire { about, asked: Asked { comm: comm_id, seq, between } });
        }
    }

    pub(super) fn handle_closed(&mut self, lane: u32, cause: Option<TransportError>) {
        let lane = &mut self.lanes[lane as usize];
        lane.phase = Phase::Closed;
        let (comm, peer) = (lane.comm, lane.peer);
        if self.comms[comm].failure.is_none() && !self.comms[comm].closed {
            self.lose(comm, peer, cause);
        }
    }

    fn lose(&mut self, comm: usize, peer: Rank, error: Option<TransportError>) {
        let since = self.now;
        match self.lost.iter_mut().find(|l| l.comm == comm && l.peer == peer) {
            Some(known) if known.error.is_none() => known.error = error,
            Some(_) => {}
            None => self.lost.push(LostLane { comm, peer, error, since }),
        }
    }

    /// A rank of the job said goodbye.
    pub(super) fn handle_left(&mut self, job_rank: Rank) {
        for comm in 0..self.comms.len() {
            self.handle_left_of(comm, job_rank);
        }
    }

    /// The same for one communicator.
    pub(super) fn handle_left_of(&mut self, comm: usize, job_rank: Rank) {
        if let Some(peer) = self.comms[comm].rank_of(job_rank)
            && self.comms[comm].failure.is_none()
            && !self.comms[comm].closed
        {
            self.lose(comm, peer, None);
        }
    }

    /// Another rank's failure, in ranks of the job.
    pub(super) fn handle_news(&mut self, news: &Failure) {
        for comm in 0..self.comms.len() {
            let ours = |rank: Rank| self.comms[comm].rank_of(rank);
            let concerns = match news.comm {
                Some(id) => id == self.comms[comm].spec.id,
                None => ours(news.culprit().unwrap_or(news.origin)).is_some(),
            };
            if self.comms[comm].closed || !concerns {
                continue;
            }
            let renamed = news.renamed(ours);
            self.fail_with(comm, renamed, false);
        }
    }

    /// Ends a communicator: its lanes are cut, its operations fail when nothing touches their buffers any more.
    pub(super) fn fail(&mut self, comm: usize, cause: Cause, declare: bool) {
        let waiting = self.operations.iter().enumerate().find_map(|(slot, operation)| {
            let operation = operation.as_ref().filter(|o| o.comm == comm && o.outcome.is_none())?;
            Some(OperationId { slot: slot as u32, generation: operation.generation })
        });
        self.fail_waiting(comm, cause, waiting, declare);
    }

    fn fail_waiting(&mut self, comm: usize, cause: Cause, waiting: Option<OperationId>, declare: bool) {
        let spec = &self.comms[comm].spec;
        let failure = Failure {
            origin: spec.rank,
            comm: Some(spec.id),
            cause,
            waiting: waiting.and_then(|id| self.waiting(id)),
            agreed: false,
        };
        self.fail_with(comm, failure, declare);
    }

    fn fail_with(&mut self, comm: usize, mut failure: Failure, declare: bool) {
        if self.comms[comm].failure.is_some() {
            return;
        }
        if failure.waiting.is_none() {
            let waiting = self.operations.iter().enumerate().find_map(|(slot, operation)| {
                let operation = operation.as_ref().filter(|o| o.comm == comm && o.outcome.is_none())?;
                self.waiting(OperationId { slot: slot as u32, generation: operation.generation })
            });
            failure.waiting = waiting;
        }
        tracing::error!("communicator of {} ranks failed: {failure}", self.comms[comm].spec.members.len());
        let failure = Arc::new(failure);
        if declare {
            let members = self.comms[comm].spec.members.clone();
            let renamed = failure.renamed(|rank| members.get(rank as usize).copied());
            self.commands.push(Command::Declare(Arc::new(renamed)));
        }
        self.lost.retain(|l| l.comm != comm);
        let reason = failure.cause.to_string();
        self.comms[comm].failure = Some(failure);
        self.drop_owed(comm);
        for lane in self.lanes.iter().filter(|l| l.comm == comm && l.phase != Phase::Closed) {
            let cause = TransportError::Closed { reason: reason.clone() };
            self.ports[lane.endpoint].endpoint.abort(lane.id, cause);
        }
        self.reap(comm);
    }

    /// Ends the operations of a failed communicator whose buffers nobody touches any more.
    pub(super) fn reap(&mut self, comm: usize) {
        let Some(failure) = self.comms[comm].failure.clone() else { return };
        for slot in 0..self.operations.len() {
            let Some(operation) = self.operations[slot].as_ref() else { continue };
            if operation.comm != comm || operation.outcome.is_some() {
                continue;
            }
            let id = OperationId { slot: slot as u32, generation: operation.generation };
            if self.runs.iter().flatten().any(|run| run.operation == id && run.outstanding > 0) {
                continue;
            }
            for run in 0..self.runs.len() {
                if self.runs[run].as_ref().is_some_and(|r| r.operation == id) {
                    let run_state = self.runs[run].take();
                    if let Some(block) = run_state.and_then(|mut r| r.scratch.take()) {
                        self.pool.put(block);
                    }
                    self.free_runs.push(run as u32);
                }
            }
            self.unfinished -= 1;
            if let Some(operation) = self.operations[slot].as_mut() {
                operation.outcome = Some(Err(Error::Failed(failure.clone())));
            }
        }
        self.refused.retain(|&(run, _)| self.runs[run.0 as usize].is_some());
        self.issue_all();
    }
}

impl super::Comm {
    /// The rank in this communicator of a rank of the job.
    pub(super) fn rank_of(&self, job_rank: Rank) -> Option<Rank> {
        self.spec.members.iter().position(|&member| member == job_rank).map(|rank| rank as Rank)
    }
}

/// What an answer says about a rank, and how much it is to blame: 0 most.
fn finding(answer: &Answer, call: &Call) -> (u8, String) {
    let name = call.collective.name();
    let last = match answer.entered {
        0 => "it has not entered any collective".to_owned(),
        last => format!("its last collective is #{last}, #{} is complete", answer.completed),
    };
    let state = match answer.liveness {
        Liveness::Alive => "alive",
        Liveness::Stopped => "stopped by a signal or a debugger",
        Liveness::NoAnswer => return (1, "does not answer".to_owned()),
    };
    let stopped = answer.liveness == Liveness::Stopped;
    // Sends and receives have numbers of their own.
    if call.collective.is_point_to_point() {
        return (if stopped { 0 } else { 2 }, format!("{state}; {last}"));
    }
    if answer.entered >= call.seq {
        let order = if stopped { 0 } else { 3 };
        return (order, format!("{state}, has entered {name} #{} and is not through", call.seq));
    }
    (if stopped { 0 } else { 2 }, format!("{state}, has not entered {name} #{} ({last})", call.seq))
}

/// The lanes of a step.
fn lanes_of(run: &Run, step: u32) -> impl Iterator<Item = (u32, Lane)> + '_ {
    run.plan.step_lanes(step).iter().map(move |lane| (step, run.plan.lanes()[lane.0 as usize]))
}

fn describe(run: &Run, step: u32) -> String {
    let of = format!("step {} of {}", step + 1, run.plan.steps().len());
    let peers: Vec<Rank> =
        run.plan.step_lanes(step).iter().map(|lane| run.plan.lanes()[lane.0 as usize].peer()).collect();
    match run.plan.steps()[step as usize].op {
        Op::Send { to, .. } => format!("{of}: send to rank {to}"),
        Op::Recv { from, .. } => format!("{of}: receive from rank {from}"),
        Op::RecvReduce { .. } => format!("{of}: receive and combine from rank {}", Ranks(&peers)),
        Op::Reduce { .. } | Op::Copy { .. } => of,
    }
}
