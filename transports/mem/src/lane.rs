//! One end of a lane: what is posted, what has moved, and how it ends.

use crate::hub::{End, Side};
use rondel_transport_api::{
    Event, LaneId, LaneStats, Operand, Post, Sink, Slice, Token, TransportError, kernels,
};
use std::{collections::VecDeque, sync::Arc};

/// What a message costs of a poll's budget beyond its bytes.
const MESSAGE_COST: usize = 64;

pub(crate) struct Lane {
    id: LaneId,
    pub(crate) me: Arc<Side>,
    peer: Option<Arc<Side>>,
    state: State,
    window: usize,
    max_message: u32,
    reduces: bool,
    /// Sends whose event is due; the first has the number `reported`.
    sends: VecDeque<Sent>,
    reported: u64,
    /// Sends below this number are published.
    flushed: u64,
    /// Receives whose event is due; the first has the number `received`, and `offset` bytes of it are there.
    recvs: VecDeque<Wanted>,
    received: u64,
    offset: usize,
    /// Posts that cannot be served; they take no number.
    rejected: VecDeque<(Token, TransportError)>,
    stats: LaneStats,
}

enum State {
    /// Offered.
    Prepared,
    /// Established on this side.
    Meeting,
    Open,
    /// Leaving gracefully.
    Closing,
    Aborting(TransportError),
}

struct Sent {
    token: Token,
    len: u32,
    borrowed: bool,
}

struct Wanted {
    token: Token,
    len: u32,
    stamp: u64,
    sink: Sink,
}

/// What a lane needs after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing until there is news.
    Idle,
    /// Another poll.
    Again,
    /// Nothing ever.
    Ended,
}

