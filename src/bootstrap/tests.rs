//! Watchers in threads of one process, and children that die.

#![expect(
    clippy::print_stdout,
    reason = "times are for whoever reads the tests, and a child tells its parent"
)]

mod coding;
mod dying;
mod forking;
mod joining;
mod refusing;
mod showing;

use super::*;
use crate::{engine::call::Call, plan::Collective};
use rondel_transport_api::{DataType, ReduceOp};
use std::{net::TcpListener, sync::atomic::AtomicBool, thread};

pub(super) fn config(key: &Key) -> WatcherConfig {
    WatcherConfig {
        key: key.clone(),
        ports: None,
        socket_ifname: None,
        socket_family: None,
        heartbeat: Duration::from_millis(100),
        suspicion: Duration::from_secs(10),
        runtime_dir: None,
    }
}

/// An address of this host that nobody listens at.
pub(super) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

pub(super) fn join_with(rendezvous: &Rendezvous, within: Duration) -> Result<(Watcher, Job), SetupError> {
    join_configured(config(rendezvous.key()), rendezvous, within)
}

pub(super) fn join_configured(
    config: WatcherConfig,
    rendezvous: &Rendezvous,
    within: Duration,
) -> Result<(Watcher, Job), SetupError> {
    let watcher = Watcher::start(config)?;
    let card = Card { adverts: Vec::new() };
    let job = watcher.join(rendezvous, card, Instant::now() + within, &AtomicBool::new(false))?;
    Ok((watcher, job))
}

/// What every rank's join gave, each in a thread of its own.
pub(super) fn join_all(
    rendezvous: Vec<Rendezvous>,
    within: Duration,
) -> Vec<Result<(Watcher, Job), SetupError>> {
    let threads: Vec<_> =
        rendezvous.into_iter().map(|r| thread::spawn(move || join_with(&r, within))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// A job of `n` ranks that all joined.
pub(super) fn job(n: u32) -> Vec<(Watcher, Job)> {
    let address = free_address();
    let all = (0..n).map(|rank| Rendezvous::root(&address, rank, n).unwrap()).collect();
    join_all(all, Duration::from_secs(20)).into_iter().map(Result::unwrap).collect()
}

/// The call of this number in the tests' communicators.
pub(super) fn call(seq: u64) -> Call {
    Call {
        seq,
        collective: Collective::AllReduce,
        dtype: DataType::F32,
        op: Some(ReduceOp::Sum),
        count: 1000 + seq,
        root: 0,
    }
}

/// Writes into the page that the rank is in collective `entered` of a communicator, and has completed the one before.
pub(super) fn enter(watcher: &Watcher, comm: u64, rank: Rank, nranks: u32, entered: u64) {
    let page = watcher.status();
    let slot = page.open_slot(comm, rank, nranks).unwrap();
    for seq in 1..=entered {
        page.entered(slot, &call(seq));
    }
    page.completed(slot, entered - 1);
}

/// The first notice that `wanted` accepts; others are dropped.
pub(super) fn wait_notice<T>(
    watcher: &Watcher,
    within: Duration,
    mut wanted: impl FnMut(Notice) -> Option<T>,
) -> Option<T> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        match watcher.notice() {
            Some(notice) => {
                if let Some(found) = wanted(notice) {
                    return Some(found);
                }
            }
            None => {
                poller::wait_for(watcher.wakeup(), false, Duration::from_millis(20)).unwrap();
            }
        }
    }
    None
}
