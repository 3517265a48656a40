//! A client and a server with the same key, and somebody between them who cuts and changes what they say.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel_transport_api::handshake::{Handshake, Hello, Key, Purpose, Refusal};

const KEY: Key = Key([7; 32]);
const HELLO: Hello = Hello { rank: 3, purpose: Purpose::Lane { cookie: 5, stripe: 1 } };
/// Bytes of all four messages.
const WHOLE: usize = 52 + 72 + 32 + 34;

/// Carries what one side has to say to the other, at most `most` bytes. Says whether anything was moved.
fn carry(from: &mut Handshake, to: &mut Handshake, most: usize, change: impl Fn(&mut [u8])) -> bool {
    let mut bytes = from.output().to_vec();
    bytes.truncate(most.max(1));
    change(&mut bytes);
    from.sent(bytes.len());
    // A side that failed is not read any more, but what it had to say is still carried.
    !bytes.is_empty() && to.handle_input(&bytes).is_ok()
}

fuzz_target!(|data: &[u8]| {
    let [refusal, at, mask, cuts @ ..] = data else { return };
    let (mut client, mut server) = (Handshake::client(&KEY, HELLO), Handshake::server(&KEY));
    let refusal = Refusal::ALL.get(usize::from(*refusal)).copied();
    let position = usize::from(*at);
    let changed = *mask != 0 && position < WHOLE;
    let mut carried = 0;
    let mut refused = false;
    for step in 0..2 * WHOLE {
        let most = usize::from(cuts.get(step % cuts.len().max(1)).copied().unwrap_or(u8::MAX));
        let start = carried;
        let change = |bytes: &mut [u8]| {
            if position >= start && position - start < bytes.len() {
                bytes[position - start] ^= *mask;
            }
        };
        let client_speaks = !client.output().is_empty();
        let speaks = if client_speaks { &mut client } else { &mut server };
        let before = speaks.output().len();
        let moved = if client_speaks {
            carry(&mut client, &mut server, most, change)
        } else {
            carry(&mut server, &mut client, most, change)
        };
        carried += before.min(most.max(1));
        if let Some(why) = refusal
            && server.hello().is_some()
        {
            refused |= server.refuse(why);
        }
        if !moved && client.output().is_empty() && server.output().is_empty() {
            break;
        }
    }
    let both = client.is_done() && server.hello() == Some(HELLO) && server.is_done();
    assert_eq!(both, !changed && !refused, "changed: {changed}, refused: {refused}");
    assert!(!(client.is_done() && refused), "a refused client believes that it is welcome");
});
