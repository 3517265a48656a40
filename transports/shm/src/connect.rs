//! How a lane's socket comes into being: one end dials and authenticates, the other has a listener. Nothing here blocks.

use crate::{
    offer::NAME_BYTES,
    socket,
    wake::{Source, Wake},
};
use rondel_transport_api::{
    TransportError,
    handshake::{Handshake, Hello, Key, Purpose, Refusal},
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    time::{Duration, Instant},
};

/// How long a connection may take to say who it is.
const GUEST_WITHIN: Duration = Duration::from_secs(5);
/// So many may be about it at once; one more, and the oldest is closed.
const MOST_GUESTS: usize = 64;

/// Advances a handshake as far as it goes. True once it is over.
fn advance(stream: &mut UnixStream, handshake: &mut Handshake) -> Result<bool, Ended> {
    let mut bytes = [0; 256];
    loop {
        let output = handshake.output();
        if !output.is_empty() {
            match stream.write(output) {
                Ok(sent) => handshake.sent(sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(Ended::Gone(error.to_string())),
            }
            continue;
        }
        let want = handshake.wants().min(bytes.len());
        if handshake.is_done() || want == 0 || handshake.hello().is_some() {
            return Ok(true);
        }
        match stream.read(&mut bytes[..want]) {
            Ok(0) => return Err(Ended::Gone("the connection was closed during the handshake".into())),
            Ok(read) => {
                if let Err(error) = handshake.handle_input(&bytes[..read]) {
                    // Its last words are for the peer's log; our verdict stands without them.
                    let _ = stream.write(handshake.output());
                    return Err(Ended::Refused(error.to_string()));
                }
                if handshake.hello().is_some() {
                    return Ok(true);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(Ended::Gone(error.to_string())),
        }
    }
}

enum Ended {
    /// The connection is gone; another attempt may do better.
    Gone(String),
    /// One of the ends will not have it.
    Refused(String),
}

/// The end that dials.
pub(crate) struct Dialer {
    key: Key,
    hello: Hello,
    name: [u8; NAME_BYTES],
    attempt: Option<(UnixStream, Handshake)>,
    /// What became of the last attempt.
    last: String,
}

impl Dialer {
    /// `cookie`: what the peer's offer calls the lane.
    pub(crate) fn new(key: &Key, rank: u32, cookie: u64, name: [u8; NAME_BYTES]) -> Self {
        let hello = Hello { rank, purpose: Purpose::Lane { cookie, stripe: 0 } };
        Self { key: key.clone(), hello, name, attempt: None, last: "nothing was tried".into() }
    }

    /// Makes progress. Returns the connection once both ends have authenticated each other.
    pub(crate) fn poll(&mut self, wake: &Wake, lane: u32) -> Result<Option<UnixStream>, String> {
        if self.attempt.is_none() {
            match socket::dial(&self.name)
                .and_then(|stream| wake.watch(&stream, Source::Lane(lane)).map(|()| stream))
            {
                Ok(stream) => self.attempt = Some((stream, Handshake::client(&self.key, self.hello))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.last = "it has more connections waiting than it takes".into();
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(format!(
                        "nobody listens there any more: its process has ended ({})",
                        self.last
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let Some((stream, handshake)) = &mut self.attempt else { return Ok(None) };
        match advance(stream, handshake) {
            Ok(true) => Ok(self.attempt.take().map(|(stream, _)| stream)),
            Ok(false) => Ok(None),
            Err(Ended::Refused(reason)) => Err(reason),
            Err(Ended::Gone(reason)) => {
                self.attempt = None;
                self.last = reason;
                Ok(None)
            }
        }
    }

    /// What became of the last attempt.
    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    /// Whether it waits for something that wakes nobody.
    pub(crate) fn must_retry(&self) -> bool {
        self.attempt.is_none()
    }
}

struct Guest {
    stream: UnixStream,
    handshake: Handshake,
    until: Instant,
}

/// The listener, and connections that have not said yet which lane they are for.
pub(crate) struct Door {
    listener: UnixListener,
    key: Key,
    guests: VecDeque<Guest>,
}

impl Door {
    pub(crate) fn new(listener: UnixListener, key: Key) -> Self {
        Self { listener, key, guests: VecDeque::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// When the first guest's time is over.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.guests.front().map(|guest| guest.until)
    }

    /// Admits, advances and judges. `known` says whether a lane waits under a cookie; `welcome` gets who has a lane.
    pub(crate) fn serve(
        &mut self,
        wake: &Wake,
        now: Instant,
        known: impl Fn(u64) -> bool,
        mut welcome: impl FnMut(u64, u32, UnixStream),
    ) {
        self.admit(wake, now);
        let mut index = 0;
        while let Some(guest) = self.guests.get_mut(index) {
            let verdict = match advance(&mut guest.stream, &mut guest.handshake) {
                Ok(true) => Some(judge(guest, &known)),
                Ok(false) if now < guest.until => None,
                Ok(false) => Some(Err("it did not say who it is in time".into())),
                Err(Ended::Gone(reason) | Ended::Refused(reason)) => Some(Err(reason)),
            };
            let Some(verdict) = verdict else {
                index += 1;
                continue;
            };
            let Some(guest) = self.guests.remove(index) else { break };
            match verdict {
                Ok((cookie, rank)) => welcome(cookie, rank, guest.stream),
                Err(reason) => tracing::debug!(reason, "a connection to the listener for lanes was closed"),
            }
        }
    }

    fn admit(&mut self, wake: &Wake, now: Instant) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let ready = stream.set_nonblocking(true).and_then(|()| wake.watch(&stream, Source::Door));
                    if let Err(error) = ready {
                        tracing::warn!(%error, "a connection for a lane could not be prepared");
                        continue;
                    }
                    if self.guests.len() >= MOST_GUESTS {
                        self.guests.pop_front();
                    }
                    let handshake = Handshake::server(&self.key);
                    self.guests.push_back(Guest { stream, handshake, until: now + GUEST_WITHIN });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    tracing::debug!(%error, "connections for lanes cannot be accepted now");
                    return;
                }
            }
        }
    }
}

/// Whom an authenticated guest is for, or why it is turned away.
fn judge(guest: &mut Guest, known: &impl Fn(u64) -> bool) -> Result<(u64, u32), String> {
    let Some(hello) = guest.handshake.hello() else { return Err("it was refused".into()) };
    let refusal = match hello.purpose {
        Purpose::Lane { cookie, stripe: 0 } if known(cookie) => {
            let output = guest.handshake.output();
            // 34 bytes always fit the buffer of a connection that carried less than that so far.
            return match guest.stream.write(output) {
                Ok(sent) if sent == output.len() => Ok((cookie, hello.rank)),
                Ok(_) => Err("its connection takes nothing".into()),
                Err(error) => Err(error.to_string()),
            };
        }
        Purpose::Lane { .. } => Refusal::UnknownLane,
        Purpose::Join | Purpose::Control => Refusal::WrongPurpose,
    };
    guest.handshake.refuse(refusal);
    let _ = guest.stream.write(guest.handshake.output());
    Err(format!("rank {}: {}", hello.rank, refusal.reason()))
}

/// The error for a lane that could not be connected.
pub(crate) fn failure(rank: u32, reason: String) -> TransportError {
    TransportError::Connect { address: format!("rank {rank} through shared memory"), reason }
}
