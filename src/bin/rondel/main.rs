//! The command line of rondel.
//!
//! A file or folder per subcommand: [`bench`] measures, [`explain`] shows which algorithm is chosen and what the others
//! would cost, [`verify`] proves the algorithms, [`status`] shows what running jobs are doing.

mod affinity;
mod bench;
mod choice;
mod collective;
mod explain;
mod logging;
mod memory;
mod moment;
mod number;
mod signals;
mod size;
mod status;
mod stop;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use rondel::env::Env;
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
    /// Shows which algorithm a collective is done with, and what the others would cost.
    Explain(explain::ExplainArgs),
    /// Proves the algorithms.
    Verify(verify::VerifyArgs),
    /// Shows what the running jobs of this host are doing, and who waits for whom.
    Status(status::StatusArgs),
}

fn main() -> ExitCode {
    signals::make_limits_of_files_errors();
    let cli = match Cli::from_arg_matches(&command_line().get_matches()) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    match run(&cli) {
        Ok(status) => ExitCode::from(status),
        Err(stop) => {
            // The parent of a rank collects what its ranks say.
            let is_member = matches!(&cli.command, Command::Bench(args) if args.member.is_some());
            if !is_member && !matches!(stop, Stop::Signal(_)) {
                // There is nowhere left to say that standard error is closed.
                let _ =
                    writeln!(std::io::stderr(), "rondel: {}", stop.to_string().replace('\n', "\nrondel: "));
            }
            ExitCode::from(stop.code())
        }
    }
}

/// A value that starts with a hyphen is a value, so that whoever reads it says what it should be: -1 is no flag. A file of
/// such a name is more likely a flag whose file was forgotten.
fn command_line() -> clap::Command {
    let with_values = |arg: clap::Arg| {
        let is_value = arg.get_action().takes_values() && !arg.is_positional();
        if is_value && arg.get_value_hint() != ValueHint::AnyPath {
            arg.allow_hyphen_values(true)
        } else {
            arg
        }
    };
    Cli::command().mut_subcommands(|subcommand| subcommand.mut_args(with_values))
}

fn run(cli: &Cli) -> Result<u8, Stop> {
    let env = Env::from_process().map_err(|e| Stop::Usage(e.to_string()))?;
    logging::start(&env)?;
    match &cli.command {
        Command::Bench(args) => bench::run(args, &env),
        Command::Explain(args) => explain::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Status(args) => status::run(args, &env),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
    }
}
