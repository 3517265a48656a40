//! `rondel bench` measures, checks and writes.

use super::*;

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
    assert!(stderr.contains("# Out of bounds values : 0 OK"), "the table: {stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let head = "peer,transport,collective,ranks,bytes,median_us,algbw_GBps,busbw_GBps,place,min_us,max_us,iters,check";
    assert_eq!((lines[0], lines.len()), (head, 3));
    for (line, place) in lines[1..].iter().zip(["out", "in"]) {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells[..5], ["rondel", "shm", "allgather", "2", "64"], "{line}");
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
fn json_on_standard_output_is_alone_there() {
    let (status, stdout, stderr) = rondel("bench reduce --ranks 2 -b 64 -e 256 -n 3 -J -");
    assert_eq!(status, 0, "{stdout}{stderr}");
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["results"].as_array().unwrap().len(), 2);
    assert_eq!(document["errors"].as_array().unwrap().len(), 0);
    assert!(stderr.contains("# Collective test concluded: reduce"), "{stderr}");
}
