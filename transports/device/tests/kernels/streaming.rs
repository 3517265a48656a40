//! Results that bypass the cache, and what is refused.

use crate::{Call, data, plain};
use rondel_device::{
    Combine, DataType, Device, HostDevice, Keep, Operand, Ran, Reduction, Scalar, Token,
    kernels::{self, Level, STREAM_FROM},
};

#[test]
fn streaming_changes_no_bit() {
    let mut random = data::Random(11);
    for dtype in [DataType::F32, DataType::Bf16, DataType::U8, DataType::F64] {
        for extra in [0, 1, 37] {
            let count = STREAM_FROM / dtype.size() + extra;
            let inputs: Vec<_> = (0..5).map(|_| data::elements(dtype, count, &mut random)).collect();
            let misalign = [0, 3, dtype.size() * (1 + extra % 5), 64, 0];
            for k in 1..=5 {
                for raw in [false, true] {
                    let scalar = if dtype.is_float() { Scalar::Float(0.3) } else { Scalar::Int(3) };
                    let reduction = Reduction { pre: Some(scalar), ..plain(dtype, Combine::Sum) };
                    let operands: Vec<_> = inputs[..k].iter().map(|input| (&input[..], raw)).collect();
                    let call = |keep, in_place| {
                        let (level, reduction) = (Level::best(), &reduction);
                        let operands = &operands;
                        Call { level, reduction, operands, in_place, misalign: &misalign, last: true, keep }
                            .run()
                    };
                    let kept = call(Keep::Keep, None);
                    assert!(call(Keep::Stream, None) == kept, "{dtype}, {k} operands, raw {raw}");
                    assert!(
                        call(Keep::Stream, Some(k - 1)) == kept,
                        "{dtype}, {k} operands in place, raw {raw}"
                    );
                }
            }
        }
    }
}

#[test]
fn copies_are_exact_at_any_alignment() {
    let mut random = data::Random(5);
    for len in [0, 1, 63, 64, 65, 1000, STREAM_FROM - 1, STREAM_FROM, STREAM_FROM + 77] {
        let content = data::elements(DataType::U8, len, &mut random);
        for (from, to) in [(0, 0), (1, 0), (0, 1), (13, 63)] {
            for keep in [Keep::Keep, Keep::Stream] {
                let mut src = data::Memory::new(DataType::U8, &content, from);
                let mut dst = data::Memory::new(DataType::U8, &vec![0; len], to);
                // SAFETY: both have `len` bytes.
                unsafe { kernels::copy(src.addr(), dst.addr(), len, keep) };
                assert!(
                    dst.elements(DataType::U8) == content && dst.guarded(),
                    "{len} bytes, {from} to {to}, {keep:?}"
                );
            }
        }
    }
}

#[test]
fn the_host_device_is_done_at_once() {
    let (a, b, mut sum, mut copied) = ([1.5f32; 9], [2.0f32; 9], [0.0f32; 9], [0.0f32; 9]);
    let operands = [&a, &b].map(|array| Operand { addr: array.as_ptr().cast(), raw: true });
    let reduction = plain(DataType::F32, Combine::Sum);
    let mut device = HostDevice;
    // SAFETY: all arrays have 9 elements and are separate.
    unsafe {
        let dst = sum.as_mut_ptr().cast();
        assert_eq!(device.reduce(&reduction, &operands, dst, 9, true, Keep::Keep, Token(1)), Ran::Done);
        let (src, dst) = (sum.as_ptr().cast(), copied.as_mut_ptr().cast());
        assert_eq!(device.copy(src, dst, 36, Keep::Keep, Token(2)), Ran::Done);
    }
    let mut done = Vec::new();
    device.poll(&mut done).expect("never fails");
    assert!(done.is_empty());
    assert_eq!(copied, [3.5; 9]);
}

fn reduce_nothing(reduction: Reduction, operands: &[Operand]) {
    // SAFETY: no element is touched.
    unsafe { kernels::reduce(&reduction, operands, std::ptr::dangling_mut(), 0, true, Keep::Keep) };
}

#[test]
#[should_panic(expected = "at least one operand")]
fn no_operand_is_refused() {
    reduce_nothing(plain(DataType::F32, Combine::Sum), &[]);
}

#[test]
#[should_panic(expected = "an integer type takes an integer scalar")]
fn a_scalar_of_the_wrong_kind_is_refused() {
    let operand = Operand { addr: std::ptr::dangling(), raw: true };
    reduce_nothing(
        Reduction { pre: Some(Scalar::Float(0.5)), ..plain(DataType::I32, Combine::Sum) },
        &[operand],
    );
}
