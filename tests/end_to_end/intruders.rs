//! Strangers at every port of a job that joins and works meanwhile.

use crate::{job::Job, job::free_port};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout that is not zero");
    Some(stream)
}

/// Connects and says something that depends on `turn`; most of it makes no sense.
fn intrude(port: u16, turn: usize) -> Option<TcpStream> {
    let mut stream = connect(port)?;
    let mut greeting = [0; 64];
    // Whatever becomes of the connection, the job is what matters.
    let _ = match turn % 4 {
        0 => Ok(()),
        1 => stream.write_all(&[turn as u8; 1000]),
        2 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        // An echo of the other side's greeting, cut in the middle.
        _ => stream.read(&mut greeting).and_then(|n| stream.write_all(&greeting[..n / 2])),
    };
    turn.is_multiple_of(3).then_some(stream)
}

#[test]
fn a_job_does_not_care_about_strangers() {
    const RANKS: u16 = 3;
    // A range of ports of the ranks' own, so that the strangers find them.
    let first = free_port();
    let ports = format!("{first}-{}", first + 2 * RANKS);
    let mut job = Job::new(u32::from(RANKS), "for a while").set("RONDEL_PORTS", ports);
    let root = job.port;
    let doors: Vec<u16> = (first..=first + 2 * RANKS).chain([root]).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scan = || {
            let mut kept = Vec::new();
            for turn in 0.. {
                if over.load(Ordering::Relaxed) {
                    return turn;
                }
                kept.extend(doors.iter().filter_map(|&port| intrude(port, turn)));
                if kept.len() > 300 {
                    kept.drain(..100);
                }
            }
            0
        };
        let scanner = scope.spawn(scan);
        job.start_rank(0, &[]);
        std::thread::sleep(Duration::from_millis(200));
        job.start_rank(1, &[]);
        job.start_rank(2, &[]);
        job.await_all("joined");
        let crowd: Vec<_> = (0..300).filter_map(|k| connect(doors[k % doors.len()])).collect();
        for rank in 0..u32::from(RANKS) {
            let report = job.outcome(rank);
            if report.event != "ok" {
                over.store(true, Ordering::Relaxed);
                panic!("{report:?}");
            }
        }
        assert!(crowd.len() > 50, "only {} connections reached the job", crowd.len());
        over.store(true, Ordering::Relaxed);
        let turns: usize = scanner.join().expect("the scanner does not panic");
        assert!(turns > 5, "{turns} scans");
    });
    job.finish(Duration::from_secs(5));
}
