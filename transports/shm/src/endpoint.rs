//! The port: its lanes, whose turn it is, and when to sleep.

use crate::{
    connect::Door,
    io_error,
    lane::{Lane, Phase, Surroundings},
    offer::{Domain, LaneOffer, NAME_BYTES},
    outbox::WINDOW,
    region::OwnRegion,
    segment::{OwnSegment, RING},
    socket,
    wake::{Source, Wake},
};
use rondel_transport_api::{
    Advert, Allocation, Config, Endpoint, Event, LaneId, LaneStats, Limits, Link, MemoryKind, Offer, Post,
    Region, RegionId, Sink, Slice, Token, TransportError,
};
use std::{
    collections::HashMap,
    fmt, io,
    os::fd::BorrowedFd,
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

/// Polls without progress after which the sockets are looked at, which tell of the ends of peers.
const IDLE_POLLS: u32 = 1024;
/// The same for an endpoint that never idles.
const BUSY_POLLS: u32 = 4096;
/// Polls after which an endpoint that never idles looks whether a peer sleeps on what was written.
const LOOK_EVERY: u32 = 32;
/// Polls after which lanes that have nothing to do get no more turns. A lane in use has something to do again by then.
const SORT_EVERY: u32 = 32;
/// A message up to this size is in the ring before its receive is posted, on a lane that is not behind.
const EAGER_BYTES: u32 = 16 << 10;
/// A message from this size on that lies in a region of ours is read there by the peer. Below, to copy it into the ring and
/// go on costs less than to wait until the peer has read it.
const IN_PLACE_FROM: u32 = 64 << 10;

/// Two ranks of one host.
pub(crate) const LINK: Link =
    Link { latency: Duration::from_nanos(150), overhead: Duration::from_nanos(60), bytes_per_sec: 8.0e9 };

/// The port with its lanes. Made by [`ShmTransport`](crate::ShmTransport).
pub struct ShmEndpoint {
    config: Config,
    domain: Domain,
    /// The listener's name.
    name: [u8; NAME_BYTES],
    door: Door,
    door_news: bool,
    /// By lane id.
    lanes: Vec<Slot>,
    /// Lanes that have something to do.
    busy: Vec<u32>,
    /// How many of them connect or leave.
    unsettled: usize,
    /// Lanes whose peers may sleep on what was written since the last look.
    unlooked: Vec<u32>,
    /// Lanes whose peers think that we may sleep.
    lying: Vec<u32>,
    cookies: HashMap<u64, u32>,
    wake: Wake,
    /// What happened outside of `poll`.
    pending: Vec<Event>,
    armed: bool,
    /// It may have slept since the last poll.
    slept: bool,
    /// The process that the lanes are of. A forked child has a copy of this, but not of their memory.
    process: u32,
    idle: u32,
    polls: u32,
    /// Memory that peers may map.
    regions: HashMap<RegionId, OwnRegion>,
    last_region: u32,
}

/// A lane's number is never used again.
enum Slot {
    Live(Box<Lane>),
    Ended(LaneStats),
}

impl Slot {
    #[inline]
    fn live(&mut self) -> Option<&mut Lane> {
        match self {
            Slot::Live(lane) => Some(lane),
            Slot::Ended(_) => None,
        }
    }
}

impl fmt::Debug for ShmEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmEndpoint")
            .field("rank", &self.config.rank)
            .field("lanes", &self.lanes.len())
            .field("busy", &self.busy.len())
            .finish_non_exhaustive()
    }
}

impl ShmEndpoint {
    pub(crate) fn new(config: &Config, domain: Domain) -> Result<Self, TransportError> {
        let mut name = [0; NAME_BYTES];
        getrandom::fill(&mut name)
            .map_err(|error| io_error("drawing a random name for the listener", io::Error::other(error)))?;
        let wake = Wake::new()
            .map_err(|error| io_error("making the descriptors that a sleeping endpoint waits on", error))?;
        let listener = socket::listen(&name)
            .map_err(|error| io_error("listening for the peers of lanes on a Unix socket", error))?;
        wake.watch(&listener, Source::Door)
            .map_err(|error| io_error("watching the listener for lanes", error))?;
        Ok(Self {
            config: config.clone(),
            domain,
            name,
            door: Door::new(listener, config.key.clone()),
            door_news: false,
            lanes: Vec::new(),
            busy: Vec::new(),
            unsettled: 0,
            unlooked: Vec::new(),
            lying: Vec::new(),
            cookies: HashMap::new(),
            wake,
            pending: Vec::new(),
            armed: false,
            slept: false,
            process: std::process::id(),
            idle: 0,
            polls: 0,
            regions: HashMap::new(),
            last_region: 0,
        })
    }

