//! The protocol between the two ends of a ring, and between a sleeper and whoever wakes it. The README has the proofs.
//!
//! It is written against [`Words`], so that a model checker can take the place of shared memory.

use crate::record::{LINE, mark};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// A word that both ends of a lane see. Each is written by the owner of its segment alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// First word of the line at a place of the ring.
    Flag(u64),
    /// How far the owner has read the peer's ring.
    Consumed,
    /// Not 0 while the owner may sleep.
    Sleeping,
    /// Not 0 once the owner has ended the lane without a goodbye: 1 more than the place from which on its ring is void.
    Void,
}

/// The words of a segment.
pub trait Words {
    /// Reads a word.
    fn load(&self, word: Word, order: Ordering) -> u64;
}

/// The words of one's own segment.
pub trait OwnWords: Words {
    /// Writes a word.
    fn store(&self, word: Word, value: u64, order: Ordering);
}

/// The peer wrote something that no peer of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense {
    /// What the peer says it has read.
    pub consumed: u64,
    /// What it had said before.
    pub before: u64,
    /// What was written.
    pub written: u64,
}

/// The end that fills a ring. Places count all bytes ever written.
#[derive(Debug)]
pub struct Writer {
    size: u64,
    place: u64,
    /// The peer has read so far, as of the last look.
    freed: u64,
}

impl Writer {
    /// For a fresh ring of `size` bytes, a power of two.
    pub fn new(size: u64) -> Self {
        Self { size, place: 0, freed: 0 }
    }
    /// Where the next record goes.
    #[inline]
    pub fn place(&self) -> u64 {
        self.place
    }
    /// Whether a record of `bytes` has room. The line behind it must be free as well: see [`publish`](Self::publish).
    ///
    /// # Errors
    /// The peer's count cannot be.
    #[inline]
    pub fn has_room(&mut self, bytes: u64, peer: &impl Words) -> Result<bool, Nonsense> {
        if self.fits(bytes) {
            return Ok(true);
        }
        self.look(peer)?;
        Ok(self.fits(bytes))
    }
    /// How far the peer has read.
    ///
    /// # Errors
    /// Its count cannot be.
    #[inline]
    pub fn look(&mut self, peer: &impl Words) -> Result<u64, Nonsense> {
        let consumed = peer.load(Word::Consumed, Acquire);
        if !(self.freed..=self.place).contains(&consumed) || !consumed.is_multiple_of(LINE) {
            return Err(Nonsense { consumed, before: self.freed, written: self.place });
        }
        self.freed = consumed;
        Ok(consumed)
    }
    #[inline]
    fn fits(&self, bytes: u64) -> bool {
        bytes + LINE <= self.size - (self.place - self.freed)
    }
    /// Hands the record at [`place`](Self::place) over; everything of it but the flag is written.
    #[inline]
    pub fn publish(&mut self, bytes: u64, own: &impl OwnWords) {
        let next = self.place + bytes;
        // The reader will look there. An old payload that looks like the flag must be gone by then; a load tells, and
        // unlike a store it does not wait for the line.
        if own.load(Word::Flag(next), Relaxed) == mark(next) {
            own.store(Word::Flag(next), 0, Relaxed);
        }
        own.store(Word::Flag(self.place), mark(self.place), Release);
        self.place = next;
    }
}

/// Records from this size on are acknowledged one by one.
const LONG: u64 = 4 << 10;

/// The end that empties a ring.
#[derive(Debug)]
pub struct Reader {
    size: u64,
    place: u64,
    told: u64,
}

impl Reader {
    /// For a fresh ring of `size` bytes, a power of two.
    pub fn new(size: u64) -> Self {
        Self { size, place: 0, told: 0 }
    }
    /// Where the next record is.
    #[inline]
    pub fn place(&self) -> u64 {
        self.place
    }
    /// Whether it is there.
    #[inline]
    pub fn is_ready(&self, peer: &impl Words) -> bool {
        peer.load(Word::Flag(self.place), Acquire) == mark(self.place)
    }
    /// The record at [`place`](Self::place), of `bytes`, is not needed any more. Returns whether the writer was told.
    ///
    /// Short records are acknowledged together: up to a quarter of the ring is kept back, and what is left has room for
    /// every record.
    #[inline]
    pub fn release(&mut self, bytes: u64, own: &impl OwnWords) -> bool {
        let tell = bytes >= LONG || self.place + bytes - self.told >= self.size / 4;
        if tell {
            self.acknowledge(bytes, own);
        } else {
            self.place += bytes;
        }
        tell
    }
    /// The same for a record that the writer waits for: it is told at once.
    #[inline]
    pub fn acknowledge(&mut self, bytes: u64, own: &impl OwnWords) {
        self.place += bytes;
        self.told = self.place;
        own.store(Word::Consumed, self.place, Release);
    }
}

/// Before sleeping. A sequentially consistent fence follows, and then a last look at everything that is waited for.
#[inline]
pub fn lie_down(own: &impl OwnWords) {
    own.store(Word::Sleeping, 1, Relaxed);
}

/// After sleeping.
#[inline]
pub fn rise(own: &impl OwnWords) {
    own.store(Word::Sleeping, 0, Relaxed);
}

/// Whether the peer must be woken for what was written. A sequentially consistent fence stands between the writing and
/// this look.
#[inline]
pub fn sleeps(peer: &impl Words) -> bool {
    peer.load(Word::Sleeping, Relaxed) != 0
}
