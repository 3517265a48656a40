//! All types, operators, operand counts and marks, at counts and addresses that hit every path of the loops.

use crate::{COMBINES, Call, data, expected, plain};
use rondel_device::{DataType, Keep, Reduction, Scalar, kernels::Level};
use std::num::NonZeroU32;

/// Longest result: several blocks of the narrowest and of the widest type.
const LONGEST: usize = 4500;

/// The reductions of a type and operator: plain, scaled, divided.
fn reductions(dtype: DataType) -> Vec<Reduction> {
    let divide = |n| NonZeroU32::new(n);
    let pre: &[Option<Scalar>] = match dtype {
        DataType::Bool => &[None],
        _ if dtype.is_float() => &[None, Some(Scalar::Float(1.0 / 3.0)), Some(Scalar::Float(-1e5))],
        _ => &[None, Some(Scalar::Int(-3)), Some(Scalar::Int(i64::MIN + 7))],
    };
    let integer = !dtype.is_float() && dtype != DataType::Bool;
    let divisors = if integer { vec![None, divide(3), divide(300), divide(u32::MAX)] } else { vec![None] };
    let mut list = Vec::new();
    for combine in COMBINES {
        for &pre in pre {
            list.extend(divisors.iter().map(|&divide| Reduction { pre, divide, ..plain(dtype, combine) }));
        }
    }
    list
}

/// Checks one reduction of `k` operands with one pattern of raw operands at all levels.
fn check(reduction: &Reduction, k: usize, raw: impl Fn(usize) -> bool, random: &mut data::Random) {
    let dtype = reduction.dtype;
    let inputs: Vec<_> = (0..k).map(|_| data::elements(dtype, LONGEST, random)).collect();
    let whole: Vec<_> = inputs.iter().enumerate().map(|(i, input)| (input.as_slice(), raw(i))).collect();
    let last = random.below(4) > 0;
    let expected = expected(reduction, &whole, last);
    let long = [127, 128, 129, 255, 257, 511, 512, 513, 1023, 1025, LONGEST];
    let counts: Vec<usize> =
        (0..=70).step_by(2 + random.below(8)).chain([long[random.below(long.len())]]).collect();
    for &level in Level::available() {
        for (i, &count) in counts.iter().enumerate() {
            // Different elements in the same place of a register from one count to the next.
            let from = random.below(LONGEST - count + 1);
            let operands: Vec<_> =
                whole.iter().map(|(input, raw)| (&input[from..from + count], *raw)).collect();
            let call = Call {
                level,
                reduction,
                operands: &operands,
                in_place: [None, Some(i % k)][i % 2],
                misalign: &[random.below(64), random.below(64), 0, random.below(8)],
                last,
                keep: Keep::Keep,
            };
            call.check(&expected[from..from + count]);
        }
    }
}

fn check_type(dtype: DataType) {
    let mut random = data::Random(dtype as u64);
    for reduction in reductions(dtype) {
        for k in 1..=6 {
            check(&reduction, k, |_| false, &mut random);
            if reduction.pre.is_some() {
                check(&reduction, k, |_| true, &mut random);
                check(&reduction, k, |i| i == k / 2, &mut random);
            }
        }
    }
}

macro_rules! types {
    ($($name:ident: $dtype:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            check_type(DataType::$dtype);
        }
    )*};
}

types! {
    i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64, bool: Bool, f16: F16, bf16: Bf16, f32: F32,
    f64: F64, f8e4m3: F8E4M3, f8e5m2: F8E5M2,
}

#[test]
fn every_count_up_to_two_registers() {
    let mut random = data::Random(7);
    for dtype in DataType::ALL {
        let reduction = plain(dtype, rondel_device::Combine::Sum);
        let inputs = [data::elements(dtype, 200, &mut random), data::elements(dtype, 200, &mut random)];
        for count in 0..=200 {
            let operands = [(&inputs[0][..count], false), (&inputs[1][..count], false)];
            let expected = expected(&reduction, &operands, true);
            for &level in Level::available() {
                for in_place in [None, Some(0), Some(1)] {
                    let misalign = [count % 7, 0, 3];
                    Call {
                        level,
                        reduction: &reduction,
                        operands: &operands,
                        in_place,
                        misalign: &misalign,
                        last: true,
                        keep: Keep::Keep,
                    }
                    .check(&expected);
                }
            }
        }
    }
}
