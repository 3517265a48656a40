//! Runs the executions of all ranks together, in random order, over values of any kind.
//!
//! There is no buffering: a transfer starts when the i-th send of a lane meets the i-th receive, and its two ends are
//! over at different times. Every cell of memory knows who reads and writes it, so that races show.

use super::{Fault, Reason};
use crate::engine::execution::{Action, Execution};
use crate::plan::{Lane, LaneIndex, Op, Operand, Plan, Rank, Span, Term};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// How a run goes, apart from what the plans say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Slices that steps are cut into. Unsplittable plans, and runs over bytes, which know their own, ignore it.
    pub slices: u32,
    /// Posts outstanding on a lane at most.
    pub window: u32,
    /// Seed of the order in which things happen.
    pub seed: u64,
}

/// What memory holds, and how it is combined.
pub(super) trait Values {
    /// One cell's content.
    type Value: Copy + Default;
    /// The cells of one slice of a span within its buffer.
    fn cells(&self, walk: usize, plan: &Plan, span: Span, slice: u32) -> Range<u64>;
    /// The owner multiplies its contribution.
    fn scale(&mut self, walk: usize, value: Self::Value) -> Result<Self::Value, Reason>;
    /// Combines two or more terms, in this order.
    fn combine(&mut self, terms: &[Self::Value]) -> Result<Self::Value, Reason>;
    /// A complete result is divided.
    fn finish(&mut self, value: Self::Value) -> Result<Self::Value, Reason>;
}

/// A part of a rank's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Region {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// One cell of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell<V> {
    pub(super) value: V,
    pub(super) defined: bool,
    /// The caller's input, not overwritten yet.
    pub(super) input: bool,
    writing: bool,
    readers: u16,
}

impl<V> Cell<V> {
    pub(super) fn is_used(&self) -> bool {
        self.writing || self.readers > 0
    }
    /// The caller puts in its input.
    pub(super) fn fill(&mut self, value: V) {
        (self.value, self.defined, self.input) = (value, true, true);
    }
}

/// One execution on every rank.
#[derive(Debug)]
pub(super) struct Walk {
    executions: Vec<Execution>,
    /// Of each rank: input, output, scratch.
    pub(super) regions: Vec<[Region; 3]>,
    /// For each lane of each rank, its number among all lanes.
    lanes: Vec<Vec<u32>>,
    /// For each lane of each rank, the walk before this one that uses it too, and its index there.
    predecessors: Vec<Vec<Option<(usize, LaneIndex)>>>,
    /// Lanes of each rank that are closed.
    closed: Vec<Vec<usize>>,
    /// By rank: its buffers were handed over.
    begun: Vec<bool>,
}

/// One end of a message.
#[derive(Clone, Copy, Debug)]
struct Post {
    walk: usize,
    action: Action,
    /// Of a receive: which inbox, and which of its messages.
    inbox: usize,
    message: usize,
}

#[derive(Debug, Default)]
struct Channel {
    sends: VecDeque<Post>,
    receives: VecDeque<Post>,
    /// Posts that are not over: sends, receives.
    outstanding: [u32; 2],
}

/// A receive in progress.
#[derive(Debug)]
struct Inbox<V> {
    walk: usize,
    rank: Rank,
    action: Action,
    missing: usize,
    /// Cells of one message, and all messages one after the other.
    len: usize,
    values: Vec<V>,
}

/// Where a term of a result comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Memory { start: usize, raw: bool },
    Message { start: usize },
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A rank looks at what it can start.
    Poll(Rank),
    /// A send, or a local step, is over.
    Done(usize, Rank, Action),
    /// A receive is over.
    Received(usize),
}

pub(super) struct Machine<D: Values> {
    pub(super) values: D,
    pub(super) memory: Vec<Vec<Cell<D::Value>>>,
    pub(super) walks: Vec<Walk>,
    /// Channels by number: lane of the sender.
    ends: Vec<(Rank, Rank)>,
    channels: Vec<Channel>,
    inboxes: Vec<Inbox<D::Value>>,
    free_inboxes: Vec<usize>,
    events: Vec<Event>,
    poll_queued: Vec<bool>,
    schedule: Schedule,
    /// Walks of a rank that are under way at once.
    overlap: usize,
    random: Random,
    terms: Vec<D::Value>,
    /// Actions that ended.
    pub(super) actions: u64,
}

