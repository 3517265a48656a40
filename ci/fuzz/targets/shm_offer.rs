//! What the shared-memory transports of two ranks tell each other before they connect.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel_shm::foreign;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(offer) = foreign::decode_offer(bytes) {
        assert_eq!(foreign::encode_offer(offer), bytes);
    }
    if let Ok(again) = foreign::decode_domain(bytes) {
        assert_eq!(again, bytes);
    }
});
