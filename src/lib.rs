//! rondel: collective communication for AI clusters.

#[cfg(not(target_os = "linux"))]
compile_error!("rondel supports Linux only");

#[forbid(unsafe_code)]
pub mod algo;
pub mod bootstrap;
pub mod comm;
#[forbid(unsafe_code)]
pub mod cost;
pub mod engine;
pub mod env;
pub mod error;
#[forbid(unsafe_code)]
mod membership;
#[forbid(unsafe_code)]
pub mod plan;
#[forbid(unsafe_code)]
pub mod verify;

pub use bootstrap::Rendezvous;
pub use comm::{Communicator, Group};
pub use error::{Error, Result};
pub use rondel_transport_api::{DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};

/// The README's examples, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
