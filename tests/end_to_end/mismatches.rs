//! Ranks that call different things.

use crate::{
    report::stretched,
    threads::{TRANSPORTS, ranks, ranks_over},
};
use rondel::{Communicator, Error, ReduceOp, Result};
use std::time::{Duration, Instant};

type Calls = fn(&Communicator) -> Result<()>;

/// The last rank makes other calls than the rest. Every rank must learn soon that they disagree, and at least one must
/// name both calls.
fn disagree(theirs: Calls, others: Calls, named: [&str; 2]) {
    for (nranks, transport) in [2, 3, 5].into_iter().flat_map(|n| TRANSPORTS.map(|transport| (n, transport)))
    {
        let said = ranks_over(transport, nranks, |comm| {
            let began = Instant::now();
            let calls = if comm.rank() + 1 == nranks { theirs } else { others };
            // Ranks that leave the barrier first may have failed the communicator before the last one left it.
            match comm.barrier().and_then(|()| calls(&comm)) {
                Err(Error::Failed(failure)) => (failure.to_string(), began.elapsed()),
                other => panic!("rank {} of {nranks} expected a failure, got {other:?}", comm.rank()),
            }
        });
        for (said, after) in &said {
            assert!(said.contains("ranks disagree"), "{nranks} ranks: {said}");
            assert!(*after < stretched(Duration::from_secs(3)), "{nranks} ranks: after {after:?}: {said}");
        }
        let both = |(said, _): &(String, Duration)| named.iter().all(|call| said.contains(call));
        assert!(said.iter().any(both), "{nranks} ranks: nobody named {named:?}: {said:#?}");
    }
}

#[test]
fn another_count() {
    disagree(
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1.0f32; 2000]),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000]),
        ["all_reduce #2 (2000 x float, sum)", "all_reduce #2 (1000 x float, sum)"],
    );
}

#[test]
fn another_type() {
    disagree(
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1i32; 1000]),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1.0f32; 1000]),
        ["all_reduce #2 (1000 x int32, sum)", "all_reduce #2 (1000 x float, sum)"],
    );
}

#[test]
fn another_operator() {
    disagree(
        |comm| comm.all_reduce(ReduceOp::Max, &mut [1.0f32; 100_000]),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1.0f32; 100_000]),
        ["all_reduce #2 (100000 x float, max)", "all_reduce #2 (100000 x float, sum)"],
    );
}

#[test]
fn another_root() {
    disagree(
        |comm| comm.broadcast(1, &mut [1u8; 100]).and_then(|()| comm.barrier()),
        |comm| comm.broadcast(0, &mut [1u8; 100]).and_then(|()| comm.barrier()),
        ["broadcast #2 (100 x uint8, root 1)", "broadcast #2 (100 x uint8, root 0)"],
    );
}

#[test]
fn another_collective() {
    disagree(
        |comm| comm.all_gather(&[1u64; 10], &mut vec![0; 10 * comm.nranks() as usize]),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1u64; 10]),
        ["all_gather #2 (10 x uint64)", "all_reduce #2 (10 x uint64, sum)"],
    );
}

#[test]
fn nothing_against_something() {
    disagree(
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [0u64; 0]).and_then(|()| comm.barrier()),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1u64; 10]).and_then(|()| comm.barrier()),
        ["all_reduce #2 (0 x uint64, sum)", "all_reduce #2 (10 x uint64, sum)"],
    );
}

#[test]
fn one_call_too_few() {
    disagree(
        |comm| comm.barrier(),
        |comm| comm.all_reduce(ReduceOp::Sum, &mut [1u64; 10]).and_then(|()| comm.barrier()),
        ["barrier #2", "all_reduce #2 (10 x uint64, sum)"],
    );
}

/// Rank 0 sends to rank 1 what that one does not expect, after a message that fits. Somebody names both calls.
fn send_something_else(send: Calls, recv: Calls, named: [&str; 2]) {
    let said = ranks(2, |comm| {
        comm.barrier().unwrap();
        let outcome = match comm.rank() {
            0 => comm.send(1, &[1u16; 3]).and_then(|()| send(&comm)).and_then(|()| comm.barrier()),
            _ => comm.recv(0, &mut [0u16; 3]).and_then(|()| recv(&comm)).and_then(|()| comm.barrier()),
        };
        outcome.unwrap_err().to_string()
    });
    assert!(said.iter().all(|text| text.contains("ranks disagree")), "{said:?}");
    let both = |text: &String| named.iter().all(|call| text.contains(call));
    assert!(said.iter().any(both), "nobody named {named:?}: {said:?}");
}

#[test]
fn messages_of_another_length() {
    send_something_else(
        |comm| comm.send(1, &[1u8; 10]),
        |comm| comm.recv(0, &mut [1u8; 11]),
        ["rank 0 called send #2 to rank 1 (10 x uint8)", "rank 1 called recv #2 from rank 0 (11 x uint8)"],
    );
}

#[test]
fn messages_of_another_type() {
    send_something_else(
        |comm| comm.send(1, &[1u32; 10]),
        |comm| comm.recv(0, &mut [1f32; 10]),
        ["rank 0 called send #2 to rank 1 (10 x uint32)", "rank 1 called recv #2 from rank 0 (10 x float)"],
    );
}
