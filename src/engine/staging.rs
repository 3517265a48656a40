//! Reductions that an endpoint does not do itself: several sources, or no fused reduction. The messages are received
//! beside, then combined in one pass, in the order of the plan's terms.
//!
//! Each lane has room for its own staged steps ([`PER_LANE`]), so that no lane waits for another one's memory.

use super::{
    Engine, RunId,
    drive::{Bytes, STAGED, Started},
    memory::Block,
    prepare::Run,
};
use crate::{
    engine::execution::Action,
    plan::{LaneIndex, Op, Term, Terms},
};
use rondel_transport_api::{Keep, Operand, Post, Sink, Token};

/// Staged steps that may wait for messages of one lane: one arrives while the other is combined.
const PER_LANE: u32 = 2;

/// A step whose messages are on their way.
#[derive(Debug)]
pub(crate) struct Staged {
    run: RunId,
    action: Action,
    block: Block,
    /// Bytes from one message's place to the next one's.
    stride: usize,
    /// Messages that are not there yet.
    missing: u32,
    /// One of them will never come, so there is nothing to combine.
    broken: bool,
    dst: *mut u8,
    len: usize,
    terms: Terms,
    last: bool,
}

/// A receive of a staged step that the endpoint refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedPost {
    token: Token,
    dst: *mut u8,
    len: u32,
    stamp: u64,
}

/// Names the receive of one message of a staged step.
pub(super) fn token(staged: u32, lane: usize) -> Token {
    Token(STAGED | u64::from(staged) << 16 | lane as u64)
}

impl Engine {
    pub(super) fn start_staged(&mut self, run: &mut Run, id: RunId, action: Action, len: usize) -> Started {
        let nlanes = run.plan.step_lanes(action.step).len();
        for lane in run.plan.step_lanes(action.step) {
            let lane = &self.lanes[run.lanes[lane.0 as usize] as usize];
            if lane.staged >= PER_LANE || !lane.owed.is_empty() {
                return Started::Refused;
            }
        }
        let stride = len.next_multiple_of(64);
        let block = self.pool.take(stride * nlanes);
        self.resume_staged(run, id, action, (block, stride), |_| false, |_| false);
        Started::Pending
    }

    /// Takes over a staged step of which some receives were `posted`, and some messages are there. `block` is where those
    /// wait, a stride from each to the next.
    pub(super) fn resume_staged(
        &mut self,
        run: &mut Run,
        id: RunId,
        action: Action,
        (block, stride): (Block, usize),
        posted: impl Fn(usize) -> bool,
        there: impl Fn(usize) -> bool,
    ) {
        let Op::RecvReduce { terms, dst, last } = run.plan.steps()[action.step as usize].op else {
            unreachable!("only reductions of messages are staged")
        };
        let dst = run.bytes(dst, action.slice);
        let slot = self.free_staged.pop().unwrap_or_else(|| {
            self.staged.push(None);
            self.staged.len() as u32 - 1
        });
        let mut missing = 0;
        for k in 0..run.plan.step_lanes(action.step).len() {
            if there(k) {
                continue;
            }
            missing += 1;
            let lane = run.lanes[run.plan.step_lanes(action.step)[k].0 as usize];
            let post = OwedPost {
                token: token(slot, k),
                dst: block.as_ptr().wrapping_add(k * stride),
                len: dst.len as u32,
                stamp: run.stamp,
            };
            self.lanes[lane as usize].staged += 1;
            if !posted(k) && !self.post_staged(lane, post) {
                if self.lanes[lane as usize].owed.is_empty() {
                    self.owing.push(lane);
                }
                self.lanes[lane as usize].owed.push_back(post);
            }
        }
        // Owed posts count from the start: the step cannot be over before they were made and done.
        run.outstanding += missing;
        self.staged[slot as usize] = Some(Staged {
            run: id,
            action,
            block,
            stride,
            missing,
            broken: false,
            dst: dst.addr,
            len: dst.len,
            terms,
            last,
        });
    }

