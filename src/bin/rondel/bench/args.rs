//! The flags of `rondel bench`.

use super::{buffer::Kind, measure::Across, test::Test};
use crate::{choice, number, size::Bytes};
use clap::{ArgAction, Args, ValueEnum};
use rondel::algo::Algorithm;
use std::path::PathBuf;

/// Flags of nccl-tests, and ours.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter, sendrecv or barrier.
    pub(crate) collective: Test,

    /// Smallest size, with an optional K, M or G [default: 8].
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE")]
    pub(crate) min_bytes: Option<Bytes>,
    /// Largest size [default: 64M].
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE")]
    pub(crate) max_bytes: Option<Bytes>,
    /// Bytes from one size to the next, instead of a factor.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", conflicts_with = "step_factor")]
    pub(crate) step_bytes: Option<Bytes>,
    /// Factor from one size to the next [default: 4].
    #[arg(short = 'f', long = "stepfactor", value_name = "N",
          value_parser = number::whole::<u64>("times from one size to the next", 2..=1 << 40))]
    pub(crate) step_factor: Option<u64>,

    /// Times this many operations in one batch, and up to 100000 of them once more one by one [default: batches of --rep-ms].
    #[arg(short = 'n', long, value_name = "N", value_parser = number::whole::<u64>("operations", 1..=MOST_OPERATIONS))]
    pub(crate) iters: Option<u64>,
    /// Untimed operations before each measurement [default: 1 with -n; else as many as finding a batch's size takes].
    #[arg(short = 'w', long = "warmup_iters", value_name = "N",
          value_parser = number::whole::<u64>("operations", 0..=MOST_OPERATIONS))]
    pub(crate) warmup_iters: Option<u64>,
    /// Repeats everything this often; 0: until it is interrupted.
    #[arg(short = 'N', long = "run_cycles", value_name = "N", default_value_t = 1,
          value_parser = number::whole::<u64>("repetitions", 0..=MOST_OPERATIONS))]
    pub(crate) run_cycles: u64,
    /// Milliseconds that a batch takes.
    #[arg(long, value_name = "MS", default_value_t = 5.0, conflicts_with = "iters",
          value_parser = number::real("milliseconds", 0.001..=3_600_000.0))]
    pub(crate) rep_ms: f64,
    /// Batches per measurement, at most; as many as fit into half a second, and 5 at least.
    #[arg(long, value_name = "N", default_value_t = 31, conflicts_with = "iters",
          value_parser = number::whole::<u32>("batches", 1..=1_000_000))]
    pub(crate) reps: u32,
    /// Operations that are checked, element by element, before and again after the timing; 0: none.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1,
          value_parser = number::whole::<u32>("operations", 0..=1_000_000))]
    pub(crate) check: u32,
    /// How the ranks' times become one: 0 rank 0's, 1 average, 2 fastest, 3 slowest.
    #[arg(short = 'a', long, value_enum, value_name = "0-3", default_value_t = Across::Max)]
    pub(crate) average: Across,

    /// sum, prod, min, max, avg, mulsum or all.
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum")]
    pub(crate) op: String,
    /// float, half, bfloat16, double, int8, uint8, ..., bool, f8e4m3, f8e5m2 or all.
    #[arg(short = 'd', long, value_name = "TYPE", default_value = "float")]
    pub(crate) datatype: String,
    /// Root of broadcast, reduce, gather and scatter: a rank or all.
    #[arg(short = 'r', long, value_name = "RANK", default_value = "0", allow_hyphen_values = true)]
    pub(crate) root: String,
    /// Whether buffers have two pages in common (in) or not (out).
    #[arg(long, value_enum, default_value_t = Places::Both)]
    pub(crate) place: Places,
    /// 1: buffers start one element off a page.
    #[arg(short = 'u', long, value_name = "0|1", default_value = "0", action = ArgAction::Set,
          value_parser = parse_switch)]
    pub(crate) unalign: bool,
    /// Memory of the program's own, or such as peers on the same host can read in place; -R 1 is the latter.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Kind::Plain)]
    pub(crate) buffers: Kind,
    /// Rewrites the input before and reads the result after each operation; what that alone costs is taken off.
    #[arg(long)]
    pub(crate) dirty: bool,

    /// Starts this many processes here [default: the ranks of a job that this process is part of; else one for each
    /// allowed CPU, at least 2, at most 8].
    #[arg(long, value_name = "N", value_parser = number::whole::<u32>("processes", 1..=1024))]
    pub(crate) ranks: Option<u32>,
    /// Binds local rank r to core r mod allowed cores, or leaves it to the system.
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub(crate) bind: Bind,
    /// Only this transport, such as shm or tcp.
    #[arg(long, value_name = "NAME", value_parser = choice::transport)]
    pub(crate) transport: Option<String>,
    /// Only this algorithm.
    #[arg(long, value_name = "NAME", value_parser = choice::algorithm)]
    pub(crate) algorithm: Option<&'static Algorithm>,
    /// This many channels.
    #[arg(long, value_name = "N", value_parser = number::whole::<u32>("channels", 1..=16))]
    pub(crate) channels: Option<u32>,
    /// Seconds that an operation may take before the run fails; 0: the library's default.
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0,
          value_parser = number::whole::<u64>("seconds", 0..=31_536_000))]
    pub(crate) timeout: u64,

    /// 1: columns with the spread of single operations.
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", default_value = "0", action = ArgAction::Set,
          value_parser = parse_switch)]
    pub(crate) per_iter_timing: bool,
    /// Single operations that do not count at the start of their pass.
    #[arg(short = 'K', long = "per_iter_skip", value_name = "N", default_value_t = 0,
          value_parser = number::whole::<u64>("operations", 0..=1_000_000))]
    pub(crate) per_iter_skip: u64,
    /// 1: a column with the time of day.
    #[arg(short = 'S', long = "report_timestamps", value_name = "0|1", default_value = "0", action = ArgAction::Set,
          value_parser = parse_switch)]
    pub(crate) report_timestamps: bool,
    /// 1: prints what the communicator holds.
    #[arg(short = 'M', long, value_name = "0|1", default_value = "0", action = ArgAction::Set,
          value_parser = parse_switch)]
    pub(crate) memory: bool,
    /// Writes a CSV file, line by line; - writes to standard output, and the table to standard error.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Writes a JSON file with nccl-tests' keys, also if the run fails or is interrupted; - as for --csv.
    #[arg(short = 'J', long = "json", visible_alias = "output_file", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) foreign: Foreign,
    /// What the parent tells a rank that it starts: rank, ranks and descriptor of the shared memory.
    #[arg(long, hide = true, value_name = "RANK/RANKS@FD")]
    pub(crate) member: Option<Member>,
}

