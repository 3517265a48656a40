//! Peers that die, and peers that are not what they say.

mod rig;

use proptest::prelude::*;
use rig::{cause_of, connect, is_closed, pair, poll_until, recv, send};
use rondel_shm::{
    ShmTransport,
    foreign::{self, CONSUMED_AT, MAGIC, RING, RING_AT},
    record::{REFERENCE, mark},
};
use rondel_transport_api::{
    Allocation, Endpoint, Event, LaneId, Offer, Post, Slice, Token, TransportError,
    conformance::{open_all, test_config},
    handshake::{Handshake, Hello, Key, Purpose},
};
use std::{
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

/// The rank that misbehaving peers say they are.
const RANK: u32 = 9;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// What a peer shows for its memory.
struct Forged {
    file: OwnedFd,
    base: *mut u8,
}

impl Forged {
    /// A file of `size` bytes that begins with two words, with seals.
    fn new(size: u64, words: [u64; 2], seals: libc::c_int) -> Self {
        let file = foreign::memfd().expect("a file in memory");
        // SAFETY: the mapping is as long as the file, and stays.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), size as libc::off_t), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                size as usize,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            base.cast::<[u64; 2]>().write(words);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
            Self { file, base: base.cast() }
        }
    }
    /// One that is as it should be.
    fn good() -> Self {
        Self::new(RING_AT + RING, [MAGIC, RING], SEALS)
    }
    fn write(&self, at: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            // SAFETY: the tests write within the file.
            unsafe { self.base.add(at as usize).cast::<u64>().add(index).write_volatile(*word) };
        }
    }
    /// A record's line at a place of the ring; its flag is written last.
    fn record(&self, place: u64, stamp: u64, len: u32, offset: u32) {
        self.write(RING_AT + place + 8, &[stamp, u64::from(len) | u64::from(offset) << 32]);
        self.write(RING_AT + place, &[mark(place)]);
    }
    /// A record that says that a message lies in a region.
    fn reference(&self, place: u64, len: u32, number: u64, offset: u64) {
        self.write(RING_AT + place + 24, &[number, offset]);
        self.record(place, 7, len, REFERENCE);
    }
}

fn eventfd(flags: libc::c_int) -> OwnedFd {
    // SAFETY: takes no pointers; the descriptor is ours.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | flags)) }
}

fn alone() -> Box<dyn Endpoint> {
    open_all(&ShmTransport, 1).pop().expect("one")
}

/// Gives a lane the offer of a peer that dials, and dials.
fn intrude(end: &mut Box<dyn Endpoint>, key: &Key) -> (LaneId, Result<UnixStream, String>) {
    let own = end.advert();
    let (lane, ours) = end.prepare(&own).expect("reached");
    let (cookie, _, _, name) = foreign::decode_offer(&ours.0).expect("our own offer");
    let theirs = foreign::encode_offer((u64::MAX, RANK, RING, [1; 16]));
    end.establish(lane, &Offer(theirs)).expect("an offer");
    let stream = foreign::dial(&name).expect("it listens");
    let hello = Hello { rank: RANK, purpose: Purpose::Lane { cookie, stripe: 0 } };
    (lane, greet(end, stream, key, hello))
}

