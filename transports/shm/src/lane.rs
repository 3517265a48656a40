//! A lane: its two segments, its two queues, its socket, and its way from the offer to the end.

use crate::{
    connect::{Dialer, failure},
    inbox::{Bad, Inbox, Taken},
    known::{Reference, Theirs},
    offer::LaneOffer,
    outbox::Outbox,
    region::OwnRegion,
    ring::{self, Nonsense, OwnWords, Words},
    segment::{self, OwnSegment, PeerSegment},
    socket::{self, Heard, Word},
    wake::{self, Wake},
};
use rondel_transport_api::{
    Config, Event, LaneId, LaneStats, Post, RegionId, Sink, Slice, Token, TransportError,
};
use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

/// How long the two ends may take to find each other: longer than any rank of a job is late with its turn.
const APPEAR_WITHIN: Duration = Duration::from_secs(30);
/// How long they may take to say that they are ready once they have.
const GREET_WITHIN: Duration = Duration::from_secs(10);
/// A message up to this size is copied when it is posted.
const COPIED_AT_ONCE: u32 = 4 << 10;
/// What a peer's abort looks like.
const ENDED: &str = "it ended the lane";
/// When to try again what nothing wakes us for.
const RETRY: Duration = Duration::from_millis(5);

pub(crate) enum Phase {
    /// The peer's offer has not come. The peer may have dialled already.
    Offered {
        caller: Option<(u32, UnixStream)>,
    },
    /// The peer dials.
    Waits {
        until: Instant,
    },
    Dials {
        until: Instant,
        dialer: Box<Dialer>,
    },
    /// The socket is there: memory crosses, and each end says that it has mapped the other's.
    Greeting {
        until: Instant,
        shown: bool,
        owes_ready: bool,
    },
    Open,
    /// We leave: what was accepted goes into the ring, then goodbye.
    Leaving {
        until: Instant,
    },
    Over,
}

/// How the peer has ended.
enum End {
    Goodbye,
    Lost(String),
}

pub(crate) struct Lane {
    pub(crate) id: LaneId,
    pub(crate) cookie: u64,
    pub(crate) phase: Phase,
    /// Who is at the other end, for messages.
    peer: String,
    rank: u32,
    /// Bytes of the peer's ring.
    peer_ring: u64,
    own: OwnSegment,
    theirs: Option<PeerSegment>,
    /// What else of the peer's memory is mapped.
    regions: Theirs,
    /// What wakes the peer.
    bell: Option<OwnedFd>,
    socket: Option<UnixStream>,
    inbox: Inbox,
    outbox: Outbox,
    end: Option<End>,
    /// It was closed before it was connected: who waits for us to dial is told goodbye, within this time.
    leaves: Option<Duration>,
    /// Something happened on the socket.
    pub(crate) news: bool,
    /// Whether the endpoint's list of lanes with something to do has it.
    pub(crate) listed: bool,
    /// Whether the endpoint's list of lanes whose peers may have to be woken has it.
    pub(crate) owes_look: bool,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// What it costs of a budget; 0: nothing.
    pub(crate) cost: usize,
    /// The peer may wait for what was written.
    pub(crate) wrote: bool,
}

impl Lane {
    pub(crate) fn new(id: LaneId, cookie: u64, own: OwnSegment) -> Self {
        Self {
            id,
            cookie,
            phase: Phase::Offered { caller: None },
            peer: "a peer whose offer has not come".into(),
            rank: 0,
            peer_ring: 0,
            own,
            theirs: None,
            regions: Theirs::default(),
            bell: None,
            socket: None,
            inbox: Inbox::new(segment::RING),
            outbox: Outbox::new(segment::RING),
            end: None,
            leaves: None,
            news: false,
            listed: false,
            owes_look: false,
        }
    }