    fn post_staged(&mut self, lane: u32, post: OwedPost) -> bool {
        let lane = &self.lanes[lane as usize];
        let port = &mut self.ports[lane.endpoint];
        let sink = Sink::Copy { dst: post.dst, region: None, keep: Keep::Keep };
        // SAFETY: the staged block lives until every one of its posts had its event.
        let answer = unsafe { port.endpoint.post_recv(lane.id, post.len, sink, post.stamp, post.token) };
        port.dirty |= answer == Post::Accepted;
        answer == Post::Accepted
    }

    /// Makes the posts that endpoints refused earlier, as far as they are taken now.
    pub(super) fn post_owed(&mut self) {
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|&lane| {
            while let Some(&post) = self.lanes[lane as usize].owed.front() {
                if !self.post_staged(lane, post) {
                    return true;
                }
                self.lanes[lane as usize].owed.pop_front();
            }
            false
        });
        self.owing = owing;
    }

    pub(super) fn handle_staged_done(&mut self, token: Token) {
        let (slot, k) = ((token.0 & !STAGED) >> 16, (token.0 & 0xffff) as usize);
        let staged = self.staged[slot as usize].as_mut().expect("a staged step outlives its posts");
        staged.missing -= 1;
        let (id, over, broken) = (staged.run, staged.missing == 0, staged.broken);
        let run = self.runs[id.0 as usize].as_mut().expect("a run outlives its posts");
        run.outstanding -= 1;
        let lane = run.lanes[run.plan.step_lanes(staged.action.step)[k].0 as usize];
        let (comm, idle) = (run.comm, run.outstanding == 0);
        self.lanes[lane as usize].staged -= 1;
        if over && broken {
            self.free_staged(slot as u32);
        } else if over {
            self.combine_staged(slot as u32);
        }
        if self.comms[comm].failure.is_none() {
            self.mark_ready(id);
        } else if idle {
            self.reap(comm);
        }
    }

    fn combine_staged(&mut self, slot: u32) {
        let staged = self.staged[slot as usize].take().expect("its last message just came");
        self.free_staged.push(slot);
        let mut run = self.runs[staged.run.0 as usize].take().expect("a run outlives its posts");
        let mut message = 0;
        let of = |term: &Term| match *term {
            Term::Local(operand) => run.operand(operand, staged.action.slice),
            Term::Peer(_) => {
                let addr = staged.block.as_ptr().wrapping_add(message * staged.stride).cast_const();
                message += 1;
                Operand { addr, raw: false }
            }
        };
        let operands = self.scratch_operands(run.plan.terms(staged.terms).iter().map(of));
        self.combine(&run.reduction, &operands, Bytes { addr: staged.dst, len: staged.len }, staged.last);
        self.operands = operands;
        self.pool.put(staged.block);
        run.execution.handle_done(staged.action);
        self.runs[staged.run.0 as usize] = Some(run);
    }

    /// A message of a staged step will not come. Returns whose step it was, and which lane of the plan failed.
    pub(super) fn handle_staged_failed(&mut self, token: Token) -> (RunId, LaneIndex) {
        let (slot, k) = ((token.0 & !STAGED) >> 16, (token.0 & 0xffff) as usize);
        let staged = self.staged[slot as usize].as_mut().expect("a staged step outlives its posts");
        staged.missing -= 1;
        staged.broken = true;
        let (id, step, over) = (staged.run, staged.action.step, staged.missing == 0);
        let run = self.runs[id.0 as usize].as_ref().expect("a run outlives its posts");
        let index = run.plan.step_lanes(step)[k];
        self.lanes[run.lanes[index.0 as usize] as usize].staged -= 1;
        if over {
            self.free_staged(slot as u32);
        }
        (id, index)
    }

    /// A staged step is over without a result.
    fn free_staged(&mut self, slot: u32) {
        let staged = self.staged[slot as usize].take().expect("a staged step ends once");
        self.pool.put(staged.block);
        self.free_staged.push(slot);
    }

    /// Forgets the posts that were never made, when their communicator has failed.
    pub(super) fn drop_owed(&mut self, comm: usize) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].comm != comm {
                continue;
            }
            while let Some(post) = self.lanes[lane].owed.pop_front() {
                let (id, _) = self.handle_staged_failed(post.token);
                if let Some(run) = &mut self.runs[id.0 as usize] {
                    run.outstanding -= 1;
                }
            }
        }
        self.owing.retain(|&lane| self.lanes[lane as usize].comm != comm);
    }
}
