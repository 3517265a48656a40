//! The memory of a page: a sealed memfd, mapped.

use super::page::Layout;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

/// Bytes of a page's memory.
pub(super) const BYTES: usize = size_of::<Layout>();
/// How the memory is called in `/proc/<pid>/fd`.
pub(super) const NAME: &std::ffi::CStr = c"rondel-status";

/// A page in this process's address space, until it is dropped.
#[derive(Debug)]
pub(super) struct Mapping(NonNull<Layout>);

// SAFETY: the mapping belongs to no thread, and all of it is atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(descriptor: BorrowedFd<'_>, protection: libc::c_int) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, descriptor.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Mapping).ok_or_else(|| io::Error::other("mmap returned address 0"))
    }

    /// Where the page is mapped read-only, it must not be written to.
    pub(super) fn page(&self) -> &Layout {
        // SAFETY: the mapping lives as long as `self`, is aligned to a memory page and as large as the layout, and was
        // checked (or sealed) not to shrink. The layout is atomics only: any content is valid, and changes by others are
        // not data races. Readers use relaxed loads and fences alone, which read-only memory allows.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

/// Fresh memory, all zero, sealed against changes of its size and (where the kernel can) against further writers.
pub(super) fn create() -> io::Result<(OwnedFd, Mapping)> {
    // SAFETY: the name is a C string; the call touches no other memory.
    let raw = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: a plain system call on our own descriptor.
    if unsafe { libc::ftruncate(raw, BYTES as libc::off_t) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mapping = Mapping::of(descriptor.as_fd(), libc::PROT_READ | libc::PROT_WRITE)?;
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // Linux before 5.1 does not know the seal against writers; then peers of the same user are trusted with it.
    let seal_all = |seals: libc::c_int| {
        // SAFETY: a plain system call on our own descriptor.
        unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals | libc::F_SEAL_SEAL) }
    };
    if seal_all(size | libc::F_SEAL_FUTURE_WRITE) < 0 && seal_all(size) < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((descriptor, mapping))
}

/// Maps somebody else's memory read-only, if it is as large as a page and cannot shrink.
pub(super) fn map(descriptor: BorrowedFd<'_>) -> io::Result<Mapping> {
    // SAFETY: a plain system call without pointers.
    let seals = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(refused(format!("it is not a memfd ({})", io::Error::last_os_error())));
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(refused(format!(
            "its size is not sealed (seals {seals:#x}), so that it could vanish under the reader"
        )));
    }
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes a whole `stat` or fails.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), stat.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstat succeeded.
    let size = unsafe { stat.assume_init() }.st_size;
    if u64::try_from(size) != Ok(BYTES as u64) {
        return Err(refused(format!(
            "it has {size} bytes, a page of this release has {BYTES}: use the same release as the job"
        )));
    }
    Mapping::of(descriptor, libc::PROT_READ)
}

/// The error of whoever hands over something that is not a page.
pub(super) fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not a status page: {why}"))
}
