//! A lane: its sockets, its two queues, and its way from the offer to the end.

use crate::{
    connect::Connecting,
    inbox::{End, Inbox, Input, Reception},
    options,
    outbox::{Outbox, Output, SEND_AT_ONCE},
    wake::{Edge, Wake},
    wire::Kind,
};
use rondel_transport_api::{Event, LaneId, LaneStats, Post, Sink, Slice, Token, TransportError};
use std::{
    io::Read,
    net::{Shutdown, TcpStream},
    os::fd::AsRawFd,
    time::{Duration, Instant},
};

/// How far sending may run ahead of receiving while both directions are busy, between ranks of one host: what is in flight
/// stays inside the caches. Between hosts it would keep the wire from being full (58 % of 1 Gb/s instead of 95 %).
const LEAD: isize = 256 << 10;
/// After so many polls in which nothing came in, [`LEAD`] does not count: the other direction may be waiting for us.
const QUIET: u32 = 256;
/// How long both ends may take to say that they are ready once all sockets are there.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// One connection of a lane.
pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) input: Input,
    output: Output,
}

pub(crate) enum Phase {
    Connecting(Connecting),
    /// All sockets are there; each end says that it is ready.
    Greeting {
        until: Instant,
    },
    Open,
    /// We leave: what was accepted is sent, then goodbye, then we wait until the peer's kernel has it all.
    Leaving {
        until: Instant,
        said_goodbye: bool,
    },
    Over,
}

pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// Who is at the other end, for messages.
    pub(crate) peer: String,
    pub(crate) cookie: u64,
    pub(crate) phase: Phase,
    pub(crate) sockets: Vec<Socket>,
    inbox: Inbox,
    outbox: Outbox,
    /// Whether the endpoint's list of lanes with something to do has it.
    pub(crate) listed: bool,
    /// Bytes that sending is ahead of receiving; negative: behind. The two ends mirror each other.
    lead: isize,
    /// Polls since something came in.
    quiet: u32,
    /// Both ends are one host: [`LEAD`] applies.
    on_host: bool,
    /// Sending is impossible, but what had arrived is still to be received.
    broken: Option<String>,
    /// It was closed before it was connected: who waits for us to dial is told goodbye, until then.
    leaves: Option<Leaves>,
    silent_looks: u32,
}

/// A lane was closed while it dialled.
#[derive(Clone, Copy)]
struct Leaves {
    linger: Duration,
    until: Instant,
}

/// What a lane needs from its endpoint while it has its turn.
pub(crate) struct Turn<'a> {
    pub(crate) wake: &'a Wake,
    pub(crate) scratch: &'a mut [u8],
    pub(crate) events: &'a mut Vec<Event>,
    /// Set while any lane of the endpoint connects or leaves.
    pub(crate) now: Option<Instant>,
    /// Sockets are tried without having heard that they are ready.
    pub(crate) eager: bool,
    /// Nobody polls again before something arrives: nothing is held back.
    pub(crate) last_before_sleep: bool,
    pub(crate) budget: usize,
}

impl Lane {
    pub(crate) fn new(id: LaneId, cookie: u64, connecting: Connecting) -> Self {
        Self {
            id,
            peer: "a peer whose offer has not come".into(),
            cookie,
            phase: Phase::Connecting(connecting),
            sockets: Vec::new(),
            inbox: Inbox::new(1),
            outbox: Outbox::new(1),
            listed: false,
            lead: 0,
            quiet: QUIET,
            on_host: false,
            broken: None,
            leaves: None,
            silent_looks: 0,
        }
    }

    pub(crate) fn post_send(&mut self, src: Slice, stamp: u64, token: Token) -> Post {
        let open = matches!(self.phase, Phase::Open);
        if open && self.outbox.accept(src, stamp, token) { Post::Accepted } else { Post::Full }
    }

    pub(crate) fn post_recv(&mut self, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        let open = matches!(self.phase, Phase::Open);
        if open && self.inbox.post(len, sink, stamp, token) { Post::Accepted } else { Post::Full }
    }

