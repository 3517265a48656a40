//! Endpoints on threads of their own, and ends at bad moments.

mod harness;

use harness::{connect, poll, recv, send};
use rondel_mem::{MemConfig, MemTransport};
use rondel_transport_api::{Endpoint, Event, LaneId, Post, TransportError, conformance::open_all};
use std::thread;

const LEN: usize = 100_000;

/// How the sender ends its lane.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Close,
    Abort,
    Drop,
}

/// Sends `n` messages of equal bytes, ends the lane, and scribbles over the source as soon as it may. Returns how many
/// sends were done.
fn sender(mut end: Box<dyn Endpoint>, lane: LaneId, n: u64, way: Way) -> u64 {
    let mut src: Vec<Vec<u8>> = (0..n).map(|i| vec![i as u8; LEN]).collect();
    let mut posted = 0;
    let mut done = 0;
    let mut closed = false;
    while !closed {
        while posted < n {
            // SAFETY: a source is written only after its event, or after the endpoint is dropped.
            let post = unsafe { send(&mut *end, lane, &src[posted as usize], posted, posted) };
            if post == Post::Full {
                break;
            }
            posted += 1;
        }
        if posted == n {
            match way {
                Way::Close => end.close(lane),
                Way::Abort => end.abort(lane, TransportError::Closed { reason: "a test".to_owned() }),
                Way::Drop => break,
            }
        }
        end.flush();
        let mut events = Vec::new();
        end.poll(&mut events, 1 << 16);
        for event in events {
            match event {
                Event::Done { token } => {
                    src[token.0 as usize].fill(0xee);
                    done += 1;
                }
                Event::Failed { token, .. } => src[token.0 as usize].fill(0xee),
                Event::Closed { .. } => closed = true,
                Event::Established { .. } => {}
            }
        }
    }
    drop(end);
    for src in &mut src {
        src.fill(0xee);
    }
    done
}

/// Receives until the lane is closed. Returns how many messages came, all of them whole.
fn receiver(mut end: Box<dyn Endpoint>, lane: LaneId) -> u64 {
    let mut dst = vec![0; LEN];
    let mut next = 0;
    let mut posted = false;
    loop {
        if !posted {
            // SAFETY: the destination is read only after the event, and lives as long as the endpoint.
            posted = unsafe { recv(&mut *end, lane, &mut dst, next, next) } == Post::Accepted;
        }
        for event in poll(&mut *end) {
            match event {
                Event::Done { .. } => {
                    assert!(dst.iter().all(|&byte| byte == next as u8), "message {next} is torn");
                    next += 1;
                    posted = false;
                }
                Event::Failed { .. } | Event::Established { .. } => {}
                Event::Closed { .. } => return next,
            }
        }
    }
}

#[test]
fn memory_goes_back_whole_however_a_sender_ends() {
    let mut cut_short = 0;
    for round in 0..60 {
        let way = [Way::Close, Way::Abort, Way::Drop][round % 3];
        let n = 1 + (round as u64 / 3) % 20;
        let hub = MemTransport::new(MemConfig { window: 4, ..MemConfig::default() });
        let mut ends = open_all(&hub, 2);
        let (mut b, mut a) = (ends.pop().expect("two"), ends.pop().expect("two"));
        let (lane_a, lane_b) = connect(&mut *a, &mut *b);
        let receiving = thread::spawn(move || receiver(b, lane_b));
        let done = sender(a, lane_a, n, way);
        let received = receiving.join().expect("the receiver");
        match way {
            Way::Close => assert_eq!((done, received), (n, n), "a goodbye delivers everything"),
            Way::Abort => assert!(done <= received && received <= n),
            Way::Drop => assert!(received <= n),
        }
        cut_short += u64::from(received < n);
    }
    assert!(cut_short > 0, "no end came at a bad moment: the test shows nothing");
}
