//! What a lane receives: the queue of posted receives, and the way from the peer's ring to where they want it.

use crate::{
    copy::copy_short,
    known::{Astray, Reference, Theirs},
    outbox::{MESSAGE_COST, WINDOW, fields, push_done},
    record::{HEADER, INLINE, LINE, PART, REFERENCE, piece_at, record_bytes},
    ring::{OwnWords, Reader, Word, Words},
    segment::PeerSegment,
};
use rondel_transport_api::{Event, Operand, Sink, Token, TransportError, kernels};
use std::{
    collections::VecDeque,
    sync::atomic::{Ordering, fence},
};

struct Posted {
    len: u32,
    sink: Sink,
    stamp: u64,
    token: Token,
    /// Why it cannot be served, though a message will come for it.
    refused: Option<Box<TransportError>>,
}

/// A message of which some pieces have been taken.
#[derive(Clone, Copy)]
struct Current {
    len: u32,
    stamp: u64,
    /// Bytes taken.
    offset: u32,
    /// Nobody wants it.
    drop: bool,
    /// It lies in the peer's memory, and its one record stays until all of it was taken.
    from: Option<Reference>,
}

/// What taking a piece did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// What it costs of a budget; 0: nothing was taken.
    pub(crate) cost: usize,
    /// The peer was told that there is room.
    pub(crate) told: bool,
}

/// Why nothing more is taken from a peer.
#[derive(Debug)]
pub(crate) enum Bad {
    /// It ended the lane.
    Void,
    /// A record refers to a region that is not known. The peer may have shown it since the socket was read last.
    Unknown(u32),
    /// A record makes no sense, and this is why.
    Record(String),
}

pub(crate) struct Inbox {
    reader: Reader,
    /// Posted receives, oldest first.
    queue: VecDeque<Posted>,
    current: Option<Current>,
    /// We leave: what arrives is taken and dropped.
    pub(crate) discards: bool,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Inbox {
    /// For a peer's ring of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        Self {
            reader: Reader::new(size),
            queue: VecDeque::with_capacity(WINDOW),
            current: None,
            discards: false,
            messages: 0,
            bytes: 0,
        }
    }

    /// Whether there was room for one more.
    #[inline]
    pub(crate) fn post(&mut self, len: u32, sink: Sink, stamp: u64, token: Token) -> bool {
        let room = self.queue.len() < WINDOW;
        if room {
            let refused = match sink {
                Sink::Reduce { reduction, .. } if !(len as usize).is_multiple_of(reduction.dtype.size()) => {
                    let what = format!(
                        "a reduction over {len} bytes of {:?}, which are no whole elements",
                        reduction.dtype
                    );
                    Some(Box::new(TransportError::Unsupported { what }))
                }
                _ => None,
            };
            self.queue.push_back(Posted { len, sink, stamp, token, refused });
        }
        room
    }

    /// Whether something that arrives would be taken.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        !self.queue.is_empty() || self.discards || self.current.is_some()
    }

    /// Whether a piece is there, wanted or not.
    pub(crate) fn is_ready(&self, peer: &PeerSegment) -> bool {
        self.reader.is_ready(peer)
    }

    /// Takes one piece, if it is there and wanted.
    #[inline]
    pub(crate) fn take(
        &mut self,
        peer: &PeerSegment,
        regions: &Theirs,
        own: &impl OwnWords,
        events: &mut Vec<Event>,
    ) -> Result<Taken, Bad> {
        if !self.waits() || !self.reader.is_ready(peer) {
            return Ok(Taken::default());
        }
        let place = self.reader.place();
        if is_void(peer, place) {
            return Err(Bad::Void);
        }
        if let Some(current) = self.current
            && let Some(from) = current.from
        {
            return self.take_part(current, from, peer, regions, own, events);
        }
        let (stamp, word) = peer.header(place);
        if self.current.is_none() && (word >> 32) as u32 == REFERENCE {
            let (number, offset) = peer.reference(place);
            let len = word as u32;
            let Ok(number) = u32::try_from(number) else {
                return Err(Bad::Record(format!(
                    "its ring refers to region {number}, a number that no region has"
                )));
            };
            let from = Reference { number, offset };
            locate(regions, from, len)?;
            let current = Current { from: Some(from), ..self.begin(len, stamp, events) };
            return self.take_part(current, from, peer, regions, own, events);
        }
        let mut current = match self.current {
            Some(current) if (stamp, word) == (current.stamp, fields(current.len, current.offset)) => current,
            Some(current) => {
                return Err(Bad::Record(describe(stamp, word, current.stamp, current.len, current.offset)));
            }
            None if word >> 32 == 0 => self.begin(word as u32, stamp, events),
            None => return Err(Bad::Record(describe(stamp, word, stamp, word as u32, 0))),
        };
        let piece = piece_at(current.offset, current.len);
        let within = if piece <= INLINE { HEADER } else { LINE as usize };
        if !current.drop
            && let Some(posted) = self.queue.front()
        {
            // SAFETY: the record lies in one piece of the mapping; the sink is lent for the posted length, which the
            // message's equals, and pieces never reach beyond that.
            unsafe {
                deliver(&posted.sink, current.offset as usize, peer.at(place).add(within), piece as usize)
            };
        }
        let told = self.reader.release(record_bytes(piece), own);
        current.offset += piece;
        self.bytes += if current.drop { 0 } else { u64::from(piece) };
        self.go_on(current, events);
        Ok(Taken { cost: piece as usize + MESSAGE_COST, told })
    }

    /// Takes a part of a message from the peer's memory.
    fn take_part(
        &mut self,
        mut current: Current,
        from: Reference,
        peer: &PeerSegment,
        regions: &Theirs,
        own: &impl OwnWords,
        events: &mut Vec<Event>,
    ) -> Result<Taken, Bad> {
        let bytes = locate(regions, from, current.len)?;
        let part = if current.drop { 0 } else { (current.len - current.offset).min(PART) };
        if part > 0
            && let Some(posted) = self.queue.front()
        {
            let at = current.offset as usize;
            // SAFETY: the message lies in the mapping of the peer's region, and parts do not reach beyond it; the sink is
            // lent for the posted length, which the message's equals.
            unsafe { deliver(&posted.sink, at, bytes.add(at), part as usize) };
            // The peer may have given up the message and its memory meanwhile: what was read is good if it had not.
            fence(Ordering::Acquire);
            if is_void(peer, self.reader.place()) {
                return Err(Bad::Void);
            }
        }
        current.offset += part;
        self.bytes += u64::from(part);
        let over = current.drop || current.offset == current.len;
        if over {
            current.offset = current.len;
            self.reader.acknowledge(LINE, own);
        }
        self.go_on(current, events);
        Ok(Taken { cost: part as usize + MESSAGE_COST, told: over })
    }

    /// A piece or part of the current message was taken.
    #[inline]
    fn go_on(&mut self, current: Current, events: &mut Vec<Event>) {
        self.current = (current.offset < current.len).then_some(current);
        if self.current.is_none() && !current.drop {
            self.messages += 1;
            if let Some(posted) = self.queue.pop_front() {
                push_done(events, posted.token);
            }
        }
    }

    /// The first piece of a message has come: compares it with what is posted.
    #[inline]
    fn begin(&mut self, len: u32, stamp: u64, events: &mut Vec<Event>) -> Current {
        let drop = match self.queue.front() {
            None => true,
            Some(posted) => (posted.len, posted.stamp) != (len, stamp) || posted.refused.is_some(),
        };
        if drop && let Some(posted) = self.queue.pop_front() {
            let mismatch = || TransportError::Mismatch {
                message: self.messages,
                our_len: posted.len.into(),
                their_len: len.into(),
                our_stamp: posted.stamp,
                their_stamp: stamp,
            };
            let error = posted.refused.map_or_else(mismatch, |error| *error);
            events.push(Event::Failed { token: posted.token, error });
            self.messages += 1;
        }
        Current { len, stamp, offset: 0, drop, from: None }
    }

    /// Every receive gets its event.
    pub(crate) fn fail(&mut self, mut event: impl FnMut(Token) -> Event, events: &mut Vec<Event>) {
        events.extend(self.queue.drain(..).map(|posted| event(posted.token)));
        // What is left of a message that was for one of them goes to nobody.
        if let Some(current) = &mut self.current {
            current.drop = true;
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.queue.capacity() * size_of::<Posted>()
    }
}

