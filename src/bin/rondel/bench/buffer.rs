//! Memory that operations work on.

use rondel::Element;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

const PAGE: usize = 4096;
const CACHE_LINE: usize = 64;

/// Page-aligned memory of a number of bytes, or memory that is one element off.
#[derive(Debug)]
pub(crate) struct Buffer {
    base: NonNull<u8>,
    layout: Layout,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes that start `offset` bytes into a page.
    pub(crate) fn new(len: usize, offset: usize) -> Self {
        let room = (offset + len).next_multiple_of(PAGE).max(PAGE);
        let layout = Layout::from_size_align(room, PAGE).expect("the memory was checked before the run");
        // SAFETY: the layout is not empty.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Buffer { base, layout, offset, len }
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
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_where_they_should() {
        let aligned = Buffer::new(100, 0);
        assert_eq!(aligned.bytes().as_ptr() as usize % PAGE, 0);
        assert_eq!(aligned.elements::<f32>().len(), 25);
        let off = Buffer::new(4096, 4);
        assert_eq!(off.bytes().as_ptr() as usize % PAGE, 4);
        assert_eq!(Buffer::new(0, 0).bytes().len(), 0);
    }

    #[test]
    fn touching_changes_nothing() {
        let mut buffer = Buffer::new(1000, 8);
        buffer.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        let before = buffer.bytes().to_vec();
        buffer.rewrite();
        buffer.reread();
        assert_eq!(buffer.bytes(), before);
    }
}
