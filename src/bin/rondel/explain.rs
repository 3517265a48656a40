//! `rondel explain`: which algorithm a collective is done with, and what the others would cost.

use crate::{
    choice::{self, Asked},
    collective, number,
    size::{Bytes, Step, Sweep},
    stop::Stop,
};
use clap::Args;
use rondel::{
    algo::Algorithm,
    cost::{Machine, tuner::Tuner},
    plan::{Collective, Shape},
};
use rondel_transport_api::Link;
use std::{io::Write, time::Duration};

/// What is asked about.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExplainArgs {
    /// all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather, scatter or barrier.
    #[arg(value_parser = collective::parse)]
    collective: Collective,
    /// Ranks.
    #[arg(long, value_name = "N", value_parser = number::whole::<u32>("ranks", 1..=100_000))]
    ranks: u32,
    /// Hosts, each with the same number of neighbouring ranks.
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = number::whole::<u32>("hosts", 1..=100_000))]
    hosts: u32,
    /// Bytes of the largest buffer, with an optional K, M or G. A barrier has none.
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes")]
    size: Option<Bytes>,
    /// All sizes from 8 B to 1 GiB by 4.
    #[arg(long)]
    sizes: bool,
    /// The transport between ranks of one host, whose usual costs are assumed; between hosts it is tcp.
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = ["shm", "tcp"])]
    transport: String,
    /// Microseconds that a message takes from host to host.
    #[arg(long, value_name = "US", default_value_t = Machine::DATA_CENTRE_TCP.latency.as_secs_f64() * 1e6,
          value_parser = number::real("microseconds", 0.0..=1e9))]
    latency_us: f64,
    /// GB/s from host to host.
    #[arg(long, value_name = "GB/s", default_value_t = Machine::DATA_CENTRE_TCP.bytes_per_sec * 1e-9,
          value_parser = number::real("GB/s", 1e-6..=1e6))]
    rate: f64,
    /// Only this algorithm.
    #[arg(long, value_name = "NAME", value_parser = choice::algorithm)]
    algorithm: Option<&'static Algorithm>,
}

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &ExplainArgs) -> Result<u8, Stop> {
    let text = explain(args)?;
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| Stop::unwritable(&e))?;
    Ok(0)
}

fn explain(args: &ExplainArgs) -> Result<String, Stop> {
    if !args.ranks.is_multiple_of(args.hosts) {
        return Err(Stop::Usage(format!(
            "--ranks {} cannot be shared out equally among --hosts {}: give a multiple of the hosts",
            args.ranks, args.hosts
        )));
    }
    let local = args.ranks / args.hosts;
    let shape =
        Shape { hosts: (0..args.ranks).map(|rank| rank / local).collect(), ..Shape::flat(args.ranks) };
    if let Some(algorithm) = args.algorithm {
        Asked { algorithm, by: "--algorithm" }.check(args.collective, std::slice::from_ref(&shape))?;
    }
    let sizes = sizes(args)?;
    let across = Link {
        latency: Duration::from_secs_f64(args.latency_us * 1e-6),
        overhead: Machine::DATA_CENTRE_TCP.overhead,
        bytes_per_sec: args.rate * 1e9,
    };
    let machine = if args.transport == "shm" { Machine::sharing_memory() } else { Machine::default() };
    let tuner = Tuner::for_machine(&shape, &Machine { across, ..machine }, args.algorithm, None);
    let mut text = format!(
        "# {} of {} ranks on {} hosts over {} (*: chosen); times are predicted\n{:>10}  {:<18} {:>8} {:>12}\n",
        args.collective.name(),
        args.ranks,
        args.hosts,
        args.transport,
        "size",
        "algorithm",
        "channels",
        "time (us)"
    );
    for size in sizes {
        let route = tuner.route(args.collective, size);
        let mut shown = Bytes(size).to_string();
        for (name, time) in tuner.candidates(args.collective, size) {
            let chosen = name == route.algorithm.name;
            let channels = if chosen { route.channels.to_string() } else { String::new() };
            text += &format!(
                "{shown:>10} {}{name:<18} {channels:>8} {:>12.2}\n",
                if chosen { '*' } else { ' ' },
                time.as_secs_f64() * 1e6
            );
            shown.clear();
        }
    }
    Ok(text)
}

