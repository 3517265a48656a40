//! Where the two sides of a lane find each other.

use crate::{MemConfig, bell::Cord, pipe::Pipe};
use rondel_transport_api::{Advert, Offer, TransportError};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{
            AtomicU8, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// The transport's name.
pub(crate) const NAME: &str = "mem";

/// The registry of sides that wait for their partners.
pub(crate) struct Hub {
    /// Random, so that hubs of other processes and hosts are not taken for this one.
    pub(crate) id: [u8; 16],
    pub(crate) config: MemConfig,
    waiting: Mutex<HashMap<u64, Arc<Side>>>,
    numbers: AtomicU64,
}

/// What one end of a lane shows to the other.
pub(crate) struct Side {
    /// Its number at the hub, from 1.
    pub(crate) number: u64,
    /// The rank of its endpoint, for messages.
    pub(crate) rank: u32,
    /// What its owner receives through.
    pub(crate) inbound: Pipe,
    /// Tells its owner that there is news.
    pub(crate) cord: Cord,
    /// The number of the side that its owner established with; 0 before.
    partner: AtomicU64,
    /// The side whose owner established with this one, perhaps before this one's owner did.
    suitor: OnceLock<Weak<Side>>,
    end: AtomicU8,
    why: OnceLock<String>,
}

/// Whether a side's owner still serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// It does.
    Open,
    /// It left; what it sent needs it no more.
    Goodbye,
    /// It is gone; what it lent may not be read any more.
    Lost,
}

impl Side {
    pub(crate) fn new(number: u64, rank: u32, config: &MemConfig, cord: Cord) -> Self {
        Self {
            number,
            rank,
            inbound: Pipe::new(config.window, config.eager),
            cord,
            partner: AtomicU64::new(0),
            suitor: OnceLock::new(),
            end: AtomicU8::new(End::Open as u8),
            why: OnceLock::new(),
        }
    }
    pub(crate) fn partner(&self) -> u64 {
        self.partner.load(Acquire)
    }
    pub(crate) fn end(&self) -> End {
        match self.end.load(Acquire) {
            0 => End::Open,
            1 => End::Goodbye,
            _ => End::Lost,
        }
    }
    /// All that the owner did before is visible to a peer that sees the end.
    pub(crate) fn say_goodbye(&self) {
        self.end.store(End::Goodbye as u8, Release);
    }
    /// As [`say_goodbye`](Self::say_goodbye). The owner holds the loan of the pipe that it sends through.
    pub(crate) fn give_up(&self, why: String) {
        self.why.get_or_init(|| why);
        self.end.store(End::Lost as u8, Release);
    }
    /// The owner's name, for messages.
    pub(crate) fn name(&self) -> String {
        format!("rank {} (in this process)", self.rank)
    }
    /// What its end means to the peer's posts.
    pub(crate) fn obituary(&self) -> TransportError {
        match self.end() {
            End::Lost => TransportError::Lost {
                peer: self.name(),
                reason: self.why.get().cloned().unwrap_or_default(),
            },
            End::Open | End::Goodbye => TransportError::Left { peer: self.name() },
        }
    }
}

const OFFER_MAGIC: [u8; 4] = *b"mem1";
const OFFER: usize = 4 + 16 + 8;

impl Hub {
    pub(crate) fn new(config: MemConfig) -> Self {
        let mut id = [0; 16];
        getrandom::fill(&mut id).expect("the kernel must give 16 random bytes for a hub's identity");
        Self { id, config, waiting: Mutex::default(), numbers: AtomicU64::new(1) }
    }
    pub(crate) fn is_mine(&self, advert: &Advert) -> bool {
        advert.transport == NAME && advert.domain == self.id
    }
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }
    /// Puts a side up for its partner.
    pub(crate) fn offer(&self, side: Arc<Side>) -> Offer {
        let bytes = [&OFFER_MAGIC[..], &self.id, &side.number.to_le_bytes()].concat();
        self.waiting().insert(side.number, side);
        Offer(bytes)
    }
    /// Takes a side down that has ended, and tells whoever waits for it in vain.
    pub(crate) fn withdraw(&self, side: &Side) {
        // Suitors come under this lock: one that came before is seen below, none comes after.
        self.waiting().remove(&side.number);
        if let Some(suitor) = side.suitor.get().and_then(Weak::upgrade) {
            suitor.cord.pull();
        }
    }
    /// The side behind an offer, which from now on is `mine`'s partner.
    pub(crate) fn meet(&self, mine: &Arc<Side>, offer: &Offer) -> Result<Arc<Side>, TransportError> {
        let number = self.parse(offer).map_err(|reason| TransportError::Protocol {
            peer: "the maker of a mem offer".to_owned(),
            reason,
        })?;
        let mut waiting = self.waiting();
        let connect = |reason: &str| TransportError::Connect {
            address: format!("lane {number} of this process"),
            reason: reason.to_owned(),
        };
        let side = waiting.get(&number).ok_or_else(|| connect("its endpoint is gone, or it is taken"))?;
        if number == mine.number {
            return Err(connect("this is our own offer, expected the peer's"));
        }
        if ![0, mine.number].contains(&side.partner()) {
            return Err(connect("it was established with another offer than ours"));
        }
        mine.partner.store(number, Release);
        side.suitor.get_or_init(|| Arc::downgrade(mine));
        let side = side.clone();
        waiting.remove(&number);
        Ok(side)
    }

    fn parse(&self, offer: &Offer) -> Result<u64, String> {
        let bytes: &[u8; OFFER] = offer
            .0
            .as_slice()
            .try_into()
            .map_err(|_| format!("an offer of {} bytes, expected {OFFER}", offer.0.len()))?;
        let [m0, m1, m2, m3, rest @ ..] = bytes;
        if [*m0, *m1, *m2, *m3] != OFFER_MAGIC {
            return Err("an offer of another transport or version".to_owned());
        }
        let [id @ .., n0, n1, n2, n3, n4, n5, n6, n7] = rest;
        if *id != self.id {
            return Err("an offer of another hub".to_owned());
        }
        Ok(u64::from_le_bytes([*n0, *n1, *n2, *n3, *n4, *n5, *n6, *n7]))
    }
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arc<Side>>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
