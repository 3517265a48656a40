use super::{Action, Execution};
use crate::plan::{Alias, Builder, Collective, LaneIndex, Operand, Shape, Span, Term};
use std::sync::Arc;

fn builder() -> Builder {
    Builder::new(Collective::AllReduce, 0, &Shape::flat(4), 5, Alias::None, false)
}

/// An execution with open lanes.
fn start(builder: Builder, slices: u32) -> Execution {
    let mut execution = Execution::new(Arc::new(builder.build()), slices);
    open(&mut execution);
    execution
}

fn open(execution: &mut Execution) {
    for lane in 0..execution.plan().lanes().len() as u32 {
        execution.open_lane(LaneIndex(lane));
    }
}

fn poll_all(execution: &mut Execution) -> Vec<(u32, u32)> {
    let mut actions: Vec<_> =
        std::iter::from_fn(|| execution.poll_action()).map(|action| (action.step, action.slice)).collect();
    actions.sort();
    actions
}

fn done(execution: &mut Execution, step: u32, slice: u32) {
    execution.handle_done(Action { step, slice });
}

fn local(span: Span) -> Term {
    Term::Local(Operand { span, raw: false })
}

#[test]
fn lanes_are_in_program_order() {
    let mut b = builder();
    b.recv(1, Span::output(0, 1));
    b.send(2, Span::output(0, 1));
    b.send(2, Span::input(0, 1));
    b.send(3, Span::input(1, 1));
    let mut execution = start(b, 1);
    assert_eq!(poll_all(&mut execution), [(0, 0), (3, 0)], "step 2 could start, but its lane is at step 1");
    done(&mut execution, 0, 0);
    assert_eq!(poll_all(&mut execution), [(1, 0), (2, 0)]);
}

#[test]
fn slices_pipeline_where_spans_match() {
    let mut b = builder();
    b.recv(1, Span::output(0, 1));
    b.send(2, Span::output(0, 1));
    b.send(3, Span::output(0, 2));
    let mut execution = start(b, 2);
    assert_eq!(poll_all(&mut execution), [(0, 0), (0, 1)]);
    done(&mut execution, 0, 1);
    assert_eq!(poll_all(&mut execution), [], "slice 1 of the send waits for slice 0 on its lane");
    done(&mut execution, 0, 0);
    assert_eq!(poll_all(&mut execution), [(1, 0), (1, 1), (2, 0), (2, 1)]);
}

#[test]
fn local_steps_run_when_their_dependencies_are_over() {
    let mut b = builder();
    b.copy(Span::input(0, 1), Span::output(0, 1), false);
    b.send(1, Span::output(0, 1));
    let mut execution = Execution::new(Arc::new(b.build()), 2);
    assert_eq!(poll_all(&mut execution), [(0, 0), (0, 1)], "without any lane being open");
    open(&mut execution);
    done(&mut execution, 0, 0);
    assert_eq!(poll_all(&mut execution), [(1, 0)]);
    done(&mut execution, 0, 1);
    assert_eq!(poll_all(&mut execution), [(1, 1)]);
}

#[test]
fn a_step_of_many_lanes_starts_at_the_head_of_all() {
    let mut b = builder();
    b.recv(1, Span::output(1, 1));
    b.send(3, Span::output(1, 1));
    b.recv(2, Span::output(2, 1));
    b.send(2, Span::output(3, 1));
    b.recv_reduce_many(&[Term::Peer(1), local(Span::input(0, 1)), Term::Peer(2)], Span::output(0, 1), true);
    b.recv(1, Span::output(1, 1));
    b.recv(2, Span::output(4, 1));
    let plan = Arc::new(b.build());
    let lane = |wanted| LaneIndex(plan.lanes().iter().position(|lane| *lane == wanted).unwrap() as u32);
    let mut execution = Execution::new(plan.clone(), 2);
    execution.open_lane(lane(crate::plan::Lane::Recv(1)));
    assert_eq!(poll_all(&mut execution), [(0, 0), (0, 1)]);
    execution.open_lane(lane(crate::plan::Lane::Recv(2)));
    let all: Vec<_> = poll_all(&mut execution);
    assert_eq!(all, [(2, 0), (2, 1), (4, 0), (4, 1), (6, 0), (6, 1)], "step 5 waits for the send of step 1");
    open(&mut execution);
    assert_eq!(poll_all(&mut execution), [(3, 0), (3, 1)]);
    done(&mut execution, 0, 0);
    assert_eq!(poll_all(&mut execution), [(1, 0)]);
}

