//! Runs that end before they are done.

use super::*;

/// Reads the table up to its first row, which shows that all ranks are at work. Their process ids, by rank.
fn ranks_at_work(table: &mut impl BufRead) -> Vec<i32> {
    let mut pids = Vec::new();
    let mut line = String::new();
    while table.read_line(&mut line).unwrap() > 0 && line.starts_with('#') {
        if line.starts_with("#  Rank ") {
            pids.push(line.split_whitespace().nth(4).unwrap().parse().unwrap());
        }
        line.clear();
    }
    pids
}

/// Of a process that the command under test, or this test, has started and not collected yet.
fn signal(pid: i32, signal: i32) {
    // SAFETY: takes numbers alone.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A path for a file of this test.
fn path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("rondel-cli-{}-{name}", std::process::id()))
}

/// The document and the lines behind the first one, both of which are removed.
fn written(json: &std::path::Path, csv: &std::path::Path) -> (serde_json::Value, Vec<String>) {
    let (document, lines) = (std::fs::read_to_string(json).unwrap(), std::fs::read_to_string(csv).unwrap());
    std::fs::remove_file(json).unwrap();
    std::fs::remove_file(csv).unwrap();
    assert!(lines.ends_with('\n'), "{lines:?}");
    (serde_json::from_str(&document).unwrap(), lines.lines().skip(1).map(str::to_owned).collect())
}

#[test]
fn a_run_without_end_leaves_whole_files_behind_when_it_is_interrupted() {
    for (name, number, whom) in [("int", libc::SIGINT, "parent"), ("term", libc::SIGTERM, "rank 0")] {
        let (json, csv) = (path(&format!("{name}.json")), path(&format!("{name}.csv")));
        let line = "bench all_reduce --ranks 3 -b 64 -e 1K -n 100 -N 0";
        let mut child =
            command(&format!("{line} -J {} --csv {}", json.display(), csv.display())).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let pids = ranks_at_work(&mut stdout);
        signal(if whom == "parent" { child.id() as i32 } else { pids[0] }, number);
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            rest
        });
        let output = output(child);
        let (rest, stderr) = (rest.join().unwrap(), String::from_utf8(output.stderr).unwrap());
        // Ranks may notice the end of rank 0 before they are ended themselves; the parent holds them.
        let expected = |line: &str| whom == "rank 0" && line.contains("rank 0 died");
        assert!(stderr.lines().all(expected), "{whom}: {stderr}");
        assert_eq!(output.status.code(), Some(128 + number), "{whom}: {rest}");
        let last =
            format!("# Ended early, with what was measured so far: ended by SIG{}\n", name.to_uppercase());
        assert!(rest.contains("# Out of bounds values : 0 OK\n") && rest.ends_with(&last), "{whom}: {rest}");
        let (document, lines) = written(&json, &csv);
        let rows = document["results"].as_array().unwrap().len();
        assert!(rows >= 1 && lines.len() == 2 * rows, "{rows} rows, {lines:?}");
        assert_eq!(document["errors"][0], format!("ended by SIG{}", name.to_uppercase()));
    }
}

#[test]
fn the_files_of_a_run_that_fails_are_whole_and_say_why() {
    let (json, csv) = (path("failed.json"), path("failed.csv"));
    let line = "bench all_reduce --ranks 3 -b 64 -e 1K -n 100 -N 0";
    let mut child =
        command(&format!("{line} -J {} --csv {}", json.display(), csv.display())).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let pids = ranks_at_work(&mut stdout);
    signal(pids[2], libc::SIGKILL);
    let drain = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let output = output(child);
    drain.join().unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (document, lines) = written(&json, &csv);
    assert!(!lines.is_empty());
    let error = document["errors"][0].as_str().unwrap();
    // Between two operations, rank 0 knows no more than that.
    assert!(error.contains("rank 2") || error == "another rank failed", "{error}");
}

#[test]
fn whoever_stops_reading_ends_the_run_without_a_word() {
    let json = path("unread.json");
    let line = format!("bench all_reduce --ranks 3 -b 64 -e 64 -n 100 -N 0 -J {}", json.display());
    let mut child = command(&line).spawn().unwrap();
    ranks_at_work(&mut BufReader::new(child.stdout.take().unwrap()));
    let output = output(child);
    assert_eq!(output.status.code(), Some(128 + libc::SIGPIPE));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!(document["errors"][0], "nobody reads the output any more");
    let mut explained = command("explain all_reduce --ranks 4 --sizes").spawn().unwrap();
    drop(explained.stdout.take());
    let output = self::output(explained);
    assert!(output.stderr.is_empty() && matches!(output.status.code(), Some(0 | 141)), "{output:?}");
}

#[test]
fn a_killed_rank_is_named_and_no_process_remains() {
    let mut child = command("bench all_reduce --ranks 3 -b 64K -e 64K -n 100 -N 0").spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let pids = ranks_at_work(&mut stdout);
    assert_eq!(pids.len(), 3);
    signal(pids[1], libc::SIGKILL);
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
    let pids = ranks_at_work(&mut stdout);
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
