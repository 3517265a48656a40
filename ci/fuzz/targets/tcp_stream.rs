//! The bytes of an authenticated lane, from a peer that says anything: nothing is written outside of what was posted,
//! and every post gets exactly one event.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel_tcp::foreign;
use rondel_transport_api::{Combine, DataType, Event, Keep, Operand, Reduction, Sink, Token};
use std::{io::Write, num::NonZeroU32, os::unix::net::UnixStream};

const GUARD: u8 = 0xa5;
/// Bytes on both sides of a destination.
const MARGIN: usize = 64;
/// Lengths of the receives: nothing, a fraction of the read-ahead, more than it.
const LENGTHS: [usize; 4] = [0, 12, 4096, 70_000];

fuzz_target!(|data: &[u8]| {
    let [shape, budget, stream @ ..] = data else { return };
    let (mut peer, ours) = UnixStream::pair().expect("two sockets");
    ours.set_nonblocking(true).expect("nonblocking");
    peer.set_nonblocking(true).expect("nonblocking");
    peer.write_all(stream).expect("inputs are shorter than a socket's buffer");
    drop(peer);

    let mut memory = LENGTHS.map(|len| vec![GUARD; len + 2 * MARGIN]);
    let posts = memory.iter_mut().zip(LENGTHS).enumerate().map(|(index, (memory, len))| {
        let dst = memory[MARGIN..].as_mut_ptr();
        let sink = if shape >> index & 1 == 0 {
            Sink::Copy { dst, region: None, keep: Keep::Keep }
        } else {
            let (dtype, combine, divide) = (DataType::I32, Combine::Sum, NonZeroU32::new(2));
            Sink::Reduce {
                reduction: Reduction { dtype, combine, pre: None, divide },
                with: Operand { addr: dst, raw: false },
                dst,
                last: true,
                keep: Keep::Keep,
            }
        };
        (len as u32, sink, index as u64)
    });
    let sockets = 1 + usize::from(shape >> 4 & 3);
    // SAFETY: every destination has as many bytes as its receive, and they live until the receives are over.
    let events = unsafe { foreign::receive(&ours, sockets, posts.collect(), usize::from(*budget) << 4) };

    let mut tokens: Vec<u64> = events
        .iter()
        .map(|event| match event {
            Event::Done { token: Token(token) } | Event::Failed { token: Token(token), .. } => *token,
            other => panic!("a receive ended with {other:?}"),
        })
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3]);
    for (memory, len) in memory.iter().zip(LENGTHS) {
        let (before, rest) = memory.split_at(MARGIN);
        assert!(
            before.iter().chain(&rest[len..]).all(|byte| *byte == GUARD),
            "written outside of {len} bytes"
        );
    }
});
