//! The report in words.

use super::{Finding, JobReport, Members, Standing};
use crate::{
    engine::{
        call::Call,
        status::{ProcessState, WaitingFor},
    },
    error::Ranks,
    plan::{Collective, Rank},
};
use std::{fmt, time::Duration};

impl fmt::Display for JobReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "job {:016x}: {} of {} ranks are on this host", self.job, self.ranks.len(), self.nranks)?;
        for idle in self.ranks.iter().filter(|owner| owner.statuses.is_empty()) {
            writeln!(f, "rank {} (process {}, {}) has no communicator", idle.rank, idle.pid, idle.state)?;
        }
        let findings = self.findings();
        for (comm, members) in self.communicators() {
            writeln!(f)?;
            members.write_table(f, comm, self.now)?;
            match findings[&comm].as_slice() {
                [] => writeln!(f, "  nobody waits")?,
                findings => findings.iter().try_for_each(|finding| writeln!(f, "  => {finding}"))?,
            }
        }
        Ok(())
    }
}

impl Members<'_> {
    fn write_table(&self, f: &mut fmt::Formatter<'_>, comm: u64, now: Duration) -> fmt::Result {
        let nranks = self.0.values().map(|(_, status)| status.nranks).max().unwrap_or(0);
        writeln!(f, "communicator {comm:016x} of {nranks} ranks")?;
        let heading =
            ["rank", "of job", "pid", "state", "completed", "entered", "waits for"].map(str::to_owned);
        let rows = self.0.iter().map(|(rank, (owner, status))| {
            [
                rank.to_string(),
                owner.rank.to_string(),
                owner.pid.to_string(),
                owner.state.to_string(),
                number(status.completed),
                status.entered.map_or("-".to_owned(), |call| call.to_string()),
                status.waiting.map_or("-".to_owned(), |waiting| in_words(&waiting, now)),
            ]
        });
        let table: Vec<_> = [heading].into_iter().chain(rows).collect();
        let widths: [usize; 7] =
            std::array::from_fn(|column| table.iter().map(|row| row[column].len()).max().unwrap_or(0));
        for row in &table {
            let line: String =
                row.iter().zip(widths).map(|(cell, width)| format!("  {cell:width$}")).collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Mismatch { ranks, call, others, others_call } => write!(
                f,
                "{} called {call} where {} called {others_call}: all ranks must make the same calls in the same order",
                named(ranks),
                named(others)
            ),
            Finding::Awaited { rank, standing, call, waiters, longest } => {
                let call = call.map_or("a call that nobody remembers".to_owned(), |call| brief(&call));
                match standing {
                    Standing::NotEntered(state) => {
                        write!(f, "rank {rank} is {} and has not entered {call}", alive(*state))?;
                    }
                    Standing::Inside(ProcessState::Running) => write!(
                        f,
                        "rank {rank} is alive, in {call} and waits for nobody: it is at work, or what it sent is on \
                         its way"
                    )?,
                    Standing::Inside(state) => write!(f, "rank {rank} is {} in {call}", alive(*state))?,
                    Standing::Completed(state) => write!(
                        f,
                        "rank {rank} is {} and has completed {call}: what it sent is on its way, or lost",
                        alive(*state)
                    )?,
                    Standing::Unknown => {
                        write!(
                            f,
                            "rank {rank} shows nothing on this host and is awaited in {call}: look where it runs"
                        )?;
                    }
                }
                let wait = if waiters.len() == 1 { "waits" } else { "wait" };
                write!(f, "; {} {wait} for it, for {}", named(waiters), seconds(*longest))
            }
            Finding::Cycle { ranks, waiters } => {
                let names: Vec<_> = ranks.iter().map(|(rank, _)| *rank).collect();
                write!(f, "{} wait for each other", named(&names))?;
                for (index, (rank, call)) in ranks.iter().take(4).enumerate() {
                    let call =
                        call.map_or("a call that it does not remember".to_owned(), |call| brief(&call));
                    write!(f, "{} rank {rank} in {call}", if index == 0 { ":" } else { "," })?;
                }
                f.write_str("; a message is on its way, or the calls do not match")?;
                if waiters.is_empty() { Ok(()) } else { write!(f, "; held up by that: {}", named(waiters)) }
            }
        }
    }
}

fn alive(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Running => "alive",
        ProcessState::Stopped => "stopped (by a signal or a debugger)",
        ProcessState::Dead => "dead",
    }
}

/// Up to three ranks by name, more by number.
fn named(ranks: &[Rank]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        [_, _] | [_, _, _] => format!("ranks {}", Ranks(ranks)),
        _ => format!("{} ranks", ranks.len()),
    }
}

/// A call without its arguments.
fn brief(call: &Call) -> String {
    let name = format!("{} #{}", call.collective.name(), call.seq);
    match call.collective {
        Collective::Send => format!("{name} to rank {}", call.root),
        Collective::Recv => format!("{name} from rank {}", call.root),
        _ => name,
    }
}

fn in_words(waiting: &WaitingFor, now: Duration) -> String {
    format!(
        "rank {} to {} for {} (step {} of #{})",
        waiting.peer,
        if waiting.receiving { "send" } else { "receive" },
        seconds(now.saturating_sub(waiting.since)),
        u64::from(waiting.step) + 1,
        waiting.seq
    )
}

fn number(seq: u64) -> String {
    if seq == 0 { "-".to_owned() } else { format!("#{seq}") }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
