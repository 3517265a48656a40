//! The two 8-bit floating-point types.

use crate::minifloat::{Layout, decode, encode};

/// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (the "fn" variant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// 8-bit float, 5 exponent and 2 mantissa bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

macro_rules! float8 {
    ($name:ident, $layout:expr, $max:literal, $nan:literal) => {
        impl $name {
            /// The largest finite value.
            pub const MAX: Self = Self($max);
            /// The NaN that our kernels write.
            pub const NAN: Self = Self($nan);

            /// Rounds to nearest, ties to even. What is too large, infinities included, becomes the largest finite
            /// value of its sign; every NaN becomes [`NAN`](Self::NAN).
            #[inline(always)]
            pub fn from_f32(value: f32) -> Self {
                const LAYOUT: Layout = $layout;
                Self(encode(LAYOUT, value) as u8)
            }
            /// The same value; exact.
            #[inline(always)]
            pub fn to_f32(self) -> f32 {
                const LAYOUT: Layout = $layout;
                decode(LAYOUT, u32::from(self.0))
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> f32 {
                value.to_f32()
            }
        }
    };
}

float8!(F8E4M3, Layout::E4M3, 0x7e, 0x7f);
float8!(F8E5M2, Layout::E5M2, 0x7b, 0x7e);
