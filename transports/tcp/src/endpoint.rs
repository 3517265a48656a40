//! One open port: its lanes, whose turn it is, and when to sleep.

use crate::{
    connect::Connecting,
    inbox::READ_AT_ONCE,
    lane::{Lane, Phase, Turn},
    offer::{Domain, LaneOffer, encode_addresses},
    options::io_error,
    outbox::{SEND_AT_ONCE, WINDOW},
    wake::Wake,
};
use rondel_transport_api::{
    Advert, Config, Endpoint, Event, LaneId, LaneStats, Limits, Link, MemoryKind, Offer, Post, Region,
    RegionId, Sink, Slice, Token, TransportError,
};
use std::{
    collections::HashMap,
    fmt, io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// With up to so many busy lanes each socket is simply tried, which costs less than asking epoll which are ready.
const EAGER_LANES: usize = 4;
/// Polls without progress after which epoll is asked for what happened on lanes that wait for nothing.
const IDLE_POLLS: u32 = 64;
/// The same for an endpoint that never idles.
const BUSY_POLLS: u32 = 4096;
/// A message up to this size fits the kernel's buffers whatever they are tuned to.
const EAGER_BYTES: u32 = 16 << 10;

/// Two ranks of one host.
pub(crate) const LOOPBACK: Link = Link {
    latency: Duration::from_nanos(1_500),
    overhead: Duration::from_nanos(1_400),
    bytes_per_sec: 4.0e9,
};

/// One open port with its lanes. Made by [`TcpTransport`](crate::TcpTransport).
pub struct TcpEndpoint {
    config: Config,
    /// Where peers reach us, best first.
    addresses: Vec<SocketAddr>,
    domain: Domain,
    link: Link,
    /// The interface that link-local addresses of peers are reached through.
    scope: u32,
    /// By lane id; lanes that ended leave a gap.
    lanes: Vec<Option<Box<Lane>>>,
    /// Lanes that have something to do.
    busy: Vec<u32>,
    /// How many of them connect or leave.
    unsettled: usize,
    cookies: HashMap<u64, u32>,
    wake: Wake,
    scratch: Box<[u8]>,
    /// What happened outside of `poll`.
    pending: Vec<Event>,
    armed: bool,
    idle: u32,
    polls: u32,
    regions: u32,
    next_look: Instant,
}

impl fmt::Debug for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = self.lanes.iter().flatten().count();
        let (addresses, busy) = (&self.addresses, self.busy.len());
        f.debug_struct("TcpEndpoint")
            .field("addresses", addresses)
            .field("lanes", &lanes)
            .field("busy", &busy)
            .finish()
    }
}

impl TcpEndpoint {
    pub(crate) fn new(
        config: &Config,
        addresses: Vec<SocketAddr>,
        link: Link,
        scope: u32,
        host: u64,
    ) -> Result<Self, TransportError> {
        let wake = Wake::new(config.acceptor.wakeup())
            .map_err(|error| io_error("making the descriptors that a sleeping endpoint waits on", error))?;
        Ok(Self {
            domain: Domain::of(&addresses, host),
            config: config.clone(),
            addresses,
            link,
            scope,
            lanes: Vec::new(),
            busy: Vec::new(),
            unsettled: 0,
            cookies: HashMap::new(),
            wake,
            scratch: vec![0; READ_AT_ONCE].into_boxed_slice(),
            pending: Vec::new(),
            armed: false,
            idle: 0,
            polls: 0,
            regions: 0,
            next_look: Instant::now() + config.silence / 4,
        })
    }

    fn lane(&mut self, lane: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(lane.0 as usize)?.as_deref_mut()
    }

    /// Gives a lane a turn outside of `poll`.
    fn with_turn<R>(&mut self, lane: LaneId, act: impl FnOnce(&mut Lane, &mut Turn<'_>) -> R) -> Option<R> {
        let lane = self.lanes.get_mut(lane.0 as usize)?.as_deref_mut()?;
        let mut turn = Turn {
            wake: &self.wake,
            scratch: &mut self.scratch,
            events: &mut self.pending,
            now: None,
            eager: true,
            last_before_sleep: false,
            budget: READ_AT_ONCE,
        };
        let result = act(lane, &mut turn);
        list(lane, &mut self.busy);
        self.unsettled += usize::from(!lane.is_settled());
        Some(result)
    }

    fn take_connections(&mut self) {
        while let Some(incoming) = self.config.acceptor.take() {
            let lane = self.cookies.get(&incoming.cookie).copied().and_then(|id| self.lane(LaneId(id)));
            match lane.map(|lane| &mut lane.phase) {
                Some(Phase::Connecting(connecting)) => {
                    connecting.deliver(incoming.from, incoming.stripe, incoming.stream);
                }
                _ => {
                    tracing::debug!(from = incoming.from, "a connection for a lane that has ended was closed")
                }
            }
        }
    }

    fn collect(&mut self) -> io::Result<()> {
        let Self { wake, lanes, busy, .. } = self;
        wake.collect(|edge| {
            if let Some(Some(lane)) = lanes.get_mut(edge.source.lane as usize) {
                lane.note(edge);
                list(lane, busy);
            }
        })
    }

    fn look_for_silence(&mut self, now: Instant) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + self.config.silence / 4;
        for lane in self.lanes.iter_mut().flatten() {
            lane.look_for_silence(self.config.silence, &mut self.pending);
            if matches!(lane.phase, Phase::Over) {
                list(lane, &mut self.busy);
            }
        }
    }

