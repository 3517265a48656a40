//! The network interfaces of this host, and which of them ranks should use.

pub use crate::filter::{FilterError, NameFilter};

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket},
};

/// Beginnings of names that tunnels, container bridges and their kin have. They carry addresses that other hosts do not
/// reach, or reach by a detour, so they are used only where a user or a route names them.
const SIDE_TRACKS: &[&str] = &[
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "lxc",
    "lxd",
    "podman",
    "weave",
    "kube",
    "nodelocaldns",
    "vmnet",
    "vboxnet",
    "dummy",
    "ifb",
    "tun",
    "tap",
    "wg",
    "zt",
    "tailscale",
    "ip6tnl",
    "ip_vti",
    "ip6_vti",
    "sit",
    "ipip",
    "tunl",
    "gre",
    "ip6gre",
    "erspan",
    "vxlan",
    "geneve",
    "teql",
    "nlmon",
    "azv",
    "lxdbr",
];

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its number, which is the scope id of its link-local addresses.
    pub index: u32,
    /// Its addresses with port 0, in the kernel's order. Link-local IPv6 addresses carry their scope id.
    pub addresses: Vec<SocketAddr>,
    /// It is switched on.
    pub up: bool,
    /// It has a carrier.
    pub running: bool,
    /// It leads back to this host.
    pub loopback: bool,
    /// It is one end of a tunnel or a line.
    pub point_to_point: bool,
    /// Megabits per second, where the driver knows.
    pub speed_mbps: Option<u32>,
    /// Nearest NUMA node, where there is one.
    pub numa: Option<u32>,
}

/// What narrows the choice of interfaces.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    /// By name.
    pub names: Option<&'a NameFilter>,
    /// 4 or 6: addresses of this family only.
    pub family: Option<u8>,
    /// The local address that the kernel routes from towards a peer ([`route_source`]): its interface comes first, also
    /// where its name speaks against it.
    pub routed: Option<SocketAddr>,
}

/// All interfaces of this network namespace, in the kernel's order.
///
/// # Errors
/// The kernel refuses the list.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` takes the list's address.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
    let mut next = head;
    // SAFETY: the kernel's list is valid until it is freed: entries, names and addresses.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above; a name ends with a zero byte.
        let (name, index) = unsafe { (CStr::from_ptr(entry.ifa_name), libc::if_nametoindex(entry.ifa_name)) };
        if index == 0 {
            // Removed meanwhile, or an alias.
            continue;
        }
        let interface = found
            .entry(index)
            .or_insert_with(|| named(name.to_string_lossy().into_owned(), index, entry.ifa_flags));
        // SAFETY: as above.
        interface.addresses.extend(unsafe { address(entry.ifa_addr) });
    }
    // SAFETY: `head` is the list that was given, freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found.into_values().collect())
}

fn named(name: String, index: u32, flags: libc::c_uint) -> Interface {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    // Absent, unreadable and -1 all mean that the driver does not know.
    let number =
        |file: &str| fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?.trim().parse().ok();
    Interface {
        index,
        addresses: Vec::new(),
        up: has(libc::IFF_UP),
        running: has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        point_to_point: has(libc::IFF_POINTOPOINT),
        speed_mbps: number("speed").filter(|&speed| speed > 0 && speed < u32::MAX),
        numa: number("device/numa_node"),
        name,
    }
}

