//! What rank 0 says while and after it measures.

use super::{
    args::BenchArgs,
    csv,
    json::{Collector, Config},
    row::{Row, Total},
    settings::Settings,
    table::Table,
};
use crate::{size::Step, stop::Stop};
use indicatif::{ProgressBar, ProgressStyle};
use rondel::comm::MemberName;
use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::Path,
};

/// Where results go besides the table.
#[derive(Debug, Default)]
pub(crate) struct Files {
    csv: Option<File>,
    json: Option<File>,
}

impl Files {
    /// Creates them, so that what cannot be written is known before the run.
    pub(crate) fn create(args: &BenchArgs) -> Result<Self, Stop> {
        let create = |path: &Path, flag: &str| {
            File::create(path).map_err(|e| {
                Stop::Usage(format!(
                    "cannot write {flag} {}: {e}; give a file in a directory that exists and that you may write to",
                    path.display()
                ))
            })
        };
        let csv = args.csv.as_deref().filter(|path| !is_stdout(path));
        Ok(Files {
            csv: csv.map(|path| create(path, "--csv")).transpose()?,
            json: args.json.as_deref().map(|path| create(path, "--json")).transpose()?,
        })
    }
}

/// `-` means standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Everything that one run prints and writes.
#[derive(Debug)]
pub(crate) struct Report {
    table: Option<Table>,
    csv: Option<File>,
    csv_to_stdout: bool,
    json: Option<(File, Collector)>,
    total: Total,
    progress: ProgressBar,
    nranks: u32,
}

impl Report {
    /// Says what is about to be measured, by whom. `cells` is the length of the progress bar.
    pub(crate) fn start(
        args: &BenchArgs,
        settings: &Settings,
        files: Files,
        members: &[MemberName],
        cells: u64,
    ) -> Result<Self, Stop> {
        let nranks = members.len() as u32;
        let csv_to_stdout = args.csv.as_deref().is_some_and(is_stdout);
        let table = Table { nranks, per_iter: args.per_iter_timing, timestamps: args.report_timestamps };
        let config = config(args, settings, nranks);
        let collector =
            |file| (file, Collector::new(config, members, args.per_iter_timing, args.report_timestamps));
        let mut report = Report {
            table: (!csv_to_stdout).then_some(table),
            csv: files.csv,
            csv_to_stdout,
            json: files.json.map(collector),
            total: Total::default(),
            progress: progress(cells),
            nranks,
        };
        report.write_csv(csv::HEAD)?;
        if report.table.is_some() {
            report.print(&head(settings, members))?;
            report.print(&table.head())?;
        }
        if let Some(note) = settings.rounding(nranks) {
            report.progress.suspend(|| writeln!(io::stderr(), "rondel: {note}")).map_err(unwritable)?;
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
        if let Some(table) = &self.table {
            self.print(&table.row(row))?;
        }
        self.write_csv(&csv::lines(row, self.nranks))?;
        if let Some((_, collector)) = &mut self.json {
            collector.add(row);
        }
        self.progress.inc(1);
        Ok(())
    }
    /// A remark between the rows and the foot.
    pub(crate) fn remark(&mut self, text: &str) -> Result<(), Stop> {
        match self.table {
            Some(_) => self.print(&format!("# {text}\n")),
            None => Ok(()),
        }
    }
    /// Says how it went, and writes what is written at the end.
    pub(crate) fn finish(mut self, test: &str) -> Result<(), Stop> {
        self.progress.finish_and_clear();
        if let Some(table) = self.table {
            let foot = table.foot(&self.total);
            self.print(&format!("{foot}# Collective test concluded: {test}\n"))?;
        }
        if let Some((mut file, collector)) = self.json.take() {
            file.write_all(collector.finish(&self.total).as_bytes()).map_err(unwritable)?;
        }
        Ok(())
    }

    fn print(&self, text: &str) -> Result<(), Stop> {
        let write = || {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        self.progress.suspend(write).map_err(unwritable)
    }
    fn write_csv(&mut self, text: &str) -> Result<(), Stop> {
        if self.csv_to_stdout {
            self.print(text)?;
        }
        match &mut self.csv {
            Some(file) => file.write_all(text.as_bytes()).map_err(unwritable),
            None => Ok(()),
        }
    }
}

fn unwritable(error: io::Error) -> Stop {
    Stop::Failed(format!("results cannot be written: {error}"))
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
    let mut text = format!(
        "# rondel version {}\n# Collective test starting: {}\n# nRanks {} {} {}\n#\n# Using ranks\n",
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
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_by_name() {
        let error = Files::create(&args("all_reduce --csv /nowhere/at/all.csv")).unwrap_err();
        assert_eq!(error.code(), 2);
        assert!(error.to_string().contains("--csv /nowhere/at/all.csv"), "{error}");
        let error = Files::create(&args("all_reduce -J /nowhere/at/all.json")).unwrap_err();
        assert!(error.to_string().contains("--json /nowhere/at/all.json"), "{error}");
        assert!(Files::create(&args("all_reduce --csv -")).unwrap().csv.is_none());
    }
}
