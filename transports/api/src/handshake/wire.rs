//! The bytes of the four messages.

use super::{HandshakeError, Hello, Purpose, Refusal, VERSION};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Not text and no other protocol's first bytes.
pub(super) const MAGIC: [u8; 4] = [0xb1, b'r', b'd', b'l'];
/// Magic and version, which all versions share.
pub(super) const HEADER: usize = 6;
pub(super) const HELLO: usize = 52;
pub(super) const CHALLENGE: usize = 72;
/// An HMAC-SHA256.
pub(super) const CODE: usize = 32;
pub(super) const VERDICT: usize = 2 + CODE;

pub(super) const CHALLENGE_LABEL: &[u8; 16] = b"rondel challenge";
pub(super) const PROOF_LABEL: &[u8; 16] = b"rondel proof    ";
pub(super) const VERDICT_LABEL: &[u8; 16] = b"rondel verdict  ";

/// What a server says about a hello or a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Accepted,
    Version,
    Malformed,
    Key,
    Refused(Refusal),
}

impl Status {
    /// Refusals start at 16, in the order of [`Refusal::ALL`].
    pub(super) const fn number(self) -> u16 {
        match self {
            Status::Accepted => 0,
            Status::Version => 1,
            Status::Malformed => 2,
            Status::Key => 3,
            Status::Refused(refusal) => 16 + refusal as u16,
        }
    }
}

/// What a server's status means to the client.
pub(super) fn judge(status: u16) -> Result<(), HandshakeError> {
    match status {
        0 => Ok(()),
        // A version that differs is seen in the header, which comes before the status.
        1 | 2 => Err(HandshakeError::Malformed("the server could not read our hello")),
        3 => Err(HandshakeError::Key),
        _ => match Refusal::ALL.into_iter().find(|&r| Status::Refused(r).number() == status) {
            Some(refusal) => Err(HandshakeError::Refused(refusal.reason())),
            None => Err(HandshakeError::Malformed("the server's status is unknown")),
        },
    }
}

/// Judges the magic and the version, of which both are there.
pub(super) fn check_header(message: &[u8]) -> Result<(), HandshakeError> {
    let &[a, b, c, d, low, high, ..] = message else {
        return Err(HandshakeError::Malformed("the header is too short"));
    };
    if [a, b, c, d] != MAGIC {
        return Err(HandshakeError::Stranger { first: [a, b, c, d] });
    }
    match u16::from_le_bytes([low, high]) {
        VERSION => Ok(()),
        theirs => Err(HandshakeError::Version { ours: VERSION, theirs }),
    }
}

pub(super) fn hello(hello: &Hello, nonce: &[u8; 32]) -> [u8; HELLO] {
    let (purpose, stripe, cookie) = match hello.purpose {
        Purpose::Join => (0, 0, 0),
        Purpose::Control => (1, 0, 0),
        Purpose::Lane { cookie, stripe } => (2, stripe, cookie),
    };
    let mut message = [0; HELLO];
    message[..4].copy_from_slice(&MAGIC);
    message[4..6].copy_from_slice(&VERSION.to_le_bytes());
    message[6] = purpose;
    message[7] = stripe;
    message[8..12].copy_from_slice(&hello.rank.to_le_bytes());
    message[12..20].copy_from_slice(&cookie.to_le_bytes());
    message[20..].copy_from_slice(nonce);
    message
}

/// Reads a whole hello whose header is good.
pub(super) fn parse_hello(message: &[u8]) -> Result<Hello, HandshakeError> {
    let fields: &[u8; HELLO] =
        message.try_into().map_err(|_| HandshakeError::Malformed("the hello is not 52 bytes"))?;
    let [_, _, _, _, _, _, purpose, stripe, r0, r1, r2, r3, c0, c1, c2, c3, c4, c5, c6, c7, ..] = *fields;
    let cookie = u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]);
    let purpose = match (purpose, stripe, cookie) {
        (0, 0, 0) => Purpose::Join,
        (1, 0, 0) => Purpose::Control,
        (2, stripe, cookie) => Purpose::Lane { cookie, stripe },
        (0 | 1, ..) => return Err(HandshakeError::Malformed("a cookie or stripe where no lane is meant")),
        _ => return Err(HandshakeError::Malformed("the hello's purpose is unknown")),
    };
    Ok(Hello { rank: u32::from_le_bytes([r0, r1, r2, r3]), purpose })
}

/// The challenge up to its code.
pub(super) fn challenge_head(status: Status, nonce: &[u8; 32]) -> [u8; CHALLENGE - CODE] {
    let mut head = [0; CHALLENGE - CODE];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&status.number().to_le_bytes());
    head[8..].copy_from_slice(nonce);
    head
}
pub(super) fn challenge(status: Status, nonce: &[u8; 32], code: &[u8; CODE]) -> [u8; CHALLENGE] {
    let mut message = [0; CHALLENGE];
    message[..CHALLENGE - CODE].copy_from_slice(&challenge_head(status, nonce));
    message[CHALLENGE - CODE..].copy_from_slice(code);
    message
}
/// The status within a challenge's head.
pub(super) fn challenge_status(head: &[u8]) -> u16 {
    u16::from_le_bytes([head[6], head[7]])
}

/// HMAC-SHA256 over the parts one after the other, then `last`.
pub(super) fn code(key: &[u8], parts: &[&[u8]], last: &[u8]) -> [u8; CODE] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.update(last);
    mac.finalize().into_bytes().into()
}
