//! Clause 12: memory that an endpoint makes, which its peers may read in place. Where an endpoint makes none, the tests end
//! with its saying so.

use super::{
    Fixture,
    memory::{Buffer, pattern},
    rig::Rig,
};
use crate::{Allocation, Combine, DataType, Keep, Operand, Reduction, Sink, Token, TransportError, kernels};

const SIZES: [usize; 10] = [0, 1, 63, 4 << 10, 40_000, 65_000, 131_072, 131_073, 300_001, 2 << 20];
/// Room for all of these, with what the tests put around them.
const ROOM: usize = 4 << 20;
const LONG: usize = 500_000;

/// Memory of an endpoint, if it makes any.
fn made<F: Fixture>(rig: &mut Rig<F>, end: usize) -> Option<Allocation> {
    match rig.endpoint(end).allocate(ROOM) {
        Ok(allocation) => Some(allocation),
        Err(TransportError::Unsupported { what }) => {
            assert!(what.contains(&ROOM.to_string()), "it says what it does not do: {what}");
            None
        }
        Err(error) => panic!("{ROOM} bytes that peers may map: {error}"),
    }
}

/// Clause 12: it is zeroed, begins on a page, and stays when the endpoint is gone.
pub fn allocated_memory_outlives_everything<F: Fixture>() {
    let mut rig = Rig::<F>::new(2);
    let Some(Allocation { region, owner, id }) = made(&mut rig, 0) else { return };
    assert!(region.len >= ROOM && region.addr.addr().is_multiple_of(4096), "{region:?}");
    let other = made(&mut rig, 0).expect("it did before");
    assert_ne!(other.id, id);
    // SAFETY: the memory is ours, and `owner` keeps it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(region.addr, region.len) };
    assert!(bytes.iter().all(|&byte| byte == 0), "clause 12: it is zeroed");
    bytes.fill(7);
    rig.endpoint(0).deregister(id);
    bytes[region.len - 1] = 8;
    rig.kill(0);
    bytes[0] = 9;
    assert_eq!((bytes[0], bytes[1], bytes[region.len - 1]), (9, 7, 8));
    drop(owner);
}

/// Clauses 1 and 12: messages from it arrive whole and in order, among those of plain memory, whichever is posted first.
pub fn messages_from_allocated_memory_arrive<F: Fixture>() {
    for budget in [1, 1 << 20] {
        let (mut rig, a, b) = Rig::<F>::pair();
        rig.budget = budget;
        let (Some(at_a), Some(at_b)) = (made(&mut rig, a.end), made(&mut rig, b.end)) else { return };
        for round in 0..2 {
            let (mut at, mut tokens, mut receives) = (100, Vec::new(), Vec::new());
            for (i, &size) in SIZES.iter().enumerate() {
                let stamp = i as u64;
                let from = [&at_a, &at_b].map(|memory| Buffer::within(memory, at, size, stamp));
                at += size + 200 + i;
                let plain = Buffer::filled(1 << i, 0, stamp + 50);
                for ((from, to), src) in [(a, b), (b, a)].into_iter().zip(from) {
                    let sinks = [(Buffer::new(size, i % 3), stamp), (Buffer::new(1 << i, 0), stamp + 50)];
                    let mut post_receives = |rig: &mut Rig<F>| {
                        for (dst, stamp) in &sinks {
                            tokens.push(rig.recv(to, dst, *stamp));
                        }
                    };
                    if (i + round) % 2 == 0 {
                        post_receives(&mut rig);
                    }
                    let mut sends = vec![rig.send(from, &src, stamp)];
                    if (i + round) % 2 != 0 {
                        post_receives(&mut rig);
                    }
                    sends.push(rig.send(from, &plain, stamp + 50));
                    tokens.extend(sends);
                    receives.extend(sinks);
                }
                rig.steps(i);
            }
            rig.finish(&tokens);
            for (dst, stamp) in receives {
                dst.expect_pattern(stamp, "clause 12: a message from memory of the endpoint's");
            }
        }
    }
}

