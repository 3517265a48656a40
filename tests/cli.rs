//! The command line, run as users run it.

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
    let mut command = Command::new(env!("CARGO_BIN_EXE_rondel"));
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
    let output = output(command(line).spawn().unwrap());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn refused(line: &str, parts: &[&str]) {
    let (status, stdout, stderr) = rondel(line);
    assert_eq!((status, stdout.as_str()), (2, ""), "{line}: {stderr}");
    assert!(parts.iter().all(|part| stderr.contains(part)), "{line}: {stderr}");
}

#[test]
fn bench_reduces_between_processes_and_checks_everything() {
    let (status, stdout, stderr) = rondel(&format!("bench all_reduce --ranks 3 -b 8 -e 64K {QUICK}"));
    assert_eq!(status, 0, "{stdout}{stderr}");
    assert!(stdout.contains("# Collective test starting: all_reduce\n# nRanks 3 minBytes 8 maxBytes 65536"));
    assert_eq!(stdout.lines().filter(|line| line.starts_with("#  Rank ")).count(), 3);
    assert_eq!(stdout.lines().filter(|line| !line.starts_with('#')).count(), 7);
    assert!(stdout.contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "), "{stdout}");
    assert!(stdout.ends_with("# Collective test concluded: all_reduce\n"));
}

#[test]
fn every_collective_is_measured_and_right() {
    let collectives =
        "all_reduce reduce_scatter all_gather broadcast reduce all_to_all gather scatter sendrecv";
    for collective in collectives.split_whitespace() {
        for ranks in [1, 2, 5] {
            let line = format!("bench {collective} --ranks {ranks} -b 4 -e 16K -f 64 -r all {QUICK}");
            let (status, stdout, stderr) = rondel(&line);
            assert_eq!(status, 0, "{line}: {stdout}{stderr}");
            assert!(stdout.contains("# Out of bounds values : 0 OK"), "{line}: {stdout}");
        }
    }
    let (status, stdout, stderr) = rondel(&format!("bench barrier --ranks 3 {QUICK}"));
    assert_eq!(status, 0, "{stdout}{stderr}");
}

#[test]
fn every_type_and_operator_is_right() {
    let (status, stdout, stderr) = rondel("bench all_reduce --ranks 3 -d all -o all -b 1000 -e 1000 -n 2");
    assert_eq!(status, 0, "{stdout}{stderr}");
    assert_eq!(stdout.lines().filter(|line| !line.starts_with('#')).count(), 15 * 6 - 2);
    assert!(stdout.contains("# Out of bounds values : 0 OK"), "{stdout}");
}

#[test]
fn csv_has_the_columns_of_the_other_libraries_tables() {
    let (status, stdout, stderr) = rondel("bench allgather --ranks 2 -b 64 -e 64 -n 3 --csv - --dirty -u 1");
    assert_eq!(status, 0, "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let head = "peer,transport,collective,ranks,bytes,median_us,algbw_GBps,busbw_GBps,place,min_us,max_us,iters,check";
    assert_eq!((lines[0], lines.len()), (head, 3));
    for (line, place) in lines[1..].iter().zip(["out", "in"]) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells[..5], ["rondel", "tcp", "allgather", "2", "64"], "{line}");
        assert_eq!((cells[8], cells[11], cells[12]), (place, "3", "ok"), "{line}");
    }
}

