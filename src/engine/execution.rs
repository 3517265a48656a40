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

/// Values of `Execution::waiting` above any number of dependencies.
const STARTED: u32 = u32::MAX;
const OVER: u32 = u32::MAX - 1;

/// A step that waits for another one.
#[derive(Clone, Copy, Debug)]
struct Dependent {
    step: u32,
    whole: bool,
}

/// How far one lane is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Its next step, as an index of `Execution::lane_steps`, and one past its last.
    next: u32,
    end: u32,
    slice: u32,
    open: bool,
    refused: bool,
    /// It is on the list of lanes worth a look.
    queued: bool,
}

/// A lane worth a look, below the step that it is at: one word, so that it is compared and moved in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look(u64);

impl Look {
    fn new(step: u32, lane: LaneIndex) -> Self {
        Look(u64::from(step) << 32 | u64::from(lane.0))
    }
    fn lane(self) -> LaneIndex {
        LaneIndex(self.0 as u32)
    }
}

/// A walk over a plan. Allocates when made, never afterwards.
#[derive(Debug)]
pub struct Execution {
    plan: Arc<Plan>,
    slices: u32,
    // What follows from the plan.
    dependents: Box<[Dependent]>,
    /// Where each step's dependents start; one more than there are steps.
    first_dependent: Box<[u32]>,
    /// Steps in program order, lane by lane.
    lane_steps: Box<[u32]>,
    fresh_waiting: Box<[u32]>,
    fresh_lanes: Box<[Progress]>,
    fresh_local: Box<[Action]>,
    // How far it is.
    /// For each slice of each step, the dependencies that are not over, or `STARTED` or `OVER`.
    waiting: Box<[u32]>,
    /// Slices of each step that are not over.
    left: Box<[u32]>,
    lanes: Box<[Progress]>,
    /// Lanes worth a look, the one with the earliest step last. They are few, and most come in order.
    ready: Vec<Look>,
    /// Actions without lanes whose dependencies are over.
    local: Vec<Action>,
    remaining: u64,
}

