//! Two endpoints and a lane between them, for tests.

#![allow(dead_code, reason = "each test uses some of it")]

use rondel_shm::ShmTransport;
use rondel_transport_api::{
    Endpoint, Event, Keep, LaneId, Post, Sink, Slice, Token, TransportError, conformance::open_all,
};
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Polls until `enough` of the events, each with the endpoint it came from.
pub(crate) fn poll_until(
    ends: &mut [&mut Box<dyn Endpoint>],
    what: &str,
    mut enough: impl FnMut(&[(usize, Event)]) -> bool,
) -> Vec<(usize, Event)> {
    let (start, mut seen, mut events) = (Instant::now(), Vec::new(), Vec::new());
    while !enough(&seen) {
        for (place, end) in ends.iter_mut().enumerate() {
            end.poll(&mut events, 1 << 20);
            seen.extend(events.drain(..).map(|event| (place, event)));
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}; seen {seen:?}");
        std::thread::yield_now();
    }
    seen
}

pub(crate) fn is_closed(seen: &[(usize, Event)]) -> bool {
    seen.iter().any(|(_, event)| matches!(event, Event::Closed { .. }))
}

/// Why the lane was closed.
pub(crate) fn cause_of(seen: &[(usize, Event)]) -> TransportError {
    let cause = seen.iter().find_map(|(_, event)| match event {
        Event::Closed { cause, .. } => Some(cause.clone()),
        _ => None,
    });
    cause.expect("it was closed").expect("with a cause")
}

/// Two endpoints and their ends of a lane.
pub(crate) fn pair() -> (Box<dyn Endpoint>, LaneId, Box<dyn Endpoint>, LaneId) {
    let mut ends = open_all(&ShmTransport, 2);
    let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
    let (lane_a, lane_b) = connect(&mut a, &mut b);
    (a, lane_a, b, lane_b)
}

pub(crate) fn connect(a: &mut Box<dyn Endpoint>, b: &mut Box<dyn Endpoint>) -> (LaneId, LaneId) {
    let (advert_a, advert_b) = (a.advert(), b.advert());
    let (lane_a, offer_a) = a.prepare(&advert_b).expect("reached");
    let (lane_b, offer_b) = b.prepare(&advert_a).expect("reached");
    a.establish(lane_a, &offer_b).expect("an offer");
    b.establish(lane_b, &offer_a).expect("an offer");
    poll_until(&mut [a, b], "both ends are established", |seen| {
        assert!(!is_closed(seen), "{seen:?}");
        seen.len() == 2
    });
    (lane_a, lane_b)
}

/// Posts a receive with stamp 7. The tests keep `dst` until the event.
pub(crate) fn recv(end: &mut Box<dyn Endpoint>, lane: LaneId, dst: &mut [u8], token: u64) {
    let sink = Sink::Copy { dst: dst.as_mut_ptr(), region: None, keep: Keep::Keep };
    // SAFETY: as said.
    let post = unsafe { end.post_recv(lane, dst.len() as u32, sink, 7, Token(token)) };
    assert_eq!(post, Post::Accepted);
}

/// Posts a send with stamp 7. The tests keep `src` until the event.
pub(crate) fn send(end: &mut Box<dyn Endpoint>, lane: LaneId, src: &[u8], token: u64) {
    let src = Slice { addr: src.as_ptr(), len: src.len() as u32, region: None };
    // SAFETY: as said.
    let post = unsafe { end.post_send(lane, src, 7, Token(token)) };
    assert_eq!(post, Post::Accepted);
    end.flush();
}
