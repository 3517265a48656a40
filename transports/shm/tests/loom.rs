//! Models of the two protocols between the ends of a lane, run in every order that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p rondel-shm --test loom --target-dir target/loom
//! ```
//!
//! The code under test is that of the lanes, over a segment of eight lines. Payloads are words that look like the flags of
//! later records wherever they can: the worst that user data can be. loom knows SeqCst fences, which the sleep protocol
//! stands on.

#![cfg(loom)]

use loom::{
    sync::{
        Arc, Notify,
        atomic::{AtomicU64, Ordering, fence},
    },
    thread,
};
use rondel_shm::{
    record::{LINE, mark},
    ring::{OwnWords, Reader, Word, Words, Writer, lie_down, rise, sleeps},
};

const LINES: u64 = 8;

/// The words of a segment that the model has: of each line the first, and of its payload one.
struct Segment {
    flags: Vec<AtomicU64>,
    payload: Vec<AtomicU64>,
    consumed: AtomicU64,
    sleeping: AtomicU64,
}

impl Segment {
    fn new() -> Arc<Self> {
        let words = || (0..LINES).map(|_| AtomicU64::new(0)).collect();
        let (consumed, sleeping) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { flags: words(), payload: words(), consumed, sleeping })
    }
    fn word(&self, word: Word) -> &AtomicU64 {
        match word {
            Word::Flag(place) => &self.flags[(place / LINE % LINES) as usize],
            Word::Consumed => &self.consumed,
            Word::Sleeping => &self.sleeping,
            Word::Void => unreachable!("the rings do not look at it"),
        }
    }
    fn payload(&self, place: u64) -> &AtomicU64 {
        &self.payload[(place / LINE % LINES) as usize]
    }
    /// What a payload does to a line of its own: its first word, too, is user data.
    fn spoil(&self, place: u64, value: u64) {
        self.word(Word::Flag(place)).store(value, Ordering::Relaxed);
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

/// Writes a record of some lines whose payload is its number, and looks like the flag that comes next.
fn write(writer: &mut Writer, own: &Segment, number: u64, lines: u64) {
    let place = writer.place();
    own.payload(place).store(number, Ordering::Relaxed);
    for line in 1..lines {
        let at = place + line * LINE;
        own.spoil(at, mark(at + LINES * LINE));
    }
    writer.publish(lines * LINE, own);
}

/// Everything that is read was written, in order, though lines are used again and payloads look like flags.
#[test]
fn records_arrive_whole_and_in_order() {
    // The last one begins where the first one left a payload that looks like its flag.
    const RECORDS: [u64; 5] = [3, 2, 3, 1, 1];
    loom::model(|| {
        let (ours, theirs) = (Segment::new(), Segment::new());
        let reading = {
            let (ours, theirs) = (theirs.clone(), ours.clone());
            thread::spawn(move || {
                let mut reader = Reader::new(LINES * LINE);
                for (number, lines) in RECORDS.into_iter().enumerate() {
                    while !reader.is_ready(&*theirs) {
                        thread::yield_now();
                    }
                    let found = theirs.payload(reader.place()).load(Ordering::Relaxed);
                    assert_eq!(found, number as u64 + 1);
                    reader.release(lines * LINE, &*ours);
                }
            })
        };
        let mut writer = Writer::new(LINES * LINE);
        for (number, lines) in RECORDS.into_iter().enumerate() {
            while !writer.has_room(lines * LINE, &*theirs).expect("a count that can be") {
                thread::yield_now();
            }
            write(&mut writer, &ours, number as u64 + 1, lines);
        }
        reading.join().expect("the reader");
    });
}

/// A reader that sleeps is woken for what was written before the writer looked, or sees it itself.
#[test]
fn no_sleeper_misses_a_record() {
    loom::model(|| {
        let (ours, theirs) = (Segment::new(), Segment::new());
        let bell = Arc::new(Notify::new());
        let sleeper = {
            let (ours, theirs, bell) = (theirs.clone(), ours.clone(), bell.clone());
            thread::spawn(move || {
                let reader = Reader::new(LINES * LINE);
                if !reader.is_ready(&*theirs) {
                    lie_down(&*ours);
                    fence(Ordering::SeqCst);
                    if !reader.is_ready(&*theirs) {
                        bell.wait();
                    }
                    rise(&*ours);
                }
                assert!(reader.is_ready(&*theirs), "woken for nothing");
            })
        };
        let mut writer = Writer::new(LINES * LINE);
        write(&mut writer, &ours, 1, 1);
        fence(Ordering::SeqCst);
        if sleeps(&*theirs) {
            bell.notify();
        }
        sleeper.join().expect("the sleeper");
    });
}

/// The same for a writer that waits for room.
#[test]
fn no_sleeper_misses_room() {
    loom::model(|| {
        let (ours, theirs) = (Segment::new(), Segment::new());
        let bell = Arc::new(Notify::new());
        let mut writer = Writer::new(LINES * LINE);
        write(&mut writer, &ours, 1, 7);
        let sleeper = {
            let (ours, theirs, bell) = (ours.clone(), theirs.clone(), bell.clone());
            thread::spawn(move || {
                let mut room = || writer.has_room(7 * LINE, &*theirs).expect("a count that can be");
                if !room() {
                    lie_down(&*ours);
                    fence(Ordering::SeqCst);
                    if !room() {
                        bell.wait();
                    }
                    rise(&*ours);
                }
                assert!(room(), "woken for nothing");
            })
        };
        let mut reader = Reader::new(LINES * LINE);
        assert!(reader.is_ready(&*ours));
        assert!(reader.release(7 * LINE, &*theirs), "a quarter of the ring is acknowledged");
        fence(Ordering::SeqCst);
        if sleeps(&*ours) {
            bell.notify();
        }
        sleeper.join().expect("the sleeper");
    });
}
