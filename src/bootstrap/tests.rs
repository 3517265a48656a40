//! Watchers in threads of one process, and children that die.

#![expect(
    clippy::print_stdout,
    reason = "times are for whoever reads the tests, and a child tells its parent"
)]

mod coding;
mod dying;
mod joining;
mod refusing;

use super::*;
use std::{net::TcpListener, sync::atomic::AtomicBool, thread};

pub(super) fn config(key: &Key) -> WatcherConfig {
    WatcherConfig {
        key: key.clone(),
        ports: None,
        socket_ifname: None,
        socket_family: None,
        heartbeat: Duration::from_millis(100),
        suspicion: Duration::from_secs(10),
    }
}

/// An address of this host that nobody listens at.
pub(super) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

pub(super) fn join_with(rendezvous: &Rendezvous, within: Duration) -> Result<(Watcher, Job), SetupError> {
    let watcher = Watcher::start(config(rendezvous.key()))?;
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
