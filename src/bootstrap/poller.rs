//! Sleeping until one of many descriptors has something to say.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// An epoll set. Itself a descriptor that is readable while one of its members is ready, so that sets nest.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

/// What is waited for at a descriptor. Closing and errors are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    ReadWrite,
}

impl Interest {
    fn bits(self) -> u32 {
        match self {
            Interest::Read => libc::EPOLLIN as u32,
            Interest::ReadWrite => (libc::EPOLLIN | libc::EPOLLOUT) as u32,
        }
    }
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers; a descriptor that it returns is ours alone.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { epoll })
    }
    /// Readiness of `fd` is reported under `token` until `remove`, or until the descriptor is closed.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest.bits())
    }
    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest.bits())
    }
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }
    fn control(&self, op: i32, fd: BorrowedFd<'_>, token: u64, events: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: both descriptors are open, `event` outlives the call.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
    /// Sleeps until something is ready or the time has come, and returns the tokens of what is ready (at most 64 of them).
    pub(crate) fn wait(&self, until: Option<Instant>) -> io::Result<Vec<u64>> {
        const BATCH: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // SAFETY: `events` has room for BATCH entries.
        let ready = unsafe {
            let timeout = timeout_ms(until);
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as i32, timeout)
        };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(Vec::new()) } else { Err(error) };
        }
        Ok(events[..ready as usize].iter().map(|event| event.u64).collect())
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The time that is left, rounded up so that nobody wakes before it is over; -1: for ever.
fn timeout_ms(until: Option<Instant>) -> i32 {
    match until.map(|until| until.saturating_duration_since(Instant::now())) {
        None => -1,
        Some(left) => left.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32,
    }
}

/// Whether a descriptor becomes readable (`writing`: writable), closed or faulty within the time.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, writing: bool, within: Duration) -> io::Result<bool> {
    let events = if writing { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid entry that outlives the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, within.as_millis().min(i32::MAX as u128) as i32) };
    match ready {
        0 => Ok(false),
        n if n > 0 => Ok(true),
        _ => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
        }
    }
}

/// A descriptor that one thread makes readable in order to wake another.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; a descriptor that it returns is ours alone.
        let event = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { event })
    }
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: `one` is 8 readable bytes. A full counter (EAGAIN) is readable already, which is all that is needed.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }
    pub(crate) fn silence(&self) {
        let mut drained = 0u64;
        // SAFETY: `drained` is 8 writable bytes. EAGAIN means that it is silent already.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut drained).cast(), 8) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
