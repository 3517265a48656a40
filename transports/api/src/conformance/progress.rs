//! Clause 10: whoever is done is needed no more.

use super::{
    Fixture,
    memory::Buffer,
    rig::{Lane, Rig},
};
use crate::Token;

const SIZES: [usize; 6] = [0, 3, 900, 20_000, 70_001, 600_000];

/// One message each way of every size, receives first. Returns the tokens of both ends and what the second receives.
fn exchange<F: Fixture>(rig: &mut Rig<F>, a: Lane, b: Lane) -> (Vec<Token>, Vec<Token>, Vec<(Buffer, u64)>) {
    let (mut of_a, mut of_b, mut received) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &size) in SIZES.iter().enumerate() {
        let stamp = i as u64;
        let dst = Buffer::new(size, 1);
        of_b.push(rig.recv(b, &dst, stamp));
        of_a.push(rig.recv(a, &Buffer::new(size, 0), stamp));
        of_b.push(rig.send(b, &Buffer::filled(size, 0, stamp + 50), stamp));
        of_a.push(rig.send(a, &Buffer::filled(size, 0, stamp), stamp));
        received.push((dst, stamp));
    }
    (of_a, of_b, received)
}

fn run_until_one_is_done<F: Fixture>(ending: impl Fn(&mut Rig<F>)) {
    for flip in [false, true] {
        let (mut rig, a, b) = Rig::<F>::pair();
        // The endpoint that is polled first in a round is not always the one that leaves.
        let (first, second) = if flip { (b, a) } else { (a, b) };
        let (done, rest, received) = exchange(&mut rig, first, second);
        rig.finish(&done);
        rig.flushes = false;
        if flip {
            rig.pause(first.end);
        } else {
            ending(&mut rig);
        }
        rig.finish(&rest);
        for (dst, stamp) in received {
            dst.expect_pattern(stamp, "clause 10: what was done on one end arrives at the other");
        }
    }
}

/// An endpoint that is never polled after its last `Done` holds nobody up.
pub fn a_peer_may_stop_polling_after_its_last_done<F: Fixture>() {
    run_until_one_is_done::<F>(|rig| rig.pause(0));
}

/// Nor does one that is gone, whose process ended without a goodbye.
pub fn a_peer_may_exit_after_its_last_done<F: Fixture>() {
    run_until_one_is_done::<F>(|rig| rig.kill(0));
}

/// A send that is done before its receive is posted (an eager one) needs its sender no more, alive or dead.
pub fn early_messages_need_their_sender_no_more<F: Fixture>() {
    for kill in [false, true] {
        let (mut rig, a, b) = Rig::<F>::pair();
        let mut early = Vec::new();
        for stamp in 0..3 {
            let Some(token) = rig.try_send(a, &Buffer::filled(40, 0, stamp), stamp) else { break };
            early.push(token);
        }
        rig.steps(200);
        if !early.iter().all(|&token| rig.is_done(token)) {
            // Nothing is buffered here, which is allowed: then they are done when they are received.
            continue;
        }
        if kill {
            rig.kill(a.end);
        } else {
            rig.pause(a.end);
        }
        rig.steps(20);
        for stamp in 0..early.len() as u64 {
            let dst = Buffer::new(40, 0);
            let recv = rig.recv(b, &dst, stamp);
            rig.finish(&[recv]);
            dst.expect_pattern(stamp, "clause 10: a message that was done early");
        }
        if kill {
            rig.closed(b);
        }
    }
}
