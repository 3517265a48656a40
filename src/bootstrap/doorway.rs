//! Listeners and the connections at them that have not proved yet that they have the key.
//!
//! Whatever strangers do here costs a bounded time, number and amount of memory: a handshake has two seconds, at most 256
//! are open at once (the oldest gives way), and none reads more bytes than its fixed messages have.

use super::{
    descriptors::explained,
    poller::{Interest, Poller},
};
use rondel_transport_api::handshake::{Handshake, HandshakeError, Hello, Key};
use std::{
    collections::{BTreeMap, HashSet},
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Handshakes at once.
const MAX_GUESTS: usize = 256;
/// Connections that are accepted before the open handshakes get their turn.
const ACCEPT_AT_ONCE: usize = 64;
/// Pause after the process ran out of descriptors.
const BREATH: Duration = Duration::from_millis(100);
/// Sources that are logged by address; those that come later are not.
const MAX_LOGGED: usize = 64;

/// Its own epoll set, so that any loop can serve it as one descriptor.
#[derive(Debug)]
pub(crate) struct Doorway {
    poller: Poller,
    listeners: Vec<TcpListener>,
    key: Key,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    paused_until: Option<Instant>,
    warned: bool,
    logged: HashSet<IpAddr>,
}

#[derive(Debug)]
struct Guest {
    stream: TcpStream,
    from: SocketAddr,
    handshake: Handshake,
    since: Instant,
}

impl Doorway {
    /// The listeners must be nonblocking.
    pub(crate) fn new(listeners: Vec<TcpListener>, key: Key) -> io::Result<Self> {
        let poller = Poller::new()?;
        for (token, listener) in listeners.iter().enumerate() {
            poller.add(listener.as_fd(), token as u64, Interest::Read)?;
        }
        let next = listeners.len() as u64;
        Ok(Self {
            poller,
            listeners,
            key,
            guests: BTreeMap::new(),
            next,
            paused_until: None,
            warned: false,
            logged: HashSet::new(),
        })
    }
    /// When [`turn`](Self::turn) has something to do though nothing is readable.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let oldest = self.guests.values().next().map(|guest| guest.since + PATIENCE);
        oldest.into_iter().chain(self.paused_until).min()
    }
    /// Moves everything on without blocking. Returns the connections that are authenticated now.
    pub(crate) fn turn(&mut self, now: Instant) -> Vec<(TcpStream, Hello)> {
        self.resume(now);
        let mut admitted = Vec::new();
        let ready = self.poller.wait(Some(now)).unwrap_or_default();
        let listeners = self.listeners.len() as u64;
        for &token in ready.iter().filter(|&&token| token >= listeners) {
            self.move_guest(token, &mut admitted);
        }
        for &token in ready.iter().filter(|&&token| token < listeners) {
            self.accept(token, now, &mut admitted);
        }
        while let Some((&token, guest)) = self.guests.first_key_value()
            && guest.since + PATIENCE <= now
        {
            let from = guest.from;
            self.log(from, format_args!("said too little within {PATIENCE:?}"), false);
            self.guests.remove(&token);
        }
        admitted
    }

    fn accept(&mut self, listener: u64, now: Instant, admitted: &mut Vec<(TcpStream, Hello)>) {
        for _ in 0..ACCEPT_AT_ONCE {
            match self.listeners[listener as usize].accept() {
                Ok((stream, from)) => {
                    if self.guests.len() >= MAX_GUESTS {
                        self.guests.pop_first();
                    }
                    self.receive(stream, from, now, admitted);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if is_of_connection(&e) => {}
                Err(e) => {
                    if !self.warned {
                        tracing::warn!("cannot accept connections for now: {} (said once)", explained(&e));
                        self.warned = true;
                    }
                    self.guests.pop_first();
                    self.pause(now);
                    return;
                }
            }
        }
    }

    fn receive(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        now: Instant,
        admitted: &mut Vec<(TcpStream, Hello)>,
    ) {
        let token = self.next;
        let usable = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| self.poller.add(stream.as_fd(), token, Interest::Read));
        if let Err(e) = usable {
            tracing::debug!("connection from {from} is unusable: {e}");
            return;
        }
        self.next += 1;
        self.guests
            .insert(token, Guest { stream, from, handshake: Handshake::server(&self.key), since: now });
        self.move_guest(token, admitted);
    }

    fn move_guest(&mut self, token: u64, admitted: &mut Vec<(TcpStream, Hello)>) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        match guest.advance() {
            Ok(None) => {}
            Ok(Some(hello)) => {
                if let Some(guest) = self.guests.remove(&token)
                    && self.poller.remove(guest.stream.as_fd()).is_ok()
                {
                    admitted.push((guest.stream, hello));
                }
            }
            Err(Turned { why, suspicious }) => {
                let from = guest.from;
                self.guests.remove(&token);
                self.log(from, format_args!("{why}"), suspicious);
            }
        }
    }

    /// Once per source address: a scan must not fill a log.
    fn log(&mut self, from: SocketAddr, why: std::fmt::Arguments<'_>, suspicious: bool) {
        if self.logged.len() >= MAX_LOGGED || !self.logged.insert(from.ip()) {
            return;
        }
        if suspicious {
            tracing::warn!("turned a connection from {from} away: {why} (said once per address)");
        } else {
            tracing::debug!("turned a connection from {from} away: {why} (said once per address)");
        }
    }

    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + BREATH);
        for listener in &self.listeners {
            // A listener that stays in the set is only woken for too often.
            let _ = self.poller.remove(listener.as_fd());
        }
    }
    fn resume(&mut self, now: Instant) {
        if self.paused_until.is_none_or(|until| until > now) {
            return;
        }
        self.paused_until = None;
        for (token, listener) in self.listeners.iter().enumerate() {
            if let Err(e) = self.poller.add(listener.as_fd(), token as u64, Interest::Read) {
                tracing::warn!("cannot listen any more: {e}");
            }
        }
    }
}

