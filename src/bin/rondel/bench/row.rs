//! The result of a cell.

use super::{
    cell::{Cell, Place},
    measure::Timing,
};

/// A cell with what was measured.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The cell.
    pub(crate) cell: Cell,
    /// With two buffers.
    pub(crate) out: Option<Timing>,
    /// With one buffer.
    pub(crate) in_place: Option<Timing>,
    /// What ran.
    pub(crate) way: Way,
    /// When it was finished, in seconds since 1970.
    pub(crate) finished: u64,
}

/// The way that the library chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Name of the algorithm.
    pub(crate) algorithm: String,
    /// Channels.
    pub(crate) channels: u32,
    /// Name of the transport.
    pub(crate) transport: String,
}

impl Row {
    /// What was measured, out of place first.
    pub(crate) fn timings(&self) -> impl Iterator<Item = (Place, &Timing)> {
        let out = self.out.iter().map(|timing| (Place::Out, timing));
        out.chain(self.in_place.iter().map(|timing| (Place::In, timing)))
    }
}

/// What is said at the end of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Total {
    checked: bool,
    wrong: u64,
    busbw: f64,
    timings: u32,
}

impl Total {
    /// Counts a row in.
    pub(crate) fn add(&mut self, row: &Row, nranks: u32) {
        for (_, timing) in row.timings() {
            self.checked |= timing.wrong.is_some();
            self.wrong += timing.wrong.unwrap_or(0);
            self.busbw += row.cell.busbw(timing.median_us, nranks);
            self.timings += 1;
        }
    }
    /// Wrong elements; `None` if nothing was checked.
    pub(crate) fn wrong(&self) -> Option<u64> {
        self.checked.then_some(self.wrong)
    }
    /// GB/s.
    pub(crate) fn average_busbw(&self) -> f64 {
        if self.timings > 0 { self.busbw / f64::from(self.timings) } else { 0.0 }
    }
}

#[cfg(test)]
pub(crate) mod sample {
    use super::*;
    use crate::bench::{
        measure::Latency,
        stats::Spread,
        test::{Op, Test},
    };
    use rondel::DataType;

    /// A timing of which every number differs.
    pub(crate) fn timing(median_us: f64, wrong: Option<u64>) -> Timing {
        let times = vec![median_us, median_us + 0.5, median_us + 2.0];
        Timing {
            median_us,
            min_us: median_us - 0.25,
            max_us: median_us + 1.0,
            iters: 2500,
            latency: Latency { spread: Spread::of(&times), times },
            wrong,
        }
    }
    /// An all_reduce of 1 MiB of f32 on 4 ranks.
    pub(crate) fn row() -> Row {
        Row {
            cell: Cell::new(Test::AllReduce, DataType::F32, Some(Op::Sum), None, 1 << 20, 4),
            out: Some(timing(1048.576, Some(0))),
            in_place: Some(timing(524.288, Some(3))),
            way: Way { algorithm: "ring".into(), channels: 2, transport: "tcp".into() },
            finished: 1_700_000_000,
        }
    }

    #[test]
    fn totals_average_over_all_timings() {
        let mut total = Total::default();
        assert_eq!((total.wrong(), total.average_busbw()), (None, 0.0));
        total.add(&row(), 4);
        assert_eq!((total.wrong(), total.average_busbw()), (Some(3), 2.25));
    }
}