    /// Every busy lane gets a turn, while the budget lasts. Returns whether bytes moved.
    fn take_turns(&mut self, events: &mut Vec<Event>, budget: usize, last_before_sleep: bool) -> bool {
        let eager = self.busy.len() <= EAGER_LANES;
        let now = (self.unsettled > 0).then(Instant::now);
        let (count, mut left, mut moved) = (self.busy.len(), budget, false);
        for place in 0..count {
            if left == 0 {
                break;
            }
            let id = self.busy[(self.polls as usize + place) % count];
            let Some(lane) = self.lanes[id as usize].as_deref_mut() else { continue };
            let mut turn = Turn {
                wake: &self.wake,
                scratch: &mut self.scratch,
                events,
                now,
                eager,
                last_before_sleep,
                budget: (left / (count - place)).max(SEND_AT_ONCE),
            };
            let bytes = lane.take_turn(&mut turn);
            moved |= bytes > 0;
            left = left.saturating_sub(bytes);
        }
        self.polls = self.polls.wrapping_add(1);
        let Self { busy, lanes, cookies, unsettled, .. } = self;
        *unsettled = 0;
        busy.retain(|&id| {
            let Some(lane) = lanes[id as usize].as_deref_mut() else { return false };
            lane.listed = lane.has_work();
            *unsettled += usize::from(!lane.is_settled());
            let listed = lane.listed;
            if matches!(lane.phase, Phase::Over) {
                cookies.remove(&lane.cookie);
                lanes[id as usize] = None;
            }
            listed
        });
        moved
    }
}

fn list(lane: &mut Lane, busy: &mut Vec<u32>) {
    if !lane.listed {
        lane.listed = true;
        busy.push(lane.id.0);
    }
}

impl Endpoint for TcpEndpoint {
    fn advert(&self) -> Advert {
        let mut address = Vec::new();
        encode_addresses(&self.addresses, &mut address);
        Advert { transport: crate::NAME.into(), domain: self.domain.encode(), address, link: self.link }
    }

    fn reaches(&self, peer: &Advert) -> Option<Link> {
        let domain = (peer.transport == crate::NAME).then(|| Domain::decode(&peer.domain))?;
        let domain =
            domain.inspect_err(|reason| tracing::debug!(reason, "a peer's advert is malformed")).ok()?;
        let slower = Link {
            latency: self.link.latency.max(peer.link.latency),
            overhead: self.link.overhead.max(peer.link.overhead),
            bytes_per_sec: self.link.bytes_per_sec.min(peer.link.bytes_per_sec),
        };
        self.domain.reaches(&domain).then_some(if domain.host == self.domain.host {
            LOOPBACK
        } else {
            slower
        })
    }

    fn limits(&self) -> Limits {
        Limits { max_message: u32::MAX, eager: EAGER_BYTES, window: WINDOW as u32, reduces: true }
    }

    fn register(&mut self, memory: Region) -> Result<RegionId, TransportError> {
        match memory.kind {
            MemoryKind::Host => {
                self.regions += 1;
                Ok(RegionId(self.regions))
            }
            kind @ MemoryKind::Cuda { .. } => {
                Err(TransportError::Unsupported { what: format!("memory of {kind:?}, only of the host") })
            }
        }
    }

    fn deregister(&mut self, _region: RegionId) {}

    fn prepare(&mut self, peer: &Advert) -> Result<(LaneId, Offer), TransportError> {
        if self.reaches(peer).is_none() {
            let what = format!("a lane over tcp to an endpoint of {} that it does not reach", peer.transport);
            return Err(TransportError::Unsupported { what });
        }
        let cookie = getrandom::u64()
            .map_err(|error| io_error("drawing a random number for a lane", io::Error::other(error)))?;
        let sockets = self.config.sockets_per_lane.max(1);
        let id = LaneId(self.lanes.len() as u32);
        let connecting = Connecting::new(sockets, self.config.silence);
        self.lanes.push(Some(Box::new(Lane::new(id, cookie, connecting))));
        self.cookies.insert(cookie, id.0);
        let offer = LaneOffer { cookie, rank: self.config.rank, sockets, addresses: self.addresses.clone() };
        Ok((id, Offer(offer.encode())))
    }