/// The client's side of a handshake, while the endpoint is polled.
fn greet(
    end: &mut Box<dyn Endpoint>,
    mut stream: UnixStream,
    key: &Key,
    hello: Hello,
) -> Result<UnixStream, String> {
    let (mut handshake, mut bytes, mut events) = (Handshake::client(key, hello), [0; 256], Vec::new());
    while !handshake.is_done() {
        let output = handshake.output().to_vec();
        stream.write_all(&output).map_err(|error| error.to_string())?;
        handshake.sent(output.len());
        end.poll(&mut events, 1);
        let want = handshake.wants();
        match stream.read(&mut bytes[..want]) {
            Ok(0) => return Err("closed".into()),
            Ok(read) => drop(handshake.handle_input(&bytes[..read]).map_err(|error| error.to_string())?),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    assert!(events.is_empty(), "{events:?}");
    Ok(stream)
}

/// A lane to a peer that shows `memory` and goes on as it should.
fn lane_to(memory: &Forged) -> (Box<dyn Endpoint>, LaneId, UnixStream, Vec<OwnedFd>) {
    let mut end = alone();
    let (lane, stream) = intrude(&mut end, &test_config(0).key);
    let stream = stream.expect("welcome");
    let bell = eventfd(libc::EFD_NONBLOCK);
    foreign::say(&stream, b'm', &[memory.file.as_fd(), bell.as_fd()]).expect("said");
    let mut events = Vec::new();
    let shown = loop {
        end.poll(&mut events, 1);
        if let Some((byte, fds)) = foreign::hear(&stream) {
            assert_eq!(byte, b'm');
            break fds;
        }
        assert!(events.is_empty(), "{events:?}");
    };
    foreign::say(&stream, b'r', &[]).expect("said");
    let seen = poll_until(&mut [&mut end], "established", |seen| !seen.is_empty());
    assert!(matches!(seen[..], [(0, Event::Established { .. })]), "{seen:?}");
    (end, lane, stream, shown)
}

#[test]
fn forged_memory_is_refused_and_named() {
    let good = || RING_AT + RING;
    let bell = || eventfd(libc::EFD_NONBLOCK);
    let plain = || OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("this program"));
    let socket = || OwnedFd::from(UnixStream::pair().expect("sockets").0);
    let cases: [(Vec<OwnedFd>, &str); 11] = [
        (vec![Forged::new(good() - 4096, [MAGIC, RING], SEALS).file, bell()], "bytes, its offer says"),
        (vec![Forged::new(good() + 4096, [MAGIC, RING], SEALS).file, bell()], "bytes, its offer says"),
        (vec![Forged::new(good(), [MAGIC, RING], 0).file, bell()], "could be cut"),
        (vec![Forged::new(good(), [MAGIC, RING], SEALS & !libc::F_SEAL_SHRINK).file, bell()], "could be cut"),
        (vec![Forged::new(good(), [MAGIC ^ 1 << 56, RING], SEALS).file, bell()], "begins with"),
        (vec![Forged::new(good(), [MAGIC, RING * 2], SEALS).file, bell()], "names a ring of"),
        (vec![plain(), bell()], "no sealable file"),
        (vec![bell(), bell()], "no sealable file"),
        (vec![Forged::good().file, socket()], "expected an eventfd"),
        (vec![Forged::good().file, eventfd(0)], "would block"),
        (vec![Forged::good().file], "sent 1 descriptors"),
    ];
    for (fds, said) in cases {
        let mut end = alone();
        let (_, stream) = intrude(&mut end, &test_config(0).key);
        let stream = stream.expect("welcome");
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        foreign::say(&stream, b'm', &fds).expect("said");
        let error = cause_of(&poll_until(&mut [&mut end], said, is_closed));
        assert!(matches!(error, TransportError::Protocol { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(said) && text.contains("rank 9"), "expected {said:?}: {text}");
    }
}

#[test]
fn words_out_of_turn_end_the_lane() {
    for words in [&b"r"[..], b"x", b"\0", b"m", b"b", b"f\0\0\0\0"] {
        let mut end = alone();
        let (_, stream) = intrude(&mut end, &test_config(0).key);
        let mut stream = stream.expect("welcome");
        stream.write_all(words).expect("said");
        let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
        assert!(matches!(error, TransportError::Protocol { .. }), "{words:?}: {error}");
    }
    let memory = Forged::good();
    for words in [&b"r"[..], b"x", b"m", b"b", b"f", b"f\0\0", b"f\0\0\0\0"] {
        let (mut end, _, mut stream, _) = lane_to(&memory);
        stream.write_all(words).expect("said");
        let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
        assert!(matches!(error, TransportError::Protocol { .. }), "{words:?}: {error}");
    }
}

#[test]
fn nobody_else_writes_to_our_memory_or_changes_its_size() {
    let memory = Forged::good();
    let (_end, _, _stream, shown) = lane_to(&memory);
    let file = shown[0].as_raw_fd();
    // SAFETY: the mappings that are refused, and the one that is not and is left alone.
    unsafe {
        let map = |access| libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file, 0);
        assert_ne!(map(libc::PROT_READ), libc::MAP_FAILED, "a peer reads it");
        assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED, "a peer could write to it");
        assert_eq!(libc::write(file, [0u8; 8].as_ptr().cast(), 8), -1, "a peer could write to it");
        assert_eq!(libc::ftruncate(file, 0), -1, "a peer could cut it");
        assert_eq!(libc::ftruncate(file, 1 << 30), -1, "a peer could make it grow");
        assert_eq!(libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_WRITE), -1, "a peer could seal it");
    }
}