    fn next_region(&mut self) -> RegionId {
        self.last_region += 1;
        RegionId(self.last_region)
    }

    /// Gives a lane a turn outside of `poll`.
    fn with_lane(
        &mut self,
        lane: LaneId,
        act: impl FnOnce(&mut Lane, &mut Vec<Event>, &Surroundings<'_>) -> bool,
    ) {
        let Some(state) = self.lanes.get_mut(lane.0 as usize).and_then(Slot::live) else { return };
        let wrote = act(state, &mut self.pending, &Surroundings { wake: &self.wake });
        if wrote {
            note_writing(state, &mut self.unlooked);
        }
        self.unsettled += usize::from(!state.is_settled());
        list(state, &mut self.busy, self.armed.then_some(&self.wake));
    }

    /// Looks at all sockets.
    fn collect(&mut self) -> io::Result<()> {
        let Self { wake, lanes, busy, door_news, .. } = self;
        wake.collect(|source| match source {
            Source::Door => *door_news = true,
            Source::Lane(id) => {
                if let Some(lane) = lanes.get_mut(id as usize).and_then(Slot::live) {
                    lane.news = true;
                    list(lane, busy, None);
                }
            }
        })
    }

    fn serve_door(&mut self, now: Instant) {
        self.door_news = false;
        let Self { door, wake, lanes, cookies, busy, unsettled, .. } = self;
        let mut arrived = Vec::new();
        door.serve(
            wake,
            now,
            |cookie| cookies.contains_key(&cookie),
            |cookie, rank, stream| arrived.push((cookie, rank, stream)),
        );
        for (cookie, rank, stream) in arrived {
            let lane = cookies.get(&cookie).copied();
            let Some(lane) = lane.and_then(|id| lanes.get_mut(id as usize)?.live()) else { continue };
            if let Err(error) = wake.reassign(&stream, Source::Lane(lane.id.0)) {
                tracing::warn!(%error, "a connection for a lane could not be watched");
                continue;
            }
            lane.answer(rank, stream);
            *unsettled += usize::from(!lane.is_settled());
            list(lane, busy, None);
        }
    }

    /// Every busy lane gets a turn, while the budget lasts. Returns whether something moved.
    #[inline]
    fn take_turns(&mut self, events: &mut Vec<Event>, budget: usize) -> bool {
        let now = (self.unsettled > 0).then(Instant::now);
        let (count, mut left, mut moved) = (self.busy.len(), budget, false);
        let mut over = false;
        let with = Surroundings { wake: &self.wake };
        for turn in 0..count {
            if left == 0 {
                break;
            }
            let place = if count == 1 { 0 } else { (self.polls as usize + turn) % count };
            let Some(lane) = self.lanes[self.busy[place] as usize].live() else { continue };
            let bytes = lane.take_turn(events, left.div_ceil(count - turn), now, &with);
            if bytes.wrote {
                note_writing(lane, &mut self.unlooked);
            }
            moved |= bytes.cost > 0;
            over |= matches!(lane.phase, Phase::Over);
            left = left.saturating_sub(bytes.cost);
        }
        self.polls = self.polls.wrapping_add(1);
        if over || self.unsettled > 0 || self.polls.is_multiple_of(SORT_EVERY) {
            self.sort_busy();
        }
        moved
    }

    /// Forgets lanes that have nothing to do or are over.
    #[inline]
    fn sort_busy(&mut self) {
        let Self { busy, lanes, cookies, unsettled, .. } = self;
        *unsettled = 0;
        busy.retain(|&id| {
            let Some(lane) = lanes[id as usize].live() else { return false };
            lane.listed = lane.has_work();
            *unsettled += usize::from(!lane.is_settled());
            let listed = lane.listed;
            if matches!(lane.phase, Phase::Over) {
                cookies.remove(&lane.cookie);
                let stats = lane.stats();
                lanes[id as usize] = Slot::Ended(stats);
                return false;
            }
            listed
        });
    }

    /// Wakes peers that sleep on what was written.
    fn wake_peers(&mut self) {
        if self.unlooked.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        for id in self.unlooked.drain(..) {
            if let Some(lane) = self.lanes[id as usize].live() {
                lane.owes_look = false;
                lane.wake_peer();
            }
        }
    }

    /// Tells peers that we do not sleep.
    fn rise(&mut self) {
        for id in self.lying.drain(..) {
            if let Some(lane) = self.lanes[id as usize].live() {
                lane.rise();
            }
        }
    }
}

/// `awake_me`: the bell to ring, since the caller may be about to sleep without having told this lane's peer.
#[inline]
fn list(lane: &mut Lane, busy: &mut Vec<u32>, awake_me: Option<&Wake>) {
    if !lane.listed {
        lane.listed = true;
        busy.push(lane.id.0);
        if let Some(wake) = awake_me {
            wake.ring();
        }
    }
}

#[inline]
fn note_writing(lane: &mut Lane, unlooked: &mut Vec<u32>) {
    if !lane.owes_look {
        lane.owes_look = true;
        unlooked.push(lane.id.0);
    }
}

impl Endpoint for ShmEndpoint {
    fn advert(&self) -> Advert {
        Advert {
            transport: crate::NAME.into(),
            domain: self.domain.encode(),
            address: self.name.to_vec(),
            link: LINK,
        }
    }

