//! What the two ends tell each other through the bootstrap: adverts (who reaches whom) and offers (how to connect one
//! lane). Both are foreign bytes when they arrive.

use crate::record::SMALLEST_RING;

const VERSION: u8 = 1;
/// The largest ring that an offer may name.
const LARGEST_RING: u64 = 16 << 20;
/// Bytes of a listener's name.
pub(crate) const NAME_BYTES: usize = 16;

/// One end's part of connecting a lane.
///
/// Of the two ends, the one with the **larger cookie connects** to the listener of the other, which waits for a connection
/// that carries its own cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneOffer {
    /// Unguessable name of this end of the lane.
    pub(crate) cookie: u64,
    /// Whose offer it is.
    pub(crate) rank: u32,
    /// Bytes of the ring that this end fills.
    pub(crate) ring: u64,
    /// The listener's name.
    pub(crate) name: [u8; NAME_BYTES],
}

impl LaneOffer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.cookie.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.ring.to_le_bytes());
        bytes.extend(self.name);
        bytes
    }

    /// The error says what is wrong with the bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest { bytes, whole: bytes.len() };
        rest.version("offer")?;
        let offer = Self {
            cookie: u64::from_le_bytes(rest.take()?),
            rank: u32::from_le_bytes(rest.take()?),
            ring: u64::from_le_bytes(rest.take()?),
            name: rest.take()?,
        };
        rest.end()?;
        if !offer.ring.is_power_of_two() || !(SMALLEST_RING..=LARGEST_RING).contains(&offer.ring) {
            return Err(format!(
                "the offer names a ring of {} bytes, expected a power of two from {SMALLEST_RING} to {LARGEST_RING}",
                offer.ring
            ));
        }
        Ok(offer)
    }
}

/// What two endpoints must have in common: the running system, and the network namespace, in which the names of their
/// listeners live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// The kernel's boot id.
    pub(crate) boot: [u8; 16],
    /// Device and number of the network namespace.
    pub(crate) network: [u64; 2],
}

impl Domain {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.boot);
        self.network.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest { bytes, whole: bytes.len() };
        rest.version("domain")?;
        let boot = rest.take()?;
        let network = [u64::from_le_bytes(rest.take()?), u64::from_le_bytes(rest.take()?)];
        rest.end()?;
        Ok(Self { boot, network })
    }
}

struct Rest<'a> {
    bytes: &'a [u8],
    whole: usize,
}

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or_else(|| format!("ends after {} bytes, in the middle of a field", self.whole))?;
        self.bytes = tail;
        Ok(*head)
    }

    fn version(&mut self, what: &str) -> Result<(), String> {
        match self.take()? {
            [VERSION] => Ok(()),
            [other] => Err(format!(
                "the {what} has version {other}, expected {VERSION}: use one rondel version for all ranks"
            )),
        }
    }

    fn end(&self) -> Result<(), String> {
        match self.bytes.len() {
            0 => Ok(()),
            extra => Err(format!("{extra} of {} bytes are left over", self.whole)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offers_survive_the_crossing(cookie: u64, rank: u32, ring in 18u32..=24, name: [u8; NAME_BYTES]) {
            let offer = LaneOffer { cookie, rank, ring: 1 << ring, name };
            let bytes = offer.encode();
            prop_assert_eq!(LaneOffer::decode(&bytes), Ok(offer));
            for end in 0..bytes.len() {
                prop_assert!(LaneOffer::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn foreign_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), genuine: bool) {
            if let (true, Some(first)) = (genuine, bytes.first_mut()) {
                *first = VERSION;
            }
            if let Ok(offer) = LaneOffer::decode(&bytes) {
                prop_assert_eq!(offer.encode(), bytes.clone());
            }
            if let Ok(domain) = Domain::decode(&bytes) {
                prop_assert_eq!(domain.encode(), bytes);
            }
        }
    }

    #[test]
    fn rings_that_cannot_be_are_refused() {
        for ring in [0, 1, SMALLEST_RING / 2, SMALLEST_RING + 64, LARGEST_RING * 2, u64::MAX] {
            let bytes = LaneOffer { cookie: 1, rank: 2, ring, name: [0; NAME_BYTES] }.encode();
            let error = LaneOffer::decode(&bytes).expect_err("no such ring");
            assert!(error.contains(&format!("a ring of {ring} bytes")), "{error}");
        }
    }
}
