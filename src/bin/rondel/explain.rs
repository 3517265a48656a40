//! `rondel explain`: which algorithm a collective is done with, and what the others would cost.

use crate::{
    collective,
    size::{Bytes, Step, Sweep},
    stop::Stop,
};
use clap::Args;
use rondel::{
    algo::{self, Algorithm},
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    ranks: u32,
    /// Hosts, each with the same number of neighbouring ranks.
    #[arg(long, value_name = "H", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Bytes of the largest buffer, with an optional K, M or G.
    #[arg(long, value_name = "SIZE", conflicts_with = "sizes", required_unless_present = "sizes")]
    size: Option<Bytes>,
    /// All sizes from 8 B to 1 GiB by 4.
    #[arg(long)]
    sizes: bool,
    /// The transport whose usual costs are assumed.
    #[arg(long, value_name = "NAME", default_value = "tcp", value_parser = ["tcp"])]
    transport: String,
    /// Microseconds that a message takes from host to host.
    #[arg(long, value_name = "US", default_value_t = Machine::DATA_CENTRE_TCP.latency.as_secs_f64() * 1e6)]
    latency_us: f64,
    /// GB/s from host to host.
    #[arg(long, value_name = "GB/s", default_value_t = Machine::DATA_CENTRE_TCP.bytes_per_sec * 1e-9)]
    rate: f64,
    /// Only this algorithm, where it does the collective.
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<&'static Algorithm>,
}

/// The algorithm of a name.
pub(crate) fn algorithm(name: &str) -> Result<&'static Algorithm, String> {
    Algorithm::named(name).ok_or_else(|| {
        let known: Vec<&str> = algo::ALL.iter().map(|algorithm| algorithm.name).collect();
        format!("unknown algorithm {name:?}: use one of {}", known.join(", "))
    })
}

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &ExplainArgs) -> Result<u8, Stop> {
    let text = explain(args)?;
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|e| Stop::Failed(format!("standard output cannot be written: {e}")))?;
    Ok(0)
}

fn explain(args: &ExplainArgs) -> Result<String, Stop> {
    if !args.ranks.is_multiple_of(args.hosts) {
        return Err(Stop::Usage(format!(
            "--ranks {} cannot be shared out equally among --hosts {}: give a multiple of the hosts",
            args.ranks, args.hosts
        )));
    }
    if !(args.rate > 0.0 && args.latency_us >= 0.0 && args.latency_us.is_finite()) {
        return Err(Stop::Usage(format!(
            "--rate {} and --latency-us {}: give a rate above 0 and a latency of 0 or more",
            args.rate, args.latency_us
        )));
    }
    let local = args.ranks / args.hosts;
    let shape =
        Shape { hosts: (0..args.ranks).map(|rank| rank / local).collect(), ..Shape::flat(args.ranks) };
    let across = Link {
        latency: Duration::from_secs_f64(args.latency_us * 1e-6),
        overhead: Machine::DATA_CENTRE_TCP.overhead,
        bytes_per_sec: args.rate * 1e9,
    };
    let tuner = Tuner::new(&shape, Machine::LOOPBACK, across, args.algorithm, None);
    let sizes = match args.size {
        Some(Bytes(size)) => vec![size],
        None => Sweep::new(8, 1 << 30, Step::Factor(4)).map_err(Stop::Usage)?.sizes().collect(),
    };
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
            text.starts_with("# all_reduce of 4 ranks on 1 hosts over tcp (*: chosen);")
                && text.contains("ring"),
            "{text}"
        );
        let sweep = explain(&parse("all_reduce --ranks 8 --hosts 2 --sizes").unwrap()).unwrap();
        assert_eq!(sweep.lines().filter(|line| line.contains(" *")).count(), 14, "{sweep}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(parse("all_reduce --ranks 4").unwrap_err().contains("--size"));
        assert!(parse("all_reduce --ranks 0 --size 8").unwrap_err().contains("--ranks"));
        assert!(parse("all_sum --ranks 2 --size 8").unwrap_err().contains("all_reduce, reduce_scatter"));
        assert!(
            parse("all_reduce --ranks 2 --size 8 --algorithm rings").unwrap_err().contains("one of ring")
        );
        let uneven = explain(&parse("all_reduce --ranks 5 --hosts 2 --size 8").unwrap()).unwrap_err();
        assert!(uneven.to_string().contains("--ranks 5") && uneven.to_string().contains("--hosts 2"));
        let still = explain(&parse("all_reduce --ranks 2 --size 8 --rate 0").unwrap()).unwrap_err();
        assert!(still.to_string().contains("--rate 0"));
    }
}
