//! One cell of a measurement: what is called, with how much.

use super::test::{Op, Test};
use rondel::{DataType, plan::Rank};

/// One or two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Two.
    Out,
    /// One.
    In,
}

impl Place {
    /// Its name on the command line and in CSV files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Place::Out => "out",
            Place::In => "in",
        }
    }
}

/// What is called, with how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The collective.
    pub(crate) test: Test,
    /// Type of the elements.
    pub(crate) dtype: DataType,
    /// How they are combined; only where the test does.
    pub(crate) op: Option<Op>,
    /// The root; only where the test has one.
    pub(crate) root: Option<Rank>,
    /// Elements of a flat buffer, or of one block.
    pub(crate) count: u64,
    /// Bytes of the larger buffer.
    pub(crate) bytes: u64,
}

impl Cell {
    /// The cell nearest below `bytes`: whole elements, the same number for each rank, and at least one.
    pub(crate) fn new(
        test: Test,
        dtype: DataType,
        op: Option<Op>,
        root: Option<Rank>,
        bytes: u64,
        nranks: u32,
    ) -> Self {
        let blocks = if test.splits() { u64::from(nranks) } else { 1 };
        let block = dtype.size() as u64 * blocks;
        let count = match test {
            Test::Barrier => 0,
            _ => (bytes / block).max(1),
        };
        Cell { test, dtype, op, root, count, bytes: count * block }
    }
    /// GB/s that a time for one operation means.
    pub(crate) fn algbw(&self, time_us: f64) -> f64 {
        self.bytes as f64 / time_us * 1e-3
    }
    /// GB/s on the busiest link that a time for one operation means.
    pub(crate) fn busbw(&self, time_us: f64, nranks: u32) -> f64 {
        self.algbw(time_us) * self.test.bus_factor(nranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_whole_blocks_and_never_to_nothing() {
        let cell = |test, bytes, nranks| {
            let cell = Cell::new(test, DataType::F32, None, None, bytes, nranks);
            (cell.count, cell.bytes)
        };
        assert_eq!(cell(Test::AllReduce, 8, 3), (2, 8));
        assert_eq!(cell(Test::AllReduce, 11, 3), (2, 8));
        assert_eq!(cell(Test::AllReduce, 0, 3), (1, 4));
        assert_eq!(cell(Test::AllGather, 8, 3), (1, 12));
        assert_eq!(cell(Test::AllToAll, 100, 3), (8, 96));
        assert_eq!(cell(Test::Barrier, 100, 3), (0, 0));
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let cell = Cell::new(Test::AllReduce, DataType::F32, Some(Op::Sum), None, 1 << 20, 4);
        assert_eq!(cell.algbw(1048.576), 1.0);
        assert_eq!(cell.busbw(1048.576, 4), 1.5);
    }
}
