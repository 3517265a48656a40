//! What the ranks of a [`Job`](crate::job::Job) do.

use crate::report::Report;
use rondel::{Communicator, Error, ReduceOp, Rendezvous, Result};
use std::time::{Duration, Instant};

/// Names what this process is to do, if it is a rank of a job.
pub(crate) const SCENARIO: &str = "E2E_SCENARIO";

/// Does the part of a rank in a process that a job started, and nothing in any other.
#[test]
fn worker() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let rank = std::env::var("RONDEL_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let rendezvous = Rendezvous::from_env().map_err(|error| Error::Setup(error.into()));
    let joined = rendezvous.and_then(|rendezvous| Communicator::builder().connect(rendezvous));
    let comm = match joined {
        Ok(comm) => comm,
        Err(error) => return Report::outcome::<()>(rank, &Err(error)).send(),
    };
    Report::new(rank, "joined", comm.transport()).send();
    let outcome = match scenario.as_str() {
        "join" => comm.barrier(),
        "forever" => forever(&comm),
        "buffers forever" => on_buffers(&comm, None),
        "buffers for a while" => on_buffers(&comm, Some(Duration::from_secs(2))),
        "for a while" => for_a_while(&comm),
        "stop" => stop(&comm),
        "memory" => memory(&comm),
        other => panic!("no rank knows the scenario {other:?}"),
    };
    Report::outcome(rank, &outcome).send();
    let left = Instant::now();
    drop(comm);
    Report::new(rank, "left", left.elapsed().as_micros()).send();
}

/// All-reduces of changing size until one fails.
fn forever(comm: &Communicator) -> Result<()> {
    let mut buffer = vec![1.0f32; 100_000];
    for round in 0usize.. {
        comm.all_reduce(ReduceOp::Max, &mut buffer[..1 << (round % 16)])?;
        if round == 16 {
            Report::new(comm.rank(), "working", "").send();
        }
    }
    unreachable!("an error ends the loop")
}

/// All-reduces with checked results until rank 0 finds that it is enough.
fn for_a_while(comm: &Communicator) -> Result<()> {
    let (began, length) = (Instant::now(), Duration::from_secs(2));
    let mut enough = [false];
    while !enough[0] {
        let mut buffer = vec![1u32; 10_000];
        comm.all_reduce(ReduceOp::Sum, &mut buffer)?;
        assert!(buffer.iter().all(|&sum| sum == comm.nranks()));
        enough[0] = began.elapsed() > length;
        comm.broadcast(0, &mut enough)?;
    }
    Ok(())
}

/// Large all-reduces with checked results, on memory that peers map, until one fails or rank 0 finds that it is enough.
fn on_buffers(comm: &Communicator, length: Option<Duration>) -> Result<()> {
    let (began, mut enough) = (Instant::now(), [false]);
    let (mut input, mut output) = (comm.buffer::<u32>(1 << 20)?, comm.buffer::<u32>(1 << 20)?);
    for round in 0u32.. {
        input.fill(round);
        comm.all_reduce_to(ReduceOp::Sum, &input, &mut output)?;
        assert!(output.iter().all(|&sum| sum == round * comm.nranks()), "round {round}");
        if round == 2 {
            Report::new(comm.rank(), "working", "").send();
        }
        enough[0] = length.is_some_and(|length| began.elapsed() > length);
        comm.broadcast(0, &mut enough)?;
        if enough[0] {
            break;
        }
    }
    Ok(())
}

/// The last rank stops itself before it enters the second call.
fn stop(comm: &Communicator) -> Result<()> {
    let mut buffer = [1u32; 100];
    comm.all_reduce(ReduceOp::Sum, &mut buffer)?;
    if comm.rank() + 1 == comm.nranks() {
        // SAFETY: takes no pointers.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    comm.all_reduce(ReduceOp::Sum, &mut buffer)
}

/// All-reduces up to 4 MiB, and what they leave behind.
fn memory(comm: &Communicator) -> Result<()> {
    let mut buffer = vec![1.0f32; 1 << 20];
    comm.barrier()?;
    let before = resident_bytes();
    for shift in 0..=20 {
        comm.all_reduce(ReduceOp::Max, &mut buffer[..1 << shift])?;
    }
    let grown = resident_bytes().saturating_sub(before);
    Report::new(comm.rank(), "memory", comm.stats().memory_bytes).send();
    Report::new(comm.rank(), "resident", grown).send();
    comm.barrier()
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    // SAFETY: takes no pointers.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}
