//! Sockets, and other processes behind them. That another user is turned away has no test: it takes a second user.

use super::super::{listing::PATIENCE, socket::user, *};
use crate::plan::Collective;
use rondel_transport_api::DataType;
use std::{
    env, fs,
    io::{self, BufRead, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A directory that is removed with its content.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("rondel-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const CALL: Call =
    Call { seq: 5, collective: Collective::Barrier, dtype: DataType::U8, op: None, count: 0, root: 0 };

fn page(rank: Rank) -> Arc<StatusPage> {
    let owner = Owner { job: 0xabc, rank, nranks: 2, pid: std::process::id() };
    let page = StatusPage::create(&owner).unwrap();
    let slot = page.open_slot(1, rank, 2).unwrap();
    page.entered(slot, &CALL);
    Arc::new(page)
}

/// Serves pages from another thread while `body` runs.
fn serving<T>(sockets: &[StatusSocket], body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for socket in sockets {
                    while socket.accept_one().unwrap() {}
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = body();
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn pages_are_found_and_sockets_removed() {
    let scratch = Scratch::new();
    let directory = SocketDirectory::of_user(Some(&scratch.0)).unwrap();
    assert_eq!(directory.path(), scratch.0.join("rondel"));
    assert_eq!(fs::metadata(directory.path()).unwrap().permissions().mode() & 0o777, 0o700);
    let sockets = [1, 0].map(|rank| StatusSocket::serve(&directory, page(rank)).unwrap());
    let listing = serving(&sockets, || Listing::of(&directory));
    assert!(listing.unreadable.is_empty(), "{listing:?}");
    let ranks: Vec<_> = listing.processes.iter().map(|process| process.view.owner().rank).collect();
    assert_eq!(ranks, [0, 1]);
    let jobs = report::JobReport::of(&listing);
    assert_eq!(
        jobs.iter().map(|job| (job.job, job.nranks, job.ranks.len())).collect::<Vec<_>>(),
        [(0xabc, 2, 2)]
    );
    assert_eq!(jobs[0].ranks[1].statuses, listing.processes[1].view.read_all());
    let both = serving(&sockets, || list_jobs(Some(&scratch.0)));
    assert!(both.processes.iter().filter(|process| process.view.owner().job == 0xabc).count() >= 2);
    drop(sockets);
    for process in &listing.processes {
        assert_eq!((process.pid, process.state()), (std::process::id(), ProcessState::Running));
        assert_eq!(process.view.read(1).unwrap().entered, Some(CALL), "the view outlives the socket");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn what_the_dead_left_is_removed_and_replaced() {
    let scratch = Scratch::new();
    let directory = SocketDirectory::at(scratch.0.join("sockets")).unwrap();
    let stale = directory.path().join("0000000000000abc-0.sock");
    drop(UnixListener::bind(&stale).unwrap());
    fs::write(directory.path().join("notes.sock"), "not ours").unwrap();
    let listing = Listing::of(&directory);
    assert!(listing.processes.is_empty() && listing.unreadable.is_empty(), "{listing:?}");
    assert!(!stale.exists() && directory.path().join("notes.sock").exists());

    drop(UnixListener::bind(&stale).unwrap());
    let socket = StatusSocket::serve(&directory, page(0)).unwrap();
    assert_eq!(socket.path(), stale);
    let error = StatusSocket::serve(&directory, page(0)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
    assert_eq!(serving(&[socket], || Listing::of(&directory)).processes.len(), 1);
}

#[test]
fn a_process_too_busy_to_answer_is_read_all_the_same() {
    let scratch = Scratch::new();
    let directory = SocketDirectory::at(scratch.0.join("sockets")).unwrap();
    let _silent = StatusSocket::serve(&directory, page(1)).unwrap();
    let listing = Listing::of(&directory);
    assert!(listing.unreadable.is_empty(), "{listing:?}");
    assert_eq!(listing.processes[0].view.read(1).unwrap().entered, Some(CALL));
}

#[test]
fn directories_that_others_could_enter_are_refused() {
    let scratch = Scratch::new();
    let refused = |path: PathBuf, why: &str| {
        let error = SocketDirectory::at(path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(why), "{error}");
    };
    let path = scratch.0.join("sockets");
    SocketDirectory::at(&path).unwrap();
    SocketDirectory::at(&path).expect("an existing one is as good");
    for mode in [0o755, 0o710, 0o701, 0o777] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        refused(path.clone(), "lets others in");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&path, scratch.0.join("link")).unwrap();
    refused(scratch.0.join("link"), "symbolic link");
    fs::write(scratch.0.join("file"), "").unwrap();
    refused(scratch.0.join("file"), "not a directory");
    // Only the superuser can give a directory away; for others the check of the owner has no test.
    if user() == 0 {
        std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
        refused(path, "belongs to user 12345");
    }
}

#[test]
fn without_a_runtime_directory_the_shared_one_is_used() {
    let missing = Path::new("/nonexistent/runtime");
    let shared = PathBuf::from(format!("/tmp/rondel-{}", user()));
    assert_eq!(SocketDirectory::of_user(Some(missing)).unwrap().path(), shared);
    assert_eq!(SocketDirectory::of_user(Some(Path::new("relative"))).unwrap().path(), shared);
}

const CHILD: &str = "RONDEL_TEST_STATUS_DIRECTORY";

/// The other process of the test below: does nothing unless that one starts it.
#[test]
fn child_process() {
    let Some(path) = env::var_os(CHILD) else { return };
    let socket = StatusSocket::serve(&SocketDirectory::at(path).unwrap(), page(1)).unwrap();
    io::stderr().write_all(b"\nserving\n").unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        socket.accept_one().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

fn start_child(directory: &SocketDirectory) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "engine::status::tests::sockets::child_process", "--nocapture"])
        .env(CHILD, directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = io::BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "serving"), "the child did not come up");
    child
}

#[test]
fn another_process_is_read_while_it_runs_is_stopped_and_is_dead() {
    let scratch = Scratch::new();
    let directory = SocketDirectory::at(scratch.0.join("sockets")).unwrap();
    let mut child = start_child(&directory);
    let look = |expected: ProcessState| {
        let listing = Listing::of(&directory);
        assert!(listing.unreadable.is_empty(), "{listing:?}");
        let process = listing.processes.into_iter().next().unwrap();
        assert_eq!((process.pid, process.state()), (child.id(), expected));
        assert_eq!(process.view.owner().pid, child.id());
        let status: Status = process.view.read(1).unwrap();
        assert_eq!((status.entered, status.rank), (Some(CALL), 1));
        process
    };
    look(ProcessState::Running);
    // SAFETY: a signal to our own child, which was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSTOP) }, 0);
    let until = Instant::now() + Duration::from_secs(5);
    while process_state(child.id(), 0) != ProcessState::Stopped && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    let before = Instant::now();
    let last = look(ProcessState::Stopped);
    assert!(before.elapsed() < PATIENCE, "a stopped process is not waited for");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(last.state(), ProcessState::Dead);
    assert_eq!(last.view.read(1).unwrap().entered, Some(CALL));
    assert!(Listing::of(&directory).processes.is_empty());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the dead one's socket is removed");
}
