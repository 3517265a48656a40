//! The loops of a kernel, and the ones that the compiler vectorises.
//!
//! What is written is a slice behind a `&mut` and what is read is a pointer: so the compiler knows that they do not
//! overlap, and needs no second version of the loop for the case that they do.

use std::{marker::PhantomData, mem::MaybeUninit, slice};

use super::number::{Number, Operator};
use crate::Scalar;

/// The loops over one element type that a level is made of.
///
/// # Safety
/// Of all functions: pointers are valid for `count` elements (of `Wide` where they are called `wide`, of the element
/// otherwise) and what is written overlaps nothing that is read, unless the same pointer serves for both. `wide` is
/// aligned. The CPU has the features of the vectors that the implementation uses.
pub(super) trait Loops {
    /// What partial results are computed in.
    type Wide;

    /// `dst = srcs[0] (+) ... (+) srcs[K - 1]`, rounded once.
    unsafe fn combine<O: Operator, const K: usize>(srcs: &[*const u8; K], dst: *mut u8, count: usize);
    /// `dst = dst (+) src`.
    unsafe fn fold<O: Operator>(src: *const u8, dst: *mut u8, count: usize);
    /// `wide = src`.
    unsafe fn widen(src: *const u8, wide: *mut Self::Wide, count: usize);
    /// `wide = wide (+) src`.
    unsafe fn accumulate<O: Operator>(src: *const u8, wide: *mut Self::Wide, count: usize);
    /// `dst = wide`, rounded.
    unsafe fn narrow(wide: *const Self::Wide, dst: *mut u8, count: usize);
    /// `dst = src * scalar`, rounded.
    unsafe fn scale(src: *const u8, dst: *mut u8, count: usize, scalar: Scalar);
    /// `dst = dst / divisor`, truncated.
    unsafe fn divide(dst: *mut u8, count: usize, divisor: u32);
}

/// An element at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<N>(N);

/// Loops that the compiler vectorises.
pub(super) struct Plain<N>(PhantomData<N>);

/// # Safety
/// `dst` is valid for `count` elements, and for the life of the slice nobody else touches them.
#[inline(always)]
unsafe fn fresh<'a, T>(dst: *mut T, count: usize) -> &'a mut [MaybeUninit<T>] {
    // SAFETY: the caller's promise; uninitialised memory is fine.
    unsafe { slice::from_raw_parts_mut(dst.cast(), count) }
}

/// `out[i] = value(i)`. A function of its own, so that `out` is a parameter and known to overlap nothing.
#[inline(always)]
fn fill<T>(out: &mut [MaybeUninit<T>], value: impl Fn(usize) -> T) {
    for (i, out) in out.iter_mut().enumerate() {
        out.write(value(i));
    }
}

/// `out[i] = value(i, out[i])`.
#[inline(always)]
fn update<T: Copy>(out: &mut [T], value: impl Fn(usize, T) -> T) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i, *out);
    }
}

impl<N: Number> Plain<N> {
    /// # Safety
    /// `src` is valid for more than `i` elements.
    #[inline(always)]
    unsafe fn at(src: *const u8, i: usize) -> N::Wide {
        // SAFETY: the caller's promise.
        unsafe { src.cast::<Unaligned<N>>().add(i).read() }.0.widen()
    }
}

impl<N: Number> Loops for Plain<N> {
    type Wide = N::Wide;

    #[inline(always)]
    unsafe fn combine<O: Operator, const K: usize>(srcs: &[*const u8; K], dst: *mut u8, count: usize) {
        let srcs = *srcs;
        // SAFETY: the caller's promise.
        let out = unsafe { fresh(dst.cast::<Unaligned<N>>(), count) };
        fill(out, |i| {
            // SAFETY: i < count.
            let mut wide = unsafe { Self::at(srcs[0], i) };
            for &src in &srcs[1..] {
                // SAFETY: as above.
                wide = O::apply(wide, unsafe { Self::at(src, i) });
            }
            Unaligned(N::narrow(wide))
        });
    }

    #[inline(always)]
    unsafe fn fold<O: Operator>(src: *const u8, dst: *mut u8, count: usize) {
        // SAFETY: the caller's promise.
        let out = unsafe { slice::from_raw_parts_mut(dst.cast::<Unaligned<N>>(), count) };
        // SAFETY: i < count.
        update(out, |i, old| Unaligned(N::narrow(O::apply({ old.0 }.widen(), unsafe { Self::at(src, i) }))));
    }

    #[inline(always)]
    unsafe fn widen(src: *const u8, wide: *mut N::Wide, count: usize) {
        // SAFETY: the caller's promise; i < count.
        fill(unsafe { fresh(wide, count) }, |i| unsafe { Self::at(src, i) });
    }

    #[inline(always)]
    unsafe fn accumulate<O: Operator>(src: *const u8, wide: *mut N::Wide, count: usize) {
        // SAFETY: the caller's promise.
        let out = unsafe { slice::from_raw_parts_mut(wide, count) };
        // SAFETY: i < count.
        update(out, |i, old| O::apply(old, unsafe { Self::at(src, i) }));
    }

    #[inline(always)]
    unsafe fn narrow(wide: *const N::Wide, dst: *mut u8, count: usize) {
        // SAFETY: the caller's promise.
        let out = unsafe { fresh(dst.cast::<Unaligned<N>>(), count) };
        // SAFETY: i < count.
        fill(out, |i| Unaligned(N::narrow(unsafe { wide.add(i).read() })));
    }

    #[inline(always)]
    unsafe fn scale(src: *const u8, dst: *mut u8, count: usize, scalar: Scalar) {
        use super::number::Arithmetic;
        let factor = N::factor(scalar);
        // SAFETY: the caller's promise.
        let out = unsafe { fresh(dst.cast::<Unaligned<N>>(), count) };
        // SAFETY: i < count.
        fill(out, |i| Unaligned(N::narrow(unsafe { Self::at(src, i) }.prod(factor))));
    }

    #[inline(always)]
    unsafe fn divide(dst: *mut u8, count: usize, divisor: u32) {
        // SAFETY: the caller's promise.
        let out = unsafe { slice::from_raw_parts_mut(dst.cast::<Unaligned<N>>(), count) };
        update(out, |_, old| Unaligned({ old.0 }.divide(divisor)));
    }
}
