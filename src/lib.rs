//! rondel: collective communication for AI clusters.

#[cfg(not(target_os = "linux"))]
compile_error!("rondel supports Linux only");

pub mod algo;
pub mod bootstrap;
pub mod comm;
pub mod engine;
pub mod error;
pub mod plan;

pub use comm::Communicator;
pub use error::{Error, Result};
pub use rondel_transport_api::{DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};