    /// Takes the peer's offer: the end with the larger cookie dials.
    pub(crate) fn establish(&mut self, offer: &LaneOffer, config: &Config) {
        let until = Instant::now() + APPEAR_WITHIN;
        let before = std::mem::replace(&mut self.phase, Phase::Waits { until });
        (self.rank, self.peer_ring) = (offer.rank, offer.ring);
        self.peer = format!("rank {}", offer.rank);
        self.inbox = Inbox::new(offer.ring);
        if self.cookie > offer.cookie {
            let dialer = Box::new(Dialer::new(&config.key, config.rank, offer.cookie, offer.name));
            self.phase = Phase::Dials { until, dialer };
        } else if let Phase::Offered { caller: Some((rank, stream)) } = before {
            self.answer(rank, stream);
        }
    }

    /// Takes a connection that a peer has opened for this lane. One that does not belong here is closed by dropping it.
    pub(crate) fn answer(&mut self, rank: u32, stream: UnixStream) {
        match &mut self.phase {
            Phase::Offered { caller } => *caller = Some((rank, stream)),
            Phase::Waits { .. } if rank == self.rank => self.meet(stream),
            _ => tracing::debug!(rank, "a connection for a lane that does not wait for one was closed"),
        }
    }

    fn meet(&mut self, stream: UnixStream) {
        if let Some(process) = socket::process_of(&stream) {
            self.peer = format!("rank {} (process {process})", self.rank);
        }
        self.socket = Some(stream);
        self.news = true;
        self.phase =
            Phase::Greeting { until: Instant::now() + GREET_WITHIN, shown: false, owes_ready: false };
    }

