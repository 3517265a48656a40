//! What makes no sense is refused before anything starts.

use super::*;

fn refused(line: &str, parts: &[&str]) {
    refused_with(&mut command(line), parts);
}

fn refused_with(command: &mut Command, parts: &[&str]) {
    let (status, stdout, stderr) = outcome(command);
    assert_eq!((status, stdout.as_str()), (2, ""), "{command:?}: {stderr}");
    assert!(parts.iter().all(|part| stderr.contains(part)), "{command:?}: {stderr}");
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
    refused("bench all_reduce --ranks 2 --csv - -J -", &["both name -"]);
    refused("bench all_reduce --ranks 2 --csv /dev/null -J /dev/null", &["both name /dev/null"]);
    refused("bench all_reduce --ranks 2 -J --csv x", &["--json <FILE>"]);
    refused("bench all_reduce --ranks 8 -b 1000G -e 1000G", &["not enough memory", "1000 GiB", "16000 GiB"]);
    refused("explain all_reduce --ranks 2", &["--size"]);
    refused(
        "bench all_reduce -I 1 -K 18446744073709551615",
        &["18446744073709551615", "operations from 0 to 1000000"],
    );
    refused("bench all_reduce --channels 17", &["17", "channels from 1 to 16"]);
    refused("verify --algorithm rings", &["\"rings\"", "ring"]);
    refused("status --job xyz", &["xyz", "hexadecimal"]);
}

#[test]
fn every_number_that_makes_no_sense_gets_one_sentence() {
    let sizes = "0 to 1048576G, with an optional K, M or G";
    let flags = [
        ("-b", sizes),
        ("--minbytes", sizes),
        ("-e", sizes),
        ("-i", sizes),
        ("-f", "from 2 to 1099511627776"),
        ("-n", "operations from 1 to 1000000000000"),
        ("-w", "operations from 0 to 1000000000000"),
        ("-N", "repetitions from 0 to 1000000000000"),
        ("-T", "seconds from 0 to 31536000"),
        ("-c", "operations from 0 to 1000000"),
        ("-K", "operations from 0 to 1000000"),
        ("--rep-ms", "milliseconds from 0.001 to 3600000"),
        ("--reps", "batches from 1 to 1000000"),
        ("--channels", "channels from 1 to 16"),
        ("--ranks", "processes from 1 to 1024"),
    ];
    for (flag, expected) in flags {
        for value in ["-1", "-1G", "many", "99999999999999999999999999", "0x10", "NaN", "-n"] {
            let (status, stdout, stderr) = rondel(&format!("bench all_reduce {flag} {value}"));
            assert_eq!((status, stdout.as_str()), (2, ""), "{flag} {value}: {stderr}");
            assert!(stderr.contains(value) && stderr.contains(expected), "{flag} {value}: {stderr}");
            assert!(!stderr.contains("tip:") && !stderr.contains("panicked"), "{flag} {value}: {stderr}");
        }
    }
    refused("explain all_reduce --ranks -1 --size 8", &["'-1'", "ranks from 1 to 100000"]);
    refused("explain all_reduce --ranks 2 --size -8", &["'-8'", sizes]);
    refused("explain all_reduce --ranks 2 --size 8 --rate -1", &["'-1'", "GB/s from"]);
    refused("verify --ranks -1", &["'-1'", "from 1 to 256"]);
    refused("status --watch --interval -1", &["'-1'", "seconds from 0.05 to 3600"]);
}