#[test]
fn a_closed_lane_starts_nothing() {
    let mut b = builder();
    b.send(1, Span::input(0, 1));
    b.send(2, Span::input(0, 1));
    let mut execution = Execution::new(Arc::new(b.build()), 1);
    assert_eq!(poll_all(&mut execution), []);
    execution.open_lane(LaneIndex(1));
    assert_eq!(poll_all(&mut execution), [(1, 0)]);
    assert!(execution.has_posted_all(LaneIndex(1)) && !execution.has_posted_all(LaneIndex(0)));
    execution.open_lane(LaneIndex(0));
    assert_eq!(poll_all(&mut execution), [(0, 0)]);
}

#[test]
fn a_refused_action_keeps_its_place() {
    for refused_slice in 0..2 {
        let mut b = builder();
        b.send(1, Span::input(0, 1));
        b.send(1, Span::input(1, 1));
        b.send(2, Span::input(0, 1));
        let mut execution = start(b, 2);
        let mut started = Vec::new();
        while let Some(action) = execution.poll_action() {
            if (action.step, action.slice) == (0, refused_slice) {
                execution.refuse(action);
            } else {
                started.push((action.step, action.slice));
            }
        }
        let expected: &[_] = if refused_slice == 0 { &[(2, 0), (2, 1)] } else { &[(0, 0), (2, 0), (2, 1)] };
        started.sort();
        assert_eq!(started, expected, "other lanes go on, this one does not");
        assert!(!execution.has_posted_all(LaneIndex(0)));
        execution.unblock(LaneIndex(1));
        assert_eq!(poll_all(&mut execution), [], "another lane does not bring it back");
        execution.unblock(LaneIndex(0));
        assert_eq!(execution.poll_action(), Some(Action { step: 0, slice: refused_slice }));
        let rest = poll_all(&mut execution);
        assert_eq!(*rest.last().unwrap(), (1, 1));
        assert!(execution.has_posted_all(LaneIndex(0)));
    }
}

#[test]
fn any_lane_brings_a_step_of_many_back() {
    for unblocked in [0, 1] {
        let mut b = builder();
        b.recv_reduce_many(&[Term::Peer(1), Term::Peer(2)], Span::output(0, 1), true);
        let mut execution = start(b, 1);
        let action = execution.poll_action().unwrap();
        execution.refuse(action);
        assert_eq!(execution.poll_action(), None);
        execution.unblock(LaneIndex(unblocked));
        assert_eq!(execution.poll_action(), Some(action));
        assert_eq!(execution.poll_action(), None);
    }
}

#[test]
#[should_panic(expected = "is local and cannot be refused")]
fn local_actions_cannot_be_refused() {
    let mut b = builder();
    b.copy(Span::input(0, 1), Span::output(0, 1), false);
    let mut execution = start(b, 1);
    let action = execution.poll_action().unwrap();
    execution.refuse(action);
}

#[test]
fn what_it_waits_for_is_told_oldest_first() {
    let mut b = builder();
    b.recv(1, Span::output(0, 1));
    b.recv(2, Span::output(1, 1));
    let mut execution = start(b, 2);
    assert_eq!(execution.waiting_for().count(), 0);
    poll_all(&mut execution);
    done(&mut execution, 0, 1);
    let waiting: Vec<_> = execution.waiting_for().map(|action| (action.step, action.slice)).collect();
    assert_eq!(waiting, [(0, 0), (1, 0), (1, 1)]);
}

#[test]
fn a_restart_repeats_the_walk() {
    let mut b = builder();
    b.copy(Span::input(0, 1), Span::output(0, 1), false);
    b.send(1, Span::output(0, 1));
    b.recv(2, Span::output(0, 1));
    let mut execution = start(b, 3);
    let walk = |execution: &mut Execution| {
        let mut walk = Vec::new();
        while let Some(action) = execution.poll_action() {
            walk.push(action);
            execution.handle_done(action);
        }
        walk
    };
    let first = walk(&mut execution);
    assert!(execution.is_done());
    assert_eq!(first.len(), 9);
    execution.restart();
    assert!(!execution.is_done());
    assert!(!execution.has_posted_all(LaneIndex(0)));
    open(&mut execution);
    assert_eq!(walk(&mut execution), first);
    assert!(execution.is_done());
}

#[test]
fn an_empty_plan_is_done() {
    let mut execution = start(builder(), 1);
    assert!(execution.is_done());
    assert_eq!(execution.poll_action(), None);
}