/// xorshift64*: small, and good enough to shuffle.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d | 1)
    }
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * limit as u128) >> 64) as usize
    }
}

impl<D: Values> Machine<D> {
    /// `memory`: cells of each rank. At most `overlap` of the walks that are added are under way at once on a rank.
    pub(super) fn new(
        values: D,
        memory: Vec<Vec<Cell<D::Value>>>,
        overlap: usize,
        schedule: Schedule,
    ) -> Self {
        let nranks = memory.len();
        Machine {
            values,
            memory,
            walks: Vec::new(),
            ends: Vec::new(),
            channels: Vec::new(),
            inboxes: Vec::new(),
            free_inboxes: Vec::new(),
            events: (0..nranks as u32).map(Event::Poll).collect(),
            poll_queued: vec![true; nranks],
            schedule,
            overlap,
            random: Random::new(schedule.seed),
            terms: Vec::new(),
            actions: 0,
        }
    }

    /// Adds an execution on every rank, after those that are there, on the same lanes.
    pub(super) fn add_walk(&mut self, plans: &[Arc<Plan>], slices: u32, regions: Vec<[Region; 3]>) {
        let mut numbers: HashMap<(Rank, Rank), u32> =
            self.ends.iter().enumerate().map(|(number, &ends)| (ends, number as u32)).collect();
        let mut walk = Walk {
            executions: plans.iter().map(|plan| Execution::new(plan.clone(), slices)).collect(),
            regions,
            lanes: Vec::new(),
            predecessors: Vec::new(),
            begun: vec![false; plans.len()],
            closed: plans.iter().map(|plan| (0..plan.lanes().len()).collect()).collect(),
        };
        for plan in plans {
            let rank = plan.rank();
            let number = |lane: &Lane| {
                let ends = match *lane {
                    Lane::Send(to) => (rank, to),
                    Lane::Recv(from) => (from, rank),
                };
                *numbers.entry(ends).or_insert_with(|| {
                    self.ends.push(ends);
                    self.channels.push(Channel::default());
                    self.ends.len() as u32 - 1
                })
            };
            walk.lanes.push(plan.lanes().iter().map(number).collect());
            let predecessor = |lane: &Lane| {
                let before = |at: &usize| {
                    let lanes = self.walks[*at].executions[rank as usize].plan().lanes();
                    lanes.iter().position(|other| other == lane).map(|index| (*at, LaneIndex(index as u32)))
                };
                (0..self.walks.len()).rev().find_map(|at| before(&at))
            };
            walk.predecessors.push(plan.lanes().iter().map(predecessor).collect());
        }
        self.walks.push(walk);
    }

    /// Runs everything to its end. `fill` is called when an execution starts on a rank, as the caller that hands over
    /// its buffers.
    pub(super) fn run(&mut self, fill: impl Fn(&mut Self, usize, Rank)) -> Result<(), Fault> {
        while !self.events.is_empty() {
            let next = self.random.below(self.events.len());
            match self.events.swap_remove(next) {
                Event::Poll(rank) => self.poll(rank, &fill)?,
                Event::Done(walk, rank, action) => self.finish_local_end(walk, rank, action)?,
                Event::Received(inbox) => self.finish_receive(inbox)?,
            }
        }
        for walk in &self.walks {
            if let Some(stuck) = walk.executions.iter().find(|execution| !execution.is_done()) {
                return Err(deadlock(stuck));
            }
        }
        Ok(())
    }

    /// Starts everything that a rank can start.
    fn poll(&mut self, rank: Rank, fill: &impl Fn(&mut Self, usize, Rank)) -> Result<(), Fault> {
        self.poll_queued[rank as usize] = false;
        for walk in 0..self.walks.len() {
            if walk >= self.overlap && !self.walks[walk - self.overlap].executions[rank as usize].is_done() {
                break;
            }
            if !std::mem::replace(&mut self.walks[walk].begun[rank as usize], true) {
                fill(self, walk, rank);
            }
            self.open_lanes(walk, rank);
            while let Some(action) = self.walks[walk].executions[rank as usize].poll_action() {
                self.start(walk, rank, action)?;
            }
        }
        Ok(())
    }

