//! The seam's contract, over real sockets of this host.

mod rig;

use rig::{Door, endpoint};
use rondel_transport_api::{Endpoint, conformance::Fixture};
use std::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr},
};

/// Endpoints with `SOCKETS` sockets a lane, each behind its own door.
struct Host<const SOCKETS: u8> {
    doors: RefCell<Vec<Door>>,
}

impl<const SOCKETS: u8> Host<SOCKETS> {
    fn endpoints_at(&self, ip: IpAddr, n: usize) -> Vec<Box<dyn Endpoint>> {
        let mut doors = self.doors.borrow_mut();
        (0..n)
            .map(|rank| {
                let door = Door::open(ip);
                let endpoint = endpoint(&door.config(rank as u32, SOCKETS));
                doors.push(door);
                endpoint
            })
            .collect()
    }
}

impl<const SOCKETS: u8> Fixture for Host<SOCKETS> {
    fn new() -> Self {
        Self { doors: RefCell::default() }
    }
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>> {
        self.endpoints_at(Ipv4Addr::LOCALHOST.into(), n)
    }
}

mod one_socket {
    rondel_transport_api::conformance_tests!(super::Host<1>);
}
mod three_sockets {
    rondel_transport_api::conformance_tests!(super::Host<3>);
}
