//! What a lane sends: the queue of accepted messages, and for each socket the frames that are on their way into it.

use crate::{
    options::{self, Moved},
    wire::{HEADER, Header, Kind},
};
use rondel_transport_api::{Event, Slice, Token};
use std::{collections::VecDeque, io, mem::MaybeUninit, os::fd::RawFd};

/// Posts that a lane and direction accepts at once.
pub(crate) const WINDOW: usize = 64;
/// Bytes given to the kernel in one call: more does not go faster, and less than half of what a receiver takes at once
/// lets it find the next part waiting.
pub(crate) const SEND_AT_ONCE: usize = 128 << 10;
/// Bytes of one message that a socket takes before another socket of the lane may take the next.
const PART: u32 = 128 << 10;
/// Frames of one socket that one call may carry.
const FRAMES: usize = 8;
/// Up to here copying frames into one buffer is cheaper than a vectored call.
const GATHER: usize = 2 << 10;
/// After so many messages or bytes an acknowledgement goes out although there is no message to carry it.
const ACK_MESSAGES: u64 = 64;
const ACK_BYTES: u64 = 4 << 20;

struct Message {
    src: Slice,
    stamp: u64,
    token: Token,
    /// Bytes in the kernel's hands.
    accepted: u32,
    over: bool,
}

/// Messages of a lane on their way out, oldest first.
pub(crate) struct Outbox {
    messages: VecDeque<Message>,
    /// Number of the oldest message.
    first: u64,
    /// The next part to be dealt to a socket: index of the message, offset in it.
    next: (usize, u32),
    /// Largest part.
    part: u32,
    /// What the peer acknowledged.
    acknowledged: u64,
    /// What we acknowledged: messages, and payload bytes that had come in by then.
    told: (u64, u64),
    pub(crate) bytes: u64,
}

/// What the peer is told with the next frame.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Outbox {
    pub(crate) fn new(sockets: usize) -> Self {
        Self {
            messages: VecDeque::with_capacity(8),
            first: 0,
            next: (0, 0),
            part: if sockets > 1 { PART } else { u32::MAX },
            acknowledged: 0,
            told: (0, 0),
            bytes: 0,
        }
    }

    /// Whether there is room for one more.
    pub(crate) fn accept(&mut self, src: Slice, stamp: u64, token: Token) -> bool {
        let room = self.messages.len() < WINDOW;
        if room {
            self.messages.push_back(Message { src, stamp, token, accepted: 0, over: false });
        }
        room
    }

    /// Whether a part waits for a socket.
    pub(crate) fn has_parts(&self) -> bool {
        self.next.0 < self.messages.len()
    }

    /// Whether all accepted messages are in the kernel's hands.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Messages that left.
    pub(crate) fn sent(&self) -> u64 {
        self.first
    }

    /// Takes the peer's cumulative acknowledgement. False if it names messages that were never sent.
    pub(crate) fn acknowledge(&mut self, ack: u64) -> bool {
        self.acknowledged = self.acknowledged.max(ack);
        ack <= self.first + self.messages.len() as u64
    }

    /// Whether the peer should hear from us although we have nothing to send.
    pub(crate) fn owes_ack(&self, received: Received) -> bool {
        received.messages - self.told.0 >= ACK_MESSAGES
            || (received.messages > self.told.0 && received.bytes - self.told.1 >= ACK_BYTES)
    }

    /// Every message gets its event: the queue is over.
    pub(crate) fn fail(&mut self, mut event: impl FnMut(Token) -> Event, events: &mut Vec<Event>) {
        events.extend(self.messages.drain(..).map(|message| {
            if message.over { Event::Done { token: message.token } } else { event(message.token) }
        }));
        self.next = (0, 0);
    }

    pub(crate) fn memory(&self) -> usize {
        self.messages.capacity() * size_of::<Message>()
    }

    fn deal(&mut self, received: Received) -> Frame {
        let (index, offset) = self.next;
        let message = &self.messages[index];
        let part = (message.src.len - offset).min(self.part);
        self.next = if offset + part == message.src.len { (index + 1, 0) } else { (index, offset + part) };
        let number = self.first + index as u64;
        let (len, stamp) = (message.src.len, message.stamp);
        // SAFETY: the offset lies in the slice that the caller lent.
        let body = unsafe { message.src.addr.add(offset as usize) };
        let header = Header { kind: Kind::Data, len, offset, part, number, stamp, ack: received.messages };
        self.told = (received.messages, received.bytes);
        Frame {
            head: header.encode(),
            head_sent: 0,
            body,
            left: part as usize,
            message: Some((number, part)),
        }
    }

    /// A part is in the kernel's hands.
    fn part_left(&mut self, number: u64, part: u32, events: &mut Vec<Event>) {
        let message = &mut self.messages[(number - self.first) as usize];
        message.accepted += part;
        message.over = message.accepted == message.src.len;
        self.bytes += u64::from(part);
        while self.messages.front().is_some_and(|message| message.over) {
            events.extend(self.messages.pop_front().map(|message| Event::Done { token: message.token }));
            self.first += 1;
            self.next.0 -= 1;
        }
    }
}

