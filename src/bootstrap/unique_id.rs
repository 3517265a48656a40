//! A job's meeting place and secret in 128 bytes, to be passed to the ranks by whatever the user has.

use super::{
    codec::{CodecError, Reader, Writer},
    descriptors::{explained, provide_for_root},
    doorway::Doorway,
    listener,
    rendezvous::random_key,
    root::Root,
};
use crate::error::SetupError;
use rondel_transport_api::handshake::Key;
use std::{fmt, net::SocketAddr, ops::RangeInclusive, time::Instant};

const MAGIC: [u8; 4] = *b"RDL1";

/// Made by one process, which then serves as the job's root, and given to every rank.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    key: Key,
    addresses: Vec<SocketAddr>,
}

impl UniqueId {
    /// Bytes of an id.
    pub const SIZE: usize = 128;

    /// Opens a listener, starts a thread that serves it until the job is complete, and says how to get there.
    ///
    /// `ports`: port or range to listen on; `None`: any. `socket_ifname` (NCCL's syntax) and `socket_family` (4 or 6)
    /// restrict the addresses.
    ///
    /// # Errors
    /// [`SetupError::Config`] if no port or interface fits, [`SetupError::Bootstrap`] if the system refuses.
    pub fn generate(
        ports: Option<RangeInclusive<u16>>,
        socket_ifname: Option<&str>,
        socket_family: Option<u8>,
    ) -> Result<Self, SetupError> {
        let refused =
            |e: std::io::Error| SetupError::Bootstrap(format!("cannot serve as the root: {}", explained(&e)));
        let key = random_key()?;
        provide_for_root();
        let (listener, mut addresses) = listener::open(ports, socket_ifname, socket_family)?;
        let doorway = Doorway::new(vec![listener], key.clone()).map_err(refused)?;
        let mut root = Root::new(Some(doorway), None).map_err(refused)?;
        let serve = move || {
            while !root.is_done() {
                if let Err(e) = root.wait() {
                    tracing::error!("the root of a unique id has ended: {e}");
                    return;
                }
                root.turn(Instant::now());
            }
        };
        std::thread::Builder::new().name("rondel-root".into()).spawn(serve).map_err(refused)?;
        while encode(&key, &addresses).len() > Self::SIZE {
            addresses.pop();
        }
        Ok(Self { key, addresses })
    }
    /// For passing it on.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let encoded = encode(&self.key, &self.addresses);
        bytes[..encoded.len()].copy_from_slice(&encoded);
        bytes
    }
    /// From what [`to_bytes`](Self::to_bytes) gave.
    ///
    /// # Errors
    /// [`SetupError::Config`] if they are no such bytes.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<Self, SetupError> {
        let damaged = |why: &str| {
            SetupError::Config(format!(
                "these 128 bytes are no unique id ({why}): pass them on as they were made"
            ))
        };
        let mut r = Reader::new(bytes);
        if r.array("magic") != Ok(MAGIC) {
            return Err(damaged("they begin with something else"));
        }
        let mut parse = || -> Result<Self, CodecError> {
            let key = Key(r.array("secret")?);
            let n = r.count("number of addresses", 12)?;
            Ok(Self { key, addresses: (0..n).map(|_| r.address()).collect::<Result<_, _>>()? })
        };
        let id = parse().map_err(|e| damaged(&e.to_string()))?;
        if id.to_bytes() != *bytes { Err(damaged("something follows the addresses")) } else { Ok(id) }
    }
    pub(super) fn key(&self) -> &Key {
        &self.key
    }
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

fn encode(key: &Key, addresses: &[SocketAddr]) -> Vec<u8> {
    let mut w = Writer::new();
    w.raw(&MAGIC).raw(&key.0).u8(addresses.len() as u8);
    for address in addresses {
        w.address(address);
    }
    w.into_bytes()
}

/// The secret stays out of logs.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}
