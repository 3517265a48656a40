//! A nonblocking connection that carries [`Message`]s.

use super::{
    codec::CodecError,
    wire::{Message, parse},
};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
};

/// Bytes that are read before others get their turn.
const READ_AT_ONCE: usize = 256 * 1024;

/// The connection with what has arrived and what is still to be sent.
#[derive(Debug)]
pub(crate) struct Framed {
    stream: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    ended: bool,
}

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its bytes are not ours: {0}")]
    Codec(#[from] CodecError),
}

impl Framed {
    /// The stream must be nonblocking.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, inbox: Vec::new(), outbox: Vec::new(), sent: 0, ended: false }
    }
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
    /// Takes what has arrived off the socket.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        let mut taken = 0;
        while !self.ended && taken < READ_AT_ONCE {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.inbox.extend_from_slice(&chunk[..n]);
                    taken += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
    /// The next message of what was filled in.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, CodecError> {
        let Some((message, used)) = parse(&self.inbox)? else { return Ok(None) };
        self.inbox.drain(..used);
        Ok(Some(message))
    }
    /// The peer will say no more than was filled in.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }
    pub(crate) fn push(&mut self, message: &Message) {
        self.push_encoded(&message.encode());
    }
    pub(crate) fn push_encoded(&mut self, frame: &[u8]) {
        self.outbox.extend_from_slice(frame);
    }
    /// Sends as much as the socket takes now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }
    /// Something could not be sent yet.
    pub(crate) fn is_clogged(&self) -> bool {
        self.sent < self.outbox.len()
    }
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