    fn reaches(&self, peer: &Advert) -> Option<Link> {
        let domain = (peer.transport == crate::NAME).then(|| Domain::decode(&peer.domain))?;
        let domain =
            domain.inspect_err(|reason| tracing::debug!(reason, "a peer's advert is malformed")).ok()?;
        (domain == self.domain).then_some(LINK)
    }

    fn limits(&self) -> Limits {
        Limits { max_message: u32::MAX, eager: EAGER_BYTES, window: WINDOW as u32, reduces: true }
    }

    fn register(&mut self, memory: Region) -> Result<RegionId, TransportError> {
        match memory.kind {
            MemoryKind::Host => Ok(self.next_region()),
            kind @ MemoryKind::Cuda { .. } => {
                Err(TransportError::Unsupported { what: format!("memory of {kind:?}, only of the host") })
            }
        }
    }

    fn deregister(&mut self, region: RegionId) {
        if self.regions.remove(&region).is_none() {
            return;
        }
        for lane in self.lanes.iter_mut().filter_map(Slot::live) {
            lane.forget(region);
            if lane.has_work() {
                list(lane, &mut self.busy, self.armed.then_some(&self.wake));
            }
        }
    }

    fn allocate(&mut self, len: usize) -> Result<Allocation, TransportError> {
        let own = OwnRegion::new(len).map_err(|(what, error)| io_error(&what, error))?;
        let (region, owner, id) = (own.region(), own.owner(), self.next_region());
        self.regions.insert(id, own);
        Ok(Allocation { region, id, owner })
    }

    fn prepare(&mut self, peer: &Advert) -> Result<(LaneId, Offer), TransportError> {
        if self.reaches(peer).is_none() {
            let what = format!("a lane over shm to an endpoint of {} that it does not reach", peer.transport);
            return Err(TransportError::Unsupported { what });
        }
        let cookie = getrandom::u64()
            .map_err(|error| io_error("drawing a random number for a lane", io::Error::other(error)))?;
        let own = OwnSegment::new().map_err(|(what, error)| io_error(&what, error))?;
        let id = LaneId(self.lanes.len() as u32);
        self.lanes.push(Slot::Live(Box::new(Lane::new(id, cookie, own))));
        self.cookies.insert(cookie, id.0);
        let offer = LaneOffer { cookie, rank: self.config.rank, ring: RING, name: self.name };
        Ok((id, Offer(offer.encode())))
    }

    fn establish(&mut self, lane: LaneId, peer: &Offer) -> Result<(), TransportError> {
        let foreign = |reason| TransportError::Protocol { peer: "the peer's offer".into(), reason };
        let offer = LaneOffer::decode(&peer.0).map_err(foreign)?;
        let state = self.lanes.get_mut(lane.0 as usize).and_then(Slot::live);
        let Some(state) = state.filter(|state| matches!(state.phase, Phase::Offered { .. })) else {
            return Err(TransportError::Closed { reason: format!("{lane:?} is not waiting for an offer") });
        };
        if state.cookie == offer.cookie {
            return Err(foreign("it is our own".into()));
        }
        state.establish(&offer, &self.config);
        self.unsettled += 1;
        list(state, &mut self.busy, self.armed.then_some(&self.wake));
        Ok(())
    }