    /// An execution may post on a lane when the one before has posted all that it has there.
    fn open_lanes(&mut self, walk: usize, rank: Rank) {
        let at = rank as usize;
        let mut closed = std::mem::take(&mut self.walks[walk].closed[at]);
        closed.retain(|&lane| {
            let predecessor = self.walks[walk].predecessors[at][lane];
            let busy = |(before, lane): (usize, _)| !self.walks[before].executions[at].has_posted_all(lane);
            if predecessor.is_some_and(busy) {
                return true;
            }
            self.walks[walk].executions[at].open_lane(LaneIndex(lane as u32));
            false
        });
        self.walks[walk].closed[at] = closed;
    }

    fn start(&mut self, walk: usize, rank: Rank, action: Action) -> Result<(), Fault> {
        let plan = self.walks[walk].executions[rank as usize].plan().clone();
        let op = plan.steps()[action.step as usize].op;
        let fault = |reason| Fault { rank, step: Some((action.step, op)), reason };
        let len = self.common_len(walk, &plan, &op, action.slice).map_err(fault)?;
        let step_lanes = plan.step_lanes(action.step);
        if len == 0 {
            // Both ends skip what is empty.
            return self.done(walk, rank, action);
        }
        let side = usize::from(!matches!(op, Op::Send { .. }));
        let numbers: Vec<usize> = step_lanes
            .iter()
            .map(|lane| self.walks[walk].lanes[rank as usize][lane.0 as usize] as usize)
            .collect();
        if numbers.iter().any(|&number| self.channels[number].outstanding[side] >= self.schedule.window) {
            self.walks[walk].executions[rank as usize].refuse(action);
            return Ok(());
        }
        self.borrow(walk, rank, &plan, &op, action.slice).map_err(fault)?;
        let inbox = if side == 1 && !numbers.is_empty() {
            self.open_inbox(walk, rank, action, numbers.len(), len)
        } else {
            usize::MAX
        };
        for (message, &number) in numbers.iter().enumerate() {
            let channel = &mut self.channels[number];
            channel.outstanding[side] += 1;
            let queue = if side == 0 { &mut channel.sends } else { &mut channel.receives };
            queue.push_back(Post { walk, action, inbox, message });
            self.meet(number)?;
        }
        if numbers.is_empty() {
            self.events.push(Event::Done(walk, rank, action));
        }
        Ok(())
    }

    /// The length that all spans of a step have in common, within bounds.
    fn common_len(&self, walk: usize, plan: &Plan, op: &Op, slice: u32) -> Result<u64, Reason> {
        let mut first: Option<(Span, u64)> = None;
        for span in plan.reads(op).map(|operand| operand.span).chain(op.dst()) {
            let Range { start, end } = self.values.cells(walk, plan, span, slice);
            let size = self.walks[walk].regions[plan.rank() as usize][span.buf as usize].len as u64;
            if start > end || (end > size && start < end) {
                return Err(Reason::OutOfBounds { span, start, end, size });
            }
            match first {
                None => first = Some((span, end - start)),
                Some((one, one_len)) if one_len != end - start => {
                    return Err(Reason::SizesDiffer { one, other: span, one_len, other_len: end - start });
                }
                Some(_) => {}
            }
        }
        Ok(first.map_or(0, |(_, len)| len))
    }

    /// Where a slice of a span lies in its rank's memory.
    fn place(&self, walk: usize, plan: &Plan, span: Span, slice: u32) -> Range<usize> {
        let region = self.walks[walk].regions[plan.rank() as usize][span.buf as usize];
        let cells = self.values.cells(walk, plan, span, slice);
        region.start + cells.start as usize..region.start + cells.end as usize
    }

