//! `rondel explain`, `verify` and `status`.

use super::*;

#[test]
fn explain_names_the_choice_and_verify_proves_it() {
    let (status, stdout, stderr) = rondel("explain all_reduce --ranks 4 --size 1M");
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(stdout.matches('*').count(), 2, "{stdout}");
    let (status, stdout, stderr) = rondel("explain barrier --ranks 4");
    assert!(status == 0 && stdout.contains("*dissemination"), "{stdout}{stderr}");
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
