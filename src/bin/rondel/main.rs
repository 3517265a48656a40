//! The command line of rondel.
//!
//! A file or folder per subcommand: [`bench`] measures, [`explain`] shows which algorithm is chosen and what the others
//! would cost, [`verify`] proves the algorithms, [`status`] shows what running jobs are doing.

mod affinity;
mod bench;
mod logging;
mod memory;
mod moment;
mod size;
mod stop;

use clap::{Parser, Subcommand};
use std::{io::Write, process::ExitCode};
use stop::Stop;

/// Collective communication for AI clusters.
#[derive(Debug, Parser)]
#[command(name = "rondel", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures a collective between processes, and checks every element of it.
    Bench(Box<bench::BenchArgs>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let status = logging::start().and_then(|()| match &cli.command {
        Command::Bench(args) => bench::run(args),
    });
    match status {
        Ok(status) => ExitCode::from(status),
        Err(stop) => {
            complain(&cli, &stop);
            ExitCode::from(stop.code())
        }
    }
}

/// Says why the command ends. A rank that this program started has told its parent already.
fn complain(cli: &Cli, stop: &Stop) {
    let Command::Bench(args) = &cli.command;
    if args.member.is_none() {
        // There is nowhere left to say that standard error is closed.
        let _ = stop.to_string().lines().try_for_each(|line| writeln!(std::io::stderr(), "rondel: {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
