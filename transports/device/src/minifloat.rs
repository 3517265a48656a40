//! Conversion between f32 and floats of 16 bits or fewer, without branches, so that loops over it become vector code
//! on every CPU.

/// How a float with a 5-bit or smaller exponent lies in its bits: sign, exponent, mantissa.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Bits of the mantissa.
    mantissa: u32,
    /// What is subtracted from a stored exponent.
    bias: u32,
    /// All bits but the sign.
    magnitude: u32,
    /// The largest magnitude that an encoded number may have: infinity, or the largest finite one where values saturate.
    limit: u32,
    /// The smallest magnitude that means infinity or NaN.
    special: u32,
    /// The NaN that is written.
    nan: u32,
}

impl Layout {
    pub(crate) const F16: Self =
        Self { mantissa: 10, bias: 15, magnitude: 0x7fff, limit: 0x7c00, special: 0x7c00, nan: 0x7e00 };
    pub(crate) const E4M3: Self =
        Self { mantissa: 3, bias: 7, magnitude: 0x7f, limit: 0x7e, special: 0x7f, nan: 0x7f };
    pub(crate) const E5M2: Self =
        Self { mantissa: 2, bias: 15, magnitude: 0x7f, limit: 0x7b, special: 0x7c, nan: 0x7e };

    /// From a bit of the small mantissa to the same bit of f32's.
    const fn shift(self) -> u32 {
        23 - self.mantissa
    }
    /// Added to a small number's shifted bits, it turns its exponent into f32's.
    const fn rebias(self) -> u32 {
        (127 - self.bias) << 23
    }
    /// The bits of the f32 that is 2 to the power of `exponent`.
    const fn power_of_two(exponent: i32) -> u32 {
        ((127 + exponent) as u32) << 23
    }
    /// The exponent of the smallest subnormal number.
    const fn unit(self) -> i32 {
        1 - self.bias as i32 - self.mantissa as i32
    }
}

/// The value of `bits`; exact. `layout` is a constant at every call, and so is all that depends on it alone.
#[inline(always)]
pub(crate) fn decode(layout: Layout, bits: u32) -> f32 {
    let magnitude = bits & layout.magnitude;
    let sign = (bits & (layout.magnitude + 1)) << (31 - layout.magnitude.count_ones());
    let shifted = (magnitude << layout.shift()) + layout.rebias();
    // A subnormal number counts units. Converting the count avoids f32 subnormals, with which CPUs multiply slowly.
    let unit = f32::from_bits(Layout::power_of_two(layout.unit()));
    let subnormal = (magnitude as i32 as f32 * unit).to_bits();
    let finite = if magnitude < 1 << layout.mantissa { subnormal } else { shifted };
    // All ones in the exponent make the infinity or NaN of f32; the payload of a NaN is at least one bit.
    let special = shifted | 0x7f80_0000;
    f32::from_bits(sign | if magnitude >= layout.special { special } else { finite })
}

/// The nearest number of the layout, ties to even, and the canonical NaN for every NaN.
#[inline(always)]
pub(crate) fn encode(layout: Layout, value: f32) -> u32 {
    let shift = layout.shift();
    let limit = (layout.limit << shift) + layout.rebias();
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let sign = (value.to_bits() & 0x8000_0000) >> (31 - layout.magnitude.count_ones());
    let bounded = if magnitude > limit { limit } else { magnitude };
    let odd = (bounded >> shift) & 1;
    let normal = (bounded + (1 << (shift - 1)) - 1 + odd).wrapping_sub(layout.rebias()) >> shift;
    // The last place of `anchor` is one unit of the subnormal numbers: the addition rounds to units.
    let anchor = Layout::power_of_two(23 + layout.unit());
    let subnormal = (f32::from_bits(bounded) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
    let smallest_normal = Layout::power_of_two(1 - layout.bias as i32);
    let rounded = if bounded < smallest_normal { subnormal } else { normal };
    if magnitude > 0x7f80_0000 { layout.nan } else { sign | rounded }
}
