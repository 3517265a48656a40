//! Mutual authentication of every connection, as two sans-IO state machines.
//!
//! Whoever connects is the client. Four messages, all of fixed length (little-endian):
//!
//! 1. hello, 52 bytes, from the client: magic, version, purpose, stripe, rank, cookie, 32-byte nonce
//! 2. challenge, 72 bytes, from the server: magic, version, status, 32-byte nonce, HMAC-SHA256 over all so far
//! 3. proof, 32 bytes, from the client: HMAC-SHA256 over all so far
//! 4. verdict, 34 bytes, from the server: status (accepted, or why not), HMAC-SHA256 over all so far
//!
//! Each code is computed under a label of its own, so that none can be sent back to its maker, and covers every byte
//! that was said before it, so that damage anywhere ends the handshake. Magic and version are judged as soon as they
//! are there: versions may differ in everything that follows them.
//!
//! A wrong magic ends the connection without an answer, so that a port scan learns nothing. After every other error the
//! failing side may still have something to say that lets its peer name the same reason: send what
//! [`output`](Handshake::output) holds, then close.

#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use subtle::ConstantTimeEq;
use wire::Status;

/// The version of everything that rondel says over a socket. Peers of another version are refused by name.
pub const VERSION: u16 = 1;

/// The secret that a job's ranks share.
#[derive(Clone)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The key that belongs to a secret of any length and shape, such as the text of `RONDEL_KEY`. Equal secrets give
    /// equal keys; a key tells nothing about its secret that guessing would not.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self(wire::code(b"rondel job key 1", &[], secret))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}
impl Eq for Key {}

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

/// Why a server turns an authenticated client away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another process has joined under this rank.
    RankTaken,
    /// The rank is not one of the job's, or not one that has business here.
    UnknownRank,
    /// No lane waits under this cookie, or the socket's number is not one of that lane's.
    UnknownLane,
    /// The server does not serve this purpose (such as joining at a rank that is not the root).
    WrongPurpose,
    /// The server has no room for another connection.
    Busy,
    /// The server is on its way out.
    Leaving,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Refusal; 6] = [
        Refusal::RankTaken,
        Refusal::UnknownRank,
        Refusal::UnknownLane,
        Refusal::WrongPurpose,
        Refusal::Busy,
        Refusal::Leaving,
    ];

    /// What the client is told.
    pub const fn reason(self) -> &'static str {
        match self {
            Refusal::RankTaken => {
                "another process has joined under this rank: give every process a rank of its own"
            }
            Refusal::UnknownRank => {
                "this rank does not belong to the job: compare the number of ranks that each was told"
            }
            Refusal::UnknownLane => {
                "no lane waits for this connection: it came too late, or from an earlier run"
            }
            Refusal::WrongPurpose => {
                "the address belongs to a rank that does not serve this: check the root's address"
            }
            Refusal::Busy => "the peer has no room for another connection: raise its limit of open files",
            Refusal::Leaving => "the peer is leaving the job",
        }
    }
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
/// loop {
///     h.sent(send(h.output()));
///     if h.is_done() { break }
///     let result = h.handle_input(&bytes[..]);      // at most h.wants() bytes are used
///     if let Err(error) = result { send(h.output()); close; return error }
///     if let Some(hello) = h.hello() && unwelcome(hello) { h.refuse(Refusal::...); }    // a server that chooses
/// }
/// ```
#[derive(Debug)]
pub struct Handshake {
    key: Key,
    state: State,
    /// Every whole message so far, both directions, in the order of the protocol.
    transcript: Vec<u8>,
    /// The message that is arriving.
    input: Vec<u8>,
    /// What is left to send begins at `sent`.
    output: Vec<u8>,
    sent: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// Server, before the hello. The nonce is for the challenge.
    AwaitHello {
        nonce: [u8; 32],
    },
    /// Client, before the challenge.
    AwaitChallenge,
    /// Server, before the proof.
    AwaitProof {
        hello: Hello,
    },
    /// Client, before the verdict.
    AwaitVerdict,
    /// Server: the client has the key, and the verdict is the last thing in the output and in the transcript.
    Judged {
        hello: Hello,
        refused: bool,
    },
    /// Client: accepted.
    Accepted,
    Failed(HandshakeError),
}

