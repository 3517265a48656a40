//! Wakes a sleeper for events that only the decorator knows of, beside those of the endpoint inside.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::OnceLock,
};

/// An eventfd and the inner endpoint's descriptor, together in an epoll. Made when first needed.
#[derive(Default)]
pub(super) struct Nudge(OnceLock<Pair>);

struct Pair {
    event: OwnedFd,
    both: OwnedFd,
}

impl Nudge {
    /// Forgets earlier nudges.
    pub(super) fn arm(&mut self, inner: BorrowedFd<'_>) -> io::Result<()> {
        let pair = match self.0.get() {
            Some(pair) => pair,
            None => {
                let pair = Pair::new(inner)?;
                self.0.get_or_init(|| pair)
            }
        };
        let mut drained = 0u64;
        // SAFETY: `drained` is 8 writable bytes. There may be nothing to drain, so the result says nothing.
        unsafe { libc::read(pair.event.as_raw_fd(), (&raw mut drained).cast(), 8) };
        Ok(())
    }
    /// # Panics
    /// If it was never armed and the process has no descriptor left.
    pub(super) fn wakeup(&self, inner: BorrowedFd<'_>) -> BorrowedFd<'_> {
        self.0.get_or_init(|| Pair::new(inner).expect("descriptors to sleep on")).both.as_fd()
    }
    /// Wakes whoever sleeps, if anybody ever did.
    pub(super) fn wake(&self) {
        if let Some(pair) = self.0.get() {
            let one = 1u64;
            // SAFETY: `one` is 8 readable bytes. A full counter is readable already, which is all we need.
            unsafe { libc::write(pair.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

impl Pair {
    fn new(inner: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: both calls take no pointers; a negative result is turned away before it becomes a descriptor.
        let (event, both) = unsafe {
            (
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
            )
        };
        for fd in [event.as_raw_fd(), inner.as_raw_fd()] {
            let mut interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: the descriptors are open and the structure lives through the call.
            if unsafe { libc::epoll_ctl(both.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut interest) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { event, both })
    }
}

/// # Safety
/// `fd` is the fresh result of a system call.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is a descriptor, and the caller's alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
