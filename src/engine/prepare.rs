//! From a call to executions: plan, partition, lanes and runs, kept for the next call of the same kind.

use super::{
    Engine, Operation, OperationId, RunId, Submission, lane::POINT_TO_POINT, memory::Block,
    straight::Straight,
};
use crate::{
    algo::Algorithm,
    engine::{execution::Execution, vigil::Vigil},
    error::{Cause, Error, Result},
    plan::{
        Alias, Collective, Lane, LaneIndex, Plan, Rank,
        partition::{Cut, Partition, Piece},
    },
};
use std::sync::Arc;

/// Channels that a communicator can have.
pub(crate) const MAX_CHANNELS: usize = 16;
/// Rounds of one operation and channel that may be under way at once: one moves, the next fills its pipeline.
const ROUNDS_AHEAD: u32 = 2;
/// From how many bytes of all ranks of a host on results bypass the caches: they no longer fit the last one, and what a
/// store would fetch into it is fetched in vain. Measured with 2 and 4 ranks: a loss at 16 MiB, a gain from 32 MiB on.
const STREAM_FROM: u64 = 32 << 20;
/// Prepared calls that a communicator keeps.
const KEPT: usize = 256;

/// Which way a collective goes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Channels, at most 16.
    pub channels: u32,
    /// Wanted bytes of a slice.
    pub slice_bytes: u64,
    /// Bytes of the largest buffer that one round covers.
    pub round_bytes: u64,
}

/// What calls must have in common in order to share a plan, a partition and executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    collective: Collective,
    root: Rank,
    count: u64,
    element: u32,
    alias: Alias,
    prescale: bool,
}

impl Key {
    fn of(submission: &Submission) -> Self {
        let call = &submission.call;
        Key {
            collective: call.collective,
            root: call.root,
            count: call.count,
            element: call.dtype.size() as u32,
            alias: submission.alias,
            prescale: call.collective.reduces() && submission.reduction.pre.is_some(),
        }
    }
}

/// What calls of one key share.
#[derive(Debug)]
pub(crate) struct Prepared {
    plan: Arc<Plan>,
    pub(crate) partition: Arc<Partition>,
    pub(super) scratch_bytes: usize,
    /// Its steps for the short way, where it can go that; away while a call is on it.
    pub(super) straight: Option<Box<Straight>>,
    /// The steps whose results bypass the caches, where the call is so large that they should.
    streams: Option<Arc<[bool]>>,
    /// For each channel: the engine's lane for each lane of the plan.
    pub(crate) lanes: Vec<Box<[u32]>>,
    /// For each channel: runs that nobody uses.
    #[expect(
        clippy::vec_box,
        reason = "runs stay in their boxes while they go from here to the queues and back"
    )]
    idle: Vec<Vec<Box<Run>>>,
    /// Where rounds wait for their turn: the channel, or the direction of a point-to-point lane.
    first_queue: usize,
    /// Operations that use it.
    users: u32,
}

impl Prepared {
    /// No operation uses it.
    pub(crate) fn is_unused(&self) -> bool {
        self.users == 0
    }
}

/// One execution in flight: a round of an operation on one channel.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) execution: Execution,
    pub(crate) plan: Arc<Plan>,
    pub(crate) partition: Arc<Partition>,
    /// As of the prepared call.
    pub(crate) streams: Option<Arc<[bool]>>,
    /// The engine's lane for each lane of the plan.
    pub(crate) lanes: Box<[u32]>,
    pub(crate) comm: usize,
    pub(crate) prepared: u32,
    pub(crate) operation: OperationId,
    pub(crate) channel: u32,
    pub(crate) piece: Piece,
    pub(crate) input: *mut u8,
    pub(crate) output: *mut u8,
    pub(crate) scratch: Option<Block>,
    pub(crate) stamp: u64,
    pub(crate) reduction: rondel_transport_api::Reduction,
    /// Posts whose event has not come.
    pub(crate) outstanding: u32,
    /// It is in the list of runs that may have something to start.
    pub(crate) queued: bool,
}

