//! What travels on a lane's socket after the handshake: frames, each a header of 40 bytes and, for data, a payload.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0..3 | magic | `rdl`: a stream that lost its place is noticed at the next header |
//! | 3 | kind | [`Kind`] |
//! | 4..8 | len | bytes of the whole message |
//! | 8..12 | offset | where in the message this payload belongs |
//! | 12..16 | part | bytes of payload that follow this header |
//! | 16..24 | number | number of the message on its lane and direction, from 0 |
//! | 24..32 | stamp | the sender's stamp |
//! | 32..40 | ack | how many messages of the other direction have been received in full |
//!
//! Integers are little-endian. A lane with one socket sends every message as one frame; a lane with several deals parts
//! of messages out to its sockets, and the receiver puts them together by (number, offset).

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 40;

const MAGIC: [u8; 3] = *b"rdl";

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A part of a message, or all of it.
    Data = 1,
    /// Nothing but the acknowledgement.
    Ack = 2,
    /// First frame of each socket: the sender is ready for messages.
    Ready = 3,
    /// Last frame of each socket: the sender leaves.
    Goodbye = 4,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) len: u32,
    pub(crate) offset: u32,
    pub(crate) part: u32,
    pub(crate) number: u64,
    pub(crate) stamp: u64,
    pub(crate) ack: u64,
}

impl Header {
    /// A frame without payload.
    pub(crate) fn control(kind: Kind, ack: u64) -> Self {
        Self { kind, len: 0, offset: 0, part: 0, number: 0, stamp: 0, ack }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.part.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.stamp.to_le_bytes());
        bytes[32..].copy_from_slice(&self.ack.to_le_bytes());
        bytes
    }

    /// Takes foreign bytes; the error says what is wrong with them.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, String> {
        if bytes[..3] != MAGIC {
            return Err(format!("a frame starts with {:02x?}, expected {MAGIC:02x?}", &bytes[..3]));
        }
        let kind = match bytes[3] {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Ready,
            4 => Kind::Goodbye,
            other => return Err(format!("a frame is of kind {other}, expected 1 to 4")),
        };
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let header = Self {
            kind,
            len: word(4),
            offset: word(8),
            part: word(12),
            number: long(16),
            stamp: long(24),
            ack: long(32),
        };
        let fits = header.offset.checked_add(header.part).is_some_and(|end| end <= header.len);
        if !fits || (header.part == 0 && header.len != 0) {
            return Err(format!(
                "a frame carries {} bytes at offset {} of a message of {} bytes",
                header.part, header.offset, header.len
            ));
        }
        if kind != Kind::Data && (header.len, header.number, header.stamp) != (0, 0, 0) {
            return Err(format!("a {kind:?} frame carries data"));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_data() -> impl Strategy<Value = Header> {
        (any::<u32>(), any::<u32>(), any::<u32>(), any::<[u64; 3]>()).prop_map(
            |(a, b, c, [number, stamp, ack])| {
                let len = a;
                let offset = if len == 0 { 0 } else { b % len };
                let part = if len == 0 { 0 } else { 1 + c % (len - offset) };
                Header { kind: Kind::Data, len, offset, part, number, stamp, ack }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in any_data()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn whatever_decodes_is_consistent(mut bytes in any::<[u8; HEADER]>(), genuine in any::<bool>()) {
            if genuine {
                bytes[..3].copy_from_slice(&MAGIC);
                bytes[3] %= 6;
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert!(u64::from(header.offset) + u64::from(header.part) <= u64::from(header.len));
                prop_assert_eq!(header.part == 0, header.len == 0);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_stranger_is_named() {
        let error = Header::decode(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n...").expect_err("not ours");
        assert!(error.contains("[47, 45, 54]"), "{error}");
    }
}
