//! What a lane receives: the queue of posted receives, and the way from the peer's ring to where they want it.

use crate::{
    copy::copy_short,
    outbox::{MESSAGE_COST, WINDOW, fields, push_done},
    record::{HEADER, INLINE, LINE, piece_at, record_bytes},
    ring::{OwnWords, Reader, Word, Words},
    segment::PeerSegment,
};
use rondel_transport_api::{Event, Operand, Sink, Token, TransportError, kernels};
use std::{collections::VecDeque, sync::atomic::Ordering};

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
        own: &impl OwnWords,
        events: &mut Vec<Event>,
    ) -> Result<Taken, Bad> {
        if !self.waits() || !self.reader.is_ready(peer) {
            return Ok(Taken::default());
        }
        if peer.load(Word::Void, Ordering::Acquire) != 0 {
            return Err(Bad::Void);
        }
        let place = self.reader.place();
        let (stamp, word) = peer.header(place);
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
        self.current = (current.offset < current.len).then_some(current);
        if self.current.is_none() && !current.drop {
            self.messages += 1;
            if let Some(posted) = self.queue.pop_front() {
                push_done(events, posted.token);
            }
        }
        Ok(Taken { cost: piece as usize + MESSAGE_COST, told })
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
        Current { len, stamp, offset: 0, drop }
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
