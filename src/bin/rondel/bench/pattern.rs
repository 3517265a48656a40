//! The data of a measurement: what every rank puts in, and what must come out, bit for bit.
//!
//! Inputs are small integers that repeat with a period, chosen for type, operator and number of ranks so that every
//! partial result is exact in the type, in whatever order the ranks are combined. Where the type has room, every rank
//! contributes to every element; where it has not (8-bit floats of many ranks), each element has one contributor that
//! matters. Integers may wrap, as the library's do.

use super::{
    encode::{Encoded, encode, encode_float, wrap},
    test::Op,
};
use rondel::{DataType, plan::Rank};
use std::ops::Range;

/// How the values of one measurement depend on rank, block and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `1 + rank + index % spread`, and one more on rank 0, so that no rank's input is the average; times `unit`.
    Dense { spread: usize, unit: i64 },
    /// `1 + 3 * rank^2 + index % spread`: the average is not what the rank in the middle put in.
    Steep { spread: usize },
    /// 1, and up to 2 more from one rank per element.
    Ones,
    /// 0, except for `1 + index % 5` from one rank per element.
    Lonely,
    /// 1, except for `1 + index % 8` from one rank per element and 2 from its neighbour.
    Factors,
    /// `1 + (rank, block and index mixed) % modulus`.
    Mixed { modulus: usize },
    /// True for the one rank that the element names (or for all but that one), and for none at times.
    Flag { most: bool },
}

/// Fills inputs and checks results of one test, type and operator.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    dtype: DataType,
    nranks: u32,
    shape: Shape,
    /// Elements after which values repeat.
    period: usize,
    /// Two periods of the combination of all ranks' inputs; empty if nothing is combined.
    combined: Vec<u8>,
}

impl Pattern {
    /// The data of a test. `op` is what combines, where the test does.
    pub(crate) fn new(dtype: DataType, op: Option<Op>, nranks: u32) -> Self {
        let shape = match op {
            Some(op) => shape_for(dtype, op, nranks),
            None => Shape::Mixed { modulus: distinct_values(dtype) },
        };
        let n = nranks as usize;
        let period = match shape {
            Shape::Dense { spread, .. } | Shape::Steep { spread } => spread,
            Shape::Ones => 3 * n,
            Shape::Lonely => 5 * n,
            Shape::Factors => 8 * n,
            Shape::Mixed { modulus } => modulus,
            Shape::Flag { .. } => n + 1,
        };
        let mut pattern = Pattern { dtype, nranks, shape, period, combined: Vec::new() };
        if let Some(op) = op {
            pattern.combined = (0..2 * period).flat_map(|i| pattern.combine(op, i)).collect();
        }
        pattern
    }
    /// Writes the input of `rank` for `block`, from its element `first` on.
    pub(crate) fn fill(&self, bytes: &mut [u8], rank: Rank, block: u32, first: usize) {
        let table = self.table(rank, block);
        for (part, want) in self.pieces(&table, bytes.len(), first) {
            bytes[part].copy_from_slice(want);
        }
    }
    /// How many elements of `bytes` are not what `rank` put in for `block`, from its element `first` on.
    pub(crate) fn differing(&self, bytes: &[u8], rank: Rank, block: u32, first: usize) -> u64 {
        self.count_differing(bytes, &self.table(rank, block), first)
    }
    /// How many elements of `bytes` are not the combination of all ranks, from element `first` on.
    pub(crate) fn miscombined(&self, bytes: &[u8], first: usize) -> u64 {
        self.count_differing(bytes, &self.combined, first)
    }
    /// A byte that is valid for the type, and of which hardly any right result consists.
    pub(crate) fn poison(&self) -> u8 {
        if self.dtype == DataType::Bool { 1 } else { 0xee }
    }

