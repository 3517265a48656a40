//! Inputs: random elements mixed with the ones that need care, and memory at any alignment.

use crate::reference;
use rondel_device::DataType;

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// All bits of an element.
pub(crate) fn mask(dtype: DataType) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size())
}

/// Elements that need care: zeros, ones, extremes and the numbers next to them; for floats of both signs, with
/// subnormal numbers, infinities and several NaN.
fn special(dtype: DataType) -> Vec<u64> {
    let mask = mask(dtype);
    let sign = mask ^ (mask >> 1);
    let near = |bits: u64| [bits.wrapping_sub(1) & mask, bits, bits.wrapping_add(1) & mask];
    let mut list: Vec<u64> = [0, sign, mask].into_iter().flat_map(near).collect();
    if dtype.is_float() {
        let mantissa = match dtype {
            DataType::F64 => 52,
            DataType::F32 => 23,
            DataType::F16 => 10,
            DataType::Bf16 => 7,
            DataType::F8E4M3 => 3,
            _ => 2,
        };
        let infinity = (mask >> 1) >> mantissa << mantissa;
        let one = reference::encode(dtype, 1.0);
        let smallest_normal = 1 << mantissa;
        let half_way = one | 1 << (mantissa - 1);
        let positive: Vec<u64> = [infinity, one, smallest_normal, half_way, infinity | 1 << (mantissa - 1)]
            .into_iter()
            .flat_map(near)
            .collect();
        list.extend(positive.iter().flat_map(|bits| [*bits, bits ^ sign]));
    }
    list
}

/// `count` elements: half of them random, a quarter special, a quarter of middling size so that sums round and seldom
/// overflow.
pub(crate) fn elements(dtype: DataType, count: usize, random: &mut Random) -> Vec<u64> {
    let special = special(dtype);
    let mut middling = || {
        let bits = random.next();
        match bits % 4 {
            0 => special[random.below(special.len())],
            1 if dtype.is_float() => {
                let value = (bits >> 32) as i32 as f64 / f64::from(1 << 24);
                reference::encode(dtype, value)
            }
            _ => random.next() & mask(dtype),
        }
    };
    (0..count).map(|_| middling()).collect()
}

/// Elements in memory at a chosen distance from an aligned address, with guard bytes on both sides.
#[derive(Clone)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xa5;
const MARGIN: usize = 128;

impl Memory {
    pub(crate) fn new(dtype: DataType, elements: &[u64], misalign: usize) -> Self {
        let len = elements.len() * dtype.size();
        let mut bytes = vec![GUARD; len + 2 * MARGIN];
        let start = bytes.as_ptr().align_offset(64) + misalign;
        for (i, element) in elements.iter().enumerate() {
            let at = start + i * dtype.size();
            bytes[at..at + dtype.size()].copy_from_slice(&element.to_le_bytes()[..dtype.size()]);
        }
        Self { bytes, start, len }
    }
    pub(crate) fn addr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }
    pub(crate) fn elements(&self, dtype: DataType) -> Vec<u64> {
        let elements = self.bytes[self.start..self.start + self.len].chunks_exact(dtype.size());
        let bits = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        elements.map(bits).collect()
    }
    pub(crate) fn guarded(&self) -> bool {
        let (before, rest) = self.bytes.split_at(self.start);
        before.iter().chain(&rest[self.len..]).all(|byte| *byte == GUARD)
    }
}
