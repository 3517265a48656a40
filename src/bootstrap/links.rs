//! Control links: connections between watchers, opened where membership wants them and where a message needs one.
//!
//! Both sides may connect at once. Then both connections are read, and each side writes on the one it had first, so that
//! its messages stay in order. Offers survive a lost link: they are numbered per pair of ranks, kept until the peer has
//! said that it has them, and sent again over the next link; the receiver takes each number once.

use super::{
    LaneOffer,
    framed::Framed,
    poller::{Interest, Poller},
    wire::{Message, Seat},
};
use crate::plan::Rank;
use rondel_transport_api::handshake::{Handshake, Hello, Key, Purpose};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    rc::Rc,
    time::{Duration, Instant},
};

/// How long one address may take to connect.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a connection may take to shake hands and to say whose it is.
const GREETING: Duration = Duration::from_secs(2);
/// Pause before messages that wait for a link make it try again.
const RETRY: Duration = Duration::from_millis(250);

/// What happened on the links.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The first connection to a rank is open.
    Up(Rank),
    /// The last one is gone.
    Down(Rank),
    /// No connection came about.
    DialFailed { rank: Rank, refused: bool },
    /// Something for this rank; heartbeats included.
    Heard { from: Rank, message: Box<Message> },
}

#[derive(Debug)]
pub(crate) struct Links {
    poller: Rc<Poller>,
    key: Key,
    job: u64,
    me: Rank,
    seats: Rc<[Seat]>,
    /// Added to the number of a connection to make its token.
    base: u64,
    next: u64,
    connections: BTreeMap<u64, Connection>,
    peers: BTreeMap<Rank, Peer>,
    events: VecDeque<LinkEvent>,
}

/// Everything about the traffic with one rank that outlives a connection.
#[derive(Debug, Default)]
struct Peer {
    /// The connection that is written on.
    writer: Option<u64>,
    /// Frames that wait for one.
    pending: Vec<u8>,
    offers_sent: u64,
    unconfirmed: VecDeque<(u64, LaneOffer)>,
    offers_received: u64,
    dial: Option<Dial>,
    retry: Option<Instant>,
    /// An address that has led to this peer before.
    proven: Option<SocketAddr>,
    /// It left: nothing is sent to it any more.
    left: bool,
}

/// An attempt in progress.
#[derive(Debug)]
struct Dial {
    rest: VecDeque<SocketAddr>,
    refused: bool,
    /// An address did something else than refusing.
    unclear: bool,
}

#[derive(Debug)]
struct Connection {
    peer: Rank,
    phase: Phase,
    /// When it has failed, unless it is greeted.
    until: Instant,
    dialled: Option<SocketAddr>,
}

#[derive(Debug)]
enum Phase {
    Connecting(TcpStream),
    Shaking(TcpStream, Box<Handshake>),
    /// `greeted`: the peer has said that it is who we think, and in our job.
    Open {
        framed: Framed,
        greeted: bool,
    },
}