impl Lane {
    pub(crate) fn new(id: LaneId, me: Arc<Side>, config: &crate::MemConfig) -> Self {
        let window = config.window as usize;
        Self {
            id,
            me,
            peer: None,
            state: State::Prepared,
            window,
            max_message: config.max_message,
            reduces: config.reduces,
            sends: VecDeque::with_capacity(window),
            reported: 0,
            flushed: 0,
            recvs: VecDeque::with_capacity(window),
            received: 0,
            offset: 0,
            rejected: VecDeque::new(),
            stats: LaneStats::default(),
        }
    }
    pub(crate) fn stats(&self) -> LaneStats {
        self.stats
    }
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.me.inbound.memory()
            + self.sends.capacity() * size_of::<Sent>()
            + self.recvs.capacity() * size_of::<Wanted>()
    }
    pub(crate) fn is_prepared(&self) -> bool {
        matches!(self.state, State::Prepared)
    }
    pub(crate) fn establish(&mut self, peer: Arc<Side>) {
        peer.cord.pull();
        self.peer = Some(peer);
        self.state = State::Meeting;
    }

    /// # Safety
    /// As [`rondel_transport_api::Endpoint::post_send`].
    pub(crate) unsafe fn post_send(&mut self, src: Slice, stamp: u64, token: Token) -> Post {
        let (State::Open, Some(peer)) = (&self.state, &self.peer) else { return Post::Full };
        let posted = self.reported + self.sends.len() as u64;
        if self.sends.len() + self.rejected.len() >= self.window {
            return Post::Full;
        }
        if let Some(error) = self.unsuitable(src.len, None) {
            self.rejected.push_back((token, error));
            return Post::Accepted;
        }
        if peer.end() != End::Open {
            // The pipe may stay full for ever, and the caller must not wait for room that does not come.
            self.rejected.push_back((token, peer.obituary()));
            return Post::Accepted;
        }
        if !peer.inbound.has_room(posted) {
            return Post::Full;
        }
        // SAFETY: the caller lends the slice until the event of `token`, which comes after the message is taken or its
        // loan is over.
        let borrowed = unsafe { peer.inbound.write(posted, src.addr, src.len, stamp) };
        self.sends.push_back(Sent { token, len: src.len, borrowed });
        Post::Accepted
    }
    /// # Safety
    /// As [`rondel_transport_api::Endpoint::post_recv`].
    pub(crate) unsafe fn post_recv(&mut self, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        if !matches!(self.state, State::Open) || self.recvs.len() + self.rejected.len() >= self.window {
            return Post::Full;
        }
        match self.unsuitable(len, Some(&sink)) {
            Some(error) => self.rejected.push_back((token, error)),
            None => self.recvs.push_back(Wanted { token, len, stamp, sink }),
        }
        Post::Accepted
    }
    /// Publishes what was sent since the last call.
    pub(crate) fn flush(&mut self) {
        let posted = self.reported + self.sends.len() as u64;
        if let Some(peer) = &self.peer
            && self.flushed < posted
        {
            self.flushed = posted;
            peer.inbound.publish(posted);
            peer.cord.pull();
        }
    }
    pub(crate) fn close(&mut self) {
        self.flush();
        if !matches!(self.state, State::Aborting(_)) {
            self.state = State::Closing;
        }
    }
    pub(crate) fn abort(&mut self, cause: TransportError) {
        self.flush();
        self.state = State::Aborting(cause);
    }
    /// The endpoint is dropped: nobody will take events any more, and what was lent goes back.
    pub(crate) fn abandon(&self) {
        let why = "its endpoint was dropped without closing the lane".to_owned();
        match &self.peer {
            None => self.me.give_up(why),
            Some(peer) => {
                let loan = peer.inbound.wait_loan();
                self.me.give_up(why);
                drop(loan);
                peer.cord.pull();
            }
        }
    }

    pub(crate) fn poll(&mut self, events: &mut Vec<Event>, budget: &mut usize) -> After {
        for (token, error) in self.rejected.drain(..) {
            events.push(Event::Failed { token, error });
        }
        if matches!(self.state, State::Meeting) {
            self.meet(events);
        }
        // Read before the counters: what the peer did before its end is then visible.
        let peer_end = self.peer.as_ref().map_or(End::Open, |peer| peer.end());
        self.report_sends(events);
        let again = !matches!(self.state, State::Aborting(_)) && self.receive(events, budget);
        match &self.state {
            State::Aborting(cause) => {
                let cause = cause.clone();
                self.finish_abort(cause, events)
            }
            _ if again => After::Again,
            State::Closing => self.finish_close(peer_end, events),
            State::Open if peer_end != End::Open => self.outlive(events),
            State::Prepared | State::Meeting | State::Open => After::Idle,
        }
    }

    /// Looks whether the peer has established too.
    fn meet(&mut self, events: &mut Vec<Event>) {
        let Some(peer) = &self.peer else { return };
        let partner = peer.partner();
        if partner == self.me.number {
            self.state = State::Open;
            events.push(Event::Established { lane: self.id });
        } else if partner != 0 {
            let reason = "it established its lane with another offer than ours".to_owned();
            self.state = State::Aborting(TransportError::Protocol { peer: peer.name(), reason });
        } else if peer.end() != End::Open {
            self.state = match peer.end() {
                End::Lost => State::Aborting(peer.obituary()),
                End::Open | End::Goodbye => State::Closing,
            };
        }
    }

    fn report_sends(&mut self, events: &mut Vec<Event>) {
        let (Some(peer), false) = (&self.peer, self.sends.is_empty()) else { return };
        let taken = peer.inbound.taken();
        while self.reported < self.flushed
            && let Some(sent) = self.sends.front()
            && (!sent.borrowed || self.reported < taken)
        {
            self.stats.sent_bytes += u64::from(sent.len);
            self.stats.sent_messages += 1;
            events.push(Event::Done { token: sent.token });
            self.sends.pop_front();
            self.reported += 1;
        }
    }

    /// Moves bytes into the sinks that wait. Returns whether only the budget stopped it.
    fn receive(&mut self, events: &mut Vec<Event>, budget: &mut usize) -> bool {
        let Some(peer) = &self.peer else { return false };
        let inbound = &self.me.inbound;
        let (published, first) = (inbound.published(), self.received);
        let mut again = false;
        while self.received < published
            && let Some(wanted) = self.recvs.front()
        {
            if *budget == 0 {
                again = true;
                break;
            }
            let letter = inbound.letter(self.received);
            if (letter.len, letter.stamp) != (wanted.len, wanted.stamp) {
                let error = TransportError::Mismatch {
                    message: self.received,
                    our_len: wanted.len.into(),
                    their_len: letter.len.into(),
                    our_stamp: wanted.stamp,
                    their_stamp: letter.stamp,
                };
                events.push(Event::Failed { token: wanted.token, error: error.clone() });
                self.recvs.pop_front();
                self.state = State::Aborting(error);
                break;
            }
            // None while the sender is ending the lane: its end is news, so we look again.
            let Some(bytes) = inbound.bytes(self.received) else { break };
            if letter.borrowed && peer.end() == End::Lost {
                break;
            }
            // A multiple of 64 bytes cuts no element in two.
            let allowance = budget.saturating_add(63) & !63;
            let piece = (letter.len as usize - self.offset).min(allowance);
            // SAFETY: the bytes are readable while `bytes` exists; the sink is lent until its event; the piece lies
            // within the message, whose length is the sink's.
            unsafe { store(&wanted.sink, bytes.addr, self.offset, piece) };
            drop(bytes);
            self.offset += piece;
            *budget = budget.saturating_sub(piece + MESSAGE_COST);
            if self.offset == letter.len as usize {
                self.offset = 0;
                self.received += 1;
                inbound.take(self.received);
                self.stats.received_bytes += u64::from(letter.len);
                self.stats.received_messages += 1;
                events.push(Event::Done { token: wanted.token });
                self.recvs.pop_front();
            }
        }
        if self.received > first {
            peer.cord.pull();
        }
        again
    }

    /// The peer has ended: nothing goes out any more, but what it left behind is still for the taking.
    fn outlive(&mut self, events: &mut Vec<Event>) -> After {
        let Some(peer) = self.peer.clone() else { return After::Idle };
        let (inbound, obituary) = (&self.me.inbound, peer.obituary());
        let lost = peer.end() == End::Lost;
        let left_behind =
            self.received < inbound.published() && !(lost && inbound.letter(self.received).borrowed);
        self.fail_sends(&obituary, events);
        if left_behind {
            return After::Idle;
        }
        self.me.say_goodbye();
        self.fail_recvs(&obituary, events);
        events.push(Event::Closed { lane: self.id, cause: lost.then_some(obituary) });
        After::Ended
    }

    fn finish_close(&mut self, peer_end: End, events: &mut Vec<Event>) -> After {
        if let Some(peer) = self.peer.clone() {
            if peer_end == End::Open {
                let Some(mut loan) = peer.inbound.try_loan() else { return After::Again };
                // SAFETY: the sends that are not taken have had no event, so their sources are still lent.
                unsafe { loan.keep_copies() };
                self.me.say_goodbye();
                drop(loan);
                for sent in &mut self.sends {
                    sent.borrowed = false;
                }
                self.report_sends(events);
            } else {
                self.me.say_goodbye();
                self.fail_sends(&peer.obituary(), events);
            }
            peer.cord.pull();
        } else {
            self.me.say_goodbye();
        }
        let reason = "its owner left before a message came".to_owned();
        self.fail_recvs(&TransportError::Closed { reason }, events);
        events.push(Event::Closed { lane: self.id, cause: None });
        After::Ended
    }

    fn finish_abort(&mut self, cause: TransportError, events: &mut Vec<Event>) -> After {
        if let Some(peer) = &self.peer {
            let Some(loan) = peer.inbound.try_loan() else { return After::Again };
            self.me.give_up(format!("it ended the lane: {cause}"));
            drop(loan);
            peer.cord.pull();
        } else {
            self.me.give_up(format!("it ended the lane: {cause}"));
        }
        self.report_sends(events);
        self.fail_sends(&cause, events);
        self.fail_recvs(&cause, events);
        events.push(Event::Closed { lane: self.id, cause: Some(cause) });
        After::Ended
    }

    fn fail_sends(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        self.reported += self.sends.len() as u64;
        self.flushed = self.reported;
        for sent in self.sends.drain(..) {
            events.push(Event::Failed { token: sent.token, error: error.clone() });
        }
    }
    fn fail_recvs(&mut self, error: &TransportError, events: &mut Vec<Event>) {
        for wanted in self.recvs.drain(..) {
            events.push(Event::Failed { token: wanted.token, error: error.clone() });
        }
    }

    /// Why a post cannot be served.
    fn unsuitable(&self, len: u32, sink: Option<&Sink>) -> Option<TransportError> {
        let what = match sink {
            _ if len > self.max_message => {
                format!("a message of {len} bytes; the largest is {} (Limits::max_message)", self.max_message)
            }
            Some(Sink::Reduce { .. }) if !self.reduces => {
                "Sink::Reduce, which this hub was told not to offer (Limits::reduces)".to_owned()
            }
            Some(Sink::Reduce { reduction, .. })
                if !(len as usize).is_multiple_of(reduction.dtype.size()) =>
            {
                format!("a reduction of {len} bytes of {:?}, which are not whole elements", reduction.dtype)
            }
            _ => return None,
        };
        Some(TransportError::Unsupported { what })
    }
}

/// Puts the `len` bytes at `bytes + offset` where the sink wants them.
///
/// # Safety
/// Both the message and the sink's memory reach to `offset + len`; `offset` is a multiple of the element's size.
unsafe fn store(sink: &Sink, bytes: *const u8, offset: usize, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: all offsets lie within ranges that the caller vouches for.
    unsafe {
        let bytes = bytes.add(offset);
        match *sink {
            Sink::Copy { dst, keep, .. } => kernels::copy(bytes, dst.add(offset), len, keep),
            Sink::Reduce { reduction, with, dst, last, keep } => {
                let operands = [
                    Operand { addr: with.addr.add(offset), raw: with.raw },
                    Operand { addr: bytes, raw: false },
                ];
                let count = len / reduction.dtype.size();
                kernels::reduce(&reduction, &operands, dst.add(offset), count, last, keep);
            }
        }
    }
}
