//! What a lane sends: the queue of posted messages, and their way into the ring.

use crate::{
    copy::{copy_in, copy_short, own_line},
    record::{HEADER, INLINE, LINE, piece_at, record_bytes},
    ring::{Nonsense, Words, Writer},
    segment::OwnSegment,
};
use rondel_transport_api::{Event, Slice, Token};
use std::collections::VecDeque;

/// Messages that a lane and direction accepts at once.
pub(crate) const WINDOW: usize = 64;
/// Messages beyond this leave the caches anyway: asking for lines ahead only costs.
const OWN_AHEAD_UP_TO: u32 = 8 << 20;
/// What a message costs of a poll's budget beyond its bytes.
pub(crate) const MESSAGE_COST: usize = 64;

struct Outgoing {
    addr: *const u8,
    len: u32,
    stamp: u64,
    token: Token,
}

// SAFETY: the slice is lent to us until the event of its token, whichever thread drives.
unsafe impl Send for Outgoing {}

pub(crate) struct Outbox {
    writer: Writer,
    /// Messages whose event is due.
    queue: VecDeque<Outgoing>,
    /// So many of them, the oldest, are all in the ring.
    copied: usize,
    /// Bytes of the next one that are in the ring.
    offset: u32,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Outbox {
    /// For a ring of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        Self {
            writer: Writer::new(size),
            queue: VecDeque::with_capacity(WINDOW),
            copied: 0,
            offset: 0,
            messages: 0,
            bytes: 0,
        }
    }

    /// Whether there was room for one more.
    #[inline]
    pub(crate) fn accept(&mut self, src: Slice, stamp: u64, token: Token) -> bool {
        let room = self.queue.len() < WINDOW;
        if room {
            self.queue.push_back(Outgoing { addr: src.addr, len: src.len, stamp, token });
        }
        room
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether something is not in the ring yet.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.copied < self.queue.len()
    }

    /// Whether only the message posted last is not in the ring.
    #[inline]
    pub(crate) fn is_next_the_last(&self) -> bool {
        self.copied + 1 == self.queue.len()
    }

    /// Whether [`push`](Self::push) would move something, or fail.
    pub(crate) fn could_push(&mut self, peer: &impl Words) -> bool {
        let next =
            self.queue.get(self.copied).map(|message| record_bytes(piece_at(self.offset, message.len)));
        next.is_some_and(|record| self.writer.has_room(record, peer) != Ok(false))
    }

    /// Moves one piece into the ring, if there is one and room for it. Returns what it costs of a budget.
    #[inline]
    pub(crate) fn push(&mut self, own: &OwnSegment, peer: &impl Words) -> Result<usize, Nonsense> {
        let Some(message) = self.queue.get(self.copied) else { return Ok(0) };
        let piece = piece_at(self.offset, message.len);
        let record = record_bytes(piece);
        if !self.writer.has_room(record, peer)? {
            return Ok(0);
        }
        let place = self.writer.place();
        let line = own.at(place);
        // SAFETY: the record lies in one piece of our own segment, where the peer does not look before it is published.
        // The source is lent for the message's length until its event.
        unsafe {
            let src = message.addr.wrapping_add(self.offset as usize);
            line.add(8).cast::<u64>().write(message.stamp);
            line.add(16).cast::<u64>().write(fields(message.len, self.offset));
            if piece <= INLINE {
                if piece > 0 {
                    copy_short(src, line.add(HEADER), piece as usize);
                }
            } else if message.len <= OWN_AHEAD_UP_TO {
                copy_in(src, line.add(LINE as usize), piece as usize);
            } else {
                src.copy_to_nonoverlapping(line.add(LINE as usize), piece as usize);
            }
        }
        self.writer.publish(record, own);
        if piece <= INLINE {
            // The next lines are likely still with the peer: they come back while we wait for its answer.
            let next = self.writer.place();
            own_line(own.at(next));
            own_line(own.at(next + LINE));
        }
        self.bytes += u64::from(piece);
        self.offset += piece;
        if self.offset == message.len {
            self.offset = 0;
            self.copied += 1;
            self.messages += 1;
        }
        Ok(piece as usize + MESSAGE_COST)
    }

    /// Events of the messages that are in the ring.
    #[inline]
    pub(crate) fn report(&mut self, events: &mut Vec<Event>) {
        while self.copied > 0 {
            self.copied -= 1;
            if let Some(message) = self.queue.pop_front() {
                push_done(events, message.token);
            }
        }
    }

    /// Every message gets its event: those in the ring are done, the others have failed.
    pub(crate) fn fail(&mut self, mut event: impl FnMut(Token) -> Event, events: &mut Vec<Event>) {
        self.report(events);
        events.extend(self.queue.drain(..).map(|message| event(message.token)));
        self.offset = 0;
    }

    pub(crate) fn memory(&self) -> usize {
        self.queue.capacity() * size_of::<Outgoing>()
    }
}

/// Appends the event of a post that is done.
#[inline(always)]
pub(crate) fn push_done(events: &mut Vec<Event>, token: Token) {
    events.reserve(1);
    // Made in its place: a push builds the event elsewhere by halves and copies it whole, and that read waits for both.
    // SAFETY: there is room for one more, and it is written before it counts.
    unsafe {
        events.as_mut_ptr().add(events.len()).write(Event::Done { token });
        events.set_len(events.len() + 1);
    }
}

/// Length and offset as one word of a record.
#[inline]
pub(crate) fn fields(len: u32, offset: u32) -> u64 {
    u64::from(len) | u64::from(offset) << 32
}
