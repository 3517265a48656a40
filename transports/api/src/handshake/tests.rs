use super::*;
use proptest::prelude::*;

const LANE: Hello = Hello { rank: 7, purpose: Purpose::Lane { cookie: 0x1122_3344_5566_7788, stripe: 3 } };

fn key(n: u8) -> Key {
    Key::from_secret(&[n; 3])
}

/// What each side ended with.
#[derive(Debug, PartialEq)]
struct Outcome {
    client: Result<(), HandshakeError>,
    server: Result<Option<Hello>, HandshakeError>,
}

/// Carries `from`'s output to `to` in pieces of `piece` bytes. `damage` sees every byte with its number in this direction.
fn carry(
    from: &mut Handshake,
    to: &mut Handshake,
    piece: usize,
    carried: &mut usize,
    damage: &mut dyn FnMut(usize, &mut u8),
) -> Result<bool, HandshakeError> {
    let mut moved = false;
    while !from.output().is_empty() {
        let take = piece.min(from.output().len());
        let mut bytes = from.output()[..take].to_vec();
        for byte in &mut bytes {
            damage(*carried, byte);
            *carried += 1;
        }
        from.sent(take);
        moved = true;
        to.handle_input(&bytes)?;
    }
    Ok(moved)
}

fn drive(
    mut client: Handshake,
    mut server: Handshake,
    piece: usize,
    mut damage: impl FnMut(bool, usize, &mut u8),
    refuse: Option<Refusal>,
) -> Outcome {
    let (mut up, mut down) = (0, 0);
    let (mut client_error, mut server_error) = (None, None);
    loop {
        let sent = carry(&mut client, &mut server, piece, &mut up, &mut |n, b| damage(true, n, b));
        if let (Some(refusal), Some(_)) = (refuse, server.hello()) {
            assert!(server.refuse(refusal));
        }
        let answered = carry(&mut server, &mut client, piece, &mut down, &mut |n, b| damage(false, n, b));
        let moved = matches!(sent, Ok(true)) || matches!(answered, Ok(true));
        server_error = server_error.or(sent.err());
        let news = answered.is_err() && client_error.is_none();
        client_error = client_error.or(answered.err());
        if !moved && !news {
            break;
        }
    }
    let unfinished = HandshakeError::Malformed("unfinished");
    Outcome {
        client: client_error.map_or(if client.is_done() { Ok(()) } else { Err(unfinished.clone()) }, Err),
        server: server_error.map_or(if server.is_done() { Ok(server.hello()) } else { Err(unfinished) }, Err),
    }
}

fn pair() -> (Handshake, Handshake) {
    (Handshake::client(&key(1), LANE), Handshake::server(&key(1)))
}

#[test]
fn both_sides_learn_that_all_is_well() {
    for purpose in [Purpose::Join, Purpose::Control, LANE.purpose] {
        let hello = Hello { rank: u32::MAX, purpose };
        let outcome =
            drive(Handshake::client(&key(1), hello), Handshake::server(&key(1)), 1000, |_, _, _| (), None);
        assert_eq!(outcome, Outcome { client: Ok(()), server: Ok(Some(hello)) });
    }
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let (client, server) = pair();
    let outcome = drive(client, server, 1, |_, _, _| (), None);
    assert_eq!(outcome, Outcome { client: Ok(()), server: Ok(Some(LANE)) });
}

#[test]
fn nothing_beyond_the_handshake_is_consumed() {
    let (mut client, mut server) = pair();
    let mut lengths = Vec::new();
    for turn in 0..4 {
        let (from, to) = if turn % 2 == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let message = from.output().to_vec();
        from.sent(message.len());
        let extra = [&message[..], b"payload"].concat();
        // Only after the last message can something else follow on the stream.
        let fed = if turn == 3 { &extra } else { &message };
        assert_eq!(to.handle_input(fed), Ok(message.len()));
        lengths.push(message.len());
    }
    assert_eq!(lengths, [wire::HELLO, wire::CHALLENGE, wire::CODE, wire::VERDICT]);
    assert!(client.is_done() && server.is_done());
    assert_eq!((client.wants(), server.wants()), (0, 0));
    assert_eq!(client.handle_input(b"payload"), Ok(0));
    assert_eq!(server.handle_input(b"payload"), Ok(0));
}

