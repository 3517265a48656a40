//! Loops over 16-bit floats that hold two registers of f32 at a time.
//!
//! The two registers of a group need not hold the elements in order: an element only has to sit at the same place of
//! every group that is combined with it.

use std::marker::PhantomData;

use super::{
    loops::{Loops, Plain},
    number::{Arithmetic, Number, Operator},
};
use crate::Scalar;

/// A register of f32. Values exist only in code that runs on a CPU that has the register.
pub(super) trait Vector: Arithmetic {
    /// How many f32 it holds.
    const LANES: usize;

    fn splat(value: f32) -> Self;
    /// Whether any lane of either is NaN.
    fn any_nan(self, other: Self) -> bool;
    /// With the canonical NaN for every NaN.
    fn canonical(self) -> Self;
    /// # Safety
    /// `src` is valid for `LANES` f32.
    unsafe fn load(src: *const f32) -> Self;
    /// # Safety
    /// `dst` is valid for `LANES` f32.
    unsafe fn store(self, dst: *mut f32);
}

/// A 16-bit float that pairs of `V` are loaded from and stored to.
pub(super) trait Packed<V: Vector>: Number<Wide = f32> {
    /// # Safety
    /// `src` is valid for `2 * V::LANES` elements.
    unsafe fn load(src: *const u8) -> Pair<V>;
    /// Rounds to nearest, ties to even. Every NaN is the canonical one of f32, and becomes that of the type.
    ///
    /// # Safety
    /// `dst` is valid for `2 * V::LANES` elements.
    unsafe fn store(pair: Pair<V>, dst: *mut u8);
}

/// A group of elements.
#[derive(Clone, Copy)]
pub(super) struct Pair<V>(pub(super) V, pub(super) V);

impl<V: Arithmetic> Arithmetic for Pair<V> {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Pair(self.0.sum(other.0), self.1.sum(other.1))
    }
    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        Pair(self.0.prod(other.0), self.1.prod(other.1))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Pair(self.0.min(other.0), self.1.min(other.1))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Pair(self.0.max(other.0), self.1.max(other.1))
    }
}

impl<V: Vector> Pair<V> {
    /// With the canonical NaN for every NaN. One comparison tells that there is none, which is the rule.
    #[inline(always)]
    fn canonical(self) -> Self {
        if self.0.any_nan(self.1) { Self(self.0.canonical(), self.1.canonical()) } else { self }
    }
    /// # Safety
    /// `src` is valid for two registers.
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(V::load(src), V::load(src.add(V::LANES))) }
    }
    /// # Safety
    /// `dst` is valid for two registers.
    #[inline(always)]
    unsafe fn store(self, dst: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0.store(dst);
            self.1.store(dst.add(V::LANES));
        }
    }
}

/// Loops over `N` with registers `V`; what is left after the last whole group goes through [`Plain`].
pub(super) struct Vectors<N, V>(PhantomData<(N, V)>);

impl<N: Packed<V>, V: Vector> Vectors<N, V> {
    const GROUP: usize = 2 * V::LANES;

    /// How many of `count` elements make whole groups.
    #[inline(always)]
    fn whole(count: usize) -> usize {
        count - count % Self::GROUP
    }
    /// Where element `i` is, in bytes.
    #[inline(always)]
    fn offset(i: usize) -> usize {
        i * size_of::<N>()
    }
}

impl<N: Packed<V>, V: Vector> Loops for Vectors<N, V> {
    type Wide = f32;

    #[inline(always)]
    unsafe fn combine<O: Operator, const K: usize>(srcs: &[*const u8; K], dst: *mut u8, count: usize) {
        let srcs = *srcs;
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP).map(Self::offset) {
                let mut pair = N::load(srcs[0].add(i));
                for src in &srcs[1..] {
                    pair = O::apply(pair, N::load(src.add(i)));
                }
                N::store(pair.canonical(), dst.add(i));
            }
            let rest = Self::offset(whole);
            Plain::<N>::combine::<O, K>(&srcs.map(|src| src.add(rest)), dst.add(rest), count - whole);
        }
    }

    #[inline(always)]
    unsafe fn fold<O: Operator>(src: *const u8, dst: *mut u8, count: usize) {
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP).map(Self::offset) {
                let pair = O::apply(N::load(dst.add(i)), N::load(src.add(i)));
                N::store(pair.canonical(), dst.add(i));
            }
            let rest = Self::offset(whole);
            Plain::<N>::fold::<O>(src.add(rest), dst.add(rest), count - whole);
        }
    }

    #[inline(always)]
    unsafe fn widen(src: *const u8, wide: *mut f32, count: usize) {
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP) {
                N::load(src.add(Self::offset(i))).store(wide.add(i));
            }
            Plain::<N>::widen(src.add(Self::offset(whole)), wide.add(whole), count - whole);
        }
    }

    #[inline(always)]
    unsafe fn accumulate<O: Operator>(src: *const u8, wide: *mut f32, count: usize) {
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP) {
                O::apply(Pair::load(wide.add(i)), N::load(src.add(Self::offset(i)))).store(wide.add(i));
            }
            Plain::<N>::accumulate::<O>(src.add(Self::offset(whole)), wide.add(whole), count - whole);
        }
    }

    #[inline(always)]
    unsafe fn narrow(wide: *const f32, dst: *mut u8, count: usize) {
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP) {
                N::store(Pair::load(wide.add(i)).canonical(), dst.add(Self::offset(i)));
            }
            Plain::<N>::narrow(wide.add(whole), dst.add(Self::offset(whole)), count - whole);
        }
    }

    #[inline(always)]
    unsafe fn scale(src: *const u8, dst: *mut u8, count: usize, scalar: Scalar) {
        let factor = V::splat(N::factor(scalar));
        let whole = Self::whole(count);
        // SAFETY: all elements are below `count`, for which the caller vouches.
        unsafe {
            for i in (0..whole).step_by(Self::GROUP).map(Self::offset) {
                let pair = N::load(src.add(i)).prod(Pair(factor, factor));
                N::store(pair.canonical(), dst.add(i));
            }
            let rest = Self::offset(whole);
            Plain::<N>::scale(src.add(rest), dst.add(rest), count - whole, scalar);
        }
    }

    #[inline(always)]
    unsafe fn divide(dst: *mut u8, count: usize, divisor: u32) {
        // SAFETY: the caller's promise.
        unsafe { Plain::<N>::divide(dst, count, divisor) }
    }
}
