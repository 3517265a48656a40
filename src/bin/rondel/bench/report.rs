//! What rank 0 says while and after it measures.

use super::{
    args::BenchArgs,
    buffer::Kind,
    csv,
    files::Files,
    json::{Collector, Config},
    row::{Row, Total},
    settings::Settings,
    table::Table,
};
use crate::{size::Step, stop::Stop};
use indicatif::{ProgressBar, ProgressStyle};
use rondel::comm::MemberName;
use std::io::{self, IsTerminal, Write};

/// Everything that one run prints and writes.
#[derive(Debug)]
pub(crate) struct Report {
    table: Table,
    files: Files,
    collector: Collector,
    total: Total,
    progress: ProgressBar,
    nranks: u32,
    /// All is written.
    over: bool,
}

impl Report {
    /// Says what is about to be measured, by whom. `cells` is the length of the progress bar.
    pub(crate) fn start(
        args: &BenchArgs,
        settings: &Settings,
        members: &[MemberName],
        cells: u64,
    ) -> Result<Self, Stop> {
        let nranks = members.len() as u32;
        let table = Table { nranks, per_iter: args.per_iter_timing, timestamps: args.report_timestamps };
        let config = config(args, settings, nranks);
        let mut report = Report {
            table,
            files: Files::create(args)?,
            collector: Collector::new(config, members, args.per_iter_timing, args.report_timestamps),
            total: Total::default(),
            progress: progress(cells),
            nranks,
            over: false,
        };
        report.write_csv(csv::HEAD)?;
        if let Some(json) = &mut report.files.json {
            json.draft(&report.collector.document(&report.total, &["it was ended before it could say why"]))?;
        }
        report.print(&head(settings, members))?;
        report.print(&table.head())?;
        if let Some(note) = settings.rounding(nranks) {
            let say = || writeln!(io::stderr(), "rondel: {note}");
            report.progress.suspend(say).map_err(|e| Stop::unwritable(&e))?;
        }
        Ok(report)
    }
    /// What is measured now.
    pub(crate) fn begin(&self, what: String) {
        self.progress.set_message(what);
    }
    /// A cell is measured.
    pub(crate) fn add(&mut self, row: &Row) -> Result<(), Stop> {
        self.total.add(row, self.nranks);
        if self.files.json.is_some() {
            self.collector.add(row);
        }
        self.write_csv(&csv::lines(row, self.nranks))?;
        self.print(&self.table.row(row))?;
        self.progress.inc(1);
        Ok(())
    }
    /// A remark between the rows and the foot.
    pub(crate) fn remark(&mut self, text: &str) -> Result<(), Stop> {
        self.print(&format!("# {text}\n"))
    }
    /// Says how it went, and writes what is written at the end.
    pub(crate) fn finish(&mut self, test: &str) -> Result<(), Stop> {
        self.conclude(&[], &format!("Collective test concluded: {test}"))
    }
    /// The same for a run that ends before all is measured. Does nothing after one that was finished.
    pub(crate) fn give_up(&mut self, why: &str) -> Result<(), Stop> {
        self.conclude(&[why], &format!("Ended early, with what was measured so far: {why}"))
    }

    fn conclude(&mut self, errors: &[&str], last: &str) -> Result<(), Stop> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        self.progress.finish_and_clear();
        // The files come first: standard output may be closed.
        if let Some(json) = &mut self.files.json {
            json.replace(&self.collector.document(&self.total, errors))?;
        }
        let foot = self.table.foot(&self.total);
        self.print(&format!("{foot}# {}\n", last.replace('\n', "\n# ")))
    }
    /// The table goes to standard error where something else goes to standard output.
    fn print(&self, text: &str) -> Result<(), Stop> {
        let write = || {
            if self.files.take_stdout() {
                return io::stderr().write_all(text.as_bytes());
            }
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        self.progress.suspend(write).map_err(|e| Stop::unwritable(&e))
    }
    fn write_csv(&mut self, text: &str) -> Result<(), Stop> {
        let Some(csv) = &mut self.files.csv else { return Ok(()) };
        self.progress.suspend(|| csv.append(text))
    }
}

fn progress(cells: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a constant template");
    ProgressBar::new(cells).with_style(style)
}

/// The lines above the table.
fn head(settings: &Settings, members: &[MemberName]) -> String {
    let buffers = if settings.buffers == Kind::Mapped { " buffers: mapped" } else { "" };
    let mut text = format!(
        "# rondel version {}\n# Collective test starting: {}\n# nRanks {} {} {}{buffers}\n#\n# Using ranks\n",
        env!("CARGO_PKG_VERSION"),
        settings.test.name(),
        members.len(),
        settings.sweep,
        settings.schedule,
    );
    for (rank, MemberName { hostname, pid }) in members.iter().enumerate() {
        text += &format!("#  Rank {rank:2} Pid {pid:6} on {hostname:>10} host memory\n");
    }
    text + "#\n"
}

fn config(args: &BenchArgs, settings: &Settings, nranks: u32) -> Config {
    let (minbytes, maxbytes) = settings.sweep.ends();
    let (stepbytes, stepfactor) = match settings.sweep.step() {
        Step::Bytes(bytes) => (Some(bytes), None),
        Step::Factor(factor) => (None, Some(factor)),
    };
    Config {
        collective: settings.test.name(),
        ranks: nranks,
        minbytes,
        maxbytes,
        stepbytes,
        stepfactor,
        iters: args.iters,
        warmup_iters: settings.schedule.warmup,
        run_cycles: args.run_cycles,
        check: settings.schedule.checks,
        dirty: settings.schedule.dirty,
        buffers: settings.buffers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rondel::env::Env;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn args(line: &str) -> BenchArgs {
        Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).unwrap().args
    }

    #[test]
    fn the_head_names_every_rank_with_its_process_and_host() {
        let settings = Settings::new(&args("all_reduce -b 8 -e 64 -n 20"), &Env::parse([]).unwrap()).unwrap();
        let member = |hostname: &str, pid| MemberName { hostname: hostname.to_owned(), pid };
        let members = [member("left", 11), member("right", 1234567)];
        let want = format!(
            "# rondel version {}\n# Collective test starting: all_reduce\n# nRanks 2 minBytes 8 maxBytes 64 step: \
             4(factor) warmup iters: 1 iters: 20 validation: 1\n#\n# Using ranks\n#  Rank  0 Pid     11 on       left \
             host memory\n#  Rank  1 Pid 1234567 on      right host memory\n#\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(head(&settings, &members), want);
        let settings = Settings::new(&args("all_reduce -R 1 -n 20"), &Env::parse([]).unwrap()).unwrap();
        assert!(head(&settings, &members).contains(" validation: 1 buffers: mapped\n"));
    }
}
