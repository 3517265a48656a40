//! Unique ids that were damaged on their way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel::bootstrap::UniqueId;

fuzz_target!(|bytes: &[u8]| {
    let mut padded = [0; UniqueId::SIZE];
    let length = bytes.len().min(UniqueId::SIZE);
    padded[..length].copy_from_slice(&bytes[..length]);
    if let Ok(id) = UniqueId::from_bytes(&padded) {
        assert_eq!(id.to_bytes(), padded);
    }
});
