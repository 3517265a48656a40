//! What can be measured.

use rondel::{
    DataType, ReduceOp, Scalar,
    plan::{Collective, Rank},
};
use std::str::FromStr;

/// One of nccl-tests' programs, or the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
    Barrier,
}

impl Test {
    /// All of them.
    pub(crate) const ALL: [Test; 10] = [
        Test::AllReduce,
        Test::ReduceScatter,
        Test::AllGather,
        Test::Broadcast,
        Test::Reduce,
        Test::AllToAll,
        Test::Gather,
        Test::Scatter,
        Test::SendRecv,
        Test::Barrier,
    ];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Test::SendRecv => "sendrecv",
            _ => self.collective().name(),
        }
    }
    /// Its name in CSV files, where tables of several libraries lie side by side.
    pub(crate) const fn csv_name(self) -> &'static str {
        match self {
            Test::AllReduce => "allreduce",
            Test::AllGather => "allgather",
            Test::AllToAll => "alltoall",
            _ => self.name(),
        }
    }
    /// The collective that the library plans for it.
    pub(crate) const fn collective(self) -> Collective {
        match self {
            Test::AllReduce => Collective::AllReduce,
            Test::ReduceScatter => Collective::ReduceScatter,
            Test::AllGather => Collective::AllGather,
            Test::Broadcast => Collective::Broadcast,
            Test::Reduce => Collective::Reduce,
            Test::AllToAll => Collective::AllToAll,
            Test::Gather => Collective::Gather,
            Test::Scatter => Collective::Scatter,
            Test::SendRecv => Collective::Send,
            Test::Barrier => Collective::Barrier,
        }
    }
    /// Whether the bytes of a size are one block for each rank.
    pub(crate) const fn splits(self) -> bool {
        matches!(self, Test::ReduceScatter | Test::AllGather | Test::AllToAll | Test::Gather | Test::Scatter)
    }
    /// Whether it has a variant with two buffers.
    pub(crate) const fn out_of_place(self) -> bool {
        !matches!(self, Test::Broadcast)
    }
    /// Whether it has a variant with one buffer.
    pub(crate) const fn in_place(self) -> bool {
        matches!(
            self,
            Test::AllReduce | Test::ReduceScatter | Test::AllGather | Test::Broadcast | Test::Reduce
        )
    }
    /// busbw / algbw: what the busiest link carries, as a part of the size.
    pub(crate) fn bus_factor(self, nranks: u32) -> f64 {
        let n = f64::from(nranks);
        match self {
            Test::AllReduce => 2.0 * (n - 1.0) / n,
            Test::ReduceScatter | Test::AllGather | Test::AllToAll | Test::Gather | Test::Scatter => {
                (n - 1.0) / n
            }
            Test::Broadcast | Test::Reduce | Test::SendRecv | Test::Barrier => 1.0,
        }
    }
}

impl FromStr for Test {
    type Err = String;

    /// Also without underscores, with hyphens, and with nccl-tests' `_perf` at the end.
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
        let wanted = plain(text);
        let wanted = wanted.strip_suffix("perf").unwrap_or(&wanted);
        Test::ALL.into_iter().find(|test| plain(test.name()) == wanted).ok_or_else(|| {
            format!("unknown collective {text:?}: use one of {}", Test::ALL.map(Test::name).join(", "))
        })
    }
}

/// A reduction operator by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    /// A sum of inputs that are multiplied before: by 1 on even ranks, by 2 on odd ones.
    MulSum,
}

impl Op {
    /// All of them.
    pub(crate) const ALL: [Op; 6] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg, Op::MulSum];

    /// Its name on the command line and in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Prod => "prod",
            Op::Min => "min",
            Op::Max => "max",
            Op::Avg => "avg",
            Op::MulSum => "mulsum",
        }
    }
    /// Whether it is defined for a type.
    pub(crate) const fn supports(self, dtype: DataType) -> bool {
        !matches!((self, dtype), (Op::Avg | Op::MulSum, DataType::Bool))
    }
    /// What `rank`'s input is multiplied with by [`Op::MulSum`].
    pub(crate) const fn multiplier(rank: Rank) -> i64 {
        1 + rank as i64 % 2
    }
    /// The library's operator, as `rank` passes it.
    pub(crate) fn reduce_op(self, dtype: DataType, rank: Rank) -> ReduceOp {
        match self {
            Op::Sum => ReduceOp::Sum,
            Op::Prod => ReduceOp::Prod,
            Op::Min => ReduceOp::Min,
            Op::Max => ReduceOp::Max,
            Op::Avg => ReduceOp::Avg,
            Op::MulSum if dtype.is_float() => ReduceOp::PreMulSum(Scalar::Float(Op::multiplier(rank) as f64)),
            Op::MulSum => ReduceOp::PreMulSum(Scalar::Int(Op::multiplier(rank))),
        }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Op::ALL.into_iter().find(|op| op.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            format!("unknown operator {text:?}: use one of {} or all", Op::ALL.map(Op::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_collective_is_understood() {
        for (text, want) in [
            ("all_reduce", Test::AllReduce),
            ("allreduce", Test::AllReduce),
            ("all-reduce", Test::AllReduce),
            ("all_reduce_perf", Test::AllReduce),
            ("alltoall", Test::AllToAll),
            ("AllGather", Test::AllGather),
            ("reducescatter", Test::ReduceScatter),
            ("send_recv", Test::SendRecv),
        ] {
            assert_eq!(text.parse::<Test>(), Ok(want), "{text}");
        }
        let error = "allsum".parse::<Test>().unwrap_err();
        assert!(error.contains("\"allsum\"") && error.contains("all_reduce, reduce_scatter"), "{error}");
    }

    #[test]
    fn operators_are_found_by_name_and_refused_by_name() {
        assert_eq!("MulSum".parse::<Op>(), Ok(Op::MulSum));
        let error = "mean".parse::<Op>().unwrap_err();
        assert_eq!(error, "unknown operator \"mean\": use one of sum, prod, min, max, avg, mulsum or all");
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Test::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Test::AllToAll.bus_factor(4), 0.75);
        assert_eq!(Test::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Test::AllReduce.bus_factor(1), 0.0);
    }
}
