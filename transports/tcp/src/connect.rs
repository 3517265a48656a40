//! How the sockets of a lane come into being: one end dials and authenticates, the other waits for what its process's
//! listener delivers. Nothing here blocks.

use crate::{
    offer::LaneOffer,
    options,
    wake::{Source, Wake},
};
use rondel_transport_api::{
    Config, TransportError,
    handshake::{Handshake, Hello, Key, Purpose},
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long one address may take before the next is tried.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// How long the end that waits is patient: longer than the other end tries.
const APPEAR_WITHIN: Duration = Duration::from_secs(30);

/// A lane on its way to its sockets.
pub(crate) struct Connecting {
    placed: Vec<Option<(u32, TcpStream)>>,
    role: Role,
    until: Option<Instant>,
    silence: Duration,
}

enum Role {
    /// The peer's offer has not come.
    Undecided,
    /// The peer dials.
    Waits {
        peer: u32,
    },
    Dials(Vec<Dialer>),
}

impl Connecting {
    /// `sockets`: how many this end offers.
    pub(crate) fn new(sockets: u8, silence: Duration) -> Self {
        let placed = (0..sockets.max(1)).map(|_| None).collect();
        Self { placed, role: Role::Undecided, until: None, silence }
    }

    /// Whether the peer's offer has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.until.is_some()
    }

    /// Whether it is this end that dials.
    pub(crate) fn dials(&self) -> bool {
        matches!(self.role, Role::Dials(_))
    }

    /// When to give up.
    pub(crate) fn until(&self) -> Option<Instant> {
        match &self.role {
            Role::Dials(dialers) => dialers.iter().filter_map(|d| d.attempt.as_ref()).map(|a| a.until).min(),
            _ => self.until,
        }
    }

    /// Takes the peer's offer and decides who dials: the end with the larger cookie. `scope` is the interface that
    /// link-local addresses are reached through.
    pub(crate) fn begin(
        &mut self,
        ours: u64,
        theirs: &LaneOffer,
        config: &Config,
        scope: u32,
    ) -> Result<(), TransportError> {
        let sockets = self.placed.len().min(theirs.sockets.into());
        self.placed.truncate(sockets);
        self.until = Some(Instant::now() + APPEAR_WITHIN);
        if ours < theirs.cookie {
            self.role = Role::Waits { peer: theirs.rank };
            return Ok(());
        }
        if theirs.addresses.is_empty() {
            return Err(TransportError::Connect {
                address: format!("rank {}", theirs.rank),
                reason: "its offer names no address: does its process listen?".into(),
            });
        }
        let addresses: Vec<_> = theirs.addresses.iter().map(|&address| scoped(address, scope)).collect();
        let dialer = |stripe| Dialer {
            key: config.key.clone(),
            hello: Hello {
                rank: config.rank,
                purpose: Purpose::Lane { cookie: theirs.cookie, stripe: stripe as u8 },
            },
            addresses: addresses.clone(),
            next: 0,
            attempt: None,
            tried: Vec::new(),
        };
        self.role = Role::Dials((0..sockets).map(dialer).collect());
        Ok(())
    }

    /// Takes a connection that the peer opened. One that does not belong here is closed by dropping it.
    pub(crate) fn deliver(&mut self, from: u32, stripe: u8, stream: TcpStream) {
        match self.placed.get_mut(usize::from(stripe)) {
            Some(place @ None) if !matches!(self.role, Role::Dials(_)) => *place = Some((from, stream)),
            _ => tracing::debug!(from, stripe, "a connection for a socket that no lane waits for was closed"),
        }
    }

    /// Makes progress. Returns the sockets once all are there and authenticated.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        lane: u32,
        wake: &Wake,
    ) -> Result<Option<Vec<TcpStream>>, TransportError> {
        match &mut self.role {
            Role::Undecided => return Ok(None),
            &mut Role::Waits { peer } => {
                if let Some((from, _)) = self.placed.iter().flatten().find(|(from, _)| *from != peer) {
                    return Err(TransportError::Protocol {
                        peer: format!("rank {from}"),
                        reason: format!("it connected to a lane that was offered to rank {peer}"),
                    });
                }
                let late = self.until.is_some_and(|until| now >= until);
                if late && self.placed.iter().any(Option::is_none) {
                    return Err(TransportError::Connect {
                        address: format!("rank {peer}"),
                        reason: format!(
                            "it was to connect to us and did not within {} s: it may have failed, or our addresses \
                             cannot be reached from its host",
                            APPEAR_WITHIN.as_secs()
                        ),
                    });
                }
            }
            Role::Dials(dialers) => {
                for (stripe, (dialer, place)) in dialers.iter_mut().zip(&mut self.placed).enumerate() {
                    if place.is_none()
                        && let Some(stream) = dialer.poll(now, wake, Source { lane, stripe: stripe as u8 })?
                    {
                        *place = Some((dialer.hello.rank, stream));
                    }
                }
            }
        }
        if self.placed.iter().any(Option::is_none) {
            return Ok(None);
        }
        let streams: Vec<_> = self.placed.drain(..).flatten().map(|(_, stream)| stream).collect();
        let waits = matches!(self.role, Role::Waits { .. });
        for (stripe, stream) in streams.iter().enumerate() {
            let prepared = options::prepare(stream, self.silence);
            let watched = if waits {
                prepared.and_then(|()| wake.watch(stream, Source { lane, stripe: stripe as u8 }))
            } else {
                prepared
            };
            watched.map_err(|error| options::io_error("preparing a connection for a lane", error))?;
        }
        Ok(Some(streams))
    }
}

