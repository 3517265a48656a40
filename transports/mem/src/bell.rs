//! How an endpoint learns which of its lanes have news, and how it is woken.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

/// Wakes the thread that sleeps for an endpoint.
///
/// Sleeper: set `sleeping`, look for news, sleep. Ringer: leave news, read `sleeping`. All four are sequentially
/// consistent, so at least one of the two sees the other: no wake-up is lost. The descriptor is made when it is first
/// needed, since endpoints that are driven in turn by one thread never sleep and may be many.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    sleeping: AtomicBool,
    event: OnceLock<OwnedFd>,
}

impl Bell {
    /// From now on the first news makes [`wakeup`](Self::wakeup) readable.
    pub(crate) fn arm(&self) -> io::Result<()> {
        let event = match self.event.get() {
            Some(event) => event,
            None => {
                let event = eventfd()?;
                self.event.get_or_init(|| event)
            }
        };
        let mut drained = 0u64;
        // SAFETY: `drained` is 8 writable bytes. There may be nothing to drain, so the result says nothing.
        unsafe { libc::read(event.as_raw_fd(), (&raw mut drained).cast(), 8) };
        self.sleeping.store(true, SeqCst);
        Ok(())
    }
    /// # Panics
    /// If it was never armed and the process has no descriptor left.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.event.get_or_init(|| eventfd().expect("an eventfd to sleep on")).as_fd()
    }
    /// Wakes the sleeper, if there is one.
    pub(crate) fn wake(&self) {
        if self.sleeping.load(SeqCst)
            && self.sleeping.swap(false, SeqCst)
            && let Some(event) = self.event.get()
        {
            let one = 1u64;
            // SAFETY: `one` is 8 readable bytes. A full counter is readable already, which is all we need.
            unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// One bit for each of 64 lanes, set by their peers. A line of its own, since peers write it while the owner polls.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct News(AtomicU64);

impl News {
    /// The lanes that had news since the last call.
    pub(crate) fn take(&self) -> u64 {
        // Most polls find nothing and need no exclusive access to the line.
        if self.0.load(SeqCst) == 0 { 0 } else { self.0.swap(0, SeqCst) }
    }
}

/// What a peer pulls in order to leave news about one lane.
#[derive(Debug)]
pub(crate) struct Cord {
    pub(crate) bell: Arc<Bell>,
    pub(crate) news: Arc<News>,
    pub(crate) bit: u64,
}

impl Cord {
    pub(crate) fn pull(&self) {
        self.news.0.fetch_or(self.bit, SeqCst);
        self.bell.wake();
    }
}
