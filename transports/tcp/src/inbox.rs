//! What a lane receives: the queue of posted receives, and for each socket the place in its stream.

use crate::{
    options::{self, Moved},
    outbox::{Outbox, Received, WINDOW},
    wire::{HEADER, Header, Kind},
};
use rondel_transport_api::{Event, Operand, Sink, Token, TransportError, kernels};
use std::{collections::VecDeque, io, os::fd::RawFd};

/// Bytes that a socket reads ahead of what is posted: a header with a small payload behind it comes in one call.
pub(crate) const AHEAD: usize = 4 << 10;
/// Bytes that one call reads into a destination. The endpoint's scratch for reductions is as large.
pub(crate) const READ_AT_ONCE: usize = 256 << 10;

struct Posted {
    len: u32,
    sink: Sink,
    stamp: u64,
    token: Token,
    /// Bytes that frames have announced.
    announced: u32,
    /// Bytes in place.
    arrived: u32,
    failure: Option<Box<TransportError>>,
    over: bool,
}

/// Posted receives of a lane, oldest first.
pub(crate) struct Inbox {
    posted: VecDeque<Posted>,
    /// Number of the oldest.
    first: u64,
    /// Sockets of the lane.
    sockets: usize,
    /// We have left: payloads are read and dropped.
    pub(crate) discards: bool,
    pub(crate) bytes: u64,
}

/// How a socket's stream ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer said goodbye.
    Goodbye,
    /// The connection ended without a goodbye.
    Lost(String),
    /// The bytes make no sense.
    Protocol(String),
}

/// What to do with a frame's payload.
enum Admission {
    Take(Part),
    NotPosted,
}

#[derive(Clone, Copy)]
struct Part {
    number: u64,
    /// Where in the message the next byte belongs.
    at: u32,
    left: u32,
    /// Nobody wants it.
    drop: bool,
}

impl Inbox {
    pub(crate) fn new(sockets: usize) -> Self {
        Self { posted: VecDeque::with_capacity(8), first: 0, sockets, discards: false, bytes: 0 }
    }

    /// Whether there was room for one more.
    pub(crate) fn post(&mut self, len: u32, sink: Sink, stamp: u64, token: Token) -> bool {
        let room = self.posted.len() < WINDOW;
        if room {
            let failure = match sink {
                Sink::Reduce { reduction, .. } if !(len as usize).is_multiple_of(reduction.dtype.size()) => {
                    let what = format!("a reduction over {len} bytes of {:?}", reduction.dtype);
                    Some(Box::new(TransportError::Unsupported { what }))
                }
                _ => None,
            };
            self.posted.push_back(Posted {
                len,
                sink,
                stamp,
                token,
                announced: 0,
                arrived: 0,
                failure,
                over: false,
            });
        }
        room
    }

    /// Whether a receive waits.
    pub(crate) fn waits(&self) -> bool {
        !self.posted.is_empty()
    }

    pub(crate) fn received(&self) -> Received {
        Received { messages: self.first, bytes: self.bytes }
    }

    /// Every receive gets its event: the queue is over.
    pub(crate) fn fail(&mut self, mut event: impl FnMut(Token) -> Event, events: &mut Vec<Event>) {
        events.extend(self.posted.drain(..).map(|posted| match posted {
            Posted { over: true, failure: None, token, .. } => Event::Done { token },
            Posted { over: true, failure: Some(error), token, .. } => Event::Failed { token, error: *error },
            Posted { token, .. } => event(token),
        }));
    }

    pub(crate) fn memory(&self) -> usize {
        self.posted.capacity() * size_of::<Posted>()
    }

