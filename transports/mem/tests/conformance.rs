//! The seam's contract, tested on mem in its different shapes.

use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{
    Endpoint,
    conformance::{Fixture, open_all},
    conformance_tests,
    faults::{Delay, Faults, FaultyTransport, Short, Storm},
};

struct Eager(MemTransport);

impl Fixture for Eager {
    fn new() -> Self {
        Self(MemTransport::default())
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open_all(&self.0, n)
    }
}

/// Nothing is buffered, and a lane has one post in each direction.
struct Unbuffered(MemTransport);

impl Fixture for Unbuffered {
    fn new() -> Self {
        Self(MemTransport::new(MemConfig { eager: 0, window: 1, ..MemConfig::default() }))
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open_all(&self.0, n)
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
        open_all(&self.0, n)
    }
}

/// All faults that stay within the contract, on lanes that copy and lanes that borrow.
struct Decorated(FaultyTransport<MemTransport>);

impl Fixture for Decorated {
    const SPURIOUS_FULL: bool = true;

    fn new() -> Self {
        let inner = MemTransport::new(MemConfig { eager: 100, window: 4, ..MemConfig::default() });
        let faults = Faults {
            seed: 11,
            delay: Some(Delay { per_mille: 300, most: 6 }),
            storm: Some(Storm { per_mille: 100, most: 5 }),
            shuffle: true,
            short: Some(Short { per_mille: 100, most: 2000 }),
            ..Faults::default()
        };
        Self(FaultyTransport::new(inner, faults))
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        open_all(&self.0, n)
    }
}

mod decorated {
    super::conformance_tests!(super::Decorated);
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
