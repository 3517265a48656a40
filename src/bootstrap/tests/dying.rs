//! Ranks in processes of their own, which are killed, stopped, or leave.

use super::*;
use crate::error::Cause;
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

const LONG: Duration = Duration::from_secs(20);

/// The communicator that a child is in, in its third collective.
const COMM: u64 = 5;

/// What a child does when a line comes on its input. When its input ends, it ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Leave,
    Exit(i32),
}

/// One rank in a process of its own: this program again, with only the test below, and the rank's place as one more filter
/// that matches nothing.
struct Process {
    child: Child,
    input: ChildStdin,
}

impl Process {
    fn start(address: &str, rank: Rank, nranks: u32, end: End) -> Self {
        let end = match end {
            End::Leave => "leave".to_owned(),
            End::Exit(code) => code.to_string(),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["bootstrap::tests::dying::a_rank_in_a_process_of_its_own", "--exact", "--nocapture"])
            .arg(format!("child,{address},{rank},{nranks},{end}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        Process { child, input }
    }
    /// Until it has joined.
    fn wait_joined(&mut self) {
        let output = BufReader::new(self.child.stdout.as_mut().unwrap());
        assert!(output.lines().map_while(Result::ok).any(|line| line.contains("joined")));
    }
    fn tell(&mut self) {
        self.input.write_all(b"now\n").unwrap();
    }
    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and was not waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
    /// Until none of its threads runs any more.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.contains(") T ")
        };
        let until = Instant::now() + LONG;
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            assert!(Instant::now() < until, "the process does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }
    fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

#[test]
fn a_rank_in_a_process_of_its_own() {
    let Some(place) = std::env::args().find(|arg| arg.starts_with("child,")) else {
        // Alone it is the one rank of its job, and leaves.
        let (watcher, job) = join_with(&Rendezvous::local().unwrap(), LONG).unwrap();
        assert_eq!(job.members.len(), 1);
        return drop(watcher);
    };
    let fields: Vec<&str> = place.split(',').collect();
    let rendezvous =
        Rendezvous::root(fields[1], fields[2].parse().unwrap(), fields[3].parse().unwrap()).unwrap();
    let (watcher, job) = join_with(&rendezvous, LONG).unwrap();
    enter(&watcher, COMM, job.rank, rendezvous.nranks(), 3);
    println!("joined");
    let told = std::io::stdin().read(&mut [0; 8]).unwrap();
    match fields[4] {
        "leave" if told > 0 => drop(watcher),
        code => std::process::exit(code.parse().unwrap_or(99)),
    }
}

/// Ranks 0 to n - 2 in here, the last one in a process.
fn job_with_process(n: u32, end: End) -> (Vec<Watcher>, Process) {
    let address = free_address();
    let mut process = Process::start(&address, n - 1, n, end);
    let ranks = (0..n - 1).map(|rank| Rendezvous::root(&address, rank, n).unwrap()).collect();
    let watchers = join_all(ranks, LONG).into_iter().map(|result| result.unwrap().0).collect();
    process.wait_joined();
    (watchers, process)
}

fn failure(watcher: &Watcher, within: Duration) -> Option<Arc<Failure>> {
    wait_notice(watcher, within, |notice| match notice {
        Notice::Failed(failure) => Some(failure),
        _ => None,
    })
}

#[test]
fn a_killed_process_is_named_by_all_within_a_second() {
    for (n, settled, reaped) in [(2, false, true), (2, true, false), (3, true, true), (6, true, false)] {
        let (watchers, process) = job_with_process(n, End::Leave);
        if settled {
            thread::sleep(Duration::from_millis(300));
        }
        process.signal(libc::SIGKILL);
        let began = Instant::now();
        let kept = if reaped { process.wait().code() } else { None };
        assert_eq!(kept, None);
        for watcher in &watchers {
            let failure = failure(watcher, LONG).expect("the death is noticed");
            println!("n = {n}: {failure} after {:?}", began.elapsed());
            assert!(began.elapsed() < Duration::from_secs(1), "after {:?}: {failure}", began.elapsed());
            assert_eq!(failure.culprit(), Some(n - 1), "{failure}");
            assert!(matches!(failure.cause, Cause::ProcessEnded { .. }), "{failure}");
        }
        for watcher in &watchers {
            assert!(failure(watcher, Duration::from_millis(50)).is_none(), "a death is reported once");
        }
    }
}

#[test]
fn an_exit_without_goodbye_is_a_failure_with_its_status() {
    let (watchers, mut process) = job_with_process(2, End::Exit(7));
    thread::sleep(Duration::from_millis(300));
    process.tell();
    let failure = failure(&watchers[0], LONG).expect("the end is noticed");
    assert!(failure.to_string().contains("exited with status 7"), "{failure}");
    assert_eq!(process.wait().code(), Some(7));
}

#[test]
fn a_goodbye_is_no_failure_though_the_process_ends() {
    let (watchers, mut process) = job_with_process(4, End::Leave);
    process.tell();
    assert!(process.wait().success());
    for watcher in &watchers {
        let left = wait_notice(watcher, LONG, |notice| match notice {
            Notice::Left(rank) => Some(rank),
            Notice::Failed(failure) => panic!("{failure}"),
            _ => None,
        });
        assert_eq!(left, Some(3));
        assert!(wait_notice(watcher, Duration::from_millis(700), Some).is_none(), "nothing follows");
    }
}

#[test]
fn a_stopped_process_is_reported_as_stopped_and_not_as_dead() {
    let (watchers, process) = job_with_process(2, End::Leave);
    process.stop();
    let began = Instant::now();
    watchers[0].inquire(1, Asked::collective(COMM, 3));
    assert_eq!(answer(&watchers[0]), stopped_in_third(1));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    process.signal(libc::SIGCONT);
    watchers[0].inquire(1, Asked::collective(COMM, 3));
    assert_eq!(answer(&watchers[0]), Answer { liveness: Liveness::Alive, ..stopped_in_third(1) });
    process.signal(libc::SIGKILL);
    assert_eq!(failure(&watchers[0], LONG).and_then(|failure| failure.culprit()), Some(1));
}

#[test]
fn a_stopped_process_is_read_by_another_rank_of_its_host() {
    let address = free_address();
    let mut process = Process::start(&address, 2, 3, End::Leave);
    let join = |rank| {
        let rendezvous = Rendezvous::root(&address, rank, 3).unwrap();
        thread::spawn(move || {
            let watcher = Watcher::start(config(rendezvous.key())).unwrap();
            let mut seat = watcher.seat(rank, Card { adverts: Vec::new() });
            if rank == 0 {
                let external = |address: &SocketAddr| !address.ip().is_loopback();
                assert!(seat.member.addresses.iter().any(external), "this test takes more than loopback");
                seat.member.host = [7; 16];
            }
            watcher.join_as(seat, &rendezvous, Instant::now() + LONG, &AtomicBool::new(false)).unwrap();
            watcher
        })
    };
    let [elsewhere, _neighbour] = [join(0), join(1)].map(|thread| thread.join().unwrap());
    process.wait_joined();
    process.stop();
    elsewhere.inquire(2, Asked::collective(COMM, 3));
    assert_eq!(answer(&elsewhere), stopped_in_third(2));
    elsewhere.inquire(2, Asked::collective(COMM, 4));
    assert_eq!(answer(&elsewhere), Answer { seq: 4, call: None, ..stopped_in_third(2) });
    process.signal(libc::SIGKILL);
    process.wait();
}

/// What is said about a child that is stopped.
fn stopped_in_third(about: Rank) -> Answer {
    Answer {
        about,
        comm: COMM,
        seq: 3,
        entered: 3,
        completed: 2,
        call: Some(call(3)),
        liveness: Liveness::Stopped,
    }
}

fn answer(watcher: &Watcher) -> Answer {
    wait_notice(watcher, LONG, |notice| match notice {
        Notice::Answer(answer) => Some(answer),
        Notice::Failed(failure) => panic!("{failure}"),
        _ => None,
    })
    .expect("an answer in any case")
}
