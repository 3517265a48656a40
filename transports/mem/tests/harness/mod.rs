//! Connects endpoints and posts plain memory.

use rondel_transport_api::{Endpoint, Event, Keep, LaneId, Post, Sink, Slice, Token};

/// A lane between two endpoints, established.
pub(crate) fn connect<'a>(a: &'a mut dyn Endpoint, b: &'a mut dyn Endpoint) -> (LaneId, LaneId) {
    let (lane_a, offer_a) = a.prepare(&b.advert()).expect("reachable");
    let (lane_b, offer_b) = b.prepare(&a.advert()).expect("reachable");
    a.establish(lane_a, &offer_b).expect("the peer's offer");
    b.establish(lane_b, &offer_a).expect("the peer's offer");
    // Decorated endpoints may report it late.
    for (endpoint, lane) in [(a, lane_a), (b, lane_b)] {
        let is_established = |event: &Event| matches!(event, Event::Established { lane: l } if *l == lane);
        assert!((0..1000).any(|_| poll(endpoint).iter().any(is_established)), "not established");
    }
    (lane_a, lane_b)
}

/// The events of one poll.
pub(crate) fn poll(endpoint: &mut dyn Endpoint) -> Vec<Event> {
    let mut events = Vec::new();
    endpoint.flush();
    endpoint.poll(&mut events, 1 << 20);
    events
}

/// # Safety
/// `src` outlives the event of the token, or the endpoint.
pub(crate) unsafe fn send(
    endpoint: &mut dyn Endpoint,
    lane: LaneId,
    src: &[u8],
    stamp: u64,
    token: u64,
) -> Post {
    let src = Slice { addr: src.as_ptr(), len: src.len() as u32, region: None };
    // SAFETY: the caller's promise.
    unsafe { endpoint.post_send(lane, src, stamp, Token(token)) }
}

/// # Safety
/// `dst` outlives the event of the token, or the endpoint, and is not touched before.
pub(crate) unsafe fn recv(
    endpoint: &mut dyn Endpoint,
    lane: LaneId,
    dst: &mut [u8],
    stamp: u64,
    token: u64,
) -> Post {
    let sink = Sink::Copy { dst: dst.as_mut_ptr(), region: None, keep: Keep::Keep };
    // SAFETY: the caller's promise.
    unsafe { endpoint.post_recv(lane, dst.len() as u32, sink, stamp, Token(token)) }
}
