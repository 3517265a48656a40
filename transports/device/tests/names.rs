//! Types and operators as users name them, and what they turn into.

use rondel_device::{Combine, DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};
use std::num::NonZeroU32;

#[test]
fn types_have_the_names_of_nccl_tests_and_read_them_back() {
    let names = [
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "half", "bfloat16",
        "float", "double", "f8e4m3", "f8e5m2",
    ];
    for (dtype, name) in DataType::ALL.into_iter().zip(names) {
        assert_eq!(dtype.to_string(), name);
        assert_eq!(name.parse(), Ok(dtype));
    }
    let others = [
        ("i8", DataType::I8),
        ("U64", DataType::U64),
        ("f16", DataType::F16),
        ("BF16", DataType::Bf16),
        ("float32", DataType::F32),
        (" f64 ", DataType::F64),
        ("fp8_e4m3", DataType::F8E4M3),
        ("float8_e5m2", DataType::F8E5M2),
    ];
    for (name, dtype) in others {
        assert_eq!(name.parse(), Ok(dtype), "{name}");
    }
}

#[test]
fn an_unknown_type_lists_the_known_ones() {
    let error = "int4".parse::<DataType>().expect_err("no such type").to_string();
    assert!(error.starts_with("unknown data type \"int4\": use one of int8, uint8, "), "{error}");
    assert!(error.ends_with("f8e5m2"), "{error}");
}

#[test]
fn operators_read_back_what_they_print() {
    let ops = [
        (ReduceOp::Sum, "sum"),
        (ReduceOp::Prod, "prod"),
        (ReduceOp::Min, "min"),
        (ReduceOp::Max, "max"),
        (ReduceOp::Avg, "avg"),
        (ReduceOp::PreMulSum(Scalar::Float(2.0)), "mulsum:2.0"),
        (ReduceOp::PreMulSum(Scalar::Float(1e-30)), "mulsum:1e-30"),
        (ReduceOp::PreMulSum(Scalar::Int(-3)), "mulsum:-3"),
    ];
    for (op, name) in ops {
        assert_eq!(op.to_string(), name);
        assert_eq!(name.parse(), Ok(op));
    }
    assert_eq!("MAX".parse(), Ok(ReduceOp::Max));
    for wrong in ["", "mean", "mulsum", "mulsum:", "mulsum:x"] {
        let error = wrong.parse::<ReduceOp>().expect_err(wrong).to_string();
        assert!(error.contains("sum, prod, min, max, avg"), "{error}");
    }
}

#[test]
fn averages_scale_floats_before_and_divide_integers_after() {
    let float = ReduceOp::Avg.reduction(DataType::Bf16, 4).expect("defined");
    assert_eq!((float.combine, float.pre, float.divide), (Combine::Sum, Some(Scalar::Float(0.25)), None));
    let int = ReduceOp::Avg.reduction(DataType::I32, 4).expect("defined");
    assert_eq!((int.combine, int.pre, int.divide), (Combine::Sum, None, NonZeroU32::new(4)));
    let alone = ReduceOp::Avg.reduction(DataType::F32, 1).expect("defined");
    assert_eq!((alone.pre, alone.divide), (None, None));
}

#[test]
fn operators_are_refused_where_they_mean_nothing() {
    let refused = [
        (ReduceOp::Avg, DataType::Bool, 2, "truth values have no average"),
        (ReduceOp::Avg, DataType::F32, 0, "at least one rank"),
        (ReduceOp::PreMulSum(Scalar::Int(1)), DataType::Bool, 2, "cannot be multiplied"),
        (ReduceOp::PreMulSum(Scalar::Int(1)), DataType::F16, 2, "takes a floating scalar"),
        (ReduceOp::PreMulSum(Scalar::Float(1.0)), DataType::U8, 2, "takes an integer scalar"),
    ];
    for (op, dtype, nranks, reason) in refused {
        let error = op.reduction(dtype, nranks).expect_err(reason).to_string();
        assert!(error.contains(reason) && error.contains(dtype.name()), "{error}");
    }
    for dtype in DataType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
            assert!(op.reduction(dtype, 3).is_ok());
        }
    }
}

#[test]
fn rust_types_know_their_type() {
    let types = [
        i8::DTYPE,
        u8::DTYPE,
        i16::DTYPE,
        u16::DTYPE,
        i32::DTYPE,
        u32::DTYPE,
        i64::DTYPE,
        u64::DTYPE,
        bool::DTYPE,
        half::f16::DTYPE,
        half::bf16::DTYPE,
        f32::DTYPE,
        f64::DTYPE,
        F8E4M3::DTYPE,
        F8E5M2::DTYPE,
    ];
    assert_eq!(types, DataType::ALL);
}
