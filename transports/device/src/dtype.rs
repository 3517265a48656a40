//! Element types and reduction operators as values.

use std::num::NonZeroU32;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum DataType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
    F16,
    Bf16,
    F32,
    F64,
    F8E4M3,
    F8E5M2,
}

impl DataType {
    /// Every type, in the order of their codes.
    pub const ALL: [DataType; 15] = [
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::U16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::Bool,
        DataType::F16,
        DataType::Bf16,
        DataType::F32,
        DataType::F64,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::Bool | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::I16 | DataType::U16 | DataType::F16 | DataType::Bf16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }
    /// Whether the type is a floating-point one.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16
                | DataType::Bf16
                | DataType::F32
                | DataType::F64
                | DataType::F8E4M3
                | DataType::F8E5M2
        )
    }
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Combine {
    Sum,
    Prod,
    Min,
    Max,
}

/// A number to multiply with. Floating types take `Float` (computed in f32 for 8-, 16- and 32-bit types, in f64 for
/// f64), integer types take `Int` (wrapping).
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Scalar {
    Float(f64),
    Int(i64),
}

/// A whole reduction: the combining operator with what happens to each rank's input before and to the result after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// Element type.
    pub dtype: DataType,
    /// How two elements become one.
    pub combine: Combine,
    /// Multiplied into every `raw` operand (floating avg: 1/n; pre-multiplied sum: the rank's scalar).
    pub pre: Option<Scalar>,
    /// Divides the finished result, truncating (integer avg).
    pub divide: Option<NonZeroU32>,
}

/// A reduction that is not defined for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReductionError {
    /// The type.
    pub dtype: DataType,
    /// What is wrong with it, as a sentence fragment.
    pub reason: &'static str,
}

/// A Rust type that is one of the [`DataType`]s.
///
/// # Safety
/// The type is plain data of `DTYPE.size()` bytes, and any value that the kernels of `DTYPE` can write is valid for it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Its type as a value.
    const DTYPE: DataType;
}

/// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (the "fn" variant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// 8-bit float, 5 exponent and 2 mantissa bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// How a caller wants elements combined.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ReduceOp {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    PreMulSum(Scalar),
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}
