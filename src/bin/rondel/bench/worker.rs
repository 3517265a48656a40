//! One rank of a run.

use super::{
    args::{BenchArgs, Bind, Member},
    buffer::Kind,
    cell::{Cell, Place},
    files::Files,
    measure::{Timing, measure},
    meeting::{Meeting, OverCommunicator},
    operation::Operation,
    report::Report,
    row::{Row, Way},
    settings::Settings,
    shared::{self, Shared},
    test::Test,
};
use crate::{affinity, memory, moment, signals::Signals, size::Bytes, stop::Stop};
use rondel::{
    Communicator,
    bootstrap::{Rendezvous, UniqueId},
    comm::MemberName,
    plan::{Rank, Shape},
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Whether all values were right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All of them.
    Right,
    /// Some were not, on some rank.
    Wrong,
}

/// A rank that this program started. Its error also goes to the parent.
pub(crate) fn run_member(args: &BenchArgs, settings: &Settings, member: Member) -> Result<Verdict, Stop> {
    if args.bind != Bind::None {
        affinity::bind_to_nth_core(member.rank)
            .map_err(|e| Stop::Failed(format!("cannot bind to a core: {e}; use --bind none")))?;
    }
    let signals = signals_of(member.rank)?;
    let shared = Shared::inherit(member.descriptor, member.nranks)
        .map_err(|e| Stop::Failed(format!("cannot map the memory that the parent shares: {e}")))?;
    let work = || {
        let id = UniqueId::from_bytes(&shared.unique_id()).map_err(|e| Stop::Failed(e.to_string()))?;
        let rendezvous = Rendezvous::unique_id(&id, member.rank, member.nranks)
            .map_err(|e| Stop::Failed(e.to_string()))?;
        let comm = connect(args, rendezvous)?;
        sweep(args, settings, &comm, signals, &mut shared::Place::new(&shared, member.rank))
    };
    let result = work();
    if let Err(stop) = &result {
        shared.report(member.rank, stop);
    }
    result
}

/// A rank that a launcher started.
pub(crate) fn run_joined(
    args: &BenchArgs,
    settings: &Settings,
    rendezvous: Rendezvous,
) -> Result<Verdict, Stop> {
    let nranks = rendezvous.nranks();
    settings.check_ranks(nranks)?;
    // Who shares a host is known later: at best all do, or each has its own, or pairs do.
    let hosts = |size| Shape { hosts: (0..nranks).map(|rank| rank / size).collect(), ..Shape::flat(nranks) };
    settings.check_algorithm(&[hosts(nranks), hosts(1), hosts(2)])?;
    let signals = signals_of(rendezvous.rank())?;
    if rendezvous.rank() == 0 {
        Files::check(args)?;
    }
    let comm = connect(args, rendezvous)?;
    let shape = shape_of(comm.members());
    settings.check_algorithm(std::slice::from_ref(&shape))?;
    let here = shape.hosts[comm.rank() as usize];
    let local = shape.hosts.iter().filter(|&&host| host == here).count();
    settings.check_memory(local as u32, memory::available())?;
    let mut meeting = OverCommunicator::new(&comm);
    sweep(args, settings, &comm, signals, &mut meeting)
}

/// Who is on which host, by name.
fn shape_of(members: &[MemberName]) -> Shape {
    let number = |member: &MemberName| members.iter().position(|other| other.hostname == member.hostname);
    let firsts: Vec<usize> = members.iter().filter_map(number).collect();
    let mut distinct = firsts.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let hosts = firsts.iter().map(|first| distinct.partition_point(|other| other < first) as u32).collect();
    Shape { hosts, ..Shape::flat(members.len() as u32) }
}

/// Rank 0 writes, and brings that to an end before a signal ends it.
fn signals_of(rank: Rank) -> Result<Option<Signals>, Stop> {
    let block = || Signals::block(&[]).map_err(|e| Stop::Failed(format!("cannot block signals: {e}")));
    (rank == 0).then(block).transpose()
}

fn connect(args: &BenchArgs, rendezvous: Rendezvous) -> Result<Communicator, Stop> {
    let mut builder = Communicator::builder();
    if let Some(transport) = &args.transport {
        builder = builder.transport(transport);
    }
    if let Some(algorithm) = &args.algorithm {
        builder = builder.algorithm(algorithm.name);
    }
    if let Some(channels) = args.channels {
        builder = builder.channels(channels);
    }
    if args.timeout > 0 {
        builder = builder.timeout(Duration::from_secs(args.timeout));
    }
    Ok(builder.connect(rendezvous)?)
}

