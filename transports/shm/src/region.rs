//! Memory that its owner computes in and its peers read in place.
//!
//! A region is a file in memory of whole pages, sealed as a [segment](crate::segment) is: its owner alone writes to it, and
//! nobody can cut it. It has no header: which bytes of it a message is stands in the records that refer to it.

use crate::{limits, segment};
use rondel_transport_api::{MemoryKind, Region};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

/// A mapping of a region: the owner's for writing, a peer's for reading.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The process that made it: a forked child has no such mapping, and perhaps another one in its place.
    process: u32,
}

// SAFETY: the mapping is owned memory, which the value itself only ends; whoever reaches into it has its own promises.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, len: usize, access: libc::c_int) -> io::Result<Self> {
        // SAFETY: a fresh range at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::<u8>::new(base.cast()).expect("a mapping is not at 0");
        // What a forked child wrote would be written here, behind the back of whoever borrows it.
        // SAFETY: the range is ours. Both calls are hints.
        unsafe {
            libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK);
            libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Ok(Self { base, len, process: std::process::id() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the range is ours, and whoever borrowed from it held the value.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// A region of ours.
#[derive(Debug)]
pub(crate) struct OwnRegion {
    mapping: Arc<Mapping>,
    file: OwnedFd,
}

impl OwnRegion {
    /// Makes one of at least `len` bytes of zeros, near this thread.
    pub(crate) fn new(len: usize) -> Result<Self, (String, io::Error)> {
        let what = format!("making {} KiB of memory that peers may map", len.div_ceil(1 << 10));
        let refused = |kind, reason: String| (what.clone(), io::Error::new(kind, reason));
        let bytes = (len as u64).max(1).checked_next_multiple_of(limits::page_bytes());
        let Some(bytes) = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            return Err(refused(io::ErrorKind::InvalidInput, "no address space has that many bytes".into()));
        };
        limits::check("memory that peers may map", bytes, bytes, bytes)
            .map_err(|reason| refused(io::ErrorKind::OutOfMemory, reason))?;
        Self::reserve(bytes).map_err(|error| (what, error))
    }

    fn reserve(bytes: u64) -> io::Result<Self> {
        let file = segment::memfd()?;
        // SAFETY: the call takes no pointers; the descriptor is ours.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::new(&file, bytes as usize, libc::PROT_READ | libc::PROT_WRITE)?;
        // Page faults now, in large pages where there are such; then whatever is missing, also where the kernel does not
        // know the hint.
        // SAFETY: the range is ours; the second call takes no pointers.
        unsafe {
            libc::madvise(mapping.base.as_ptr().cast(), mapping.len, libc::MADV_POPULATE_WRITE);
            if libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        segment::seal(&file)?;
        Ok(Self { mapping: Arc::new(mapping), file })
    }

    pub(crate) fn region(&self) -> Region {
        Region { addr: self.mapping.base.as_ptr(), len: self.mapping.len, kind: MemoryKind::Host }
    }

    /// What the memory lives as long as.
    pub(crate) fn owner(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.mapping.clone()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in it a range of memory begins, if it lies in it.
    #[inline]
    pub(crate) fn offset_of(&self, addr: *const u8, len: u32) -> Option<u64> {
        let offset = addr.addr().checked_sub(self.mapping.base.as_ptr().addr())?;
        (offset + len as usize <= self.mapping.len).then_some(offset as u64)
    }
}

/// A peer's region: foreign bytes that may change at any time.
#[derive(Debug)]
pub(crate) struct PeerRegion {
    mapping: Mapping,
}

impl PeerRegion {
    /// Checks and maps what a peer sent. The error says what is wrong.
    pub(crate) fn adopt(file: &OwnedFd) -> Result<Self, String> {
        segment::check_seals(file)?;
        let stat = segment::stat(file).map_err(|error| format!("its shared memory has no size: {error}"))?;
        let (size, backed) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
        // To read a hole is to fill it, at the reader's expense.
        if size == 0 || backed < size {
            return Err(format!("its shared memory has {size} bytes, of which {backed} are there"));
        }
        let mapping = Mapping::new(file, size as usize, libc::PROT_READ).map_err(|error| {
            format!(
                "its shared memory of {} KiB cannot be mapped: {error}; allow more address space (ulimit -v)",
                size >> 10
            )
        })?;
        Ok(Self { mapping })
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len
    }

    /// Where a range of it is.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: u32) -> Option<*const u8> {
        let end = offset.checked_add(len.into())?;
        // SAFETY: within the mapping.
        (end <= self.mapping.len as u64)
            .then(|| unsafe { self.mapping.base.as_ptr().add(offset as usize) }.cast_const())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_what_its_owner_writes_and_no_further() {
        let own = OwnRegion::new(5000).expect("memory");
        let Region { addr, len, .. } = own.region();
        assert_eq!(len as u64, 5000u64.next_multiple_of(limits::page_bytes()));
        let file = own.file().try_clone_to_owned().expect("a descriptor");
        let peer = PeerRegion::adopt(&file).expect("it is as it should be");
        // SAFETY: within the region, which nobody else has.
        unsafe { addr.add(4999).write(7) };
        // SAFETY: within the mapping.
        assert_eq!(unsafe { peer.at(4999, 1).expect("inside").read() }, 7);
        assert_eq!(peer.len(), len);
        for (offset, bytes) in [(len as u64, 1), (0, len as u32 + 1), (u64::MAX, 1), (u64::MAX - 3, 4)] {
            assert_eq!(peer.at(offset, bytes), None, "{bytes} bytes at {offset}");
        }
    }

    #[test]
    fn memory_survives_the_region() {
        let own = OwnRegion::new(1).expect("memory");
        let (addr, owner) = (own.region().addr, own.owner());
        drop(own);
        // SAFETY: `owner` keeps it.
        unsafe { addr.write(1) };
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 55] {
            let (what, error) = OwnRegion::new(len).expect_err("too much");
            assert!(what.contains("memory that peers may map"), "{what}: {error}");
        }
    }

    #[test]
    fn ranges_outside_are_none_of_it() {
        let own = OwnRegion::new(4096).expect("memory");
        let Region { addr, len, .. } = own.region();
        assert_eq!(own.offset_of(addr.wrapping_add(8), 8), Some(8));
        assert_eq!(own.offset_of(addr.wrapping_add(len), 0), Some(len as u64));
        assert_eq!(own.offset_of(addr.wrapping_add(len - 1), 2), None);
        assert_eq!(own.offset_of(addr.wrapping_sub(1), 1), None);
        assert_eq!(own.offset_of(std::ptr::null(), u32::MAX), None);
    }
}