    fn admit(&mut self, header: &Header, events: &mut Vec<Event>) -> Result<Admission, End> {
        let part = Part { number: header.number, at: header.offset, left: header.part, drop: false };
        let dropped = Ok(Admission::Take(Part { drop: true, ..part }));
        if self.discards {
            return dropped;
        }
        let Some(index) = header.number.checked_sub(self.first) else {
            // Parts of a message that failed already may still come on the lane's other sockets.
            return if self.sockets > 1 { dropped } else { Err(self.out_of_order(header)) };
        };
        let Some(posted) = usize::try_from(index).ok().and_then(|index| self.posted.get_mut(index)) else {
            let expected = self.first + self.posted.len() as u64;
            let impossible = index > u64::from(u32::MAX) || (self.sockets == 1 && header.number != expected);
            return if impossible { Err(self.out_of_order(header)) } else { Ok(Admission::NotPosted) };
        };
        if posted.over {
            return dropped;
        }
        if posted.failure.is_none() && (header.len, header.stamp) != (posted.len, posted.stamp) {
            posted.failure = Some(Box::new(TransportError::Mismatch {
                message: header.number,
                our_len: posted.len.into(),
                their_len: header.len.into(),
                our_stamp: posted.stamp,
                their_stamp: header.stamp,
            }));
        }
        if posted.failure.is_some() {
            posted.over = true;
            self.retire(events);
            return dropped;
        }
        let whole = match posted.sink {
            Sink::Reduce { reduction, .. } => {
                let size = reduction.dtype.size() as u32;
                header.offset.is_multiple_of(size) && header.part.is_multiple_of(size)
            }
            Sink::Copy { .. } => true,
        };
        let announced = posted.announced.checked_add(header.part);
        match announced.filter(|&announced| whole && announced <= posted.len) {
            Some(announced) => posted.announced = announced,
            None => {
                return Err(End::Protocol(format!(
                    "message {} of {} bytes has a part of {} bytes at offset {} after {} bytes",
                    header.number, header.len, header.part, header.offset, posted.announced
                )));
            }
        }
        if header.len == 0 {
            posted.over = true;
            self.retire(events);
        }
        Ok(Admission::Take(part))
    }

    fn out_of_order(&self, header: &Header) -> End {
        End::Protocol(format!("message {} came, expected message {}", header.number, self.first))
    }

    fn retire(&mut self, events: &mut Vec<Event>) {
        while self.posted.front().is_some_and(|posted| posted.over) {
            let Some(Posted { token, failure, .. }) = self.posted.pop_front() else { return };
            self.first += 1;
            events.push(match failure {
                None => Event::Done { token },
                Some(error) => Event::Failed { token, error: *error },
            });
        }
    }

    fn sink(&self, part: &Part) -> Option<Sink> {
        (!part.drop).then(|| self.posted[(part.number - self.first) as usize].sink)
    }

    /// `bytes` of a part are in place.
    fn arrived(&mut self, part: &mut Part, bytes: usize, events: &mut Vec<Event>) {
        part.at += bytes as u32;
        part.left -= bytes as u32;
        self.bytes += bytes as u64;
        if !part.drop {
            let posted = &mut self.posted[(part.number - self.first) as usize];
            posted.arrived += bytes as u32;
            if posted.arrived == posted.len {
                posted.over = true;
                self.retire(events);
            }
        }
    }
}

enum Place {
    /// Before a header.
    Header,
    /// Behind a header whose message nobody has posted a receive for.
    Unposted(Header),
    Payload(Part),
    /// Behind the peer's goodbye.
    End,
}

/// The receiving half of one socket.
pub(crate) struct Input {
    ahead: Box<[u8; AHEAD]>,
    start: usize,
    end: usize,
    place: Place,
    /// The kernel may have more than was read.
    pub(crate) readable: bool,
    /// The end of the stream is in sight: it stays readable until the end is read.
    pub(crate) hung_up: bool,
    /// The peer said that it is ready.
    pub(crate) heard_ready: bool,
}

