//! Actions become posts, and events become progress.

use super::{Engine, RunId, lane::Phase, prepare::Run};
use crate::{
    engine::execution::Action,
    plan::{self, Buf, Lane, Op, Span, Term, Terms},
};
use rondel_transport_api::{
    Device, Event, Keep, Operand, Post, Ran, Reduction, Sink, Slice, Token, TransportError,
};

/// Bytes of one slice of a span, in this process's memory.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) addr: *mut u8,
    pub(super) len: usize,
}

/// What became of an action.
pub(super) enum Started {
    /// It is over already.
    Over,
    /// An event will tell.
    Pending,
    /// An endpoint was full; nothing changed.
    Refused,
}

impl Run {
    /// Where one slice of a span is.
    pub(super) fn bytes(&self, span: Span, slice: u32) -> Bytes {
        let range = self.partition.bytes(&self.plan, &self.piece, span, slice);
        let base = match span.buf {
            Buf::Input => self.input,
            Buf::Output => self.output,
            Buf::Scratch => self.scratch.as_ref().map_or(std::ptr::null_mut(), |block| block.as_ptr()),
        };
        Bytes { addr: base.wrapping_add(range.start as usize), len: (range.end - range.start) as usize }
    }
    /// Whether what a step stores is worth a place in the caches.
    pub(super) fn keep(&self, step: u32) -> Keep {
        match &self.streams {
            Some(streams) if streams[step as usize] => Keep::Stream,
            _ => Keep::Keep,
        }
    }
    pub(super) fn operand(&self, operand: plan::Operand, slice: u32) -> Operand {
        Operand { addr: self.bytes(operand.span, slice).addr, raw: operand.raw }
    }
}

/// Names a post: which run, step and slice it belongs to.
pub(super) fn token(run: RunId, action: Action) -> Token {
    debug_assert!(run.0 < 1 << 15 && action.step < 1 << 28 && action.slice < 1 << 20);
    Token(u64::from(run.0) << 48 | u64::from(action.step) << 20 | u64::from(action.slice))
}

/// Set in the token of a post that belongs to a staged step.
pub(super) const STAGED: u64 = 1 << 63;

fn action_of(token: Token) -> (RunId, Action) {
    let step = (token.0 >> 20 & 0xfff_ffff) as u32;
    (RunId((token.0 >> 48) as u32), Action { step, slice: (token.0 & 0xf_ffff) as u32 })
}

impl Engine {
    /// Starts everything of a run that may start now.
    pub(super) fn advance(&mut self, id: RunId) {
        let Some(mut run) = self.runs[id.0 as usize].take() else { return };
        run.queued = false;
        if self.comms[run.comm].failure.is_none() {
            while let Some(action) = run.execution.poll_action() {
                match self.start(&mut run, id, action) {
                    Started::Refused => {
                        run.execution.refuse(action);
                        self.refused.push((id, action.step));
                        continue;
                    }
                    Started::Over => run.execution.handle_done(action),
                    Started::Pending => {}
                }
                self.pass_turns(&mut run, id, action.step);
            }
        }
        if run.execution.is_done() {
            self.finish_run(id, run);
        } else {
            self.runs[id.0 as usize] = Some(run);
        }
    }

    /// Where this was the last post of a run on a lane, the next run may post there.
    pub(super) fn pass_turns(&mut self, run: &mut Run, id: RunId, step: u32) {
        for k in 0..run.plan.step_lanes(step).len() {
            let index = run.plan.step_lanes(step)[k];
            if !run.execution.has_posted_all(index) {
                continue;
            }
            let lane = &mut self.lanes[run.lanes[index.0 as usize] as usize];
            let turns = match run.plan.lanes()[index.0 as usize] {
                Lane::Send(_) => &mut lane.sending,
                Lane::Recv(_) => &mut lane.receiving,
            };
            if let Some((next, lane)) = turns.pass(id)
                && let Some(next_run) = &mut self.runs[next.0 as usize]
            {
                next_run.execution.open_lane(lane);
                self.mark_ready(next);
            }
        }
    }

    pub(super) fn mark_ready(&mut self, id: RunId) {
        if let Some(run) = &mut self.runs[id.0 as usize]
            && !run.queued
        {
            run.queued = true;
            self.ready.push(id);
        }
    }

