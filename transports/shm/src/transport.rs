//! The factory: whether memory can be shared here, and endpoints that do.

use crate::{
    endpoint::{LINK, ShmEndpoint},
    offer::Domain,
    segment,
};
use rondel_transport_api::{Config, Endpoint, Port, Transport, TransportError, Unavailable};
use std::{fs, io, os::linux::fs::MetadataExt};

/// Shared memory between the ranks of a host.
///
/// There is one port. Two endpoints reach each other if their processes run on one kernel and in one network namespace,
/// whatever their users, sessions, and namespaces of processes, mounts and IPC are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmTransport;

/// How many lanes must have room for the transport to be offered.
const LANES_WANTED: u64 = 8;

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        crate::NAME
    }

    fn discover(&self, _: &Config) -> Result<Vec<Port>, Unavailable> {
        let unavailable = |reason: String| Unavailable { reason: format!("shm: {reason}") };
        domain().map_err(|error| {
            unavailable(format!(
                "what identifies this host and its network namespace cannot be read: {error}; mount /proc"
            ))
        })?;
        segment::memfd().map_err(|error| {
            unavailable(format!(
                "memfd_create is refused: {error}; allow it in the container's seccomp profile"
            ))
        })?;
        segment::check_room(LANES_WANTED).map_err(unavailable)?;
        Ok(vec![Port { name: "memory".into(), numa: None, link: LINK }])
    }

    fn open(&self, port: &Port, config: &Config) -> Result<Box<dyn Endpoint>, TransportError> {
        if port.name != "memory" {
            let what = format!("port {:?}: the only one is \"memory\"", port.name);
            return Err(TransportError::Unsupported { what });
        }
        let domain = domain().map_err(|error| {
            crate::io_error("reading what identifies this host and its network namespace", error)
        })?;
        Ok(Box::new(ShmEndpoint::new(config, domain)?))
    }
}

/// The running system and the network namespace of this thread.
fn domain() -> io::Result<Domain> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("the boot id is {text:?}")))?;
    let namespace = fs::metadata("/proc/thread-self/ns/net")?;
    Ok(Domain { boot: boot.to_be_bytes(), network: [namespace.st_dev(), namespace.st_ino()] })
}