    fn establish(&mut self, lane: LaneId, peer: &Offer) -> Result<(), TransportError> {
        let foreign = |reason| TransportError::Protocol { peer: "the peer's offer".into(), reason };
        let offer = LaneOffer::decode(&peer.0).map_err(foreign)?;
        let gone = || TransportError::Closed { reason: format!("{lane:?} is not waiting for an offer") };
        let Some(Some(state)) = self.lanes.get_mut(lane.0 as usize) else { return Err(gone()) };
        let Phase::Connecting(connecting) = &mut state.phase else { return Err(gone()) };
        if connecting.has_begun() {
            return Err(gone());
        }
        if state.cookie == offer.cookie {
            return Err(foreign("it is our own".into()));
        }
        connecting.begin(state.cookie, &offer, &self.config, self.scope)?;
        state.peer = format!("rank {}", offer.rank);
        self.unsettled += 1;
        list(state, &mut self.busy);
        Ok(())
    }

    unsafe fn post_send(&mut self, lane: LaneId, src: Slice, stamp: u64, token: Token) -> Post {
        let Some(Some(lane)) = self.lanes.get_mut(lane.0 as usize) else { return Post::Full };
        list(lane, &mut self.busy);
        lane.post_send(src, stamp, token)
    }

    unsafe fn post_recv(&mut self, lane: LaneId, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        let Some(Some(lane)) = self.lanes.get_mut(lane.0 as usize) else { return Post::Full };
        list(lane, &mut self.busy);
        lane.post_recv(len, sink, stamp, token)
    }

    fn flush(&mut self) {
        for &id in &self.busy {
            let Some(lane) = self.lanes[id as usize].as_deref_mut() else { continue };
            let mut turn = Turn {
                wake: &self.wake,
                scratch: &mut self.scratch,
                events: &mut self.pending,
                now: None,
                eager: false,
                last_before_sleep: false,
                budget: SEND_AT_ONCE,
            };
            lane.flush(&mut turn);
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>, budget: usize) -> bool {
        let before = events.len();
        self.take_connections();
        let last_before_sleep = std::mem::take(&mut self.armed);
        let periodic = self.idle % IDLE_POLLS == IDLE_POLLS - 1 || self.polls.is_multiple_of(BUSY_POLLS);
        if self.busy.len() > EAGER_LANES || self.unsettled > 0 || periodic {
            if let Err(error) = self.collect() {
                tracing::error!(%error, "epoll_wait failed");
            }
            if periodic {
                self.look_for_silence(Instant::now());
            }
        }
        events.append(&mut self.pending);
        let moved = self.take_turns(events, budget, last_before_sleep) || events.len() > before;
        self.idle = if moved { 0 } else { self.idle.wrapping_add(1) };
        let runnable = |&id: &u32| self.lanes[id as usize].as_ref().is_some_and(|lane| lane.is_runnable());
        if last_before_sleep && (!self.pending.is_empty() || self.busy.iter().any(runnable)) {
            self.wake.ring();
        }
        moved
    }

    fn arm(&mut self) -> io::Result<()> {
        self.collect()?;
        let now = Instant::now();
        self.look_for_silence(now);
        let deadlines = self.busy.iter().filter_map(|&id| self.lanes[id as usize].as_ref()?.deadline(now));
        let look = self.lanes.iter().any(Option::is_some).then_some(self.next_look);
        self.wake.set_timer(now, deadlines.chain(look).min())?;
        self.armed = true;
        Ok(())
    }

    fn wakeup(&self) -> BorrowedFd<'_> {
        self.wake.descriptor()
    }

    fn close(&mut self, lane: LaneId) {
        let linger = self.config.linger;
        self.with_turn(lane, |lane, turn| lane.close(linger, turn));
    }

    fn abort(&mut self, lane: LaneId, cause: TransportError) {
        self.with_turn(lane, |lane, turn| lane.abort(cause, turn.events));
    }

    fn lane_stats(&self, lane: LaneId) -> LaneStats {
        let lane = self.lanes.get(lane.0 as usize).and_then(Option::as_ref);
        lane.map(|lane| lane.stats()).unwrap_or_default()
    }

    fn memory(&self) -> usize {
        let lanes: usize = self.lanes.iter().flatten().map(|lane| lane.memory()).sum();
        size_of::<Self>()
            + self.scratch.len()
            + self.lanes.capacity() * size_of::<Option<Box<Lane>>>()
            + lanes
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        // Closing a socket that has unread bytes would reset the connection under what was sent before.
        self.lanes.iter().flatten().for_each(|lane| lane.drain(&mut self.scratch));
    }
}
