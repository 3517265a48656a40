//! What `rondel bench` was asked for, checked.

use super::{
    args::{BenchArgs, Places},
    buffer::Kind,
    cell::{Cell, Place},
    measure::{Count, Schedule},
    test::{Op, Test},
};
use crate::{
    choice::{self, Asked},
    memory::Available,
    size::{Bytes, Step, Sweep},
    stop::Stop,
};
use rondel::{
    DataType,
    env::Env,
    plan::{Rank, Shape},
};

/// Which ranks are root, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Roots {
    One(Rank),
    All,
}

/// What was asked for, as far as that is known before the number of ranks.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The collective.
    pub(crate) test: Test,
    /// The sizes.
    pub(crate) sweep: Sweep,
    /// The places that are measured, in order.
    pub(crate) places: Vec<Place>,
    /// How each cell is measured.
    pub(crate) schedule: Schedule,
    /// Whose memory the buffers are in.
    pub(crate) buffers: Kind,
    algorithm: Option<Asked>,
    dtypes: Vec<DataType>,
    ops: Vec<Option<Op>>,
    roots: Roots,
}

const DEFAULT_MIN: Bytes = Bytes(8);
const DEFAULT_MAX: Bytes = Bytes(64 << 20);

impl Settings {
    /// Checks everything that does not depend on the number of ranks.
    pub(crate) fn new(args: &BenchArgs, env: &Env) -> Result<Self, Stop> {
        if let Some(refusal) = args.foreign.refusal() {
            return Err(Stop::Usage(refusal));
        }
        let test = args.collective;
        let dtypes: Vec<DataType> = match args.datatype.as_str() {
            "all" => DataType::ALL.to_vec(),
            name => vec![name.parse().map_err(|e| Stop::Usage(format!("-d: {e}, or all")))?],
        };
        let ops = match args.op.as_str() {
            "all" => Op::ALL.to_vec(),
            name => vec![name.parse().map_err(|e| Stop::Usage(format!("-o: {e}")))?],
        };
        let reduces = test.collective().reduces();
        if reduces && !dtypes.iter().any(|dtype| ops.iter().any(|op| op.supports(*dtype))) {
            return Err(Stop::Usage(format!(
                "-o {} is not defined for -d {}: truth values can be combined by sum, prod, min and max",
                args.op, args.datatype
            )));
        }
        let roots = match args.root.as_str() {
            "all" | "-1" => Roots::All,
            rank => Roots::One(rank.parse().map_err(|_| {
                Stop::Usage(format!("-r {rank:?} is no root: give the number of a rank, from 0, or all"))
            })?),
        };
        if let Some(name) = env.transport.as_ref().filter(|_| args.transport.is_none()) {
            choice::transport(name).map_err(|e| Stop::Usage(format!("RONDEL_TRANSPORT: {e}")))?;
        }
        Ok(Settings {
            test,
            algorithm: algorithm(args, env)?,
            sweep: sweep(args)?,
            places: places(test, args.place)?,
            schedule: Schedule {
                count: match args.iters {
                    Some(iters) => Count::Fixed(iters),
                    None => Count::Batches { batch_us: args.rep_ms * 1e3, most: args.reps },
                },
                warmup: args.warmup_iters.unwrap_or(u64::from(args.iters.is_some())),
                across: args.average,
                dirty: args.dirty,
                checks: args.check,
                skip: args.per_iter_skip,
            },
            buffers: if args.foreign.registers() { Kind::Mapped } else { args.buffers },
            dtypes,
            ops: if reduces { ops.into_iter().map(Some).collect() } else { vec![None] },
            roots,
        })
    }
    /// Checks what depends on the number of ranks.
    pub(crate) fn check_ranks(&self, nranks: u32) -> Result<(), Stop> {
        match self.roots {
            Roots::One(root) if root >= nranks && self.test.collective().has_root() => {
                Err(Stop::Usage(format!(
                    "-r {root} is out of range: there are {nranks} ranks, so the root is one of 0 to {}; give one of \
                     these or more ranks",
                    nranks - 1
                )))
            }
            _ => Ok(()),
        }
    }
    /// Checks that an algorithm that was asked for does the collective for one of these shapes at least.
    pub(crate) fn check_algorithm(&self, shapes: &[Shape]) -> Result<(), Stop> {
        self.algorithm.map_or(Ok(()), |asked| asked.check(self.test.collective(), shapes))
    }
    /// Checks that the buffers of `local_ranks` ranks fit into the memory that is left.
    pub(crate) fn check_memory(&self, local_ranks: u32, available: Available) -> Result<(), Stop> {
        if self.test == Test::Barrier {
            return Ok(());
        }
        let largest = self.sweep.sizes().last().unwrap_or(0);
        let buffers = if self.places.contains(&Place::Out) { 2 } else { 1 };
        let (each, together) = (largest * buffers, largest * buffers * u64::from(local_ranks));
        let need = format!(
            "not enough memory: {local_ranks} ranks with {buffers} buffers of {} each need {}",
            Bytes(largest),
            Bytes(together)
        );
        match available {
            Available { each: Some(limit), .. } if each > limit => Err(Stop::Usage(format!(
                "{need}, which is {} a rank, but a process may have {} (ulimit -v); lower -e or raise that limit",
                Bytes(each),
                Bytes(limit)
            ))),
            Available { together: Some(left), .. } if together > left => {
                Err(Stop::Usage(format!("{need}, {} are available here; lower -e or --ranks", Bytes(left))))
            }
            _ => Ok(()),
        }
    }
    /// Everything that is measured, in order.
    pub(crate) fn cells(&self, nranks: u32) -> Vec<Cell> {
        let roots: Vec<Option<Rank>> = match self.roots {
            _ if !self.test.collective().has_root() => vec![None],
            Roots::One(root) => vec![Some(root)],
            Roots::All => (0..nranks).map(Some).collect(),
        };
        let sizes: Vec<u64> = if self.test == Test::Barrier { vec![0] } else { self.sweep.sizes().collect() };
        let mut cells = Vec::new();
        for dtype in &self.dtypes {
            for op in self.ops.iter().filter(|op| op.is_none_or(|op| op.supports(*dtype))) {
                for root in &roots {
                    let cell = |size: &u64| Cell::new(self.test, *dtype, *op, *root, *size, nranks);
                    cells.extend(sizes.iter().map(cell));
                }
            }
        }
        cells
    }
    /// A sentence about sizes that are not measured as they were given.
    pub(crate) fn rounding(&self, nranks: u32) -> Option<String> {
        if self.test == Test::Barrier {
            return None;
        }
        let blocks = if self.test.splits() { u64::from(nranks) } else { 1 };
        let (dtype, size) = self
            .dtypes
            .iter()
            .flat_map(|dtype| {
                let uneven = |size: &u64| !size.is_multiple_of(dtype.size() as u64 * blocks) || *size == 0;
                self.sweep.sizes().find(uneven).map(|size| (dtype, size))
            })
            .next()?;
        let block = dtype.size() as u64 * blocks;
        let per_rank = if blocks > 1 { format!(" for each of {nranks} ranks") } else { String::new() };
        Some(format!(
            "sizes are rounded down to whole elements{per_rank}, at least one: {size} B of {dtype} become {} B",
            (size / block).max(1) * block
        ))
    }
}

