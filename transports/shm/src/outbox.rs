//! What a lane sends: the queue of posted messages, and their way into the ring.

use crate::{
    copy::{copy_in, copy_short, own_line},
    known::{Ours, Reference},
    record::{HEADER, INLINE, LINE, REFERENCE, piece_at, record_bytes},
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

/// A message that the peer reads where it lies.
struct Referred {
    /// How many were posted before it.
    message: u64,
    reference: Reference,
    /// The place behind its record, once it is in the ring. The peer is through with it when it has read so far.
    end: Option<u64>,
}

// SAFETY: the slice is lent to us until the event of its token, whichever thread drives.
unsafe impl Send for Outgoing {}

pub(crate) struct Outbox {
    writer: Writer,
    /// Messages whose event is due.
    queue: VecDeque<Outgoing>,
    /// So many of them, the oldest, are all in the ring.
    copied: usize,
    /// Messages that were reported.
    reported: u64,
    /// Those of the queue that are references, oldest first.
    referred: VecDeque<Referred>,
    /// Regions that they may be in.
    pub(crate) regions: Ours,
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
            reported: 0,
            referred: VecDeque::new(),
            regions: Ours::default(),
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

    /// The message that was accepted last lies where the peer can read it.
    pub(crate) fn refer(&mut self, reference: Reference) {
        let message = self.reported + self.queue.len() as u64 - 1;
        self.referred.push_back(Referred { message, reference, end: None });
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
        let Some(message) = self.queue.get(self.copied) else { return false };
        let reference = self.next_reference().is_some();
        let record = if reference { LINE } else { record_bytes(piece_at(self.offset, message.len)) };
        self.writer.has_room(record, peer) != Ok(false)
    }

    /// The place among `referred` of the message that goes into the ring next, if it is there.
    #[inline]
    fn next_reference(&self) -> Option<usize> {
        let next = self.reported + self.copied as u64;
        if self.referred.is_empty() { None } else { self.referred.iter().position(|r| r.message == next) }
    }

    /// Moves one piece into the ring, if there is one and room for it. Returns what it costs of a budget.
    #[inline]
    pub(crate) fn push(&mut self, own: &OwnSegment, peer: &impl Words) -> Result<usize, Nonsense> {
        if let Some(at) = self.next_reference() {
            return self.push_reference(at, own, peer);
        }
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

    /// As [`push`](Self::push), for a message that is a reference.
    fn push_reference(&mut self, at: usize, own: &OwnSegment, peer: &impl Words) -> Result<usize, Nonsense> {
        let message = &self.queue[self.copied];
        if !self.writer.has_room(LINE, peer)? {
            return Ok(0);
        }
        let place = self.writer.place();
        let line = own.at(place);
        let Reference { number, offset } = self.referred[at].reference;
        // SAFETY: the line is our own segment's, where the peer does not look before it is published.
        unsafe {
            line.add(8).cast::<u64>().write(message.stamp);
            line.add(16).cast::<u64>().write(fields(message.len, REFERENCE));
            line.add(HEADER).cast::<[u64; 2]>().write([number.into(), offset]);
        }
        self.bytes += u64::from(message.len);
        self.messages += 1;
        self.copied += 1;
        self.writer.publish(LINE, own);
        self.referred[at].end = Some(place + LINE);
        Ok(MESSAGE_COST)
    }

    /// Events of the messages that are in the ring, up to the first one that the peer is not through with.
    #[inline]
    pub(crate) fn report(&mut self, peer: &impl Words, events: &mut Vec<Event>) -> Result<(), Nonsense> {
        while self.copied > 0 {
            if !self.referred.is_empty() && !self.is_next_over(peer)? {
                break;
            }
            self.copied -= 1;
            self.reported += 1;
            if let Some(message) = self.queue.pop_front() {
                push_done(events, message.token);
            }
        }
        Ok(())
    }

    /// Whether the oldest message, which is in the ring, is no reference, or one that the peer is through with.
    fn is_next_over(&mut self, peer: &impl Words) -> Result<bool, Nonsense> {
        let Some(oldest) = self.referred.front().filter(|oldest| oldest.message == self.reported) else {
            return Ok(true);
        };
        let (end, number) = (oldest.end, oldest.reference.number);
        let read = self.writer.look(peer)?;
        let over = end.is_some_and(|end| end <= read);
        if over {
            self.referred.pop_front();
            self.regions.end_use(number);
        }
        Ok(over)
    }

    /// The place of the oldest record that refers to memory which the peer may still read.
    pub(crate) fn first_reference(&self) -> Option<u64> {
        self.referred.front().and_then(|oldest| oldest.end).map(|end| end - LINE)
    }

    /// Every message that was not reported has failed.
    pub(crate) fn fail(&mut self, mut event: impl FnMut(Token) -> Event, events: &mut Vec<Event>) {
        self.reported += self.queue.len() as u64;
        events.extend(self.queue.drain(..).map(|message| event(message.token)));
        (self.copied, self.offset) = (0, 0);
        self.referred.clear();
    }

    pub(crate) fn memory(&self) -> usize {
        self.queue.capacity() * size_of::<Outgoing>() + self.referred.capacity() * size_of::<Referred>()
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