    /// Marks what a step reads and writes as in use.
    fn borrow(&mut self, walk: usize, rank: Rank, plan: &Plan, op: &Op, slice: u32) -> Result<(), Reason> {
        let checks_raw = !matches!(op, Op::Send { .. });
        for Operand { span, raw } in plan.reads(op) {
            let place = self.place(walk, plan, span, slice);
            for cell in &mut self.memory[rank as usize][place] {
                if cell.writing {
                    return Err(Reason::ReadsWhileWritten { span });
                }
                if !cell.defined {
                    return Err(Reason::Undefined { span });
                }
                if checks_raw && cell.input != raw {
                    return Err(Reason::RawMark { span, marked: raw });
                }
                cell.readers += 1;
            }
        }
        let Some(dst) = op.dst() else { return Ok(()) };
        let own = plan.reads(op).filter(|operand| operand.span == dst).count() as u16;
        let place = self.place(walk, plan, dst, slice);
        for cell in &mut self.memory[rank as usize][place] {
            if cell.writing || cell.readers != own {
                return Err(Reason::WritesWhileUsed { span: dst });
            }
            cell.writing = true;
        }
        Ok(())
    }

    fn open_inbox(&mut self, walk: usize, rank: Rank, action: Action, messages: usize, len: u64) -> usize {
        let len = len as usize;
        let at = self.free_inboxes.pop().unwrap_or_else(|| {
            self.inboxes.push(Inbox { walk, rank, action, missing: 0, len, values: Vec::new() });
            self.inboxes.len() - 1
        });
        let inbox = &mut self.inboxes[at];
        (inbox.walk, inbox.rank, inbox.action, inbox.missing, inbox.len) =
            (walk, rank, action, messages, len);
        inbox.values.clear();
        inbox.values.resize(messages * len, D::Value::default());
        at
    }

    /// Starts the transfers of a lane whose two ends are both posted.
    fn meet(&mut self, number: usize) -> Result<(), Fault> {
        let (from, to) = self.ends[number];
        while let (Some(&send), Some(&receive)) =
            (self.channels[number].sends.front(), self.channels[number].receives.front())
        {
            self.channels[number].sends.pop_front();
            self.channels[number].receives.pop_front();
            let plan = self.walks[send.walk].executions[from as usize].plan().clone();
            let Op::Send { src, .. } = plan.steps()[send.action.step as usize].op else {
                unreachable!("only sends are posted on the sending side")
            };
            let place = self.place(send.walk, &plan, src, send.action.slice);
            let inbox = &mut self.inboxes[receive.inbox];
            if place.len() != inbox.len || send.walk != receive.walk {
                let receiver = self.walks[receive.walk].executions[to as usize].plan();
                let op = receiver.steps()[receive.action.step as usize].op;
                let words = |walk: usize, len: usize| format!("{len} bytes or units of operation {walk}");
                let (sent, expected) = (words(send.walk, place.len()), words(receive.walk, inbox.len));
                let reason = Reason::LengthsDiffer { from, step: send.action.step, sent, expected };
                return Err(Fault { rank: to, step: Some((receive.action.step, op)), reason });
            }
            let into = &mut inbox.values[receive.message * inbox.len..(receive.message + 1) * inbox.len];
            for (into, cell) in into.iter_mut().zip(&self.memory[from as usize][place]) {
                *into = cell.value;
            }
            inbox.missing -= 1;
            if inbox.missing == 0 {
                self.events.push(Event::Received(receive.inbox));
            }
            self.events.push(Event::Done(send.walk, from, send.action));
        }
        Ok(())
    }

    /// Ends a send or a local step.
    fn finish_local_end(&mut self, walk: usize, rank: Rank, action: Action) -> Result<(), Fault> {
        self.complete(walk, rank, action, &[])?;
        self.release(walk, rank, action)
    }

    fn finish_receive(&mut self, at: usize) -> Result<(), Fault> {
        let Inbox { walk, rank, action, .. } = self.inboxes[at];
        let values = std::mem::take(&mut self.inboxes[at].values);
        self.complete(walk, rank, action, &values)?;
        self.inboxes[at].values = values;
        self.free_inboxes.push(at);
        self.release(walk, rank, action)
    }