    fn count_differing(&self, bytes: &[u8], table: &[u8], first: usize) -> u64 {
        let element = self.dtype.size();
        let wrong = |(part, want): (Range<usize>, &[u8])| {
            let got = &bytes[part];
            if got == want {
                return 0;
            }
            got.chunks(element).zip(want.chunks(element)).filter(|(got, want)| got != want).count() as u64
        };
        self.pieces(table, bytes.len(), first).map(wrong).sum()
    }
    /// Cuts `len` bytes into pieces, each with the part of the (doubled) table that belongs there.
    fn pieces<'a>(
        &self,
        table: &'a [u8],
        len: usize,
        first: usize,
    ) -> impl Iterator<Item = (Range<usize>, &'a [u8])> + use<'a> {
        let period = self.period * self.dtype.size();
        let phase = first % self.period * self.dtype.size();
        (0..len).step_by(period).map(move |start| {
            let end = len.min(start + period);
            (start..end, &table[phase..phase + end - start])
        })
    }
    /// Two periods of a rank's input, so that one period from any phase is contiguous.
    fn table(&self, rank: Rank, block: u32) -> Vec<u8> {
        (0..2 * self.period).flat_map(|i| encode(self.dtype, self.value(rank, block, i))).collect()
    }
    fn value(&self, rank: Rank, block: u32, index: usize) -> i64 {
        let (r, b, i) = (i64::from(rank), i64::from(block), index as i64);
        let n = i64::from(self.nranks);
        match self.shape {
            Shape::Dense { spread, unit } => (1 + r + i64::from(r == 0) + i % spread as i64) * unit,
            Shape::Steep { spread } => 1 + 3 * r * r + i % spread as i64,
            Shape::Ones => 1 + if i / 3 % n == r { i % 3 } else { 0 },
            Shape::Lonely if i / 5 % n == r => 1 + i % 5,
            Shape::Lonely => 0,
            Shape::Factors if i / 8 % n == r => 1 + i % 8,
            Shape::Factors if (i / 8 + 1) % n == r => 2,
            Shape::Factors => 1,
            Shape::Mixed { modulus } if self.dtype == DataType::Bool => (r + 3 * b + i) % modulus as i64 % 2,
            Shape::Mixed { modulus } => 1 + (5 * r + 11 * b + 3 * i) % modulus as i64,
            Shape::Flag { most } => i64::from((i % (n + 1) == r) ^ most),
        }
    }
    /// The combination of all ranks' elements `index`, by the library's rules.
    fn combine(&self, op: Op, index: usize) -> Encoded {
        let narrow = |value| if self.dtype.is_float() { value } else { wrap(self.dtype, value) };
        let input = |rank| {
            let weight = if op == Op::MulSum { Op::multiplier(rank) } else { 1 };
            narrow(self.value(rank, 0, index) * weight)
        };
        let join = |a: i64, b: i64| match op {
            Op::Sum | Op::Avg | Op::MulSum => narrow(a.wrapping_add(b)),
            Op::Prod => narrow(a.wrapping_mul(b)),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        };
        let all = (0..self.nranks).map(input).reduce(join).unwrap_or(0);
        match (op, self.shape) {
            (Op::Avg, Shape::Lonely) => scaled(self.dtype, all, self.nranks),
            (Op::Avg, _) => encode(self.dtype, all / i64::from(self.nranks)),
            _ => encode(self.dtype, all),
        }
    }
}

/// The densest shape of which every partial result is exact.
fn shape_for(dtype: DataType, op: Op, nranks: u32) -> Shape {
    let n = i64::from(nranks);
    match op {
        Op::Sum | Op::Max if dtype == DataType::Bool => Shape::Flag { most: false },
        Op::Prod | Op::Min if dtype == DataType::Bool => Shape::Flag { most: true },
        Op::Prod => Shape::Factors,
        Op::Min | Op::Max => Shape::Mixed { modulus: distinct_values(dtype).min(97) },
        Op::Avg if !dtype.is_float() => Shape::Steep { spread: 251 },
        Op::Sum | Op::MulSum if !dtype.is_float() => Shape::Dense { spread: 251, unit: 1 },
        Op::Avg => {
            let survives = |spread: &usize| (1..=n + *spread as i64).all(|v| scales_back(dtype, v, nranks));
            dense_spreads(dtype, nranks, 1)
                .find(survives)
                .map_or(Shape::Lonely, |spread| Shape::Dense { spread, unit: n })
        }
        Op::Sum | Op::MulSum => {
            let weight = if op == Op::MulSum { 2 } else { 1 };
            match dense_spreads(dtype, nranks, weight).next() {
                Some(spread) => Shape::Dense { spread, unit: 1 },
                None if (n + 2) * weight <= largest_exact(dtype) => Shape::Ones,
                None => Shape::Lonely,
            }
        }
    }
}

