//! The one port of a process.

use crate::error::SetupError;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
};

/// Connections that the kernel keeps until they are accepted (it may keep fewer: `net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listens on the first free port of the range, on every address of the family. Returns where peers reach it, best first.
pub(crate) fn open(
    ports: Option<RangeInclusive<u16>>,
    ifname: Option<&str>,
    family: Option<u8>,
) -> Result<(TcpListener, Vec<SocketAddr>), SetupError> {
    let _ = ifname;
    let listener = first_free(&wildcards(family), &ports.unwrap_or(0..=0))
        .map_err(|e| SetupError::Config(format!("{e}; RONDEL_PORTS chooses other ports")))?;
    let port = listener.local_addr().map_err(|e| SetupError::Bootstrap(e.to_string()))?.port();
    let addresses = vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)];
    Ok((listener, addresses))
}

/// Every address of the host, in the family that was asked for. IPv6 sockets take IPv4 connections too.
pub(crate) fn wildcards(family: Option<u8>) -> Vec<IpAddr> {
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    match family {
        Some(4) => vec![v4],
        Some(6) => vec![v6],
        _ => vec![v6, v4],
    }
}

/// Listens on the first port of the range that is free. `ips`: the first of them that this host has is used.
pub(crate) fn first_free(ips: &[IpAddr], ports: &RangeInclusive<u16>) -> Result<TcpListener, io::Error> {
    let mut last = io::Error::other("there is no address to listen on");
    for port in ports.clone() {
        for &ip in ips {
            match listen(SocketAddr::new(ip, port)) {
                Ok(listener) => return Ok(listener),
                Err(e) => {
                    let in_use = e.kind() == io::ErrorKind::AddrInUse;
                    last = io::Error::new(e.kind(), format!("cannot listen on {}: {e}", SocketAddr::new(ip, port)));
                    if in_use {
                        break;
                    }
                }
            }
        }
    }
    if ports.start() != ports.end() {
        let what = format!("none of the ports {} to {} can be used ({last})", ports.start(), ports.end());
        return Err(io::Error::new(last.kind(), what));
    }
    Err(last)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
