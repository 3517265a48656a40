//! The memory that the local ranks of a measurement share with the process that started them.
//!
//! An anonymous file, inherited by its descriptor: an arrival counter with a phase for the barrier, a word by which the
//! parent ends the run, the id by which the ranks find each other, and for each rank a number to exchange and the text of its error.

use super::meeting::Meeting;
use crate::stop::Stop;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

/// Bytes of the id by which the ranks find each other.
pub(crate) const UNIQUE_ID_BYTES: usize = 128;
const TEXT_BYTES: usize = 4096 - 16;
/// Looks at the phase before a waiting rank gives up its core.
const SPINS: u32 = 200;

#[repr(C, align(64))]
struct Head {
    arrived: Line,
    phase: Line,
    aborted: Line,
    unique_id: [AtomicU8; UNIQUE_ID_BYTES],
}

#[repr(C, align(64))]
struct Line(AtomicU32);

#[repr(C, align(64))]
struct Seat {
    value: AtomicU64,
    report: AtomicU32,
    text_len: AtomicU32,
    text: [AtomicU8; TEXT_BYTES],
}

const FAILED: u32 = 1;
const GAVE_UP: u32 = 2;

/// What a rank has left for the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// Nothing: it has not stopped, or not by itself.
    Nothing,
    /// It was told that another rank has failed.
    GaveUp,
    /// It failed, for this reason.
    Failed(String),
}

/// The mapped memory.
#[derive(Debug)]
pub(crate) struct Shared {
    descriptor: OwnedFd,
    base: NonNull<u8>,
    nranks: u32,
}

