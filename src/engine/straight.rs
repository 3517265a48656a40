//! The short way of a small operation: one that is a single piece (one round, channel and slice), while nothing else is
//! under way.
//!
//! Such a call needs no queues and no turns. Its steps were resolved to lanes and addresses when it was prepared; here
//! they are walked by three sets of bits, by the same rules as [`execution`](super::execution): a step starts when its
//! dependencies are over and all that comes before it on its lanes has started. What is not over after some looks goes
//! on as an ordinary operation, with deadlines, inquiries and sleep; so nothing else must know that this way exists.

use super::{
    CommId, Engine, Lane, OperationId, Port, RunId, Submission,
    drive::{Bytes, token},
    execution::Action,
    lane::Phase,
    memory::Block,
    staging,
};
use crate::{
    error::{Error, Result},
    plan::{self, Buf, LaneIndex, Op, Plan, Span, Term, Terms, partition::Partition},
};
use rondel_transport_api::{Event, Keep, LaneId, Operand, Post, Sink, Slice, Token};
use std::time::Duration;

/// Looks without anything new before a call goes on as an ordinary operation.
const LOOKS: u32 = 64;

/// The memories of a run.
#[derive(Clone, Copy, Debug)]
enum Home {
    Of(Buf),
    /// Where messages wait that are combined in one pass.
    Staging,
}

/// A place in one of them.
#[derive(Clone, Copy, Debug)]
struct Place {
    home: Home,
    offset: usize,
}

/// A place that is read.
#[derive(Clone, Copy, Debug)]
struct Source {
    place: Place,
    raw: bool,
}

#[derive(Clone, Debug)]
enum What {
    /// Its bytes are none, on both ends.
    Nothing,
    Send {
        src: Place,
    },
    Recv {
        dst: Place,
    },
    /// Combines a message with what is here, or (until it is staged) several.
    Combine {
        with: Option<Source>,
        dst: Place,
        last: bool,
    },
    Reduce {
        from: Box<[Source]>,
        dst: Place,
        last: bool,
    },
    Copy {
        src: Source,
        dst: Place,
        last: bool,
    },
}

#[derive(Clone, Debug)]
struct Step {
    what: What,
    len: usize,
    /// Endpoint and lane, where it uses one.
    port: usize,
    lane: LaneId,
    /// Steps that must be over first.
    after: u64,
    /// Steps before it on its lane, which must have started.
    behind: u64,
}

/// The steps of a prepared call, resolved.
#[derive(Clone, Debug)]
pub(crate) struct Straight {
    steps: Vec<Step>,
    gather: Option<Gather>,
    /// The engine's lanes that it uses, and the endpoints of those.
    lanes: Box<[u32]>,
    ports: Box<[usize]>,
    /// All its lanes stood once.
    ready: bool,
}

/// A step that combines several messages in one pass. Receives of those into staging follow behind the steps of the plan,
/// in the order of its lanes, and it is a local reduction that comes after them.
#[derive(Clone, Copy, Debug)]
struct Gather {
    step: u32,
    /// Its first receive among the steps, and how many there are.
    first: u32,
    messages: u32,
    stride: usize,
}

/// How far a call is: a bit for each step.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    started: u64,
    over: u64,
}

/// What became of a call that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// It is over, and went well.
    Over,
    /// It is under way.
    Started(OperationId),
}

