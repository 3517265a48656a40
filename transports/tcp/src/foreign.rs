//! The parsers of what peers send, for fuzzers. Not part of the interface: it may change at any time.

use crate::{
    inbox::{Inbox, Input, READ_AT_ONCE, Reception},
    offer::{Domain, LaneOffer},
    outbox::Outbox,
};
use rondel_transport_api::{Event, Sink, Token, TransportError};
use std::os::fd::{AsFd, AsRawFd};

/// Parses a lane's offer and encodes it again.
///
/// # Errors
/// What is wrong with the bytes.
pub fn offer(bytes: &[u8]) -> Result<Vec<u8>, String> {
    LaneOffer::decode(bytes).map(|offer| offer.encode())
}

/// Parses an advert's domain and encodes it again.
///
/// # Errors
/// What is wrong with the bytes.
pub fn domain(bytes: &[u8]) -> Result<Vec<u8>, String> {
    Domain::decode(bytes).map(|domain| domain.encode())
}

/// Receives everything that a nonblocking socket has, as one of the `sockets` of a lane does, into receives of these
/// lengths, sinks and stamps. Each gets one event, whose token is its position. About `budget` bytes are read at a time.
///
/// # Safety
/// The sinks are valid for their lengths, and nobody else touches them until this returns.
pub unsafe fn receive(
    socket: &impl AsFd,
    sockets: usize,
    posts: Vec<(u32, Sink, u64)>,
    budget: usize,
) -> Vec<Event> {
    let mut inbox = Inbox::new(sockets);
    for (token, (len, sink, stamp)) in (0..).zip(posts) {
        inbox.post(len, sink, stamp, Token(token));
    }
    let (mut input, mut outbox) = (Input::new(), Outbox::new(sockets));
    let (mut scratch, mut events) = (vec![0; READ_AT_ONCE], Vec::new());
    let fd = socket.as_fd().as_raw_fd();
    let mut reception =
        Reception { fd, inbox: &mut inbox, outbox: &mut outbox, scratch: &mut scratch, events: &mut events };
    let why = loop {
        match input.receive(&mut reception, true, budget.max(1)) {
            Ok(0) => break "nothing more came".to_owned(),
            Ok(_) => {}
            Err(end) => break format!("{end:?}"),
        }
    };
    let closed = |token| Event::Failed { token, error: TransportError::Closed { reason: why.clone() } };
    inbox.fail(closed, &mut events);
    events
}
