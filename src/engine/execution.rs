//! The executor, as a sans-IO state machine: it says what to start, and is told what is over.
//!
//! Per lane strictly in program order: this is what makes matching without tags sound. Over endpoints it is the library,
//! over a virtual clock the cost model and simulator, over symbols the verifier.

use crate::plan::{LaneIndex, Plan};
use std::sync::Arc;

/// One slice of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Action {
    /// Index of the step.
    pub step: u32,
    /// Which slice of it.
    pub slice: u32,
}

/// A walk over a plan. Allocates when made, never afterwards.
#[derive(Debug)]
pub struct Execution {
    _private: (),
}

impl Execution {
    /// A fresh walk, with every step cut into `slices`. All lanes are closed: see [`open_lane`](Execution::open_lane).
    pub fn new(plan: Arc<Plan>, slices: u32) -> Self {
        let _ = (plan, slices);
        todo!()
    }
    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        todo!()
    }
    /// Slices of each step.
    pub fn slices(&self) -> u32 {
        todo!()
    }
    /// Starts again from the beginning, with all lanes closed and without allocating.
    pub fn restart(&mut self) {
        todo!()
    }
    /// Allows posts on a lane: it is this execution's turn there.
    pub fn open_lane(&mut self, lane: LaneIndex) {
        let _ = lane;
        todo!()
    }
    /// The next thing to start, if any: its dependencies are over, it is next in program order on every lane that it
    /// uses, and those lanes are open and not refused.
    pub fn poll_action(&mut self) -> Option<Action> {
        todo!()
    }
    /// The last polled action could not be started: an endpoint was full. It will come again after
    /// [`unblock`](Execution::unblock) of its lanes.
    pub fn refuse(&mut self, action: Action) {
        let _ = action;
        todo!()
    }
    /// A lane that was refused may be tried again.
    pub fn unblock(&mut self, lane: LaneIndex) {
        let _ = lane;
        todo!()
    }
    /// An action is over.
    pub fn handle_done(&mut self, action: Action) {
        let _ = action;
        todo!()
    }
    /// Whether everything that belongs to a lane was started: the next operation may use it now.
    pub fn has_posted_all(&self, lane: LaneIndex) -> bool {
        let _ = lane;
        todo!()
    }
    /// Everything is over.
    pub fn is_done(&self) -> bool {
        todo!()
    }
    /// Started and not over, oldest step first: what it is waiting for, for people.
    pub fn waiting_for(&self) -> impl Iterator<Item = Action> + '_ {
        std::iter::empty()
    }
}