#[test]
fn json_is_written_at_the_end() {
    let path = std::env::temp_dir().join(format!("rondel-cli-{}.json", std::process::id()));
    let line = format!("bench reduce --ranks 2 -b 64 -e 256 -n 3 -I 1 -J {}", path.display());
    let (status, stdout, stderr) = rondel(&line);
    assert_eq!(status, 0, "{stdout}{stderr}");
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(document["results"].as_array().unwrap().len(), 2);
    assert_eq!(document["out_of_bounds"]["okay"], true);
    assert_eq!(document["devices"].as_array().unwrap().len(), 2);
    assert_eq!(document["results"][0]["in_place_per_iter"]["times_us"].as_array().unwrap().len(), 3);
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    refused("bench all_reduce --ranks 0", &["'0'", "from 1 to 1024"]);
    refused("bench all_sum --ranks 2", &["all_sum", "all_reduce, reduce_scatter"]);
    refused("bench all_reduce --ranks 2 -d float128", &["float128", "bfloat16"]);
    refused("bench all_reduce --ranks 2 -o mean", &["mean", "avg"]);
    refused("bench all_reduce --ranks 2 --rang 1", &["--rang", "--ranks"]);
    refused("bench all_reduce --ranks 2 -b 1M -e 8", &["-b 1048576", "-e 8"]);
    refused("bench all_reduce --ranks 2 -i 0", &["-i 0"]);
    refused("bench reduce --ranks 2 -r 2", &["-r 2", "0 to 1"]);
    refused("bench all_reduce --ranks 2 -G 1", &["-G/--cudagraph 1"]);
    refused("bench all_reduce --ranks 2 --csv /nowhere/x.csv", &["/nowhere/x.csv"]);
    refused("bench all_reduce --ranks 8 -b 1000G -e 1000G", &["not enough memory", "1000 GiB", "16000 GiB"]);
    refused("explain all_reduce --ranks 2", &["--size"]);
    refused("bench all_reduce -I 1 -K 18446744073709551615", &["18446744073709551615", "0..=1000000"]);
    refused("bench all_reduce --channels 17", &["17", "1..=16"]);
    refused("verify --algorithm rings", &["\"rings\"", "ring"]);
    refused("status --job xyz", &["xyz", "hexadecimal"]);
}

#[test]
fn what_all_ranks_refuse_is_said_once() {
    let (status, _, stderr) = rondel("bench all_reduce --ranks 3 --transport pigeon -n 1 -e 8");
    assert_eq!(status, 1, "{stderr}");
    assert_eq!(stderr.matches("pigeon").count(), 1, "{stderr}");
    assert!(stderr.contains("ranks 0, 1, 2: "), "{stderr}");
}

#[test]
fn a_killed_rank_is_named_and_no_process_remains() {
    let mut child = command("bench all_reduce --ranks 3 -b 64K -e 64K -n 100 -N 0").spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut pids = Vec::new();
    let mut line = String::new();
    // The first row shows that all ranks are at work.
    while stdout.read_line(&mut line).unwrap() > 0 && line.starts_with('#') {
        if line.starts_with("#  Rank ") {
            pids.push(line.split_whitespace().nth(4).unwrap().parse::<i32>().unwrap());
        }
        line.clear();
    }
    assert_eq!(pids.len(), 3);
    // SAFETY: a signal to a process that the command under test has started and not collected yet.
    assert_eq!(unsafe { libc::kill(pids[1], libc::SIGKILL) }, 0);
    let drain = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let killed = Instant::now();
    let output = output(child);
    drain.join().unwrap().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("rondel: rank 1 was killed by signal 9"), "{stderr}");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}: {stderr}", killed.elapsed());
    for pid in pids {
        // SAFETY: signal 0 only asks whether there is such a process.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1, "process {pid} remains");
    }
}

#[test]
fn ranks_end_with_the_process_that_started_them() {
    let mut child = command("bench all_reduce --ranks 2 -b 1K -e 1K -n 100 -N 0").spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut pids = Vec::new();
    let mut line = String::new();
    while pids.len() < 2 && stdout.read_line(&mut line).unwrap() > 0 {
        if line.starts_with("#  Rank ") {
            pids.push(line.split_whitespace().nth(4).unwrap().parse::<i32>().unwrap());
        }
        line.clear();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The pipe ends when the last process that holds it has ended.
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    let is_running = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") R ") || stat.contains(") S ")
    };
    // A process that is ending has closed its pipe, but runs on for a moment.
    for _ in 0..200 {
        if !pids.iter().any(is_running) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("ranks {pids:?} outlive the process that started them");
}

#[test]
fn explain_names_the_choice_and_verify_proves_it() {
    let (status, stdout, stderr) = rondel("explain all_reduce --ranks 4 --size 1M");
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(stdout.matches('*').count(), 2, "{stdout}");
    let (status, stdout, stderr) = rondel("verify --ranks 1..3 --collective all_reduce");
    assert_eq!(status, 0, "{stdout}{stderr}");
    assert!(stdout.contains("ring") && stdout.ends_with(" runs, 0 FAILED\n"), "{stdout}");
}

#[test]
fn status_says_when_there_is_nothing_to_see() {
    let (status, stdout, _) = rondel("status --job ffffffffffffffff");
    assert_eq!(status, 1);
    assert!(stdout.contains("no such job of yours runs on this host"), "{stdout}");
}