/// Clauses 6 and 12: after `Done` the source is the caller's again. Before the receive is posted there may be none.
pub fn sources_in_allocated_memory_may_be_overwritten_after_done<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let Some(memory) = made(&mut rig, a.end) else { return };
    for size in [5, 5000, 70_000, LONG] {
        let src = Buffer::within(&memory, 64, size, 0);
        for stamp in 0..6 {
            src.write(&pattern(size, stamp));
            let dst = Buffer::new(size, 0);
            let early = (stamp % 2 == 0).then(|| rig.recv(b, &dst, stamp));
            let send = rig.send(a, &src, stamp);
            rig.steps(5);
            let recv = match early {
                Some(recv) => recv,
                None if rig.is_done(send) => {
                    src.write(&vec![0xee; size]);
                    rig.recv(b, &dst, stamp)
                }
                None => rig.recv(b, &dst, stamp),
            };
            rig.finish(&[send]);
            src.write(&vec![0xee; size]);
            rig.finish(&[recv]);
            dst.expect_pattern(stamp, "clause 6: the source was overwritten after Done");
        }
    }
}

/// Clause 12: a reduction from it gives what the kernels give.
pub fn allocated_memory_is_reduced_from<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let Some(memory) = made(&mut rig, a.end) else { return };
    if !rig.endpoint(b.end).limits().reduces {
        return;
    }
    let reduction = Reduction { dtype: DataType::U32, combine: Combine::Sum, pre: None, divide: None };
    for (stamp, (count, at)) in [(10_000, 64), (32_768, 65), (LONG / 4, 4099)].into_iter().enumerate() {
        let (len, stamp) = (count * 4, stamp as u64);
        let (src, with) = (Buffer::within(&memory, at, len, stamp), Buffer::filled(len, 3, stamp + 9));
        let (expected, dst) = (Buffer::new(len, 0), Buffer::new(len, 5));
        let [with_it, from] =
            [&with, &src].map(|buffer| Operand { addr: buffer.addr().cast_const(), raw: false });
        // SAFETY: the three buffers are `count` elements long and do not overlap.
        unsafe { kernels::reduce(&reduction, &[with_it, from], expected.addr(), count, true, Keep::Keep) };
        let sink = Sink::Reduce { reduction, with: with_it, dst: dst.addr(), last: true, keep: Keep::Keep };
        let recv = rig.sink(b, len, sink, stamp, vec![dst.clone(), with.clone()]);
        let send = rig.send(a, &src, stamp);
        rig.finish(&[recv, send]);
        dst.expect(&expected.read(), "clause 12: a reduction from memory of the endpoint's");
    }
}

/// Clause 12: a region may go at any time; what was posted is delivered, and what is posted later is plain.
pub fn regions_may_go_while_posts_name_them<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    for steps in [0, 1, 2, 50] {
        let Some(memory) = made(&mut rig, a.end) else { return };
        let (first, later) =
            (Buffer::within(&memory, 64, LONG, 1), Buffer::within(&memory, LONG + 1000, LONG, 2));
        let (to_first, to_later) = (Buffer::new(LONG, 0), Buffer::new(LONG, 0));
        let mut tokens = vec![rig.send(a, &first, 1)];
        rig.steps(steps);
        rig.endpoint(a.end).deregister(memory.id);
        tokens.push(rig.send(a, &later, 2));
        rig.steps(steps);
        tokens.push(rig.recv(b, &to_first, 1));
        tokens.push(rig.recv(b, &to_later, 2));
        rig.finish(&tokens);
        to_first.expect_pattern(1, "clause 12: posted before its region went");
        to_later.expect_pattern(2, "clause 12: posted after its region went");
    }
}