impl Handshake {
    /// The side that connected.
    ///
    /// # Panics
    /// If the kernel has no random numbers.
    pub fn client(key: &Key, hello: Hello) -> Self {
        Self::client_with_nonce(key, hello, random_nonce())
    }
    /// The side that accepted.
    ///
    /// # Panics
    /// If the kernel has no random numbers.
    pub fn server(key: &Key) -> Self {
        Self::server_with_nonce(key, random_nonce())
    }

    fn client_with_nonce(key: &Key, hello: Hello, nonce: [u8; 32]) -> Self {
        let mut client = Self::new(key, State::AwaitChallenge);
        client.say(&wire::hello(&hello, &nonce));
        client
    }
    fn server_with_nonce(key: &Key, nonce: [u8; 32]) -> Self {
        Self::new(key, State::AwaitHello { nonce })
    }
    fn new(key: &Key, state: State) -> Self {
        Self {
            key: key.clone(),
            state,
            transcript: Vec::new(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Takes bytes that arrived. Returns how many were used; the rest belongs to what follows the handshake.
    ///
    /// # Errors
    /// The handshake is over. [`output`](Self::output) may hold a last message that tells the peer why. Every later call
    /// gives the same error.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let mut used = 0;
        loop {
            if let State::Failed(error) = &self.state {
                return Err(error.clone());
            }
            let wanted = self.wants();
            let taken = wanted.min(bytes.len() - used);
            self.input.extend_from_slice(&bytes[used..used + taken]);
            used += taken;
            if wanted == 0 || taken < wanted {
                return Ok(used);
            }
            if let Err(error) = self.advance() {
                self.state = State::Failed(error);
            }
        }
    }
    /// How many bytes it can use next (so that a reader never reads past the handshake). Zero when it needs no more.
    pub fn wants(&self) -> usize {
        let (header, whole) = match self.state {
            State::AwaitHello { .. } => (wire::HEADER, wire::HELLO),
            State::AwaitChallenge => (wire::HEADER, wire::CHALLENGE),
            State::AwaitProof { .. } => (0, wire::CODE),
            State::AwaitVerdict => (0, wire::VERDICT),
            State::Judged { .. } | State::Accepted | State::Failed(_) => return 0,
        };
        let goal = if self.input.len() < header { header } else { whole };
        goal - self.input.len()
    }
    /// What to send now; possibly also after an error.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }
    /// `n` bytes of the output were sent.
    ///
    /// # Panics
    /// If that is more than there was.
    pub fn sent(&mut self, n: usize) {
        let left = self.output().len();
        assert!(n <= left, "{n} bytes of handshake were reported as sent, there were {left}");
        self.sent += n;
    }
    /// Succeeded, nothing left to send. Also true of a server whose refusal is sent; its [`hello`](Self::hello) is none.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Judged { .. } | State::Accepted) && self.output().is_empty()
    }
    /// Who connected and what for; known to the server as soon as the client has proved that it has the key, unless it
    /// was refused.
    pub fn hello(&self) -> Option<Hello> {
        match self.state {
            State::Judged { hello, refused: false } => Some(hello),
            _ => None,
        }
    }
    /// Server: turns the client away, though it has the key. To be called when [`hello`](Self::hello) is known and before
    /// more output is sent; the client's error is [`HandshakeError::Refused`]. Send the output, then close. Returns
    /// false, and changes nothing, where that moment has passed or has not come.
    pub fn refuse(&mut self, refusal: Refusal) -> bool {
        let State::Judged { hello, refused: false } = self.state else { return false };
        if self.output().len() < wire::VERDICT {
            return false;
        }
        self.output.truncate(self.output.len() - wire::VERDICT);
        self.transcript.truncate(self.transcript.len() - wire::VERDICT);
        self.say_verdict(Status::Refused(refusal));
        self.state = State::Judged { hello, refused: true };
        true
    }

    /// Judges what is in `input`: a header, or a whole message.
    fn advance(&mut self) -> Result<(), HandshakeError> {
        match self.state.clone() {
            State::AwaitHello { nonce } => self.on_hello(nonce),
            State::AwaitChallenge => self.on_challenge(),
            State::AwaitProof { hello } => self.on_proof(hello),
            State::AwaitVerdict => self.on_verdict(),
            State::Judged { .. } | State::Accepted | State::Failed(_) => Ok(()),
        }
    }

    fn on_hello(&mut self, nonce: [u8; 32]) -> Result<(), HandshakeError> {
        if let Err(error) = wire::check_header(&self.input) {
            if matches!(error, HandshakeError::Version { .. }) {
                self.output = wire::challenge(Status::Version, &[0; 32], &[0; wire::CODE]).to_vec();
            }
            return Err(error);
        }
        if self.input.len() < wire::HELLO {
            return Ok(());
        }
        let parsed = wire::parse_hello(&self.input);
        self.transcript.append(&mut self.input);
        let status = if parsed.is_ok() { Status::Accepted } else { Status::Malformed };
        let code = self.code(wire::CHALLENGE_LABEL, &wire::challenge_head(status, &nonce));
        self.say(&wire::challenge(status, &nonce, &code));
        self.state = State::AwaitProof { hello: parsed? };
        Ok(())
    }

    fn on_challenge(&mut self) -> Result<(), HandshakeError> {
        wire::check_header(&self.input)?;
        if self.input.len() < wire::CHALLENGE {
            return Ok(());
        }
        let (head, code) = self.input.split_at(wire::CHALLENGE - wire::CODE);
        let expected = self.code(wire::CHALLENGE_LABEL, head);
        let status = wire::challenge_status(head);
        let genuine: bool = expected.ct_eq(code).into();
        self.transcript.append(&mut self.input);
        // The proof is sent even to a server without the key: it fails there and tells the server why we leave.
        let proof = self.code(wire::PROOF_LABEL, &[]);
        self.say(&proof);
        if !genuine {
            return Err(HandshakeError::Key);
        }
        wire::judge(status)?;
        self.state = State::AwaitVerdict;
        Ok(())
    }

    fn on_proof(&mut self, hello: Hello) -> Result<(), HandshakeError> {
        let expected = self.code(wire::PROOF_LABEL, &[]);
        let genuine: bool = expected.ct_eq(&self.input).into();
        self.transcript.append(&mut self.input);
        if !genuine {
            self.say_verdict(Status::Key);
            return Err(HandshakeError::Key);
        }
        self.say_verdict(Status::Accepted);
        self.state = State::Judged { hello, refused: false };
        Ok(())
    }

    fn on_verdict(&mut self) -> Result<(), HandshakeError> {
        let (status, code) = self.input.split_at(wire::VERDICT - wire::CODE);
        let expected = self.code(wire::VERDICT_LABEL, status);
        if !bool::from(expected.ct_eq(code)) {
            return Err(HandshakeError::Malformed("the server's verdict does not belong to this connection"));
        }
        wire::judge(u16::from_le_bytes([status[0], status[1]]))?;
        self.input.clear();
        self.state = State::Accepted;
        Ok(())
    }

    fn say_verdict(&mut self, status: Status) {
        let status = status.number().to_le_bytes();
        let code = self.code(wire::VERDICT_LABEL, &status);
        self.say(&[&status[..], &code].concat());
    }
    fn say(&mut self, message: &[u8]) {
        self.output.extend_from_slice(message);
        self.transcript.extend_from_slice(message);
    }
    fn code(&self, label: &[u8; 16], addition: &[u8]) -> [u8; wire::CODE] {
        wire::code(&self.key.0, &[label, &self.transcript], addition)
    }
}

fn random_nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).expect("the kernel must give 32 random bytes for a connection's nonce");
    nonce
}