/// Whether the peer has withdrawn the record at a place of its ring.
#[inline(always)]
fn is_void(peer: &PeerSegment, place: u64) -> bool {
    let void = peer.load(Word::Void, Ordering::Acquire);
    void != 0 && place >= void - 1
}

fn locate(regions: &Theirs, from: Reference, len: u32) -> Result<*const u8, Bad> {
    regions.find(from, len).map_err(|astray| match astray {
        Astray::Unknown => Bad::Unknown(from.number),
        Astray::Outside(reason) => Bad::Record(reason),
    })
}

fn describe(stamp: u64, word: u64, our_stamp: u64, len: u32, offset: u32) -> String {
    format!(
        "its ring has a piece at offset {} of a message of {} bytes with stamp {stamp:#018x}, expected the piece at \
         offset {offset} of a message of {len} bytes with stamp {our_stamp:#018x}",
        word >> 32,
        word as u32
    )
}

/// Puts a piece where the sink wants it.
///
/// # Safety
/// `bytes` is readable and the sink's memory valid for the piece.
#[inline]
unsafe fn deliver(sink: &Sink, at: usize, bytes: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match *sink {
            Sink::Copy { dst, .. } if len <= INLINE as usize => copy_short(bytes, dst.add(at), len),
            Sink::Copy { dst, keep, .. } => kernels::copy(bytes, dst.add(at), len, keep),
            Sink::Reduce { ref reduction, with, dst, last, keep } => {
                let ours = Operand { addr: with.addr.add(at), raw: with.raw };
                let theirs = Operand { addr: bytes, raw: false };
                let count = len / reduction.dtype.size();
                kernels::reduce(reduction, &[ours, theirs], dst.add(at), count, last, keep);
            }
        }
    }
}
