//! What watchers and roots tell each other: frames, whole and cut off.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel::bootstrap::wire::{HEADER, parse};

fuzz_target!(|data: &[u8]| {
    let [cut, bytes @ ..] = data else { return };
    let mut rest = bytes;
    loop {
        let whole = parse(rest);
        // Waiting for more bytes must not change what the first ones mean.
        let part = &rest[..rest.len() * usize::from(*cut) / 256];
        match (parse(part), &whole) {
            (Ok(None), _) => {}
            (Ok(Some((_, used))), Ok(Some((_, again)))) => assert_eq!(used, *again),
            (Err(error), Err(again)) => assert_eq!(error, *again),
            (part, whole) => panic!("{part:?} of the first bytes, {whole:?} of all"),
        }
        let Ok(Some((message, used))) = whole else { return };
        assert!((HEADER..=rest.len()).contains(&used));
        let encoded = message.encode();
        let (decoded, length) = parse(&encoded).expect("our own bytes").expect("all of them");
        assert_eq!((length, decoded.encode()), (encoded.len(), encoded));
        rest = &rest[used..];
    }
});
