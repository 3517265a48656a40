//! rondel: collective communication for AI clusters.

#[cfg(not(target_os = "linux"))]
compile_error!("rondel supports Linux only");

#[forbid(unsafe_code)]
pub mod algo;
pub mod engine;
#[forbid(unsafe_code)]
pub mod plan;
#[forbid(unsafe_code)]
pub mod verify;
