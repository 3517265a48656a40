//! All values of the small types.

use crate::{COMBINES, Call, expected, plain, reference};
use rondel_device::{Combine, DataType, F8E4M3, F8E5M2, Keep, Reduction, Scalar, kernels::Level};

fn at_all_levels(reduction: &Reduction, operands: &[(&[u64], bool)], expected: &[u64]) {
    for &level in Level::available() {
        let call =
            Call { level, reduction, operands, in_place: None, misalign: &[0], last: true, keep: Keep::Keep };
        call.check(expected);
    }
}

#[test]
fn fp8_pairs_are_rounded_from_the_exact_result() {
    let first: Vec<u64> = (0..1 << 16).map(|pair| pair >> 8).collect();
    let second: Vec<u64> = (0..1 << 16).map(|pair| pair & 0xff).collect();
    for dtype in [DataType::F8E4M3, DataType::F8E5M2] {
        for combine in COMBINES {
            // f64 holds every sum and product of two such numbers exactly.
            let exact = |(a, b): (&u64, &u64)| {
                let (a, b) = (reference::decode(dtype, *a), reference::decode(dtype, *b));
                reference::encode(
                    dtype,
                    match combine {
                        Combine::Sum => a + b,
                        Combine::Prod => a * b,
                        _ => reference::extreme(combine, a, b),
                    },
                )
            };
            let expected: Vec<u64> = first.iter().zip(&second).map(exact).collect();
            let operands = [(first.as_slice(), false), (second.as_slice(), false)];
            at_all_levels(&plain(dtype, combine), &operands, &expected);
        }
    }
}

#[test]
fn sixteen_bit_values_survive_a_sum_with_nothing() {
    let all: Vec<u64> = (0..1 << 16).collect();
    for (dtype, infinity, nan) in [(DataType::F16, 0x7c00, 0x7e00), (DataType::Bf16, 0x7f80, 0x7fc0)] {
        // -0 is the neutral element: +0 would turn -0 into +0.
        let nothing = vec![0x8000; all.len()];
        let expected: Vec<u64> =
            all.iter().map(|bits| if bits & 0x7fff > infinity { nan } else { *bits }).collect();
        at_all_levels(&plain(dtype, Combine::Sum), &[(&all, false), (&nothing, false)], &expected);
    }
}

#[test]
fn sixteen_bit_values_are_scaled_and_rounded() {
    let all: Vec<u64> = (0..1 << 16).collect();
    for dtype in [DataType::F16, DataType::Bf16] {
        // Thirds round everywhere, halves tie in subnormal numbers, and large factors overflow.
        for factor in [1.0 / 3.0, 0.5, 1.0 / 4096.0, 1.0009765625, 1.001953125, -3.0, 1e5] {
            let reduction = Reduction { pre: Some(Scalar::Float(factor)), ..plain(dtype, Combine::Sum) };
            let operands = [(all.as_slice(), true)];
            at_all_levels(&reduction, &operands, &expected(&reduction, &operands, true));
        }
    }
}

#[test]
fn sixteen_bit_values_are_compared_with_special_ones() {
    let all: Vec<u64> = (0..1 << 16).collect();
    for dtype in [DataType::F16, DataType::Bf16] {
        for combine in [Combine::Min, Combine::Max, Combine::Prod, Combine::Sum] {
            for other in [0x8000, 0x0001, 0x3c01, 0x7c00, 0xff80] {
                let others = vec![other; all.len()];
                for operands in
                    [[(&all[..], false), (&others[..], false)], [(&others[..], false), (&all[..], false)]]
                {
                    let reduction = plain(dtype, combine);
                    at_all_levels(&reduction, &operands, &expected(&reduction, &operands, true));
                }
            }
        }
    }
}

#[test]
fn the_reference_rounds_as_the_half_crate_does() {
    for code in (0..=u32::MAX).step_by(9973) {
        let value = f32::from_bits(code);
        if !value.is_nan() {
            let f16 = half::f16::from_f32(value).to_bits();
            assert_eq!(reference::encode(DataType::F16, value.into()), u64::from(f16), "{value:e}");
            let bf16 = half::bf16::from_f32(value).to_bits();
            assert_eq!(reference::encode(DataType::Bf16, value.into()), u64::from(bf16), "{value:e}");
        }
    }
}

#[test]
fn fp8_types_convert_like_the_reference() {
    let near_ties =
        (0..1u32 << 16).flat_map(|upper| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|l| upper << 16 | l));
    for code in near_ties {
        let value = f32::from_bits(code);
        let wide = f64::from(value);
        assert_eq!(
            u64::from(F8E4M3::from_f32(value).0),
            reference::encode(DataType::F8E4M3, wide),
            "{value:e}"
        );
        assert_eq!(
            u64::from(F8E5M2::from_f32(value).0),
            reference::encode(DataType::F8E5M2, wide),
            "{value:e}"
        );
    }
    for code in 0..=u8::MAX {
        let same = |ours: f32, bits: f64| {
            f64::from(ours).to_bits() == bits.to_bits() || (ours.is_nan() && bits.is_nan())
        };
        assert!(same(F8E4M3(code).to_f32(), reference::decode(DataType::F8E4M3, code.into())), "{code:#x}");
        assert!(same(F8E5M2(code).to_f32(), reference::decode(DataType::F8E5M2, code.into())), "{code:#x}");
    }
    assert_eq!(f32::from(F8E4M3::MAX), 448.0);
    assert_eq!(f32::from(F8E5M2::MAX), 57344.0);
    assert!(f32::from(F8E4M3::NAN).is_nan() && f32::from(F8E5M2::NAN).is_nan());
}
