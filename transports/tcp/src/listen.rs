//! Listening on one port or the first free one of a range.

use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    ops::RangeInclusive,
    str::FromStr,
};

/// Ports that a listener may use: any free one, one, or the first free one of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(Option<RangeInclusive<u16>>);

impl Ports {
    /// Whichever the kernel gives.
    pub const ANY: Ports = Ports(None);
}

impl From<RangeInclusive<u16>> for Ports {
    fn from(range: RangeInclusive<u16>) -> Self {
        Self(Some(range))
    }
}

/// Text that names no ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortsError {
    text: String,
}

impl fmt::Display for PortsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no port or range of ports: expected for example `5000` or `5000-5010`, from 1 to 65535, or `0` \
             for any free port",
            self.text
        )
    }
}

impl std::error::Error for PortsError {}

impl FromStr for Ports {
    type Err = PortsError;

    /// `0`, `5000` or `5000-5010`.
    fn from_str(text: &str) -> Result<Self, PortsError> {
        let wrong = || PortsError { text: text.into() };
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(text)?, port(text)?),
        };
        match (first, last) {
            (0, 0) => Ok(Self::ANY),
            (1.., _) if first <= last => Ok(Self(Some(first..=last))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("0"),
            Some(range) if range.start() == range.end() => write!(f, "{}", range.start()),
            Some(range) => write!(f, "{}-{}", range.start(), range.end()),
        }
    }
}

/// A nonblocking listener on `address` (its port is ignored), or on all addresses of both families, or of those that this
/// host has. Ports that are taken are passed over.
///
/// # Errors
/// No port can be had; the text says which were tried and what to do.
pub fn bind_listener(address: Option<SocketAddr>, ports: &Ports) -> io::Result<TcpListener> {
    let everywhere =
        [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))];
    let addresses = address.as_ref().map_or(&everywhere[..], std::slice::from_ref);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for &address in addresses {
        for port in ports.0.clone().unwrap_or(0..=0) {
            match listen(SocketAddr::new(address.ip(), port), address) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
            let taken = matches!(last.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
            if !taken {
                break;
            }
        }
        if last.kind() == io::ErrorKind::AddrInUse {
            break;
        }
    }
    let place = address.map_or_else(|| "any address".into(), |address| address.ip().to_string());
    let advice = match (last.kind(), &ports.0) {
        (io::ErrorKind::AddrInUse, Some(range)) if range.start() == range.end() => {
            "another process has this port: give a range such as 5000-5010, or 0 for any free port"
        }
        (io::ErrorKind::AddrInUse, Some(_)) => {
            "every port of the range is taken: each rank of a host needs one, so give a larger range, or 0 for any"
        }
        (io::ErrorKind::PermissionDenied, _) => "ports below 1024 need a privilege: give higher ones",
        (io::ErrorKind::AddrNotAvailable, _) => "this host does not have that address",
        _ => "give another port or address",
    };
    let text = match &ports.0 {
        None => format!("cannot listen on {place}, any free port: {last}"),
        Some(_) => format!("cannot listen on {place}, port {ports}: {last}; {advice}"),
    };
    Err(io::Error::new(last.kind(), text))
}

fn listen(at: SocketAddr, scoped: SocketAddr) -> io::Result<TcpListener> {
    let at = match (at, scoped) {
        (SocketAddr::V6(mut v6), SocketAddr::V6(scoped)) => {
            v6.set_scope_id(scoped.scope_id());
            SocketAddr::V6(v6)
        }
        _ => at,
    };
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    if at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    // A port whose old connections are still dying is free.
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_and_printed() {
        for text in ["0", "5000", "5000-5010", "1-65535"] {
            assert_eq!(text.parse::<Ports>().expect(text).to_string(), text);
        }
        for text in ["", "-", "x", "5000-", "0-5", "9-8", "70000", "1-2-3"] {
            let error = text.parse::<Ports>().expect_err(text);
            assert!(error.to_string().contains("5000-5010"), "{error}");
        }
    }

    #[test]
    fn a_range_gives_its_free_ports_and_then_says_that_it_is_exhausted() {
        let lo: SocketAddr = "127.0.0.1:0".parse().expect("literal");
        let (first, second) = free_pair();
        let ports = Ports::from(first..=second);
        let a = bind_listener(Some(lo), &ports).expect("the first");
        let b = bind_listener(Some(lo), &ports).expect("the second");
        let mut taken = [a.local_addr().expect("bound").port(), b.local_addr().expect("bound").port()];
        taken.sort_unstable();
        assert_eq!(taken, [first, second]);
        let error = bind_listener(Some(lo), &ports).expect_err("both are taken").to_string();
        assert!(
            error.contains(&format!("port {first}-{second}")) && error.contains("larger range"),
            "{error}"
        );
        let error = bind_listener(Some(lo), &Ports::from(first..=first)).expect_err("taken").to_string();
        assert!(error.contains("another process has this port"), "{error}");
    }

    /// Two neighbouring ports that nobody has.
    fn free_pair() -> (u16, u16) {
        for _ in 0..100 {
            let Ok(a) = TcpListener::bind("127.0.0.1:0") else { continue };
            let port = a.local_addr().expect("bound").port();
            if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
                return (port, port + 1);
            }
        }
        panic!("no two neighbouring ports are free");
    }

    #[test]
    fn everywhere_is_reached_by_ipv4() {
        let listener = bind_listener(None, &Ports::ANY).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        std::net::TcpStream::connect(("127.0.0.1", port)).expect("reached");
    }
}