/// Whether accepting failed because of the one connection that was to be accepted, and the next one may be well.
fn is_of_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable};
    matches!(e.kind(), ConnectionAborted | HostUnreachable | Interrupted | NetworkDown | NetworkUnreachable)
        || e.raw_os_error() == Some(libc::EPROTO)
}

impl AsFd for Doorway {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

/// Why a guest was turned away.
struct Turned {
    why: String,
    /// It is of our kind, but not of our job: somebody may look for this line.
    suspicious: bool,
}

impl Guest {
    fn advance(&mut self) -> Result<Option<Hello>, Turned> {
        let quiet = |e: io::Error| Turned { why: e.to_string(), suspicious: false };
        loop {
            self.send().map_err(quiet)?;
            if self.handshake.is_done() {
                return Ok(self.handshake.hello());
            }
            let mut bytes = [0; 512];
            let wanted = self.handshake.wants().min(bytes.len());
            if wanted == 0 {
                return Ok(None);
            }
            match self.stream.read(&mut bytes[..wanted]) {
                Ok(0) => {
                    return Err(Turned { why: "it closed within the handshake".into(), suspicious: false });
                }
                Ok(n) => {
                    if let Err(e) = self.handshake.handle_input(&bytes[..n]) {
                        // The last word is a courtesy: its buffer is empty, so it fits or the peer is gone.
                        let _ = self.send();
                        let suspicious = !matches!(e, HandshakeError::Stranger { .. });
                        return Err(Turned { why: e.to_string(), suspicious });
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(quiet(e)),
            }
        }
    }
    /// The few bytes of a handshake fit into any socket buffer, so a peer that does not take them is none of ours.
    fn send(&mut self) -> io::Result<()> {
        while !self.handshake.output().is_empty() {
            let n = self.stream.write(self.handshake.output())?;
            self.handshake.sent(n);
        }
        Ok(())
    }
}