/// The spreads, largest first, with which the sum of all ranks, each counted `weight` times, is exact.
fn dense_spreads(dtype: DataType, nranks: u32, weight: i64) -> impl Iterator<Item = usize> {
    let n = i64::from(nranks);
    let fits = move |spread: &usize| {
        let sum = n * (n + 1) / 2 + 1 + n * (*spread as i64 - 1);
        sum * weight <= largest_exact(dtype)
    };
    [251, 61, 31, 13, 7, 5, 3].into_iter().filter(fits)
}

/// Bits of a float's significand, the hidden one included.
fn precision(dtype: DataType) -> u32 {
    match dtype {
        DataType::F64 => 53,
        DataType::F32 => 24,
        DataType::F16 => 11,
        DataType::Bf16 => 8,
        DataType::F8E4M3 => 4,
        DataType::F8E5M2 => 3,
        _ => 62,
    }
}

/// All integers up to this are exact.
fn largest_exact(dtype: DataType) -> i64 {
    1 << precision(dtype)
}

/// How many small integers, from 1 on, differ from each other in the type.
fn distinct_values(dtype: DataType) -> usize {
    if dtype == DataType::Bool { 7 } else { largest_exact(dtype).min(251) as usize }
}

/// Whether `value * nranks` is exact in the type, and times 1/nranks is `value` again, so that an average is exact.
fn scales_back(dtype: DataType, value: i64, nranks: u32) -> bool {
    let scaled = value * i64::from(nranks);
    let significant = i64::BITS - scaled.leading_zeros() - scaled.trailing_zeros();
    let largest = match dtype {
        DataType::F8E4M3 => 448,
        DataType::F8E5M2 => 57344,
        DataType::F16 => 65504,
        _ => i64::MAX,
    };
    let back = match dtype {
        DataType::F64 => scaled as f64 * (1.0 / f64::from(nranks)) == value as f64,
        _ => scaled as f32 * (1.0 / nranks as f32) == value as f32,
    };
    significant <= precision(dtype) && scaled <= largest && back
}

