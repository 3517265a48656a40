//! `rondel verify`: proves the algorithms by running their plans over symbols.

use crate::{choice, collective, stop::Stop};
use clap::Args;
use rondel::{
    algo::{self, Algorithm},
    plan::{Collective, Rank, Shape},
    verify::{Fault, Operation, Schedule},
};
use std::{io::Write, ops::RangeInclusive};

/// What is proven.
#[derive(Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    /// Only this algorithm.
    #[arg(long, value_name = "NAME", value_parser = choice::algorithm)]
    algorithm: Option<&'static Algorithm>,
    /// Only this collective.
    #[arg(long, value_name = "NAME", value_parser = collective::parse)]
    collective: Option<Collective>,
    /// Numbers of ranks: one, or a range such as 2..9.
    #[arg(long, value_name = "N..M", default_value = "1..9", value_parser = parse_ranks)]
    ranks: RangeInclusive<u32>,
}

/// More ranks than this take minutes.
const MOST_RANKS: u32 = 256;

fn parse_ranks(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    match (first.parse(), last.trim_start_matches('=').parse()) {
        (Ok(first), Ok(last)) if 1 <= first && first <= last && last <= MOST_RANKS => Ok(first..=last),
        _ => Err(format!(
            "give a number from 1 to {MOST_RANKS}, or a range N..M that goes up; both ends belong to it"
        )),
    }
}

/// The outcome of one algorithm and collective.
struct Outcome {
    runs: u64,
    fault: Option<(Shape, Fault)>,
}

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &VerifyArgs) -> Result<u8, Stop> {
    let mut out = std::io::stdout().lock();
    let unwritable = |e| Stop::unwritable(&e);
    writeln!(out, "{:<18} {:<16} {:>8}  result", "algorithm", "collective", "runs").map_err(unwritable)?;
    let (mut total, mut faults) = (0, 0);
    for algorithm in algo::ALL.iter().filter(|a| args.algorithm.is_none_or(|wanted| wanted.name == a.name)) {
        for collective in
            Collective::of_all_ranks().filter(|c| args.collective.is_none_or(|wanted| wanted == *c))
        {
            let outcome = prove(algorithm, collective, args.ranks.clone());
            if outcome.runs == 0 {
                continue;
            }
            total += outcome.runs;
            let result = match &outcome.fault {
                None => "ok".to_owned(),
                Some((shape, fault)) => {
                    faults += 1;
                    let (ranks, hosts, root) = (shape.nranks(), shape.nhosts(), shape.root);
                    format!("FAILED: {ranks} ranks on {hosts} hosts, root {root}: {fault}")
                }
            };
            let (name, runs) = (collective.name(), outcome.runs);
            writeln!(out, "{:<18} {name:<16} {runs:>8}  {result}", algorithm.name).map_err(unwritable)?;
            out.flush().map_err(unwritable)?;
        }
    }
    if total == 0 {
        return Err(Stop::Usage(
            "nothing to verify: this algorithm does not do this collective for these numbers of ranks; leave \
             --algorithm, --collective or --ranks out"
                .into(),
        ));
    }
    writeln!(out, "# {total} runs, {faults} FAILED").map_err(unwritable)?;
    Ok(u8::from(faults > 0))
}

/// Runs everything until the first fault.
fn prove(algorithm: &Algorithm, collective: Collective, ranks: RangeInclusive<u32>) -> Outcome {
    let mut outcome = Outcome { runs: 0, fault: None };
    for shape in ranks.flat_map(shapes) {
        let roots = if collective.has_root() { shape.nranks() } else { 1 };
        for shape in (0..roots).map(|root| shape.clone().with_root(root)) {
            if !(algorithm.supports)(collective, &shape) {
                continue;
            }
            let result = prove_shape(algorithm, collective, &shape, &mut outcome.runs);
            if let Err(fault) = result {
                outcome.fault = Some((shape, fault));
                return outcome;
            }
        }
    }
    outcome
}

/// In place on no, on all and on every other rank, with several slicings, windows and orders of events.
fn prove_shape(
    algorithm: &Algorithm,
    collective: Collective,
    shape: &Shape,
    runs: &mut u64,
) -> Result<(), Fault> {
    let placements: [fn(Rank) -> bool; 3] = [|_| false, |_| true, |rank| rank % 2 == 0];
    for in_place in placements {
        let operation = Operation::of(algorithm, collective, shape, in_place, collective.reduces());
        operation.check()?;
        for (slices, window, seed) in [(1, 1, 1), (3, 2, 2)] {
            operation.run(Schedule { slices, window, seed })?;
            *runs += 1;
        }
    }
    Ok(())
}

/// All ranks on one host, and on hosts of two and of four where these come out even.
fn shapes(nranks: u32) -> impl Iterator<Item = Shape> {
    let sizes = [nranks, 2, 4].into_iter().enumerate();
    let even = sizes.filter(move |(i, local)| *i == 0 || (nranks.is_multiple_of(*local) && nranks > *local));
    even.map(move |(_, local)| Shape {
        hosts: (0..nranks).map(|rank| rank / local).collect(),
        ..Shape::flat(nranks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_proven_for_few_ranks() {
        let ring = Algorithm::named("ring").unwrap();
        let outcome = prove(ring, Collective::AllReduce, 1..=4);
        assert!(outcome.fault.is_none());
        assert!(outcome.runs >= 4 * 6, "{}", outcome.runs);
    }

    #[test]
    fn ranges_of_ranks_go_up() {
        assert_eq!(parse_ranks("3"), Ok(3..=3));
        assert_eq!(parse_ranks("2..9"), Ok(2..=9));
        assert_eq!(parse_ranks("2..=9"), Ok(2..=9));
        for text in ["0", "9..2", "1..1000", "two", ""] {
            assert!(parse_ranks(text).unwrap_err().contains("from 1 to 256"), "{text}");
        }
    }

    #[test]
    fn shapes_cover_one_host_and_several() {
        let hosts: Vec<u32> = shapes(8).map(|shape| shape.nhosts()).collect();
        assert_eq!(hosts, [1, 4, 2]);
        assert_eq!(shapes(3).count(), 1);
        assert_eq!(shapes(1).count(), 1);
    }
}
