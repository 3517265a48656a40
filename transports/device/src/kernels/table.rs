//! Which function serves which type and operator, per level.

use super::{
    Level,
    loops::{Loops, Plain},
    number::{Max, Min, Operator, Prod, Sum, Truth},
};
use crate::{Combine, DataType, F8E4M3, F8E5M2, Scalar};
use half::{bf16, f16};

/// The kernels of one type and operator; see [`Loops`] for what each does and asks of its caller. Accumulators are
/// untyped here, `wide_size` bytes an element.
pub(super) struct Kernels {
    /// With as many sources as the index says, counted from two.
    pub(super) combine: [unsafe fn(*const *const u8, *mut u8, usize); 3],
    pub(super) fold: unsafe fn(*const u8, *mut u8, usize),
    pub(super) widen: unsafe fn(*const u8, *mut u8, usize),
    pub(super) accumulate: unsafe fn(*const u8, *mut u8, usize),
    pub(super) narrow: unsafe fn(*const u8, *mut u8, usize),
    pub(super) scale: unsafe fn(*const u8, *mut u8, usize, Scalar),
    pub(super) divide: unsafe fn(*mut u8, usize, u32),
    pub(super) wide_size: usize,
}

/// Rows in the order of the types, columns in the order of the operators.
type Table = [[Kernels; 4]; DataType::ALL.len()];

/// The kernels of a level that this CPU has.
pub(super) fn kernels(level: Level, dtype: DataType, combine: Combine) -> &'static Kernels {
    let table = match level {
        Level::Portable => &portable::TABLE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &avx512::TABLE,
    };
    &table[dtype as usize][combine as usize]
}

/// A module with all loops, compiled for some CPU features. `$half` and `$bhalf` are the loops over 16-bit floats.
macro_rules! level {
    ($name:ident, [$(#[$features:meta])*], $half:ty, $bhalf:ty) => {
        mod $name {
            use super::*;

            $(#[$features])*
            unsafe fn combine<L: Loops, O: Operator, const K: usize>(srcs: *const *const u8, dst: *mut u8, n: usize) {
                // SAFETY: the caller's promise, with K sources.
                unsafe { L::combine::<O, K>(&*srcs.cast(), dst, n) }
            }
            $(#[$features])*
            unsafe fn fold<L: Loops, O: Operator>(src: *const u8, dst: *mut u8, n: usize) {
                // SAFETY: the caller's promise.
                unsafe { L::fold::<O>(src, dst, n) }
            }
            $(#[$features])*
            unsafe fn widen<L: Loops>(src: *const u8, wide: *mut u8, n: usize) {
                // SAFETY: the caller's promise.
                unsafe { L::widen(src, wide.cast(), n) }
            }
            $(#[$features])*
            unsafe fn accumulate<L: Loops, O: Operator>(src: *const u8, wide: *mut u8, n: usize) {
                // SAFETY: the caller's promise.
                unsafe { L::accumulate::<O>(src, wide.cast(), n) }
            }
            $(#[$features])*
            unsafe fn narrow<L: Loops>(wide: *const u8, dst: *mut u8, n: usize) {
                // SAFETY: the caller's promise.
                unsafe { L::narrow(wide.cast(), dst, n) }
            }
            $(#[$features])*
            unsafe fn scale<L: Loops>(src: *const u8, dst: *mut u8, n: usize, scalar: Scalar) {
                // SAFETY: the caller's promise.
                unsafe { L::scale(src, dst, n, scalar) }
            }
            $(#[$features])*
            unsafe fn divide<L: Loops>(dst: *mut u8, n: usize, divisor: u32) {
                // SAFETY: the caller's promise.
                unsafe { L::divide(dst, n, divisor) }
            }

            const fn kernels<L: Loops, O: Operator>() -> Kernels {
                Kernels {
                    combine: [combine::<L, O, 2>, combine::<L, O, 3>, combine::<L, O, 4>],
                    fold: fold::<L, O>,
                    widen: widen::<L>,
                    accumulate: accumulate::<L, O>,
                    narrow: narrow::<L>,
                    scale: scale::<L>,
                    divide: divide::<L>,
                    wide_size: size_of::<L::Wide>(),
                }
            }

            /// `M` knows the sign of an integer; where wrapping makes it irrelevant, both signs share the code of `L`.
            const fn row<L: Loops, M: Loops>() -> [Kernels; 4] {
                let sum = Kernels { divide: divide::<M>, ..kernels::<L, Sum>() };
                let prod = Kernels { divide: divide::<M>, ..kernels::<L, Prod>() };
                [sum, prod, kernels::<M, Min>(), kernels::<M, Max>()]
            }
            const fn uniform<L: Loops>() -> [Kernels; 4] {
                row::<L, L>()
            }

            pub(super) static TABLE: Table = [
                row::<Plain<u8>, Plain<i8>>(),
                uniform::<Plain<u8>>(),
                row::<Plain<u16>, Plain<i16>>(),
                uniform::<Plain<u16>>(),
                row::<Plain<u32>, Plain<i32>>(),
                uniform::<Plain<u32>>(),
                row::<Plain<u64>, Plain<i64>>(),
                uniform::<Plain<u64>>(),
                uniform::<Plain<Truth>>(),
                uniform::<$half>(),
                uniform::<$bhalf>(),
                uniform::<Plain<f32>>(),
                uniform::<Plain<f64>>(),
                uniform::<Plain<F8E4M3>>(),
                uniform::<Plain<F8E5M2>>(),
            ];
        }
    };
}

level!(portable, [], Plain<f16>, Plain<bf16>);

#[cfg(target_arch = "x86_64")]
use {
    super::packed::Vectors,
    std::arch::x86_64::{__m256, __m512},
};

#[cfg(target_arch = "x86_64")]
level!(avx2, [#[target_feature(enable = "avx2,f16c")]], Vectors<f16, __m256>, Vectors<bf16, __m256>);

#[cfg(target_arch = "x86_64")]
level!(
    avx512,
    [#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]],
    Vectors<f16, __m512>,
    Vectors<bf16, __m512>
);