    fn start(&mut self, run: &mut Run, id: RunId, action: Action) -> Started {
        let Action { step, slice } = action;
        match run.plan.steps()[step as usize].op {
            Op::Send { src, .. } => self.start_send(run, id, action, src),
            Op::Recv { dst, .. } => {
                let bytes = run.bytes(dst, slice);
                let port = self.lanes[self.lane_of(run, step) as usize].endpoint;
                let region = self.buffers.region_of(port, bytes.addr, bytes.len);
                let sink = Sink::Copy { dst: bytes.addr, region, keep: run.keep(step) };
                self.start_recv(run, id, action, bytes.len, sink)
            }
            Op::RecvReduce { terms, dst, last } => self.start_recv_reduce(run, id, action, terms, dst, last),
            Op::Reduce { terms, dst, last } => {
                let dst = run.bytes(dst, slice);
                let of = |term: &Term| match *term {
                    Term::Local(operand) => run.operand(operand, slice),
                    Term::Peer(_) => unreachable!("a local reduction has no peers"),
                };
                let operands = self.scratch_operands(run.plan.terms(terms).iter().map(of));
                self.combine(&run.reduction, &operands, dst, last);
                self.operands = operands;
                Started::Over
            }
            Op::Copy { src, dst, last } => {
                let dst = run.bytes(dst, slice);
                self.copy(&run.reduction, run.operand(src, slice), dst, last);
                Started::Over
            }
        }
    }

    fn start_send(&mut self, run: &mut Run, id: RunId, action: Action, src: Span) -> Started {
        let bytes = run.bytes(src, action.slice);
        if bytes.len == 0 {
            return Started::Over;
        }
        let lane = &self.lanes[self.lane_of(run, action.step) as usize];
        let port = &mut self.ports[lane.endpoint];
        let region = self.buffers.region_of(lane.endpoint, bytes.addr, bytes.len);
        let slice = Slice { addr: bytes.addr, len: bytes.len as u32, region };
        // SAFETY: the caller's buffers and the run's scratch are valid until the run is over, which is not before the
        // event of this token; the plan's dependencies keep everybody from writing to it meanwhile.
        let post = unsafe { port.endpoint.post_send(lane.id, slice, run.stamp, token(id, action)) };
        port.dirty |= post == Post::Accepted;
        accepted(post, run)
    }

    fn start_recv(&mut self, run: &mut Run, id: RunId, action: Action, len: usize, sink: Sink) -> Started {
        if len == 0 {
            return Started::Over;
        }
        let lane = &self.lanes[self.lane_of(run, action.step) as usize];
        if !lane.owed.is_empty() {
            return Started::Refused;
        }
        let port = &mut self.ports[lane.endpoint];
        // SAFETY: as for sends; the plan's dependencies keep everybody from touching the destination meanwhile.
        let post =
            unsafe { port.endpoint.post_recv(lane.id, len as u32, sink, run.stamp, token(id, action)) };
        port.dirty |= post == Post::Accepted;
        accepted(post, run)
    }

    fn start_recv_reduce(
        &mut self,
        run: &mut Run,
        id: RunId,
        action: Action,
        terms: Terms,
        dst: Span,
        last: bool,
    ) -> Started {
        let bytes = run.bytes(dst, action.slice);
        if bytes.len == 0 {
            return Started::Over;
        }
        let with = match run.plan.terms(terms) {
            [Term::Local(with), Term::Peer(_)] | [Term::Peer(_), Term::Local(with)] => Some(*with),
            _ => None,
        };
        let fused = with.filter(|_| {
            let lane = &self.lanes[self.lane_of(run, action.step) as usize];
            self.ports[lane.endpoint].reduces
        });
        match fused {
            Some(with) => {
                let sink = Sink::Reduce {
                    reduction: run.reduction,
                    with: run.operand(with, action.slice),
                    dst: bytes.addr,
                    last,
                    keep: run.keep(action.step),
                };
                self.start_recv(run, id, action, bytes.len, sink)
            }
            None => self.start_staged(run, id, action, bytes.len),
        }
    }

    /// The engine's lane of a step that uses exactly one.
    pub(super) fn lane_of(&self, run: &Run, step: u32) -> u32 {
        run.lanes[run.plan.step_lanes(step)[0].0 as usize]
    }