#[test]
fn names_are_checked_before_any_rank_is_started() {
    let parts =
        ["--algorithm=ring does no all_to_all among 3 ranks of one host: use pairwise, or leave it out"];
    refused("bench all_to_all --ranks 3 --algorithm ring", &parts);
    refused("bench all_reduce --ranks 3 --algorithm rings", &["\"rings\": use one of ring, tree"]);
    refused("bench all_reduce --ranks 3 --transport pigeon", &["\"pigeon\": use one of ", "tcp"]);
    refused("explain barrier --ranks 3 --algorithm ring", &["use dissemination"]);
    let in_environment = |name, value, parts: &[&str]| {
        refused_with(command("bench barrier --ranks 3").env(name, value), parts);
    };
    in_environment(
        "RONDEL_ALGORITHM",
        "rings",
        &["rondel: RONDEL_ALGORITHM: unknown", "\"rings\": use one of"],
    );
    in_environment(
        "RONDEL_ALGORITHM",
        "ring",
        &["rondel: RONDEL_ALGORITHM=ring does no barrier", "dissemination"],
    );
    in_environment("RONDEL_TRANSPORT", "pigeon", &["rondel: RONDEL_TRANSPORT: unknown transport \"pigeon\""]);
    in_environment("RONDEL_PORTS", "29500", &["RONDEL_PORTS=29500 is 1 port", "29500-29502"]);
}

#[test]
fn memory_that_one_process_may_not_have_is_refused_before_any_rank_is_started() {
    let mut limited = command_after("ulimit -v 1000000", "bench all_reduce --ranks 2 -b 512M -e 512M");
    refused_with(&mut limited, &["not enough memory", "1 GiB a rank", "976.6 MiB (ulimit -v)", "lower -e"]);
}

#[test]
fn memory_that_the_system_refuses_to_a_rank_is_named_in_bytes() {
    // Two buffers would fit into the limit, with everything else in the process they do not.
    let line = "bench all_reduce --ranks 2 -b 480M -e 480M -n 1";
    let (status, _, stderr) = outcome(&mut command_after("ulimit -v 1000000", line));
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("the system refuses a buffer of 480 MiB; lower -e or --ranks"), "{stderr}");
    assert!(stderr.contains("(ulimit -v, now 976.6 MiB)") && !stderr.contains("signal"), "{stderr}");
}

#[test]
fn what_all_ranks_refuse_is_said_once() {
    let mut nowhere = command("bench all_reduce --ranks 3 -n 1 -e 8");
    let (status, _, stderr) = outcome(nowhere.env("RONDEL_SOCKET_IFNAME", "=pigeon0"));
    assert_eq!(status, 1, "{stderr}");
    assert_eq!(stderr.matches("pigeon0").count(), 1, "{stderr}");
    assert!(stderr.contains("ranks 0, 1, 2: "), "{stderr}");
}

#[test]
fn too_few_descriptors_are_named_with_need_and_have() {
    // Below 16, the process that starts the ranks is the first that runs out of them.
    for limit in [10, 14, 16, 20, 24, 28, 32, 36, 40] {
        let line = "bench all_reduce --ranks 8 -b 8 -e 8 -n 1";
        let (status, stdout, stderr) = outcome(&mut command_after(&format!("ulimit -n {limit}"), line));
        assert_eq!(status, 1, "{limit}: {stdout}{stderr}");
        assert!(stderr.contains("ulimit -n"), "{limit}: {stderr}");
        let innocent = ["died", "broke", "silent", "cannot be reached", "left"];
        assert!(!innocent.iter().any(|word| stderr.contains(word)), "{limit}: {stderr}");
        if limit >= 20 {
            let sentence = "file descriptors in a job of 8 ranks and may have";
            assert!(stderr.contains(&format!("{sentence} {limit}: raise")), "{limit}: {stderr}");
        }
    }
}

#[test]
fn a_soft_limit_of_descriptors_is_raised_as_far_as_needed() {
    let line = "bench all_to_all --ranks 8 -b 64 -e 64 -n 1";
    let (status, stdout, stderr) = outcome(&mut command_after("ulimit -Sn 16", line));
    assert_eq!(status, 0, "{stdout}{stderr}");
}

#[test]
fn a_limit_of_files_is_an_error_with_a_sentence() {
    let line = "bench all_reduce --ranks 2 -b 8 -e 8 -n 1";
    let (status, _, stderr) = outcome(&mut command_after("ulimit -f 0", line));
    assert_eq!(status, 1, "{stderr}");
    assert!(stderr.contains("cannot share memory with the ranks: File too large"), "{stderr}");
}
