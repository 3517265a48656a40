//! The binary encoding (little-endian) of everything that watchers and roots tell each other.
//!
//! A writer never fails. A reader treats its bytes as foreign: it checks every length against what is there before it
//! allocates, every number against its meaning, and every text against UTF-8.

use super::{Card, LaneOffer, Member};
use crate::{
    engine::call::Call,
    error::{Cause, Failure, SetupError},
    plan::Collective,
};
use rondel_transport_api::{Advert, DataType, Link, Offer, ReduceOp, Scalar};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

/// Longest text, in bytes. A writer shortens longer ones.
pub const MAX_TEXT: usize = 1024;
/// Longest opaque field (offers, addresses), in bytes.
pub const MAX_BLOB: usize = 16 * 1024;
/// Most adverts on one card.
pub const MAX_ADVERTS: usize = 64;
/// Most addresses of one member.
pub const MAX_ADDRESSES: usize = 64;
/// Longest encoding of one member, in bytes.
pub const MAX_MEMBER: usize = 32 * 1024;

/// Whether others would accept this member.
pub(crate) fn check_member(member: &Member) -> Result<(), SetupError> {
    let mut w = Writer::new();
    w.member(member);
    let bytes = w.into_bytes();
    let mut r = Reader::new(&bytes);
    let fits = bytes.len() <= MAX_MEMBER - 64 && r.member().as_ref() == Ok(member);
    if fits && r.finish().is_ok() {
        return Ok(());
    }
    Err(SetupError::Config(format!(
        "what rank {} says about itself ({} addresses, {} adverts, {} bytes) is more than a member may say \
         ({MAX_ADDRESSES}, {MAX_ADVERTS}, {MAX_MEMBER}): restrict its interfaces or transports",
        member.rank,
        member.addresses.len(),
        member.card.adverts.len(),
        bytes.len()
    )))
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Fewer bytes than a field needs.
    #[error("{what} needs {needed} bytes, only {given} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// What it needs.
        needed: usize,
        /// What is there.
        given: usize,
    },
    /// More bytes than the fields need.
    #[error("{0} bytes are left over at the end")]
    Trailing(usize),
    /// A length above its limit.
    #[error("{what} has length {given}, at most {limit} is allowed")]
    TooLong {
        /// The field.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A number or text without a meaning.
    #[error("{what} has no meaning here: {given}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// Its value; 0 for a text.
        given: u64,
    },
}

