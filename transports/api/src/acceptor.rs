//! How authenticated sockets get from the one listener of a process to the endpoint that waits for them.

use crossbeam::queue::SegQueue;
use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

/// An authenticated, nonblocking connection that a peer opened towards us for a lane.
#[derive(Debug)]
pub struct Incoming {
    /// The rank that opened it.
    pub from: u32,
    /// The number that our offer carried, so that the endpoint finds the lane.
    pub cookie: u64,
    /// Which of the lane's sockets this is.
    pub stripe: u8,
    /// The connection.
    pub stream: TcpStream,
}

/// A queue of incoming connections with a descriptor that wakes a sleeper.
///
/// The listener's owner calls [`deliver`](Acceptor::deliver); one endpoint calls [`take`](Acceptor::take).
#[derive(Debug)]
pub struct Acceptor {
    queue: SegQueue<Incoming>,
    waiting: AtomicBool,
    event: OwnedFd,
    addresses: Vec<std::net::SocketAddr>,
}

impl Acceptor {
    /// `addresses`: where peers reach the listener, best first. One port, as many addresses as the listener has.
    pub fn new(addresses: Vec<std::net::SocketAddr>) -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; the descriptor is ours alone.
        let event = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { queue: SegQueue::new(), waiting: AtomicBool::new(false), event, addresses })
    }
    /// Where peers reach the listener, best first.
    pub fn addresses(&self) -> &[std::net::SocketAddr] {
        &self.addresses
    }
    /// Hands a connection over and wakes the endpoint.
    pub fn deliver(&self, incoming: Incoming) {
        self.queue.push(incoming);
        self.waiting.store(true, Ordering::Release);
        let one = 1u64;
        // SAFETY: `one` is 8 readable bytes. A full counter (EAGAIN) is readable already, which is all we need.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }
    /// The next connection. One relaxed load when there is none.
    pub fn take(&self) -> Option<Incoming> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let next = self.queue.pop();
        if next.is_none() {
            // Clear first, look again after: a delivery in between sets the flag anew.
            self.waiting.store(false, Ordering::SeqCst);
            let mut drained = 0u64;
            // SAFETY: `drained` is 8 writable bytes.
            unsafe { libc::read(self.event.as_raw_fd(), (&raw mut drained).cast(), 8) };
            let late = self.queue.pop();
            if late.is_some() {
                self.waiting.store(true, Ordering::SeqCst);
            }
            return late;
        }
        next
    }
    /// Readable while connections wait.
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