/// Clause 12: a region that does not cover the slice, or is another endpoint's, is no region of it.
pub fn slices_outside_of_their_region_are_plain<F: Fixture>() {
    let (mut rig, a, b) = Rig::<F>::pair();
    let (Some(memory), Some(others)) = (made(&mut rig, a.end), made(&mut rig, b.end)) else { return };
    let another = made(&mut rig, a.end).expect("it did before");
    for (stamp, wrong) in [(1, others.clone()), (2, Allocation { id: another.id, ..memory.clone() })] {
        let (src, dst) = (Buffer::within(&wrong, 64, LONG, stamp), Buffer::new(LONG, 0));
        let tokens = [rig.recv(b, &dst, stamp), rig.send(a, &src, stamp)];
        rig.finish(&tokens);
        dst.expect_pattern(stamp, "clause 12: not in the region that it names");
    }
}

/// Clauses 3, 4 and 12: when a lane ends, sources are their caller's again. A receive that is done all the same has the
/// bytes as they were sent.
pub fn an_end_never_delivers_what_was_overwritten<F: Fixture>() {
    for (case, steps) in (0..4).flat_map(|case| [0, 1, 2, 3, 6].map(|steps| (case, steps))) {
        let (mut rig, a, b) = Rig::<F>::pair();
        rig.budget = 100_000;
        let Some(memory) = made(&mut rig, a.end) else { return };
        let sources: Vec<_> =
            (0..3).map(|i| Buffer::within(&memory, 64 + i * (LONG + 200), LONG, i as u64)).collect();
        let sinks: Vec<_> = sources.iter().map(|_| Buffer::new(LONG, 0)).collect();
        let sends: Vec<Token> = (0..).zip(&sources).map(|(stamp, src)| rig.send(a, src, stamp)).collect();
        let recvs: Vec<Token> = (0..).zip(&sinks).map(|(stamp, dst)| rig.recv(b, dst, stamp)).collect();
        rig.steps(steps);
        match case {
            0 => rig.abort(a),
            1 => rig.abort(b),
            2 => rig.close(b),
            _ => {
                // It is polled no more, but what it lent is not touched either.
                rig.kill(a.end);
                rig.settle(&recvs);
                rig.closed(b);
                check_done(&rig, &recvs, &sinks);
                continue;
            }
        }
        rig.settle(&sends);
        rig.closed(a);
        for src in &sources {
            src.write(&vec![0xee; LONG]);
        }
        rig.settle(&recvs);
        rig.closed(b);
        check_done(&rig, &recvs, &sinks);
    }
}

fn check_done<F: Fixture>(rig: &Rig<F>, recvs: &[Token], sinks: &[Buffer]) {
    for (stamp, (&recv, dst)) in recvs.iter().zip(sinks).enumerate() {
        if rig.is_done(recv) {
            dst.expect_pattern(stamp as u64, "clause 12: a receive that was done when the lane ended");
        }
    }
}

/// Clauses 10 and 12: an end that is done is needed no more, alive or dead.
pub fn progress_from_allocated_memory_is_weak<F: Fixture>() {
    for kill in [false, true] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let (Some(at_a), Some(at_b)) = (made(&mut rig, a.end), made(&mut rig, b.end)) else { return };
        let (from_a, from_b) = (Buffer::within(&at_a, 64, LONG, 1), Buffer::within(&at_b, 64, LONG, 2));
        let (to_a, to_b) = (Buffer::new(LONG, 0), Buffer::new(LONG, 0));
        let of_a = [rig.send(a, &from_a, 1), rig.recv(a, &to_a, 2)];
        let of_b = [rig.recv(b, &to_b, 1), rig.send(b, &from_b, 2)];
        rig.finish(&of_a);
        if kill {
            rig.kill(a.end);
        } else {
            rig.pause(a.end);
        }
        rig.finish(&of_b);
        to_a.expect_pattern(2, "clause 10: to the end that is done first");
        to_b.expect_pattern(1, "clause 10: from the end that is done first");
    }
}
