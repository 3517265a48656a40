//! Memory to send from and receive into, guarded on both sides.

use crate::{Allocation, RegionId, random::Random};
use std::{any::Any, cell::UnsafeCell, sync::Arc};

const GUARD: usize = 64;
const CANARY: u8 = 0xc5;

/// A shared piece of memory. Clones name the same bytes.
#[derive(Clone)]
pub(super) struct Buffer(Arc<Memory>);

struct Memory {
    /// Where the guard before it begins.
    base: *mut u8,
    /// Bytes with both guards.
    whole: usize,
    start: usize,
    len: usize,
    region: Option<RegionId>,
    /// What the bytes live as long as.
    _owner: Arc<dyn Any + Send + Sync>,
}

/// Bytes that anybody may write.
struct Plain(Box<[UnsafeCell<u8>]>);

// SAFETY: a buffer is used by one thread at a time: the test's, or the one that drives the endpoint it is lent to.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
// SAFETY: as above; only through a buffer.
unsafe impl Sync for Plain {}

impl Buffer {
    /// `len` bytes of zeros that begin `misalignment` bytes after a multiple of 64.
    pub(super) fn new(len: usize, misalignment: usize) -> Self {
        let whole = len + misalignment + 3 * GUARD;
        let bytes: Box<[UnsafeCell<u8>]> = (0..whole).map(|_| UnsafeCell::new(CANARY)).collect();
        let bytes = Plain(bytes);
        let base = UnsafeCell::raw_get(bytes.0.as_ptr());
        let start = GUARD + (base.addr().wrapping_neg() % 64) + misalignment;
        let buffer =
            Self(Arc::new(Memory { base, whole, start, len, region: None, _owner: Arc::new(bytes) }));
        buffer.write(&vec![0; len]);
        buffer
    }
    /// `len` bytes of [`pattern`] at `at` of memory that an endpoint made; the guards around it are in there, too.
    pub(super) fn within(allocation: &Allocation, at: usize, len: usize, seed: u64) -> Self {
        assert!(at >= GUARD && at + len + GUARD <= allocation.region.len, "{len} bytes at {at} do not fit");
        let base = allocation.region.addr.wrapping_add(at - GUARD);
        let memory = Memory {
            base,
            whole: len + 2 * GUARD,
            start: GUARD,
            len,
            region: Some(allocation.id),
            _owner: allocation.owner.clone(),
        };
        // SAFETY: within the allocation, of which the tests use every byte for one thing at a time.
        unsafe { base.write_bytes(CANARY, memory.whole) };
        let buffer = Self(Arc::new(memory));
        buffer.write(&pattern(len, seed));
        buffer
    }
    /// The region that it is in.
    pub(super) fn region(&self) -> Option<RegionId> {
        self.0.region
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
        self.0.base.wrapping_add(self.0.start)
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
        let outside = (0..memory.start).chain(memory.start + memory.len..memory.whole);
        for index in outside {
            // SAFETY: as in `write`.
            let byte = unsafe { memory.base.add(index).read() };
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
