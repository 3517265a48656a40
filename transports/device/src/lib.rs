//! What the elements of a message are and how they are combined: the leaf of rondel that everything else names its
//! types from, and the only place that contains SIMD code.
//!
//! * [`DataType`], [`Element`]: element types, as values and as Rust types.
//! * [`ReduceOp`], [`Reduction`]: operators as users name them, and as kernels carry them out.
//! * [`Device`]: who moves and combines memory of one kind. [`HostDevice`] does it for host memory, at once.
//! * [`kernels`]: the host kernels, n-ary, with run-time dispatch; every level gives the same bits.

#[cfg(not(target_os = "linux"))]
compile_error!("rondel supports Linux only");

mod dtype;
mod float8;
mod host;
pub mod kernels;
mod minifloat;
mod reduction;

pub use dtype::{DataType, Element, UnknownName};
pub use float8::{F8E4M3, F8E5M2};
pub use host::{Device, DeviceError, HostDevice, Ran};
pub use reduction::{Combine, ReduceOp, Reduction, ReductionError, Scalar};

/// Whether a result is read again soon (and should stay in the cache) or not (and may bypass it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The result is read again within this collective: plain stores.
    #[default]
    Keep,
    /// The result is not read again within this collective: non-temporal stores above a tuned size.
    Stream,
}

/// One input of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// First element. No alignment is required.
    pub addr: *const u8,
    /// The operand is a caller's untouched input: the reduction's `pre` scale is applied while it is read.
    pub raw: bool,
}

/// Names one asynchronous piece of work; chosen by whoever starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);
