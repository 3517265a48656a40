//! `rondel status`: what the running jobs of this host are doing, and who waits for whom.

use crate::{number, stop::Stop};
use clap::Args;
use rondel::{
    engine::status::{list_jobs, report::JobReport},
    env::Env,
};
use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    time::Duration,
};

/// What is shown.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// Only the job whose number begins like this.
    #[arg(long, value_name = "JOB", value_parser = parse_job)]
    job: Option<String>,
    /// Shows it again and again, until it is interrupted.
    #[arg(long)]
    watch: bool,
    /// Seconds from one showing to the next.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, requires = "watch",
          value_parser = number::real("seconds", 0.05..=3600.0))]
    interval: f64,
}

/// The first digits of a number as `rondel status` shows it.
fn parse_job(text: &str) -> Result<String, String> {
    let digits = text.trim_start_matches("0x").to_ascii_lowercase();
    if !digits.is_empty() && digits.len() <= 16 && digits.chars().all(|c| c.is_ascii_hexdigit()) {
        Ok(digits)
    } else {
        Err("give the first hexadecimal digits of a job's number, as `rondel status` shows it".into())
    }
}

const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs the command. The answer is the exit status.
pub(crate) fn run(args: &StatusArgs, env: &Env) -> Result<u8, Stop> {
    loop {
        let (text, found) = render(args, env.runtime_dir.as_deref());
        let clear = if args.watch && io::stdout().is_terminal() { CLEAR } else { "" };
        let mut out = io::stdout().lock();
        out.write_all(format!("{clear}{text}").as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| Stop::unwritable(&e))?;
        if !args.watch {
            return Ok(u8::from(!found));
        }
        drop(out);
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
}

/// The text, and whether there was any job.
fn render(args: &StatusArgs, runtime_dir: Option<&Path>) -> (String, bool) {
    let listing = list_jobs(runtime_dir);
    let wanted = |report: &JobReport| {
        args.job.as_ref().is_none_or(|job| format!("{:016x}", report.job).starts_with(job.as_str()))
    };
    let reports: Vec<String> =
        JobReport::of(&listing).iter().filter(|report| wanted(report)).map(JobReport::to_string).collect();
    let unreadable =
        listing.unreadable.iter().map(|(path, e)| format!("cannot read {}: {e}\n", path.display()));
    let mut text = unreadable.collect::<String>() + &reports.join("\n");
    if reports.is_empty() {
        text += match args.job {
            Some(_) => "no such job of yours runs on this host; `rondel status` shows all\n",
            None => "no job of yours runs on this host\n",
        };
    }
    (text, !reports.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_by_their_first_digits() {
        assert_eq!(parse_job("0xAB12").as_deref(), Ok("ab12"));
        for text in ["", "job", "0123456789abcdef0"] {
            assert!(parse_job(text).unwrap_err().contains("hexadecimal"), "{text}");
        }
    }

    #[test]
    fn a_job_that_does_not_run_is_said_not_to() {
        let args = StatusArgs { job: Some("ffffffffffffffff".into()), watch: false, interval: 1.0 };
        let (text, found) = render(&args, None);
        assert!(
            text.ends_with("no such job of yours runs on this host; `rondel status` shows all\n") && !found
        );
    }
}
