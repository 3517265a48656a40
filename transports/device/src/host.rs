//! Who moves and combines memory.

use crate::{Keep, Operand, Reduction, Token, kernels};

/// Whether a piece of work is over.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It was done within the call; no token will be reported.
    Done,
    /// Its token will come out of [`Device::poll`].
    Pending,
}

/// A device failed and cannot be used any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("device failed: {what}")]
pub struct DeviceError {
    /// What happened, for people.
    pub what: String,
}

/// Moves and combines memory of one kind.
pub trait Device: Send {
    /// Copies `len` bytes.
    ///
    /// # Safety
    /// Both ranges are valid and on loan until the work is over; they do not overlap.
    unsafe fn copy(&mut self, src: *const u8, dst: *mut u8, len: usize, keep: Keep, token: Token) -> Ran;
    /// `dst = operands[0] (+) operands[1] (+) ...` over `count` elements, in that order; `last` applies the
    /// reduction's `divide`. One operand scales and copies.
    ///
    /// # Safety
    /// All ranges are valid and on loan until the work is over; `dst` may equal an operand, but not overlap one otherwise.
    #[expect(clippy::too_many_arguments, reason = "a kernel launch")]
    unsafe fn reduce(
        &mut self,
        reduction: &Reduction,
        operands: &[Operand],
        dst: *mut u8,
        count: usize,
        last: bool,
        keep: Keep,
        token: Token,
    ) -> Ran;
    /// Appends the tokens of pending work that is over.
    fn poll(&mut self, done: &mut Vec<Token>) -> Result<(), DeviceError>;
}

/// Host memory: everything is done at once, by the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDevice;

impl Device for HostDevice {
    unsafe fn copy(&mut self, src: *const u8, dst: *mut u8, len: usize, keep: Keep, _: Token) -> Ran {
        // SAFETY: the caller's promise.
        unsafe { kernels::copy(src, dst, len, keep) };
        Ran::Done
    }

    unsafe fn reduce(
        &mut self,
        reduction: &Reduction,
        operands: &[Operand],
        dst: *mut u8,
        count: usize,
        last: bool,
        keep: Keep,
        _: Token,
    ) -> Ran {
        // SAFETY: the caller's promise.
        unsafe { kernels::reduce(reduction, operands, dst, count, last, keep) };
        Ran::Done
    }

    fn poll(&mut self, _: &mut Vec<Token>) -> Result<(), DeviceError> {
        Ok(())
    }
}
