//! What a sleeping endpoint waits on: one epoll descriptor over all its sockets, the acceptor, a timer and a bell.
//!
//! Everything is registered once, edge-triggered, and never changed: the warm path makes no `epoll_ctl`. An edge that is
//! collected becomes a flag of its socket (`readable`, `writable`), and a flag is only cleared by a call on the socket
//! that found nothing more. So an edge is either still in the epoll descriptor, which keeps it readable, or in a flag,
//! which the poll after [`Wake::collect`] acts on: no wake-up is lost.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// Which socket an edge belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) lane: u32,
    pub(crate) stripe: u8,
}

/// What became possible on a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) source: Source,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer ended its direction, or the connection broke: the end of the stream is still to be read.
    pub(crate) hung_up: bool,
}

const ACCEPTOR: u64 = u64::MAX;
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
    pub(crate) fn new(acceptor: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: none of the three calls takes a pointer.
        let (epoll, timer, bell) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
            )
        };
        let wake = Self { epoll, timer, bell, timer_at: None };
        wake.add(acceptor.as_raw_fd(), ACCEPTOR, libc::EPOLLIN)?;
        wake.add(wake.timer.as_raw_fd(), TIMER, libc::EPOLLIN)?;
        wake.add(wake.bell.as_raw_fd(), BELL, libc::EPOLLIN)?;
        Ok(wake)
    }

    /// Registers a socket until it is closed.
    pub(crate) fn watch(&self, socket: &impl AsRawFd, source: Source) -> io::Result<()> {
        let data = u64::from(source.lane) << 8 | u64::from(source.stripe);
        self.add(socket.as_raw_fd(), data, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP)
    }

    fn add(&self, fd: RawFd, data: u64, interest: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (interest | libc::EPOLLET) as u32, u64: data };
        // SAFETY: `event` is a valid event.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes all edges that are there.
    pub(crate) fn collect(&self, mut found: impl FnMut(Edge)) -> io::Result<()> {
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
                let (data, bits) = (event.u64, event.events as libc::c_int);
                if data < BELL {
                    let source = Source { lane: (data >> 8) as u32, stripe: data as u8 };
                    found(Edge {
                        source,
                        readable: bits & libc::EPOLLIN != 0,
                        writable: bits & libc::EPOLLOUT != 0,
                        hung_up: bits & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) != 0,
                    });
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

    /// Makes the descriptor readable now: there is work that no edge stands for.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: `one` is 8 readable bytes. The counter never fills: it would take 2^64 rings.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
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
