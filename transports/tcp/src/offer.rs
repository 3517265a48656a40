//! What the two ends tell each other through the bootstrap: adverts (who reaches whom) and offers (how to connect one
//! lane). Both are foreign bytes when they arrive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const VERSION: u8 = 1;
/// More addresses than a host has usable interfaces; bounds what a foreign offer makes us try.
const MAX_ADDRESSES: usize = 32;

/// One end's part of connecting a lane.
///
/// Of the two ends of a lane, the one with the **larger cookie connects** to the addresses of the other, which waits for
/// a connection that carries its own cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneOffer {
    /// Unguessable name of this end of the lane.
    pub(crate) cookie: u64,
    /// Whose offer it is.
    pub(crate) rank: u32,
    /// How many sockets this end would use; the smaller number of both ends counts.
    pub(crate) sockets: u8,
    /// Where this end listens, best first. Scope ids are left out: they mean something on one host only.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl LaneOffer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.cookie.to_le_bytes());
        bytes.extend(self.rank.to_le_bytes());
        bytes.push(self.sockets);
        encode_addresses(&self.addresses, &mut bytes);
        bytes
    }

    /// The error says what is wrong with the bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest { bytes, whole: bytes.len() };
        rest.version("offer")?;
        let offer = Self {
            cookie: u64::from_le_bytes(rest.take()?),
            rank: u32::from_le_bytes(rest.take()?),
            sockets: rest.take::<1>()?[0],
            addresses: rest.addresses()?,
        };
        if offer.sockets == 0 {
            return Err("the offer is for a lane of 0 sockets".into());
        }
        rest.end()?;
        Ok(offer)
    }
}

/// What two endpoints must have in common in order to reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain {
    /// There is an IPv4 address.
    pub(crate) ipv4: bool,
    /// There is an IPv6 address.
    pub(crate) ipv6: bool,
    /// All addresses are loopback addresses.
    pub(crate) loopback_only: bool,
    /// Equal for endpoints in one network namespace of one running system.
    pub(crate) host: u64,
}

impl Domain {
    pub(crate) fn of(addresses: &[SocketAddr], host: u64) -> Self {
        Self {
            ipv4: addresses.iter().any(SocketAddr::is_ipv4),
            ipv6: addresses.iter().any(SocketAddr::is_ipv6),
            loopback_only: addresses.iter().all(|a| a.ip().is_loopback()),
            host,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.ipv4) | u8::from(self.ipv6) << 1 | u8::from(self.loopback_only) << 2;
        let mut bytes = vec![VERSION, flags];
        bytes.extend(self.host.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Rest { bytes, whole: bytes.len() };
        rest.version("domain")?;
        let [flags] = rest.take()?;
        if flags > 7 {
            return Err(format!("the domain has unknown flags {flags:#04x}"));
        }
        let host = u64::from_le_bytes(rest.take()?);
        rest.end()?;
        Ok(Self { ipv4: flags & 1 != 0, ipv6: flags & 2 != 0, loopback_only: flags & 4 != 0, host })
    }

    /// Symmetric.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        let family = (self.ipv4 && other.ipv4) || (self.ipv6 && other.ipv6);
        family && (self.host == other.host || !(self.loopback_only || other.loopback_only))
    }
}

/// A count, then for each address its family (4 or 6), its port and its bytes.
pub(crate) fn encode_addresses(addresses: &[SocketAddr], bytes: &mut Vec<u8>) {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    bytes.push(addresses.len() as u8);
    for address in addresses {
        bytes.push(if address.is_ipv4() { 4 } else { 6 });
        bytes.extend(address.port().to_le_bytes());
        match address.ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
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

    fn addresses(&mut self) -> Result<Vec<SocketAddr>, String> {
        let [count] = self.take()?;
        if usize::from(count) > MAX_ADDRESSES {
            return Err(format!("lists {count} addresses, at most {MAX_ADDRESSES} are allowed"));
        }
        (0..count)
            .map(|_| {
                let [family] = self.take()?;
                let port = u16::from_le_bytes(self.take()?);
                let ip = match family {
                    4 => IpAddr::V4(Ipv4Addr::from(self.take::<4>()?)),
                    6 => IpAddr::V6(Ipv6Addr::from(self.take::<16>()?)),
                    other => return Err(format!("an address is of family {other}, expected 4 or 6")),
                };
                if port == 0 || ip.is_unspecified() || ip.is_multicast() {
                    return Err(format!("nobody listens at {}", SocketAddr::new(ip, port)));
                }
                Ok(SocketAddr::new(ip, port))
            })
            .collect()
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

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        (any::<bool>(), any::<[u8; 16]>(), 1u16..).prop_filter_map("usable", |(v4, mut bytes, port)| {
            bytes[0] = bytes[0] % 200 + 1;
            let ip =
                if v4 { IpAddr::from(<[u8; 4]>::try_from(&bytes[..4]).ok()?) } else { IpAddr::from(bytes) };
            (!ip.is_multicast()).then(|| SocketAddr::new(ip, port))
        })
    }

    proptest! {
        #[test]
        fn offers_survive_the_crossing(
            cookie: u64, rank: u32, sockets in 1u8..,
            addresses in proptest::collection::vec(any_address(), 0..MAX_ADDRESSES),
        ) {
            let offer = LaneOffer { cookie, rank, sockets, addresses };
            let bytes = offer.encode();
            prop_assert_eq!(LaneOffer::decode(&bytes), Ok(offer));
            for end in 0..bytes.len() {
                prop_assert!(LaneOffer::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn foreign_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), genuine: bool) {
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

        #[test]
        fn reaching_is_symmetric(a in 0u8..8, b in 0u8..8, one_host: bool) {
            let domain = |flags: u8, host| Domain::decode(&Domain {
                ipv4: flags & 1 != 0, ipv6: flags & 2 != 0, loopback_only: flags & 4 != 0, host,
            }.encode()).expect("our own bytes");
            let (a, b) = (domain(a, 1), domain(b, if one_host { 1 } else { 2 }));
            prop_assert_eq!(a.reaches(&b), b.reaches(&a));
        }
    }

    #[test]
    fn loopback_reaches_only_its_own_host() {
        let lo = |host| Domain::of(&["127.0.0.1:1".parse().expect("literal")], host);
        let lan = |host| Domain::of(&["192.0.2.1:1".parse().expect("literal")], host);
        assert!(lo(1).reaches(&lo(1)) && lo(1).reaches(&lan(1)) && lan(1).reaches(&lan(2)));
        assert!(!lo(1).reaches(&lo(2)) && !lo(1).reaches(&lan(2)));
    }
}