/// The sizes that are asked about.
fn sizes(args: &ExplainArgs) -> Result<Vec<u64>, Stop> {
    match (args.collective, args.size, args.sizes) {
        (Collective::Barrier, None, false) => Ok(vec![0]),
        (Collective::Barrier, ..) => {
            Err(Stop::Usage("a barrier has no size: leave --size and --sizes out".into()))
        }
        (_, Some(Bytes(size)), _) => Ok(vec![size]),
        (_, None, true) => {
            Ok(Sweep::new(8, 1 << 30, Step::Factor(4)).map_err(Stop::Usage)?.sizes().collect())
        }
        (collective, None, false) => Err(Stop::Usage(format!(
            "no size was given for {}: give --size SIZE, such as --size 1M, or --sizes for all from 8 B to 1 GiB",
            collective.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ExplainArgs,
    }

    fn parse(line: &str) -> Result<ExplainArgs, String> {
        let words = std::iter::once("explain").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args).map_err(|e| e.to_string())
    }

    #[test]
    fn one_algorithm_is_chosen_at_each_size() {
        let text = explain(&parse("all_reduce --ranks 4 --size 1M").unwrap()).unwrap();
        assert_eq!(text.lines().filter(|line| line.contains(" *")).count(), 1, "{text}");
        assert!(
            text.starts_with("# all_reduce of 4 ranks on 1 hosts over shm (*: chosen);")
                && text.contains("ring"),
            "{text}"
        );
        let sweep = explain(&parse("all_reduce --ranks 8 --hosts 2 --sizes").unwrap()).unwrap();
        assert_eq!(sweep.lines().filter(|line| line.contains(" *")).count(), 14, "{sweep}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let sizeless = explain(&parse("all_reduce --ranks 4").unwrap()).unwrap_err().to_string();
        assert!(sizeless.contains("all_reduce: give --size SIZE"), "{sizeless}");
        assert!(parse("all_reduce --ranks 0 --size 8").unwrap_err().contains("--ranks"));
        assert!(parse("all_sum --ranks 2 --size 8").unwrap_err().contains("all_reduce, reduce_scatter"));
        assert!(
            parse("all_reduce --ranks 2 --size 8 --algorithm rings").unwrap_err().contains("one of ring")
        );
        let uneven = explain(&parse("all_reduce --ranks 5 --hosts 2 --size 8").unwrap()).unwrap_err();
        assert!(uneven.to_string().contains("--ranks 5") && uneven.to_string().contains("--hosts 2"));
        for (flag, range) in
            [("--rate 0", "GB/s from 0.000001 to 1000000"), ("--latency-us inf", "microseconds from 0 to")]
        {
            let error = parse(&format!("all_reduce --ranks 2 --size 8 {flag}")).unwrap_err();
            assert!(error.contains(range), "{error}");
        }
        let barrier = parse("barrier --ranks 4 --algorithm ring").unwrap();
        assert!(explain(&barrier).unwrap_err().to_string().contains("use dissemination"));
        for size in ["--size 8", "--sizes"] {
            let sized = explain(&parse(&format!("barrier --ranks 4 {size}")).unwrap()).unwrap_err();
            assert!(sized.to_string().contains("leave --size and --sizes out"), "{sized}");
        }
    }

    #[test]
    fn a_barrier_needs_no_size() {
        let text = explain(&parse("barrier --ranks 4").unwrap()).unwrap();
        assert!(text.contains("*dissemination") && text.lines().count() == 3, "{text}");
    }
}
