//! Files that results are written to, or standard output in place of one.

use super::args::BenchArgs;
use crate::stop::Stop;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, Write},
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Where results go besides the table.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Lines, as they come.
    pub(crate) csv: Option<Output>,
    /// One document.
    pub(crate) json: Option<Output>,
}

/// One of them.
#[derive(Debug)]
pub(crate) enum Output {
    /// Standard output, named by `-`.
    Stdout,
    /// A file.
    File {
        /// It.
        file: File,
        /// The flag and the path, as they were given.
        name: String,
        /// It can be written anew, as a pipe cannot.
        regular: bool,
    },
}

impl Files {
    /// Finds out whether both can be written, and changes neither.
    pub(crate) fn check(args: &BenchArgs) -> Result<(), Stop> {
        let (csv, json) = (args.csv.as_deref(), args.json.as_deref());
        let same = match (csv, json) {
            (Some(csv), Some(json)) if is_stdout(csv) || is_stdout(json) => csv == json,
            (Some(csv), Some(json)) => are_one(csv, json),
            _ => false,
        };
        if same {
            return Err(Stop::Usage(format!(
                "--csv and --json both name {}: give each a file of its own",
                csv.map_or_else(String::new, |path| path.display().to_string())
            )));
        }
        let named = [(csv, "--csv"), (json, "--json")];
        named.into_iter().try_for_each(|(path, flag)| match path {
            Some(path) if !is_stdout(path) => check_file(path).map_err(|e| refused(path, flag, &e)),
            _ => Ok(()),
        })
    }
    /// Creates them, empty.
    pub(crate) fn create(args: &BenchArgs) -> Result<Self, Stop> {
        let open = |path: &Path, flag: &str| -> Result<Output, Stop> {
            if is_stdout(path) {
                return Ok(Output::Stdout);
            }
            let file = File::create(path).map_err(|e| refused(path, flag, &e))?;
            let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
            Ok(Output::File { file, name: format!("{flag} {}", path.display()), regular })
        };
        Ok(Files {
            csv: args.csv.as_deref().map(|path| open(path, "--csv")).transpose()?,
            json: args.json.as_deref().map(|path| open(path, "--json")).transpose()?,
        })
    }
    /// Whether one of them is standard output.
    pub(crate) fn take_stdout(&self) -> bool {
        [&self.csv, &self.json].into_iter().any(|output| matches!(output, Some(Output::Stdout)))
    }
}

impl Output {
    /// Appends to it.
    pub(crate) fn append(&mut self, text: &str) -> Result<(), Stop> {
        match self {
            Output::Stdout => {
                let mut out = io::stdout().lock();
                let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                written.map_err(|e| Stop::unwritable(&e))
            }
            Output::File { file, name, .. } => file.write_all(text.as_bytes()).map_err(|e| broken(name, &e)),
        }
    }
    /// Writes what is to stand there if nothing follows, where that can be replaced later.
    pub(crate) fn draft(&mut self, text: &str) -> Result<(), Stop> {
        match self {
            Output::File { regular: true, .. } => self.replace(text),
            _ => Ok(()),
        }
    }
    /// Writes all that it will hold.
    pub(crate) fn replace(&mut self, text: &str) -> Result<(), Stop> {
        let Output::File { file, name, regular: true } = self else { return self.append(text) };
        let rewritten = file
            .rewind()
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.set_len(text.len() as u64));
        rewritten.map_err(|e| broken(name, &e))
    }
}

/// `-` means standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Whether two paths lead to one file, also where it is to be made yet.
fn are_one(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => {
            let place = |path: &Path| {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                Some((fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?, path.file_name()?.to_owned()))
            };
            one == other || (place(one).is_some() && place(one) == place(other))
        }
        _ => false,
    }
}

fn check_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        // Opening a pipe for a moment would end it for its reader.
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Ok(()),
        Ok(_) => OpenOptions::new().write(true).open(path).map(drop),
        Err(_) => {
            OpenOptions::new().write(true).create_new(true).open(path)?;
            fs::remove_file(path)
        }
    }
}

fn refused(path: &Path, flag: &str, error: &io::Error) -> Stop {
    Stop::Usage(format!(
        "cannot write {flag} {}: {error}; give a file in a directory that exists and that you may write to",
        path.display()
    ))
}

fn broken(name: &str, error: &io::Error) -> Stop {
    Stop::Failed(format!("{name} can be written no further: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn args(line: &str) -> BenchArgs {
        Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).unwrap().args
    }

    fn refusal(line: &str) -> String {
        let error = Files::check(&args(&format!("all_reduce {line}"))).unwrap_err();
        assert_eq!(error.code(), 2);
        error.to_string()
    }

    /// An empty directory, gone at the end.
    struct Directory(std::path::PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rondel-files-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_by_name() {
        assert!(refusal("--csv /nowhere/at/all.csv").contains("--csv /nowhere/at/all.csv"));
        assert!(refusal("-J /nowhere/at/all.json").contains("--json /nowhere/at/all.json"));
        assert!(refusal("-J /proc").contains("--json /proc"));
        assert!(Files::check(&args("all_reduce --csv - -J /dev/null")).is_ok());
    }

    #[test]
    fn two_results_in_one_file_are_refused() {
        let directory = Directory::new("same");
        let at = directory.0.display();
        assert!(refusal("--csv - -J -").contains("both name -:"));
        assert!(refusal(&format!("--csv {at}/x -J {at}/x")).contains("both name"));
        assert!(
            refusal(&format!("--csv {at}/x -J {at}/../{}/x", directory.0.file_name().unwrap().display()))
                .contains("both name")
        );
        assert!(Files::check(&args(&format!("all_reduce --csv {at}/x -J {at}/y"))).is_ok());
        fs::write(directory.0.join("real"), "").unwrap();
        std::os::unix::fs::symlink("real", directory.0.join("link")).unwrap();
        assert!(refusal(&format!("--csv {at}/real -J {at}/link")).contains("both name"));
    }

    #[test]
    fn checking_changes_nothing() {
        let directory = Directory::new("check");
        let (old, new) = (directory.0.join("old"), directory.0.join("new"));
        fs::write(&old, "kept").unwrap();
        Files::check(&args(&format!("all_reduce --csv {} -J {}", old.display(), new.display()))).unwrap();
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("kept", false));
    }

    #[test]
    fn a_draft_is_replaced_in_whole() {
        let directory = Directory::new("draft");
        let path = directory.0.join("x.json");
        let mut files = Files::create(&args(&format!("all_reduce -J {}", path.display()))).unwrap();
        assert!(!files.take_stdout());
        let json = files.json.as_mut().unwrap();
        json.draft("a long draft").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a long draft");
        json.replace("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        assert!(Files::create(&args("all_reduce --csv -")).unwrap().take_stdout());
    }
}
