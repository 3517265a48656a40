//! Memory that operations work on.

use crate::{memory, size::Bytes, stop::Stop};
use rondel::{Communicator, Element};
use serde::Serialize;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    fmt,
    ptr::NonNull,
};

const PAGE: usize = 4096;
const CACHE_LINE: usize = 64;

/// Whose memory buffers are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// This program's.
    Plain,
    /// The library's, where peers can map it.
    Mapped,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Plain => "plain",
            Kind::Mapped => "mapped",
        })
    }
}

/// Page-aligned memory of a number of bytes, or memory that is one element off.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: NonNull<u8>,
    memory: Memory,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Plain(Layout),
    Mapped { _buffer: rondel::Buffer<u8> },
}

impl Buffer {
    /// `len` bytes that start `offset` bytes into a page, made by a communicator. Where it cannot make memory that peers
    /// map, this is memory as of [`new`](Buffer::new).
    pub(crate) fn mapped(comm: &Communicator, len: usize, offset: usize) -> Result<Self, Stop> {
        let mut buffer = comm.buffer::<u8>(len.saturating_add(offset).max(1))?;
        if !buffer.is_mapped() {
            return Self::new(len, offset);
        }
        let base = NonNull::new(buffer.as_mut_ptr()).expect("memory is not at 0");
        Ok(Buffer { base, memory: Memory::Mapped { _buffer: buffer }, offset, len })
    }
    /// `len` bytes that start `offset` bytes into a page.
    pub(crate) fn new(len: usize, offset: usize) -> Result<Self, Stop> {
        let refused = || {
            let limit =
                memory::address_space().map_or("no limit".to_owned(), |limit| Bytes(limit).to_string());
            Stop::Failed(format!(
                "the system refuses a buffer of {}; lower -e or --ranks, or raise the limit of a process's memory (ulimit \
                 -v, now {limit})",
                Bytes(len as u64)
            ))
        };
        let room = len.checked_add(offset + PAGE - 1).ok_or_else(refused)? / PAGE * PAGE;
        let layout = Layout::from_size_align(room.max(PAGE), PAGE).map_err(|_| refused())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Buffer { base, memory: Memory::Plain(layout), offset, len })
    }
    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and zeroed with room for `offset + len`.
        unsafe { std::slice::from_raw_parts(self.base.add(self.offset).as_ptr(), self.len) }
    }
    /// All of it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(self.offset).as_ptr(), self.len) }
    }
    /// All of it as elements. The bytes must be valid for the type, which only `bool` restricts: 0 and 1.
    pub(crate) fn elements<T: Element>(&self) -> &[T] {
        let first = self.first::<T>();
        // SAFETY: initialised, aligned as asserted by `first`, in bounds.
        unsafe { std::slice::from_raw_parts(first, self.len / size_of::<T>()) }
    }
    /// All of it as elements; see [`elements`](Buffer::elements).
    pub(crate) fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        let first = self.first::<T>();
        // SAFETY: as in `elements`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(first, self.len / size_of::<T>()) }
    }
    /// Writes one byte of every cache line with what it holds.
    pub(crate) fn rewrite(&mut self) {
        for byte in self.bytes_mut().iter_mut().step_by(CACHE_LINE) {
            // SAFETY: a reference is valid for reads and writes.
            unsafe { (&raw mut *byte).write_volatile((&raw const *byte).read_volatile()) };
        }
    }
    /// Reads one byte of every cache line.
    pub(crate) fn reread(&self) {
        for byte in self.bytes().iter().step_by(CACHE_LINE) {
            // SAFETY: a reference is valid for reads.
            unsafe { (&raw const *byte).read_volatile() };
        }
    }

    fn first<T: Element>(&self) -> *mut T {
        let first: *mut T = self.base.as_ptr().wrapping_add(self.offset).cast();
        assert!(first.is_aligned(), "elements are aligned to their own size");
        first
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Plain(layout) = self.memory {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_where_they_should() {
        let aligned = Buffer::new(100, 0).unwrap();
        assert_eq!(aligned.bytes().as_ptr() as usize % PAGE, 0);
        assert_eq!(aligned.elements::<f32>().len(), 25);
        let off = Buffer::new(4096, 4).unwrap();
        assert_eq!(off.bytes().as_ptr() as usize % PAGE, 4);
        assert_eq!(Buffer::new(0, 0).unwrap().bytes().len(), 0);
    }

    #[test]
    fn memory_that_the_system_refuses_is_named_in_bytes() {
        for len in [1 << 62, usize::MAX, isize::MAX as usize] {
            let text = Buffer::new(len, 0).unwrap_err().to_string();
            assert!(text.contains(&format!("refuses a buffer of {};", Bytes(len as u64))), "{text}");
        }
    }

    #[test]
    fn touching_changes_nothing() {
        let mut buffer = Buffer::new(1000, 8).unwrap();
        buffer.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let before = buffer.bytes().to_vec();
        buffer.rewrite();
        buffer.reread();
        assert_eq!(buffer.bytes(), before);
    }
}
