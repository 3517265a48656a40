//! Two ranks, two terminals:
//!
//! ```text
//! RONDEL_ROOT=127.0.0.1:4000 RONDEL_NRANKS=2 RONDEL_RANK=0 cargo run --release --example all_reduce
//! RONDEL_ROOT=127.0.0.1:4000 RONDEL_NRANKS=2 RONDEL_RANK=1 cargo run --release --example all_reduce
//! ```

#![expect(clippy::print_stdout, reason = "a program, and this is its output")]

use rondel::{Communicator, ReduceOp, Rendezvous};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let comm = Communicator::builder().timeout(Duration::from_secs(30)).connect(Rendezvous::from_env()?)?;

    let mut gradients = vec![comm.rank() as f32 + 1.0; 1 << 20];
    let start = Instant::now();
    comm.all_reduce(ReduceOp::Sum, &mut gradients)?;
    let took = start.elapsed();

    let expected = (1..=comm.nranks()).sum::<u32>() as f32;
    assert!(gradients.iter().all(|&sum| sum == expected));
    println!("rank {} of {}: every element is {expected}, after {took:?}", comm.rank(), comm.nranks());
    Ok(())
}
