//! What mem promises beyond the seam's contract.

mod harness;

use harness::{connect, poll, recv, send};
use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{
    Combine, DataType, Endpoint, Event, Keep, LaneId, Offer, Operand, Post, Reduction, Sink, Token,
    TransportError,
    conformance::open_all,
    faults::{Delay, Faults, FaultyTransport, Storm},
};
use std::os::fd::AsRawFd;

type Pair = (Box<dyn Endpoint>, LaneId, Box<dyn Endpoint>, LaneId);

fn pair(config: MemConfig) -> Pair {
    let mut ends = open_all(&MemTransport::new(config), 2);
    let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
    let (lane_a, lane_b) = connect(&mut *a, &mut *b);
    (a, lane_a, b, lane_b)
}

fn tokens(events: &[Event]) -> Vec<u64> {
    let done = |event: &Event| match event {
        Event::Done { token } => Some(token.0),
        _ => None,
    };
    events.iter().filter_map(done).collect()
}

#[test]
fn without_buffers_a_transfer_starts_when_send_meets_receive() {
    for size in [0, 1, 5000] {
        let (src, mut dst) = (vec![7; size], vec![0; size]);
        let (mut a, lane_a, mut b, lane_b) = pair(MemConfig { eager: 0, ..MemConfig::default() });
        // SAFETY: both vectors outlive the endpoints' use of them.
        unsafe {
            assert_eq!(send(&mut *a, lane_a, &src, 1, 1), Post::Accepted);
            for _ in 0..10 {
                assert!(poll(&mut *a).is_empty() && poll(&mut *b).is_empty());
            }
            assert_eq!(recv(&mut *b, lane_b, &mut dst, 1, 2), Post::Accepted);
        }
        assert!(poll(&mut *a).is_empty(), "nothing moves before the receiver polls");
        assert_eq!(tokens(&poll(&mut *b)), [2]);
        assert_eq!(tokens(&poll(&mut *a)), [1]);
        assert_eq!(src, dst);
    }
}

#[test]
fn short_messages_are_done_once_flushed() {
    let (mut a, lane_a, _b, _) = pair(MemConfig { eager: 10, ..MemConfig::default() });
    let (short, long) = ([1; 10], [2; 11]);
    let mut events = Vec::new();
    // SAFETY: the arrays outlive the endpoints' use of them.
    unsafe {
        assert_eq!(send(&mut *a, lane_a, &short, 1, 1), Post::Accepted);
        a.poll(&mut events, 1000);
        assert!(events.is_empty(), "a message that was not flushed needs its sender");
        assert_eq!(tokens(&poll(&mut *a)), [1]);
        assert_eq!(send(&mut *a, lane_a, &long, 2, 2), Post::Accepted);
        assert_eq!(tokens(&poll(&mut *a)), []);
    }
    drop(a);
}

#[test]
fn unsuitable_posts_fail_and_take_no_number() {
    let config = MemConfig { max_message: 8, reduces: false, ..MemConfig::default() };
    let (mut a, lane_a, mut b, lane_b) = pair(config);
    assert_eq!((b.limits().max_message, b.limits().reduces), (8, false));
    let (long, short, mut dst) = ([0; 9], [4; 8], [0; 8]);
    let reduction = Reduction { dtype: DataType::F32, combine: Combine::Sum, pre: None, divide: None };
    let with = Operand { addr: short.as_ptr(), raw: false };
    let sink = Sink::Reduce { reduction, with, dst: dst.as_mut_ptr(), last: false, keep: Keep::Keep };
    // SAFETY: the arrays outlive the endpoints' use of them.
    unsafe {
        assert_eq!(send(&mut *a, lane_a, &long, 0, 1), Post::Accepted);
        assert_eq!(send(&mut *a, lane_a, &short, 1, 2), Post::Accepted);
        assert_eq!(b.post_recv(lane_b, 8, sink, 0, Token(3)), Post::Accepted);
        assert_eq!(recv(&mut *b, lane_b, &mut dst, 1, 4), Post::Accepted);
    }
    let (at_a, at_b) = (poll(&mut *a), poll(&mut *b));
    for (events, token, hint) in [(&at_a, 1, "max_message"), (&at_b, 3, "Sink::Reduce")] {
        let Event::Failed { token: failed, error: TransportError::Unsupported { what } } = &events[0] else {
            panic!("expected a failure, got {events:?}");
        };
        assert_eq!(failed.0, token);
        assert!(what.contains(hint), "{what}");
    }
    assert_eq!((tokens(&at_a), tokens(&at_b)), (vec![2], vec![4]));
    assert_eq!(dst, short);
}