/// The algorithm that was asked for. What stands in NCCL's variable is a preference for whatever it suits.
fn algorithm(args: &BenchArgs, env: &Env) -> Result<Option<Asked>, Stop> {
    if let Some(algorithm) = args.algorithm {
        return Ok(Some(Asked { algorithm, by: "--algorithm" }));
    }
    let Some(name) = &env.algorithm else { return Ok(None) };
    let algorithm = choice::algorithm(name).map_err(|e| Stop::Usage(format!("RONDEL_ALGORITHM: {e}")))?;
    Ok(Some(Asked { algorithm, by: "RONDEL_ALGORITHM" }))
}

fn sweep(args: &BenchArgs) -> Result<Sweep, Stop> {
    let (min, max) = match (args.min_bytes, args.max_bytes) {
        (Some(min), Some(max)) => (min, max),
        (Some(min), None) => (min, DEFAULT_MAX.max(min)),
        (None, Some(max)) => (DEFAULT_MIN.min(max), max),
        (None, None) => (DEFAULT_MIN, DEFAULT_MAX),
    };
    let step = match (args.step_bytes, args.step_factor) {
        (Some(Bytes(bytes)), _) => Step::Bytes(bytes),
        (None, factor) => Step::Factor(factor.unwrap_or(4)),
    };
    Sweep::new(min.0, max.0, step).map_err(Stop::Usage)
}