impl Straight {
    /// For a plan in one piece, whose lanes are the engine's `lanes`. `None`: it needs what only the ordinary way has.
    pub(super) fn new(
        plan: &Plan,
        partition: &Partition,
        lanes: &[u32],
        all: &[Lane],
        ports: &[Port],
    ) -> Option<Self> {
        let whole = partition.rounds() == 1 && partition.channels() == 1 && partition.slices() == 1;
        if !whole || plan.steps().is_empty() || plan.steps().len() > u64::BITS as usize {
            return None;
        }
        let count = plan.steps().len() as u32;
        let mut ports_used: Vec<usize> = lanes.iter().map(|&lane| all[lane as usize].endpoint).collect();
        ports_used.sort_unstable();
        ports_used.dedup();
        let end_of = |lane: &LaneIndex| {
            let lane = &all[lanes[lane.0 as usize] as usize];
            (lane.endpoint, lane.id)
        };
        let mut straight = Straight {
            steps: (0..count).map(|step| resolve(plan, partition, step, &end_of)).collect(),
            gather: None,
            lanes: lanes.into(),
            ports: ports_used.into(),
            ready: false,
        };
        for number in 0..count {
            let step = &straight.steps[number as usize];
            let fused = match step.what {
                What::Combine { with: Some(_), .. } => ports[step.port].reduces,
                What::Combine { with: None, .. } => false,
                _ => true,
            };
            if !fused {
                straight.stage(plan, partition, number, &end_of)?;
            }
        }
        (straight.steps.len() <= u64::BITS as usize).then_some(straight)
    }

    /// Makes a step receive its messages into staging, and combine them there. `None`: where it is not the only such step,
    /// or not the first on its lanes.
    fn stage(
        &mut self,
        plan: &Plan,
        partition: &Partition,
        number: u32,
        end_of: &impl Fn(&LaneIndex) -> (usize, LaneId),
    ) -> Option<()> {
        let Op::RecvReduce { terms, dst, last } = plan.steps()[number as usize].op else { return None };
        let first = self.steps.len() as u32;
        let Step { len, after, .. } = self.steps[number as usize];
        let stride = len.next_multiple_of(64);
        let part = |message: usize| Place { home: Home::Staging, offset: message * stride };
        let lanes = plan.step_lanes(number);
        for (message, lane) in lanes.iter().enumerate() {
            if (0..number).any(|other| plan.step_lanes(other).contains(lane)) {
                return None;
            }
            let (port, id) = end_of(lane);
            self.steps.push(Step {
                what: What::Recv { dst: part(message) },
                len,
                port,
                lane: id,
                after,
                behind: 0,
            });
            for later in number + 1..plan.steps().len() as u32 {
                if plan.step_lanes(later).contains(lane) {
                    let behind = &mut self.steps[later as usize].behind;
                    *behind = *behind & !(1 << number) | 1 << (first as usize + message);
                }
            }
        }
        let place = resolver(plan, partition);
        let mut message = 0..;
        let source = |term: &Term| match *term {
            Term::Local(operand) => Source { place: place(operand.span), raw: operand.raw },
            Term::Peer(_) => Source { place: part(message.next().unwrap_or(0)), raw: false },
        };
        let step = &mut self.steps[number as usize];
        step.what =
            What::Reduce { from: plan.terms(terms).iter().map(source).collect(), dst: place(dst), last };
        step.after |= (0..lanes.len()).fold(0, |set, message| set | 1 << (first as usize + message));
        step.behind = 0;
        let gather = Gather { step: number, first, messages: lanes.len() as u32, stride };
        self.gather.replace(gather).is_none().then_some(())
    }

    fn everything(&self) -> u64 {
        u64::MAX >> (u64::BITS - self.steps.len() as u32)
    }
}

/// Where the spans of a plan in one piece are.
fn resolver<'a>(plan: &'a Plan, partition: &'a Partition) -> impl Fn(Span) -> Place + 'a {
    let piece = partition.piece(0, 0);
    move |span| {
        let offset = partition.bytes(plan, &piece, span, 0).start as usize;
        Place { home: Home::Of(span.buf), offset }
    }
}

