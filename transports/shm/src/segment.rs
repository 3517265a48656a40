//! Memory of a lane that both ends see: made by one, mapped for reading by the other.
//!
//! | bytes of the file | what |
//! |---|---|
//! | 0..8 | magic and version |
//! | 8..16 | bytes of the ring |
//! | 128..136 | [`Word::Consumed`] |
//! | 256..264 | [`Word::Sleeping`] |
//! | 384..392 | [`Word::Void`] |
//! | [`RING_AT`].. | the ring |
//!
//! Between the first page and the ring is a hole. The beginning of the ring is mapped once more behind its end, so that
//! every record lies in one piece.

use crate::{
    limits,
    record::{HEADER, LONGEST_RECORD},
    ring::{OwnWords, Word, Words},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

/// Bytes of the ring that an end fills. Above the first-level cache, so that both ends need not have the same lines there
/// at once, and far below the second-level one.
pub(crate) const RING: u64 = 256 << 10;
/// A multiple of every page size.
pub(crate) const RING_AT: u64 = 64 << 10;
/// What is mapped again behind the ring.
const AGAIN: u64 = LONGEST_RECORD.next_multiple_of(RING_AT);
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rondel\0\x01");

const MAGIC_AT: usize = 0;
const SIZE_AT: usize = 8;
pub(crate) const CONSUMED_AT: usize = 128;
const SLEEPING_AT: usize = 256;
const VOID_AT: usize = 384;

/// Nobody may cut the file under its mappings, or make it grow, or change that.
const NEEDED_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Bytes of memory that a segment takes.
pub(crate) fn memory_of(ring: u64) -> u64 {
    limits::page_bytes() + ring
}

/// Whether a process could have `lanes` lanes; the error is a sentence.
pub(crate) fn check_room(lanes: u64) -> Result<(), String> {
    let mapped = 2 * (RING_AT + RING + AGAIN);
    limits::check("a lane over shared memory", RING_AT + RING, lanes * memory_of(RING), lanes * mapped)
}

/// A mapping of a segment.
struct Map {
    base: NonNull<u8>,
    ring: u64,
}

// SAFETY: the mapping belongs to the value; what is in it is reached through atomics and raw pointers.
unsafe impl Send for Map {}

impl Map {
    fn bytes(ring: u64) -> usize {
        (RING_AT + ring + AGAIN) as usize
    }

    fn new(file: BorrowedFd<'_>, ring: u64, access: libc::c_int) -> io::Result<Self> {
        let whole = Self::bytes(ring);
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, reserve, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = Self { base: NonNull::new(base.cast()).expect("a mapping is not at 0"), ring };
        let parts = [(0, RING_AT + ring, 0), (RING_AT + ring, AGAIN, RING_AT)];
        for (at, len, offset) in parts {
            let how = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: the part lies within the range that is ours alone.
            let part = unsafe {
                let to = map.base.as_ptr().add(at as usize).cast();
                libc::mmap(to, len as usize, access, how, file.as_raw_fd(), offset as libc::off_t)
            };
            if part == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        // A forked child has no business in our lanes.
        // SAFETY: the range is ours.
        unsafe { libc::madvise(base, whole, libc::MADV_DONTFORK) };
        // Page faults now rather than later; a hint, since not every kernel knows it.
        let populate =
            if access & libc::PROT_WRITE != 0 { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        for (at, len) in [(0, limits::page_bytes()), (RING_AT, ring + AGAIN)] {
            // SAFETY: the range is ours.
            unsafe { libc::madvise(map.base.as_ptr().add(at as usize).cast(), len as usize, populate) };
        }
        Ok(map)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: mapped as long as `self`, aligned, and only reached as an atomic by either end. A mapping for reading is
        // only loaded from.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    fn place(&self, place: u64) -> usize {
        (RING_AT + (place & (self.ring - 1))) as usize
    }

    #[inline(always)]
    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.word(self.find(word)).load(order)
    }

    #[inline(always)]
    fn find(&self, word: Word) -> usize {
        match word {
            Word::Flag(place) => self.place(place),
            Word::Consumed => CONSUMED_AT,
            Word::Sleeping => SLEEPING_AT,
            Word::Void => VOID_AT,
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nothing borrows from it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::bytes(self.ring)) };
    }
}

/// Our own segment: we alone write to it.
pub(crate) struct OwnSegment {
    map: Map,
    /// Until the peer has it.
    file: Option<OwnedFd>,
}

impl OwnSegment {
    /// Makes one that no name leads to, of memory that is near this thread.
    pub(crate) fn new() -> Result<Self, (String, io::Error)> {
        let refused = |reason: String| {
            ("making shared memory for a lane".to_owned(), io::Error::new(io::ErrorKind::OutOfMemory, reason))
        };
        check_room(1).map_err(refused)?;
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error| (what, error)
        };
        let file =
            memfd().map_err(failed("making an anonymous file for a lane's shared memory (memfd_create)"))?;
        let size = RING_AT + RING;
        // SAFETY: the calls take no pointers; the descriptor is ours.
        unsafe {
            if libc::ftruncate(file.as_raw_fd(), size as libc::off_t) != 0 {
                return Err(failed("sizing a lane's shared memory")(io::Error::last_os_error()));
            }
            for (at, len) in [(0, limits::page_bytes()), (RING_AT, RING)] {
                let (at, len) = (at as libc::off_t, len as libc::off_t);
                if libc::fallocate(file.as_raw_fd(), 0, at, len) != 0 {
                    return Err(failed("reserving a lane's shared memory")(io::Error::last_os_error()));
                }
            }
        }
        let map = Map::new(file.as_fd(), RING, libc::PROT_READ | libc::PROT_WRITE)
            .map_err(failed("mapping a lane's own shared memory"))?;
        map.word(SIZE_AT).store(RING, Ordering::Relaxed);
        map.word(MAGIC_AT).store(MAGIC, Ordering::Release);
        seal(&file).map_err(failed("sealing a lane's shared memory"))?;
        Ok(Self { map, file: Some(file) })
    }

    /// The file, until [`keep_mapping_only`](Self::keep_mapping_only).
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The peer has the file.
    pub(crate) fn keep_mapping_only(&mut self) {
        self.file = None;
    }

    /// Where a place of the ring is. [`LONGEST_RECORD`] bytes from there are in one piece.
    #[inline(always)]
    pub(crate) fn at(&self, place: u64) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.map.base.as_ptr().add(self.map.place(place)) }
    }
}

