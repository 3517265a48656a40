//! What a sleeping endpoint waits on: one epoll descriptor over its bell, its listener, the sockets of its lanes and a
//! timer.
//!
//! Everything is registered once, edge-triggered: the warm path makes no call. An edge that is collected becomes a flag of
//! its lane, and a socket is read until it has nothing more; so an edge is either still in the descriptor, which keeps it
//! readable, or in a flag, which the next poll acts on.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// What an edge belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The listener, or a connection that has not said which lane it is for.
    Door,
    Lane(u32),
}

const DOOR: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const BELL: u64 = u64::MAX - 2;

#[derive(Debug)]
pub(crate) struct Wake {
    epoll: OwnedFd,
    timer: OwnedFd,
    bell: OwnedFd,
    /// When the timer that runs goes off.
    timer_at: Option<Instant>,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: none of the three calls takes a pointer.
        let (epoll, timer, bell) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
            )
        };
        let wake = Self { epoll, timer, bell, timer_at: None };
        wake.control(libc::EPOLL_CTL_ADD, wake.timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
        wake.control(libc::EPOLL_CTL_ADD, wake.bell.as_raw_fd(), BELL, libc::EPOLLIN)?;
        Ok(wake)
    }

    /// Registers a socket until it is closed.
    pub(crate) fn watch(&self, socket: &impl AsRawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket.as_raw_fd(), data_of(source), SOCKET)
    }

    /// A registered socket belongs to something else from now on. What is possible on it is told again.
    pub(crate) fn reassign(&self, socket: &impl AsRawFd, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket.as_raw_fd(), data_of(source), SOCKET)
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, data: u64, interest: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (interest | libc::EPOLLET) as u32, u64: data };
        // SAFETY: `event` is a valid event.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes all edges that are there.
    pub(crate) fn collect(&self, mut found: impl FnMut(Source)) -> io::Result<()> {
        const BATCH: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        loop {
            // SAFETY: `events` has room for `BATCH` events.
            let count = unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as libc::c_int, 0)
            };
            if count < 0 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
            }
            for event in &events[..count as usize] {
                match event.u64 {
                    DOOR => found(Source::Door),
                    TIMER | BELL => {}
                    lane => found(Source::Lane(lane as u32)),
                }
            }
            if (count as usize) < BATCH {
                return Ok(());
            }
        }
    }

    /// Makes the descriptor readable at `at` at the latest. An earlier timer that still runs is left alone.
    pub(crate) fn set_timer(&mut self, now: Instant, at: Option<Instant>) -> io::Result<()> {
        let Some(at) = at else { return Ok(()) };
        if self.timer_at.is_some_and(|earlier| earlier > now && earlier <= at) {
            return Ok(());
        }
        let delay = at.saturating_duration_since(now).max(Duration::from_nanos(1));
        self.timer_at = Some(at);
        let value =
            libc::timespec { tv_sec: delay.as_secs() as libc::time_t, tv_nsec: delay.subsec_nanos().into() };
        let once =
            libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: `once` is valid, and no old value is asked for.
        match unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes the descriptor readable now.
    pub(crate) fn ring(&self) {
        ring(&self.bell);
    }

    /// What peers ring.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

const SOCKET: libc::c_int = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;

fn data_of(source: Source) -> u64 {
    match source {
        Source::Door => DOOR,
        Source::Lane(lane) => lane.into(),
    }
}

/// Checks a bell that a peer sent. The error says what is wrong.
pub(crate) fn adopt_bell(bell: OwnedFd) -> Result<OwnedFd, String> {
    let path = format!("/proc/self/fd/{}", bell.as_raw_fd());
    let what = std::fs::read_link(&path).map_err(|error| format!("its bell cannot be looked at: {error}"))?;
    if what.as_os_str() != "anon_inode:[eventfd]" {
        return Err(format!("its bell is {}, expected an eventfd", what.display()));
    }
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 || flags & libc::O_NONBLOCK == 0 {
        return Err("its bell would block whoever rings it".into());
    }
    Ok(bell)
}

/// Rings a bell, ours or a peer's.
pub(crate) fn ring(bell: &OwnedFd) {
    let one = 1u64;
    // SAFETY: `one` is 8 readable bytes. The counter never fills by itself: it would take 2^64 rings. A bell that cannot be
    // rung belongs to a peer that does not want to be woken.
    unsafe { libc::write(bell.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// # Safety
/// `fd` is the result of a call that makes a descriptor.
unsafe fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: a fresh descriptor is ours alone.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