// SAFETY: all of the memory is atomics, valid for any thread until `Drop`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Fresh memory for `nranks` ranks.
    pub(crate) fn create(nranks: u32) -> io::Result<Self> {
        // SAFETY: the name is a string that ends with a zero; the answer is checked.
        let raw = unsafe { libc::memfd_create(c"rondel-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just opened it, and nobody else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: a descriptor of ours; the answer is checked.
        if unsafe { libc::ftruncate(raw, Self::len(nranks) as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(descriptor, nranks)
    }
    /// The memory that the parent made, by the descriptor that this process inherited.
    pub(crate) fn inherit(raw: RawFd, nranks: u32) -> io::Result<Self> {
        // SAFETY: `fstat` fills the zeroed structure, or fails for a number that is no descriptor.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(raw, &raw mut stat) != 0 {
                return Err(io::Error::last_os_error());
            }
            stat
        };
        if stat.st_size as usize != Self::len(nranks) {
            return Err(io::Error::other("the inherited memory has another size than expected"));
        }
        // SAFETY: it is open, as `fstat` has shown, and was opened for this process alone to own.
        Self::map(unsafe { OwnedFd::from_raw_fd(raw) }, nranks)
    }
    /// The descriptor, to be inherited.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
    /// Says where the ranks meet. It contains their secret, which is why it goes this way.
    pub(crate) fn set_unique_id(&self, id: &[u8; UNIQUE_ID_BYTES]) {
        self.head().unique_id.iter().zip(id).for_each(|(cell, byte)| cell.store(*byte, Ordering::Relaxed));
    }
    /// Where the ranks meet.
    pub(crate) fn unique_id(&self) -> [u8; UNIQUE_ID_BYTES] {
        std::array::from_fn(|i| self.head().unique_id[i].load(Ordering::Relaxed))
    }
    /// Ends the waiting of all ranks.
    pub(crate) fn abort(&self) {
        self.head().aborted.0.store(1, Ordering::Release);
    }
    /// Ranks that wait in the barrier at this moment.
    pub(crate) fn waiting(&self) -> u32 {
        self.head().arrived.0.load(Ordering::Acquire)
    }
    /// Leaves for the parent why a rank stops; what is too long is cut. A signal is told by the exit status.
    pub(crate) fn report(&self, rank: u32, stop: &Stop) {
        if matches!(stop, Stop::Signal(_)) {
            return;
        }
        let seat = self.seat(rank);
        let text = stop.to_string();
        let len = text.floor_char_boundary(TEXT_BYTES);
        for (cell, byte) in seat.text.iter().zip(&text.as_bytes()[..len]) {
            cell.store(*byte, Ordering::Relaxed);
        }
        seat.text_len.store(len as u32, Ordering::Relaxed);
        let kind = if matches!(stop, Stop::Elsewhere) { GAVE_UP } else { FAILED };
        seat.report.store(kind, Ordering::Release);
    }
    /// What a rank has left.
    pub(crate) fn reported(&self, rank: u32) -> Reported {
        let seat = self.seat(rank);
        match seat.report.load(Ordering::Acquire) {
            GAVE_UP => Reported::GaveUp,
            FAILED => {
                let len = (seat.text_len.load(Ordering::Relaxed) as usize).min(TEXT_BYTES);
                let bytes: Vec<u8> =
                    seat.text[..len].iter().map(|cell| cell.load(Ordering::Relaxed)).collect();
                Reported::Failed(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => Reported::Nothing,
        }
    }

    fn len(nranks: u32) -> usize {
        size_of::<Head>() + nranks as usize * size_of::<Seat>()
    }
    fn map(descriptor: OwnedFd, nranks: u32) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the whole file; the answer is checked.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::len(nranks),
                protection,
                libc::MAP_SHARED,
                descriptor.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast::<libc::c_void>() != libc::MAP_FAILED => {
                Ok(Shared { descriptor, base, nranks })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
    fn head(&self) -> &Head {
        // SAFETY: the mapping is page-aligned, long enough, lives as long as `self`, and every byte is an atomic.
        unsafe { self.base.cast().as_ref() }
    }
    fn seat(&self, rank: u32) -> &Seat {
        assert!(rank < self.nranks, "rank {rank} of {}", self.nranks);
        let offset = size_of::<Head>() + rank as usize * size_of::<Seat>();
        // SAFETY: inside the mapping by the assertion; aligned because both sizes are multiples of 64.
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; all references borrow `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::len(self.nranks)) };
    }
}

/// A rank's place in the shared memory.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    shared: &'a Shared,
    rank: u32,
    start: Instant,
}

impl<'a> Place<'a> {
    /// Of `rank`.
    pub(crate) fn new(shared: &'a Shared, rank: u32) -> Self {
        Place { shared, rank, start: Instant::now() }
    }
}

impl Meeting for Place<'_> {
    /// Spins briefly, then yields, so that it also works with more ranks than cores.
    fn barrier(&mut self) -> Result<(), Stop> {
        let head = self.shared.head();
        let phase = head.phase.0.load(Ordering::Acquire);
        if head.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.shared.nranks {
            head.arrived.0.store(0, Ordering::Relaxed);
            head.phase.0.store(phase.wrapping_add(1), Ordering::Release);
            return Ok(());
        }
        let mut looks = 0;
        while head.phase.0.load(Ordering::Acquire) == phase {
            if looks < SPINS {
                looks += 1;
                std::hint::spin_loop();
            } else if head.aborted.0.load(Ordering::Acquire) != 0 {
                return Err(Stop::Elsewhere);
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
    fn gather(&mut self, value: f64) -> Result<Vec<f64>, Stop> {
        self.shared.seat(self.rank).value.store(value.to_bits(), Ordering::Relaxed);
        self.barrier()?;
        let value_of = |rank| f64::from_bits(self.shared.seat(rank).value.load(Ordering::Relaxed));
        let values = (0..self.shared.nranks).map(value_of).collect();
        self.barrier()?;
        Ok(values)
    }
    fn now_us(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_exchange_numbers_round_after_round() {
        let shared = Shared::create(3).unwrap();
        let rounds = |rank: u32| {
            let mut place = Place::new(&shared, rank);
            (0..200).for_each(|round| {
                let sent = f64::from(rank) * 1000.0 + f64::from(round);
                let want: Vec<f64> = (0..3).map(|r| f64::from(r) * 1000.0 + f64::from(round)).collect();
                assert_eq!(place.gather(sent).unwrap(), want);
            });
        };
        std::thread::scope(|s| (0..3).for_each(|rank| drop(s.spawn(move || rounds(rank)))));
    }

    #[test]
    fn an_abort_ends_the_waiting() {
        let shared = Shared::create(2).unwrap();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| Place::new(&shared, 0).barrier());
            while shared.waiting() == 0 {
                std::thread::yield_now();
            }
            shared.abort();
            assert!(matches!(waiter.join().unwrap(), Err(Stop::Elsewhere)));
        });
    }

    #[test]
    fn error_texts_cross_and_long_ones_are_cut_between_characters() {
        let shared = Shared::create(2).unwrap();
        // SAFETY: duplicates a descriptor that is open.
        let duplicate = unsafe { libc::dup(shared.descriptor()) };
        let child = Shared::inherit(duplicate, 2).unwrap();
        assert_eq!(shared.reported(1), Reported::Nothing);
        child.report(1, &Stop::Failed("rank 0 died".into()));
        assert_eq!(shared.reported(1), Reported::Failed("rank 0 died".into()));
        shared.set_unique_id(&[7; UNIQUE_ID_BYTES]);
        assert_eq!(child.unique_id(), [7; UNIQUE_ID_BYTES]);
        child.report(0, &Stop::Failed("ä".repeat(5000)));
        assert_eq!(shared.reported(0), Reported::Failed("ä".repeat(TEXT_BYTES / 2)));
        child.report(0, &Stop::Elsewhere);
        assert_eq!(shared.reported(0), Reported::GaveUp);
    }

    #[test]
    fn what_is_not_the_memory_is_refused() {
        assert!(Shared::inherit(-1, 2).is_err());
        let shared = Shared::create(2).unwrap();
        assert!(Shared::inherit(shared.descriptor(), 3).is_err());
    }
}
