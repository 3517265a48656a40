use crate::plan::{Alias, Buf, Builder, Collective, Dependency, Lane, Op, Operand, Plan, Shape, Span, Term};
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn builder(collective: Collective, nranks: u32, nchunks: u32, alias: Alias, prescale: bool) -> Builder {
    Builder::new(collective, 0, &Shape::flat(nranks), nchunks, alias, prescale)
}

fn all_reduce(nchunks: u32, alias: Alias, prescale: bool) -> Builder {
    builder(Collective::AllReduce, 2, nchunks, alias, prescale)
}

fn operands(plan: &Plan, step: usize) -> Vec<Operand> {
    plan.reads(&plan.steps()[step].op).collect()
}

#[test]
fn in_place_buffers_have_one_name() {
    let mut b = builder(Collective::AllGather, 4, 1, Alias::InputAt(2), false);
    b.copy(Span::input(0, 1), Span::output(2, 1), false);
    b.send(1, Span::input(0, 1));
    let plan = b.build();
    assert_eq!(plan.steps().len(), 1, "the copy onto itself is no step");
    assert_eq!(plan.steps()[0].op, Op::Send { to: 1, src: Span::output(2, 1) });

    let mut b = builder(Collective::ReduceScatter, 4, 1, Alias::OutputAt(3), false);
    b.recv(1, Span::output(0, 1));
    assert_eq!(b.build().steps()[0].op, Op::Recv { from: 1, dst: Span::input(3, 1) });
}

#[test]
fn input_is_raw_until_it_is_overwritten() {
    for (alias, still_raw) in [(Alias::None, true), (Alias::InputAt(0), false)] {
        let mut b = all_reduce(2, alias, false);
        b.recv_reduce(1, Span::input(0, 1), Span::output(0, 1), false);
        b.reduce(&[Span::input(0, 1), Span::input(1, 1)], Span::output(0, 1), false);
        b.reduce(&[Span::output(0, 1), Span::input(1, 1)], Span::output(0, 1), false);
        let plan = b.build();
        let raw = |step| operands(&plan, step).iter().map(|operand| operand.raw).collect::<Vec<_>>();
        assert_eq!(raw(0), [true]);
        assert_eq!(raw(1), [still_raw, true]);
        assert_eq!(raw(2), [false, true]);
    }
}

#[test]
fn sends_of_untouched_input_are_scaled_once() {
    let mut b = all_reduce(2, Alias::InputAt(0), true);
    b.send(1, Span::input(0, 1));
    b.send(1, Span::input(0, 1));
    b.recv(1, Span::output(0, 1));
    b.send(1, Span::input(0, 1));
    let plan = b.build();
    let copy = Span { buf: Buf::Scratch, chunk: 0, len: 1 };
    let raw = Operand { span: Span::output(0, 1), raw: true };
    let ops: Vec<Op> = plan.steps().iter().map(|step| step.op).collect();
    assert_eq!(
        ops,
        [
            Op::Copy { src: raw, dst: copy, last: false },
            Op::Send { to: 1, src: copy },
            Op::Send { to: 1, src: copy },
            Op::Recv { from: 1, dst: Span::output(0, 1) },
            Op::Send { to: 1, src: Span::output(0, 1) },
        ]
    );
    assert_eq!(plan.scratch(), [0]);
}

#[test]
fn nothing_is_scaled_where_nothing_is_reduced() {
    let mut b = builder(Collective::Broadcast, 2, 1, Alias::InputAt(0), true);
    b.copy(Span::input(0, 1), Span::output(0, 1), false);
    b.send(1, Span::input(0, 1));
    assert_eq!(b.build().steps().len(), 1);
}

#[test]
fn a_copy_onto_itself_stays_where_it_scales_or_finishes() {
    for (prescale, last, steps) in [(false, false, 0), (true, false, 1), (false, true, 1)] {
        let mut b = all_reduce(1, Alias::InputAt(0), prescale);
        b.copy(Span::input(0, 1), Span::output(0, 1), last);
        assert_eq!(b.build().steps().len(), steps);
    }
}