/// `value / nranks` as the library computes it for one contributor: times the rounded reciprocal.
fn scaled(dtype: DataType, value: i64, nranks: u32) -> Encoded {
    match dtype {
        DataType::F64 => encode_float(dtype, value as f64 * (1.0 / f64::from(nranks))),
        _ => encode_float(dtype, f64::from(value as f32 * (1.0 / nranks as f32))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::encode::decode_float, *};

    fn inputs(pattern: &Pattern, count: usize) -> Vec<Vec<u8>> {
        let filled = |rank| {
            let mut bytes = vec![0; count * pattern.dtype.size()];
            pattern.fill(&mut bytes, rank, 0, 0);
            bytes
        };
        (0..pattern.nranks).map(filled).collect()
    }

    /// Combines floats in the order given, rounding to the type after every step, as a ring does.
    fn combine_in_order(pattern: &Pattern, op: Op, order: &[u32], inputs: &[Vec<u8>]) -> Vec<u8> {
        let dtype = pattern.dtype;
        let round = |v: f64| decode_float(dtype, &encode_float(dtype, v).collect::<Vec<_>>());
        let leaf = |rank: u32, bytes: &[u8]| {
            let v = decode_float(dtype, bytes);
            round(match (op, dtype) {
                (Op::MulSum, _) => v * Op::multiplier(rank) as f64,
                (Op::Avg, DataType::F64) => v * (1.0 / f64::from(pattern.nranks)),
                (Op::Avg, _) => f64::from(v as f32 * (1.0 / pattern.nranks as f32)),
                _ => v,
            })
        };
        let join = |a: f64, b: f64| match op {
            Op::Prod => round(a * b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::Sum | Op::Avg | Op::MulSum => round(a + b),
        };
        let element = |start: usize| {
            let at = start..start + dtype.size();
            let leaves = order.iter().map(|rank| leaf(*rank, &inputs[*rank as usize][at.clone()]));
            encode_float(dtype, leaves.reduce(join).unwrap())
        };
        (0..inputs[0].len()).step_by(dtype.size()).flat_map(element).collect()
    }

    #[test]
    fn results_of_floats_are_exact_in_every_order() {
        for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            for op in Op::ALL {
                for nranks in [1, 2, 3, 4, 5, 7, 8, 17, 64] {
                    let pattern = Pattern::new(dtype, Some(op), nranks);
                    let inputs = inputs(&pattern, pattern.period + 3);
                    let up: Vec<u32> = (0..nranks).collect();
                    let down: Vec<u32> = (0..nranks).rev().collect();
                    for order in [up, down] {
                        let result = combine_in_order(&pattern, op, &order, &inputs);
                        assert_eq!(pattern.miscombined(&result, 0), 0, "{dtype:?} {op:?} of {nranks}");
                    }
                }
            }
        }
    }

    #[test]
    fn eight_bit_integers_wrap() {
        let pattern = Pattern::new(DataType::U8, Some(Op::Sum), 3);
        let ranks = inputs(&pattern, 600);
        let sum: Vec<u8> =
            (0..600).map(|i| ranks.iter().fold(0, |sum: u8, rank| sum.wrapping_add(rank[i]))).collect();
        assert_eq!(pattern.miscombined(&sum, 0), 0);
        assert_eq!(pattern.miscombined(&sum[7..], 7), 0);

        let pattern = Pattern::new(DataType::I8, Some(Op::Avg), 3);
        let ranks = inputs(&pattern, 600);
        let sum = |i| ranks.iter().fold(0, |sum: i8, rank: &Vec<u8>| sum.wrapping_add(rank[i] as i8));
        let avg: Vec<u8> = (0..600).map(|i| (sum(i) / 3) as u8).collect();
        assert_eq!(pattern.miscombined(&avg, 0), 0);
    }

    #[test]
    fn truth_values_are_combined_as_truth_values() {
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max] {
            let pattern = Pattern::new(DataType::Bool, Some(op), 4);
            let ranks = inputs(&pattern, 50);
            assert!(ranks.concat().iter().all(|byte| *byte < 2));
            let mut columns = (0..50).map(|i| ranks.iter().map(move |rank| rank[i] == 1));
            let joined: Vec<u8> = match op {
                Op::Sum | Op::Max => columns.by_ref().map(|mut c| u8::from(c.any(|b| b))).collect(),
                _ => columns.by_ref().map(|mut c| u8::from(c.all(|b| b))).collect(),
            };
            assert!(joined.contains(&0) && joined.contains(&1), "{op:?}");
            assert_eq!(pattern.miscombined(&joined, 0), 0, "{op:?}");
        }
    }

    #[test]
    fn one_wrong_element_is_counted_once() {
        for dtype in DataType::ALL {
            let pattern = Pattern::new(dtype, None, 4);
            let mut bytes = vec![0; 1000 * dtype.size()];
            pattern.fill(&mut bytes, 2, 1, 17);
            assert_eq!(pattern.differing(&bytes, 2, 1, 17), 0, "{dtype:?}");
            bytes[300 * dtype.size()] ^= 1;
            assert_eq!(pattern.differing(&bytes, 2, 1, 17), 1, "{dtype:?}");
            bytes.fill(pattern.poison());
            assert!(pattern.differing(&bytes, 2, 1, 17) > 300, "{dtype:?}");
        }
    }

    #[test]
    fn the_input_of_one_rank_never_passes_as_the_result() {
        for dtype in DataType::ALL {
            for op in Op::ALL.into_iter().filter(|op| op.supports(dtype)) {
                let pattern = Pattern::new(dtype, Some(op), 3);
                for (rank, input) in inputs(&pattern, 4 * pattern.period).iter().enumerate() {
                    assert!(pattern.miscombined(input, 0) > 0, "{dtype:?} {op:?}: rank {rank}");
                }
            }
        }
    }

    #[test]
    fn data_that_moved_by_a_cache_line_are_noticed() {
        let pattern = Pattern::new(DataType::F32, Some(Op::Sum), 4);
        assert_eq!(pattern.shape, Shape::Dense { spread: 251, unit: 1 });
        let result: Vec<u8> = pattern.combined[..4 * 200].to_vec();
        assert_eq!(pattern.miscombined(&result, 0), 0);
        assert_eq!(pattern.miscombined(&result, 16), 200);
    }
}
