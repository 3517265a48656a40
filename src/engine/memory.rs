//! Scratch and staging memory: aligned blocks that are kept and used again.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    ptr::NonNull,
};

/// Blocks start on cache lines, so that slices of aligned buffers stay aligned.
const ALIGN: usize = 64;
/// Smallest block: smaller requests share its size class.
const SMALLEST: usize = 4096;

/// One block of memory, aligned to a cache line.
#[derive(Debug)]
pub(crate) struct Block {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a block is owned memory without interior references.
unsafe impl Send for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty: blocks are at least `SMALLEST` long.
        let at = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // Fresh memory may hold anything; whoever reads scratch before it was written must not see secrets.
        // SAFETY: `at` is valid for `len` bytes.
        unsafe { at.write_bytes(0, len) };
        Self { at, len }
    }
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("block sizes are powers of two below the address space")
    }
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.at.as_ptr(), Self::layout(self.len)) }
    }
}

/// Free blocks by size class (powers of two).
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Vec<Block>>,
    bytes: usize,
}

impl Pool {
    /// A block of at least `len` bytes. Allocates only when none of its class is free.
    pub(crate) fn take(&mut self, len: usize) -> Block {
        let len = len.max(SMALLEST).next_power_of_two();
        let class = len.trailing_zeros() as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].pop().unwrap_or_else(|| {
            self.bytes += len;
            Block::new(len)
        })
    }
    /// Gives a block back.
    pub(crate) fn put(&mut self, block: Block) {
        let class = block.len.trailing_zeros() as usize;
        self.free[class].push(block);
    }
    /// Bytes of all blocks, in use or free.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}
