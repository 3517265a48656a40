//! rondel: collective communication for AI clusters.

#[cfg(not(target_os = "linux"))]
compile_error!("rondel supports Linux only");

pub mod algo;
pub mod bootstrap;
pub mod engine;
pub mod error;
pub mod plan;
