//! Lanes between threads of one process, or between many endpoints that one thread drives in turn.
//!
//! A [`MemTransport`] is a hub: endpoints opened from it, or from a clone of it, reach each other and nobody else. The
//! receiver does all the copying, straight from the sender's memory into the sink, or out of a small buffer that the
//! sender filled ([`MemConfig::eager`]). Nothing is allocated for a message, no clock is read and nothing is random, so
//! that endpoints driven by one thread behave the same in every run.
//!
//! # How two ends share memory
//!
//! Each end of a lane owns one `Side`, and the two know each other. A side holds the pipe through which its owner
//! *receives*: a ring of message descriptors with one writer (the peer, `published`) and one reader (the owner,
//! `taken`). Counters only grow; a descriptor belongs to the reader while its number lies between them.
//!
//! A descriptor may point into the sender's memory. The reader holds the pipe's `loan` lock while it reads from there;
//! a sender that ends a lane takes that lock before it gives the memory back to its caller. Both only *try* to lock, so
//! that no call blocks; only dropping an endpoint waits, for one piece of a copy at most.
//!
//! * A graceful close copies what is undelivered into the pipe, so it needs no linger: the bytes outlive the sender.
//! * An abort, or a drop, leaves what was copied earlier deliverable and takes back everything else.
//! * A mismatch ends the lane at both ends.

mod bell;
mod endpoint;
mod hub;
mod lane;
mod pipe;

use hub::Hub;
use rondel_transport_api::{Config, Endpoint, Link, Port, Transport, TransportError, Unavailable};
use std::{fmt, sync::Arc, time::Duration};

/// How the lanes of a hub behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemConfig {
    /// Bytes up to which the sender copies a message and is done with it. 0: nothing is buffered, a transfer starts when
    /// send meets receive, also for empty messages.
    pub eager: usize,
    /// Posts that a lane and direction accepts at once; at least 1.
    pub window: u32,
    /// Largest message in bytes; at least 1. Longer posts fail with [`TransportError::Unsupported`].
    pub max_message: u32,
    /// Whether [`Sink::Reduce`](rondel_transport_api::Sink::Reduce) is served. Switch it off to make the layer above stage.
    pub reduces: bool,
}

impl Default for MemConfig {
    fn default() -> Self {
        Self { eager: 1024, window: 16, max_message: u32::MAX, reduces: true }
    }
}

/// What a copy between two threads costs, roughly, on machines of today. The same for every endpoint, so it is symmetric.
const LINK: Link =
    Link { latency: Duration::from_nanos(150), overhead: Duration::from_nanos(60), bytes_per_sec: 10e9 };

/// Connects the endpoints that are opened from it and from its clones.
#[derive(Clone)]
pub struct MemTransport {
    hub: Arc<Hub>,
}

impl MemTransport {
    /// A hub of its own.
    ///
    /// # Panics
    /// If `window` or `max_message` is 0, or the kernel has no random numbers for the hub's identity.
    pub fn new(config: MemConfig) -> Self {
        assert!(config.window > 0, "MemConfig::window is 0: a lane must accept at least one post");
        assert!(config.max_message > 0, "MemConfig::max_message is 0: nothing could be sent");
        Self { hub: Arc::new(Hub::new(config)) }
    }
}

impl Default for MemTransport {
    fn default() -> Self {
        Self::new(MemConfig::default())
    }
}

impl fmt::Debug for MemTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemTransport").field("config", &self.hub.config).finish_non_exhaustive()
    }
}

impl Transport for MemTransport {
    fn name(&self) -> &'static str {
        hub::NAME
    }
    fn discover(&self, _: &Config) -> Result<Vec<Port>, Unavailable> {
        Ok(vec![Port { name: hub::NAME.to_owned(), numa: None, link: LINK }])
    }
    fn open(&self, _: &Port, config: &Config) -> Result<Box<dyn Endpoint>, TransportError> {
        Ok(Box::new(endpoint::MemEndpoint::new(self.hub.clone(), config.rank)))
    }
}