/// More operations than this take years.
const MOST_OPERATIONS: u64 = 1_000_000_000_000;

const AFTER_HELP: &str = "\
Examples:
  rondel bench all_reduce                              all CPUs of this host, 8 B to 64 MiB
  rondel bench all_gather --ranks 4 -b 1M -e 1M -d half
  mpirun -np 8 rondel bench all_reduce --csv out.csv   joins the job's ranks

Exit status: 0 if all results were right, 1 if not or if a rank failed, 2 if the command line has no meaning, 128 and
the number of the signal if it was interrupted.";

/// Which buffers are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Places {
    /// One buffer for input and output.
    In,
    /// Two buffers.
    Out,
    /// Both, each where the collective has it.
    Both,
}

/// Where local ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// As `core`.
    Auto,
    /// Rank r on core r mod allowed cores.
    Core,
    /// Wherever the system puts them.
    None,
}

/// A rank that a parent started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its rank.
    pub(crate) rank: u32,
    /// Ranks of the run.
    pub(crate) nranks: u32,
    /// Descriptor of the shared memory.
    pub(crate) descriptor: i32,
}

impl std::str::FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (rank, rest) = text.split_once('/')?;
            let (nranks, descriptor) = rest.split_once('@')?;
            let member = Member {
                rank: rank.parse().ok()?,
                nranks: nranks.parse().ok()?,
                descriptor: descriptor.parse().ok()?,
            };
            (member.rank < member.nranks).then_some(member)
        };
        parsed().ok_or_else(|| "it is for the processes that rondel starts itself; use --ranks N".to_owned())
    }
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.rank, self.nranks, self.descriptor)
    }
}

/// Flags of nccl-tests that mean nothing for blocking calls on host memory. Each is accepted with the value that
/// switches it off, so that scripts keep working.
#[derive(Args, Clone, Debug)]
pub(crate) struct Foreign {
    #[arg(short = 't', long, hide = true)]
    nthreads: Option<String>,
    #[arg(short = 'g', long, hide = true)]
    ngpus: Option<String>,
    #[arg(short = 'm', long = "agg_iters", hide = true)]
    agg_iters: Option<String>,
    #[arg(short = 'p', long = "parallel_init", hide = true)]
    parallel_init: Option<String>,
    #[arg(short = 'z', long, hide = true)]
    blocking: Option<String>,
    #[arg(short = 'y', long = "stream_null", hide = true)]
    stream_null: Option<String>,
    #[arg(short = 'G', long, hide = true)]
    cudagraph: Option<String>,
    #[arg(short = 'C', long = "report_cputime", hide = true)]
    report_cputime: Option<String>,
    #[arg(short = 'R', long = "local_register", hide = true)]
    local_register: Option<String>,
    #[arg(short = 'x', long = "cta_policy", hide = true)]
    cta_policy: Option<String>,
    #[arg(short = 'D', long = "device_implementation", hide = true)]
    device_implementation: Option<String>,
    #[arg(short = 'V', long = "device_cta_count", hide = true)]
    device_cta_count: Option<String>,
}