/// Appends fields.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// With nothing in it.
    pub fn new() -> Self {
        Self::default()
    }
    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
    pub(crate) fn u8(&mut self, v: u8) -> &mut Self {
        self.raw(&[v])
    }
    pub(crate) fn u16(&mut self, v: u16) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub(crate) fn u32(&mut self, v: u32) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub(crate) fn u64(&mut self, v: u64) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }
    pub(crate) fn duration(&mut self, v: Duration) -> &mut Self {
        self.u64(u64::try_from(v.as_nanos()).unwrap_or(u64::MAX))
    }
    pub(crate) fn blob(&mut self, v: &[u8]) -> &mut Self {
        self.u32(v.len() as u32).raw(v)
    }
    pub(crate) fn text(&mut self, v: &str) -> &mut Self {
        self.blob(&v.as_bytes()[..v.floor_char_boundary(MAX_TEXT)])
    }
    pub(crate) fn option<T>(&mut self, v: Option<T>, write: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.u8(u8::from(v.is_some()));
        if let Some(v) = v {
            write(self, v);
        }
        self
    }

    pub(crate) fn address(&mut self, address: &SocketAddr) -> &mut Self {
        match address {
            SocketAddr::V4(v4) => self.u8(4).raw(&v4.ip().octets()),
            SocketAddr::V6(v6) => self.u8(6).raw(&v6.ip().octets()).u32(v6.scope_id()),
        };
        self.u16(address.port())
    }

    pub(crate) fn member(&mut self, member: &Member) -> &mut Self {
        self.u32(member.rank).raw(&member.host).text(&member.hostname).u32(member.pid);
        self.u8(member.addresses.len() as u8);
        for address in &member.addresses {
            self.address(address);
        }
        self.u8(member.card.adverts.len() as u8);
        for advert in &member.card.adverts {
            self.text(&advert.transport).blob(&advert.domain).blob(&advert.address);
            self.duration(advert.link.latency).duration(advert.link.overhead);
            self.u64(advert.link.bytes_per_sec.to_bits());
        }
        self
    }

    pub(crate) fn lane_offer(&mut self, offer: &LaneOffer) -> &mut Self {
        self.u64(offer.comm).u16(offer.channel).u8(offer.endpoint).blob(&offer.offer.0)
    }

    pub(crate) fn call(&mut self, call: &Call) -> &mut Self {
        self.u64(call.seq).u8(call.collective as u8).u8(call.dtype as u8);
        match call.op {
            None => self.u8(0),
            Some(ReduceOp::Sum) => self.u8(1),
            Some(ReduceOp::Prod) => self.u8(2),
            Some(ReduceOp::Min) => self.u8(3),
            Some(ReduceOp::Max) => self.u8(4),
            Some(ReduceOp::Avg) => self.u8(5),
            Some(ReduceOp::PreMulSum(Scalar::Float(f))) => self.u8(6).u64(f.to_bits()),
            Some(ReduceOp::PreMulSum(Scalar::Int(i))) => self.u8(7).u64(i as u64),
        };
        self.u64(call.count).u32(call.root)
    }

    /// A failure as others are to know it: causes that only make sense on their origin travel as its sentence.
    pub(crate) fn failure(&mut self, failure: &Failure) -> &mut Self {
        self.u32(failure.origin).option(failure.comm, |w, comm| {
            w.u64(comm);
        });
        match &failure.cause {
            Cause::ProcessEnded { rank, how } => self.u8(0).u32(*rank).text(how),
            Cause::Silent { rank, silence } => self.u8(1).u32(*rank).duration(*silence),
            Cause::Aborted { rank, reason } => self.u8(2).u32(*rank).text(reason),
            Cause::Left { rank } => self.u8(3).u32(*rank),
            Cause::Device { rank, what } => self.u8(4).u32(*rank).text(what),
            Cause::Mismatch { rank, call, peer, peer_call } => {
                self.u8(5).u32(*rank).call(call).u32(*peer);
                self.option(peer_call.as_ref(), |w, call| {
                    w.call(call);
                })
            }
            Cause::Reported { rank, what } => self.u8(6).u32(*rank).text(what),
            Cause::LaneLost { .. } | Cause::Deadline { .. } | Cause::Bug(_) => {
                let culprit = failure.culprit().unwrap_or(failure.origin);
                let what = format!("rank {} reports: {}", failure.origin, failure.cause);
                self.u8(6).u32(culprit).text(&what)
            }
        }
    }
}

