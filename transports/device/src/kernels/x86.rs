//! 16-bit floats in the registers of AVX2 with F16C, and of AVX-512.
//!
//! f16 has conversions in hardware, which round and keep subnormals as we need it. bf16 is the upper half of an f32, so
//! a word of two becomes two f32 by a shift and a mask. Its rounding is done by hand: the conversion of AVX512_BF16
//! flushes subnormals.

use half::{bf16, f16};
use std::arch::x86_64::*;

use super::{
    number::Arithmetic,
    packed::{Packed, Pair, Vector},
};

// SAFETY of all blocks in this file: values of a register's type exist only in code that runs on a CPU that has it,
// and whoever loads the first one vouches for that; addresses are vouched for by the callers of `load` and `store`.

impl Arithmetic for __m256 {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // The instruction returns its second operand for zeros of both signs and for NaN: see the scalar version.
        // SAFETY: see above.
        unsafe { _mm256_or_ps(_mm256_min_ps(self, other), _mm256_min_ps(other, self)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let both = _mm256_and_ps(_mm256_max_ps(self, other), _mm256_max_ps(other, self));
            // All ones are a NaN.
            _mm256_or_ps(both, _mm256_cmp_ps::<_CMP_UNORD_Q>(self, other))
        }
    }
}

impl Vector for __m256 {
    const LANES: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    fn any_nan(self, other: Self) -> bool {
        // SAFETY: see above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(self, other)) != 0 }
    }
    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_blendv_ps(self, _mm256_set1_ps(f32::NAN), _mm256_cmp_ps::<_CMP_UNORD_Q>(self, self)) }
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(src) }
    }
    #[inline(always)]
    unsafe fn store(self, dst: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(dst, self) }
    }
}

impl Packed<__m256> for f16 {
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Pair<__m256> {
        // SAFETY: see above.
        unsafe {
            let half = |i| _mm256_cvtph_ps(_mm_loadu_si128(src.cast::<__m128i>().add(i)));
            Pair(half(0), half(1))
        }
    }
    #[inline(always)]
    unsafe fn store(pair: Pair<__m256>, dst: *mut u8) {
        // SAFETY: see above.
        unsafe {
            for (i, wide) in [pair.0, pair.1].into_iter().enumerate() {
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(dst.cast::<__m128i>().add(i), half);
            }
        }
    }
}

impl Packed<__m256> for bf16 {
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Pair<__m256> {
        // SAFETY: see above.
        unsafe {
            let words = _mm256_loadu_si256(src.cast());
            let odd = _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            Pair(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)), _mm256_castsi256_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn store(Pair(even, odd): Pair<__m256>, dst: *mut u8) {
        const ODD: i32 = 0b1010_1010;
        // SAFETY: see above.
        unsafe {
            let (even, odd) = (_mm256_castps_si256(even), _mm256_castps_si256(odd));
            let upper = _mm256_blend_epi16::<ODD>(_mm256_srli_epi32::<16>(even), odd);
            let lower = _mm256_blend_epi16::<ODD>(even, _mm256_slli_epi32::<16>(odd));
            // Up if more than half a unit is lost, or just half of one and the upper part is odd. Unsigned comparison by
            // way of a signed one. Of the canonical NaN nothing is lost.
            let lost = _mm256_or_si256(lower, _mm256_and_si256(upper, _mm256_set1_epi16(1)));
            let lost = _mm256_xor_si256(lost, _mm256_set1_epi16(i16::MIN));
            let up = _mm256_cmpgt_epi16(lost, _mm256_setzero_si256());
            _mm256_storeu_si256(dst.cast(), _mm256_sub_epi16(upper, up));
        }
    }
}

impl Arithmetic for __m512 {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    fn prod(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_or_ps(_mm512_min_ps(self, other), _mm512_min_ps(other, self)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let both = _mm512_and_ps(_mm512_max_ps(self, other), _mm512_max_ps(other, self));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, other);
            _mm512_mask_mov_ps(both, nan, _mm512_set1_ps(f32::NAN))
        }
    }
}

impl Vector for __m512 {
    const LANES: usize = 16;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn any_nan(self, other: Self) -> bool {
        // SAFETY: see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, other) != 0 }
    }
    #[inline(always)]
    fn canonical(self) -> Self {
        // SAFETY: see above.
        unsafe {
            _mm512_mask_mov_ps(self, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self), _mm512_set1_ps(f32::NAN))
        }
    }
    #[inline(always)]
    unsafe fn load(src: *const f32) -> Self {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(src) }
    }
    #[inline(always)]
    unsafe fn store(self, dst: *mut f32) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(dst, self) }
    }
}

impl Packed<__m512> for f16 {
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Pair<__m512> {
        // SAFETY: see above.
        unsafe {
            let half = |i| _mm512_cvtph_ps(_mm256_loadu_si256(src.cast::<__m256i>().add(i)));
            Pair(half(0), half(1))
        }
    }
    #[inline(always)]
    unsafe fn store(pair: Pair<__m512>, dst: *mut u8) {
        // SAFETY: see above.
        unsafe {
            for (i, wide) in [pair.0, pair.1].into_iter().enumerate() {
                let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm256_storeu_si256(dst.cast::<__m256i>().add(i), half);
            }
        }
    }
}

impl Packed<__m512> for bf16 {
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Pair<__m512> {
        // SAFETY: see above.
        unsafe {
            let words = _mm512_loadu_si512(src.cast());
            let odd = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            Pair(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), _mm512_castsi512_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn store(Pair(even, odd): Pair<__m512>, dst: *mut u8) {
        const ODD: __mmask32 = 0xaaaa_aaaa;
        /// `a | (b & c)`.
        const OR_AND: i32 = 0b1111_1000;
        // SAFETY: see above.
        unsafe {
            let (even, odd) = (_mm512_castps_si512(even), _mm512_castps_si512(odd));
            let upper = _mm512_mask_mov_epi16(_mm512_srli_epi32::<16>(even), ODD, odd);
            let lower = _mm512_mask_mov_epi16(even, ODD, _mm512_slli_epi32::<16>(odd));
            // Up if more than half a unit is lost, or just half of one and the upper part is odd. Of the canonical NaN
            // nothing is lost.
            let lost = _mm512_ternarylogic_epi32::<OR_AND>(lower, upper, _mm512_set1_epi16(1));
            let up = _mm512_cmpgt_epu16_mask(lost, _mm512_set1_epi16(i16::MIN));
            let rounded = _mm512_mask_sub_epi16(upper, up, upper, _mm512_set1_epi16(-1));
            _mm512_storeu_si512(dst.cast(), rounded);
        }
    }
}