impl Engine {
    /// The plan, partition and lanes for a call.
    pub(super) fn prepare(&mut self, comm: usize, submission: &Submission) -> Result<u32> {
        let key = Key::of(submission);
        if let Some((last, prepared)) = self.comms[comm].last
            && last == key
        {
            return Ok(prepared);
        }
        let prepared = match self.comms[comm].prepared.get(&key) {
            Some(&prepared) => prepared,
            None => self.prepare_anew(comm, &key)?,
        };
        self.comms[comm].last = Some((key, prepared));
        Ok(prepared)
    }

    fn prepare_anew(&mut self, comm: usize, key: &Key) -> Result<u32> {
        let spec = &self.comms[comm].spec;
        let shape = spec.shape.clone().with_root(key.root);
        let nranks = u64::from(shape.nranks());
        let blocks = match key.collective {
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => nranks,
            _ => 1,
        };
        let bytes = key.count * u64::from(key.element) * blocks;
        let route = (spec.routes)(key.collective, bytes);
        let plan = Arc::new(route.algorithm.plan(key.collective, spec.rank, &shape, key.alias, key.prescale));
        let point_to_point = key.collective.is_point_to_point();
        let channels = if point_to_point { 1 } else { route.channels.clamp(1, MAX_CHANNELS as u32) };
        let cut = Cut {
            count: key.count,
            element: key.element,
            channels,
            round_bytes: route.round_bytes,
            slice_bytes: route.slice_bytes,
        };
        let partition = Arc::new(Partition::new(&plan, cut));
        let channels = partition.channels();
        let mut lanes = Vec::new();
        for channel in 0..channels {
            let number = if point_to_point { POINT_TO_POINT } else { channel as u16 };
            let of = |lane: &Lane| match *lane {
                Lane::Send(peer) | Lane::Recv(peer) => self.lane_to(comm, peer, number),
            };
            let all: std::result::Result<Box<[u32]>, _> = plan.lanes().iter().map(of).collect();
            lanes.push(all.map_err(|(peer, error)| {
                self.fail(comm, Cause::LaneLost { peer, error }, true);
                Error::Failed(self.comms[comm].failure.clone().expect("it just failed"))
            })?);
        }
        let first_queue = match key.collective {
            Collective::Send => MAX_CHANNELS + 2 * key.root as usize,
            Collective::Recv => MAX_CHANNELS + 2 * key.root as usize + 1,
            _ => 0,
        };
        let beside = u64::from(shape.ranks_beside(self.comms[comm].spec.rank));
        let streams = (bytes.saturating_mul(beside) >= STREAM_FROM).then(|| plan.stores_for_good().into());
        self.forget_unused(comm);
        let prepared = Prepared {
            streams,
            scratch_bytes: partition.scratch_bytes(&plan) as usize,
            straight: Straight::new(&plan, &partition, &lanes[0], &self.lanes, &self.ports).map(Box::new),
            plan,
            partition,
            idle: (0..channels).map(|_| Vec::new()).collect(),
            lanes,
            first_queue,
            users: 0,
        };
        let slot = match self.prepared.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.prepared.push(None);
                self.prepared.len() - 1
            }
        };
        self.prepared[slot] = Some(prepared);
        self.comms[comm].prepared.insert(*key, slot as u32);
        Ok(slot as u32)
    }

    /// Makes room among the prepared calls, so that a program whose counts never repeat does not grow.
    fn forget_unused(&mut self, comm: usize) {
        if self.comms[comm].prepared.len() < KEPT {
            return;
        }
        let prepared = &mut self.prepared;
        self.comms[comm].prepared.retain(|_, &mut slot| {
            let keep = prepared[slot as usize].as_ref().is_some_and(|p| !p.is_unused());
            if !keep {
                prepared[slot as usize] = None;
            }
            keep
        });
        self.comms[comm].last = None;
    }

    /// Puts an operation in line, and starts what may start of it.
    pub(super) fn enqueue(&mut self, comm: usize, prepared: u32, submission: Submission) -> OperationId {
        let after = self.overlapping(comm, &submission);
        let of = self.prepared[prepared as usize].as_mut().expect("prepared calls outlive their users");
        of.users += 1;
        let (channels, rounds, first_queue) =
            (of.partition.channels(), of.partition.rounds(), of.first_queue);
        let (slot, generation) = self.free_operations.pop().unwrap_or_else(|| {
            self.operations.push(None);
            (self.operations.len() as u32 - 1, 0)
        });
        let id = OperationId { slot, generation };
        let timeout = submission.timeout.unwrap_or(self.config.timeout);
        self.operations[slot as usize] = Some(Operation {
            generation,
            comm,
            prepared,
            stamp: submission.call.stamp(self.comms[comm].spec.table),
            submission,
            next_round: [0; MAX_CHANNELS],
            under_way: [0; MAX_CHANNELS],
            runs_left: channels * rounds,
            after,
            deadline: self.now.saturating_add(timeout),
            vigil: Vigil::new(self.now),
            outcome: None,
        });
        self.unfinished += 1;
        for channel in 0..channels as usize {
            self.comms[comm].issue[first_queue + channel].push_back(id);
            self.issue(comm, first_queue + channel);
        }
        id
    }

    /// Unfinished operations that touch memory which this one touches too, at least one of them writing.
    fn overlapping(&self, comm: usize, submission: &Submission) -> Vec<OperationId> {
        if self.unfinished == 0 {
            return Vec::new();
        }
        let ours = self.extents(comm, submission);
        let clashes = |theirs: [Extent; 2]| {
            ours.iter().any(|a| theirs.iter().any(|b| (a.written || b.written) && a.overlaps(b)))
        };
        let unfinished = self.operations.iter().enumerate().filter_map(|(slot, operation)| {
            let operation = operation.as_ref().filter(|o| o.outcome.is_none())?;
            clashes(self.extents(operation.comm, &operation.submission))
                .then_some(OperationId { slot: slot as u32, generation: operation.generation })
        });
        unfinished.collect()
    }

    fn extents(&self, comm: usize, submission: &Submission) -> [Extent; 2] {
        let call = &submission.call;
        let bytes = call.count as usize * call.dtype.size();
        let nranks = self.comms[comm].spec.members.len();
        let blocks = |many: bool| if many { bytes * nranks } else { bytes };
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let input = blocks(matches!(call.collective, ReduceScatter | AllToAll | Scatter));
        let output = blocks(matches!(call.collective, AllGather | AllToAll | Gather));
        [
            Extent {
                start: submission.input as usize,
                len: if submission.input.is_null() { 0 } else { input },
                written: matches!(submission.alias, Alias::OutputAt(_)),
            },
            Extent {
                start: submission.output as usize,
                len: if submission.output.is_null() { 0 } else { output },
                written: true,
            },
        ]
    }

    /// Starts the next rounds of a queue, in order, as far as they may start.
    pub(super) fn issue(&mut self, comm: usize, queue: usize) {
        while let Some(&id) = self.comms[comm].issue[queue].front() {
            let Some(operation) = self.operation(id).filter(|o| o.outcome.is_none()) else {
                self.comms[comm].issue[queue].pop_front();
                continue;
            };
            if operation.after.iter().any(|&other| !self.is_over(other)) {
                return;
            }
            let prepared = operation.prepared;
            let of = self.prepared[prepared as usize].as_ref().expect("it has a user");
            let channel = queue - of.first_queue;
            if operation.under_way[channel] >= ROUNDS_AHEAD {
                return;
            }
            let (round, rounds) = (operation.next_round[channel], of.partition.rounds());
            if round + 1 == rounds {
                self.comms[comm].issue[queue].pop_front();
            }
            self.start_run(id, channel as u32, round);
        }
    }

    fn start_run(&mut self, id: OperationId, channel: u32, round: u32) {
        let operation = self.operations[id.slot as usize].as_mut().expect("it is in an issue queue");
        operation.next_round[channel as usize] += 1;
        operation.under_way[channel as usize] += 1;
        let (comm, prepared, stamp) = (operation.comm, operation.prepared, operation.stamp);
        let submission = operation.submission;
        let of = self.prepared[prepared as usize].as_mut().expect("it has a user");
        let piece = of.partition.piece(round, channel);
        let mut run = match of.idle[channel as usize].pop() {
            Some(mut run) => {
                run.execution.restart();
                run
            }
            None => Box::new(Run {
                execution: Execution::new(of.plan.clone(), of.partition.slices()),
                plan: of.plan.clone(),
                partition: of.partition.clone(),
                streams: of.streams.clone(),
                lanes: of.lanes[channel as usize].clone(),
                comm,
                prepared,
                operation: id,
                channel,
                piece,
                input: std::ptr::null_mut(),
                output: std::ptr::null_mut(),
                scratch: None,
                stamp,
                reduction: submission.reduction,
                outstanding: 0,
                queued: false,
            }),
        };
        run.operation = id;
        run.piece = piece;
        run.input = submission.input;
        run.output = submission.output;
        run.stamp = stamp;
        run.reduction = submission.reduction;
        run.scratch = (of.scratch_bytes > 0).then(|| self.pool.take(of.scratch_bytes));
        run.queued = true;
        let slot = self.free_runs.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        for (index, lane) in run.plan.lanes().iter().enumerate() {
            let index = LaneIndex(index as u32);
            let engine_lane = &mut self.lanes[run.lanes[index.0 as usize] as usize];
            let turns = match lane {
                Lane::Send(_) => &mut engine_lane.sending,
                Lane::Recv(_) => &mut engine_lane.receiving,
            };
            if turns.join(RunId(slot), index) {
                run.execution.open_lane(index);
            }
        }
        self.runs[slot as usize] = Some(run);
        self.ready.push(RunId(slot));
    }

    /// A run is over: its memory goes back, the next round may start, and perhaps its operation is over.
    pub(super) fn finish_run(&mut self, slot: RunId, mut run: Box<Run>) {
        if let Some(block) = run.scratch.take() {
            self.pool.put(block);
        }
        self.free_runs.push(slot.0);
        let (id, comm, channel, prepared) = (run.operation, run.comm, run.channel as usize, run.prepared);
        let of = self.prepared[prepared as usize].as_mut().expect("it has a user");
        let queue = of.first_queue + channel;
        of.idle[channel].push(run);
        let operation = self.operations[id.slot as usize].as_mut().expect("its runs were not over");
        operation.runs_left -= 1;
        operation.under_way[channel] -= 1;
        operation.vigil.progress(self.now);
        if operation.runs_left == 0 {
            of.users -= 1;
            operation.outcome = Some(Ok(()));
            let (call, published) = (operation.submission.call, operation.vigil.is_published());
            self.finish_operation(comm, &call, published);
        } else {
            self.issue(comm, queue);
        }
    }

    /// `published`: its waiting stands on the status page.
    fn finish_operation(&mut self, comm: usize, call: &super::call::Call, published: bool) {
        self.unfinished -= 1;
        self.conclude(comm, call, published);
        self.issue_all();
    }

    /// Counts an operation as completed, and publishes it.
    pub(super) fn conclude(&mut self, comm: usize, call: &super::call::Call, published: bool) {
        self.comms[comm].completed += 1;
        if let (Some(page), Some(slot)) = (&self.page, self.comms[comm].slot) {
            if published {
                page.waiting(slot, None);
            }
            if !call.collective.is_point_to_point() {
                page.completed(slot, call.seq);
            }
        }
    }

    /// Starts what waited for the memory of an operation that is over now, on any communicator.
    pub(super) fn issue_all(&mut self) {
        if self.unfinished == 0 {
            return;
        }
        for comm in 0..self.comms.len() {
            if self.comms[comm].failure.is_some() {
                continue;
            }
            for queue in 0..self.comms[comm].issue.len() {
                self.issue(comm, queue);
            }
        }
    }
}

/// A range of the caller's memory.
#[derive(Clone, Copy)]
struct Extent {
    start: usize,
    len: usize,
    written: bool,
}

impl Extent {
    fn overlaps(&self, other: &Extent) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}
