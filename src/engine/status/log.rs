//! A log of small records with one writer, in memory that anybody may read at any time.
//!
//! The count of records is the sequence number of the lock, and bumped once per record:
//!
//! * The writer of record `n` first passes a release fence, then stores the words of entry `n % CAPACITY`, then
//!   publishes `n + 1` with release.
//! * A reader loads the count `n` and passes an acquire fence: records below `n` are whole. It reads the words of a
//!   record `i < n`, passes another acquire fence and loads the count again, as `m`.
//! * If a word that it read was of a newer record in the same entry, that one's number is `j >= i + CAPACITY`. Before
//!   the writer's fence for `j` the count was stored as `j`, and the two fences order that store before the reader's
//!   second load: `m >= j`. So `m - i < CAPACITY` proves that all words are of record `i`.
//!
//! Unlike with two bumps, a writer that is stopped or dies in the middle of a record hides nothing: readers see the
//! records before. Every word is an atomic, so a lost race is a wrong value that is discarded, not undefined behaviour.
//! On x86-64 neither fence is an instruction.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a record.
pub(super) const WORDS: usize = 4;
/// One record.
pub(super) type Record = [u64; WORDS];

/// The newest `CAPACITY - 1` records at least, which has to be a power of two above 1.
#[repr(C, align(64))]
pub(super) struct Log<const CAPACITY: usize> {
    count: AtomicU64,
    entries: [Entry; CAPACITY],
}

#[repr(C, align(32))]
struct Entry([AtomicU64; WORDS]);

impl<const CAPACITY: usize> Log<CAPACITY> {
    const IS_RING: () = assert!(CAPACITY.is_power_of_two() && CAPACITY > 1);

    /// Records since the log was cleared.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Appends a record. One writer at a time.
    #[inline]
    pub(super) fn push(&self, record: Record) {
        let number = self.count.load(Ordering::Relaxed);
        fence(Ordering::Release);
        let entry = self.entry(number);
        for (word, value) in entry.0.iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        self.count.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Forgets everything. The caller sees to it that readers notice by another word.
    pub(super) fn clear(&self) {
        self.count.store(0, Ordering::Release);
    }

    /// Up to `limit` of the newest records, oldest first, and the count that they end at. Records that are overwritten
    /// while they are read are left out; the newest may be among them only if `CAPACITY - 1` records were added
    /// meanwhile.
    pub(super) fn newest(&self, limit: usize) -> (Vec<Record>, u64) {
        let end = self.count.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let start = end.saturating_sub(limit.min(CAPACITY) as u64);
        let mut records: Vec<Record> = (start..end)
            .map(|number| std::array::from_fn(|word| self.entry(number).0[word].load(Ordering::Relaxed)))
            .collect();
        fence(Ordering::Acquire);
        let now = self.count.load(Ordering::Relaxed);
        let overwritten =
            (start..end).take_while(|number| now.wrapping_sub(*number) >= CAPACITY as u64).count();
        records.drain(..overwritten);
        (records, end)
    }

    fn entry(&self, number: u64) -> &Entry {
        const { Self::IS_RING };
        &self.entries[number as usize & (CAPACITY - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::AtomicBool,
        thread,
        time::{Duration, Instant},
    };

    fn log<const CAPACITY: usize>() -> Log<CAPACITY> {
        Log {
            count: AtomicU64::new(0),
            entries: std::array::from_fn(|_| Entry(std::array::from_fn(|_| AtomicU64::new(0)))),
        }
    }

    /// A record whose words all follow from its number.
    fn related(number: u64) -> Record {
        [number, number.wrapping_mul(0x9e37_79b9), !number, number.rotate_left(17)]
    }

    #[test]
    fn remembers_the_newest_in_order() {
        let log = log::<8>();
        assert_eq!(log.newest(5), (vec![], 0));
        (0..3).for_each(|number| log.push(related(number)));
        assert_eq!(log.newest(2), (vec![related(1), related(2)], 3));
        (3..21).for_each(|number| log.push(related(number)));
        // The entry of record 13 is the one that record 21 would be written to: it cannot be told whole from torn.
        let whole: Vec<_> = (14..21).map(related).collect();
        assert_eq!(log.newest(100), (whole, 21));
        log.clear();
        assert_eq!(log.newest(5), (vec![], 0));
    }

    #[test]
    fn a_hostile_count_is_only_a_number() {
        let log = log::<4>();
        for count in [u64::MAX, u64::MAX - 1, 1 << 63, 5] {
            log.count.store(count, Ordering::Relaxed);
            assert!(log.newest(64).0.len() < 4);
        }
    }

    fn torture<const CAPACITY: usize>() {
        let log = log::<CAPACITY>();
        let over = AtomicBool::new(false);
        let until = Instant::now() + Duration::from_millis(400);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while Instant::now() < until {
                    for _ in 0..1000 {
                        log.push(related(number));
                        number += 1;
                    }
                }
                over.store(true, Ordering::Release);
            });
            let (mut seen, mut last) = (0u64, 0);
            while !over.load(Ordering::Acquire) {
                let (records, end) = log.newest(CAPACITY);
                assert!(end >= last, "the count went back from {last} to {end}");
                last = end;
                for (back, record) in records.iter().rev().enumerate() {
                    assert_eq!(*record, related(end - 1 - back as u64), "torn");
                    seen += 1;
                }
            }
            assert!(seen > 0, "the reader never succeeded");
        });
        let (records, end) = log.newest(1);
        assert_eq!(records, [related(end - 1)]);
    }

    #[test]
    fn readers_never_see_a_torn_record() {
        torture::<2>();
        torture::<4>();
        torture::<128>();
    }
}