struct Frame {
    head: [u8; HEADER],
    head_sent: usize,
    body: *const u8,
    left: usize,
    /// Number of the message and bytes of it that this frame carries.
    message: Option<(u64, u32)>,
}
// SAFETY: the pointer is into a slice that the caller lent for the lane's use from whichever thread drives it.
unsafe impl Send for Frame {}

/// The sending half of one socket.
pub(crate) struct Output {
    frames: VecDeque<Frame>,
    /// The last call could not hand over everything.
    pub(crate) blocked: bool,
}

impl Output {
    /// The half of a fresh socket: its first frame says that we are ready.
    pub(crate) fn new() -> Self {
        let mut output = Self { frames: VecDeque::with_capacity(FRAMES), blocked: false };
        output.say(Kind::Ready, 0);
        output
    }

    pub(crate) fn say(&mut self, kind: Kind, ack: u64) {
        self.frames.push_back(Frame {
            head: Header::control(kind, ack).encode(),
            head_sent: 0,
            body: std::ptr::null(),
            left: 0,
            message: None,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops what was not handed over.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
    }

    pub(crate) fn memory(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
    }

    /// Hands frames to the kernel until it takes no more, nothing is left, or `allowance` payload bytes have moved.
    /// Returns how many bytes moved.
    pub(crate) fn transmit(
        &mut self,
        fd: RawFd,
        outbox: &mut Outbox,
        received: Received,
        allowance: usize,
        events: &mut Vec<Event>,
    ) -> io::Result<usize> {
        self.blocked = false;
        let mut total = 0;
        loop {
            let mut queued: usize = self.frames.iter().map(|frame| frame.left).sum();
            while self.frames.len() < FRAMES && outbox.has_parts() && queued < SEND_AT_ONCE {
                let frame = outbox.deal(received);
                queued += frame.left;
                self.frames.push_back(frame);
            }
            if self.frames.is_empty() || total >= allowance {
                return Ok(total);
            }
            let (offered, moved) = self.hand_over(fd, (allowance - total).min(SEND_AT_ONCE))?;
            let Moved::Bytes(moved) = moved else {
                self.blocked = true;
                return Ok(total);
            };
            total += moved;
            self.settle(moved, outbox, events);
            if moved < offered {
                self.blocked = true;
                return Ok(total);
            }
        }
    }

    /// One call with as many frames as fit. Returns what was offered and what the kernel took.
    fn hand_over(&mut self, fd: RawFd, payload: usize) -> io::Result<(usize, Moved)> {
        let whole: usize = self.frames.iter().map(|frame| HEADER - frame.head_sent + frame.left).sum();
        if whole <= GATHER.min(payload) {
            let mut gathered = [MaybeUninit::<u8>::uninit(); GATHER];
            let mut end = 0;
            for frame in &self.frames {
                let head = &frame.head[frame.head_sent..];
                // SAFETY: all frames together fit, and a frame's body is lent until its message is over.
                unsafe {
                    let to: *mut u8 = gathered.as_mut_ptr().cast();
                    to.add(end).copy_from_nonoverlapping(head.as_ptr(), head.len());
                    if frame.left > 0 {
                        to.add(end + head.len()).copy_from_nonoverlapping(frame.body, frame.left);
                    }
                }
                end += head.len() + frame.left;
            }
            // SAFETY: the first `end` bytes were written above.
            let bytes = unsafe { std::slice::from_raw_parts(gathered.as_ptr().cast(), end) };
            return Ok((end, options::send(fd, bytes)?));
        }
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2 * FRAMES];
        let (mut count, mut room, mut offered) = (0, payload, 0);
        for frame in &self.frames {
            let head = &frame.head[frame.head_sent..];
            let body = frame.left.min(room);
            for (base, len) in [(head.as_ptr(), head.len()), (frame.body, body)] {
                if len > 0 {
                    parts[count] = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
                    count += 1;
                    offered += len;
                }
            }
            room -= body;
            if room == 0 || count == parts.len() {
                break;
            }
        }
        // SAFETY: heads are ours, bodies are lent until their messages are over.
        Ok((offered, unsafe { options::sendmsg(fd, &mut parts[..count])? }))
    }

    /// The kernel took `moved` bytes.
    fn settle(&mut self, mut moved: usize, outbox: &mut Outbox, events: &mut Vec<Event>) {
        while let Some(frame) = self.frames.front_mut() {
            let head = moved.min(HEADER - frame.head_sent);
            frame.head_sent += head;
            moved -= head;
            let body = moved.min(frame.left);
            // SAFETY: at most to the end of the body. An empty body is not moved.
            frame.body = unsafe { frame.body.add(body) };
            frame.left -= body;
            moved -= body;
            if frame.head_sent < HEADER || frame.left > 0 {
                return;
            }
            if let Some((number, part)) = frame.message {
                outbox.part_left(number, part, events);
            }
            self.frames.pop_front();
        }
    }
}

impl Outbox {
    /// Queues an acknowledgement of its own if one is due and no message is about to carry it.
    pub(crate) fn tell(&mut self, output: &mut Output, received: Received) {
        if self.owes_ack(received) && !self.has_parts() && output.is_empty() {
            output.say(Kind::Ack, received.messages);
            self.told = (received.messages, received.bytes);
        }
    }
}