fn resolve(
    plan: &Plan,
    partition: &Partition,
    number: u32,
    end_of: &impl Fn(&LaneIndex) -> (usize, LaneId),
) -> Step {
    let place = resolver(plan, partition);
    let source = |operand: plan::Operand| Source { place: place(operand.span), raw: operand.raw };
    let locals = |terms: Terms| -> Box<[Source]> {
        plan.terms(terms).iter().filter_map(Term::local).map(source).collect()
    };
    let (what, span) = match plan.steps()[number as usize].op {
        Op::Send { src, .. } => (What::Send { src: place(src) }, src),
        Op::Recv { dst, .. } => (What::Recv { dst: place(dst) }, dst),
        Op::RecvReduce { terms, dst, last } => {
            let with = match (&locals(terms)[..], plan.step_lanes(number).len()) {
                (&[with], 1) => Some(with),
                _ => None,
            };
            (What::Combine { with, dst: place(dst), last }, dst)
        }
        Op::Reduce { terms, dst, last } => (What::Reduce { from: locals(terms), dst: place(dst), last }, dst),
        Op::Copy { src, dst, last } => (What::Copy { src: source(src), dst: place(dst), last }, dst),
    };
    let bytes = partition.bytes(plan, &partition.piece(0, 0), span, 0);
    let lane = plan.step_lanes(number).first();
    let (port, id) = lane.map_or((0, LaneId(0)), end_of);
    let before = |&other: &u32| lane.is_some() && plan.step_lanes(other).first() == lane;
    let set = |steps: &mut dyn Iterator<Item = u32>| steps.fold(0, |set, step| set | 1 << step);
    Step {
        what: if bytes.is_empty() { What::Nothing } else { what },
        len: (bytes.end - bytes.start) as usize,
        port,
        lane: id,
        after: set(&mut plan.dependencies(number).iter().map(|dependency| dependency.step)),
        behind: set(&mut (0..number).filter(before)),
    }
}

/// How far a call came.
struct Reached {
    /// The run that it becomes if it goes on as an ordinary operation: its tokens bear that number.
    run: RunId,
    walk: Walk,
    scratch: Option<Block>,
    /// Where messages wait that are combined in one pass, and the number of that step if the call goes on: the tokens of
    /// their receives bear it.
    staging: Option<(Block, u32)>,
}

/// One call that goes the short way.
struct Passage<'a> {
    straight: &'a Straight,
    submission: &'a Submission,
    stamp: u64,
    reached: Reached,
}

impl Passage<'_> {
    fn at(&self, place: Place) -> *mut u8 {
        let start = |block: Option<&Block>| block.map_or(std::ptr::null_mut(), Block::as_ptr);
        let base = match place.home {
            Home::Of(Buf::Input) => self.submission.input,
            Home::Of(Buf::Output) => self.submission.output,
            Home::Of(Buf::Scratch) => start(self.reached.scratch.as_ref()),
            Home::Staging => start(self.reached.staging.as_ref().map(|(block, _)| block)),
        };
        base.wrapping_add(place.offset)
    }
    fn operand(&self, source: Source) -> Operand {
        Operand { addr: self.at(source.place).cast_const(), raw: source.raw }
    }
    fn is_over(&self) -> bool {
        self.reached.walk.over == self.straight.everything()
    }
    /// The token of a step's post.
    fn token(&self, number: u32) -> Token {
        match (self.straight.gather, &self.reached.staging) {
            (Some(gather), &Some((_, slot))) if number >= gather.first => {
                staging::token(slot, (number - gather.first) as usize)
            }
            _ => token(self.reached.run, Action { step: number, slice: 0 }),
        }
    }
    /// Takes the ends of this call's own posts from the events. Returns whether there were any.
    fn take_done(&mut self, events: &mut Vec<Event>) -> bool {
        let count = self.straight.steps.len() as u64;
        let ordinary = self.straight.gather.map_or(count, |gather| u64::from(gather.first));
        let (step_zero, message_zero) = (self.token(0).0, self.token(ordinary as u32).0);
        let before = self.reached.walk.over;
        let over = &mut self.reached.walk.over;
        events.retain(|event| {
            let Event::Done { token: Token(token) } = *event else { return true };
            let (step, message) = (token.wrapping_sub(step_zero) >> 20, token.wrapping_sub(message_zero));
            let number = if step < ordinary { step } else { ordinary.saturating_add(message) };
            if number < count {
                *over |= 1 << number;
            }
            number >= count
        });
        *over != before
    }
}