impl Words for OwnSegment {
    #[inline(always)]
    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.map.load(word, order)
    }
}

impl OwnWords for OwnSegment {
    #[inline(always)]
    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.map.word(self.map.find(word)).store(value, order);
    }
}

/// The peer's segment: foreign bytes that may change at any time.
pub(crate) struct PeerSegment {
    map: Map,
}

impl PeerSegment {
    /// Checks and maps what a peer sent. `ring` is what its offer said. The error says what is wrong.
    pub(crate) fn adopt(file: &OwnedFd, ring: u64) -> Result<Self, String> {
        check_seals(file)?;
        let stat = stat(file).map_err(|error| format!("its shared memory has no size: {error}"))?;
        let (size, expected) = (stat.st_size as u64, RING_AT + ring);
        if size != expected {
            return Err(format!("its shared memory has {size} bytes, its offer says {expected}"));
        }
        let map = Map::new(file.as_fd(), ring, libc::PROT_READ)
            .map_err(|error| format!("its shared memory cannot be mapped: {error}"))?;
        let (magic, named) =
            (map.word(MAGIC_AT).load(Ordering::Acquire), map.word(SIZE_AT).load(Ordering::Relaxed));
        if magic != MAGIC {
            return Err(format!(
                "its shared memory begins with {magic:#018x}, expected {MAGIC:#018x}: use one rondel version for all ranks"
            ));
        }
        if named != ring {
            return Err(format!("its shared memory names a ring of {named} bytes, its offer one of {ring}"));
        }
        Ok(Self { map })
    }

    /// The fields of the record at a place: stamp, and length and offset of the message.
    #[inline(always)]
    pub(crate) fn header(&self, place: u64) -> (u64, u64) {
        let at = self.map.place(place);
        (self.map.word(at + 8).load(Ordering::Relaxed), self.map.word(at + 16).load(Ordering::Relaxed))
    }

    /// What the record of a reference says: the number of the region, and where in it the message begins.
    #[inline]
    pub(crate) fn reference(&self, place: u64) -> (u64, u64) {
        let at = self.map.place(place) + HEADER;
        (self.map.word(at).load(Ordering::Relaxed), self.map.word(at + 8).load(Ordering::Relaxed))
    }

    /// Where a place of the ring is. [`LONGEST_RECORD`] bytes from there are in one piece.
    #[inline(always)]
    pub(crate) fn at(&self, place: u64) -> *const u8 {
        // SAFETY: within the mapping.
        unsafe { self.map.base.as_ptr().add(self.map.place(place)) }
    }
}

impl Words for PeerSegment {
    #[inline(always)]
    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.map.load(word, order)
    }
}

/// Whether a peer's file stays as large as it is. The error says what is wrong.
pub(crate) fn check_seals(file: &OwnedFd) -> Result<(), String> {
    // SAFETY: the call takes no pointers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(format!(
            "its shared memory is no sealable file (F_GET_SEALS: {})",
            io::Error::last_os_error()
        ));
    }
    if seals & NEEDED_SEALS != NEEDED_SEALS {
        return Err(format!(
            "its shared memory has the seals {seals:#x}, expected at least {NEEDED_SEALS:#x}: it could be cut under us"
        ));
    }
    Ok(())
}

/// Makes sure that a file of ours stays as large as it is, and that nobody but our mapping writes to it. Kernels before
/// 5.1 do not know the latter.
pub(crate) fn seal(file: &OwnedFd) -> io::Result<()> {
    add_seals(file, libc::F_SEAL_FUTURE_WRITE).ok();
    add_seals(file, NEEDED_SEALS)
}

/// An anonymous file in memory.
pub(crate) fn memfd() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // The kernel may insist on being told that nobody will execute it (sysctl vm.memfd_noexec); older ones do not know the
    // flag.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"rondel-lane".as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: a fresh descriptor is ours alone.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

fn add_seals(file: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel says about a file.
pub(crate) fn stat(file: &OwnedFd) -> io::Result<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is writable, and is read only after the call has filled it.
    unsafe {
        match libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) {
            0 => Ok(stat.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