/// What receiving needs besides the socket's own state.
pub(crate) struct Reception<'a> {
    pub(crate) fd: RawFd,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) outbox: &'a mut Outbox,
    /// At least [`READ_AT_ONCE`] bytes.
    pub(crate) scratch: &'a mut [u8],
    pub(crate) events: &'a mut Vec<Event>,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self {
            ahead: Box::new([0; AHEAD]),
            start: 0,
            end: 0,
            place: Place::Header,
            readable: true,
            hung_up: false,
            heard_ready: false,
        }
    }

    /// Whether the next byte is behind the peer's goodbye.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.place, Place::End)
    }

    /// Whether a message lies here that nobody has posted a receive for.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.place, Place::Unposted(_))
    }

    /// Whether a call makes sense. `eager`: also without having heard that bytes are there.
    pub(crate) fn wants(&self, inbox: &Inbox, eager: bool) -> bool {
        match &self.place {
            Place::End => false,
            Place::Unposted(header) => {
                inbox.discards || header.number < inbox.first + inbox.posted.len() as u64
            }
            Place::Payload(_) => self.readable || eager,
            Place::Header => self.readable || (eager && inbox.waits()),
        }
    }

    /// Nothing writes to lent memory from here on: what remains of a payload is dropped.
    pub(crate) fn let_go(&mut self) {
        if let Place::Payload(part) = &mut self.place {
            part.drop = true;
        }
    }

    /// Reads until the kernel has no more, a message is not posted, or about `budget` bytes have come. Returns how many
    /// came. `eager`: without having heard that there are any.
    pub(crate) fn receive(
        &mut self,
        with: &mut Reception<'_>,
        eager: bool,
        budget: usize,
    ) -> Result<usize, End> {
        self.readable |= eager;
        let mut total = 0;
        loop {
            match self.place {
                Place::End => return Ok(total),
                Place::Header if self.end - self.start >= HEADER => self.header(with)?,
                Place::Unposted(header) => match with.inbox.admit(&header, with.events)? {
                    Admission::NotPosted => return Ok(total),
                    Admission::Take(part) => self.begin(part),
                },
                Place::Payload(mut part) => {
                    self.take_ahead(&mut part, with);
                    if part.left > 0 && self.may_read(total < budget) {
                        total += self.payload(&mut part, with)?;
                    }
                    let stays = part.left > 0;
                    self.place = if stays { Place::Payload(part) } else { Place::Header };
                    if stays && (total >= budget || !self.readable) {
                        return Ok(total);
                    }
                }
                Place::Header => {
                    if !self.may_read(total < budget) {
                        return Ok(total);
                    }
                    total += self.read_ahead(with.fd)?;
                }
            }
        }
    }

    /// A read that found less than it asked for has emptied the kernel's buffer.
    fn may_read(&self, within_budget: bool) -> bool {
        within_budget && self.readable
    }

    fn begin(&mut self, part: Part) {
        self.place = if part.left > 0 { Place::Payload(part) } else { Place::Header };
    }

    fn header(&mut self, with: &mut Reception<'_>) -> Result<(), End> {
        let bytes = self.ahead[self.start..self.start + HEADER].try_into().expect("a header's length");
        let header = Header::decode(bytes).map_err(End::Protocol)?;
        self.start += HEADER;
        if !with.outbox.acknowledge(header.ack) {
            return Err(End::Protocol(format!(
                "{} messages are acknowledged, more than were sent",
                header.ack
            )));
        }
        if self.heard_ready == (header.kind == Kind::Ready) {
            return Err(End::Protocol(format!(
                "a {:?} frame came {} the Ready frame",
                header.kind,
                if self.heard_ready { "after" } else { "instead of" }
            )));
        }
        match header.kind {
            Kind::Data => match with.inbox.admit(&header, with.events)? {
                Admission::Take(part) => self.begin(part),
                Admission::NotPosted => self.place = Place::Unposted(header),
            },
            Kind::Ack => {}
            Kind::Ready => self.heard_ready = true,
            Kind::Goodbye => self.place = Place::End,
        }
        Ok(())
    }

    /// Uses what was read ahead.
    fn take_ahead(&mut self, part: &mut Part, with: &mut Reception<'_>) {
        let here = (self.end - self.start).min(part.left as usize);
        if here == 0 {
            return;
        }
        let bytes = &self.ahead[self.start..self.start + here];
        let used = match with.inbox.sink(part) {
            None => here,
            Some(sink) => deliver(&sink, part.at as usize, bytes),
        };
        self.start += used;
        with.inbox.arrived(part, used, with.events);
    }

    fn read_ahead(&mut self, fd: RawFd) -> Result<usize, End> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = AHEAD - self.end;
        // SAFETY: `room` bytes are left behind `end`.
        let read = unsafe { options::recv(fd, self.ahead.as_mut_ptr().add(self.end), room) };
        let bytes = self.came(read, room)?;
        self.end += bytes;
        Ok(bytes)
    }

    /// Reads a payload to where it belongs, and what follows it into the read-ahead buffer.
    fn payload(&mut self, part: &mut Part, with: &mut Reception<'_>) -> Result<usize, End> {
        let sink = with.inbox.sink(part);
        // A reduction leaves a fraction of an element behind.
        let kept = self.end - self.start;
        let scratch = with.scratch.as_mut_ptr();
        let want = (part.left as usize - kept).min(READ_AT_ONCE - kept);
        let to = match sink {
            // SAFETY: `at + left` is at most the posted length, and nothing is kept for a copy.
            Some(Sink::Copy { dst, .. }) => unsafe { dst.add(part.at as usize) },
            _ => {
                with.scratch[..kept].copy_from_slice(&self.ahead[self.start..self.end]);
                // SAFETY: the scratch is larger than a fraction of an element.
                unsafe { scratch.add(kept) }
            }
        };
        let finishes = want + kept == part.left as usize;
        let parts = [
            libc::iovec { iov_base: to.cast(), iov_len: want },
            libc::iovec {
                iov_base: self.ahead.as_mut_ptr().cast(),
                iov_len: if finishes { AHEAD } else { 0 },
            },
        ];
        // SAFETY: `want` bytes at `to` are lent for this message or ours. The read-ahead buffer is only written when the
        // part is complete, and what it kept is in the scratch as well.
        let read = unsafe { options::readv(with.fd, &parts[..if finishes { 2 } else { 1 }]) };
        let bytes = self.came(read, want + parts[1].iov_len)?;
        if bytes == 0 {
            return Ok(0);
        }
        (self.start, self.end) = (0, 0);
        let mine = bytes.min(want);
        let used = match sink {
            Some(sink @ Sink::Reduce { .. }) => {
                let used = deliver(&sink, part.at as usize, &with.scratch[..kept + mine]);
                let rest = kept + mine - used;
                if rest > 0 {
                    self.ahead[..rest].copy_from_slice(&with.scratch[used..used + rest]);
                    self.end = rest;
                }
                used
            }
            _ => mine,
        };
        if bytes > want {
            self.end = bytes - want;
        }
        with.inbox.arrived(part, used, with.events);
        Ok(bytes)
    }

    fn came(&mut self, read: io::Result<Moved>, asked: usize) -> Result<usize, End> {
        match read {
            Ok(Moved::Bytes(0)) => {
                let place =
                    if matches!(self.place, Place::Payload(_)) { " in the middle of a message" } else { "" };
                Err(End::Lost(format!("the peer's end was closed without a goodbye{place}")))
            }
            Ok(Moved::Bytes(bytes)) => {
                self.readable = bytes == asked || self.hung_up;
                Ok(bytes)
            }
            Ok(Moved::Blocked) => {
                self.readable = false;
                Ok(0)
            }
            Err(error) => Err(End::Lost(error.to_string())),
        }
    }
}

/// Puts bytes of a message where they belong, whole elements at a time. Returns how many bytes were used.
fn deliver(sink: &Sink, at: usize, bytes: &[u8]) -> usize {
    match *sink {
        Sink::Copy { dst, .. } => {
            // SAFETY: the caller lent `dst` for the posted length, and frames were checked against it.
            unsafe { dst.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            bytes.len()
        }
        Sink::Reduce { ref reduction, with, dst, last, keep } => {
            let size = reduction.dtype.size();
            let count = bytes.len() / size;
            if count > 0 {
                // SAFETY: the caller lent `with` and `dst` for the posted length, and frames were checked against it.
                unsafe {
                    let ours = Operand { addr: with.addr.add(at), raw: with.raw };
                    let theirs = Operand { addr: bytes.as_ptr(), raw: false };
                    kernels::reduce(reduction, &[ours, theirs], dst.add(at), count, last, keep);
                }
            }
            count * size
        }
    }
}
