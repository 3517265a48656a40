//! The one port of a process.

use super::codec::MAX_ADDRESSES;
use crate::error::SetupError;
use rondel_tcp::{
    interfaces::{FilterError, Interface, NameFilter, Selection, list, reach_addresses},
    listen::{Ports, bind_listener},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
};

/// Listens on the first free port of the range, on every address of the host. Returns where peers reach it, best first;
/// loopback comes last, for those on the same host.
pub(crate) fn open(
    ports: Option<RangeInclusive<u16>>,
    ifname: Option<&str>,
    family: Option<u8>,
) -> Result<(TcpListener, Vec<SocketAddr>), SetupError> {
    let refused = |e: io::Error| SetupError::Bootstrap(format!("cannot find out this host's addresses: {e}"));
    let names: Option<NameFilter> = ifname
        .map(str::parse)
        .transpose()
        .map_err(|e: FilterError| SetupError::Config(format!("RONDEL_SOCKET_IFNAME is {e}")))?;
    let ports = ports.map_or(Ports::ANY, Ports::from);
    let listener = bind_listener(None, &ports).map_err(|e| {
        SetupError::Config(format!("{e} (RONDEL_PORTS: every rank of a host needs a port of its own)"))
    })?;
    let port = listener.local_addr().map_err(refused)?.port();
    let interfaces = list().map_err(refused)?;
    let selection = Selection { names: names.as_ref(), family, routed: None };
    let mut addresses = reach_addresses(&interfaces, &selection, port);
    if addresses.is_empty() {
        return Err(SetupError::Config(no_interface(&interfaces, ifname, family)));
    }
    addresses.truncate(MAX_ADDRESSES - 1);
    let loopback: IpAddr =
        if family == Some(6) { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    if !addresses.iter().any(|address| address.ip().is_loopback()) {
        addresses.push(SocketAddr::new(loopback, port));
    }
    Ok((listener, addresses))
}

fn no_interface(interfaces: &[Interface], ifname: Option<&str>, family: Option<u8>) -> String {
    let there: Vec<String> = interfaces
        .iter()
        .map(|i| {
            let ips: Vec<String> = i.addresses.iter().map(|address| address.ip().to_string()).collect();
            format!("{} ({})", i.name, if ips.is_empty() { "no address".to_owned() } else { ips.join(", ") })
        })
        .collect();
    format!(
        "no interface fits RONDEL_SOCKET_IFNAME={} and RONDEL_SOCKET_FAMILY={}; this host has {}",
        ifname.unwrap_or("(any)"),
        family.map_or("(any)".to_owned(), |family| family.to_string()),
        there.join(", ")
    )
}
