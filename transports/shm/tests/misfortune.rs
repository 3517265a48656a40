//! Peers that die, and peers that are not what they say.

mod rig;

use proptest::prelude::*;
use rig::{cause_of, connect, is_closed, pair, poll_until, recv, send};
use rondel_shm::{
    ShmTransport,
    foreign::{self, CONSUMED_AT, MAGIC, RING, RING_AT},
    record::mark,
};
use rondel_transport_api::{
    Endpoint, Event, LaneId, Offer, Token, TransportError,
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
    for words in [&b"r"[..], b"x", b"\0", b"m"] {
        let mut end = alone();
        let (_, stream) = intrude(&mut end, &test_config(0).key);
        let mut stream = stream.expect("welcome");
        stream.write_all(words).expect("said");
        let error = cause_of(&poll_until(&mut [&mut end], "the lane ends", is_closed));
        assert!(matches!(error, TransportError::Protocol { .. }), "{words:?}: {error}");
    }
    let memory = Forged::good();
    for words in [&b"r"[..], b"x", b"m"] {
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
            memory.record(line as u64 * 64, 7, if line % 3 == 0 { len } else { noise[line] as u32 }, 0);
        }
        let (mut end, lane, stream, _) = lane_to(&memory);
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
