//! The seam between rondel and its transports.
//!
//! A [`Transport`] is a factory for one kind of network. An [`Endpoint`] is one open port with all lanes on it. A lane
//! is an ordered, reliable, two-way path to one peer. A transport moves bytes between two ranks and nothing else: it
//! knows no collective, no plan and no communicator.
//!
//! # Contract
//!
//! The conformance suite (`conformance`, behind the feature of that name) has tests per clause and runs on every
//! transport; [`faults`] makes any endpoint misbehave.
//!
//! 1. A lane is reliable, ordered, two-way and belongs to one communicator. Tags do not exist: the i-th send of a lane
//!    meets the i-th receive of its other end. Both name the message's length and a 64-bit stamp; where they differ the
//!    receive fails with [`TransportError::Mismatch`] and no byte of `dst` beyond the posted length is ever written. The
//!    lane may end then, since nothing on it can be trusted; the other end's tokens get their events either way.
//! 2. No call blocks or runs a callback. [`Post::Full`] is per lane and direction, changes nothing, and is the answer
//!    before `Established`.
//! 3. A slice is on loan from an accepted post until its one event ([`Event::Done`] or [`Event::Failed`]), also after
//!    [`Endpoint::close`] and after the death of the peer.
//! 4. After [`Event::Closed`] nothing writes to memory lent through the lane, the NIC included (a peer may still read
//!    shared sources).
//! 5. `Done` of a receive means that the bytes are visible to the device that owns the memory.
//! 6. `Done` of a send means that the source may be overwritten and that neither it nor the caller is needed again to
//!    deliver: the peer's endpoint acknowledged it, or this endpoint holds a copy. Lanes number their messages and carry
//!    cumulative acknowledgements.
//! 7. Posts need [`Endpoint::flush`] to be guaranteed to move, and a driver that stops polling after a flush calls
//!    [`Endpoint::pause`] (arming does the same), or a peer that sleeps may sleep on.
//! 8. [`Endpoint::arm`], then [`Endpoint::poll`], then waiting on [`Endpoint::wakeup`] loses no wake-up, also with two
//!    transports at once. Everything that a sleeper needs arrives as something that wakes it.
//! 9. [`Endpoint::reaches`] is symmetric. A peer's death yields `Failed` and `Closed`, never a hang.
//! 10. Weak progress: when an operation is complete on a rank, no peer needs that rank to call again for it.
//! 11. Leaving is graceful: goodbye, drain, bounded linger. What arrived before a peer's end is delivered before `Closed`,
//!     also to receives that are posted later. Meanwhile sends are not answered by `Full` for ever: they are accepted and
//!     fail, so that nobody waits for room that does not come. After `Closed` every post is `Full`.
//! 12. Memory that an endpoint [allocates](Endpoint::allocate) is zeroed, begins on a page, and stays as long as its
//!     [`Allocation`], whatever becomes of the endpoint and of its peers. A post that names such a region may let the
//!     peer read the source in place; all that is said above holds for it all the same, and only the peers' reading (4)
//!     may be noticed. A post that names a region which does not cover it, or no longer exists, is one of plain memory.
//!
//! Each lane and direction accepts at least one post without help from any shared pool: a pool may speed up, never gate.

pub use rondel_device::{
    Combine, DataType, Device, DeviceError, Element, F8E4M3, F8E5M2, HostDevice, Keep, Operand, Ran,
    ReduceOp, Reduction, ReductionError, Scalar, Token, kernels,
};

mod acceptor;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod faults;
pub mod handshake;
mod random;

pub use acceptor::{Acceptor, Incoming};

use std::{any::Any, fmt, io, os::fd::BorrowedFd, sync::Arc, time::Duration};

/// One kind of network. A factory; holds no connections.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Its name in settings, logs and tables: `tcp`, `shm`, `verbs`, ...
    fn name(&self) -> &'static str;
    /// The ports that this host offers, best first, or the reason why there are none.
    fn discover(&self, config: &Config) -> Result<Vec<Port>, Unavailable>;
    /// Opens one of them.
    fn open(&self, port: &Port, config: &Config) -> Result<Box<dyn Endpoint>, TransportError>;
}

/// One open port and everything that lives on it. Exactly one thread drives an endpoint at a time.
pub trait Endpoint: Send {
    /// What peers need to know in order to decide whether they reach this endpoint.
    fn advert(&self) -> Advert;
    /// The link to a peer's endpoint, if there is one. Pure and symmetric.
    fn reaches(&self, peer: &Advert) -> Option<Link>;
    /// What this endpoint can do.
    fn limits(&self) -> Limits;