    /// Open, or waiting for an offer: it does nothing unless something is posted or arrives.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.phase {
            Phase::Connecting(connecting) => !connecting.has_begun(),
            Phase::Greeting { .. } | Phase::Leaving { .. } => false,
            Phase::Open | Phase::Over => true,
        }
    }

    /// When it must be looked at although nothing arrives.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        match &self.phase {
            Phase::Connecting(connecting) => {
                let leaves = self.leaves.map(|leaves| leaves.until);
                connecting.until().into_iter().chain(leaves).min()
            }
            Phase::Greeting { until } => Some(*until),
            // The kernel does not always say when the peer has taken the last byte.
            Phase::Leaving { until, said_goodbye: true } => {
                Some((now + Duration::from_millis(5)).min(*until))
            }
            Phase::Leaving { until, .. } => Some(*until),
            Phase::Open | Phase::Over => None,
        }
    }

    /// Whether a turn could move something, as far as is known.
    pub(crate) fn is_runnable(&self) -> bool {
        self.sockets.iter().any(|socket| {
            let sends = self.outbox.has_parts() || !socket.output.is_empty();
            socket.input.wants(&self.inbox, false) || (sends && !socket.output.blocked)
        })
    }

    /// Whether it must get turns.
    pub(crate) fn has_work(&self) -> bool {
        !self.is_settled()
            || self.inbox.waits()
            || !self.outbox.is_empty()
            || self.sockets.iter().any(|s| !s.output.is_empty() || s.input.wants(&self.inbox, false))
    }

    pub(crate) fn stats(&self) -> LaneStats {
        let received = self.inbox.received();
        LaneStats {
            sent_bytes: self.outbox.bytes,
            received_bytes: received.bytes,
            sent_messages: self.outbox.sent(),
            received_messages: received.messages,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let sockets: usize = self.sockets.iter().map(|s| size_of::<Socket>() + s.output.memory()).sum();
        let ahead = self.sockets.len() * crate::inbox::AHEAD;
        size_of::<Self>() + sockets + ahead + self.inbox.memory() + self.outbox.memory()
    }

    /// Moves what can move. Returns about how many bytes did.
    pub(crate) fn take_turn(&mut self, turn: &mut Turn<'_>) -> usize {
        if let Phase::Connecting(_) = self.phase {
            self.connect(turn);
        }
        let moved = match self.phase {
            Phase::Connecting(_) | Phase::Over => 0,
            _ => match self.exchange(turn) {
                Ok(moved) => moved,
                Err(end) => {
                    if matches!(end, End::Lost(_)) {
                        // What arrived on the lane's other sockets still counts.
                        for index in 0..self.sockets.len() {
                            let _ = self.receive(index, true, usize::MAX, turn);
                        }
                    }
                    self.end(end, turn.events);
                    1
                }
            },
        };
        match self.phase {
            Phase::Greeting { until } => self.greet(until, turn),
            Phase::Leaving { until, said_goodbye } => self.leave(until, said_goodbye, turn),
            _ => {}
        }
        moved
    }

    /// Hands over what was posted.
    pub(crate) fn flush(&mut self, turn: &mut Turn<'_>) {
        if matches!(self.phase, Phase::Open)
            && let Err(end) = self.transmit(turn, false)
        {
            self.end(end, turn.events);
        }
    }

    fn connect(&mut self, turn: &mut Turn<'_>) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let now = turn.now.unwrap_or_else(Instant::now);
        match connecting.poll(now, self.id.0, turn.wake) {
            Ok(None) if self.leaves.is_some_and(|leaves| now >= leaves.until) => {
                self.finish(None, turn.events);
            }
            Ok(None) => {}
            Ok(Some(streams)) => {
                if let Some(Ok(address)) = streams.first().map(TcpStream::peer_addr) {
                    self.peer = format!("{} at {address}", self.peer);
                }
                self.on_host = streams.iter().all(options::stays_on_host);
                self.inbox = Inbox::new(streams.len());
                self.outbox = Outbox::new(streams.len());
                let socket = |stream| Socket { stream, input: Input::new(), output: Output::new() };
                self.sockets = streams.into_iter().map(socket).collect();
                self.phase = Phase::Greeting { until: now + GREET_WITHIN };
                if let Some(Leaves { linger, .. }) = self.leaves {
                    self.close(linger, turn);
                }
            }
            Err(cause) => self.finish(self.leaves.is_none().then_some(cause), turn.events),
        }
    }

    fn greet(&mut self, until: Instant, turn: &mut Turn<'_>) {
        if self.sockets.iter().all(|socket| socket.input.heard_ready && socket.output.is_empty()) {
            self.phase = Phase::Open;
            turn.events.push(Event::Established { lane: self.id });
        } else if turn.now.is_some_and(|now| now >= until) {
            let reason = format!("connected, but it did not get ready within {} s", GREET_WITHIN.as_secs());
            self.finish(Some(TransportError::Lost { peer: self.peer.clone(), reason }), turn.events);
        }
    }

    fn leave(&mut self, until: Instant, said_goodbye: bool, turn: &mut Turn<'_>) {
        if self.outbox.is_empty() && !said_goodbye {
            let ack = self.inbox.received().messages;
            self.phase = Phase::Leaving { until, said_goodbye: true };
            self.sockets.iter_mut().for_each(|socket| socket.output.say(Kind::Goodbye, ack));
            if let Err(end) = self.transmit(turn, true) {
                return self.end(end, turn.events);
            }
        }
        let gone = self.outbox.is_empty() && self.sockets.iter().all(|socket| socket.output.is_empty());
        if gone {
            for socket in &self.sockets {
                // Fails only where the connection is gone, which the look below finds as well.
                let _ = socket.stream.shutdown(Shutdown::Write);
            }
            let taken = |s: &Socket| s.input.has_ended() || options::unacknowledged(&s.stream) == 0;
            if self.sockets.iter().all(taken) {
                return self.finish(None, turn.events);
            }
        }
        if turn.now.is_some_and(|now| now >= until) {
            let reason = "the peer did not take everything that was sent within the linger time".to_string();
            let cause = (!self.outbox.is_empty()).then_some(TransportError::Closed { reason });
            self.finish(cause, turn.events);
        }
    }

    /// Receives, then sends.
    fn exchange(&mut self, turn: &mut Turn<'_>) -> Result<usize, End> {
        self.fail_sends(turn.events);
        let mut received = 0;
        for index in 0..self.sockets.len() {
            if self.sockets[index].input.wants(&self.inbox, turn.eager) {
                received += self.receive(index, turn.eager, turn.budget, turn)?;
            }
        }
        if received > 0 {
            self.lead = if self.quiet >= QUIET { 0 } else { (self.lead - received as isize).max(-LEAD) };
            self.quiet = 0;
            let told = self.inbox.received();
            if self.outbox.owes_ack(told) && self.broken.is_none() {
                self.outbox.tell(&mut self.sockets[0].output, told);
            }
        } else {
            self.quiet = self.quiet.saturating_add(1);
        }
        if !self.sockets.is_empty() && self.sockets.iter().all(|socket| socket.input.has_ended()) {
            return Err(End::Goodbye);
        }
        Ok(received + self.transmit(turn, turn.eager)?)
    }

    fn receive(
        &mut self,
        index: usize,
        eager: bool,
        budget: usize,
        turn: &mut Turn<'_>,
    ) -> Result<usize, End> {
        let socket = &mut self.sockets[index];
        let mut reception = Reception {
            fd: socket.stream.as_raw_fd(),
            inbox: &mut self.inbox,
            outbox: &mut self.outbox,
            scratch: turn.scratch,
            events: turn.events,
        };
        socket.input.receive(&mut reception, eager, budget)
    }

    /// `retry`: also sockets that took nothing the last time.
    fn transmit(&mut self, turn: &mut Turn<'_>, retry: bool) -> Result<usize, End> {
        let both_ways = self.on_host && self.inbox.waits() && self.quiet < QUIET && !turn.last_before_sleep;
        let mut sent = 0;
        for index in 0..self.sockets.len() {
            let socket = &mut self.sockets[index];
            let idle = socket.output.is_empty() && !self.outbox.has_parts();
            if idle || (socket.output.blocked && !retry) {
                continue;
            }
            let allowance = match both_ways {
                true if self.lead >= LEAD => break,
                true => SEND_AT_ONCE,
                // The sockets of a lane take turns.
                false if self.sockets.len() > 1 => SEND_AT_ONCE,
                false => turn.budget.max(SEND_AT_ONCE),
            };
            let socket = &mut self.sockets[index];
            let fd = socket.stream.as_raw_fd();
            let received = self.inbox.received();
            match socket.output.transmit(fd, &mut self.outbox, received, allowance, turn.events) {
                Ok(bytes) => {
                    sent += bytes;
                    self.lead += bytes as isize;
                    if !both_ways {
                        self.lead = self.lead.min(LEAD);
                    }
                }
                Err(error) => {
                    self.break_off(format!("sending failed: {error}"), turn)?;
                    return Ok(sent + 1);
                }
            }
        }
        Ok(sent)
    }

    /// Sending failed: what the peer sent before it went is received first. If some of it awaits a post, the lane stays
    /// for that.
    fn break_off(&mut self, reason: String, turn: &mut Turn<'_>) -> Result<(), End> {
        for index in 0..self.sockets.len() {
            match self.receive(index, true, usize::MAX, turn) {
                Ok(_) | Err(End::Goodbye) => {}
                Err(End::Lost(_)) => return Err(End::Lost(reason)),
                Err(other) => return Err(other),
            }
        }
        if self.sockets.iter().all(|socket| socket.input.has_ended()) {
            return Err(End::Goodbye);
        }
        if !self.sockets.iter().any(|socket| socket.input.is_stalled()) {
            return Err(End::Lost(reason));
        }
        self.broken = Some(reason);
        self.fail_sends(turn.events);
        Ok(())
    }

    /// Fails what was posted to a lane that cannot send any more.
    fn fail_sends(&mut self, events: &mut Vec<Event>) {
        if let Some(reason) = &self.broken {
            let error = TransportError::Lost { peer: self.peer.clone(), reason: reason.clone() };
            self.sockets.iter_mut().for_each(|socket| socket.output.clear());
            self.outbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
        }
    }

    /// The peer has left, or is lost.
    fn end(&mut self, end: End, events: &mut Vec<Event>) {
        let peer = self.peer.clone();
        let (error, cause) = match end {
            End::Goodbye => (TransportError::Left { peer }, None),
            End::Lost(reason) => {
                let reason = self.broken.take().unwrap_or(reason);
                let error = TransportError::Lost { peer, reason };
                (error.clone(), Some(error))
            }
            End::Protocol(reason) => {
                self.sockets.iter().for_each(|socket| options::reset_on_close(&socket.stream));
                let error = TransportError::Protocol { peer, reason };
                (error.clone(), Some(error))
            }
        };
        // Once we leave and all is sent, how the peer goes does not matter.
        let leaves = matches!(self.phase, Phase::Leaving { .. }) && self.outbox.is_empty();
        self.fail_all(&error, events);
        self.finish(if leaves { None } else { cause }, events);
    }

    fn fail_all(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        self.sockets.iter_mut().for_each(|socket| socket.input.let_go());
        self.inbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
        self.outbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
    }

    fn finish(&mut self, cause: Option<TransportError>, events: &mut Vec<Event>) {
        let error = cause.clone().unwrap_or(TransportError::Closed { reason: "it has ended".into() });
        self.fail_all(&error, events);
        self.sockets.clear();
        self.phase = Phase::Over;
        events.push(Event::Closed { lane: self.id, cause });
    }

    /// Begins to leave.
    pub(crate) fn close(&mut self, linger: Duration, turn: &mut Turn<'_>) {
        match &self.phase {
            Phase::Connecting(connecting) if connecting.dials() => {
                let until = Instant::now() + linger;
                self.leaves.get_or_insert(Leaves { linger, until });
                return;
            }
            // Who dials a lane that has ended is turned away.
            Phase::Connecting(_) => return self.finish(None, turn.events),
            Phase::Leaving { .. } | Phase::Over => return,
            // The other end may be open already.
            Phase::Greeting { .. } | Phase::Open => {}
        }
        for index in 0..self.sockets.len() {
            // What has arrived counts as delivered; no more is read than was posted.
            let posted = self.inbox.waits() && self.sockets[index].input.wants(&self.inbox, true);
            if posted && let Err(end) = self.receive(index, true, usize::MAX, turn) {
                return self.end(end, turn.events);
            }
        }
        let error = TransportError::Closed { reason: "it was closed while a receive was posted".into() };
        self.sockets.iter_mut().for_each(|socket| socket.input.let_go());
        self.inbox.fail(|token| Event::Failed { token, error: error.clone() }, turn.events);
        self.inbox.discards = true;
        let now = Instant::now();
        self.phase = Phase::Leaving { until: now + linger, said_goodbye: false };
        if self.broken.is_some() {
            return self.finish(None, turn.events);
        }
        self.take_turn(turn);
    }

    /// Reads what has arrived and drops it.
    pub(crate) fn drain(&self, scratch: &mut [u8]) {
        for mut stream in self.sockets.iter().map(|socket| &socket.stream) {
            let mut left = 64;
            while left > 0 && matches!(stream.read(scratch), Ok(1..)) {
                left -= 1;
            }
        }
    }

    /// Takes note of what became possible on a socket.
    pub(crate) fn note(&mut self, edge: Edge) {
        if let Some(socket) = self.sockets.get_mut(usize::from(edge.source.stripe)) {
            socket.input.readable |= edge.readable || edge.hung_up;
            socket.input.hung_up |= edge.hung_up;
            socket.output.blocked &= !(edge.writable || edge.hung_up);
        }
    }

    /// Ends at once.
    pub(crate) fn abort(&mut self, cause: TransportError, events: &mut Vec<Event>) {
        if !matches!(self.phase, Phase::Over) {
            self.sockets.iter().for_each(|socket| options::reset_on_close(&socket.stream));
            self.finish(Some(cause), events);
        }
    }

    /// Ends the lane if the peer's host has not answered for longer than `silence`.
    pub(crate) fn look_for_silence(&mut self, silence: Duration, events: &mut Vec<Event>) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let longest = self.sockets.iter().filter_map(|socket| options::silent_for(&socket.stream)).max();
        match longest.filter(|&longest| longest > silence) {
            None => self.silent_looks = 0,
            Some(longest) => {
                self.silent_looks += 1;
                if self.silent_looks > 1 {
                    let reason = format!("its host has not acknowledged anything for {longest:.1?}");
                    self.end(End::Lost(reason), events);
                }
            }
        }
    }
}
