//! The status socket among the watcher's descriptors.

use super::poller::{Interest, Poller};
use crate::engine::status::StatusSocket;
use std::{
    io,
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};

/// Visitors that are answered before the watcher turns to other things.
const AT_ONCE: usize = 16;
/// Pause after the process ran out of descriptors.
const BREATH: Duration = Duration::from_secs(1);

/// Answers visitors of the socket while it can.
#[derive(Debug)]
pub(crate) struct Exhibit {
    socket: StatusSocket,
    poller: Rc<Poller>,
    token: u64,
    paused_until: Option<Instant>,
    warned: bool,
}

impl Exhibit {
    /// Readiness is reported under `token`.
    pub(crate) fn open(socket: StatusSocket, poller: Rc<Poller>, token: u64) -> io::Result<Self> {
        poller.add(socket.as_fd(), token, Interest::Read)?;
        Ok(Self { socket, poller, token, paused_until: None, warned: false })
    }
    /// When [`resume`](Self::resume) has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.paused_until
    }
    /// The socket is ready.
    pub(crate) fn answer(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            match self.socket.accept_one() {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => return self.pause(&e, now),
            }
        }
    }
    /// Ends a pause that is over.
    pub(crate) fn resume(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            if let Err(e) = self.poller.add(self.socket.as_fd(), self.token, Interest::Read) {
                self.pause(&e, now);
            }
        }
    }

    fn pause(&mut self, why: &io::Error, now: Instant) {
        if !self.warned {
            tracing::warn!("`rondel status` cannot be answered for a while: {why} (said once)");
            self.warned = true;
        }
        // It may be out of the set already, where it could not be put back.
        let _ = self.poller.remove(self.socket.as_fd());
        self.paused_until = Some(now + BREATH);
    }
}
