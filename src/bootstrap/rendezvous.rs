//! Where the ranks of a job meet.

use super::{
    UniqueId, Watcher,
    codec::{CodecError, MAX_ADDRESSES, Reader, Writer},
    doorway::Doorway,
    join::{Joined, Joining},
    root::Root,
    watcher::Command,
    wire::{MAX_RANKS, Seat},
};
use crate::{error::SetupError, plan::Rank};
use rondel_tcp::listen::{Ports, bind_listener};
use rondel_transport_api::handshake::Key;
use sha2::{Digest, Sha256};
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs},
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// How long the root of a job that will not be stays to say so.
const LATECOMERS: Duration = Duration::from_millis(500);

/// A place that all ranks of a job can read and write, such as a key-value server that the launcher runs.
///
/// It is trusted: whoever reads it can join the job.
pub trait Store: Send + Sync + fmt::Debug {
    /// Makes `value` readable under `name`.
    fn set(&self, name: &str, value: &[u8]) -> io::Result<()>;
    /// The value under `name`. Waits until there is one, or fails with [`io::ErrorKind::TimedOut`].
    fn get(&self, name: &str, timeout: Duration) -> io::Result<Vec<u8>>;
}

/// Where the ranks of a job meet, who this one is and what they authenticate each other with.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    rank: Rank,
    nranks: u32,
    key: Key,
    /// Strangers who know the job can guess it.
    derived: bool,
    meeting: Meeting,
}

#[derive(Clone, Debug)]
enum Meeting {
    /// Nowhere: there is one rank.
    Alone,
    /// Rank 0 listens on the first free one of these ports of this host.
    At { host: String, ports: RangeInclusive<u16> },
    /// The process that made the id listens at these addresses.
    Hosted { addresses: Vec<SocketAddr> },
    /// Rank 0 writes down where it listens.
    Store { store: Arc<dyn Store>, prefix: String },
}