#[test]
fn a_record_that_does_not_fit_its_message_ends_the_lane() {
    // The second piece of a message: of another message, of another length, elsewhere.
    for (stamp, len, offset) in
        [(8, 40_000, 16_320), (7, 40_001, 16_320), (7, 40_000, 0), (7, 40_000, u32::MAX)]
    {
        let memory = Forged::good();
        let (mut end, lane, _stream, _) = lane_to(&memory);
        let mut dst = vec![0u8; 40_000];
        recv(&mut end, lane, &mut dst, 1);
        memory.record(0, 7, 40_000, 0);
        memory.record(16_384, stamp, len, offset);
        let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
        assert!(matches!(seen[0], (_, Event::Failed { token: Token(1), .. })), "{seen:?}");
        let error = cause_of(&seen);
        assert!(matches!(error, TransportError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains("its ring has a piece at offset"), "{error}");
    }
}

/// Bytes of the regions that the tests below show.
const REGION: u64 = 1 << 20;

/// A region as it should be, of bytes with the value 3.
fn region() -> Forged {
    let region = Forged::new(REGION, [0; 2], SEALS);
    // SAFETY: the mapping is that long.
    unsafe { region.base.write_bytes(3, REGION as usize) };
    region
}

#[test]
fn a_message_is_read_from_a_region() {
    let (memory, region) = (Forged::good(), region());
    let (mut end, lane, mut stream, _) = lane_to(&memory);
    let mut dst = vec![0u8; 300_001];
    recv(&mut end, lane, &mut dst, 1);
    foreign::say(&stream, b'b', &[region.file.as_fd()]).expect("said");
    memory.reference(0, 300_001, 0, REGION - 300_001);
    let seen = poll_until(&mut [&mut end], "it is received", |seen| !seen.is_empty());
    assert!(matches!(seen[..], [(0, Event::Done { token: Token(1) })]), "{seen:?}");
    assert!(dst.iter().all(|&byte| byte == 3));

    // One that is gone is known no more, and its number never comes again.
    stream.write_all(&[b'f', 0, 0, 0, 0]).expect("said");
    foreign::say(&stream, b'b', &[region.file.as_fd()]).expect("said");
    recv(&mut end, lane, &mut dst, 2);
    memory.reference(64, 300_001, 1, 0);
    let seen = poll_until(&mut [&mut end], "it is received", |seen| !seen.is_empty());
    assert!(matches!(seen[..], [(0, Event::Done { token: Token(2) })]), "{seen:?}");
    recv(&mut end, lane, &mut dst, 3);
    memory.reference(128, 300_001, 0, 0);
    let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(error.to_string().contains("refers to its region 0, which it has not shown"), "{error}");
}

#[test]
fn a_reference_to_what_is_not_there_ends_the_lane() {
    let outside = "of its region 0, which has 1048576";
    for (len, number, offset, said) in [
        (40_000, 1, 0, "its region 1, which it has not shown"),
        (40_000, u64::from(u32::MAX), 0, "which it has not shown"),
        (40_000, 1 << 32, 0, "a number that no region has"),
        (40_000, 0, REGION - 39_999, outside),
        (40_000, 0, REGION, outside),
        (40_000, 0, u64::MAX, outside),
        (40_000, 0, u64::MAX - 39_999, outside),
        (u32::MAX, 0, 0, outside),
        (0, 0, REGION + 1, outside),
    ] {
        let (memory, region) = (Forged::good(), region());
        let (mut end, lane, stream, _) = lane_to(&memory);
        foreign::say(&stream, b'b', &[region.file.as_fd()]).expect("said");
        let mut dst = vec![0u8; 40_000];
        recv(&mut end, lane, &mut dst, 1);
        memory.reference(0, len, number, offset);
        let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
        assert!(matches!(seen[0], (_, Event::Failed { token: Token(1), .. })), "{seen:?}");
        let error = cause_of(&seen);
        assert!(matches!(error, TransportError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(said), "expected {said:?}: {error}");
        assert!(dst.iter().all(|&byte| byte == 0), "nothing was read");
    }
}

#[test]
fn a_reference_in_the_middle_of_a_message_ends_the_lane() {
    let (memory, region) = (Forged::good(), region());
    let (mut end, lane, stream, _) = lane_to(&memory);
    foreign::say(&stream, b'b', &[region.file.as_fd()]).expect("said");
    let mut dst = vec![0u8; 40_000];
    recv(&mut end, lane, &mut dst, 1);
    memory.record(0, 7, 40_000, 0);
    memory.reference(16_384, 40_000, 0, 0);
    let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(error.to_string().contains("its ring has a piece at offset"), "{error}");
}

#[test]
fn a_region_that_goes_while_it_is_read_ends_the_lane() {
    let (memory, region) = (Forged::good(), region());
    let (mut end, lane, mut stream, _) = lane_to(&memory);
    foreign::say(&stream, b'b', &[region.file.as_fd()]).expect("said");
    let mut dst = vec![0u8; REGION as usize];
    recv(&mut end, lane, &mut dst, 1);
    memory.reference(0, REGION as u32, 0, 0);
    let mut events = Vec::new();
    end.poll(&mut events, 1);
    assert!(events.is_empty() && dst[0] == 3, "some of it was read: {events:?}");
    stream.write_all(&[b'f', 0, 0, 0, 0]).expect("said");
    // Whoever sleeps looks at the sockets.
    end.arm().expect("armed");
    let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(error.to_string().contains("refers to its region 0, which it has not shown"), "{error}");
}

#[test]
fn forged_regions_are_refused_and_named() {
    let hollow = || {
        let file = foreign::memfd().expect("a file in memory");
        // SAFETY: the calls take no pointers.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), REGION as libc::off_t), 0);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS), 0);
        }
        file
    };
    let bell = || eventfd(libc::EFD_NONBLOCK);
    let cases: [(Vec<OwnedFd>, &str); 6] = [
        (vec![], "sent 0 descriptors, expected 1"),
        (vec![region().file, region().file], "sent 2 descriptors, expected 1"),
        (vec![Forged::new(REGION, [0; 2], SEALS & !libc::F_SEAL_SHRINK).file], "could be cut"),
        (vec![bell()], "no sealable file"),
        (vec![hollow()], "has 1048576 bytes, of which 0 are there"),
        (vec![Forged::new(4096, [0; 2], 0).file], "could be cut"),
    ];
    for (fds, said) in cases {
        let memory = Forged::good();
        let (mut end, lane, stream, _) = lane_to(&memory);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        foreign::say(&stream, b'b', &fds).expect("said");
        let mut dst = vec![0u8; 40_000];
        recv(&mut end, lane, &mut dst, 1);
        let error = cause_of(&poll_until(&mut [&mut end], said, is_closed));
        assert!(matches!(error, TransportError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(said), "expected {said:?}: {error}");
    }
}

#[test]
fn a_peer_shows_no_more_regions_than_it_may() {
    let (memory, region) = (Forged::good(), region());
    let (mut end, _, stream, _) = lane_to(&memory);
    let mut events = Vec::new();
    for _ in 0..65 {
        while foreign::say(&stream, b'b', &[region.file.as_fd()]).is_err() {
            end.poll(&mut events, 1);
        }
    }
    let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(error.to_string().contains("it showed 65 regions"), "{error}");
}

#[test]
fn a_count_that_cannot_be_ends_the_lane() {
    for consumed in [1, 64 * 1_000_000, u64::MAX, RING + 64] {
        let memory = Forged::good();
        let (mut end, lane, _stream, _) = lane_to(&memory);
        let src = vec![1u8; 1 << 20];
        memory.write(CONSUMED_AT as u64, &[consumed]);
        send(&mut end, lane, &src, 1);
        let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
        assert!(error.to_string().contains("it says that it has read"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever stands in the ring: no panic, no byte beyond what was posted, and each post has its event in the end.
    #[test]
    fn noise_in_the_ring_harms_nobody(
        noise in proptest::collection::vec(any::<u64>(), 8 * 64),
        genuine in proptest::collection::vec(any::<bool>(), 64),
        len in 0u32..3000,
    ) {
        let memory = Forged::good();
        memory.write(RING_AT, &noise);
        for (line, _) in genuine.iter().enumerate().filter(|(_, genuine)| **genuine) {
            let (place, len) = (line as u64 * 64, if line % 3 == 0 { len } else { noise[line] as u32 });
            match line % 4 {
                0 => memory.reference(place, len, noise[line] % 2, noise[line + 64] >> (noise[line] % 64)),
                _ => memory.record(place, 7, len, 0),
            }
        }
        let (mut end, lane, stream, _) = lane_to(&memory);
        foreign::say(&stream, b'b', &[region().file.as_fd()]).expect("said");
        let mut guarded = vec![0x5a; len as usize + 128];
        for token in 0..4 {
            recv(&mut end, lane, &mut guarded[64..64 + len as usize], token);
        }
        let mut events = Vec::new();
        for _ in 0..100 {
            end.poll(&mut events, 1000);
        }
        drop(stream);
        // What was not asked for yet keeps a lane whose peer has gone.
        end.close(lane);
        if !events.iter().any(|event| matches!(event, Event::Closed { .. })) {
            let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
            events.extend(seen.into_iter().map(|(_, event)| event));
        }
        prop_assert_eq!(events.len(), 5);
        prop_assert!(guarded[..64].iter().chain(&guarded[64 + len as usize..]).all(|&byte| byte == 0x5a));
    }
}

#[test]
fn a_peer_that_ends_in_the_middle_of_a_message_is_named() {
    let memory = Forged::good();
    let (mut end, lane, stream, _) = lane_to(&memory);
    let mut dst = vec![0u8; 40_000];
    recv(&mut end, lane, &mut dst, 1);
    memory.record(0, 7, 40_000, 0);
    drop(stream);
    let seen = poll_until(&mut [&mut end], "the lane ends", is_closed);
    let [(_, Event::Failed { token: Token(1), error }), _] = &seen[..] else { panic!("{seen:?}") };
    let expected = format!("rank 9 (process {})", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    assert!(matches!(cause_of(&seen), TransportError::Lost { .. }));
}

#[test]
fn strangers_do_not_keep_peers_out() {
    let mut ends = open_all(&ShmTransport, 2);
    let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
    let names = [&a, &b].map(|end| <[u8; 16]>::try_from(end.advert().address).expect("a name"));
    let mut strangers = Vec::new();
    for _ in 0..150 {
        for name in &names {
            let mut stream = foreign::dial(name).expect("it listens");
            if strangers.len() % 3 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
            }
            strangers.push(stream);
        }
    }
    connect(&mut a, &mut b);
    let (_, refused) = intrude(&mut a, &Key::from_secret(b"another job"));
    let error = refused.expect_err("another key");
    assert!(error.contains("another key"), "{error}");
    let (cookie, name) = (12345, names[0]);
    for purpose in [Purpose::Lane { cookie, stripe: 0 }, Purpose::Lane { cookie, stripe: 1 }, Purpose::Join] {
        let stream = foreign::dial(&name).expect("it listens");
        let refused = greet(&mut a, stream, &test_config(0).key, Hello { rank: RANK, purpose });
        let error = refused.expect_err("no lane waits for it");
        assert!(error.contains("refused by the peer"), "{error}");
    }
}

#[test]
fn a_peer_that_is_gone_before_it_is_dialled_is_named() {
    let mut end = alone();
    let own = end.advert();
    let (lane, _) = end.prepare(&own).expect("reached");
    // An offer with cookie 0 makes us dial; nobody has that name.
    let theirs = foreign::encode_offer((0, RANK, RING, [7; 16]));
    end.establish(lane, &Offer(theirs)).expect("an offer");
    let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
    assert!(matches!(error, TransportError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("rank 9") && error.to_string().contains("has ended"), "{error}");
}

#[test]
fn what_a_dead_peer_sent_is_received() {
    let (mut a, lane_a, mut b, lane_b) = pair();
    let src = vec![3u8; 100_000];
    send(&mut a, lane_a, &src, 1);
    poll_until(&mut [&mut a], "it is in the ring", |seen| !seen.is_empty());
    drop(a);
    let mut events = Vec::new();
    for _ in 0..5000 {
        b.poll(&mut events, 1000);
    }
    assert!(events.is_empty(), "the lane stays for what is to be received: {events:?}");
    let mut dst = vec![0u8; 100_000];
    recv(&mut b, lane_b, &mut dst, 2);
    let seen = poll_until(&mut [&mut b], "the lane ends", is_closed);
    assert!(matches!(seen[0], (_, Event::Done { token: Token(2) })), "{seen:?}");
    assert!(src == dst);
}

/// A message of a region of its sender's, which is not taken yet.
fn lend(end: &mut Box<dyn Endpoint>, lane: LaneId, len: usize) -> Allocation {
    let made = end.allocate(len).expect("memory");
    // SAFETY: the memory is that long, and ours.
    unsafe { made.region.addr.write_bytes(5, len) };
    let src = Slice { addr: made.region.addr, len: len as u32, region: Some(made.id) };
    // SAFETY: nobody writes to it before its event, or at all.
    assert_eq!(unsafe { end.post_send(lane, src, 7, Token(1)) }, Post::Accepted);
    end.flush();
    made
}

#[test]
fn what_was_withdrawn_is_not_delivered() {
    let (mut a, lane_a, mut b, lane_b) = pair();
    let before = vec![1u8; 1000];
    send(&mut a, lane_a, &before, 0);
    let _made = lend(&mut a, lane_a, 100_000);
    poll_until(&mut [&mut a], "the first is in the ring", |seen| !seen.is_empty());
    // The peer takes nothing before the linger is over.
    a.close(lane_a);
    let seen = poll_until(&mut [&mut a], "the linger is over", is_closed);
    assert!(matches!(seen[0], (_, Event::Failed { token: Token(1), .. })), "{seen:?}");
    let (mut first, mut second) = (vec![0u8; 1000], vec![0u8; 100_000]);
    recv(&mut b, lane_b, &mut first, 2);
    recv(&mut b, lane_b, &mut second, 3);
    let seen = poll_until(&mut [&mut b], "the lane ends", is_closed);
    assert!(matches!(seen[0], (_, Event::Done { token: Token(2) })), "it was done before: {seen:?}");
    assert!(matches!(seen[1], (_, Event::Failed { token: Token(3), .. })), "it had failed: {seen:?}");
    assert!(first == before && second.iter().all(|&byte| byte == 0));
}

#[test]
fn memory_goes_when_nobody_has_it() {
    let maps = || std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    // Device and inode tell the region's file from all others, those of other tests too.
    let file_of = |line: &str| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ");
    let (mut a, lane_a, mut b, lane_b) = pair();
    let made = lend(&mut a, lane_a, 3_333_000);
    let here = format!("{:x}-", made.region.addr.addr());
    let file = maps().lines().find(|line| line.starts_with(&here)).map(file_of).expect("its owner has it");
    let mapped = || maps().lines().filter(|line| file_of(line) == file).count();
    let mut dst = vec![0u8; 3_333_000];
    recv(&mut b, lane_b, &mut dst, 2);
    a.deregister(made.id);
    poll_until(&mut [&mut a, &mut b], "it is received", |seen| seen.len() == 2);
    assert!(dst.iter().all(|&byte| byte == 5));
    assert_eq!(mapped(), 2, "its owner and its peer have it");
    drop(made);
    b.arm().expect("armed");
    b.poll(&mut Vec::new(), 1);
    assert_eq!(mapped(), 0, "neither has it any more");
}