    #[inline]
    unsafe fn post_send(&mut self, lane: LaneId, src: Slice, stamp: u64, token: Token) -> Post {
        let Some(lane) = self.lanes.get_mut(lane.0 as usize).and_then(Slot::live) else { return Post::Full };
        let region = match src.region {
            Some(id) if src.len >= IN_PLACE_FROM => self.regions.get(&id).map(|region| (id, region)),
            _ => None,
        };
        let (post, wrote) = lane.post_send(src, stamp, token, region);
        if post == Post::Accepted {
            list(lane, &mut self.busy, self.armed.then_some(&self.wake));
        }
        if wrote {
            note_writing(lane, &mut self.unlooked);
        }
        post
    }

    #[inline]
    unsafe fn post_recv(&mut self, lane: LaneId, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        let Some(lane) = self.lanes.get_mut(lane.0 as usize).and_then(Slot::live) else { return Post::Full };
        let post = lane.post_recv(len, sink, stamp, token);
        if post == Post::Accepted {
            list(lane, &mut self.busy, self.armed.then_some(&self.wake));
        }
        post
    }

    #[inline]
    fn flush(&mut self) {
        for &id in &self.busy {
            if let Some(lane) = self.lanes[id as usize].live()
                && lane.flush()
            {
                note_writing(lane, &mut self.unlooked);
            }
        }
    }

    #[inline]
    fn poll(&mut self, events: &mut Vec<Event>, budget: usize) -> bool {
        let before = events.len();
        let last_before_sleep = std::mem::take(&mut self.armed);
        let woke = !last_before_sleep && std::mem::take(&mut self.slept);
        let periodic = self.idle % IDLE_POLLS == IDLE_POLLS - 1 || self.polls.is_multiple_of(BUSY_POLLS);
        if woke {
            self.rise();
        }
        if (woke || self.unsettled > 0 || periodic)
            && let Err(error) = self.collect()
        {
            tracing::error!(%error, "epoll_wait failed");
        }
        if self.door_news || self.unsettled > 0 || !self.door.is_empty() {
            self.serve_door(Instant::now());
        }
        if !self.pending.is_empty() {
            events.append(&mut self.pending);
        }
        let moved = self.take_turns(events, budget) || events.len() > before;
        self.idle = if moved { 0 } else { self.idle.wrapping_add(1) };
        if !moved || self.polls.is_multiple_of(LOOK_EVERY) {
            self.wake_peers();
        }
        if last_before_sleep
            && self.busy.iter().any(|&id| self.lanes[id as usize].live().is_some_and(Lane::is_runnable))
        {
            // The budget is spent; a caller that sleeps after this poll must be woken for the rest.
            self.wake.ring();
        }
        moved
    }

    fn pause(&mut self) {
        self.wake_peers();
    }

    fn arm(&mut self) -> io::Result<()> {
        self.collect()?;
        let now = Instant::now();
        self.sort_busy();
        let lanes = self.busy.iter().filter_map(|&id| match &self.lanes[id as usize] {
            Slot::Live(lane) => lane.deadline(now),
            Slot::Ended(_) => None,
        });
        let first = lanes.chain(self.door.deadline()).min();
        self.wake.set_timer(now, first)?;
        self.rise();
        for &id in &self.busy {
            if let Some(lane) = self.lanes[id as usize].live() {
                lane.lie_down();
                self.lying.push(id);
            }
        }
        fence(Ordering::SeqCst);
        self.wake_peers();
        (self.armed, self.slept) = (true, true);
        if !self.pending.is_empty() {
            self.wake.ring();
        }
        Ok(())
    }

    fn wakeup(&self) -> BorrowedFd<'_> {
        self.wake.descriptor()
    }

    fn close(&mut self, lane: LaneId) {
        let linger = self.config.linger;
        self.with_lane(lane, |lane, events, with| lane.close(linger, events, with).wrote);
    }

    fn abort(&mut self, lane: LaneId, cause: TransportError) {
        self.with_lane(lane, |lane, events, _| {
            lane.abort(cause, events);
            false
        });
    }

    fn lane_stats(&self, lane: LaneId) -> LaneStats {
        match self.lanes.get(lane.0 as usize) {
            Some(Slot::Live(lane)) => lane.stats(),
            Some(Slot::Ended(stats)) => *stats,
            None => LaneStats::default(),
        }
    }

    fn memory(&self) -> usize {
        let lane = |slot: &Slot| match slot {
            Slot::Live(lane) => lane.memory(),
            Slot::Ended(_) => 0,
        };
        size_of::<Self>()
            + self.lanes.capacity() * size_of::<Slot>()
            + self.lanes.iter().map(lane).sum::<usize>()
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        // Whoever sleeps on what was written last must not miss it.
        if self.process == std::process::id() {
            self.wake_peers();
        }
    }
}
