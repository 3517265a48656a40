//! rondel: collective communication for AI clusters.
//!
//! A job's ranks meet ([`Rendezvous`]), become a [`Communicator`], and make the same calls in the same order:
//! `all_reduce`, `all_gather`, `reduce_scatter` and the others, on slices of any [`Element`] type.
//!
//! # How it is built
//!
//! A collective algorithm is a pure function from a shape and a rank to a *plan*: a straight-line program over chunks. One
//! executor walks plans. Over endpoints it is the library, over a virtual clock the cost model, over symbols the verifier;
//! there is no second copy of an algorithm anywhere. Messages have no tags: the i-th send of a lane meets the i-th
//! receive, so one symbolic run proves a plan for every timing.
//!
//! | module | what it is |
//! |---|---|
//! | [`plan`] | plans, their builder, and which bytes a chunk and a slice are |
//! | [`algo`] | the algorithms, a file per shape of communication |
//! | [`verify`] | proofs: symbolic and byte-level runs of all ranks together |
//! | [`cost`] | simulation on a virtual clock, closed forms, and the tuner that chooses by size |
//! | [`engine`] | the executor; the drive that turns actions into posts; who drives; what a waiting rank notices |
//! | [`bootstrap`] | how ranks meet, and the thread that watches over them |
//! | `membership` | news, heartbeats and suspicion, as a state machine without input or output |
//! | [`comm`] | what callers use: argument checks and nothing else per call |
//! | [`env`](mod@env) | every setting, read in one place |
//!
//! Below it: `rondel-device` (element types, operators, the only SIMD code) and `rondel-transport-api` (the seam: traits,
//! a numbered contract, a conformance suite, a fault decorator), with a crate per transport.
//!
//! Architecture Invariant: `plan`, `algo`, `verify`, `cost`, `membership` and `engine::execution` do no input or output, read no
//! clock and contain no `unsafe`.
//!
//! Architecture Invariant: algorithms know no transport, transports know no collective; only `engine::drive` knows both
//! plan actions and endpoints.
//!
//! Architecture Invariant: the watcher never takes the engine's lock, so that a rank that computes still answers.
//!
//! # Memory
//!
//! What a context holds does not grow with the count of a call: an operation is cut into rounds of at most 8 MiB of its
//! largest buffer, of which two are under way at once. It is the sum of the endpoint's fixed part (for TCP: 256 KiB of
//! scratch), what each lane holds (TCP: 4 KiB of read-ahead a socket and a few KiB of queues; shared memory: 260 KiB of ring
//! and about 10 KiB of queues), two scratch sets of at most one round a channel for algorithms that need scratch, and for reductions with several sources at most two
//! slices (128 KiB) a lane of staging. A [`Buffer`] holds what it was made for. [`Communicator::stats`](comm::Communicator::stats) tells the present sum.

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
pub use comm::{Buffer, Communicator, Group};
pub use error::{Error, Result};
pub use rondel_transport_api::{DataType, Element, F8E4M3, F8E5M2, ReduceOp, Scalar};

/// The README's examples, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