/// # Safety
/// `at` is null or a valid socket address of its family.
unsafe fn address(at: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    match i32::from(unsafe { at.as_ref()? }.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(SocketAddrV4::new(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(SocketAddrV6::new(Ipv6Addr::from(v6.sin6_addr.s6_addr), 0, 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

impl Interface {
    /// Its addresses of a family (4, 6 or both), best first: IPv4, then IPv6, link-local ones last.
    pub fn reachable_at(&self, family: Option<u8>) -> Vec<SocketAddr> {
        let wanted = |address: &&SocketAddr| match family {
            Some(4) => address.is_ipv4(),
            Some(6) => address.is_ipv6(),
            _ => true,
        };
        let mut addresses: Vec<_> = self.addresses.iter().filter(wanted).copied().collect();
        addresses.sort_by_key(|address| (is_link_local(address), address.is_ipv6()));
        addresses
    }

    /// Its name is that of a tunnel, a container bridge or the like.
    pub fn is_side_track(&self) -> bool {
        self.point_to_point || SIDE_TRACKS.iter().any(|start| self.name.starts_with(start))
    }

    fn has(&self, address: &SocketAddr) -> bool {
        self.addresses.iter().any(|own| own.ip() == address.ip())
    }
}

/// Whether an address means something on one link only.
pub fn is_link_local(address: &SocketAddr) -> bool {
    match address {
        SocketAddr::V4(v4) => v4.ip().is_link_local(),
        SocketAddr::V6(v6) => v6.ip().is_unicast_link_local(),
    }
}

/// The interfaces that ranks should use, best first: the routed one, then the others by whether they have an address
/// beyond their link, by speed and by number. Loopback only if nothing else is left or it is asked for; tunnels and
/// container bridges only if a filter or a route names them.
pub fn select<'a>(interfaces: &'a [Interface], selection: &Selection<'_>) -> Vec<&'a Interface> {
    let routed = |i: &Interface| selection.routed.is_some_and(|address| i.has(&address));
    let named = |i: &Interface| selection.names.is_some_and(|names| names.names(&i.name));
    let usable = |i: &&Interface| {
        i.up && !i.reachable_at(selection.family).is_empty()
            && selection.names.is_none_or(|names| names.admits(&i.name))
    };
    let usable: Vec<_> = interfaces.iter().filter(usable).collect();
    let mut chosen: Vec<_> = usable
        .iter()
        .copied()
        .filter(|i| named(i) || routed(i) || !(i.loopback || i.is_side_track()))
        .collect();
    if chosen.is_empty() {
        chosen = usable.into_iter().filter(|i| i.loopback).collect();
    }
    chosen.sort_by_key(|i| {
        let beyond = i.reachable_at(selection.family).iter().any(|address| !is_link_local(address));
        let speed = i.speed_mbps.unwrap_or(0);
        (!routed(i), i.loopback, !beyond, !i.running, std::cmp::Reverse(speed), i.index)
    });
    chosen
}

/// Where peers reach a listener on `port` that listens on all addresses: those of the [selected](select) interfaces, best
/// first, link-local ones last.
pub fn reach_addresses(interfaces: &[Interface], selection: &Selection<'_>, port: u16) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> =
        select(interfaces, selection).iter().flat_map(|i| i.reachable_at(selection.family)).collect();
    addresses.sort_by_key(is_link_local);
    addresses.iter_mut().for_each(|address| address.set_port(port));
    addresses
}

/// The local address that the kernel would use towards `to`. No packet is sent.
///
/// # Errors
/// There is no route.
pub fn route_source(to: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let no_route = |error: io::Error| io::Error::new(error.kind(), format!("no route to {to}: {error}"));
    let socket = UdpSocket::bind(any).map_err(no_route)?;
    // Port 0 is refused by some kernels; the port has no say in the route.
    let target = if to.port() == 0 { SocketAddr::new(to.ip(), 9) } else { to };
    socket.connect(target).map_err(no_route)?;
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok(source)
}

/// What is there, for a message that says why nothing fits.
pub(crate) fn describe(interfaces: &[Interface]) -> String {
    let one = |i: &Interface| {
        let addresses: Vec<_> = i.addresses.iter().map(|a| a.ip().to_string()).collect();
        let state = if i.up { "" } else { ", down" };
        let addresses = if addresses.is_empty() { "no address".into() } else { addresses.join(" ") };
        format!("{} ({addresses}{state})", i.name)
    };
    interfaces.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, speed_mbps: Option<u32>, addresses: &[&str]) -> Interface {
        let address = |text: &&str| SocketAddr::new(text.parse().expect("an address"), 0);
        Interface {
            name: name.into(),
            index,
            addresses: addresses.iter().map(address).collect(),
            up: true,
            running: true,
            loopback: name == "lo",
            point_to_point: false,
            speed_mbps,
            numa: None,
        }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", 1, None, &["127.0.0.1", "::1"]),
            interface("docker0", 2, None, &["172.17.0.1"]),
            interface("eth0", 3, Some(10_000), &["fe80::1", "fd00::2", "10.0.0.2"]),
            interface("eth1", 4, Some(100_000), &["10.1.0.2"]),
            interface("eth2", 5, Some(400_000), &["fe80::5"]),
            interface("tun0", 6, None, &["10.8.0.1"]),
            interface("eth3", 7, Some(400_000), &[]),
        ]
    }

    fn names(interfaces: &[Interface], selection: &Selection<'_>) -> String {
        select(interfaces, selection).iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn by_name(text: &str) -> String {
        let filter = text.parse().expect("a filter");
        names(&host(), &Selection { names: Some(&filter), ..Selection::default() })
    }

    #[test]
    fn the_fastest_ordinary_interface_comes_first() {
        assert_eq!(names(&host(), &Selection::default()), "eth1 eth0 eth2");
    }

    #[test]
    fn side_tracks_and_loopback_are_used_when_named() {
        assert_eq!(by_name("docker"), "docker0");
        assert_eq!(by_name("=lo"), "lo");
        assert_eq!(by_name("^eth1"), "eth0 eth2");
        assert_eq!(by_name("^eth"), "lo");
        assert_eq!(by_name("wlan"), "");
    }

    #[test]
    fn loopback_is_better_than_a_bridge_by_accident() {
        assert_eq!(names(&host()[..2], &Selection::default()), "lo");
        let mut down = host();
        down.iter_mut().filter(|i| i.name.starts_with("eth")).for_each(|i| i.up = false);
        assert_eq!(names(&down, &Selection::default()), "lo");
    }

    #[test]
    fn a_route_brings_its_interface_to_the_front() {
        let routed = |text: &str| Selection {
            routed: Some(SocketAddr::new(text.parse().expect("an address"), 0)),
            ..Selection::default()
        };
        assert_eq!(names(&host(), &routed("10.0.0.2")), "eth0 eth1 eth2");
        assert_eq!(names(&host(), &routed("10.8.0.1")), "tun0 eth1 eth0 eth2");
        assert_eq!(names(&host(), &routed("127.0.0.1")), "lo eth1 eth0 eth2");
    }

    #[test]
    fn a_family_leaves_out_interfaces_without_it() {
        let family = |family| Selection { family: Some(family), ..Selection::default() };
        assert_eq!(names(&host(), &family(4)), "eth1 eth0");
        assert_eq!(names(&host(), &family(6)), "eth0 eth2");
    }

    #[test]
    fn link_local_addresses_come_last() {
        let addresses = reach_addresses(&host(), &Selection::default(), 5000);
        let text: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let expected =
            ["10.1.0.2:5000", "10.0.0.2:5000", "[fd00::2]:5000", "[fe80::1]:5000", "[fe80::5]:5000"];
        assert_eq!(text, expected);
    }

    #[test]
    fn this_host_has_loopback_and_routes_to_it() {
        let interfaces = list().expect("a list");
        let lo = interfaces.iter().find(|i| i.loopback).expect("loopback");
        let source = route_source("127.0.0.1:80".parse().expect("literal")).expect("a route");
        assert!(source.ip().is_loopback() && lo.has(&source), "{source} {lo:?}");
    }
}