/// Measures everything that was asked for, and reports it also where it ends early.
fn sweep(
    args: &BenchArgs,
    settings: &Settings,
    comm: &Communicator,
    signals: Option<Signals>,
    meeting: &mut impl Meeting,
) -> Result<Verdict, Stop> {
    let cells = settings.cells(comm.nranks());
    let steps = (cells.len() as u64).saturating_mul(args.run_cycles);
    let report = match comm.rank() {
        0 => Some(Arc::new(Mutex::new(Report::start(args, settings, comm.members(), steps)?))),
        _ => None,
    };
    if let (Some(report), Some(signals)) = (&report, signals) {
        end_at_signal(report.clone(), signals)?;
    }
    let result = measure_all(args, settings, comm, &cells, report.as_deref(), meeting);
    if let (Err(stop), Some(report)) = (&result, &report) {
        // The reason counts, not what else goes wrong because of it.
        let _ = lock(report).give_up(&stop.to_string());
    }
    result
}

/// A signal ends this process at any time, and the report is whole all the same. The next one ends it at once.
fn end_at_signal(report: Arc<Mutex<Report>>, signals: Signals) -> Result<(), Stop> {
    let end = move || {
        let Ok(signal) = signals.wait() else { return };
        signals.release();
        let stop = Stop::Signal(signal);
        // There is nobody left to tell.
        let _ = lock(&report).give_up(&stop.to_string());
        std::process::exit(stop.code().into());
    };
    let thread = std::thread::Builder::new().name("rondel-signals".into()).spawn(end);
    thread.map(drop).map_err(|e| Stop::Failed(format!("cannot start a thread: {e}")))
}

/// A report that panicked half-way is still better than none.
fn lock(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

fn measure_all(
    args: &BenchArgs,
    settings: &Settings,
    comm: &Communicator,
    cells: &[Cell],
    report: Option<&Mutex<Report>>,
    meeting: &mut impl Meeting,
) -> Result<Verdict, Stop> {
    let mut verdict = Verdict::Right;
    let mut cycle = 0;
    while args.run_cycles == 0 || cycle < args.run_cycles {
        for cell in cells {
            if let Some(report) = report {
                lock(report).begin(format!("{} {}", settings.test.name(), Bytes(cell.bytes)));
            }
            let row = measure_cell(args, settings, comm, *cell, meeting)?;
            if row.timings().any(|(_, timing)| timing.wrong.is_some_and(|wrong| wrong > 0)) {
                verdict = Verdict::Wrong;
            }
            if let Some(report) = report {
                lock(report).add(&row)?;
            }
        }
        cycle += 1;
    }
    if let Some(mut report) = report.map(lock) {
        if settings.buffers == Kind::Mapped && !comm.buffer::<u8>(1)?.is_mapped() {
            report.remark("Buffers were plain memory: no transport of this run maps any")?;
        }
        if args.memory {
            let stats = comm.stats();
            let held = Bytes(stats.memory_bytes);
            report.remark(&format!("Memory of rank 0's communicator: {held} with {} lanes", stats.lanes))?;
        }
        report.finish(settings.test.name())?;
    }
    Ok(verdict)
}

fn measure_cell(
    args: &BenchArgs,
    settings: &Settings,
    comm: &Communicator,
    cell: Cell,
    meeting: &mut impl Meeting,
) -> Result<Row, Stop> {
    let mut timing = |place| -> Result<Option<Timing>, Stop> {
        if !settings.places.contains(&place) {
            return Ok(None);
        }
        let mut operation = Operation::new(comm, cell, place, args.unalign, settings.buffers)?;
        measure(&mut operation, meeting, &settings.schedule).map(Some)
    };
    let (out, in_place) = (timing(Place::Out)?, timing(Place::In)?);
    let way = if cell.test == Test::SendRecv && comm.nranks() == 1 {
        // What a rank sends to itself is copied; nothing is planned.
        Way { algorithm: "copy".to_owned(), channels: 0, transport: "memory".to_owned() }
    } else {
        let choice = comm.explain(cell.test.collective(), cell.dtype, cell.count);
        Way { algorithm: choice.algorithm.to_owned(), channels: choice.channels, transport: choice.transport }
    };
    Ok(Row { cell, out, in_place, way, finished: moment::now() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_order_of_their_first_rank() {
        let member = |hostname: &str| MemberName { hostname: hostname.to_owned(), pid: 1 };
        let members = ["b", "a", "b", "c", "a"].map(member);
        assert_eq!(*shape_of(&members).hosts, [0, 1, 0, 2, 1]);
    }
}
