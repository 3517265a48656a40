//! Mutual authentication of every connection, as two sans-IO state machines.
//!
//! Whoever connects is the client. Four messages, all of fixed length (little-endian):
//!
//! 1. client: magic, version, purpose, stripe, rank, cookie, 32-byte nonce
//! 2. server: magic, version, status, 32-byte nonce, HMAC-SHA256 over both so far
//! 3. client: HMAC-SHA256 over both so far (another label)
//! 4. server: status (accepted, or why not)
//!
//! A wrong magic ends the connection without an answer, so that a port scan learns nothing.

use std::fmt;

/// The version of everything that rondel says over a socket. Peers of another version are refused by name.
pub const VERSION: u16 = 1;

/// The secret that a job's ranks share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Joining the job at its root.
    Join,
    /// The watchers' control link.
    Control,
    /// One socket of a lane: the cookie from the peer's offer and which socket of the lane it is.
    Lane {
        /// The number that the peer's offer carried.
        cookie: u64,
        /// Which of the lane's sockets.
        stripe: u8,
    },
}

/// Who connects, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client's rank.
    pub rank: u32,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// Why a handshake ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Not rondel at all.
    #[error("not a rondel peer (first bytes {first:02x?})")]
    Stranger {
        /// What came instead of the magic.
        first: [u8; 4],
    },
    /// Another protocol version.
    #[error(
        "the peer speaks rondel protocol version {theirs}, we speak {ours}: use one rondel version for all ranks"
    )]
    Version {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
    },
    /// Another key.
    #[error("the peer has another key: it belongs to another job, or RONDEL_KEY differs")]
    Key,
    /// The server refused, with its reason.
    #[error("refused by the peer: {0}")]
    Refused(&'static str),
    /// A field has no meaning.
    #[error("malformed handshake: {0}")]
    Malformed(&'static str),
}

/// One side of a handshake in progress. Feed it what arrives, send what it has to say.
///
/// ```text
/// loop { send(h.output()); h.sent(n); if h.is_done() { break } h.handle_input(&bytes[..])?; }
/// ```
#[derive(Debug)]
pub struct Handshake {
    _private: (),
}

impl Handshake {
    /// The side that connected.
    pub fn client(key: &Key, hello: Hello) -> Self {
        let _ = (key, hello);
        todo!()
    }
    /// The side that accepted.
    pub fn server(key: &Key) -> Self {
        let _ = key;
        todo!()
    }
    /// Takes bytes that arrived. Returns how many were used; the rest belongs to what follows the handshake.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let _ = bytes;
        todo!()
    }
    /// How many bytes it can use next (so that a reader never reads past the handshake).
    pub fn wants(&self) -> usize {
        todo!()
    }
    /// What to send now.
    pub fn output(&self) -> &[u8] {
        todo!()
    }
    /// `n` bytes of the output were sent.
    pub fn sent(&mut self, n: usize) {
        let _ = n;
        todo!()
    }
    /// Finished, nothing left to send.
    pub fn is_done(&self) -> bool {
        todo!()
    }
    /// Who connected and what for; known to the server once `is_done`.
    pub fn hello(&self) -> Option<Hello> {
        todo!()
    }
}
