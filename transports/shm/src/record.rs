//! What a ring consists of: records, each on lines of its own.
//!
//! | bytes of the first line | field | meaning |
//! |---|---|---|
//! | 0..8 | flag | [`mark`] of the record's place; stored last |
//! | 8..16 | stamp | the sender's stamp of the message |
//! | 16..20 | len | bytes of the whole message |
//! | 20..24 | offset | where in the message this piece begins |
//! | 24..64 | payload | the piece, if it is no longer than [`INLINE`] |
//!
//! A longer piece lies on the lines behind the first one, so that it is aligned for the kernels. Its length is not in the
//! record: both ends compute it from the message's (`piece_at`).
//!
//! A message may lie in memory of the sender's that the receiver maps. Then one record stands for all of it: its offset is
//! [`REFERENCE`], bytes 24..32 are the number of the region on this lane, and 32..40 where in it the message begins.

/// A cache line.
pub const LINE: u64 = 64;
/// Where the payload of a short piece begins in the line.
pub(crate) const HEADER: usize = 24;
/// The longest piece that shares the line with its flag.
pub const INLINE: u32 = LINE as u32 - HEADER as u32;
/// An offset that no piece has, since it is below the length of a message.
pub const REFERENCE: u32 = u32::MAX;
/// What is read of a message in a peer's region at a time: enough for the CPU to look ahead, and not so much that others
/// wait for their turn.
pub(crate) const PART: u32 = 256 << 10;
/// The largest record.
pub(crate) const LONGEST_RECORD: u64 = 64 << 10;
/// The smallest ring that an offer may name.
pub(crate) const SMALLEST_RING: u64 = 256 << 10;

/// The flag of a record at a place of the ring. Never 0, and never the same twice, so that what an earlier record left
/// behind is not taken for it.
#[inline]
pub fn mark(place: u64) -> u64 {
    place / LINE + 1
}

/// A rest that is not worth a record of its own.
const REST: u32 = 1 << 10;

/// Bytes of the piece that begins at `offset` of a message.
///
/// Short messages are one piece. Longer ones are cut so that copying in at one end and reducing at the other overlap and
/// both work in their second-level cache.
#[inline]
pub(crate) fn piece_at(offset: u32, len: u32) -> u32 {
    let most = if len <= SHORT {
        (16 << 10) - LINE as u32
    } else if len <= MIDDLE {
        (32 << 10) - LINE as u32
    } else {
        60 << 10
    };
    let left = len - offset;
    if left <= most + REST { left } else { most }
}

/// The longest messages of two classes of lengths.
const SHORT: u32 = 256 << 10;
const MIDDLE: u32 = 1 << 20;

/// Bytes of the ring that a record with such a piece takes.
#[inline]
pub fn record_bytes(piece: u32) -> u64 {
    if piece <= INLINE { LINE } else { LINE + u64::from(piece).next_multiple_of(LINE) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_make_up_the_message_and_cut_no_element(len: u32) {
            let len = len % (64 << 20);
            let mut offset = 0;
            while offset < len {
                let piece = piece_at(offset, len);
                prop_assert!(piece > 0);
                prop_assert!(offset + piece == len || u64::from(piece).is_multiple_of(LINE));
                prop_assert!(record_bytes(piece) <= LONGEST_RECORD);
                offset += piece;
            }
            prop_assert_eq!(offset, len);
        }
    }

    #[test]
    fn what_fits_the_line_takes_one() {
        assert_eq!(record_bytes(0), 64);
        assert_eq!(record_bytes(40), 64);
        assert_eq!(record_bytes(41), 128);
        assert_eq!(record_bytes(65), 192);
    }
}
