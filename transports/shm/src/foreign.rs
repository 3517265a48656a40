//! What foreign bytes meet, for fuzzers, and what it takes to be a peer that misbehaves, for tests.

use crate::{
    offer::{Domain, LaneOffer, NAME_BYTES},
    segment, socket,
};
use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// Bytes of a segment's file before its ring.
pub const RING_AT: u64 = segment::RING_AT;
/// Bytes of the ring that an end fills.
pub const RING: u64 = segment::RING;
/// First word of a segment.
pub const MAGIC: u64 = segment::MAGIC;
/// Where in a segment its owner says how far it has read.
pub const CONSUMED_AT: usize = segment::CONSUMED_AT;

/// The parts of an offer: cookie, rank, bytes of the ring, name of the listener.
pub type Offer = (u64, u32, u64, [u8; NAME_BYTES]);

/// Reads an offer.
///
/// # Errors
/// What is wrong with it.
pub fn decode_offer(bytes: &[u8]) -> Result<Offer, String> {
    LaneOffer::decode(bytes).map(|offer| (offer.cookie, offer.rank, offer.ring, offer.name))
}

/// Writes an offer.
pub fn encode_offer((cookie, rank, ring, name): Offer) -> Vec<u8> {
    LaneOffer { cookie, rank, ring, name }.encode()
}

/// Reads a domain.
///
/// # Errors
/// What is wrong with it.
pub fn decode_domain(bytes: &[u8]) -> Result<Vec<u8>, String> {
    Domain::decode(bytes).map(|domain| domain.encode())
}

/// Connects to a listener.
///
/// # Errors
/// There is none, or not now.
pub fn dial(name: &[u8; NAME_BYTES]) -> io::Result<UnixStream> {
    socket::dial(name)
}

/// An anonymous file that can be sealed.
///
/// # Errors
/// The kernel's answer.
pub fn memfd() -> io::Result<OwnedFd> {
    segment::memfd()
}

/// Says a byte on a lane's socket, with at most two descriptors.
///
/// # Errors
/// The kernel's answer.
pub fn say(stream: &UnixStream, byte: u8, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    socket::say_bytes(stream, &[byte], fds)
}

/// The next byte on a lane's socket, with what came along.
pub fn hear(stream: &UnixStream) -> Option<(u8, Vec<OwnedFd>)> {
    match socket::hear(stream) {
        socket::Heard::Word(word, fds) => Some((word as isize as u8, fds)),
        socket::Heard::Noise(byte) => Some((byte, Vec::new())),
        socket::Heard::Nothing | socket::Heard::End(_) => None,
    }
}
