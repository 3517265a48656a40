//! Memory that peers on the same host can read in place.

use super::Communicator;
use crate::{
    engine::progress::Context,
    error::{Result, UsageError},
};
use rondel_transport_api::Element;
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{Arc, Weak},
};

/// Elements in memory that peers on the same host can map, so that large operations on it copy only what they must.
///
/// It is a slice that [`Communicator::buffer`] makes; every operation takes it, or any part of it, as it takes other
/// slices. What one gains needs no other rank to do the same: each rank's messages from its own buffers are read where they
/// lie, by peers on its host that have a transport for that; all others are sent as from plain memory. The results are the
/// same bit by bit.
///
/// It belongs to no communicator: all that descend from the one that made it use it in the same way, to others it is plain
/// memory, and it may outlive them all. Its memory is reserved when it is made and counts as shared memory of this process
/// (`memory.max` of its cgroup, `RLIMIT_FSIZE`). A forked child does not have it: to touch it there ends the child.
///
/// ```no_run
/// # fn f(comm: &rondel::Communicator) -> rondel::Result<()> {
/// let mut gradients = comm.buffer::<f32>(16 << 20)?;
/// gradients.fill(1.0);
/// comm.all_reduce(rondel::ReduceOp::Sum, &mut gradients)?;
/// comm.all_reduce(rondel::ReduceOp::Max, &mut gradients[1000..2000])
/// # }
/// ```
pub struct Buffer<T: Element> {
    start: NonNull<T>,
    len: usize,
    memory: Memory,
}

enum Memory {
    /// Peers can map it.
    Mapped {
        context: Weak<Context>,
        /// The process that the context belongs to.
        process: u32,
        /// What the memory lives as long as.
        _owner: Arc<dyn Any + Send + Sync>,
    },
    Plain(Layout),
    /// There are no elements.
    None,
}

// SAFETY: a buffer owns its elements, as a vector does.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above: shared, it gives nothing but shared references to them.
unsafe impl<T: Element> Sync for Buffer<T> {}

/// Plain memory starts on a cache line.
const ALIGN: usize = 64;

impl Communicator {
    /// A [`Buffer`] of `len` elements, all zero.
    ///
    /// Where no transport of this communicator maps memory it is plain memory, and operations on it are what they are on
    /// other slices. Local: other ranks need not call it.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage), if the system has not that much memory, or not for this process.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let refused = |why: String| UsageError::new(format!("buffer: {len} elements of {}: {why}", T::DTYPE));
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| refused("no address space has that many bytes".to_owned()))?;
        if bytes == 0 {
            return Ok(Buffer { start: NonNull::dangling(), len, memory: Memory::None });
        }
        let context = &self.inner.context;
        let made = context
            .with_engine(|engine| engine.allocate(bytes))
            .map_err(|error| refused(error.to_string()))?;
        if let Some(made) = made {
            let start = NonNull::new(made.region.addr.cast()).expect("memory is not at 0");
            let (context, process) = (Arc::downgrade(context), std::process::id());
            return Ok(Buffer {
                start,
                len,
                memory: Memory::Mapped { context, process, _owner: made.owner },
            });
        }
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|error| refused(error.to_string()))?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast())
            .ok_or_else(|| refused("the system refuses that much memory".to_owned()))?;
        Ok(Buffer { start, len, memory: Memory::Plain(layout) })
    }
}

impl<T: Element> Buffer<T> {
    /// Whether peers can map it: a transport made it that can do that. What it is used for then is up to that transport.
    pub fn is_mapped(&self) -> bool {
        matches!(self.memory, Memory::Mapped { .. })
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements begin at `start`, which are ours. They are valid: zeros are, of every element type, and
        // peers only read.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("type", &T::DTYPE)
            .field("len", &self.len)
            .field("mapped", &self.is_mapped())
            .finish()
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        match &self.memory {
            Memory::Mapped { context, process, .. } => {
                // A forked child must leave the connections of its parent alone.
                if *process == std::process::id()
                    && let Some(context) = context.upgrade()
                {
                    context.with_engine(|engine| engine.forget_memory(self.start.as_ptr().cast()));
                }
            }
            // SAFETY: allocated by `buffer` with this layout.
            Memory::Plain(layout) => unsafe { dealloc(self.start.as_ptr().cast(), *layout) },
            Memory::None => {}
        }
    }
}