#[test]
fn equal_spans_depend_slice_by_slice_and_others_whole() {
    let mut b = all_reduce(2, Alias::None, false);
    b.recv(1, Span::output(0, 2));
    b.send(1, Span::output(0, 2));
    b.send(1, Span::output(1, 1));
    b.recv(1, Span::output(1, 1));
    let plan = b.build();
    assert_eq!(plan.dependencies(1), [Dependency { step: 0, whole: false }]);
    assert_eq!(plan.dependencies(2), [Dependency { step: 0, whole: true }]);
    let mut last = plan.dependencies(3).to_vec();
    last.sort_by_key(|dependency| dependency.step);
    assert_eq!(last, [Dependency { step: 1, whole: true }, Dependency { step: 2, whole: false }]);
}

#[test]
fn lanes_are_numbered_once() {
    let mut b = builder(Collective::AllReduce, 4, 1, Alias::None, false);
    b.send(1, Span::input(0, 1));
    let terms = [Term::Peer(2), Term::Local(Operand { span: Span::input(0, 1), raw: false }), Term::Peer(1)];
    b.recv_reduce_many(&terms, Span::output(0, 1), true);
    b.recv(2, Span::output(0, 1));
    let plan = b.build();
    assert_eq!(plan.lanes(), [Lane::Send(1), Lane::Recv(2), Lane::Recv(1)]);
    let numbers = |step| plan.step_lanes(step).iter().map(|lane| lane.0).collect::<Vec<_>>();
    assert_eq!([numbers(0), numbers(1), numbers(2)], [vec![0], vec![1, 2], vec![1]]);
}

#[test]
#[should_panic(expected = "rank 0 step 1: output[0..2] mixes 1 chunks of untouched input")]
fn partly_raw_operands_are_refused() {
    let mut b = all_reduce(2, Alias::InputAt(0), false);
    b.recv(1, Span::output(0, 1));
    b.copy(Span::input(0, 2), Span::output(0, 2), true);
}

#[test]
#[should_panic(expected = "names several blocks")]
fn several_blocks_are_refused() {
    let mut b = builder(Collective::AllGather, 4, 1, Alias::None, false);
    b.recv(1, Span::output(0, 2));
    b.build();
}

#[test]
fn an_unsplittable_plan_may_name_several_blocks() {
    let mut b = builder(Collective::AllGather, 4, 1, Alias::None, false);
    b.recv(1, Span::output(0, 2));
    b.unsplittable();
    assert!(!b.build().is_splittable());
}

#[test]
#[should_panic(expected = "spans two allocations of scratch")]
fn scratch_of_two_allocations_is_refused() {
    let mut b = all_reduce(2, Alias::None, false);
    let first = b.scratch_like(Span::input(0, 1));
    b.scratch_like(Span::input(1, 1));
    b.recv(1, Span { len: 2, ..first });
}

#[test]
#[should_panic(expected = "the caller's input")]
fn the_input_is_never_written() {
    all_reduce(1, Alias::None, false).recv(1, Span::input(0, 1));
}

#[test]
#[should_panic(expected = "overlap in part")]
fn partial_overlap_is_refused() {
    all_reduce(3, Alias::InputAt(0), false).copy(Span::input(0, 2), Span::output(1, 2), false);
}

#[test]
fn a_large_ring_is_planned_in_near_linear_time() {
    const RANKS: u32 = 100_000;
    let mut b = builder(Collective::AllReduce, RANKS, RANKS, Alias::InputAt(0), false);
    let start = Instant::now();
    for chunk in 0..RANKS {
        b.send(1, Span::output(chunk, 1));
        b.recv_reduce(RANKS - 1, Span::input(chunk, 1), Span::output(chunk, 1), true);
    }
    let plan = b.build();
    assert_eq!(plan.steps().len(), 200_000);
    assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
}

/// A step of a random program, over four chunks of each buffer.
fn any_step() -> impl Strategy<Value = (u8, u32, u32, u32, u32)> {
    (0..4u8, 0..12u32, 0..12u32, 0..12u32, 1..3u32)
}

/// The span of this number and at most this length; scratch has an allocation of four chunks.
fn span(number: u32, len: u32) -> Span {
    let buf = [Buf::Output, Buf::Scratch, Buf::Input][number as usize / 4];
    let chunk = number % 4;
    Span { buf, chunk, len: len.min(4 - chunk) }
}