    /// `region`: the region of ours that the slice is in, if the peer is to read it there. Also returns whether something
    /// was written to the ring.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        src: Slice,
        stamp: u64,
        token: Token,
        region: Option<(RegionId, &OwnRegion)>,
    ) -> (Post, bool) {
        if !matches!(self.phase, Phase::Open) || !self.outbox.accept(src, stamp, token) {
            return (Post::Full, false);
        }
        if let Some((id, region)) = region {
            self.refer(src, id, region);
        }
        // An error shows again in the next turn, which can report it.
        let now = src.len <= COPIED_AT_ONCE && self.outbox.is_next_the_last();
        let pushed = now && self.push_piece().is_ok_and(|cost| cost > 0);
        (Post::Accepted, pushed)
    }

    /// The peer reads the message that was accepted last where it lies, if it can be shown where that is.
    fn refer(&mut self, src: Slice, id: RegionId, region: &OwnRegion) {
        if let Some(socket) = &self.socket
            && let Some(offset) = region.offset_of(src.addr, src.len)
            && let Some(number) = self.outbox.regions.refer(id, region, socket)
        {
            self.outbox.refer(Reference { number, offset });
        }
    }

    /// We want no more to do with a region of ours.
    pub(crate) fn forget(&mut self, id: RegionId) {
        self.outbox.regions.forget(id);
        self.say_what_is_gone();
    }

    fn say_what_is_gone(&mut self) {
        match &self.socket {
            Some(socket) if self.outbox.regions.owes() => self.outbox.regions.say(socket),
            _ => {}
        }
    }

    #[inline]
    pub(crate) fn post_recv(&mut self, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        let open = matches!(self.phase, Phase::Open);
        if open && self.inbox.post(len, sink, stamp, token) { Post::Accepted } else { Post::Full }
    }

    /// Hands over what was posted, the beginning of it where it is long. Returns whether something was written.
    pub(crate) fn flush(&mut self) -> bool {
        let open = matches!(self.phase, Phase::Open);
        open && self.outbox.has_more() && self.push_piece().is_ok_and(|cost| cost > 0)
    }

    /// Moves one piece into the ring, unless nobody will read it.
    #[inline]
    fn push_piece(&mut self) -> Result<usize, Nonsense> {
        match &self.theirs {
            Some(theirs) if self.end.is_none() => self.outbox.push(&self.own, theirs),
            _ => Ok(0),
        }
    }

    /// Offered, or open and waiting for nothing but posts and the peer's messages.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Offered { .. } | Phase::Open | Phase::Over)
    }

    /// Whether it must get turns.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        let open = self.news || self.inbox.waits() || !self.outbox.is_empty() || self.outbox.regions.owes();
        open || !self.is_settled()
    }

    /// Whether a turn would move something now.
    pub(crate) fn is_runnable(&mut self) -> bool {
        let Some(theirs) = &self.theirs else { return false };
        let receives = self.inbox.waits() && self.inbox.is_ready(theirs);
        receives || (self.end.is_none() && self.outbox.could_push(theirs))
    }

    /// When it must be looked at although nothing happens.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        match &self.phase {
            Phase::Dials { dialer, .. } if dialer.must_retry() => Some(now + RETRY),
            Phase::Greeting { shown: false, .. } | Phase::Greeting { owes_ready: true, .. } => {
                Some(now + RETRY)
            }
            Phase::Waits { until }
            | Phase::Dials { until, .. }
            | Phase::Greeting { until, .. }
            | Phase::Leaving { until } => Some(*until),
            Phase::Offered { .. } | Phase::Open | Phase::Over => None,
        }
    }

    pub(crate) fn stats(&self) -> LaneStats {
        LaneStats {
            sent_bytes: self.outbox.bytes,
            received_bytes: self.inbox.bytes,
            sent_messages: self.outbox.messages,
            received_messages: self.inbox.messages,
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let segment = segment::memory_of(segment::RING) as usize;
        size_of::<Self>() + segment + self.inbox.memory() + self.outbox.memory()
    }

    /// Moves what can move, about `budget` at most. `now` is set while a lane of the endpoint is unsettled.
    #[inline]
    pub(crate) fn take_turn(
        &mut self,
        events: &mut Vec<Event>,
        budget: usize,
        now: Option<Instant>,
        with: &Surroundings<'_>,
    ) -> Moved {
        if self.news || !matches!(self.phase, Phase::Open) {
            self.attend(events, now, with);
        }
        if self.theirs.is_none() || matches!(self.phase, Phase::Over) {
            return Moved::default();
        }
        let moved = match self.exchange(events, budget) {
            Ok(moved) if matches!(self.phase, Phase::Over) => return moved,
            Ok(moved) => moved,
            Err(bad) => {
                let peer = self.peer.clone();
                self.abort(
                    match bad {
                        Bad::Void => TransportError::Lost { peer, reason: ENDED.into() },
                        Bad::Unknown(number) => TransportError::Protocol {
                            peer,
                            reason: format!("its ring refers to its region {number}, which it has not shown"),
                        },
                        Bad::Record(reason) => TransportError::Protocol { peer, reason },
                    },
                    events,
                );
                return Moved { cost: 1, wrote: false };
            }
        };
        if moved.cost == 0 || self.end.is_some() {
            self.settle(events, now);
        }
        moved
    }

    /// Pieces go out and come in by turns, so that both ends copy and reduce at the same time.
    #[inline]
    fn exchange(&mut self, events: &mut Vec<Event>, budget: usize) -> Result<Moved, Bad> {
        self.report(events)?;
        let mut moved = Moved::default();
        loop {
            let sent = self.push_piece().map_err(miscounted)?;
            let taken = self.take_piece(events)?;
            moved.wrote |= sent > 0 || taken.told;
            moved.cost += sent + taken.cost;
            self.report(events)?;
            let nothing_left = !self.inbox.waits() && !self.outbox.has_more();
            if sent + taken.cost == 0 || moved.cost >= budget || nothing_left {
                break;
            }
        }
        Ok(moved)
    }

    /// Events of the sends that are over.
    #[inline]
    fn report(&mut self, events: &mut Vec<Event>) -> Result<(), Bad> {
        let Some(theirs) = &self.theirs else { return Ok(()) };
        self.outbox.report(theirs, events).map_err(miscounted)?;
        if self.outbox.regions.owes() {
            self.say_what_is_gone();
        }
        Ok(())
    }

    /// Takes a piece of what the peer sent.
    #[inline]
    fn take_piece(&mut self, events: &mut Vec<Event>) -> Result<Taken, Bad> {
        let Some(theirs) = &self.theirs else { return Ok(Taken::default()) };
        match self.inbox.take(theirs, &self.regions, &self.own, events) {
            Err(Bad::Unknown(_)) => self.take_from_new_region(events),
            taken => taken,
        }
    }

    /// A region is shown before it is referred to, but on the socket, which is not looked at all the time.
    #[cold]
    fn take_from_new_region(&mut self, events: &mut Vec<Event>) -> Result<Taken, Bad> {
        self.listen(events);
        match &self.theirs {
            Some(theirs) if !matches!(self.phase, Phase::Over) => {
                self.inbox.take(theirs, &self.regions, &self.own, events)
            }
            _ => Ok(Taken::default()),
        }
    }

    /// What is not the warm path: connecting, and the socket.
    fn attend(&mut self, events: &mut Vec<Event>, now: Option<Instant>, with: &Surroundings<'_>) {
        let now = now.unwrap_or_else(Instant::now);
        match &mut self.phase {
            Phase::Dials { until, dialer } => {
                let late = now >= *until;
                match dialer.poll(with.wake, self.id.0) {
                    Ok(Some(stream)) => self.meet(stream),
                    Ok(None) if late => {
                        let reason = format!("not within {} s: {}", APPEAR_WITHIN.as_secs(), dialer.last());
                        self.finish(Word::Abort, Some(failure(self.rank, reason)), events);
                    }
                    Ok(None) => {}
                    Err(reason) => self.finish(Word::Abort, Some(failure(self.rank, reason)), events),
                }
            }
            Phase::Waits { until } if now >= *until => {
                let reason =
                    format!("it was to connect to us and did not within {} s", APPEAR_WITHIN.as_secs());
                self.finish(Word::Abort, Some(failure(self.rank, reason)), events);
            }
            _ => {}
        }
        if self.news {
            self.listen(events);
        }
        if let Phase::Greeting { until, .. } = self.phase {
            self.greet(until, now, events, with);
        }
    }

    /// Hears what the peer says on the socket.
    fn listen(&mut self, events: &mut Vec<Event>) {
        self.news = false;
        while let Some(socket) = &self.socket {
            let end = match socket::hear(socket) {
                Heard::Nothing => return,
                Heard::Word(Word::Memory, fds) => {
                    if let Err(reason) = self.adopt(fds) {
                        return self.refuse(reason, events);
                    }
                    continue;
                }
                Heard::Word(Word::Ready, _) => match self.phase {
                    Phase::Greeting { .. } if self.theirs.is_some() => {
                        self.own.keep_mapping_only();
                        continue;
                    }
                    _ => {
                        return self
                            .refuse("it said that it is ready, which it was or could not be".into(), events);
                    }
                },
                Heard::Word(Word::Region, fds) if self.own.file().is_none() => {
                    if let Err(reason) = self.regions.adopt(&fds) {
                        return self.refuse(reason, events);
                    }
                    continue;
                }
                Heard::Word(Word::Gone, _) => {
                    let number =
                        socket::hear_number(socket).ok_or_else(|| "it said no number of a region".into());
                    if let Err(reason) = number.and_then(|number| self.regions.forget(number)) {
                        return self.refuse(reason, events);
                    }
                    continue;
                }
                Heard::Word(Word::Region, _) => {
                    let reason = "it showed a region of its memory before it was ready".into();
                    return self.refuse(reason, events);
                }
                Heard::Word(Word::Goodbye, _) => End::Goodbye,
                Heard::Word(Word::Abort, _) => End::Lost(ENDED.into()),
                Heard::Noise(byte) => {
                    return self.refuse(
                        format!("it said {byte:#04x} on the lane's socket, no word of ours"),
                        events,
                    );
                }
                Heard::End(reason) => End::Lost(reason),
            };
            self.socket = None;
            self.end = Some(end);
            // What the peer wrote before it ended is seen by every later look at its ring.
            fence(Ordering::SeqCst);
        }
    }

    fn refuse(&mut self, reason: String, events: &mut Vec<Event>) {
        let cause = TransportError::Protocol { peer: self.peer.clone(), reason };
        self.abort(cause, events);
    }

    /// Takes the peer's memory and bell.
    fn adopt(&mut self, fds: Vec<OwnedFd>) -> Result<(), String> {
        let Phase::Greeting { owes_ready, .. } = &mut self.phase else {
            return Err("it sent its memory a second time".into());
        };
        let count = fds.len();
        let Ok([file, bell]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(format!("it sent {count} descriptors, expected 2: its memory and its bell"));
        };
        if self.theirs.is_some() {
            return Err("it sent its memory a second time".into());
        }
        self.theirs = Some(PeerSegment::adopt(&file, self.peer_ring)?);
        self.bell = Some(wake::adopt_bell(bell)?);
        *owes_ready = true;
        Ok(())
    }

    fn greet(&mut self, until: Instant, now: Instant, events: &mut Vec<Event>, with: &Surroundings<'_>) {
        let Phase::Greeting { shown, .. } = &mut self.phase else { return };
        if let Some(socket) = &self.socket
            && !*shown
            && let Some(file) = self.own.file()
        {
            match socket::say(socket, Word::Memory, &[file, with.wake.bell()]) {
                Ok(()) => *shown = true,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => self.end = Some(End::Lost(format!("our memory could not be sent: {error}"))),
            }
        }
        if let (Phase::Greeting { shown: true, owes_ready, .. }, Some(socket)) =
            (&mut self.phase, &self.socket)
            && *owes_ready
            && socket::say(socket, Word::Ready, &[]).is_ok()
        {
            *owes_ready = false;
        }
        let said = matches!(self.phase, Phase::Greeting { shown: true, owes_ready: false, .. });
        if said && self.theirs.is_some() && self.own.file().is_none() {
            self.phase = Phase::Open;
            match self.leaves {
                Some(linger) => {
                    self.close(linger, events, with);
                }
                None => events.push(Event::Established { lane: self.id }),
            }
        } else if let Some(end) = self.end.take() {
            let (error, cause) = self.obituary(&end);
            self.fail_all(&error, events);
            self.finish(Word::Abort, cause, events);
        } else if now >= until {
            let reason = format!("connected, but it did not get ready within {} s", GREET_WITHIN.as_secs());
            let cause = TransportError::Lost { peer: self.peer.clone(), reason };
            self.finish(Word::Abort, Some(cause), events);
        }
    }

    /// Looks whether the lane is over, now that nothing moves.
    fn settle(&mut self, events: &mut Vec<Event>, now: Option<Instant>) {
        if let Some(end) = &self.end {
            let (error, cause) = self.obituary(end);
            self.fail_sends(&error, events);
            let left = self.theirs.as_ref().is_some_and(|theirs| self.inbox.is_ready(theirs));
            if matches!(self.phase, Phase::Leaving { .. }) {
                return self.finish(Word::Goodbye, None, events);
            }
            if !left {
                self.inbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
                self.finish(Word::Goodbye, cause, events);
            }
            return;
        }
        if let Phase::Leaving { until } = self.phase {
            if self.outbox.is_empty() {
                self.finish(Word::Goodbye, None, events);
            } else if now.is_some_and(|now| now >= until) {
                let reason =
                    "the peer did not take everything that was sent within the linger time".to_owned();
                self.finish(Word::Abort, Some(TransportError::Closed { reason }), events);
            }
        }
    }

    /// What those get who still wait, and the cause of the lane's end.
    fn obituary(&self, end: &End) -> (TransportError, Option<TransportError>) {
        let peer = self.peer.clone();
        match end {
            End::Goodbye => (TransportError::Left { peer }, None),
            End::Lost(reason) => {
                let error = TransportError::Lost { peer, reason: reason.clone() };
                (error.clone(), Some(error))
            }
        }
    }

    fn fail_all(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        self.inbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
        self.fail_sends(error, events);
    }

    /// Every send gets its event: what the peer has, or needs us no more for, is done.
    fn fail_sends(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        if let Some(theirs) = &self.theirs {
            // A count that cannot be counts for nothing.
            let _ = self.outbox.report(theirs, events);
        }
        self.withdraw();
        self.outbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
    }

    /// The peer takes nothing more from memory of our caller's, which is about to be the caller's again.
    fn withdraw(&mut self) {
        if let Some(place) = self.outbox.first_reference()
            && self.own.load(ring::Word::Void, Ordering::Relaxed) == 0
        {
            self.void_from(place);
        }
    }

    fn void_from(&mut self, place: u64) {
        self.own.store(ring::Word::Void, place + 1, Ordering::Release);
        // Whoever sees what is written to the caller's memory from now on sees this.
        fence(Ordering::SeqCst);
    }

    fn finish(&mut self, last: Word, cause: Option<TransportError>, events: &mut Vec<Event>) {
        let error = cause.clone().unwrap_or(TransportError::Closed { reason: "it has ended".into() });
        self.fail_all(&error, events);
        if let Some(socket) = self.socket.take() {
            // A peer that cannot be told sees the socket's end.
            let _ = socket::say(&socket, last, &[]);
        }
        self.phase = Phase::Over;
        events.push(Event::Closed { lane: self.id, cause });
    }

    /// Begins to leave.
    pub(crate) fn close(
        &mut self,
        linger: Duration,
        events: &mut Vec<Event>,
        with: &Surroundings<'_>,
    ) -> Moved {
        match &mut self.phase {
            Phase::Leaving { .. } | Phase::Over => return Moved::default(),
            // Who dials a lane that has ended is turned away at the door.
            Phase::Offered { .. } | Phase::Waits { .. } => {
                self.finish(Word::Goodbye, None, events);
                return Moved::default();
            }
            Phase::Dials { until, .. } => {
                if self.leaves.is_none() {
                    *until = Instant::now() + linger;
                    self.leaves = Some(linger);
                }
                return Moved::default();
            }
            // The other end may be open already.
            Phase::Greeting { .. } | Phase::Open => {}
        }
        let now = Instant::now();
        // What has arrived counts as delivered.
        let moved = self.take_turn(events, usize::MAX, Some(now), with);
        if matches!(self.phase, Phase::Over) {
            return moved;
        }
        let error = TransportError::Closed { reason: "it was closed while a receive was posted".into() };
        self.inbox.fail(|token| Event::Failed { token, error: error.clone() }, events);
        self.inbox.discards = true;
        self.phase = Phase::Leaving { until: now + linger };
        self.settle(events, Some(now));
        moved
    }

    /// Ends at once.
    pub(crate) fn abort(&mut self, cause: TransportError, events: &mut Vec<Event>) {
        if !matches!(self.phase, Phase::Over) {
            self.void_from(0);
            self.finish(Word::Abort, Some(cause), events);
        }
    }

    /// Before sleeping. The endpoint puts a fence behind it.
    pub(crate) fn lie_down(&self) {
        ring::lie_down(&self.own);
    }

    /// After sleeping.
    pub(crate) fn rise(&self) {
        ring::rise(&self.own);
    }

    /// Wakes the peer if it sleeps. The endpoint puts a fence before it.
    pub(crate) fn wake_peer(&self) {
        if let (Some(theirs), Some(bell)) = (&self.theirs, &self.bell)
            && ring::sleeps(theirs)
        {
            wake::ring(bell);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.withdraw();
    }
}

fn miscounted(nonsense: Nonsense) -> Bad {
    Bad::Record(format!(
        "it says that it has read {} bytes of our ring, after it said {} and {} were written",
        nonsense.consumed, nonsense.before, nonsense.written
    ))
}

/// What a lane needs from its endpoint.
pub(crate) struct Surroundings<'a> {
    pub(crate) wake: &'a Wake,
}