/// Takes fields from foreign bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Over these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    /// Succeeds if everything was taken.
    pub fn finish(self) -> Result<(), CodecError> {
        if self.rest.is_empty() { Ok(()) } else { Err(CodecError::Trailing(self.rest.len())) }
    }
    pub(crate) fn raw(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], CodecError> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(CodecError::Truncated { what, needed: len, given: self.rest.len() });
        };
        self.rest = rest;
        Ok(taken)
    }
    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodecError> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(what, N)?);
        Ok(array)
    }
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn duration(&mut self, what: &'static str) -> Result<Duration, CodecError> {
        Ok(Duration::from_nanos(self.u64(what)?))
    }
    pub(crate) fn blob(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], CodecError> {
        let given = self.u32(what)? as usize;
        if given > limit {
            return Err(CodecError::TooLong { what, given, limit });
        }
        self.raw(what, given)
    }
    pub(crate) fn text(&mut self, what: &'static str) -> Result<String, CodecError> {
        let bytes = self.blob(what, MAX_TEXT)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(CodecError::Invalid { what, given: 0 }),
        }
    }
    pub(crate) fn option<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        match self.u8(what)? {
            0 => Ok(None),
            1 => Ok(Some(read(self)?)),
            other => Err(CodecError::Invalid { what, given: u64::from(other) }),
        }
    }
    pub(crate) fn count(&mut self, what: &'static str, limit: usize) -> Result<usize, CodecError> {
        let given = usize::from(self.u8(what)?);
        if given > limit { Err(CodecError::TooLong { what, given, limit }) } else { Ok(given) }
    }

    pub(crate) fn address(&mut self) -> Result<SocketAddr, CodecError> {
        match self.u8("address family")? {
            4 => {
                let ip = Ipv4Addr::from(self.array::<4>("IPv4 address")?);
                Ok(SocketAddr::new(IpAddr::V4(ip), self.u16("port")?))
            }
            6 => {
                let ip = Ipv6Addr::from(self.array::<16>("IPv6 address")?);
                let scope = self.u32("scope id")?;
                Ok(SocketAddr::V6(SocketAddrV6::new(ip, self.u16("port")?, 0, scope)))
            }
            other => Err(CodecError::Invalid { what: "address family", given: u64::from(other) }),
        }
    }

    pub(crate) fn member(&mut self) -> Result<Member, CodecError> {
        let rank = self.u32("rank")?;
        let host = self.array("host")?;
        let hostname = self.text("hostname")?;
        let pid = self.u32("process id")?;
        let addresses = (0..self.count("number of addresses", MAX_ADDRESSES)?)
            .map(|_| self.address())
            .collect::<Result<_, _>>()?;
        let adverts = (0..self.count("number of adverts", MAX_ADVERTS)?)
            .map(|_| self.advert())
            .collect::<Result<_, _>>()?;
        Ok(Member { rank, host, hostname, pid, addresses, card: Card { adverts } })
    }

    fn advert(&mut self) -> Result<Advert, CodecError> {
        Ok(Advert {
            transport: self.text("transport")?,
            domain: self.blob("domain", MAX_BLOB)?.to_vec(),
            address: self.blob("advert address", MAX_BLOB)?.to_vec(),
            link: Link {
                latency: self.duration("latency")?,
                overhead: self.duration("overhead")?,
                bytes_per_sec: f64::from_bits(self.u64("rate")?),
            },
        })
    }

    pub(crate) fn lane_offer(&mut self) -> Result<LaneOffer, CodecError> {
        Ok(LaneOffer {
            comm: self.u64("communicator")?,
            channel: self.u16("channel")?,
            endpoint: self.u8("endpoint")?,
            offer: Offer(self.blob("offer", MAX_BLOB)?.to_vec()),
        })
    }

    pub(crate) fn call(&mut self) -> Result<Call, CodecError> {
        let seq = self.u64("call number")?;
        let collective = self.u8("collective")?;
        let dtype = self.u8("data type")?;
        let op = match self.u8("operator")? {
            0 => None,
            1 => Some(ReduceOp::Sum),
            2 => Some(ReduceOp::Prod),
            3 => Some(ReduceOp::Min),
            4 => Some(ReduceOp::Max),
            5 => Some(ReduceOp::Avg),
            6 => Some(ReduceOp::PreMulSum(Scalar::Float(f64::from_bits(self.u64("scalar")?)))),
            7 => Some(ReduceOp::PreMulSum(Scalar::Int(self.u64("scalar")? as i64))),
            other => return Err(CodecError::Invalid { what: "operator", given: u64::from(other) }),
        };
        Ok(Call {
            seq,
            collective: Collective::from_code(collective)
                .ok_or(CodecError::Invalid { what: "collective", given: u64::from(collective) })?,
            dtype: DataType::ALL
                .get(usize::from(dtype))
                .copied()
                .ok_or(CodecError::Invalid { what: "data type", given: u64::from(dtype) })?,
            op,
            count: self.u64("count")?,
            root: self.u32("root")?,
        })
    }

    pub(crate) fn failure(&mut self) -> Result<Failure, CodecError> {
        let origin = self.u32("origin")?;
        let comm = self.option("whether one communicator failed", |r| r.u64("communicator"))?;
        let cause = match self.u8("cause")? {
            0 => Cause::ProcessEnded { rank: self.u32("rank")?, how: self.text("how")? },
            1 => Cause::Silent { rank: self.u32("rank")?, silence: self.duration("silence")? },
            2 => Cause::Aborted { rank: self.u32("rank")?, reason: self.text("reason")? },
            3 => Cause::Left { rank: self.u32("rank")? },
            4 => Cause::Device { rank: self.u32("rank")?, what: self.text("what")? },
            5 => Cause::Mismatch {
                rank: self.u32("rank")?,
                call: self.call()?,
                peer: self.u32("peer")?,
                peer_call: self.option("whether the peer's call is known", Self::call)?,
            },
            6 => Cause::Reported { rank: self.u32("rank")?, what: self.text("what")? },
            other => return Err(CodecError::Invalid { what: "cause", given: u64::from(other) }),
        };
        Ok(Failure { origin, comm, cause, waiting: None, agreed: false })
    }
}
