//! Faults made on purpose, one of each kind that a broken algorithm can have.

use super::{Fault, Neighbours, Operation, Reason, Schedule};
use crate::algo::Algorithm;
use crate::plan::partition::Cut;
use crate::plan::{Alias, Builder, Collective, Op, Operand, Shape, Span, Term};
use std::sync::Arc;

const PLAIN: Schedule = Schedule { slices: 1, window: u32::MAX, seed: 1 };

fn toy(chunks: fn(Collective, &Shape) -> u32, build: fn(&mut Builder, Collective, &Shape)) -> Algorithm {
    Algorithm { name: "toy", supports: |_, _| true, chunks, build }
}

fn operation(collective: Collective, nranks: u32, build: fn(&mut Builder, Collective, &Shape)) -> Operation {
    Operation::of(&toy(|_, shape| shape.nranks(), build), collective, &Shape::flat(nranks), |_| false, true)
}

/// The reason of the fault that the checks find.
fn refused(operation: &Operation) -> Reason {
    operation.check().expect_err("the plans are wrong").reason
}

fn local(span: Span) -> Term {
    Term::Local(Operand { span, raw: false })
}

/// Everybody's chunk to everybody; terms in the order of ranks.
fn one_shot(b: &mut Builder, _: Collective, shape: &Shape) {
    let (me, n) = (b.rank(), shape.nranks());
    let all = Span::input(0, n);
    (0..n).filter(|&rank| rank != me).for_each(|rank| b.send(rank, all));
    let term = |rank| if rank == me { local(all) } else { Term::Peer(rank) };
    b.recv_reduce_many(&(0..n).map(term).collect::<Vec<_>>(), Span::output(0, n), true);
}

fn ring(b: &mut Builder, _: Collective, shape: &Shape) {
    let (me, n) = (b.rank(), shape.nranks());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let chunk = |back: u32| (me + 2 * n - back) % n;
    b.send(next, Span::input(chunk(1), 1));
    for back in 2..=n {
        let dst = Span::output(chunk(back), 1);
        b.recv_reduce(previous, Span::input(chunk(back), 1), dst, back == n);
        b.send(next, dst);
    }
    for back in 1..n {
        b.recv(previous, Span::output(chunk(back), 1));
        if back + 1 < n {
            b.send(next, Span::output(chunk(back), 1));
        }
    }
}

#[test]
fn right_plans_pass() {
    for build in [one_shot, ring] {
        for n in 2..6 {
            for in_place in [false, true] {
                let shape = Shape::flat(n);
                let toy = toy(|_, shape| shape.nranks(), build);
                let operation = Operation::of(&toy, Collective::AllReduce, &shape, |_| in_place, true);
                operation.check().unwrap();
                for (seed, slices) in (0..).zip([1, 2, 5]) {
                    for window in [1, u32::MAX] {
                        assert!(operation.run(Schedule { slices, window, seed }).unwrap() > 0);
                    }
                }
                let cut = Cut { count: 1001, element: 3, channels: 2, round_bytes: 1500, slice_bytes: 64 };
                operation.run_bytes(cut, PLAIN).unwrap();
            }
        }
    }
}

#[test]
fn a_circle_of_waits_is_a_deadlock() {
    let operation = operation(Collective::AllReduce, 2, |b, _, _| {
        let other = 1 - b.rank();
        b.recv_reduce(other, Span::input(0, 2), Span::output(0, 2), true);
        b.send(other, Span::output(0, 2));
    });
    operation.check().unwrap();
    let fault = operation.run(PLAIN).unwrap_err();
    assert!(matches!(fault.reason, Reason::Deadlock { .. }), "{fault}");
    assert_eq!(
        fault.to_string(),
        "rank 0 step 0 (receive and reduce into output[0..2]): never ends: deadlock (waits for slice 0 of step 0)"
    );
}

#[test]
fn messages_must_match() {
    let unmatched = operation(Collective::AllReduce, 2, |b, _, _| b.send(1 - b.rank(), Span::input(0, 1)));
    assert_eq!(refused(&unmatched), Reason::Unmatched { to: 1, sends: 1, receives: 0 });
    let unequal = operation(Collective::AllReduce, 2, |b, _, _| {
        let (me, other) = (b.rank(), 1 - b.rank());
        b.send(other, Span::input(0, 1));
        b.recv(other, Span::output(me, 1));
    });
    assert!(matches!(refused(&unequal), Reason::LengthsDiffer { from: 0, .. }));
}

#[test]
fn the_order_of_combination_must_agree() {
    let operation = operation(Collective::AllReduce, 3, |b, collective, shape| match b.rank() {
        0 | 1 => one_shot(b, collective, shape),
        _ => {
            (0..2).for_each(|rank| b.send(rank, Span::input(0, 3)));
            let terms = [local(Span::input(0, 3)), Term::Peer(1), Term::Peer(0)];
            b.recv_reduce_many(&terms, Span::output(0, 3), true);
        }
    });
    operation.check().unwrap();
    assert_eq!(operation.run(PLAIN).unwrap_err().reason, Reason::Bits { at: 0, other: 0 });
}

/// The text of what a run finds wrong with the output.
fn wrong_result(build: fn(&mut Builder, Collective, &Shape)) -> String {
    let operation = operation(Collective::AllReduce, 2, build);
    operation.check().unwrap();
    operation.run(PLAIN).unwrap_err().to_string()
}