#[test]
fn wants_stops_at_the_header_first() {
    let mut server = Handshake::server(&key(1));
    assert_eq!(server.wants(), wire::HEADER);
    assert_eq!(server.handle_input(&wire::MAGIC), Ok(4));
    assert_eq!(server.wants(), 2);
    assert_eq!(server.handle_input(&VERSION.to_le_bytes()), Ok(2));
    assert_eq!(server.wants(), wire::HELLO - wire::HEADER);
}

#[test]
fn another_key_is_named_on_both_sides() {
    let outcome =
        drive(Handshake::client(&key(1), LANE), Handshake::server(&key(2)), 1000, |_, _, _| (), None);
    assert_eq!(outcome, Outcome { client: Err(HandshakeError::Key), server: Err(HandshakeError::Key) });
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (client, server) = pair();
    let other = VERSION + 1;
    let outcome = drive(
        client,
        server,
        1000,
        |up, n, byte| {
            if up && n == 4 {
                *byte = other as u8;
            }
        },
        None,
    );
    assert_eq!(outcome.server, Err(HandshakeError::Version { ours: VERSION, theirs: other }));
    // A server of our version answers with ours, so a client of the other version sees a difference.
    let mut server = Handshake::server(&key(1));
    let header = [&wire::MAGIC[..], &other.to_le_bytes()].concat();
    server.handle_input(&header).unwrap_err();
    assert_eq!(&server.output()[..wire::HEADER], [&wire::MAGIC[..], &VERSION.to_le_bytes()].concat());
    let mut client = Handshake::client(&key(1), LANE);
    assert_eq!(client.handle_input(&header), Err(HandshakeError::Version { ours: VERSION, theirs: other }));
}

#[test]
fn strangers_get_no_answer() {
    let mut server = Handshake::server(&key(1));
    let error = HandshakeError::Stranger { first: *b"GET " };
    assert_eq!(server.handle_input(b"GET / HTTP/1.1\r\n"), Err(error.clone()));
    assert!(server.output().is_empty());
    assert!(!server.is_done());
    assert_eq!(server.wants(), 0);
    assert_eq!(server.handle_input(b"more"), Err(error));
    let mut client = Handshake::client(&key(1), LANE);
    assert_eq!(client.handle_input(b"SSH-2.0-"), Err(HandshakeError::Stranger { first: *b"SSH-" }));
}

#[test]
fn every_refusal_reaches_the_client() {
    for refusal in Refusal::ALL {
        let (client, server) = pair();
        let outcome = drive(client, server, 1000, |_, _, _| (), Some(refusal));
        assert_eq!(
            outcome,
            Outcome { client: Err(HandshakeError::Refused(refusal.reason())), server: Ok(None) }
        );
    }
}

#[test]
fn a_refusal_has_its_moment() {
    let (mut client, mut server) = pair();
    assert!(!server.refuse(Refusal::Busy), "nobody has said hello");
    assert!(!client.refuse(Refusal::Busy), "only a server refuses");
    carry(&mut client, &mut server, 100, &mut 0, &mut |_, _| ()).unwrap();
    assert_eq!(server.hello(), None, "a hello without proof must not be shown");
    assert!(!server.refuse(Refusal::Busy), "the client has not proved itself");
    carry(&mut server, &mut client, 100, &mut 0, &mut |_, _| ()).unwrap();
    carry(&mut client, &mut server, 100, &mut 0, &mut |_, _| ()).unwrap();
    server.sent(1);
    assert!(!server.refuse(Refusal::Busy), "the verdict is under way");
    assert_eq!(server.hello(), Some(LANE));
}

#[test]
fn a_flip_of_any_bit_is_noticed() {
    for (upwards, length) in [(true, wire::HELLO + wire::CODE), (false, wire::CHALLENGE + wire::VERDICT)] {
        for bit in 0..length * 8 {
            let (client, server) = pair();
            let outcome = drive(
                client,
                server,
                1000,
                |up, n, byte| {
                    if up == upwards && n == bit / 8 {
                        *byte ^= 1 << (bit % 8);
                    }
                },
                None,
            );
            assert!(outcome.client.is_err(), "bit {bit} (upwards: {upwards}) went unnoticed: {outcome:?}");
            // The server has its proof before the verdict can be damaged; all else it must notice too.
            let verdict = !upwards && bit >= wire::CHALLENGE * 8;
            assert_eq!(outcome.server.is_ok(), verdict, "bit {bit} (upwards: {upwards}): {outcome:?}");
        }
    }
}

