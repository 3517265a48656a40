//! What happens in forked children, which have copies of everything but the threads.

use super::{
    doorway::Doorway,
    poller::{Interest, Poller},
    *,
};
use std::net::TcpStream;

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
    assert!(child > 0, "{}", std::io::Error::last_os_error());
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
    other.inquire(0, 6, 2);
    let answer = wait_notice(other, Duration::from_secs(5), |notice| match notice {
        Notice::Answer(answer) => Some((answer.entered, answer.liveness)),
        other => panic!("{other:?}"),
    });
    assert_eq!(answer, Some((2, Liveness::Alive)));
    drop(parent);
    let left = wait_notice(other, Duration::from_secs(5), Some);
    assert!(matches!(left, Some(Notice::Left(0))), "{left:?}");
}

#[test]
fn a_doorway_without_descriptors_rests_and_then_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut doorway = Doorway::new(vec![listener], Key::from_secret(b"doorway")).unwrap();
    let outside = Poller::new().unwrap();
    outside.add(doorway.as_fd(), 1, Interest::Read).unwrap();
    let mut guest = TcpStream::connect(address).unwrap();
    guest.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let status = in_child(move || {
        let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let limit = |limit: &libc::rlimit| {
            // SAFETY: the structure outlives the call.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }
        };
        // SAFETY: as above.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old) };
        // Standard input, output and error take what is left.
        limit(&libc::rlimit { rlim_cur: 3, ..old });
        let begun = Instant::now();
        let is_ready = |until| !outside.wait(Some(until)).unwrap().is_empty();
        assert!(is_ready(begun + Duration::from_secs(5)));
        doorway.turn(begun);
        let due = doorway.next_timeout().expect("a pause ends");
        assert!(due > begun + Duration::from_millis(50) && !is_ready(due), "it is not woken meanwhile");
        doorway.turn(due);
        assert!(doorway.next_timeout().expect("still none left") > due);
        limit(&old);
        let due = doorway.next_timeout().unwrap();
        doorway.turn(due);
        assert!(is_ready(Instant::now() + Duration::from_secs(5)));
        doorway.turn(Instant::now());
        // A stranger's greeting is answered by hanging up.
        std::io::Write::write_all(&mut guest, &[0; 64]).unwrap();
        assert!(is_ready(Instant::now() + Duration::from_secs(5)));
        doorway.turn(Instant::now());
        !matches!(std::io::Read::read(&mut guest, &mut [0; 512]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert_eq!(status, 0);
}
