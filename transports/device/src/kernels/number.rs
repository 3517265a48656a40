//! The arithmetic of every element type: what all loops of all levels have in common, and so what fixes the bits.
//!
//! A NaN that an addition yields has a payload and sign that depend on how a compiler ordered the operands. So no result
//! keeps them: whatever is written as an element is written by [`Number::narrow`], which makes every NaN canonical.

use half::{bf16, f16};

use crate::{
    F8E4M3, F8E5M2, Scalar,
    minifloat::{Layout, decode, encode},
};

/// The four ways to combine, on one number or on a register of them. All are commutative.
pub(super) trait Arithmetic: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    /// NaN if one is NaN; -0 is less than +0.
    fn min(self, other: Self) -> Self;
    /// NaN if one is NaN; +0 is greater than -0.
    fn max(self, other: Self) -> Self;
}

/// One of the four ways, as a type to instantiate loops with.
pub(super) trait Operator {
    fn apply<A: Arithmetic>(a: A, b: A) -> A;
}

macro_rules! operators {
    ($($name:ident: $method:ident),*) => {$(
        pub(super) struct $name;
        impl Operator for $name {
            #[inline(always)]
            fn apply<A: Arithmetic>(a: A, b: A) -> A {
                a.$method(b)
            }
        }
    )*};
}
operators!(Sum: sum, Prod: prod, Min: min, Max: max);

/// An element type.
pub(super) trait Number: Copy {
    /// What partial results are computed in.
    type Wide: Arithmetic;

    fn widen(self) -> Self::Wide;
    /// Rounds to nearest, ties to even; NaN becomes canonical.
    fn narrow(wide: Self::Wide) -> Self;
    /// A scalar in the type that it is multiplied in. Total: whether the kind fits is checked where kernels are entered.
    fn factor(scalar: Scalar) -> Self::Wide;
    /// Truncates. Total: that only integers are divided is checked where kernels are entered.
    fn divide(self, divisor: u32) -> Self;
}

macro_rules! integers {
    ($quotient:ident: $($int:ident),*) => {$(
        impl Arithmetic for $int {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
        }

        impl Number for $int {
            type Wide = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
            #[inline(always)]
            fn factor(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(value) => value as Self,
                    Scalar::Float(value) => value as Self,
                }
            }
            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                $quotient!(self, divisor)
            }
        }
    )*};
}

/// The truncated quotient of numbers of at most 32 bits, by a multiplication, which vector units do well. Half a unit
/// away from zero changes no quotient, and keeps it further from the next integer (1/2n at least) than f64 can err.
macro_rules! short_quotient {
    ($dividend:expr, $divisor:expr) => {{
        let dividend = f64::from($dividend);
        let quotient = (dividend + 0.5_f64.copysign(dividend)) * (1.0 / f64::from($divisor));
        // SAFETY: the quotient is finite and no larger than the dividend, which is of this type, but for the fraction.
        unsafe { quotient.to_int_unchecked::<Self>() }
    }};
}
/// The same for numbers of 64 bits.
macro_rules! long_quotient {
    ($dividend:expr, $divisor:expr) => {
        $dividend / Self::from($divisor)
    };
}
integers!(short_quotient: i8, u8, i16, u16, i32, u32);
integers!(long_quotient: i64, u64);

/// The byte of a `bool`. Any byte but 0 is read as true; 0 or 1 is written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Arithmetic for Truth {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.prod(other)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.sum(other)
    }
}

impl Number for Truth {
    type Wide = Self;

    #[inline(always)]
    fn widen(self) -> Self {
        Self(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn narrow(wide: Self) -> Self {
        wide
    }
    #[inline(always)]
    fn factor(_: Scalar) -> Self {
        Self(1)
    }
    #[inline(always)]
    fn divide(self, _: u32) -> Self {
        self
    }
}

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Arithmetic for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                // The two selections differ only for zeros of both signs, whose union is -0, and where one number is
                // NaN, whose union with the other is NaN.
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let one = if self > other { self } else { other };
                let two = if other > self { other } else { self };
                let both = Self::from_bits(one.to_bits() & two.to_bits());
                if self.is_nan() | other.is_nan() { Self::NAN } else { both }
            }
        }

        impl Number for $float {
            type Wide = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                if wide.is_nan() { Self::from_bits(Self::NAN.to_bits()) } else { wide }
            }
            #[inline(always)]
            fn factor(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(value) => value as Self,
                    Scalar::Float(value) => value as Self,
                }
            }
            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                Self::narrow(self / divisor as Self)
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! small_floats {
    ($($float:ty: $value:ident => $widen:expr, $wide:ident => $narrow:expr;)*) => {$(
        impl Number for $float {
            type Wide = f32;

            #[inline(always)]
            fn widen(self) -> f32 {
                let $value = self;
                $widen
            }
            #[inline(always)]
            fn narrow($wide: f32) -> Self {
                $narrow
            }
            #[inline(always)]
            fn factor(scalar: Scalar) -> f32 {
                f32::factor(scalar)
            }
            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                Self::narrow(self.widen() / divisor as f32)
            }
        }
    )*};
}
small_floats! {
    F8E4M3: value => value.to_f32(), wide => F8E4M3::from_f32(wide);
    F8E5M2: value => value.to_f32(), wide => F8E5M2::from_f32(wide);
    f16: value => decode(Layout::F16, u32::from(value.to_bits())), wide => f16::from_bits(encode(Layout::F16, wide) as u16);
    bf16: value => f32::from_bits(u32::from(value.to_bits()) << 16), wide => {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        bf16::from_bits(if wide.is_nan() { 0x7fc0 } else { rounded as u16 })
    };
}