fn places(test: Test, asked: Places) -> Result<Vec<Place>, Stop> {
    let offered = [(Place::Out, test.out_of_place()), (Place::In, test.in_place())];
    let wanted = |place| match asked {
        Places::Both => true,
        Places::In => place == Place::In,
        Places::Out => place == Place::Out,
    };
    let places: Vec<Place> =
        offered.into_iter().filter(|(place, has)| *has && wanted(*place)).map(|(place, _)| place).collect();
    if places.is_empty() {
        let (given, other) = if asked == Places::In { ("in", "out") } else { ("out", "in") };
        return Err(Stop::Usage(format!(
            "--place {given} is not possible: {} has no such variant; use --place {other} or leave it out",
            test.name()
        )));
    }
    Ok(places)
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

    fn settings(line: &str) -> Result<Settings, Stop> {
        settings_in(line, &[])
    }

    fn settings_in(line: &str, vars: &[(&str, &str)]) -> Result<Settings, Stop> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let vars = vars.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Settings::new(&Line::try_parse_from(words).unwrap().args, &Env::parse(vars).unwrap())
    }

    fn refused(line: &str, parts: &[&str]) {
        let stop = settings(line).unwrap_err();
        assert_eq!(stop.code(), 2);
        let text = stop.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{line}: {text}");
    }

    #[test]
    fn by_default_sizes_go_from_8_bytes_to_64_mib_by_four() {
        let cells = settings("all_reduce").unwrap().cells(2);
        let bytes: Vec<u64> = cells.iter().map(|cell| cell.bytes).collect();
        assert_eq!((bytes[0], bytes[1], bytes.len()), (8, 32, 12));
        assert_eq!(bytes[11], 32 << 20);
        assert_eq!((cells[0].op, cells[0].root, cells[0].dtype), (Some(Op::Sum), None, DataType::F32));
    }

    #[test]
    fn one_end_of_the_sweep_moves_the_other() {
        let sizes =
            |line| -> Vec<u64> { settings(line).unwrap().cells(2).iter().map(|cell| cell.bytes).collect() };
        assert_eq!(sizes("all_reduce -b 1G"), [1 << 30]);
        assert_eq!(sizes("all_reduce -e 4"), [4]);
        assert_eq!(sizes("all_reduce -b 4 -e 12 -i 4"), [4, 8, 12]);
    }

    #[test]
    fn all_is_everything_that_is_defined() {
        let all = settings("all_reduce -d all -o all -b 8 -e 8").unwrap().cells(2);
        assert_eq!(all.len(), 15 * 6 - 2);
        let roots = settings("reduce -r all -b 8 -e 8").unwrap().cells(3);
        assert_eq!(roots.iter().map(|cell| cell.root).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        let minus_one = settings("reduce -r -1 -b 8 -e 8").unwrap().cells(3);
        assert_eq!(minus_one.iter().map(|cell| cell.root).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        assert_eq!(settings("all_gather -o all -b 8 -e 8").unwrap().cells(2).len(), 1);
        assert_eq!(settings("barrier").unwrap().cells(2).len(), 1);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        refused("all_reduce -b 64 -e 8", &["-b 64", "-e 8"]);
        refused("all_reduce -i 0", &["-i 0"]);
        refused("all_reduce -d float128", &["float128", "bfloat16", "or all"]);
        refused("all_reduce -o mean", &["mean", "mulsum or all"]);
        refused("all_reduce -o avg -d bool", &["-o avg", "-d bool", "min and max"]);
        refused("reduce -r first", &["\"first\"", "or all"]);
        refused("all_to_all --place in", &["--place in", "all_to_all", "--place out"]);
        refused("broadcast --place out", &["--place out", "broadcast", "--place in"]);
        refused("all_reduce -G 1", &["-G/--cudagraph"]);
    }

    #[test]
    fn roots_out_of_range_are_refused_where_there_is_a_root() {
        let text = settings("reduce -r 4").unwrap().check_ranks(4).unwrap_err().to_string();
        assert!(text.contains("-r 4") && text.contains("0 to 3"), "{text}");
        assert!(settings("reduce -r 3").unwrap().check_ranks(4).is_ok());
        assert!(settings("all_reduce -r 9").unwrap().check_ranks(4).is_ok());
    }

    #[test]
    fn memory_that_does_not_fit_is_refused_with_need_and_have() {
        let check = |line: &str, ranks, each, together| {
            let available = Available { each, together };
            settings(line).unwrap().check_memory(ranks, available).map_err(|stop| stop.to_string())
        };
        let (gib, all) = (1u64 << 30, "all_reduce -e 1G -b 1G");
        assert_eq!(check(all, 4, Some(2 * gib), Some(8 * gib)), Ok(()));
        assert_eq!(
            check(all, 8, None, Some(8 * gib)).unwrap_err(),
            "not enough memory: 8 ranks with 2 buffers of 1 GiB each need 16 GiB, 8 GiB are available here; lower -e or \
             --ranks"
        );
        let one = check(all, 4, Some(gib), Some(8 * gib)).unwrap_err();
        assert!(one.contains("is 2 GiB a rank, but a process may have 1 GiB (ulimit -v)"), "{one}");
        assert_eq!(check("all_reduce -b 1G --place in", 8, None, Some(8 * gib)), Ok(()));
        assert_eq!(check("barrier -b 1G", 8, None, Some(gib)), Ok(()));
        // Sizes that a factor steps over are not measured.
        assert_eq!(check("all_reduce -b 8 -e 100G -f 1000000000", 2, None, Some(gib * 60)), Ok(()));
        assert!(check("all_reduce -b 1048576G", 1024, None, Some(1 << 60)).is_err());
    }

    #[test]
    fn an_algorithm_or_transport_in_the_environment_is_checked_as_one_on_the_command_line() {
        let flat = [Shape::flat(4)];
        let check = |line: &str, vars: &[(&str, &str)]| {
            settings_in(line, vars).and_then(|s| s.check_algorithm(&flat)).map_err(|stop| stop.to_string())
        };
        let text = check("all_reduce", &[("RONDEL_ALGORITHM", "rings")]).unwrap_err();
        assert!(
            text.starts_with("RONDEL_ALGORITHM: unknown algorithm \"rings\": use one of ring, "),
            "{text}"
        );
        let text = check("barrier", &[("RONDEL_ALGORITHM", "ring")]).unwrap_err();
        assert!(text.starts_with("RONDEL_ALGORITHM=ring does no barrier among 4 ranks"), "{text}");
        let text = check("all_reduce", &[("RONDEL_TRANSPORT", "pigeon")]).unwrap_err();
        assert!(text.starts_with("RONDEL_TRANSPORT: unknown transport \"pigeon\": use one of "), "{text}");
        let text = check("barrier --algorithm ring", &[]).unwrap_err();
        assert!(text.starts_with("--algorithm=ring does no barrier among 4 ranks"), "{text}");
        // The command line comes first, and NCCL's variable is a preference.
        let vars = [("RONDEL_ALGORITHM", "rings"), ("RONDEL_TRANSPORT", "pigeon")];
        assert_eq!(check("all_reduce --algorithm ring --transport tcp", &vars), Ok(()));
        assert_eq!(check("barrier", &[("NCCL_ALGO", "Ring")]), Ok(()));
    }

    #[test]
    fn buffers_are_mapped_by_either_name() {
        let kind = |line: &str| settings(line).unwrap().buffers;
        assert_eq!(kind("all_reduce"), Kind::Plain);
        assert_eq!(kind("all_reduce -R 0"), Kind::Plain);
        assert_eq!(kind("all_reduce -R 1"), Kind::Mapped);
        assert_eq!(kind("all_reduce --buffers mapped"), Kind::Mapped);
        refused("all_reduce -R 2", &["-R/--local_register 2", "--buffers mapped"]);
    }

    #[test]
    fn rounding_is_said_with_an_example() {
        assert_eq!(settings("all_reduce").unwrap().rounding(3), None);
        assert_eq!(
            settings("all_gather").unwrap().rounding(3).unwrap(),
            "sizes are rounded down to whole elements for each of 3 ranks, at least one: 8 B of float become 12 B"
        );
        assert_eq!(
            settings("all_reduce -b 7 -e 7").unwrap().rounding(3).unwrap(),
            "sizes are rounded down to whole elements, at least one: 7 B of float become 4 B"
        );
    }
}