#[test]
fn a_reduction_of_half_an_element_fails() {
    let (mut a, lane_a, _b, _) = pair(MemConfig::default());
    let mut dst = [0; 7];
    let reduction = Reduction { dtype: DataType::F32, combine: Combine::Sum, pre: None, divide: None };
    let with = Operand { addr: dst.as_ptr(), raw: false };
    let sink = Sink::Reduce { reduction, with, dst: dst.as_mut_ptr(), last: false, keep: Keep::Keep };
    // SAFETY: the array outlives the endpoint's use of it.
    unsafe { assert_eq!(a.post_recv(lane_a, 7, sink, 0, Token(3)), Post::Accepted) };
    let events = poll(&mut *a);
    assert!(
        matches!(&events[..], [Event::Failed { error: TransportError::Unsupported { what }, .. }] if what.contains("7 bytes of F32")),
        "{events:?}"
    );
}

#[test]
fn hubs_are_apart() {
    let (here, there) = (MemTransport::default(), MemTransport::default());
    let mut a = open_all(&here, 1).remove(0);
    let mut b = open_all(&there, 1).remove(0);
    assert_eq!(a.reaches(&b.advert()), None);
    assert!(a.prepare(&b.advert()).is_err());
    let own = open_all(&here.clone(), 1).remove(0);
    assert!(a.reaches(&own.advert()).is_some(), "a clone is the same hub");
    let (lane, _) = a.prepare(&own.advert()).expect("reachable");
    let (_, foreign) = b.prepare(&b.advert()).expect("itself");
    assert!(matches!(a.establish(lane, &foreign), Err(TransportError::Protocol { .. })));
}

#[test]
fn an_offer_connects_one_lane() {
    let hub = MemTransport::default();
    let mut ends = open_all(&hub, 3);
    let mut prepare = |i: usize| {
        let advert = ends[i].advert();
        ends[i].prepare(&advert).expect("itself")
    };
    let ((a, own), (b, offer_b), (c, offer_c)) = (prepare(0), prepare(1), prepare(2));
    let is_refused = |answer| matches!(answer, Err(TransportError::Connect { .. }));
    assert!(is_refused(ends[0].establish(a, &own)), "its own offer");
    ends[0].establish(a, &offer_b).expect("the peer's offer");
    assert!(is_refused(ends[2].establish(c, &offer_b)), "an offer that is taken");
    assert!(ends[0].establish(a, &offer_b).is_err(), "twice");
    assert!(is_refused(ends[2].establish(c, &own)), "an offer whose maker chose another");
    // B takes another offer than A hoped for: A learns it, and is not left waiting.
    ends[1].establish(b, &offer_c).expect("a free offer");
    let events = [poll(&mut *ends[0]), poll(&mut *ends[0])].concat();
    assert!(
        matches!(&events[..], [Event::Closed { cause: Some(TransportError::Protocol { .. }), .. }]),
        "{events:?}"
    );
    assert!(ends[2].establish(c, &Offer(Vec::new())).is_err());
}

#[test]
fn an_endpoint_may_have_a_lane_to_itself() {
    let mut end = open_all(&MemTransport::default(), 1).remove(0);
    let advert = end.advert();
    let (a, offer_a) = end.prepare(&advert).expect("itself");
    let (b, offer_b) = end.prepare(&advert).expect("itself");
    end.establish(a, &offer_b).expect("the other offer");
    end.establish(b, &offer_a).expect("the other offer");
    assert_eq!([poll(&mut *end), poll(&mut *end)].concat().len(), 2);
    let (src, mut dst) = (vec![3; 5000], vec![0; 5000]);
    // SAFETY: the vectors outlive the endpoint's use of them.
    unsafe {
        assert_eq!(send(&mut *end, a, &src, 0, 1), Post::Accepted);
        assert_eq!(recv(&mut *end, b, &mut dst, 0, 2), Post::Accepted);
    }
    let mut done = tokens(&[poll(&mut *end), poll(&mut *end)].concat());
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
    assert_eq!(src, dst);
}

