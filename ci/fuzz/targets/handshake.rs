//! Arbitrary bytes to either side of a handshake, cut arbitrarily.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel_transport_api::handshake::{Handshake, Hello, Key, Purpose, Refusal};

const KEY: Key = Key([7; 32]);

fuzz_target!(|data: &[u8]| {
    let [side, cut, bytes @ ..] = data else { return };
    let server = side % 2 == 0;
    let mut handshake = if server {
        Handshake::server(&KEY)
    } else {
        Handshake::client(&KEY, Hello { rank: 3, purpose: Purpose::Lane { cookie: 5, stripe: 1 } })
    };
    let mut failed = None;
    for chunk in bytes.chunks(usize::from(*cut).max(1)) {
        let wanted = handshake.wants();
        match handshake.handle_input(chunk) {
            Ok(used) => assert!(used <= chunk.len() && (used > 0 || wanted == 0)),
            Err(error) => {
                assert!(failed.is_none_or(|first| first == error), "another error than before: {error}");
                assert_eq!(handshake.wants(), 0);
                failed = Some(error);
            }
        }
        assert!(handshake.output().len() < 1024, "a peer can make us say a lot");
        handshake.sent(handshake.output().len());
        // Nonces are fresh: no input can contain a code that fits.
        assert!(handshake.hello().is_none() && !handshake.is_done(), "let in without the key");
        assert!(!handshake.refuse(Refusal::Busy));
    }
});
