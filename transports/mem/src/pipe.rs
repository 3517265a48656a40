//! One direction of a lane: a ring of message descriptors with one writer and one reader.

use std::{
    cell::UnsafeCell,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// Messages are numbered from 0. Number n uses slot n modulo the window.
pub(crate) struct Pipe {
    slots: Box<[Slot]>,
    /// `eager` bytes for each slot.
    buffer: Box<[UnsafeCell<u8>]>,
    eager: usize,
    /// Messages below this number are the reader's to see. Written by the sender.
    published: Counter,
    /// Messages below this number are delivered and their slots free. Written by the receiver.
    taken: Counter,
    /// Held while borrowed memory is read, and while it is taken back. Holds the copies made at a graceful close.
    loan: Mutex<Vec<Box<[u8]>>>,
}

/// A line of its own, since the two ends write different ones at the same time.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// A descriptor. Its fields are ordered by the counters, except `addr`, which a closing sender replaces under the loan.
#[derive(Default)]
struct Slot {
    addr: AtomicPtr<u8>,
    len: AtomicU32,
    stamp: AtomicU64,
    borrowed: AtomicBool,
}

// SAFETY: the only field that is not `Sync` is `buffer`. A slot's part of it is written by the one sender before the
// message is published and read by the one receiver between published and taken; the counters order the two.
unsafe impl Sync for Pipe {}
// SAFETY: `AtomicPtr`s and bytes may be sent; what the pointers lead to is policed by the loan.
unsafe impl Send for Pipe {}

/// A message as its receiver sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Letter {
    pub(crate) len: u32,
    pub(crate) stamp: u64,
    /// The bytes are in the sender's memory, or were when it ended the lane.
    pub(crate) borrowed: bool,
}

/// The bytes of a message, readable while this exists.
pub(crate) struct Bytes<'a> {
    pub(crate) addr: *const u8,
    _loan: Option<MutexGuard<'a, Vec<Box<[u8]>>>>,
}

impl Pipe {
    pub(crate) fn new(window: u32, eager: usize) -> Self {
        let window = window as usize;
        Self {
            slots: (0..window).map(|_| Slot::default()).collect(),
            buffer: (0..window * eager).map(|_| UnsafeCell::new(0)).collect(),
            eager,
            published: Counter::default(),
            taken: Counter::default(),
            loan: Mutex::default(),
        }
    }
    /// Bytes that it holds.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.slots) + self.buffer.len()
    }

    pub(crate) fn published(&self) -> u64 {
        self.published.0.load(Acquire)
    }
    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(Acquire)
    }
    /// Sender: whether message `number` finds its slot free.
    pub(crate) fn has_room(&self, number: u64) -> bool {
        number - self.taken() < self.slots.len() as u64
    }
    /// Sender: describes message `number`, which has room and is not published. Returns whether the bytes stay where
    /// they are (and are on loan) rather than being copied.
    ///
    /// # Safety
    /// `addr` is readable for `len` bytes; if they are borrowed, until the message is taken or the loan is over.
    pub(crate) unsafe fn write(&self, number: u64, addr: *const u8, len: u32, stamp: u64) -> bool {
        let index = self.index(number);
        let slot = &self.slots[index];
        let borrowed = self.eager == 0 || len as usize > self.eager;
        if !borrowed && len > 0 {
            // SAFETY: the slot is free, so the receiver does not read its part of the buffer; the caller vouches for
            // the source, which is not ours.
            unsafe { addr.copy_to_nonoverlapping(self.room(index), len as usize) };
        }
        slot.addr.store(addr.cast_mut(), Relaxed);
        slot.len.store(len, Relaxed);
        slot.stamp.store(stamp, Relaxed);
        slot.borrowed.store(borrowed, Relaxed);
        borrowed
    }
    /// Sender: hands over all messages below `number`.
    pub(crate) fn publish(&self, number: u64) {
        self.published.0.store(number, Release);
    }
    /// Sender: waits until nobody reads borrowed memory. At most one piece of a copy.
    pub(crate) fn wait_loan(&self) -> Loan<'_> {
        Loan { pipe: self, kept: self.loan.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) }
    }
    /// Sender: the loan, unless the receiver is reading right now.
    pub(crate) fn try_loan(&self) -> Option<Loan<'_>> {
        Some(Loan { pipe: self, kept: self.try_lock()? })
    }

    /// Receiver: message `number`, which is published and not taken.
    pub(crate) fn letter(&self, number: u64) -> Letter {
        let slot = &self.slots[self.index(number)];
        Letter {
            len: slot.len.load(Relaxed),
            stamp: slot.stamp.load(Relaxed),
            borrowed: slot.borrowed.load(Relaxed),
        }
    }
    /// Receiver: the bytes of message `number`; none while its sender is ending the lane. Borrowed memory may be read
    /// only if the sender has not gone without a goodbye, which the caller must look up while it holds this.
    pub(crate) fn bytes(&self, number: u64) -> Option<Bytes<'_>> {
        let index = self.index(number);
        let slot = &self.slots[index];
        if !slot.borrowed.load(Relaxed) {
            return Some(Bytes { addr: self.room(index), _loan: None });
        }
        let loan = self.try_lock()?;
        Some(Bytes { addr: slot.addr.load(Relaxed), _loan: Some(loan) })
    }
    /// Receiver: messages below `number` are delivered.
    pub(crate) fn take(&self, number: u64) {
        self.taken.0.store(number, Release);
    }

    fn index(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }
    fn room(&self, index: usize) -> *mut u8 {
        UnsafeCell::raw_get(self.buffer[index * self.eager..].as_ptr())
    }
    fn try_lock(&self) -> Option<MutexGuard<'_, Vec<Box<[u8]>>>> {
        match self.loan.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// While it exists the receiver reads no borrowed memory.
pub(crate) struct Loan<'a> {
    pipe: &'a Pipe,
    kept: MutexGuard<'a, Vec<Box<[u8]>>>,
}

impl Loan<'_> {
    /// Copies what is borrowed and not taken, so that the lenders' memory is not needed any more.
    ///
    /// # Safety
    /// The sources of all messages that are not taken are still on loan.
    pub(crate) unsafe fn keep_copies(&mut self) {
        let pipe = self.pipe;
        for number in pipe.taken()..pipe.published() {
            let slot = &pipe.slots[pipe.index(number)];
            if !slot.borrowed.load(Relaxed) {
                continue;
            }
            let (addr, len) = (slot.addr.load(Relaxed), slot.len.load(Relaxed) as usize);
            let mut copy: Box<[u8]> = vec![0; len].into();
            if len > 0 {
                // SAFETY: the caller says that the source is still lent; the copy is new.
                unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(addr, len) };
            }
            slot.addr.store(copy.as_mut_ptr(), Relaxed);
            self.kept.push(copy);
        }
    }
}
