//! Runs that end before they are done.

use super::*;

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
