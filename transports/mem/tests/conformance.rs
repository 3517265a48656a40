//! The seam's contract, tested on mem in its different shapes.

use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{
    Acceptor, Config, Endpoint, Transport, conformance::Fixture, conformance_tests, handshake::Key,
};
use std::{sync::Arc, time::Duration};

/// What an endpoint of this rank is opened with; mem looks at the rank only.
fn config(rank: u32) -> Config {
    Config {
        key: Key([0; 32]),
        rank,
        acceptor: Arc::new(Acceptor::new(Vec::new()).expect("an eventfd")),
        linger: Duration::ZERO,
        silence: Duration::ZERO,
        socket_ifname: None,
        socket_family: None,
        sockets_per_lane: 1,
    }
}

fn open(transport: &dyn Transport, n: usize) -> Vec<Box<dyn Endpoint>> {
    let open = |rank| {
        let config = config(rank);
        let ports = transport.discover(&config).expect("mem has a port everywhere");
        transport.open(&ports[0], &config).expect("mem opens")
    };
    (0..n as u32).map(open).collect()
}

struct Eager(MemTransport);

impl Fixture for Eager {
    fn new() -> Self {
        Self(MemTransport::default())
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open(&self.0, n)
    }
}

/// Nothing is buffered, and a lane has one post in each direction.
struct Unbuffered(MemTransport);

impl Fixture for Unbuffered {
    fn new() -> Self {
        Self(MemTransport::new(MemConfig { eager: 0, window: 1, ..MemConfig::default() }))
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open(&self.0, n)
    }
}

/// Everything is buffered, reductions are left to the caller, and the window is odd.
struct Buffered(MemTransport);

impl Fixture for Buffered {
    fn new() -> Self {
        Self(MemTransport::new(MemConfig {
            eager: 8 << 10,
            window: 3,
            reduces: false,
            ..MemConfig::default()
        }))
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open(&self.0, n)
    }
}

mod eager {
    super::conformance_tests!(super::Eager);
}
mod unbuffered {
    super::conformance_tests!(super::Unbuffered);
}
mod buffered {
    super::conformance_tests!(super::Buffered);
}
