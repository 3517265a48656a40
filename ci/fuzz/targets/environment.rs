//! The environment of any launcher and user: lines `NAME=value`, where a name may be a number that stands for a known one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel::{
    Rendezvous,
    env::{Env, LAUNCHER_NAMES, NAMES},
};

fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let known = || NAMES.iter().chain(&LAUNCHER_NAMES).nth(name.parse().ok()?);
    Some((known().map_or(name, |known| *known).to_owned(), value.to_owned()))
}

fuzz_target!(|text: &str| {
    let Ok(env) = Env::parse(text.lines().filter_map(variable)) else { return };
    assert!(env.heartbeat * 2 <= env.suspicion);
    if let Ok(rendezvous) = Rendezvous::from_variables(&env) {
        assert!(rendezvous.rank() < rendezvous.nranks());
    }
});