#[test]
fn truncated_input_finishes_nothing() {
    for cut in 0..wire::HELLO + wire::CODE {
        let (mut client, mut server) = pair();
        let mut fed = 0;
        for _ in 0..2 {
            let take = client.output().len().min(cut - fed);
            let bytes = client.output()[..take].to_vec();
            client.sent(take);
            server.handle_input(&bytes).unwrap();
            fed += take;
            carry(&mut server, &mut client, 100, &mut 0, &mut |_, _| ()).unwrap();
        }
        assert!(!server.is_done() && server.hello().is_none(), "done after {cut} bytes");
        assert!(!client.is_done());
        assert!(server.wants() > 0);
    }
}

#[test]
fn a_message_sent_back_to_its_maker_is_not_a_proof() {
    let mut client = Handshake::client(&key(1), LANE);
    let mut server = Handshake::server(&key(1));
    server.handle_input(client.output()).unwrap();
    let challenge = server.output().to_vec();
    assert_eq!(server.handle_input(&challenge[wire::CHALLENGE - wire::CODE..]), Err(HandshakeError::Key));
    client.handle_input(&challenge).unwrap();
    let proof = client.output()[wire::HELLO..].to_vec();
    assert!(client.handle_input(&[&[0, 0], &proof[..]].concat()).is_err());
}

#[test]
fn a_recorded_client_cannot_be_played_again() {
    let (mut client, mut server) = pair();
    let mut recorded = Vec::new();
    for _ in 0..2 {
        recorded.push(client.output().to_vec());
        carry(&mut client, &mut server, 100, &mut 0, &mut |_, _| ()).unwrap();
        carry(&mut server, &mut client, 100, &mut 0, &mut |_, _| ()).unwrap();
    }
    assert!(server.is_done());
    let mut again = Handshake::server(&key(1));
    assert_eq!(again.handle_input(&recorded[0]), Ok(wire::HELLO));
    assert_eq!(again.handle_input(&recorded[1]), Err(HandshakeError::Key));
}

#[test]
fn unknown_purposes_are_malformed_on_both_sides() {
    let mut hello = wire::hello(&LANE, &[5; 32]);
    hello[6] = 9;
    let mut server = Handshake::server(&key(1));
    assert_eq!(server.handle_input(&hello), Err(HandshakeError::Malformed("the hello's purpose is unknown")));
    let mut client = Handshake::client_with_nonce(&key(1), LANE, [5; 32]);
    client.transcript = hello.to_vec();
    assert_eq!(
        client.handle_input(server.output()),
        Err(HandshakeError::Malformed("the server could not read our hello"))
    );
}

#[test]
fn keys_follow_their_secrets() {
    assert_eq!(Key::from_secret(b"a"), Key::from_secret(b"a"));
    assert_ne!(Key::from_secret(b"a"), Key::from_secret(b"b"));
    assert_ne!(Key::from_secret(b""), Key::from_secret(b"\0"));
    assert_eq!(format!("{:?}", key(1)), "Key(..)");
}

#[test]
fn the_bytes_of_a_handshake_are_pinned() {
    let client = Handshake::client_with_nonce(&Key([7; 32]), LANE, [1; 32]);
    let mut server = Handshake::server_with_nonce(&Key([7; 32]), [2; 32]);
    let mut expected = vec![0xb1, b'r', b'd', b'l', 1, 0, 2, 3, 7, 0, 0, 0];
    expected.extend_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    expected.extend_from_slice(&[1; 32]);
    assert_eq!(client.output(), expected);
    server.handle_input(client.output()).unwrap();
    assert_eq!(server.output()[..8], [0xb1, b'r', b'd', b'l', 1, 0, 0, 0]);
    assert_eq!(server.output()[8..40], [2; 32]);
}

proptest! {
    #[test]
    fn random_bytes_never_panic_nor_pass(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..6),
        good_start in any::<bool>(),
    ) {
        for mut side in [Handshake::server(&key(1)), Handshake::client(&key(1), LANE)] {
            if good_start {
                side.handle_input(&[&wire::MAGIC[..], &VERSION.to_le_bytes()].concat()).unwrap();
            }
            for piece in &pieces {
                let wants = side.wants();
                match side.handle_input(piece) {
                    Ok(used) => prop_assert!(used <= piece.len() && (used == 0) == (wants == 0 || piece.is_empty())),
                    Err(_) => prop_assert_eq!(side.wants(), 0),
                }
            }
            prop_assert!(!side.is_done() && side.hello().is_none());
        }
    }
}
