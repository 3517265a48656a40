//! Jobs as others on the host see them.

use super::*;
use crate::engine::status::list_jobs;
use std::{fs, io::Read, path::PathBuf};

/// A runtime directory that is removed with its content.
pub(super) struct RuntimeDir(pub(super) PathBuf);

impl RuntimeDir {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rondel-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn job_in(directory: &RuntimeDir, n: u32) -> Vec<(Watcher, Job)> {
    let address = free_address();
    let join = |rank| {
        let rendezvous = Rendezvous::root(&address, rank, n).unwrap();
        let config = WatcherConfig { runtime_dir: Some(directory.0.clone()), ..config(rendezvous.key()) };
        thread::spawn(move || join_configured(config, &rendezvous, Duration::from_secs(20)).unwrap())
    };
    let threads: Vec<_> = (0..n).map(join).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn a_running_job_is_listed_until_it_ends() {
    let directory = RuntimeDir::new("listed");
    let ranks = job_in(&directory, 2);
    for (watcher, job) in &ranks {
        enter(watcher, 9, job.rank, 2, 4 + u64::from(job.rank));
    }
    let id = ranks[0].1.id;
    let listing = list_jobs(Some(&directory.0));
    let found: Vec<_> = listing.processes.iter().filter(|process| process.view.owner().job == id).collect();
    assert_eq!(found.len(), 2, "{listing:?}");
    for (rank, process) in (0..).zip(found) {
        let status = process.view.read(9).expect("its communicator is shown");
        assert_eq!((process.pid, process.view.owner().rank), (std::process::id(), rank));
        assert_eq!(
            (status.entered, status.completed),
            (Some(call(4 + u64::from(rank))), 3 + u64::from(rank))
        );
    }
    let sockets = || fs::read_dir(directory.0.join("rondel")).unwrap().count();
    assert_eq!(sockets(), 2);
    drop(ranks);
    assert_eq!(sockets(), 0);
}

#[test]
fn a_directory_that_cannot_be_used_does_not_stop_the_job() {
    let directory = RuntimeDir::new("unusable");
    fs::write(directory.0.join("rondel"), "in the way").unwrap();
    let ranks = job_in(&directory, 2);
    ranks[0].0.inquire(1, Asked::collective(9, 1));
    let answer = wait_notice(&ranks[0].0, Duration::from_secs(5), |notice| match notice {
        Notice::Answer(answer) => Some(answer.liveness),
        _ => None,
    });
    assert_eq!(answer, Some(Liveness::Alive));
}

#[test]
fn visitors_that_hang_up_or_send_nonsense_cost_nothing() {
    let directory = RuntimeDir::new("visitors");
    let ranks = job_in(&directory, 1);
    let path = directory.0.join(format!("rondel/{:016x}-0.sock", ranks[0].1.id));
    for round in 0..100 {
        let mut visitor = std::os::unix::net::UnixStream::connect(&path).unwrap();
        if round % 2 == 0 {
            visitor.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            assert_eq!(visitor.read(&mut [0; 2]).unwrap(), 1, "one byte carries the page");
        }
    }
    assert_eq!(
        list_jobs(Some(&directory.0))
            .processes
            .iter()
            .filter(|p| p.view.owner().job == ranks[0].1.id)
            .count(),
        1
    );
}
