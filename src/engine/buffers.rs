//! Memory that endpoints made for callers: which bytes of a post lie in it, and what it is called at each endpoint.

use super::Engine;
use rondel_transport_api::{Allocation, RegionId, TransportError};

/// Posts below this are not looked up. Transports copy what is that small, and a caller's small operations cost what they
/// cost without buffers.
const LOOKED_UP_FROM: usize = 16 << 10;

/// Memory of the endpoints of an engine.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// By address.
    list: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    start: usize,
    len: usize,
    /// By endpoint.
    regions: Box<[Option<RegionId>]>,
}

impl Known {
    fn holds(&self, start: usize, len: usize) -> bool {
        start >= self.start && start - self.start + len <= self.len
    }
}

impl Buffers {
    /// What an endpoint calls the memory that a slice lies in. Costs nothing where there is none, or for small slices.
    #[inline]
    pub(super) fn region_of(&self, port: usize, addr: *const u8, len: usize) -> Option<RegionId> {
        if self.list.is_empty() || len < LOOKED_UP_FROM { None } else { self.find(port, addr.addr(), len) }
    }

    fn find(&self, port: usize, start: usize, len: usize) -> Option<RegionId> {
        let behind = self.list.partition_point(|known| known.start <= start);
        let known = self.list[..behind].last().filter(|known| known.holds(start, len))?;
        known.regions[port]
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.list.iter().map(|known| known.len).sum()
    }
}

impl Engine {
    /// At least `bytes` of zeroed memory that peers may map, made by the first endpoint that makes such; `None`: none does.
    /// Operations on it find it by its address, until it is [forgotten](Engine::forget_memory).
    pub fn allocate(&mut self, bytes: usize) -> Result<Option<Allocation>, TransportError> {
        let made =
            self.ports.iter_mut().enumerate().find_map(|(maker, port)| match port.endpoint.allocate(bytes) {
                Err(TransportError::Unsupported { .. }) => None,
                made => Some(made.map(|allocation| (maker, allocation))),
            });
        let Some((maker, allocation)) = made.transpose()? else { return Ok(None) };
        let region = allocation.region;
        let regions = self.ports.iter_mut().enumerate().map(|(at, port)| match at == maker {
            true => Some(allocation.id),
            // To whom it cannot be made known, it is plain memory.
            false => port.endpoint.register(region).ok(),
        });
        let known = Known { start: region.addr.addr(), len: region.len, regions: regions.collect() };
        let at = self.buffers.list.partition_point(|other| other.start < known.start);
        self.buffers.list.insert(at, known);
        Ok(Some(allocation))
    }

    /// Endpoints and peers have no more to do with the memory at this address. It stays as long as its owner keeps it.
    pub fn forget_memory(&mut self, addr: *const u8) {
        let found = self.buffers.list.binary_search_by_key(&addr.addr(), |known| known.start);
        let Ok(at) = found else { return };
        let known = self.buffers.list.remove(at);
        for (port, region) in self.ports.iter_mut().zip(known.regions) {
            if let Some(region) = region {
                port.endpoint.deregister(region);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_found_where_all_of_them_lies() {
        let known = |start, id| Known { start, len: 1 << 20, regions: [None, Some(RegionId(id))].into() };
        let buffers = Buffers { list: vec![known(1 << 20, 1), known(2 << 20, 2), known(8 << 20, 3)] };
        let find =
            |port, start: usize, len| buffers.region_of(port, std::ptr::without_provenance(start), len);
        let long = LOOKED_UP_FROM;
        assert_eq!(find(1, 1 << 20, long), Some(RegionId(1)));
        assert_eq!(find(1, (2 << 20) - long, long), Some(RegionId(1)));
        assert_eq!(find(1, (2 << 20) - long + 1, long), None, "across two of them");
        assert_eq!(find(1, 2 << 20, 1 << 20), Some(RegionId(2)));
        assert_eq!(find(1, 3 << 20, long), None, "behind");
        assert_eq!(find(1, 0, long), None, "before");
        assert_eq!(find(1, (9 << 20) - long, long), Some(RegionId(3)));
        assert_eq!(find(0, 1 << 20, long), None, "another endpoint");
        assert_eq!(find(1, 1 << 20, long - 1), None, "too small to matter");
        assert_eq!(buffers.bytes(), 3 << 20);
    }
}
