//! Memory to send from and receive into, guarded on both sides.

use crate::random::Random;
use std::{cell::UnsafeCell, sync::Arc};

const GUARD: usize = 64;
const CANARY: u8 = 0xc5;

/// A shared piece of memory. Clones name the same bytes.
#[derive(Clone)]
pub(super) struct Buffer(Arc<Memory>);

struct Memory {
    bytes: Box<[UnsafeCell<u8>]>,
    start: usize,
    len: usize,
}

// SAFETY: a buffer is used by one thread at a time: the test's, or the one that drives the endpoint it is lent to.
unsafe impl Sync for Memory {}

impl Buffer {
    /// `len` bytes of zeros that begin `misalignment` bytes after a multiple of 64.
    pub(super) fn new(len: usize, misalignment: usize) -> Self {
        let bytes: Box<[UnsafeCell<u8>]> =
            (0..len + misalignment + 3 * GUARD).map(|_| UnsafeCell::new(CANARY)).collect();
        let start = GUARD + (bytes.as_ptr().addr().wrapping_neg() % 64) + misalignment;
        let buffer = Self(Arc::new(Memory { bytes, start, len }));
        buffer.write(&vec![0; len]);
        buffer
    }
    /// With the bytes of [`pattern`].
    pub(super) fn filled(len: usize, misalignment: usize, seed: u64) -> Self {
        let buffer = Self::new(len, misalignment);
        buffer.write(&pattern(len, seed));
        buffer
    }
    pub(super) fn len(&self) -> usize {
        self.0.len
    }
    pub(super) fn addr(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.0.bytes.as_ptr()).wrapping_add(self.0.start)
    }
    pub(super) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.len);
        // SAFETY: the range lies within the memory; nobody reads it now (see `Sync`).
        unsafe { self.addr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
    pub(super) fn read(&self) -> Vec<u8> {
        let mut copy = vec![0; self.0.len];
        // SAFETY: as in `write`.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(self.addr(), copy.len()) };
        copy
    }
    /// Nothing before or after it was written.
    pub(super) fn check_guards(&self, what: &str) {
        let memory = &*self.0;
        let outside = (0..memory.start).chain(memory.start + memory.len..memory.bytes.len());
        for index in outside {
            // SAFETY: as in `write`.
            let byte = unsafe { *memory.bytes[index].get() };
            let distance = index as isize - memory.start as isize;
            assert_eq!(
                byte, CANARY,
                "{what}: the byte at {distance} of a buffer of {} was written",
                memory.len
            );
        }
    }
    /// It holds `expected` and its guards are whole.
    pub(super) fn expect(&self, expected: &[u8], what: &str) {
        let found = self.read();
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            let end = (at + 16).min(found.len());
            panic!(
                "{what}: byte {at} of {} differs: found {:02x?}, expected {:02x?}",
                found.len(),
                &found[at..end],
                &expected[at..end]
            );
        }
        self.check_guards(what);
    }
    /// It holds the bytes of [`pattern`].
    pub(super) fn expect_pattern(&self, seed: u64, what: &str) {
        self.expect(&pattern(self.len(), seed), what);
    }
}

/// `len` bytes that follow from `seed`.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