impl Links {
    pub(crate) fn new(
        poller: Rc<Poller>,
        base: u64,
        key: Key,
        job: u64,
        me: Rank,
        seats: Rc<[Seat]>,
    ) -> Self {
        Self {
            poller,
            key,
            job,
            me,
            seats,
            base,
            next: 0,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }
    pub(crate) fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }
    /// Takes a connection that a peer opened and that is authenticated.
    pub(crate) fn accept(&mut self, stream: TcpStream, peer: Rank, now: Instant) {
        if peer == self.me || peer as usize >= self.seats.len() {
            tracing::warn!("a control link claims to be of rank {peer}, which is none of this job's others");
            return;
        }
        self.open(stream, peer, None, now);
    }
    /// Connects to a rank, unless that is being done or there is a link.
    pub(crate) fn dial(&mut self, rank: Rank, now: Instant) {
        let local = self.seats[rank as usize].member.host == self.seats[self.me as usize].member.host;
        let peer = self.peers.entry(rank).or_default();
        if peer.dial.is_some() || peer.writer.is_some() {
            return;
        }
        // A loopback address of another host is some process of this one.
        let usable = |address: &&SocketAddr| local || !address.ip().is_loopback();
        let addresses = self.seats[rank as usize].member.addresses.iter().filter(usable).copied();
        let mut rest: VecDeque<SocketAddr> = addresses.filter(|a| Some(*a) != peer.proven).collect();
        if let Some(proven) = peer.proven {
            rest.push_front(proven);
        }
        peer.retry = None;
        peer.dial = Some(Dial { rest, refused: false, unclear: false });
        self.try_next_address(rank, now);
    }
    /// Sends a message over the link to a rank, which is made if there is none.
    pub(crate) fn send(&mut self, to: Rank, message: &Message, now: Instant) {
        let peer = self.peers.entry(to).or_default();
        if peer.left {
            return;
        }
        match peer.writer {
            Some(id) => self.write(id, &message.encode(), now),
            None => {
                peer.pending.extend_from_slice(&message.encode());
                self.dial(to, now);
            }
        }
    }
    /// Sends a message over the link to a rank if there is one that takes it at once.
    pub(crate) fn send_heartbeat(&mut self, to: Rank, now: Instant) {
        let Some(peer) = self.peers.get(&to) else { return };
        let Some(id) = peer.writer else { return };
        let clogged = matches!(
            &self.connections.get(&id), Some(Connection { phase: Phase::Open { framed, .. }, .. }) if framed.is_clogged()
        );
        if !clogged {
            self.write(id, &Message::Heartbeat { offers: peer.offers_received }.encode(), now);
        }
    }
    pub(crate) fn send_offer(&mut self, to: Rank, offer: LaneOffer, now: Instant) {
        let peer = self.peers.entry(to).or_default();
        if peer.left {
            return;
        }
        peer.offers_sent += 1;
        let number = peer.offers_sent;
        peer.unconfirmed.push_back((number, offer.clone()));
        match peer.writer {
            Some(id) => self.write(id, &Message::Offer { number, offer }.encode(), now),
            None => self.dial(to, now),
        }
    }
    /// A rank left: nothing is sent to it any more.
    pub(crate) fn forget(&mut self, rank: Rank) {
        let peer = self.peers.entry(rank).or_default();
        peer.left = true;
        peer.pending.clear();
        peer.unconfirmed.clear();
        peer.retry = None;
    }
    /// Everything that was sent has gone to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        let clogged = |connection: &Connection| matches!(&connection.phase, Phase::Open { framed, .. } if framed.is_clogged());
        !self.connections.values().any(clogged)
    }
    /// Ends our half of every connection. The peers close theirs when they have read it all.
    pub(crate) fn hang_up(&mut self) {
        self.connections.retain(|_, connection| match &connection.phase {
            Phase::Open { framed, .. } => framed.stream().shutdown(std::net::Shutdown::Write).is_ok(),
            _ => false,
        });
    }
    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let connections = self.connections.values().filter(|c| !c.is_greeted()).map(|c| c.until);
        connections.chain(self.peers.values().filter_map(|peer| peer.retry)).min()
    }
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let late: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| !c.is_greeted() && c.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.close(id, &io::ErrorKind::TimedOut.into(), now);
        }
        let retry = |peer: &Peer| peer.retry.is_some_and(|due| due <= now);
        let due: Vec<Rank> =
            self.peers.iter().filter(|(_, peer)| retry(peer)).map(|(rank, _)| *rank).collect();
        for rank in due {
            self.dial(rank, now);
        }
    }
    /// The connection of this token is ready for something.
    pub(crate) fn handle_ready(&mut self, token: u64, now: Instant) {
        let id = token - self.base;
        if let Err(e) = self.advance(id, now) {
            self.close(id, &e, now);
        }
    }

    fn try_next_address(&mut self, rank: Rank, now: Instant) {
        loop {
            let Some(peer) = self.peers.get_mut(&rank) else { return };
            let Some(dial) = &mut peer.dial else { return };
            let Some(address) = dial.rest.pop_front() else {
                let refused = dial.refused && !dial.unclear;
                peer.dial = None;
                if peer.writer.is_none() {
                    let idle = peer.pending.is_empty() && peer.unconfirmed.is_empty();
                    peer.retry = (!peer.left && !idle).then_some(now + RETRY);
                    self.events.push_back(LinkEvent::DialFailed { rank, refused });
                }
                return;
            };
            match self.connect(rank, address, now) {
                Ok(()) => return,
                Err(e) => self.note_dial_error(rank, address, &e),
            }
        }
    }

    fn note_dial_error(&mut self, rank: Rank, address: SocketAddr, e: &io::Error) {
        tracing::debug!("rank {rank} cannot be reached at {address}: {e}");
        let Some(peer) = self.peers.get_mut(&rank) else { return };
        let Some(dial) = &mut peer.dial else { return };
        if e.kind() != io::ErrorKind::ConnectionRefused {
            dial.unclear = true;
        } else {
            dial.refused = true;
            if peer.proven == Some(address) {
                // The one that has worked before decides.
                dial.unclear = false;
                dial.rest.clear();
            }
        }
    }

    fn connect(&mut self, rank: Rank, address: SocketAddr, now: Instant) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        let stream: TcpStream = socket.into();
        let id = self.next;
        self.poller.add(stream.as_fd(), self.base + id, Interest::ReadWrite)?;
        self.next += 1;
        let phase = Phase::Connecting(stream);
        self.connections
            .insert(id, Connection { peer: rank, phase, until: now + CONNECT, dialled: Some(address) });
        Ok(())
    }

    /// From here on the connection speaks frames.
    fn open(&mut self, stream: TcpStream, peer: Rank, dialled: Option<SocketAddr>, now: Instant) {
        let id = self.next;
        if let Err(e) = self.poller.add(stream.as_fd(), self.base + id, Interest::Read) {
            tracing::warn!("cannot keep a control link to rank {peer}: {e}");
            return;
        }
        self.next += 1;
        let phase = Phase::Open { framed: Framed::new(stream), greeted: false };
        self.connections.insert(id, Connection { peer, phase, until: now + GREETING, dialled });
        self.greet(id, now);
    }

    fn greet(&mut self, id: u64, now: Instant) {
        let Some(connection) = self.connections.get(&id) else { return };
        let to = connection.peer;
        let offers = self.peers.entry(to).or_default().offers_received;
        self.write(id, &Message::Link { job: self.job, to, offers }.encode(), now);
    }

    fn write(&mut self, id: u64, frame: &[u8], now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Phase::Open { framed, .. } = &mut connection.phase else { return };
        framed.push_encoded(frame);
        // A broken connection is closed by its reader, after what arrived before the break.
        let _ = framed.flush();
        self.watch(id, now);
    }

    fn watch(&mut self, id: u64, now: Instant) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Phase::Open { framed, .. } = &connection.phase else { return };
        let interest = if framed.is_clogged() { Interest::ReadWrite } else { Interest::Read };
        if let Err(e) = self.poller.modify(framed.as_fd(), self.base + id, interest) {
            self.close(id, &e, now);
        }
    }

    fn advance(&mut self, id: u64, now: Instant) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        match &mut connection.phase {
            Phase::Connecting(stream) => {
                if let Some(e) = stream.take_error()? {
                    return Err(e);
                }
                match stream.peer_addr() {
                    Err(e) if e.kind() == io::ErrorKind::NotConnected => return Ok(()),
                    other => drop(other?),
                }
                self.poller.modify(stream.as_fd(), self.base + id, Interest::Read)?;
                let hello = Hello { rank: self.me, purpose: Purpose::Control };
                let handshake = Box::new(Handshake::client(&self.key, hello));
                connection.until = now + GREETING;
                self.replace_phase(id, |stream| Phase::Shaking(stream, handshake));
                self.advance(id, now)
            }
            Phase::Shaking(stream, handshake) => {
                if shake(stream, handshake)? {
                    self.replace_phase(id, |stream| Phase::Open {
                        framed: Framed::new(stream),
                        greeted: false,
                    });
                    self.greet(id, now);
                }
                Ok(())
            }
            Phase::Open { .. } => self.read(id, now),
        }
    }

    fn replace_phase(&mut self, id: u64, next: impl FnOnce(TcpStream) -> Phase) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let phase = match connection.phase {
            Phase::Connecting(stream) | Phase::Shaking(stream, _) => next(stream),
            open => open,
        };
        self.connections.insert(id, Connection { phase, ..connection });
    }

    fn read(&mut self, id: u64, now: Instant) -> io::Result<()> {
        let Some((peer, framed)) = self.framed(id) else { return Ok(()) };
        // What arrived before a break is heard before it.
        let filled = framed.fill();
        while let Some((_, framed)) = self.framed(id)
            && let Some(message) = framed.next().map_err(io::Error::other)?
        {
            self.take(id, peer, message, now)?;
        }
        filled?;
        let Some((_, framed)) = self.framed(id) else { return Ok(()) };
        if framed.has_ended() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        framed.flush()?;
        self.watch(id, now);
        Ok(())
    }

    fn framed(&mut self, id: u64) -> Option<(Rank, &mut Framed)> {
        match self.connections.get_mut(&id)? {
            Connection { peer, phase: Phase::Open { framed, .. }, .. } => Some((*peer, framed)),
            _ => None,
        }
    }

    fn take(&mut self, id: u64, from: Rank, message: Message, now: Instant) -> io::Result<()> {
        let greeted = self.connections.get(&id).is_some_and(Connection::is_greeted);
        let peer = self.peers.entry(from).or_default();
        match message {
            Message::Link { job, to, offers } if !greeted => {
                if job != self.job || to != self.me {
                    let what = format!("it looks for rank {to} of job {job:016x}, this is rank {}", self.me);
                    return Err(io::Error::other(what));
                }
                peer.confirm(offers);
                self.establish(id, from, now);
                return Ok(());
            }
            _ if !greeted => return Err(io::Error::other("it did not say first whose it is")),
            Message::Link { .. } => return Err(io::Error::other("it said twice whose it is")),
            Message::Heartbeat { offers } => peer.confirm(offers),
            Message::Offer { number, .. } if number <= peer.offers_received => return Ok(()),
            Message::Offer { number, .. } => {
                if number != peer.offers_received + 1 {
                    return Err(io::Error::other("an offer is missing before it"));
                }
                peer.offers_received = number;
            }
            _ => {}
        }
        self.events.push_back(LinkEvent::Heard { from, message: Box::new(message) });
        Ok(())
    }

    fn establish(&mut self, id: u64, rank: Rank, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Phase::Open { greeted, .. } = &mut connection.phase {
            *greeted = true;
        }
        let peer = self.peers.entry(rank).or_default();
        if connection.dialled.is_some() {
            peer.proven = connection.dialled;
            peer.dial = None;
        }
        if peer.writer.is_none() {
            self.events.push_back(LinkEvent::Up(rank));
            self.adopt(id, rank, now);
        }
    }

    /// Writes on this connection from now on, beginning with everything that the peer may not have.
    fn adopt(&mut self, id: u64, rank: Rank, now: Instant) {
        let peer = self.peers.entry(rank).or_default();
        peer.writer = Some(id);
        peer.retry = None;
        let mut frames = std::mem::take(&mut peer.pending);
        for (number, offer) in &peer.unconfirmed {
            frames.extend(Message::Offer { number: *number, offer: offer.clone() }.encode());
        }
        if !frames.is_empty() {
            self.write(id, &frames, now);
        }
    }

    fn close(&mut self, id: u64, why: &io::Error, now: Instant) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let rank = connection.peer;
        tracing::debug!("control connection to rank {rank} is over: {why}");
        if connection.is_greeted() {
            let peer = self.peers.entry(rank).or_default();
            if peer.writer != Some(id) {
                return;
            }
            peer.writer = None;
            let other =
                self.connections.iter().find(|(_, c)| c.peer == rank && c.is_greeted()).map(|(id, _)| *id);
            match other {
                Some(other) => self.adopt(other, rank, now),
                None => self.events.push_back(LinkEvent::Down(rank)),
            }
        } else if let Some(address) = connection.dialled {
            self.note_dial_error(rank, address, why);
            self.try_next_address(rank, now);
        }
    }
}

impl Peer {
    fn confirm(&mut self, offers: u64) {
        while self.unconfirmed.front().is_some_and(|(number, _)| *number <= offers) {
            self.unconfirmed.pop_front();
        }
    }
}

impl Connection {
    fn is_greeted(&self) -> bool {
        matches!(self.phase, Phase::Open { greeted: true, .. })
    }
}

/// Moves a client's handshake on; true when it is done.
fn shake(mut stream: &TcpStream, handshake: &mut Handshake) -> io::Result<bool> {
    loop {
        while !handshake.output().is_empty() {
            // A few bytes into an empty socket buffer.
            let n = stream.write(handshake.output())?;
            handshake.sent(n);
        }
        if handshake.is_done() {
            return Ok(true);
        }
        let mut bytes = [0; 512];
        let wanted = handshake.wants().min(bytes.len());
        match stream.read(&mut bytes[..wanted]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                let result = handshake.handle_input(&bytes[..n]);
                if let Err(e) = result {
                    let _ = stream.write(handshake.output());
                    return Err(io::Error::other(e));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