    /// Makes memory known to the device behind the port.
    fn register(&mut self, memory: Region) -> Result<RegionId, TransportError>;
    /// Forgets a registration. Posts that name it stay as they are until their events.
    fn deregister(&mut self, region: RegionId);
    /// Makes at least `len` bytes of memory that peers of this endpoint may map, and registers it. What it costs is had
    /// when this returns, so that touching it later cannot fail. [`deregister`](Endpoint::deregister) ends what the
    /// endpoint and its peers have to do with it.
    fn allocate(&mut self, len: usize) -> Result<Allocation, TransportError> {
        Err(TransportError::Unsupported { what: format!("{len} bytes of memory that peers may map") })
    }

    /// First half of connecting. Both sides make an offer; the offers cross through the bootstrap.
    fn prepare(&mut self, peer: &Advert) -> Result<(LaneId, Offer), TransportError>;
    /// Second half. [`Event::Established`] (or `Closed`) follows from [`poll`](Endpoint::poll).
    fn establish(&mut self, lane: LaneId, peer: &Offer) -> Result<(), TransportError>;

    /// Sends one message. `stamp` travels with it.
    ///
    /// # Safety
    /// If accepted, the slice is valid and is not written until the event of `token`.
    unsafe fn post_send(&mut self, lane: LaneId, src: Slice, stamp: u64, token: Token) -> Post;
    /// Receives one message of `len` bytes into a sink. `stamp` must be the sender's.
    ///
    /// # Safety
    /// If accepted, the sink's memory is valid until the event of `token` and nobody else touches `dst`
    /// (other operands are not written).
    unsafe fn post_recv(&mut self, lane: LaneId, len: u32, sink: Sink, stamp: u64, token: Token) -> Post;
    /// Hands over what was posted since the last flush: one doorbell, one `writev`.
    fn flush(&mut self);
    /// Makes progress and appends what happened. Moves about `budget` bytes at most, so that several endpoints share
    /// one thread fairly. Returns whether anything moved (bytes or events): a caller that spins uses it to notice idleness.
    fn poll(&mut self, events: &mut Vec<Event>, budget: usize) -> bool;

    /// The driver stops polling for a while: peers that sleep are woken for what was flushed. A flush alone may leave
    /// that to the next poll that finds nothing to do, where a look for sleepers costs no latency.
    fn pause(&mut self) {}

    /// For sleeping: arm, poll once more, then wait until [`wakeup`](Endpoint::wakeup) is readable.
    fn arm(&mut self) -> io::Result<()>;
    /// Readable when an armed endpoint has something to poll for.
    fn wakeup(&self) -> BorrowedFd<'_>;

    /// Ends a lane gracefully: accepted sends are delivered if the peer still takes them (bounded by the config's
    /// linger), posted receives fail unless their bytes have arrived. Every token gets its event, then [`Event::Closed`].
    fn close(&mut self, lane: LaneId);
    /// Ends a lane at once: no goodbye, no linger. Every token gets its event, then [`Event::Closed`].
    fn abort(&mut self, lane: LaneId, cause: TransportError);
    /// Counters of a lane, for people.
    fn lane_stats(&self, lane: LaneId) -> LaneStats;
    /// Bytes of memory that this endpoint holds for its lanes.
    fn memory(&self) -> usize;
}

/// A lane of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);
/// A registration at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub u32);

/// The answer to a post.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// The endpoint has it; one event with its token will follow.
    Accepted,
    /// Not now. Nothing changed; post again after the next event of this lane or the next poll.
    Full,
}

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// First byte.
    pub addr: *const u8,
    /// Bytes.
    pub len: u32,
    /// The registration that covers it; plain memory has none.
    pub region: Option<RegionId>,
}

/// What happens to the bytes of a received message.
#[derive(Clone, Copy, Debug)]
pub enum Sink {
    /// They are stored.
    Copy {
        /// First byte of the destination.
        dst: *mut u8,
        /// The registration that covers it.
        region: Option<RegionId>,
        /// Whether they are read again soon.
        keep: Keep,
    },
    /// `dst = with (+) bytes`, applied where the bytes lie. Offered by [`Limits::reduces`], never owed.
    Reduce {
        /// The operator.
        reduction: Reduction,
        /// The other operand.
        with: Operand,
        /// First byte of the destination; may equal `with.addr`.
        dst: *mut u8,
        /// The result is complete: the reduction's `divide` is applied.
        last: bool,
        /// Whether it is read again soon.
        keep: Keep,
    },
}

/// What happened at an endpoint.
#[derive(Clone, Debug)]
pub enum Event {
    /// A post is over.
    Done {
        /// Its token.
        token: Token,
    },
    /// A post is over and did not succeed.
    Failed {
        /// Its token.
        token: Token,
        /// Why.
        error: TransportError,
    },
    /// Both ends of a lane are ready.
    Established {
        /// The lane.
        lane: LaneId,
    },
    /// A lane has ended. No event of it follows.
    Closed {
        /// The lane.
        lane: LaneId,
        /// Why; `None` after a goodbye (ours or the peer's).
        cause: Option<TransportError>,
    },
}

