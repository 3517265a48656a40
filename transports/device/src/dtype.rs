//! Element types, as values and as Rust types.

use half::{bf16, f16};
use std::{fmt, str::FromStr};

use crate::{F8E4M3, F8E5M2};

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

/// Per type: the name that nccl-tests and we print, then the other names that we understand.
const NAMES: [&[&str]; DataType::ALL.len()] = [
    &["int8", "i8", "char"],
    &["uint8", "u8", "byte"],
    &["int16", "i16", "short"],
    &["uint16", "u16"],
    &["int32", "i32", "int"],
    &["uint32", "u32"],
    &["int64", "i64", "long"],
    &["uint64", "u64"],
    &["bool"],
    &["half", "f16", "float16", "fp16"],
    &["bfloat16", "bf16"],
    &["float", "f32", "float32", "fp32"],
    &["double", "f64", "float64", "fp64"],
    &["f8e4m3", "fp8_e4m3", "float8_e4m3", "float8_e4m3fn"],
    &["f8e5m2", "fp8_e5m2", "float8_e5m2"],
];

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
    /// The name of the type in nccl-tests, extended by `int16`, `uint16` and `bool`: `float`, `half`, `uint8`, ...
    pub const fn name(self) -> &'static str {
        NAMES[self as usize][0]
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = UnknownName;

    /// Understands the names that [`DataType::name`] gives, Rust's (`f32`, `i8`), PyTorch's (`float32`,
    /// `float8_e4m3fn`) and short ones (`bf16`, `fp8_e4m3`), in any case.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let wanted = text.trim().to_ascii_lowercase();
        let found = Self::ALL.into_iter().find(|dtype| NAMES[*dtype as usize].contains(&wanted.as_str()));
        found.ok_or_else(|| UnknownName {
            kind: "data type",
            given: text.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// A name that is none of those that we know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} {given:?}: use one of {known}")]
pub struct UnknownName {
    /// What was to be named.
    pub kind: &'static str,
    /// The name given.
    pub given: String,
    /// The names that would have been understood, separated by commas.
    pub known: String,
}

/// A Rust type that is one of the [`DataType`]s.
///
/// # Safety
/// The type is plain data of `DTYPE.size()` bytes, and any value that the kernels of `DTYPE` can write is valid for it, and
/// so is one of zero bytes.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Its type as a value.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        const _: () = assert!(size_of::<$rust>() == DataType::$dtype.size());
        // SAFETY: plain data of the asserted size. All bit patterns are valid, except for `bool`, of which the
        // kernels that compute write 0 and 1 only and those that copy write what they read.
        unsafe impl Element for $rust {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

elements! {
    i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64, bool => Bool,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, F8E4M3 => F8E4M3, F8E5M2 => F8E5M2,
}
