//! Reduction operators: what a user names, and what a kernel does.

use std::{fmt, num::NonZeroU32, str::FromStr};

use crate::{DataType, UnknownName};

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

impl fmt::Display for Scalar {
    /// Floating numbers always show a point or an exponent, integers never do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Float(value) => write!(f, "{value:?}"),
            Scalar::Int(value) => write!(f, "{value}"),
        }
    }
}

/// A whole reduction: the combining operator with what happens to each rank's input before and to the result after.
///
/// [`ReduceOp::reduction`] makes one that is defined for its type; [`validate`](Reduction::validate) checks one made by
/// hand.
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

impl Reduction {
    /// Whether the scaling steps are defined for the element type.
    pub fn validate(&self) -> Result<(), ReductionError> {
        let fail = |reason| Err(ReductionError { dtype: self.dtype, reason });
        match self.pre {
            None => {}
            Some(_) if self.dtype == DataType::Bool => {
                return fail("truth values cannot be multiplied by a scalar");
            }
            Some(Scalar::Int(_)) if self.dtype.is_float() => {
                return fail("a floating type takes a floating scalar, an integer one was given");
            }
            Some(Scalar::Float(_)) if !self.dtype.is_float() => {
                return fail("an integer type takes an integer scalar, a floating one was given");
            }
            Some(_) => {}
        }
        if self.divide.is_some() && (self.dtype.is_float() || self.dtype == DataType::Bool) {
            return fail("only integer results are divided, floating types scale their inputs instead");
        }
        Ok(())
    }
}

/// A reduction that is not defined for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reduction not defined for {dtype}: {reason}")]
pub struct ReductionError {
    /// The type.
    pub dtype: DataType,
    /// What is wrong with it, as a sentence fragment.
    pub reason: &'static str,
}

/// A reduction operator as users name it.
///
/// | | integers | floats | bool |
/// |---|---|---|---|
/// | `Sum` | wraps | | or |
/// | `Prod` | wraps | | and |
/// | `Min` | | NaN wins, -0 < +0 | and |
/// | `Max` | | NaN wins, -0 < +0 | or |
/// | `Avg` | sum, then division that truncates | each input times 1/n, then sum | refused |
/// | `PreMulSum` | each input times the scalar, then sum; wraps | each input times the scalar, then sum | refused |
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum divided by the number of ranks.
    Avg,
    /// The sum of all inputs, each multiplied by its rank's scalar.
    PreMulSum(Scalar),
}

/// What stands before the scalar in the name of a pre-multiplied sum.
const MULSUM: &str = "mulsum:";

impl ReduceOp {
    /// What the kernels of `dtype` have to do on a rank of a group of `nranks` ranks.
    ///
    /// # Errors
    /// The operator is not defined for the type: `Avg` and `PreMulSum` of bool, a scalar of the wrong kind. An average
    /// over 0 ranks.
    pub fn reduction(self, dtype: DataType, nranks: u32) -> Result<Reduction, ReductionError> {
        let plain = |combine| Reduction { dtype, combine, pre: None, divide: None };
        let reduction = match self {
            ReduceOp::Sum => plain(Combine::Sum),
            ReduceOp::Prod => plain(Combine::Prod),
            ReduceOp::Min => plain(Combine::Min),
            ReduceOp::Max => plain(Combine::Max),
            ReduceOp::PreMulSum(scalar) => Reduction { pre: Some(scalar), ..plain(Combine::Sum) },
            ReduceOp::Avg => {
                let Some(divisor) = NonZeroU32::new(nranks) else {
                    return Err(ReductionError { dtype, reason: "an average needs at least one rank" });
                };
                match dtype {
                    DataType::Bool => {
                        return Err(ReductionError { dtype, reason: "truth values have no average" });
                    }
                    _ if nranks == 1 => plain(Combine::Sum),
                    _ if dtype.is_float() => Reduction {
                        pre: Some(Scalar::Float(1.0 / f64::from(nranks))),
                        ..plain(Combine::Sum)
                    },
                    _ => Reduction { divide: Some(divisor), ..plain(Combine::Sum) },
                }
            }
        };
        reduction.validate().map(|()| reduction)
    }
}

impl fmt::Display for ReduceOp {
    /// The name of the operator in nccl-tests; a pre-multiplied sum with its scalar, as in `mulsum:0.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceOp::Sum => f.pad("sum"),
            ReduceOp::Prod => f.pad("prod"),
            ReduceOp::Min => f.pad("min"),
            ReduceOp::Max => f.pad("max"),
            ReduceOp::Avg => f.pad("avg"),
            ReduceOp::PreMulSum(scalar) => f.pad(&format!("{MULSUM}{scalar}")),
        }
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    /// Understands what `Display` writes, in any case. `mulsum:2` has an integer scalar, `mulsum:2.0` a floating one.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let wanted = text.trim().to_ascii_lowercase();
        let scalar = |digits: &str| {
            let int = digits.parse().map(Scalar::Int);
            int.or_else(|_| digits.parse().map(Scalar::Float)).ok().map(ReduceOp::PreMulSum)
        };
        let found = match wanted.as_str() {
            "sum" => Some(ReduceOp::Sum),
            "prod" => Some(ReduceOp::Prod),
            "min" => Some(ReduceOp::Min),
            "max" => Some(ReduceOp::Max),
            "avg" => Some(ReduceOp::Avg),
            other => other.strip_prefix(MULSUM).and_then(scalar),
        };
        found.ok_or_else(|| UnknownName {
            kind: "reduction operator",
            given: text.to_owned(),
            known: "sum, prod, min, max, avg, mulsum:SCALAR (as in mulsum:0.5, or mulsum:3 for integers)".to_owned(),
        })
    }
}