impl Execution {
    /// A fresh walk, with every step cut into `slices`. All lanes are closed: see [`open_lane`](Execution::open_lane).
    ///
    /// # Panics
    ///
    /// When `slices` is zero, or there are more actions than 2^32.
    pub fn new(plan: Arc<Plan>, slices: u32) -> Self {
        let nsteps = plan.steps().len();
        let actions = nsteps * slices as usize;
        assert!(slices > 0, "steps are cut into at least one slice");
        assert!(
            u32::try_from(actions).is_ok(),
            "{nsteps} steps of {slices} slices are too many for one execution"
        );
        let (dependents, first_dependent) = dependents(&plan);
        let (lane_steps, fresh_lanes) = lanes(&plan);
        let mut fresh_waiting = Vec::with_capacity(actions);
        let mut fresh_local = Vec::new();
        let mut local_actions = 0;
        for step in 0..nsteps as u32 {
            let waits = plan.dependencies(step).len() as u32;
            fresh_waiting.extend(std::iter::repeat_n(waits, slices as usize));
            if plan.step_lanes(step).is_empty() {
                local_actions += slices as usize;
                if waits == 0 {
                    fresh_local.extend((0..slices).rev().map(|slice| Action { step, slice }));
                }
            }
        }
        let mut execution = Execution {
            slices,
            dependents,
            first_dependent,
            lane_steps,
            waiting: fresh_waiting.clone().into(),
            fresh_waiting: fresh_waiting.into(),
            left: vec![slices; nsteps].into(),
            ready: Vec::with_capacity(fresh_lanes.len()),
            lanes: fresh_lanes.clone(),
            fresh_lanes,
            local: Vec::with_capacity(local_actions),
            fresh_local: fresh_local.into(),
            remaining: 0,
            plan,
        };
        execution.restart();
        execution
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Slices of each step.
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// Starts again from the beginning, with all lanes closed and without allocating.
    pub fn restart(&mut self) {
        self.waiting.copy_from_slice(&self.fresh_waiting);
        self.left.fill(self.slices);
        self.lanes.copy_from_slice(&self.fresh_lanes);
        self.ready.clear();
        self.local.clear();
        self.local.extend_from_slice(&self.fresh_local);
        self.remaining = self.waiting.len() as u64;
    }

    /// Allows posts on a lane: it is this execution's turn there.
    pub fn open_lane(&mut self, lane: LaneIndex) {
        self.lanes[lane.0 as usize].open = true;
        self.look_at(lane);
    }

    /// The next thing to start, if any: its dependencies are over, it is next in program order on every lane that it
    /// uses, and those lanes are open and not refused. Earlier steps come first, since peers wait for them first; local
    /// work comes after everything that a peer may wait for.
    pub fn poll_action(&mut self) -> Option<Action> {
        while let Some(look) = self.ready.last() {
            let lane = look.lane();
            if let Some(action) = self.startable(lane) {
                self.advance(action);
                return Some(action);
            }
            self.lanes[lane.0 as usize].queued = false;
            self.ready.pop();
        }
        let action = self.local.pop()?;
        let index = self.index(action);
        self.waiting[index] = STARTED;
        Some(action)
    }

    /// The last polled action could not be started: an endpoint was full. It will come again after
    /// [`unblock`](Execution::unblock) of any of its lanes.
    ///
    /// # Panics
    ///
    /// When the action is local, since no lane can bring it back, or (in debug builds) not the last of its lanes.
    pub fn refuse(&mut self, action: Action) {
        let plan = &self.plan;
        let step_lanes = plan.step_lanes(action.step);
        assert!(!step_lanes.is_empty(), "{action:?} of rank {} is local and cannot be refused", plan.rank());
        for lane in step_lanes {
            let progress = &mut self.lanes[lane.0 as usize];
            if action.slice + 1 == self.slices {
                progress.next -= 1;
            }
            progress.slice = action.slice;
            progress.refused = true;
            debug_assert_eq!(self.lane_steps[progress.next as usize], action.step, "refused out of order");
        }
        let index = self.index(action);
        debug_assert_eq!(self.waiting[index], STARTED, "refused without having been polled");
        self.waiting[index] = 0;
    }

    /// A lane that was refused may be tried again, with the other lanes of the step that was refused there.
    pub fn unblock(&mut self, lane: LaneIndex) {
        let progress = self.lanes[lane.0 as usize];
        if progress.refused {
            let step = self.lane_steps[progress.next as usize];
            for lane in self.plan.step_lanes(step) {
                self.lanes[lane.0 as usize].refused = false;
            }
            self.look_at(lane);
        }
    }

    /// An action is over.
    pub fn handle_done(&mut self, action: Action) {
        let index = self.index(action);
        debug_assert_eq!(self.waiting[index], STARTED, "{action:?} is over without having been started");
        self.waiting[index] = OVER;
        self.remaining -= 1;
        let left = &mut self.left[action.step as usize];
        *left -= 1;
        let step_over = *left == 0;
        let step = action.step as usize;
        for at in self.first_dependent[step] as usize..self.first_dependent[step + 1] as usize {
            let Dependent { step, whole } = self.dependents[at];
            if !whole {
                self.fulfil(Action { step, slice: action.slice });
            } else if step_over {
                for slice in 0..self.slices {
                    self.fulfil(Action { step, slice });
                }
            }
        }
    }

    /// Whether everything that belongs to a lane was started: the next operation may use it now.
    pub fn has_posted_all(&self, lane: LaneIndex) -> bool {
        let progress = &self.lanes[lane.0 as usize];
        progress.next == progress.end
    }

    /// Everything is over.
    pub fn is_done(&self) -> bool {
        self.remaining == 0
    }

    /// Started and not over, oldest step first: what it is waiting for, for people.
    pub fn waiting_for(&self) -> impl Iterator<Item = Action> + '_ {
        let slices = self.slices;
        let started = self.waiting.iter().enumerate().filter(|&(_, &waiting)| waiting == STARTED);
        started.map(move |(index, _)| Action { step: index as u32 / slices, slice: index as u32 % slices })
    }

    /// The next action of a lane, if it may start on this and all of its other lanes.
    fn startable(&self, lane: LaneIndex) -> Option<Action> {
        let progress = &self.lanes[lane.0 as usize];
        if progress.next == progress.end || !progress.open || progress.refused {
            return None;
        }
        let action = Action { step: self.lane_steps[progress.next as usize], slice: progress.slice };
        if self.waiting[self.index(action)] != 0 {
            return None;
        }
        let lanes = self.plan.step_lanes(action.step);
        let at_head = |lane: &LaneIndex| {
            let progress = &self.lanes[lane.0 as usize];
            progress.open
                && !progress.refused
                && progress.next < progress.end
                && progress.slice == action.slice
                && self.lane_steps[progress.next as usize] == action.step
        };
        (lanes.len() == 1 || lanes.iter().all(at_head)).then_some(action)
    }

