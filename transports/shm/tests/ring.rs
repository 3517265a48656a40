//! A ring against what it ought to be, a queue.

use proptest::prelude::*;
use rondel_shm::{
    record::{LINE, mark},
    ring::{Nonsense, OwnWords, Reader, Word, Words, Writer},
};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

const LINES: u64 = 64;
const SIZE: u64 = LINES * LINE;

/// One segment serves both directions' words: the writer's ring and the reader's count.
struct Segment {
    words: Vec<AtomicU64>,
    consumed: AtomicU64,
    sleeping: AtomicU64,
}

impl Segment {
    fn new() -> Self {
        let words = (0..SIZE / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words, consumed: AtomicU64::new(0), sleeping: AtomicU64::new(0) }
    }
    fn at(&self, place: u64) -> &AtomicU64 {
        &self.words[(place % SIZE / 8) as usize]
    }
    fn word(&self, word: Word) -> &AtomicU64 {
        match word {
            Word::Flag(place) => self.at(place),
            Word::Consumed => &self.consumed,
            Word::Sleeping => &self.sleeping,
            Word::Void => unreachable!("the rings do not look at it"),
        }
    }
}
impl Words for Segment {
    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.word(word).load(order)
    }
}
impl OwnWords for Segment {
    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }
}

/// What stands in a word of a record: often the flag of some record to come.
fn content(place: u64, number: u64) -> u64 {
    if number.is_multiple_of(3) { number << 32 | place } else { mark(place + SIZE) }
}

proptest! {
    #[test]
    fn a_ring_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 1..=LINES / 4), 1..2000)) {
        let segment = Segment::new();
        let (mut writer, mut reader) = (Writer::new(SIZE), Reader::new(SIZE));
        let mut queue = VecDeque::new();
        let mut written = 0;
        for (writes, lines) in steps {
            if writes {
                let unread: u64 = queue.iter().map(|&(_, _, lines)| lines).sum();
                let room = writer.has_room(lines * LINE, &segment).expect("a count that can be");
                // Up to a quarter is not acknowledged yet, and one line stays free.
                prop_assert!(room || unread + lines + 1 + LINES / 4 > LINES);
                prop_assert!(!room || unread + lines < LINES);
                if room {
                    let place = writer.place();
                    for word in (place + 8..place + lines * LINE).step_by(8) {
                        segment.at(word).store(content(word, written), Ordering::Relaxed);
                    }
                    writer.publish(lines * LINE, &segment);
                    queue.push_back((place, written, lines));
                    written += 1;
                }
            } else {
                prop_assert_eq!(reader.is_ready(&segment), !queue.is_empty());
                if let Some((place, number, lines)) = queue.pop_front() {
                    prop_assert_eq!(reader.place(), place);
                    for word in (place + 8..place + lines * LINE).step_by(8) {
                        prop_assert_eq!(segment.at(word).load(Ordering::Relaxed), content(word, number));
                    }
                    reader.release(lines * LINE, &segment);
                }
            }
        }
    }

    #[test]
    fn counts_that_cannot_be_are_seen(consumed: u64) {
        let segment = Segment::new();
        let mut writer = Writer::new(SIZE);
        for _ in 0..LINES - 1 {
            prop_assert!(writer.has_room(LINE, &segment).expect("a fresh ring"));
            writer.publish(LINE, &segment);
        }
        segment.consumed.store(consumed, Ordering::Relaxed);
        let possible = consumed.is_multiple_of(LINE) && consumed < SIZE;
        let nonsense = Nonsense { consumed, before: 0, written: SIZE - LINE };
        prop_assert_eq!(writer.has_room(LINE, &segment), if possible { Ok(consumed > 0) } else { Err(nonsense) });
    }
}