fn random_plan(steps: &[(u8, u32, u32, u32, u32)]) -> Plan {
    let mut b = all_reduce(4, Alias::None, false);
    b.scratch_like(Span::input(0, 4));
    for &(kind, a, c, d, len) in steps {
        let (a, c, dst) = (span(a, len), span(c, len), span(d % 8, len));
        let fits = |src: Span| src == dst || !src.overlaps(dst);
        match kind {
            0 => b.send(1, a),
            1 => b.recv(1, dst),
            2 if fits(a) => b.recv_reduce(1, a, dst, false),
            3 if fits(a) && fits(c) => b.reduce(&[a, c], dst, false),
            _ => {}
        }
    }
    b.build()
}

/// The overlapping accesses of two steps of which at least one writes: whether there are any, and whether all of them
/// have equal spans.
fn conflict(plan: &Plan, earlier: u32, later: u32) -> Option<bool> {
    let [a, b] = [earlier, later].map(|step| plan.steps()[step as usize].op);
    let reads = |op: &Op| plan.reads(op).map(|operand| operand.span).collect::<Vec<_>>();
    let mut pairs: Vec<(Span, Span)> = a.dst().into_iter().zip(b.dst()).collect();
    pairs.extend(a.dst().into_iter().flat_map(|dst| reads(&b).into_iter().map(move |src| (dst, src))));
    pairs.extend(b.dst().into_iter().flat_map(|dst| reads(&a).into_iter().map(move |src| (dst, src))));
    pairs.retain(|(a, b)| a.overlaps(*b));
    (!pairs.is_empty()).then(|| pairs.iter().all(|(a, b)| a == b))
}

proptest! {
    /// Every conflict is ordered, as coarsely as it must be and no coarser, and every dependency is a conflict.
    #[test]
    fn dependencies_order_exactly_the_conflicts(steps in prop::collection::vec(any_step(), 0..30)) {
        const SLICES: usize = 2;
        let plan = random_plan(&steps);
        let nsteps = plan.steps().len();
        // Bit (step, slice) of entry (step, slice): is over before it.
        let mut before = vec![0u64; nsteps * SLICES];
        for step in 0..nsteps {
            for slice in 0..SLICES {
                for dependency in plan.dependencies(step as u32) {
                    for other in 0..SLICES {
                        if dependency.whole || other == slice {
                            let node = dependency.step as usize * SLICES + other;
                            before[step * SLICES + slice] |= before[node] | 1 << node;
                        }
                    }
                }
            }
        }
        for later in 0..nsteps {
            for earlier in 0..later {
                let conflict = conflict(&plan, earlier as u32, later as u32);
                if let Some(equal) = conflict {
                    for (slice, other) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        let ordered = before[later * SLICES + slice] >> (earlier * SLICES + other) & 1 == 1;
                        prop_assert!(ordered || equal && slice != other, "{plan:?}: {earlier} {later}");
                    }
                }
                let direct =
                    plan.dependencies(later as u32).iter().find(|dependency| dependency.step == earlier as u32);
                if let Some(direct) = direct {
                    let coarse = direct.whole && conflict == Some(true);
                    prop_assert!(conflict.is_some() && !coarse, "{plan:?}: {earlier} {later}");
                }
            }
        }
    }
}

#[test]
fn what_is_read_again_is_not_stored_for_good() {
    // A ring of three: the first sum is passed on, the second is a result that is passed on, the last block is stored.
    let ring = crate::algo::Algorithm::named("ring").expect("it exists");
    let plan = ring.plan(Collective::AllReduce, 0, &Shape::flat(3), Alias::None, false);
    let for_good = plan.stores_for_good();
    let stores: Vec<bool> = plan
        .steps()
        .iter()
        .zip(&for_good)
        .filter(|(step, _)| step.op.dst().is_some())
        .map(|(_, &good)| good)
        .collect();
    assert_eq!(stores, [false, false, false, true]);
    let sends = plan.steps().iter().zip(&for_good).filter(|(step, _)| step.op.dst().is_none());
    assert!(sends.into_iter().all(|(_, &good)| !good), "a send stores nothing");
}
