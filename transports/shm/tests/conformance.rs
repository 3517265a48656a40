//! The seam's contract, over memory that endpoints of one process share.

use rondel_shm::ShmTransport;
use rondel_transport_api::{
    Endpoint,
    conformance::{Fixture, open_all},
};

struct Host;

impl Fixture for Host {
    fn new() -> Self {
        Self
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open_all(&ShmTransport, n)
    }
}

rondel_transport_api::conformance_tests!(Host);
