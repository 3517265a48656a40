use super::{
    codec::{Reader, Writer},
    wire::{Asked, HEADER, Join, Message, News, ProcessId, Reading, Seat, Sight, parse},
    *,
};
use crate::{engine::call::Call, error::Cause, plan::Collective};
use proptest::prelude::*;
use rondel_transport_api::{DataType, Link, Offer, ReduceOp, Scalar};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};

fn call() -> impl Strategy<Value = Call> {
    let op = prop_oneof![
        Just(None),
        Just(Some(ReduceOp::Avg)),
        any::<i64>().prop_map(|i| Some(ReduceOp::PreMulSum(Scalar::Int(i)))),
        (-1e9..1e9).prop_map(|f: f64| Some(ReduceOp::PreMulSum(Scalar::Float(f)))),
    ];
    (any::<u64>(), 0..DataType::ALL.len(), op, any::<u64>(), any::<u32>()).prop_map(
        |(seq, dtype, op, count, root)| {
            let collective = if root % 2 == 0 { Collective::Broadcast } else { Collective::Recv };
            Call { seq, collective, dtype: DataType::ALL[dtype], op, count, root }
        },
    )
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<u32>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::from((Ipv4Addr::from(ip), port))),
        (any::<u128>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| SocketAddr::V6(
            SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)
        )),
    ]
}

fn seat() -> impl Strategy<Value = Seat> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let link = (any::<u32>(), 1e6..1e12).prop_map(|(latency, bytes_per_sec)| Link {
        latency: Duration::from_nanos(latency.into()),
        overhead: Duration::from_nanos(7),
        bytes_per_sec,
    });
    let advert = ("[a-z]{1,8}", bytes(), bytes(), link)
        .prop_map(|(transport, domain, address, link)| Advert { transport, domain, address, link });
    let adverts = prop::collection::vec(advert, 0..4);
    (
        any::<u32>(),
        any::<[u8; 16]>(),
        ".{0,20}",
        prop::collection::vec(address(), 0..5),
        adverts,
        any::<u64>(),
    )
        .prop_map(|(rank, host, hostname, addresses, adverts, number)| Seat {
            member: Member { rank, host, hostname, pid: number as u32, addresses, card: Card { adverts } },
            process: ProcessId { namespace: number, started: number / 3 },
        })
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        (any::<u32>(), ".{0,30}").prop_map(|(rank, how)| Cause::ProcessEnded { rank, how }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(rank, s)| Cause::Silent { rank, silence: Duration::from_micros(s.into()) }),
        (call(), prop::option::of(call())).prop_map(|(call, peer_call)| Cause::Mismatch {
            rank: 1,
            call,
            peer: 2,
            peer_call
        }),
        (any::<u32>(), ".{0,30}").prop_map(|(rank, what)| Cause::Reported { rank, what }),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let between = (prop::sample::select(vec![Collective::Send, Collective::Recv]), any::<u32>());
    (any::<u64>(), any::<u64>(), prop::option::of(between)).prop_map(|(comm, seq, between)| Asked {
        comm,
        seq,
        between,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let answer =
        (any::<[u64; 4]>(), prop::option::of(call())).prop_map(|([id, comm, seq, entered], call)| {
            let answer =
                Answer { about: 3, comm, seq, entered, completed: 1, call, liveness: Liveness::Stopped };
            Message::Answer { id, answer }
        });
    let offer = prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| Message::Offer {
        number: 4,
        offer: LaneOffer { comm: 5, channel: 6, endpoint: 7, offer: Offer(bytes) },
    });
    let failed = (any::<u32>(), prop::option::of(any::<u64>()), cause()).prop_map(|(origin, comm, cause)| {
        Message::News(News::Failed(Arc::new(Failure { origin, comm, cause, waiting: None, agreed: false })))
    });
    prop_oneof![
        (seat(), prop::option::of("[a-z ]{0,40}")).prop_map(|(seat, obstacle)| Message::Join(Join {
            nranks: 9,
            patience: Duration::from_secs(1),
            seat,
            obstacle
        })),
        (any::<u64>(), prop::collection::vec(seat(), 0..4))
            .prop_map(|(job, seats)| Message::Table { job, seats }),
        ".{0,40}".prop_map(Message::Rejected),
        prop::collection::vec(any::<u32>(), 0..9)
            .prop_map(|ranks| Message::Missing { ranks, waited: Duration::from_millis(3) }),
        any::<u64>().prop_map(|job| Message::Link { job, to: 1, offers: 2 }),
        (any::<u64>(), prop::option::of(asked())).prop_map(|(id, asked)| Message::Look {
            id,
            about: 1,
            asked
        }),
        (any::<u64>(), asked()).prop_map(|(id, asked)| Message::Inquiry { id, asked }),
        (any::<u64>(), prop::option::of((any::<[u64; 2]>(), prop::option::of(call())))).prop_map(
            |(id, reading)| {
                let reading =
                    reading.map(|([entered, completed], call)| Reading { entered, completed, call });
                Message::Seen { id, about: 1, sight: Sight::Stopped, reading }
            }
        ),
        answer,
        offer,
        failed,
    ]
}

proptest! {
    #[test]
    fn every_message_comes_back(message in message()) {
        let mut bytes = message.encode();
        let len = bytes.len();
        bytes.extend([1, 2, 3]);
        let (parsed, used) = parse(&bytes).unwrap().unwrap();
        prop_assert_eq!(used, len);
        prop_assert_eq!(format!("{parsed:?}"), format!("{message:?}"));
    }

    #[test]
    fn a_frame_waits_for_its_end_and_a_short_body_is_refused(message in message(), cut in 0.0..1.0) {
        let bytes = message.encode();
        let shorter = (bytes.len() as f64 * cut) as usize;
        prop_assert!(parse(&bytes[..shorter]).unwrap().is_none());
        if bytes.len() > HEADER {
            let mut bytes = bytes;
            bytes.pop();
            let len = (bytes.len() - HEADER) as u32;
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            prop_assert!(parse(&bytes).is_err());
        }
    }

    #[test]
    fn damaged_frames_never_panic(message in message(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut bytes = message.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        let _ = parse(&bytes);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), kind in 0_u16..16) {
        let _ = parse(&bytes);
        let mut frame = Writer::new();
        frame.u16(rondel_transport_api::handshake::VERSION).u16(kind).blob(&bytes);
        prop_assert!(!matches!(parse(&frame.into_bytes()), Ok(None)), "the frame was complete");
        let _ = Reader::new(&bytes).member();
    }

    #[test]
    fn a_unique_id_is_128_bytes_that_come_back(bytes in prop::collection::vec(any::<u8>(), 128)) {
        let bytes: [u8; 128] = bytes.try_into().unwrap();
        prop_assert!(UniqueId::from_bytes(&bytes).is_err());
    }
}

#[test]
fn a_length_above_the_limit_is_refused_before_its_bytes_come() {
    let mut frame = Message::Heartbeat { offers: 0 }.encode();
    frame.truncate(HEADER);
    frame[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(parse(&frame).unwrap_err().to_string().contains("at most"));
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let text = "é".repeat(2000);
    let bytes = Message::Rejected(text).encode();
    let Some((Message::Rejected(text), _)) = parse(&bytes).unwrap() else { panic!("another message") };
    assert_eq!(text, "é".repeat(512));
}