impl Rendezvous {
    /// Rank 0 listens at `address` (`host:port`, `[v6]:port`), the others connect to it. They authenticate each other with
    /// a key that is derived from the address, which strangers can guess: see [`with_key`](Self::with_key).
    ///
    /// # Errors
    /// [`SetupError::Config`] if the address or the rank makes no sense.
    pub fn root(address: &str, rank: Rank, nranks: u32) -> Result<Self, SetupError> {
        let (host, port) = parse_address(address)?;
        Self::at(host, port..=port, rank, nranks, &["root", address])
    }
    /// The ranks meet at the process that made the id, and authenticate each other with its secret.
    ///
    /// # Errors
    /// [`SetupError::Config`] if the rank makes no sense.
    pub fn unique_id(id: &UniqueId, rank: Rank, nranks: u32) -> Result<Self, SetupError> {
        let meeting = Meeting::Hosted { addresses: id.addresses().to_vec() };
        Self::new(rank, nranks, id.key().clone(), false, meeting)
    }
    /// Rank 0 writes into a store where it listens, and a random key. `prefix` begins the names of what is written, and
    /// must be new for every job. Blocks until rank 0's key is there, at most for `timeout`.
    ///
    /// # Errors
    /// [`SetupError::Config`] if the rank makes no sense, [`SetupError::Bootstrap`] if the store fails.
    pub fn store(
        store: Arc<dyn Store>,
        rank: Rank,
        nranks: u32,
        prefix: &str,
        timeout: Duration,
    ) -> Result<Self, SetupError> {
        let name = format!("{prefix}/key");
        let failed = |e: io::Error| SetupError::Bootstrap(format!("the store fails at {name}: {e}"));
        let key = if rank == 0 {
            let key = random_key()?;
            store.set(&name, &key.0).map_err(failed)?;
            key
        } else {
            let bytes = store.get(&name, timeout).map_err(failed)?;
            Key(bytes.try_into().map_err(|bytes: Vec<u8>| {
                let what = format!(
                    "{} bytes instead of a key of 32: is the prefix used by something else?",
                    bytes.len()
                );
                failed(io::Error::other(what))
            })?)
        };
        Self::new(rank, nranks, key, false, Meeting::Store { store, prefix: prefix.to_owned() })
    }
    /// A job of this process alone.
    ///
    /// # Errors
    /// [`SetupError::Bootstrap`] if the kernel has no random numbers.
    pub fn local() -> Result<Self, SetupError> {
        Self::new(0, 1, random_key()?, false, Meeting::Alone)
    }
    /// The same with this secret, which all ranks must be given.
    pub fn with_key(mut self, key: Key) -> Self {
        self.key = key;
        self.derived = false;
        self
    }
    /// The same with a secret that people chose, as in `RONDEL_KEY`.
    pub fn with_secret(self, secret: &str) -> Self {
        let hash = Sha256::new().chain_update(b"rondel secret\0").chain_update(secret).finalize();
        self.with_key(Key(hash.into()))
    }
    /// Rank 0 listens on the first free one of several ports, the others look for it there. The key is derived from what
    /// is public about the job.
    pub(super) fn at(
        host: String,
        ports: RangeInclusive<u16>,
        rank: Rank,
        nranks: u32,
        public: &[&str],
    ) -> Result<Self, SetupError> {
        Self::new(rank, nranks, derived_key(public), true, Meeting::At { host, ports })
    }
    fn new(rank: Rank, nranks: u32, key: Key, derived: bool, meeting: Meeting) -> Result<Self, SetupError> {
        if nranks == 0 || nranks > MAX_RANKS {
            return Err(SetupError::Config(format!(
                "the number of ranks is {nranks}, expected 1 to {MAX_RANKS}"
            )));
        }
        if rank >= nranks {
            return Err(SetupError::Config(format!(
                "rank {rank} is out of range: {nranks} ranks are numbered from 0 to {}",
                nranks - 1
            )));
        }
        Ok(Self { rank, nranks, key, derived, meeting })
    }
    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }
    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }
    /// The job's secret: what the watcher and every endpoint are to be started with.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Serves as the root where that is this rank's part, and joins.
    pub(super) fn meet(
        &self,
        watcher: &Watcher,
        seat: Seat,
        obstacle: Option<&str>,
        deadline: Instant,
        abort: &AtomicBool,
    ) -> Result<(u64, Vec<Seat>), SetupError> {
        if let Meeting::Alone = self.meeting {
            let job = random_key()?.0;
            return Ok((u64::from_le_bytes(std::array::from_fn(|i| job[i])), vec![seat]));
        }
        if self.rank == 0 {
            if self.derived {
                tracing::info!(
                    "the job's key is derived from public values: set RONDEL_KEY where strangers can connect"
                );
            }
            self.host(watcher)?;
        }
        let joining = Joining {
            key: &self.key,
            nranks: self.nranks,
            seat,
            obstacle,
            deadline,
            abort,
            probing: self.is_probing(),
            place: self.to_string(),
        };
        let mut found = None;
        let joined = joining.run(|| self.find(&mut found)).inspect_err(|e| {
            let is_turned_away = matches!(e, SetupError::Bootstrap(_));
            if is_turned_away
                && self.rank == 0
                && matches!(self.meeting, Meeting::At { .. } | Meeting::Store { .. })
            {
                // The root ends with this rank: those who come a little later are to hear why there is no job.
                std::thread::sleep(LATECOMERS);
            }
        });
        let Joined { job, seats } = joined?;
        Ok((job, seats))
    }

    fn is_probing(&self) -> bool {
        match &self.meeting {
            Meeting::At { ports, .. } => ports.start() != ports.end(),
            Meeting::Alone | Meeting::Hosted { .. } | Meeting::Store { .. } => false,
        }
    }

    fn host(&self, watcher: &Watcher) -> Result<(), SetupError> {
        let doorway = match &self.meeting {
            Meeting::Alone | Meeting::Hosted { .. } => return Ok(()),
            Meeting::Store { store, prefix } => {
                let mut w = Writer::new();
                let addresses = watcher.acceptor().addresses();
                w.u8(addresses.len() as u8);
                for address in addresses {
                    w.address(address);
                }
                let name = format!("{prefix}/root");
                store
                    .set(&name, &w.into_bytes())
                    .map_err(|e| SetupError::Bootstrap(format!("the store fails at {name}: {e}")))?;
                None
            }
            Meeting::At { host, ports } => {
                let own = watcher.acceptor().addresses().first().map(SocketAddr::port);
                if own.is_some_and(|port| ports.contains(&port)) {
                    None
                } else {
                    let Some(listener) = open_root(host, ports)? else { return Ok(()) };
                    let doorway = Doorway::new(vec![listener], self.key.clone());
                    Some(
                        doorway
                            .map_err(|e| SetupError::Bootstrap(format!("cannot serve as the root: {e}")))?,
                    )
                }
            }
        };
        let root = Root::new(doorway, Some(self.nranks))
            .map_err(|e| SetupError::Bootstrap(format!("cannot serve as the root: {e}")))?;
        watcher.shared.command(Command::Host(Box::new(root)));
        Ok(())
    }

    /// Where the root may be. `found`: what the store said.
    fn find(&self, found: &mut Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, String> {
        match &self.meeting {
            Meeting::Alone => Ok(Vec::new()),
            Meeting::Hosted { addresses } => Ok(addresses.clone()),
            Meeting::At { host, ports } => {
                let ips = resolve(host)?;
                Ok(ports
                    .clone()
                    .flat_map(|port| ips.iter().map(move |ip| SocketAddr::new(*ip, port)))
                    .collect())
            }
            Meeting::Store { store, prefix } => {
                if found.is_none() {
                    let bytes = store
                        .get(&format!("{prefix}/root"), Duration::from_millis(50))
                        .map_err(|e| format!("rank 0 has not written its address into the store ({e})"))?;
                    *found = Some(parse_addresses(&bytes)?);
                }
                Ok(found.clone().unwrap_or_default())
            }
        }
    }
}