    /// Writes a step's result. `messages`: those of its peers, one after the other.
    fn complete(
        &mut self,
        walk: usize,
        rank: Rank,
        action: Action,
        messages: &[D::Value],
    ) -> Result<(), Fault> {
        let plan = self.walks[walk].executions[rank as usize].plan().clone();
        let op = plan.steps()[action.step as usize].op;
        if let Some(dst) = op.dst() {
            let dst = self.place(walk, &plan, dst, action.slice);
            let mut received = 0;
            let mut message = || {
                received += 1;
                Source::Message { start: (received - 1) * dst.len() }
            };
            let local = |operand: Operand| {
                let start = self.place(walk, &plan, operand.span, action.slice).start;
                Source::Memory { start, raw: operand.raw }
            };
            let (sources, last): (Vec<Source>, bool) = match op {
                Op::Send { .. } => (Vec::new(), false),
                Op::Recv { .. } => (vec![message()], false),
                Op::Copy { src, last, .. } => (vec![local(src)], last),
                Op::RecvReduce { terms, last, .. } | Op::Reduce { terms, last, .. } => {
                    let source = |term: &Term| term.local().map_or_else(&mut message, local);
                    (plan.terms(terms).iter().map(source).collect(), last)
                }
            };
            for at in 0..dst.len() {
                let value = self.result(walk, rank, &sources, last, at, messages);
                let value = value.map_err(|reason| Fault { rank, step: Some((action.step, op)), reason })?;
                let cell = &mut self.memory[rank as usize][dst.start + at];
                cell.value = value;
                (cell.writing, cell.defined, cell.input) = (false, true, false);
            }
        }
        for Operand { span, .. } in plan.reads(&op) {
            let place = self.place(walk, &plan, span, action.slice);
            self.memory[rank as usize][place].iter_mut().for_each(|cell| cell.readers -= 1);
        }
        Ok(())
    }

    /// Element `at` of a step's result.
    fn result(
        &mut self,
        walk: usize,
        rank: Rank,
        sources: &[Source],
        last: bool,
        at: usize,
        messages: &[D::Value],
    ) -> Result<D::Value, Reason> {
        self.terms.clear();
        for source in sources {
            let value = match *source {
                Source::Message { start } => messages[start + at],
                Source::Memory { start, raw } => {
                    let value = self.memory[rank as usize][start + at].value;
                    if raw { self.values.scale(walk, value)? } else { value }
                }
            };
            self.terms.push(value);
        }
        let value = match self.terms[..] {
            [value] => value,
            _ => self.values.combine(&self.terms)?,
        };
        if last { self.values.finish(value) } else { Ok(value) }
    }

    /// Gives back what a started action held on its lanes.
    fn release(&mut self, walk: usize, rank: Rank, action: Action) -> Result<(), Fault> {
        let plan = self.walks[walk].executions[rank as usize].plan().clone();
        let side = usize::from(!matches!(plan.steps()[action.step as usize].op, Op::Send { .. }));
        for lane in plan.step_lanes(action.step) {
            let number = self.walks[walk].lanes[rank as usize][lane.0 as usize];
            self.channels[number as usize].outstanding[side] -= 1;
            if self.schedule.window == u32::MAX {
                continue;
            }
            for walk in &mut self.walks {
                if let Some(lane) = walk.lanes[rank as usize].iter().position(|&other| other == number) {
                    walk.executions[rank as usize].unblock(LaneIndex(lane as u32));
                }
            }
        }
        self.done(walk, rank, action)
    }

    fn done(&mut self, walk: usize, rank: Rank, action: Action) -> Result<(), Fault> {
        self.actions += 1;
        self.walks[walk].executions[rank as usize].handle_done(action);
        if !std::mem::replace(&mut self.poll_queued[rank as usize], true) {
            self.events.push(Event::Poll(rank));
        }
        Ok(())
    }
}

fn deadlock(stuck: &Execution) -> Fault {
    let plan = stuck.plan();
    let oldest = stuck.waiting_for().next();
    let waits = match oldest {
        Some(Action { step, slice }) => format!("waits for slice {slice} of step {step}"),
        None => "nothing that is left can start".into(),
    };
    let step = oldest.map(|action| (action.step, plan.steps()[action.step as usize].op));
    Fault { rank: plan.rank(), step, reason: Reason::Deadlock { waits } }
}