fn is_readable(endpoint: &dyn Endpoint) -> bool {
    let mut fd = libc::pollfd { fd: endpoint.wakeup().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure, and no waiting.
    unsafe { libc::poll(&mut fd, 1, 0) == 1 }
}

#[test]
fn a_peer_that_ends_before_it_establishes_is_noticed() {
    for drops in [false, true] {
        let mut ends = open_all(&MemTransport::default(), 2);
        let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
        let (lane_a, _) = a.prepare(&b.advert()).expect("reachable");
        let (lane_b, offer_b) = b.prepare(&a.advert()).expect("reachable");
        a.establish(lane_a, &offer_b).expect("the peer's offer");
        a.arm().expect("an eventfd");
        assert!(poll(&mut *a).is_empty());
        assert!(!is_readable(&*a));
        if drops {
            drop(b);
        } else {
            b.close(lane_b);
            poll(&mut *b);
        }
        assert!(is_readable(&*a), "a sleeper must be woken");
        let events = poll(&mut *a);
        assert!(
            matches!(&events[..], [Event::Closed { cause, .. }] if cause.is_some() == drops),
            "{events:?}"
        );
    }
}

#[test]
fn sends_to_a_peer_that_left_fail_rather_than_wait() {
    let config = MemConfig { window: 1, ..MemConfig::default() };
    let (mut a, lane_a, mut b, lane_b) = pair(config);
    let (src, mut dst) = (vec![1; 5000], vec![0; 5000]);
    // SAFETY: the vectors outlive the endpoints' use of them.
    unsafe {
        assert_eq!(send(&mut *b, lane_b, &src, 1, 1), Post::Accepted);
        assert_eq!(send(&mut *a, lane_a, &src, 1, 2), Post::Accepted);
        b.close(lane_b);
        poll(&mut *b);
        // What B left behind keeps the lane open for receives.
        let events = poll(&mut *a);
        assert!(
            matches!(&events[..], [Event::Failed { error: TransportError::Left { .. }, .. }]),
            "{events:?}"
        );
        for token in 3..6 {
            assert_eq!(send(&mut *a, lane_a, &src, 2, token), Post::Accepted);
            let events = poll(&mut *a);
            assert!(matches!(&events[..], [Event::Failed { .. }]), "{events:?}");
        }
        assert_eq!(recv(&mut *a, lane_a, &mut dst, 1, 9), Post::Accepted);
    }
    let events = poll(&mut *a);
    assert_eq!(tokens(&events), [9]);
    assert!(matches!(&events[1..], [Event::Closed { cause: None, .. }]), "{events:?}");
    assert_eq!(src, dst);
}

/// Everything that happens on three endpoints with some traffic, as text.
fn trace(faults: Option<Faults>) -> String {
    let hub = MemTransport::new(MemConfig { eager: 64, window: 2, ..MemConfig::default() });
    let mut ends = match faults {
        None => open_all(&hub, 3),
        Some(faults) => open_all(&FaultyTransport::new(hub, faults), 3),
    };
    let mut lanes = Vec::new();
    for (i, j) in [(0, 1), (0, 2), (1, 2)] {
        let (low, high) = ends.split_at_mut(j);
        let (a, b) = connect(&mut *low[i], &mut *high[0]);
        lanes.extend([(i, a), (j, b)]);
    }
    let src = vec![5; 3000];
    let mut dst = vec![vec![0; 3000]; lanes.len()];
    let mut text = String::new();
    for round in 0..200_usize {
        for (index, &(end, lane)) in lanes.iter().enumerate() {
            let (size, token) = ((round * 37) % 3000, (round * 100 + index * 2) as u64);
            // A refused post shifts the lengths against each other: failures are part of the trace.
            // SAFETY: the vectors outlive the endpoints; what the receives store is not looked at.
            let (sent, received) = unsafe {
                (
                    send(&mut *ends[end], lane, &src[..size], 1, token),
                    recv(&mut *ends[end], lane, &mut dst[index][..size], 1, token + 1),
                )
            };
            text += &format!("{sent:?} {received:?} ");
        }
        for end in &mut ends {
            text += &format!("{:?}\n", poll(&mut **end));
        }
    }
    text
}

#[test]
fn one_thread_sees_the_same_events_in_every_run() {
    let plain = trace(None);
    assert!(plain.matches("Done").count() > 100, "{plain}");
    assert_eq!(plain, trace(None));
    let faults = |seed| {
        Some(Faults {
            seed,
            delay: Some(Delay { per_mille: 400, most: 5 }),
            storm: Some(Storm { per_mille: 100, most: 3 }),
            shuffle: true,
            ..Faults::default()
        })
    };
    assert_eq!(trace(faults(1)), trace(faults(1)));
    assert_ne!(trace(faults(1)), trace(faults(2)));
}