impl Foreign {
    /// Buffers are to be known to the transports.
    pub(crate) fn registers(&self) -> bool {
        self.local_register.as_deref() == Some("1")
    }
    /// The sentence that refuses the first flag that asks for something.
    pub(crate) fn refusal(&self) -> Option<String> {
        let local_register = if self.registers() { &None } else { &self.local_register };
        let flags = [
            (
                "-t/--nthreads",
                &self.nthreads,
                Some("1"),
                "every rank is a process; use --ranks N for more ranks",
            ),
            (
                "-g/--ngpus",
                &self.ngpus,
                Some("1"),
                "buffers are in host memory; use --ranks N for more ranks",
            ),
            ("-m/--agg_iters", &self.agg_iters, Some("1"), "blocking calls are not aggregated into groups"),
            (
                "-p/--parallel_init",
                &self.parallel_init,
                Some("0"),
                "every rank is a process and starts by itself",
            ),
            (
                "-z/--blocking",
                &self.blocking,
                Some("0"),
                "calls on host memory always return when they are complete",
            ),
            ("-y/--stream_null", &self.stream_null, Some("0"), "there are no streams on host memory"),
            ("-G/--cudagraph", &self.cudagraph, Some("0"), "there are no CUDA graphs on host memory"),
            (
                "-C/--report_cputime",
                &self.report_cputime,
                Some("0"),
                "nothing is launched on host memory: the time of a call is the time of the operation",
            ),
            (
                "-R/--local_register",
                local_register,
                Some("0"),
                "the ranks' buffers are not at the same address; use -R 1 or --buffers mapped",
            ),
            (
                "-x/--cta_policy",
                &self.cta_policy,
                None,
                "there are no thread blocks on host memory; see --channels",
            ),
            (
                "-D/--device_implementation",
                &self.device_implementation,
                Some("0"),
                "there are no kernels on host memory",
            ),
            (
                "-V/--device_cta_count",
                &self.device_cta_count,
                None,
                "there are no thread blocks on host memory; see --channels",
            ),
        ];
        flags.into_iter().find_map(|(flag, value, off, why)| {
            let value = value.as_deref().filter(|value| Some(*value) != off)?;
            Some(format!("{flag} {value} has no meaning here: {why}. Leave the flag out"))
        })
    }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("use 0 or 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(line: &str) -> Result<BenchArgs, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn the_flags_of_nccl_tests_are_understood() {
        let line = "all_reduce_perf -b 8 -e 64K -f 2 -n 10 -w 3 -c 1 -o all -d half -r 2 -a 1 -T 5 -I 1 -u 1 -S 1 -N 2 \
                    -J x.json -t 1 -g 1 -z 0";
        let args = parse(line).unwrap();
        assert_eq!((args.min_bytes, args.max_bytes), (Some(Bytes(8)), Some(Bytes(65536))));
        assert_eq!((args.iters, args.warmup_iters, args.average), (Some(10), Some(3), Across::Average));
        assert!(args.per_iter_timing && args.unalign && args.report_timestamps);
        assert_eq!(args.foreign.refusal(), None);
        let long = parse("alltoall --minbytes 1M --stepbytes 1M --warmup_iters 2 --run_cycles 0").unwrap();
        assert_eq!((long.collective, long.run_cycles), (Test::AllToAll, 0));
    }

    #[test]
    fn flags_that_mean_nothing_on_host_memory_are_refused_by_name() {
        for (line, flag) in [
            ("-t 2", "-t/--nthreads 2"),
            ("-g 8", "-g/--ngpus 8"),
            ("-m 4", "-m/--agg_iters 4"),
            ("-p 1", "-p/--parallel_init 1"),
            ("-z 1", "-z/--blocking 1"),
            ("-y 1", "-y/--stream_null 1"),
            ("-G 1", "-G/--cudagraph 1"),
            ("-C 1", "-C/--report_cputime 1"),
            ("-R 2", "-R/--local_register 2"),
            ("-x 0", "-x/--cta_policy 0"),
            ("-D 1", "-D/--device_implementation 1"),
            ("-V 16", "-V/--device_cta_count 16"),
        ] {
            let refusal = parse(&format!("all_reduce {line}")).unwrap().foreign.refusal().unwrap();
            assert!(refusal.starts_with(flag) && refusal.contains("has no meaning here: "), "{refusal}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_was_given() {
        for (line, parts) in [
            ("all_reduce --ranks 0", ["'0'", "from 1 to 1024"]),
            ("all_reduce --ranks two", ["'two'", "from 1 to 1024"]),
            ("all_sum", ["all_sum", "all_reduce, reduce_scatter"]),
            ("all_reduce -b 8T", ["8T", "64K"]),
            ("all_reduce -n 0", ["'0'", "operations from 1 to 1000000000000"]),
            ("all_reduce --place inside", ["inside", "in, out, both"]),
            ("all_reduce --rank 2", ["--rank", "--ranks"]),
            ("all_reduce -i 8 -f 2", ["--stepbytes", "--stepfactor"]),
            ("all_reduce -u 2", ["'2'", "use 0 or 1"]),
            ("all_reduce --member 3/2@5", ["3/2@5", "use --ranks N"]),
        ] {
            let error = parse(line).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
        }
    }

    #[test]
    fn a_member_reads_what_its_parent_wrote() {
        let member = Member { rank: 2, nranks: 3, descriptor: 7 };
        assert_eq!(member.to_string().parse(), Ok(member));
    }
}