    /// The first of the lanes worth a look starts an action.
    fn advance(&mut self, action: Action) {
        let index = self.index(action);
        self.waiting[index] = STARTED;
        let lanes = self.plan.step_lanes(action.step).len();
        for k in 0..lanes {
            let progress = &mut self.lanes[self.plan.step_lanes(action.step)[k].0 as usize];
            progress.slice += 1;
            if progress.slice == self.slices {
                progress.slice = 0;
                progress.next += 1;
            }
        }
        if action.slice + 1 == self.slices {
            self.look_again();
        }
        // The lanes of a step move together; what comes next on the others may be startable now.
        for k in 0..if lanes > 1 { lanes } else { 0 } {
            self.look_at(self.plan.step_lanes(action.step)[k]);
        }
    }

    /// The first of the lanes worth a look is at its next step.
    fn look_again(&mut self) {
        let at = self.ready.len() - 1;
        let lane = self.ready[at].lane();
        let progress = &mut self.lanes[lane.0 as usize];
        if progress.next == progress.end {
            progress.queued = false;
            self.ready.pop();
        } else {
            self.ready[at] = Look::new(self.lane_steps[progress.next as usize], lane);
            self.order(at);
        }
    }

    /// One dependency of an action is over.
    fn fulfil(&mut self, action: Action) {
        let index = self.index(action);
        self.waiting[index] -= 1;
        if self.waiting[index] == 0 {
            match self.plan.step_lanes(action.step).first() {
                Some(&lane) => self.look_at(lane),
                None => self.local.push(action),
            }
        }
    }

    fn look_at(&mut self, lane: LaneIndex) {
        let progress = &mut self.lanes[lane.0 as usize];
        if !progress.queued && progress.next < progress.end {
            progress.queued = true;
            let step = self.lane_steps[progress.next as usize];
            self.ready.push(Look::new(step, lane));
            self.order(self.ready.len() - 1);
        }
    }

    /// Brings the last of the lanes worth a look to its place.
    fn order(&mut self, mut at: usize) {
        while at > 0 && self.ready[at - 1] < self.ready[at] {
            self.ready.swap(at - 1, at);
            at -= 1;
        }
    }

    fn index(&self, action: Action) -> usize {
        action.step as usize * self.slices as usize + action.slice as usize
    }
}

/// For each step those that depend on it, and where each step's start.
fn dependents(plan: &Plan) -> (Box<[Dependent]>, Box<[u32]>) {
    let nsteps = plan.steps().len() as u32;
    let mut first = vec![0u32; nsteps as usize + 1];
    for dependency in (0..nsteps).flat_map(|step| plan.dependencies(step)) {
        first[dependency.step as usize + 1] += 1;
    }
    for step in 0..nsteps as usize {
        first[step + 1] += first[step];
    }
    let mut dependents = vec![Dependent { step: 0, whole: false }; first[nsteps as usize] as usize];
    let mut at = first.clone();
    for step in 0..nsteps {
        for dependency in plan.dependencies(step) {
            let at = &mut at[dependency.step as usize];
            dependents[*at as usize] = Dependent { step, whole: dependency.whole };
            *at += 1;
        }
    }
    (dependents.into(), first.into())
}

/// The steps of each lane in program order, lane by lane, and where each lane begins.
fn lanes(plan: &Plan) -> (Box<[u32]>, Box<[Progress]>) {
    let nsteps = plan.steps().len() as u32;
    let closed = Progress { next: 0, end: 0, slice: 0, open: false, refused: false, queued: false };
    let mut lanes = vec![closed; plan.lanes().len()];
    for lane in (0..nsteps).flat_map(|step| plan.step_lanes(step)) {
        lanes[lane.0 as usize].end += 1;
    }
    let mut total = 0;
    for lane in &mut lanes {
        (lane.next, total) = (total, total + lane.end);
        lane.end = lane.next;
    }
    let mut steps = vec![0; total as usize];
    for step in 0..nsteps {
        for lane in plan.step_lanes(step) {
            let lane = &mut lanes[lane.0 as usize];
            steps[lane.end as usize] = step;
            lane.end += 1;
        }
    }
    (steps.into(), lanes.into())
}

#[cfg(test)]
mod tests;