/// Where the job meets, for messages.
impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.meeting {
            Meeting::Alone => f.write_str("this process"),
            Meeting::At { host, ports } if ports.start() == ports.end() => {
                write!(f, "{host}:{}", ports.start())
            }
            Meeting::At { host, ports } => write!(f, "{host}, ports {} to {}", ports.start(), ports.end()),
            Meeting::Hosted { addresses } => {
                f.write_str("the unique id's address")?;
                addresses.iter().try_for_each(|address| write!(f, " {address}"))
            }
            Meeting::Store { prefix, .. } => write!(f, "the address in the store under {prefix}"),
        }
    }
}

/// The root's listener; `None` if a process of this host has the one port already: it may be the root of this job, and
/// then it says that rank 0 is taken.
fn open_root(host: &str, ports: &RangeInclusive<u16>) -> Result<Option<TcpListener>, SetupError> {
    let ips = resolve(host).map_err(SetupError::Bootstrap)?;
    let is_own = |ip: &IpAddr| TcpListener::bind(SocketAddr::new(*ip, 0)).is_ok();
    if !ips.iter().any(is_own) {
        return Err(SetupError::Config(format!(
            "rank 0 has to listen at {host}, which is {}: no address of this host ({}). Give the address of the host \
             that rank 0 runs on, or run rank 0 there",
            ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
            super::process::hostname()
        )));
    }
    // A name may mean a loopback address here and another one elsewhere.
    let named_loopback = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let listen_on = ips.first().filter(|_| named_loopback).map(|ip| SocketAddr::new(*ip, 0));
    match bind_listener(listen_on, &Ports::from(ports.clone())) {
        Ok(listener) => Ok(Some(listener)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && ports.start() == ports.end() => {
            tracing::info!("port {} is taken; asking whoever listens there", ports.start());
            Ok(None)
        }
        Err(e) => Err(SetupError::Config(format!("rank 0 cannot be the root at {host}: {e}"))),
    }
}

fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    let addresses = (host, 0).to_socket_addrs().map_err(|e| format!("the host {host} is not known: {e}"))?;
    let mut ips: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
    ips.dedup();
    Ok(ips)
}

fn parse_address(address: &str) -> Result<(String, u16), SetupError> {
    let parsed = address.rsplit_once(':').and_then(|(host, port)| {
        let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| (host.to_owned(), port))
    });
    parsed.ok_or_else(|| {
        SetupError::Config(format!(
            "the root's address is {address:?}, expected host:port, such as 10.0.0.1:29400, [fd00::1]:29400 or \
             node1:29400"
        ))
    })
}

fn parse_addresses(bytes: &[u8]) -> Result<Vec<SocketAddr>, String> {
    let mut r = Reader::new(bytes);
    let mut parse = || -> Result<_, CodecError> {
        (0..r.count("number of addresses", MAX_ADDRESSES)?).map(|_| r.address()).collect()
    };
    parse().map_err(|e| format!("the store holds something else than rank 0's address: {e}"))
}

pub(super) fn random_key() -> Result<Key, SetupError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key)
        .map_err(|e| SetupError::Bootstrap(format!("the kernel has no random numbers for a key: {e}")))?;
    Ok(Key(key))
}

/// A key from what is public about a job: it keeps jobs apart, and strangers that do not know the job.
fn derived_key(values: &[&str]) -> Key {
    let hash = values.iter().fold(Sha256::new().chain_update(b"rondel public\0"), |hash, value| {
        hash.chain_update((value.len() as u64).to_le_bytes()).chain_update(value)
    });
    Key(hash.finalize().into())
}
