//! The command line of rondel.
fn main() {}