#[test]
fn contributions_count_once() {
    let missing = wrong_result(|b, _, _| b.copy(Span::input(0, 2), Span::output(0, 2), true));
    assert!(missing.ends_with("rank 1's contribution is missing"), "{missing}");
    let twice = wrong_result(|b, collective, shape| {
        let sum = b.scratch_like(Span::input(0, 2));
        b.reduce(&[Span::input(0, 2), Span::input(0, 2)], sum, false);
        one_shot(b, collective, shape);
        b.copy(sum, Span::output(0, 2), true);
    });
    assert!(twice.ends_with("it has rank 0's contribution twice"), "{twice}");
    let unfinished = wrong_result(|b, _, _| b.copy(Span::input(0, 2), Span::output(0, 2), false));
    assert!(unfinished.ends_with("it was not finished"), "{unfinished}");
    let nothing = wrong_result(|b, _, _| b.copy(Span::input(0, 1), Span::output(0, 1), true));
    assert!(nothing.starts_with("rank 0: element 1 of the output"), "{nothing}");
}

#[test]
fn results_are_finished_once_and_last() {
    let run = |build| operation(Collective::AllReduce, 2, build).run(PLAIN).unwrap_err().reason;
    let twice = run(|b, _, _| {
        b.copy(Span::input(0, 2), Span::output(0, 2), true);
        b.copy(Span::output(0, 2), Span::output(0, 2), true);
    });
    assert_eq!(twice, Reason::FinishesTwice);
    let early = run(|b, _, _| {
        b.copy(Span::input(0, 2), Span::output(0, 2), true);
        b.reduce(&[Span::output(0, 2), Span::input(0, 2)], Span::output(0, 2), true);
    });
    assert_eq!(early, Reason::CombinesFinished);
}

#[test]
fn a_barrier_without_causality_is_found() {
    let all_at_once = operation(Collective::Barrier, 4, |b, _, _| {
        let me = b.rank();
        for distance in [1, 2] {
            let token = b.scratch_like(Span::input(0, 1));
            b.send((me + distance) % 4, Span::input(0, 1));
            b.recv((me + 4 - distance) % 4, token);
        }
    });
    assert_eq!(refused(&all_at_once), Reason::NotReached { unreached: 1 });
    operation(Collective::Barrier, 1, |_, _, _| {}).check().unwrap();
}

#[test]
fn a_race_shows_in_a_run() {
    let mut operation = operation(Collective::AllReduce, 3, ring);
    let plan = &operation.plans[1];
    let step = (0..plan.steps().len() as u32)
        .find(|&step| matches!(plan.steps()[step as usize].op, Op::Send { .. }) && step > 1)
        .unwrap();
    assert_eq!(plan.dependencies(step).len(), 1);
    let number = (0..step).map(|step| plan.dependencies(step).len()).sum();
    operation.plans[1] = Arc::new(plan.as_ref().clone().without_dependency(number));
    assert!(matches!(refused(&operation), Reason::Unordered { .. }));
    let found = (0..10)
        .filter_map(|seed| operation.run(Schedule { seed, ..PLAIN }).err())
        .any(|fault| matches!(fault.reason, Reason::ReadsWhileWritten { .. } | Reason::Undefined { .. }));
    assert!(found);
}

/// What the static checks say of a step that the builder would not have let through.
fn refused_step(collective: Collective, step: Op) -> Reason {
    let mut builder = Builder::new(collective, 0, &Shape::flat(2), 2, Alias::None, false);
    builder.send(1, Span::input(0, 1));
    builder.program().0[0] = step;
    let mut operation = operation(collective, 2, |_, _, _| {});
    operation.plans[0] = Arc::new(builder.build());
    refused(&operation)
}

#[test]
fn steps_are_checked_one_by_one() {
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let src = Operand { span: input, raw: true };
    let recv = |dst| Op::Recv { from: 1, dst };
    let (all_reduce, all_gather) = (Collective::AllReduce, Collective::AllGather);
    assert_eq!(refused_step(all_reduce, recv(input)), Reason::WritesInput { span: input });
    let span = Span::output(0, 2);
    assert_eq!(refused_step(all_gather, recv(span)), Reason::SeveralBlocks { span });
    let to_nobody = Op::Send { to: 2, src: input };
    assert_eq!(refused_step(all_reduce, to_nobody), Reason::NoSuchPeer { peer: 2, nranks: 2 });
    let finish = Op::Copy { src, dst: output, last: true };
    assert_eq!(refused_step(all_gather, finish), Reason::Finishes { collective: "all_gather" });
    let other = Span::output(1, 1);
    let unequal = Op::Copy { src, dst: other, last: true };
    assert_eq!(refused_step(all_reduce, unequal), Reason::ExtentsDiffer { one: input, other });
}

#[test]
fn shared_buffers_without_order_race() {
    let operation = operation(Collective::AllReduce, 3, ring);
    for seed in 0..20 {
        let schedule = Schedule { slices: 2, window: u32::MAX, seed };
        operation.run_then(&operation, Neighbours::Disjoint, schedule).unwrap();
        operation.run_then(&operation, Neighbours::Ordered, schedule).unwrap();
        let fault: Fault = operation.run_then(&operation, Neighbours::Shared, schedule).unwrap_err();
        assert!(fault.rank < 3);
    }
}
