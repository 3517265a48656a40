//! The factory: which ports this host has, and endpoints on them.

use crate::{
    endpoint::TcpEndpoint,
    interfaces::{self, Interface, NameFilter, Selection, describe, is_link_local},
    options::io_error,
};
use rondel_transport_api::{Config, Endpoint, Link, Port, Transport, TransportError, Unavailable};
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    time::Duration,
};

/// TCP over every interface of the host.
///
/// A port is an interface. Its endpoints tell peers the addresses of [`Config::acceptor`], those of the port's interface
/// first.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

/// What a driver that does not know its speed is taken for.
const UNKNOWN_MBPS: u32 = 10_000;

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        crate::NAME
    }

    fn discover(&self, config: &Config) -> Result<Vec<Port>, Unavailable> {
        let unavailable = |reason: String| Unavailable { reason };
        let list = interfaces::list()
            .map_err(|error| unavailable(format!("tcp: the kernel does not list interfaces: {error}")))?;
        let filter: Option<NameFilter> = match &config.socket_ifname {
            None => None,
            Some(text) => Some(text.parse().map_err(|error| unavailable(format!("tcp: {error}")))?),
        };
        if let Some(family) = config.socket_family.filter(|family| ![4, 6].contains(family)) {
            return Err(unavailable(format!("tcp: address family {family} was asked for, expected 4 or 6")));
        }
        // Whoever made the listener has chosen already: its first address is as good as a route.
        let routed = config.acceptor.addresses().first().copied();
        let selection = Selection { names: filter.as_ref(), family: config.socket_family, routed };
        let chosen = interfaces::select(&list, &selection);
        if chosen.is_empty() {
            let by_name = filter.as_ref().map(|f| format!(" that `{f}` admits")).unwrap_or_default();
            let by_family =
                config.socket_family.map(|f| format!(" with an IPv{f} address")).unwrap_or_default();
            return Err(unavailable(format!(
                "tcp: no interface{by_name}{by_family} is up and usable; there are {}",
                describe(&list)
            )));
        }
        Ok(chosen.into_iter().map(port_of).collect())
    }

    fn open(&self, port: &Port, config: &Config) -> Result<Box<dyn Endpoint>, TransportError> {
        let list = interfaces::list().map_err(|error| io_error("listing the network interfaces", error))?;
        let Some(interface) = list.iter().find(|interface| interface.name == port.name) else {
            return Err(TransportError::Unsupported {
                what: format!("port {:?}: no such interface; there are {}", port.name, describe(&list)),
            });
        };
        let mut addresses = config.acceptor.addresses().to_vec();
        let elsewhere =
            |address: &SocketAddr| !interface.addresses.iter().any(|own| own.ip() == address.ip());
        addresses.sort_by_key(|address| (elsewhere(address), is_link_local(address)));
        let host = host_identity().map_err(|error| io_error("reading what identifies this host", error))?;
        Ok(Box::new(TcpEndpoint::new(config, addresses, port.link, interface.index, host)?))
    }
}

fn port_of(interface: &Interface) -> Port {
    let link = if interface.loopback {
        crate::endpoint::LOOPBACK
    } else {
        let bits_per_sec = f64::from(interface.speed_mbps.unwrap_or(UNKNOWN_MBPS)) * 1e6;
        // Headers of Ethernet, IP and TCP take 6 % at an MTU of 1500.
        Link {
            latency: Duration::from_micros(12),
            overhead: Duration::from_micros(2),
            bytes_per_sec: bits_per_sec / 8.0 * 0.94,
        }
    };
    Port { name: interface.name.clone(), numa: interface.numa, link }
}

/// Equal for processes of one running system and one network namespace, and hardly for others.
fn host_identity() -> std::io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    fs::read_to_string("/proc/sys/kernel/random/boot_id")?.hash(&mut hasher);
    fs::read_link("/proc/thread-self/ns/net")?.hash(&mut hasher);
    Ok(hasher.finish())
}
