//! What a reduction has to yield, element by element, written to be obvious: numbers are decoded by the definition of
//! their format, and encoded by search among all numbers of the format. Shares no code with the kernels.

use rondel_device::{Combine, DataType, Reduction, Scalar};
use std::sync::OnceLock;

/// A format of 8 or 16 bits.
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Whether the largest exponent holds infinity and NaN, or numbers up to the one NaN (f8e4m3).
    ieee: bool,
    /// Whether what is too large becomes the largest finite number, or infinity.
    saturates: bool,
    nan: u64,
    /// The value of every non-negative finite code, ascending.
    values: OnceLock<Vec<f64>>,
}

impl Format {
    const fn new(exponent_bits: u32, mantissa_bits: u32, ieee: bool, saturates: bool, nan: u64) -> Self {
        Self { exponent_bits, mantissa_bits, ieee, saturates, nan, values: OnceLock::new() }
    }

    fn decode(&self, bits: u64) -> f64 {
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let exponent = (bits >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1);
        let sign = if bits >> (self.mantissa_bits + self.exponent_bits) == 1 { -1.0 } else { 1.0 };
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let fraction = mantissa as f64 / f64::from(1 << self.mantissa_bits);
        let top = exponent == (1 << self.exponent_bits) - 1;
        let all_ones = mantissa == (1 << self.mantissa_bits) - 1;
        match (exponent, top) {
            (_, true) if self.ieee && mantissa == 0 => sign * f64::INFINITY,
            (_, true) if self.ieee || all_ones => f64::NAN,
            (0, _) => sign * fraction * 2f64.powi(1 - bias),
            _ => sign * (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
        }
    }

    fn encode(&self, value: f64) -> u64 {
        if value.is_nan() {
            return self.nan;
        }
        let values = self.values.get_or_init(|| {
            let codes = 0..1 << (self.exponent_bits + self.mantissa_bits);
            codes.map(|code| self.decode(code)).take_while(|value| value.is_finite()).collect()
        });
        let magnitude = value.abs();
        let largest = values.len() - 1;
        // The number of the format that would follow the largest if exponents went on.
        let beyond = values[largest] + (values[largest] - values[largest - 1]);
        let above = values.partition_point(|v| *v < magnitude);
        let code = if above > largest && self.saturates {
            largest
        } else if above == 0 {
            0
        } else {
            let (low, high) = (values[above - 1], *values.get(above).unwrap_or(&beyond));
            let nearer_high = magnitude - low > high - magnitude;
            let tie = magnitude - low == high - magnitude;
            let up = nearer_high || magnitude.is_infinite() || (tie && above.is_multiple_of(2));
            if up { above } else { above - 1 }
        };
        (code as u64) | (u64::from(value.is_sign_negative()) << (self.exponent_bits + self.mantissa_bits))
    }
}

fn format(dtype: DataType) -> Option<&'static Format> {
    static F16: Format = Format::new(5, 10, true, false, 0x7e00);
    static BF16: Format = Format::new(8, 7, true, false, 0x7fc0);
    static E4M3: Format = Format::new(4, 3, false, true, 0x7f);
    static E5M2: Format = Format::new(5, 2, true, true, 0x7e);
    match dtype {
        DataType::F16 => Some(&F16),
        DataType::Bf16 => Some(&BF16),
        DataType::F8E4M3 => Some(&E4M3),
        DataType::F8E5M2 => Some(&E5M2),
        _ => None,
    }
}

/// The value of an element of a floating type; exact.
pub(crate) fn decode(dtype: DataType, bits: u64) -> f64 {
    match (dtype, format(dtype)) {
        (_, Some(format)) => format.decode(bits),
        (DataType::F32, _) => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// The nearest element of a floating type.
pub(crate) fn encode(dtype: DataType, value: f64) -> u64 {
    match (dtype, format(dtype)) {
        (_, Some(format)) => format.encode(value),
        (DataType::F32, _) if value.is_nan() => 0x7fc0_0000,
        (DataType::F32, _) => u64::from((value as f32).to_bits()),
        _ if value.is_nan() => 0x7ff8_0000_0000_0000,
        _ => value.to_bits(),
    }
}

/// Smallest or largest, with NaN above all and -0 below +0.
pub(crate) fn extreme(combine: Combine, a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let a_first = if a == b { a.is_sign_negative() } else { a < b };
    if a_first == (combine == Combine::Min) { a } else { b }
}

/// One element of the result from that element of every operand, with whether the operand is raw.
pub(crate) fn reduce(reduction: &Reduction, operands: &[(u64, bool)], last: bool) -> u64 {
    let scaled = reduction.pre.is_some() && operands[0].1;
    let divided = last && reduction.divide.is_some();
    if operands.len() == 1 && !scaled && !divided {
        return operands[0].0;
    }
    match reduction.dtype {
        DataType::Bool => {
            let mut truths = operands.iter().map(|(bits, _)| *bits != 0);
            u64::from(match reduction.combine {
                Combine::Sum | Combine::Max => truths.any(|truth| truth),
                Combine::Prod | Combine::Min => truths.all(|truth| truth),
            })
        }
        dtype if dtype.is_float() => reduce_floats(reduction, operands),
        _ => reduce_integers(reduction, operands, last),
    }
}

fn reduce_floats(reduction: &Reduction, operands: &[(u64, bool)]) -> u64 {
    let dtype = reduction.dtype;
    // f64 computes in itself, all others in f32.
    let round = |value: f64| if dtype == DataType::F64 { value } else { f64::from(value as f32) };
    let values = operands.iter().map(|&(bits, raw)| match reduction.pre {
        Some(Scalar::Float(scalar)) if raw => {
            decode(dtype, encode(dtype, round(decode(dtype, bits) * round(scalar))))
        }
        _ => decode(dtype, bits),
    });
    // The sum or product of two f32, rounded to f64 and then to f32, is the one rounded once: 53 >= 2 * 24 + 2.
    let result = values.reduce(|a, b| match reduction.combine {
        Combine::Sum => round(a + b),
        Combine::Prod => round(a * b),
        combine => extreme(combine, a, b),
    });
    encode(dtype, result.expect("an operand"))
}

fn reduce_integers(reduction: &Reduction, operands: &[(u64, bool)], last: bool) -> u64 {
    let width = 8 * reduction.dtype.size() as u32;
    let signed = matches!(reduction.dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64);
    let mask = (1i128 << width) - 1;
    let wrap = |value: i128| {
        let value = value & mask;
        if signed && value >> (width - 1) == 1 { value - (1 << width) } else { value }
    };
    let values = operands.iter().map(|&(bits, raw)| match reduction.pre {
        Some(Scalar::Int(scalar)) if raw => wrap(wrap(i128::from(bits)) * i128::from(scalar)),
        _ => wrap(i128::from(bits)),
    });
    let result = values.reduce(|a, b| match reduction.combine {
        Combine::Sum => wrap(a + b),
        // Wrapped factors of 64 bits have a product of at most 128, which may exceed i128 by one bit.
        Combine::Prod => wrap(a.wrapping_mul(b)),
        Combine::Min => a.min(b),
        Combine::Max => a.max(b),
    });
    let result = result.expect("an operand");
    let result = match reduction.divide {
        Some(divisor) if last => result / i128::from(divisor.get()),
        _ => result,
    };
    (result & mask) as u64
}