impl Engine {
    /// Starts an operation, and drives it for a while where it is small and nothing else is under way. `clock` is asked
    /// only where that does not end it. Between looks that found nothing new `pause` is called, with their number.
    ///
    /// # Safety
    /// As for [`submit`](Engine::submit), unless it is over when this returns.
    pub unsafe fn run(
        &mut self,
        comm: CommId,
        submission: Submission,
        clock: impl FnOnce() -> Duration,
        pause: impl FnMut(u32),
    ) -> Result<Submitted> {
        if let Some(failure) = &self.comms[comm.0].failure {
            return Err(Error::Failed(failure.clone()));
        }
        let prepared = self.prepare(comm.0, &submission)?;
        let submission = self.number(comm.0, submission);
        let (mut reached, mut gather) = (None, None);
        if self.unfinished == 0
            && let Some(mut straight) = self.straight_of(prepared).take()
        {
            let stands = |&lane: &u32| self.lanes[lane as usize].phase == Phase::Ready;
            straight.ready = straight.ready || straight.lanes.iter().all(stands);
            if straight.ready {
                reached = Some(self.pass(comm.0, prepared, &straight, &submission, pause));
            }
            gather = straight.gather;
            *self.straight_of(prepared) = Some(straight);
        }
        if let Some(None) = reached {
            return Ok(Submitted::Over);
        }
        self.now = clock();
        let operation = self.enqueue(comm.0, prepared, submission);
        if let Some(reached) = reached.flatten() {
            self.carry_on(operation, gather, reached);
        }
        Ok(Submitted::Started(operation))
    }

    fn straight_of(&mut self, prepared: u32) -> &mut Option<Box<Straight>> {
        &mut self.prepared[prepared as usize].as_mut().expect("it was just prepared").straight
    }

    /// Walks a call for as long as something moves. Returns how far it came, if it is not over.
    fn pass(
        &mut self,
        comm: usize,
        prepared: u32,
        straight: &Straight,
        submission: &Submission,
        mut pause: impl FnMut(u32),
    ) -> Option<Reached> {
        let scratch_bytes = self.prepared[prepared as usize].as_ref().map_or(0, |p| p.scratch_bytes);
        let run = RunId(self.free_runs.last().copied().unwrap_or(self.runs.len() as u32));
        let scratch = (scratch_bytes > 0).then(|| self.pool.take(scratch_bytes));
        let staging = straight.gather.map(|gather| {
            let slot = self.free_staged.last().copied().unwrap_or(self.staged.len() as u32);
            (self.pool.take(gather.stride * gather.messages as usize), slot)
        });
        let mut passage = Passage {
            straight,
            submission,
            stamp: submission.call.stamp(self.comms[comm].spec.table),
            reached: Reached { run, walk: Walk::default(), scratch, staging },
        };
        let mut events = std::mem::take(&mut self.events);
        let mut idle = 0;
        self.start_steps(&mut passage);
        while !passage.is_over() && idle < LOOKS && self.foreign.is_empty() {
            let mut moved = false;
            for &port in &straight.ports {
                self.ports[port].endpoint.poll(&mut events, super::POLL_BUDGET);
                moved |= passage.take_done(&mut events);
                self.foreign.extend(events.drain(..).map(|event| (port, event)));
            }
            moved |= self.start_steps(&mut passage);
            idle = if moved { 0 } else { idle + 1 };
            if !moved {
                pause(idle);
            }
        }
        self.events = events;
        if !passage.is_over() {
            return Some(passage.reached);
        }
        let Reached { scratch, staging, .. } = passage.reached;
        for block in scratch.into_iter().chain(staging.map(|(block, _)| block)) {
            self.pool.put(block);
        }
        self.conclude(comm, &submission.call, false);
        self.handle_foreign();
        None
    }

    /// What happened to others while a call went the short way.
    fn handle_foreign(&mut self) {
        for (port, event) in std::mem::take(&mut self.foreign) {
            self.handle_event(port, event);
        }
    }

