//! `rondel bench`: measures a collective, and checks every element of it.
//!
//! * [`args`] are the flags, [`settings`] what they ask for once checked, [`cell`] and [`test`] single measurements.
//! * [`launch`] starts local ranks, which meet in [`shared`] memory; [`worker`] is one rank.
//! * [`measure`] is the loop, [`operation`] and [`buffer`] what it runs, [`pattern`] the data and their check.
//! * [`report`] prints and writes [`row`]s as a [`table`], and [`csv`] and [`json`] to [`files`].

mod args;
mod buffer;
mod cell;
mod csv;
mod encode;
mod files;
mod json;
mod launch;
mod measure;
mod meeting;
mod operation;
mod pattern;
mod report;
mod row;
mod settings;
mod shared;
mod stats;
mod table;
mod test;
mod worker;

pub(crate) use args::BenchArgs;

use crate::{affinity, memory, stop::Stop};
use files::Files;
use rondel::{bootstrap::Rendezvous, env::Env, plan::Shape};
use settings::Settings;
use worker::Verdict;

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &BenchArgs, env: &Env) -> Result<u8, Stop> {
    let settings = Settings::new(args, env)?;
    if let Some(member) = args.member {
        return worker::run_member(args, &settings, member).map(exit_status);
    }
    if args.ranks.is_none() {
        let found = Rendezvous::from_env_if_any().map_err(|e| {
            Stop::Failed(format!("{e}. Or give --ranks N, which starts N processes on this host instead"))
        })?;
        if let Some(rendezvous) = found {
            return worker::run_joined(args, &settings, rendezvous).map(exit_status);
        }
    }
    let nranks = match args.ranks {
        Some(nranks) => nranks,
        None => affinity::allowed_cores().map_or(FEWEST, |cores| cores.len() as u32).clamp(FEWEST, MOST),
    };
    settings.check_ranks(nranks)?;
    settings.check_algorithm(&[Shape::flat(nranks)])?;
    settings.check_memory(nranks, memory::available())?;
    check_ports(env, nranks)?;
    Files::check(args)?;
    launch::run(nranks)
}

/// Every rank listens on a port of its own.
fn check_ports(env: &Env, nranks: u32) -> Result<(), Stop> {
    let Some(ports) = env.ports.as_ref().filter(|ports| ports.len() < nranks as usize) else { return Ok(()) };
    let (first, last, there) = (*ports.start(), *ports.end(), ports.len());
    let given = if there == 1 { format!("{first}") } else { format!("{first}-{last}") };
    let enough = u32::from(first) + nranks - 1;
    let advice = match u16::try_from(enough) {
        Ok(enough) => format!("give a range of {nranks} free ports, such as {first}-{enough}"),
        Err(_) => format!("give a range of {nranks} free ports"),
    };
    Err(Stop::Usage(format!(
        "RONDEL_PORTS={given} is {there} port{}, but each of the {nranks} ranks that are started here listens on one of its \
         own: {advice}, or unset it, which takes any free ports",
        if there == 1 { "" } else { "s" }
    )))
}

/// Local ranks by default, whatever the number of cores.
const FEWEST: u32 = 2;
/// Local ranks by default, whatever the number of cores.
const MOST: u32 = 8;

fn exit_status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Right => 0,
        Verdict::Wrong => launch::WRONG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_ports_are_refused_with_a_range_that_is_enough() {
        let check = |ports: &str, nranks| {
            let env = Env::parse([("RONDEL_PORTS".to_owned(), ports.to_owned())]).unwrap();
            check_ports(&env, nranks).map_err(|stop| (stop.code(), stop.to_string()))
        };
        assert_eq!(check("29500", 1), Ok(()));
        assert_eq!(check("29500-29503", 4), Ok(()));
        assert_eq!(check("0", 4), Ok(()));
        let (code, text) = check("29500", 4).unwrap_err();
        assert_eq!(code, 2);
        assert!(text.starts_with("RONDEL_PORTS=29500 is 1 port, but each of the 4 ranks"), "{text}");
        assert!(text.contains("such as 29500-29503, or unset it"), "{text}");
        let (_, text) = check("65534-65535", 4).unwrap_err();
        assert!(
            text.contains("=65534-65535 is 2 ports") && text.contains("a range of 4 free ports, or"),
            "{text}"
        );
    }
}