/// A range of memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Whose memory it is.
    pub kind: MemoryKind,
}
/// Memory that an endpoint made.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Where it is, and how much was made.
    pub region: Region,
    /// Its registration at that endpoint.
    pub id: RegionId,
    /// The memory lives as long as this or a clone of it.
    pub owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a region is an address range, not a reference; what may touch it is policed by the posts.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Send for Slice {}
// SAFETY: as above.
unsafe impl Send for Sink {}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// Memory of a CUDA device.
    Cuda {
        /// Its index.
        device: u32,
    },
}

/// LogGP: a message of n bytes keeps the port busy for `overhead + n / bytes_per_sec` and arrives `latency` later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time of flight.
    pub latency: Duration,
    /// Time a message costs whatever its size.
    pub overhead: Duration,
    /// Rate.
    pub bytes_per_sec: f64,
}

/// What an endpoint can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message in bytes.
    pub max_message: u32,
    /// Messages up to this size are delivered without the receiver's post (eager); `Done` of the send may precede it.
    pub eager: u32,
    /// Posts that a lane and direction accepts at once, at most.
    pub window: u32,
    /// [`Sink::Reduce`] is served for host memory.
    pub reduces: bool,
}

/// A way out of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Name that its transport understands, such as an interface or a device and port.
    pub name: String,
    /// Nearest NUMA node.
    pub numa: Option<u32>,
    /// What the port can do at best.
    pub link: Link,
}

/// What peers need to know in order to decide whether they reach an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Advert {
    /// The transport's name.
    pub transport: String,
    /// What two endpoints must share in order to reach each other; opaque to all but the transport.
    pub domain: Vec<u8>,
    /// Where it is; opaque to all but the transport.
    pub address: Vec<u8>,
    /// What its port can do.
    pub link: Link,
}

/// One side's part of connecting a lane; opaque to all but the transport, parsed by it as foreign bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer(pub Vec<u8>);

/// Settings that an endpoint is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Authenticates every connection.
    pub key: handshake::Key,
    /// This rank, for messages.
    pub rank: u32,
    /// Delivers the authenticated sockets that peers open towards us.
    pub acceptor: Arc<Acceptor>,
    /// How long a graceful leave may take.
    pub linger: Duration,
    /// How long an established connection may be silent though bytes wait for an acknowledgement.
    pub silence: Duration,
    /// Names of interfaces to use, with NCCL's syntax (`eth`, `=eth0`, `^docker`).
    pub socket_ifname: Option<String>,
    /// 4 or 6 restricts the address family.
    pub socket_family: Option<u8>,
    /// Sockets per lane.
    pub sockets_per_lane: u8,
}

/// Counters of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Payload bytes that left.
    pub sent_bytes: u64,
    /// Payload bytes that arrived.
    pub received_bytes: u64,
    /// Messages that left.
    pub sent_messages: u64,
    /// Messages that arrived.
    pub received_messages: u64,
}

/// Why a transport cannot be used on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// A sentence that says what is missing and what would help.
    pub reason: String,
}

/// What went wrong on a lane or endpoint.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The two ends of a lane did different things.
    #[error(
        "the peer sent message {message} of {their_len} bytes with stamp {their_stamp:#018x}, expected {our_len} bytes with stamp {our_stamp:#018x}"
    )]
    Mismatch {
        /// Number of the message on its lane.
        message: u64,
        /// Bytes that were posted here.
        our_len: u64,
        /// Bytes that were sent.
        their_len: u64,
        /// Stamp posted here.
        our_stamp: u64,
        /// Stamp sent.
        their_stamp: u64,
    },
    /// The connection broke or the peer went away.
    #[error("connection to {peer} lost: {reason}")]
    Lost {
        /// Who or where.
        peer: String,
        /// What was seen.
        reason: String,
    },
    /// The peer said goodbye while something was still posted.
    #[error("{peer} left")]
    Left {
        /// Who or where.
        peer: String,
    },
    /// A connection could not be made.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// The address tried.
        address: String,
        /// What was seen.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The answer.
        source: Arc<io::Error>,
    },
    /// The peer's bytes are not ours: another version, damage or a stranger.
    #[error("{peer} does not speak our protocol: {reason}")]
    Protocol {
        /// Who or where.
        peer: String,
        /// What was seen.
        reason: String,
    },
    /// Ended on our side.
    #[error("the lane was closed here: {reason}")]
    Closed {
        /// Why.
        reason: String,
    },
    /// This transport does not do that.
    #[error("not supported by this transport: {what}")]
    Unsupported {
        /// What was asked.
        what: String,
    },
}