    /// Starts every step that may start, in program order. Returns whether there was one.
    fn start_steps(&mut self, passage: &mut Passage<'_>) -> bool {
        let before = passage.reached.walk.started;
        let mut waiting = passage.straight.everything() & !before;
        while waiting != 0 {
            let number = waiting.trailing_zeros();
            waiting &= waiting - 1;
            let step = &passage.straight.steps[number as usize];
            let Walk { started, over } = passage.reached.walk;
            if step.after & !over == 0 && step.behind & !started == 0 {
                let post = self.start_step(passage, step, passage.token(number));
                let walk = &mut passage.reached.walk;
                walk.started |= u64::from(post != Some(Post::Full)) << number;
                walk.over |= u64::from(post.is_none()) << number;
            }
        }
        let started = passage.reached.walk.started != before;
        if started {
            for &port in &passage.straight.ports {
                self.ports[port].endpoint.flush();
            }
        }
        started
    }

    /// `None`: it is over already.
    fn start_step(&mut self, passage: &Passage<'_>, step: &Step, token: Token) -> Option<Post> {
        let (reduction, stamp) = (&passage.submission.reduction, passage.stamp);
        let bytes = |place: Place| Bytes { addr: passage.at(place), len: step.len };
        let endpoint = &mut self.ports[step.port].endpoint;
        let sink = match step.what {
            What::Recv { dst } => {
                let dst = passage.at(dst);
                let region = self.buffers.region_of(step.port, dst, step.len);
                Sink::Copy { dst, region, keep: Keep::Keep }
            }
            What::Combine { with: Some(with), dst, last } => Sink::Reduce {
                reduction: *reduction,
                with: passage.operand(with),
                dst: passage.at(dst),
                last,
                keep: Keep::Keep,
            },
            What::Combine { with: None, .. } => unreachable!("several messages are staged"),
            What::Send { src } => {
                let addr = passage.at(src);
                let region = self.buffers.region_of(step.port, addr, step.len);
                let slice = Slice { addr, len: step.len as u32, region };
                // SAFETY: the caller's buffers and the scratch are valid until the operation is over, which is not
                // before the event of this token; the plan's dependencies keep everybody from writing to it meanwhile.
                return Some(unsafe { endpoint.post_send(step.lane, slice, stamp, token) });
            }
            What::Reduce { ref from, dst, last } => {
                let operands = self.scratch_operands(from.iter().map(|&source| passage.operand(source)));
                self.combine(reduction, &operands, bytes(dst), last);
                self.operands = operands;
                return None;
            }
            What::Copy { src, dst, last } => {
                self.copy(reduction, passage.operand(src), bytes(dst), last);
                return None;
            }
            What::Nothing => return None,
        };
        // SAFETY: as for sends; the plan's dependencies keep everybody from touching the destination meanwhile.
        Some(unsafe { endpoint.post_recv(step.lane, step.len as u32, sink, stamp, token) })
    }

    /// Brings an operation, which was just put in line, to where its call came on the short way.
    fn carry_on(&mut self, operation: OperationId, gather: Option<Gather>, reached: Reached) {
        let Reached { run: id, walk, scratch, mut staging } = reached;
        let mut run = self.runs[id.0 as usize].take().expect("it was just started");
        debug_assert_eq!(run.operation, operation, "a run got another number than its tokens bear");
        if let Some(unused) = std::mem::replace(&mut run.scratch, scratch) {
            self.pool.put(unused);
        }
        while let Some(action) = run.execution.poll_action() {
            let is = |set: u64, number: u32| set >> number & 1 == 1;
            let gather = gather.filter(|gather| gather.step == action.step);
            if is(walk.over, action.step) {
                run.execution.handle_done(action);
            } else if let Some(gather) = gather
                && let Some((block, _)) = staging.take()
            {
                let of = |set: u64| move |message: usize| is(set, gather.first + message as u32);
                self.resume_staged(
                    &mut run,
                    id,
                    action,
                    (block, gather.stride),
                    of(walk.started),
                    of(walk.over),
                );
            } else if is(walk.started, action.step) {
                run.outstanding += 1;
            } else {
                run.execution.refuse(action);
                self.refused.push((id, action.step));
                continue;
            }
            self.pass_turns(&mut run, id, action.step);
        }
        if let Some((block, _)) = staging {
            self.pool.put(block);
        }
        self.runs[id.0 as usize] = Some(run);
        self.handle_foreign();
    }
}
