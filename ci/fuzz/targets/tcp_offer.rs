//! What the tcp transports of two ranks tell each other before they connect, and what users write about interfaces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rondel_tcp::{foreign, interfaces::NameFilter};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(again) = foreign::offer(bytes) {
        assert_eq!(again, bytes);
    }
    if let Ok(again) = foreign::domain(bytes) {
        assert_eq!(again, bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(filter) = text.parse::<NameFilter>()
    {
        assert_eq!(filter.to_string().parse(), Ok(filter.clone()));
        for name in text.split(',').chain(["eth0", "lo"]) {
            assert!(filter.admits(name) || !filter.names(name), "{name:?} is asked for and not wanted");
        }
    }
});