fn scoped(mut address: SocketAddr, scope: u32) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(scope);
    }
    address
}

/// Tries the peer's addresses in order, for one socket.
struct Dialer {
    key: Key,
    hello: Hello,
    addresses: Vec<SocketAddr>,
    next: usize,
    attempt: Option<Attempt>,
    tried: Vec<String>,
}

struct Attempt {
    address: SocketAddr,
    stream: TcpStream,
    /// None while the connection is not there.
    handshake: Option<Handshake>,
    until: Instant,
}

impl Dialer {
    fn poll(
        &mut self,
        now: Instant,
        wake: &Wake,
        source: Source,
    ) -> Result<Option<TcpStream>, TransportError> {
        loop {
            let Some(attempt) = &mut self.attempt else {
                let Some(&address) = self.addresses.get(self.next) else { return Err(self.failure()) };
                self.next += 1;
                match Attempt::begin(address, now, wake, source) {
                    Ok(attempt) => self.attempt = Some(attempt),
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                        let what = format!("connecting to {address}");
                        return Err(TransportError::Io { what, source: Arc::new(error) });
                    }
                    Err(error) => self.tried.push(format!("{address}: {error}")),
                }
                continue;
            };
            let reason = match attempt.advance(&self.key, self.hello) {
                Ok(true) => return Ok(self.attempt.take().map(|attempt| attempt.stream)),
                Ok(false) if now < attempt.until => return Ok(None),
                Ok(false) => format!("no answer within {} s", DIAL_WITHIN.as_secs()),
                Err(reason) => reason,
            };
            self.tried.push(format!("{}: {reason}", attempt.address));
            self.attempt = None;
        }
    }

    fn failure(&self) -> TransportError {
        let list: Vec<_> = self.addresses.iter().map(SocketAddr::to_string).collect();
        TransportError::Connect { address: list.join(", "), reason: self.tried.join("; ") }
    }
}

impl Attempt {
    fn begin(address: SocketAddr, now: Instant, wake: &Wake, source: Source) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        wake.watch(&socket, source)?;
        Ok(Self { address, stream: socket.into(), handshake: None, until: now + DIAL_WITHIN })
    }

    /// True once the connection is there and both ends have authenticated each other.
    fn advance(&mut self, key: &Key, hello: Hello) -> Result<bool, String> {
        let text = |error: std::io::Error| error.to_string();
        if let Some(error) = self.stream.take_error().map_err(text)? {
            return Err(text(error));
        }
        if self.handshake.is_none() && self.stream.peer_addr().is_err() {
            return Ok(false);
        }
        let handshake = self.handshake.get_or_insert_with(|| Handshake::client(key, hello));
        let mut bytes = [0; 256];
        loop {
            let output = handshake.output();
            if !output.is_empty() {
                match self.stream.write(output) {
                    Ok(sent) => handshake.sent(sent),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(text(error)),
                }
                continue;
            }
            if handshake.is_done() {
                return Ok(true);
            }
            let want = handshake.wants().min(bytes.len());
            match self.stream.read(&mut bytes[..want]) {
                Ok(0) => return Err("the connection was closed during the handshake".into()),
                Ok(read) => {
                    if let Err(error) = handshake.handle_input(&bytes[..read]) {
                        // Its last words are for the peer's log; our verdict stands without them.
                        let _ = self.stream.write(handshake.output());
                        return Err(error.to_string());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(text(error)),
            }
        }
    }
}