    /// `dst = operands[0] (+) operands[1] ...`
    pub(super) fn combine(&mut self, reduction: &Reduction, operands: &[Operand], dst: Bytes, last: bool) {
        if dst.len == 0 {
            return;
        }
        let count = dst.len / reduction.dtype.size();
        // SAFETY: the plan's steps name memory of their run, and their dependencies keep everybody else away from it.
        let ran =
            unsafe { self.device.reduce(reduction, operands, dst.addr, count, last, Keep::Keep, Token(0)) };
        debug_assert_eq!(ran, Ran::Done, "host memory is combined at once");
    }

    pub(super) fn copy(&mut self, reduction: &Reduction, src: Operand, dst: Bytes, last: bool) {
        let scales = src.raw && reduction.pre.is_some();
        let finishes = last && reduction.divide.is_some();
        if scales || finishes {
            return self.combine(reduction, &[src], dst, last);
        }
        if dst.len == 0 || src.addr == dst.addr.cast_const() {
            return;
        }
        // SAFETY: as for `combine`; a copy's two spans are different chunks or buffers.
        let ran = unsafe { self.device.copy(src.addr, dst.addr, dst.len, Keep::Keep, Token(0)) };
        debug_assert_eq!(ran, Ran::Done, "host memory is copied at once");
    }

    /// The list of operands of the last reduction, emptied and filled again: no allocation on the warm path.
    pub(super) fn scratch_operands(&mut self, operands: impl Iterator<Item = Operand>) -> Vec<Operand> {
        let mut list = std::mem::take(&mut self.operands);
        list.clear();
        list.extend(operands);
        list
    }

    /// Lets refused posts try again.
    pub(super) fn retry_refused(&mut self) {
        self.post_owed();
        for k in 0..self.refused.len() {
            let (id, step) = self.refused[k];
            if let Some(run) = &mut self.runs[id.0 as usize] {
                for lane in 0..run.plan.step_lanes(step).len() {
                    let lane = run.plan.step_lanes(step)[lane];
                    run.execution.unblock(lane);
                }
                self.mark_ready(id);
            }
        }
        self.refused.clear();
    }

    pub(super) fn handle_event(&mut self, port: usize, event: Event) {
        match event {
            Event::Done { token } if token.0 & STAGED != 0 => self.handle_staged_done(token),
            Event::Done { token } => {
                let (id, action) = action_of(token);
                let run = self.runs[id.0 as usize].as_mut().expect("a run outlives its posts");
                run.outstanding -= 1;
                run.execution.handle_done(action);
                let (comm, over) = (run.comm, run.outstanding == 0);
                if self.comms[comm].failure.is_none() {
                    self.mark_ready(id);
                } else if over {
                    self.reap(comm);
                }
            }
            Event::Failed { token, error } => self.handle_failed_post(token, error),
            Event::Established { lane } => {
                if let Some(&lane) = self.ports[port].lanes.get(&lane) {
                    let lane = &mut self.lanes[lane as usize];
                    lane.phase = Phase::Ready;
                    if self.comms[lane.comm].closed {
                        self.ports[port].endpoint.close(lane.id);
                    }
                }
            }
            Event::Closed { lane, cause } => {
                if let Some(lane) = self.ports[port].lanes.remove(&lane) {
                    self.handle_closed(lane, cause);
                }
            }
        }
    }

    fn handle_failed_post(&mut self, token: Token, error: TransportError) {
        let (id, staged_lane) = match token.0 & STAGED {
            0 => (action_of(token).0, None),
            _ => {
                let (id, lane) = self.handle_staged_failed(token);
                (id, Some(lane))
            }
        };
        let run = self.runs[id.0 as usize].as_mut().expect("a run outlives its posts");
        run.outstanding -= 1;
        let (comm, over) = (run.comm, run.outstanding == 0);
        if self.comms[comm].failure.is_some() {
            if over {
                self.reap(comm);
            }
            return;
        }
        let lane = staged_lane.unwrap_or_else(|| run.plan.step_lanes(action_of(token).1.step)[0]);
        let peer = run.plan.lanes()[lane.0 as usize].peer();
        let operation = run.operation;
        self.handle_broken(comm, peer, operation, error);
    }
}

fn accepted(post: Post, run: &mut Run) -> Started {
    match post {
        Post::Accepted => {
            run.outstanding += 1;
            Started::Pending
        }
        Post::Full => Started::Refused,
    }
}
