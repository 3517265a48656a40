#![doc = include_str!("../README.md")]

mod connect;
mod copy;
mod endpoint;
#[doc(hidden)]
pub mod foreign;
mod inbox;
mod known;
mod lane;
mod limits;
mod offer;
mod outbox;
#[doc(hidden)]
pub mod record;
mod region;
#[doc(hidden)]
pub mod ring;
mod segment;
mod socket;
mod transport;
mod wake;

pub use endpoint::ShmEndpoint;
pub use transport::ShmTransport;

use rondel_transport_api::TransportError;
use std::{io, sync::Arc};

/// The transport's name in settings, adverts and logs.
pub const NAME: &str = "shm";

fn io_error(what: &str, source: io::Error) -> TransportError {
    TransportError::Io { what: what.into(), source: Arc::new(source) }
}
