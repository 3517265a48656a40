//! Peers that die, fall silent, or are not what they say.

mod rig;

use proptest::prelude::*;
use rig::{Door, KEY, endpoint};
use rondel_transport_api::{
    Advert, Endpoint, Event, Keep, LaneId, Offer, Post, Sink, Slice, Token, TransportError,
    handshake::{Handshake, Hello, Purpose},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(15);

fn poll_until(
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

/// The client's side of a handshake, blocking: what somebody with the key could do.
fn enter(address: SocketAddr, hello: Hello) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connected");
    let mut handshake = Handshake::client(&KEY, hello);
    let mut bytes = [0; 512];
    while !handshake.is_done() {
        let output = handshake.output().to_vec();
        if !output.is_empty() {
            stream.write_all(&output).expect("sent");
            handshake.sent(output.len());
            continue;
        }
        let want = handshake.wants();
        match stream.read(&mut bytes[..want]) {
            Ok(read) => drop(handshake.handle_input(&bytes[..read]).expect("welcome")),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    stream
}

fn is_closed(seen: &[(usize, Event)]) -> bool {
    seen.iter().any(|(_, event)| matches!(event, Event::Closed { .. }))
}

fn cause_of(seen: Vec<(usize, Event)>) -> TransportError {
    let cause = seen.into_iter().find_map(|(_, event)| match event {
        Event::Closed { cause, .. } => Some(cause),
        _ => None,
    });
    cause.expect("it was closed").expect("with a cause")
}

fn connect(a: &mut Box<dyn Endpoint>, b: &mut Box<dyn Endpoint>) -> (LaneId, LaneId) {
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

fn recv(end: &mut Box<dyn Endpoint>, lane: LaneId, dst: &mut [u8], token: u64) {
    let sink = Sink::Copy { dst: dst.as_mut_ptr(), region: None, keep: Keep::Keep };
    // SAFETY: the tests keep `dst` until the event.
    let post = unsafe { end.post_recv(lane, dst.len() as u32, sink, 7, Token(token)) };
    assert_eq!(post, Post::Accepted);
}

fn send(end: &mut Box<dyn Endpoint>, lane: LaneId, src: &[u8], token: u64) {
    let src = Slice { addr: src.as_ptr(), len: src.len() as u32, region: None };
    // SAFETY: the tests keep `src` until the event.
    let post = unsafe { end.post_send(lane, src, 7, Token(token)) };
    assert_eq!(post, Post::Accepted);
    end.flush();
}

/// Lays down an offer as a peer's (larger cookie, so that it dials) and gives back what it needs to dial.
fn intruder(end: &mut Box<dyn Endpoint>) -> (LaneId, u64) {
    let own = end.advert();
    let (lane, ours) = end.prepare(&own).expect("reached");
    let cookie = u64::from_le_bytes(ours.0[1..9].try_into().expect("a cookie"));
    let mut theirs = ours.0.clone();
    theirs[1..9].copy_from_slice(&u64::MAX.to_le_bytes());
    end.establish(lane, &Offer(theirs)).expect("an offer");
    (lane, cookie)
}

/// The frame that says "ready".
fn ready() -> [u8; 40] {
    let mut frame = [0; 40];
    frame[..4].copy_from_slice(b"rdl\x03");
    frame
}

fn address_of(advert: &Advert) -> SocketAddr {
    let port = u16::from_le_bytes(advert.address[2..4].try_into().expect("a port"));
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn intrude(end: &mut Box<dyn Endpoint>, words: &[u8]) -> (LaneId, TcpStream) {
    let (lane, cookie) = intruder(end);
    let address = address_of(&end.advert());
    let mut stream = enter(address, Hello { rank: 0, purpose: Purpose::Lane { cookie, stripe: 0 } });
    stream.write_all(words).expect("sent");
    (lane, stream)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_bytes_end_the_lane(noise in proptest::collection::vec(any::<u8>(), 40..400), greets: bool) {
        let door = Door::open(Ipv4Addr::LOCALHOST.into());
        let mut end = endpoint(&door.config(0, 1));
        let words = if greets { [&ready()[..], &noise].concat() } else { noise };
        let (_, _stream) = intrude(&mut end, &words);
        let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
        let error = cause_of(seen);
        prop_assert!(matches!(error, TransportError::Protocol { .. }), "{error}");
        prop_assert!(error.to_string().contains("rank 0 at 127.0.0.1:"), "{error}");
    }
}

#[test]
fn a_peer_killed_in_the_middle_of_a_message_is_named() {
    let door = Door::open(Ipv4Addr::LOCALHOST.into());
    let mut end = endpoint(&door.config(0, 1));
    let (lane, mut stream) = intrude(&mut end, &ready());
    poll_until(&mut [&mut end], "established", |seen| !seen.is_empty());
    let mut whole = vec![1u8; 300_000];
    recv(&mut end, lane, &mut whole, 1);
    let mut frame = ready();
    frame[3] = 1;
    frame[4..8].copy_from_slice(&300_000u32.to_le_bytes());
    frame[12..16].copy_from_slice(&300_000u32.to_le_bytes());
    frame[24] = 7;
    stream.write_all(&frame).expect("sent");
    stream.write_all(&[5; 100_000]).expect("sent");
    drop(stream);
    let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
    let [(_, Event::Failed { token: Token(1), error }), _] = &seen[..] else { panic!("{seen:?}") };
    assert!(error.to_string().contains("rank 0 at 127.0.0.1:"), "{error}");
    assert!(matches!(cause_of(seen), TransportError::Lost { .. }));
}

#[test]
fn a_peer_that_does_not_read_for_long_is_no_dead_peer() {
    let doors = [0, 1].map(|_| Door::open(Ipv4Addr::LOCALHOST.into()));
    let mut config = doors[0].config(0, 1);
    config.silence = Duration::from_millis(600);
    let (mut a, mut b) = (endpoint(&config), endpoint(&doors[1].config(1, 1)));
    let (lane_a, lane_b) = connect(&mut a, &mut b);
    let (src, mut dst) = (vec![3u8; 32 << 20], vec![0u8; 32 << 20]);
    send(&mut a, lane_a, &src, 1);
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(2500) {
        a.poll(&mut events, 1 << 20);
        assert!(events.is_empty(), "{events:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    recv(&mut b, lane_b, &mut dst, 2);
    poll_until(&mut [&mut a, &mut b], "both are done", |seen| {
        assert!(!is_closed(seen), "{seen:?}");
        seen.len() == 2
    });
    assert!(src == dst);
}

#[test]
fn a_peer_that_never_appears_is_named() {
    let door = Door::open(Ipv4Addr::LOCALHOST.into());
    let mut end = endpoint(&door.config(0, 1));
    let own = end.advert();
    let (lane, ours) = end.prepare(&own).expect("reached");
    // An offer with cookie 0 makes us dial; nobody listens there.
    let vacant = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let mut theirs = ours.0;
    theirs[1..9].fill(0);
    theirs[16..18].copy_from_slice(&vacant.port().to_le_bytes());
    end.establish(lane, &Offer(theirs)).expect("an offer");
    let error = cause_of(poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(matches!(error, TransportError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&format!("{vacant}: Connection refused")), "{error}");
}

#[test]
fn lanes_run_over_ipv6() {
    let loopback = IpAddr::from(Ipv6Addr::LOCALHOST);
    // A host without IPv6 has nothing to test.
    if TcpListener::bind((loopback, 0)).is_err() {
        return;
    }
    let doors = [0, 1].map(|_| Door::open(loopback));
    let (mut a, mut b) = (endpoint(&doors[0].config(0, 2)), endpoint(&doors[1].config(1, 3)));
    let (lane_a, lane_b) = connect(&mut a, &mut b);
    let (src, mut dst) = (vec![3u8; 1 << 20], vec![0u8; 1 << 20]);
    recv(&mut b, lane_b, &mut dst, 2);
    send(&mut a, lane_a, &src, 1);
    poll_until(&mut [&mut a, &mut b], "both are done", |seen| seen.len() == 2);
    assert!(src == dst);
}

/// Switches the loopback interface of this thread's network namespace on or off.
fn switch_loopback(on: bool) {
    // SAFETY: an all-zero request is valid, and the name fits with its final zero.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
        request.ifr_ifru.ifru_flags = if on { libc::IFF_UP as libc::c_short } else { 0 };
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        assert_eq!(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request), 0);
        libc::close(socket);
    }
}

#[test]
fn a_host_that_falls_silent_is_a_lost_peer() {
    let scene = std::thread::spawn(|| {
        // SAFETY: takes no pointer; concerns this thread and those that it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            // A network of one's own, to be switched off, takes a privilege.
            return;
        }
        switch_loopback(true);
        let doors = [0, 1].map(|_| Door::open(Ipv4Addr::LOCALHOST.into()));
        let mut config = doors[0].config(0, 1);
        config.silence = Duration::from_millis(800);
        let (mut a, mut b) = (endpoint(&config), endpoint(&doors[1].config(1, 1)));
        let (lane, _) = connect(&mut a, &mut b);
        switch_loopback(false);
        let (src, mut dst) = (vec![3u8; 1000], vec![0u8; 1000]);
        recv(&mut a, lane, &mut dst, 1);
        send(&mut a, lane, &src, 2);
        let seen = poll_until(&mut [&mut a], "the lane ends", is_closed);
        switch_loopback(true);
        let error = cause_of(seen);
        assert!(matches!(error, TransportError::Lost { .. }), "{error}");
        assert!(error.to_string().contains("has not acknowledged anything"), "{error}");
    });
    scene.join().expect("the lost peer is noticed");
}
