//! What happens in forked children, which have copies of everything but the threads.

use super::{
    doorway::Doorway,
    exhibit::Exhibit,
    poller::{Interest, Poller},
    showing::RuntimeDir,
    *,
};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    rc::Rc,
};

/// The exit status of a forked child: 0 if `body` was true there.
fn in_child(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs nothing but `body`, which takes no lock that another thread may have held but the
    // allocator's, which glibc keeps usable, and leaves without running the exit handlers of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let good = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert!(child > 0, "{}", io::Error::last_os_error());
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut status = 0;
        // SAFETY: the child is ours, and `status` is writable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            return status;
        }
        if Instant::now() > until {
            // SAFETY: the child was not waited for, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_child_that_drops_its_copy_of_a_watcher_disturbs_nobody() {
    let mut ranks = job(2);
    enter(&ranks[0].0, 6, 0, 2, 2);
    let began = Instant::now();
    let mut copy = Some(ranks.remove(0));
    // The parent's own value is out of reach of the closure's, which only the child has a copy of to drop.
    let status = in_child(|| {
        drop(copy.take());
        true
    });
    assert_eq!(status, 0);
    assert!(began.elapsed() < Duration::from_secs(5), "the child waited for a thread that it does not have");
    let parent = copy.expect("dropped in the child alone").0;
    let other = &ranks[0].0;
    let disturbed = wait_notice(other, Duration::from_millis(700), Some);
    assert!(disturbed.is_none(), "{disturbed:?}");
    other.inquire(0, Asked::collective(6, 2));
    let answer = wait_notice(other, Duration::from_secs(5), |notice| match notice {
        Notice::Answer(answer) => Some((answer.entered, answer.liveness)),
        other => panic!("{other:?}"),
    });
    assert_eq!(answer, Some((2, Liveness::Alive)));
    drop(parent);
    let left = wait_notice(other, Duration::from_secs(5), Some);
    assert!(matches!(left, Some(Notice::Left(0))), "{left:?}");
}

/// Runs `body` while this process can open no descriptor: those of its input, output and errors are all that it may have.
fn without_descriptors<T>(body: impl FnOnce() -> T) -> T {
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut usual) }, 0);
    let set = |limit: &libc::rlimit| {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
    };
    set(&libc::rlimit { rlim_cur: 3, ..usual });
    let result = body();
    set(&usual);
    result
}

/// Whether something of the set is ready until then.
fn is_ready(poller: &Poller, until: Instant) -> bool {
    !poller.wait(Some(until)).unwrap().is_empty()
}

const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_doorway_without_descriptors_rests_and_then_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut doorway = Doorway::new(vec![listener], Key::from_secret(b"doorway")).unwrap();
    let poller = Poller::new().unwrap();
    poller.add(doorway.as_fd(), 1, Interest::Read).unwrap();
    let mut guest = TcpStream::connect(address).unwrap();
    guest.set_read_timeout(Some(SOON)).unwrap();
    let status = in_child(move || {
        let rested = without_descriptors(|| {
            let begun = Instant::now();
            assert!(is_ready(&poller, begun + SOON));
            doorway.turn(begun);
            let due = doorway.next_timeout().expect("a pause ends");
            assert!(due > begun + Duration::from_millis(50) && !is_ready(&poller, due), "it is woken");
            doorway.turn(due);
            doorway.next_timeout().expect("there is none left still")
        });
        doorway.turn(rested);
        guest.write_all(&[0; 64]).unwrap();
        assert!(is_ready(&poller, Instant::now() + SOON), "the guest is heard");
        doorway.turn(Instant::now());
        // A stranger is answered by hanging up, at once.
        let answer = guest.read(&mut [0; 512]);
        !matches!(answer, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    });
    assert_eq!(status, 0);
}

#[test]
fn an_exhibit_without_descriptors_rests_and_then_goes_on() {
    let directory = RuntimeDir::new("resting");
    let owner = Owner { job: 0xe, rank: 0, nranks: 1, pid: std::process::id() };
    let page = Arc::new(StatusPage::create(&owner).unwrap());
    let socket = StatusSocket::serve(&SocketDirectory::of_user(Some(&directory.0)).unwrap(), page).unwrap();
    let mut visitor = UnixStream::connect(socket.path()).unwrap();
    visitor.set_read_timeout(Some(SOON)).unwrap();
    let status = in_child(move || {
        let poller = Rc::new(Poller::new().unwrap());
        let mut exhibit = Exhibit::open(socket, poller.clone(), 1).unwrap();
        let due = without_descriptors(|| {
            let begun = Instant::now();
            assert!(is_ready(&poller, begun + SOON));
            exhibit.answer(begun);
            assert!(!is_ready(&poller, begun + Duration::from_millis(50)), "it is woken");
            exhibit.next_timeout().expect("a pause ends")
        });
        exhibit.resume(due);
        assert!(exhibit.next_timeout().is_none() && is_ready(&poller, Instant::now() + SOON));
        exhibit.answer(Instant::now());
        visitor.read(&mut [0; 2]).unwrap() == 1
    });
    assert_eq!(status, 0);
}
