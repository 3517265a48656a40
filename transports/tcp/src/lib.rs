//! Lanes over TCP sockets.
//!
//! ```text
//! transport    which ports there are (interfaces), endpoints on them
//! endpoint     whose turn it is: few busy lanes are simply tried, with many epoll says which are ready
//! lane         from the offer through the greeting to the goodbye
//! connect      nonblocking connect and handshake
//! outbox       messages on their way into sockets     inbox    sockets on their way into memory
//! wire, offer  what travels: frames; adverts and offers
//! wake         the descriptor that a sleeper waits on
//! options      socket options and raw calls
//! interfaces, filter, listen                           for whoever makes the listener
//! foreign      the parsers, for fuzzers
//! ```
//!
//! What makes it fast: a small message is one `send` (header and payload in one buffer) and one `recv` (both at once into
//! 4 KiB of read-ahead); a large one is read straight to its place, or through 256 KiB of scratch into the reduction; two
//! busy directions keep in step, so that what is in flight stays in the caches; nothing is allocated or registered after
//! a lane is open.
//!
//! A message counts as sent when the kernel has all of it: the kernel then delivers without us. Acknowledgements travel
//! on the headers of the other direction, and alone every 64 messages or 4 MiB.

mod connect;
mod endpoint;
mod filter;
#[doc(hidden)]
pub mod foreign;
mod inbox;
pub mod interfaces;
mod lane;
pub mod listen;
mod offer;
mod options;
mod outbox;
mod transport;
mod wake;
mod wire;

pub use endpoint::TcpEndpoint;
pub use transport::TcpTransport;

/// The transport's name in settings, adverts and logs.
pub const NAME: &str = "tcp";
