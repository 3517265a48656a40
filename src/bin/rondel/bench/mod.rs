//! `rondel bench`: measures a collective, and checks every element of it.
//!
//! * [`args`] are the flags, [`settings`] what they ask for once checked, [`cell`] and [`test`] single measurements.
//! * [`launch`] starts local ranks, which meet in [`shared`] memory; [`worker`] is one rank.
//! * [`measure`] is the loop, [`operation`] and [`buffer`] what it runs, [`pattern`] the data and their check.
//! * [`report`] prints and writes [`row`]s as a [`table`], [`csv`] and [`json`].

mod args;
mod buffer;
mod cell;
mod csv;
mod encode;
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
use report::Files;
use rondel::bootstrap::Rendezvous;
use settings::Settings;
use worker::Verdict;

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &BenchArgs) -> Result<u8, Stop> {
    let settings = Settings::new(args)?;
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
    if let Some(available) = memory::available() {
        settings.check_memory(nranks, available)?;
    }
    Files::create(args)?;
    launch::run(nranks)
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
