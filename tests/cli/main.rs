//! The command line, run as users run it.

mod bench;
mod endings;
mod explain_and_status;
mod refusals;

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// No command here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short batches, so that tests measure nothing and check everything.
const QUICK: &str = "--rep-ms 0.2 --reps 5";

fn command(line: &str) -> Command {
    prepared(Command::new(env!("CARGO_BIN_EXE_rondel")), line)
}

/// The same after shell commands, such as one that sets a limit.
fn command_after(shell: &str, line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_rondel")]);
    prepared(command, line)
}

fn prepared(mut command: Command, line: &str) -> Command {
    command.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RONDEL_")) {
        command.env_remove(name);
    }
    command
}

/// Waits for the end within bounded time.
fn output(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    let read = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let stdout = child.stdout.take().map(|pipe| read(Box::new(pipe)));
    let stderr = child.stderr.take().map(|pipe| read(Box::new(pipe)));
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("not finished within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text =
        |reader: Option<std::thread::JoinHandle<Vec<u8>>>| reader.map_or(Vec::new(), |r| r.join().unwrap());
    Output { status, stdout: text(stdout), stderr: text(stderr) }
}

/// Exit status, standard output, standard error.
fn rondel(line: &str) -> (i32, String, String) {
    outcome(&mut command(line))
}

fn outcome(command: &mut Command) -> (i32, String, String) {
    let output = output(command.spawn().unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
