//! All lanes of one endpoint, served in turn.

use crate::{
    LINK,
    bell::{Bell, Cord, News},
    hub::{Hub, NAME, Side},
    lane::{After, Lane},
};
use rondel_transport_api::{
    Advert, Endpoint, Event, LaneId, LaneStats, Limits, Link, MemoryKind, Offer, Post, Region, RegionId,
    Sink, Slice, Token, TransportError,
};
use std::{io, os::fd::BorrowedFd, sync::Arc};

pub(crate) struct MemEndpoint {
    hub: Arc<Hub>,
    rank: u32,
    bell: Arc<Bell>,
    lanes: Vec<Slot>,
    /// A word for 64 lanes, set by their peers.
    news: Vec<Arc<News>>,
    /// Lanes to look at in the next poll, also 64 in a word.
    pending: Vec<u64>,
    /// The lane that the next poll begins with, so that a small budget starves none.
    first: usize,
    /// Lanes with sends that are not flushed; may name one twice.
    unflushed: Vec<u32>,
    regions: u32,
}

/// A lane's number is never used again, so that a late call cannot hit another lane.
enum Slot {
    Live(Box<Lane>),
    Ended(LaneStats),
}

impl MemEndpoint {
    pub(crate) fn new(hub: Arc<Hub>, rank: u32) -> Self {
        Self {
            hub,
            rank,
            bell: Arc::default(),
            lanes: Vec::new(),
            news: Vec::new(),
            pending: Vec::new(),
            first: 0,
            unflushed: Vec::new(),
            regions: 0,
        }
    }
    fn live(&mut self, lane: LaneId) -> Option<&mut Lane> {
        match self.lanes.get_mut(lane.0 as usize) {
            Some(Slot::Live(lane)) => Some(lane),
            Some(Slot::Ended(_)) | None => None,
        }
    }
    fn look_at(&mut self, lane: usize) {
        self.pending[lane / 64] |= 1 << (lane % 64);
    }
    /// The first pending lane from `lane` on.
    fn next_pending(&self, lane: usize) -> Option<usize> {
        let mut mask = !0 << (lane % 64);
        for (word, bits) in self.pending.iter().enumerate().skip(lane / 64) {
            if bits & mask != 0 {
                return Some(word * 64 + (bits & mask).trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }
    /// Serves a pending lane.
    fn serve(&mut self, index: usize, events: &mut Vec<Event>, budget: &mut usize) {
        self.pending[index / 64] &= !(1 << (index % 64));
        let Slot::Live(lane) = &mut self.lanes[index] else { return };
        match lane.poll(events, budget) {
            After::Idle => {}
            After::Again => self.look_at(index),
            After::Ended => {
                self.hub.withdraw(&lane.me);
                self.lanes[index] = Slot::Ended(lane.stats());
            }
        }
    }
}

impl Endpoint for MemEndpoint {
    fn advert(&self) -> Advert {
        Advert {
            transport: NAME.to_owned(),
            domain: self.hub.id.to_vec(),
            address: self.rank.to_le_bytes().to_vec(),
            link: LINK,
        }
    }
    fn reaches(&self, peer: &Advert) -> Option<Link> {
        self.hub.is_mine(peer).then_some(LINK)
    }
    fn limits(&self) -> Limits {
        let config = &self.hub.config;
        Limits {
            max_message: config.max_message,
            eager: u32::try_from(config.eager).unwrap_or(u32::MAX),
            window: config.window,
            reduces: config.reduces,
        }
    }
    fn register(&mut self, memory: Region) -> Result<RegionId, TransportError> {
        if let MemoryKind::Cuda { device } = memory.kind {
            let what = format!("memory of CUDA device {device}; mem lanes move host memory");
            return Err(TransportError::Unsupported { what });
        }
        self.regions += 1;
        Ok(RegionId(self.regions))
    }
    fn deregister(&mut self, _: RegionId) {}

    fn prepare(&mut self, peer: &Advert) -> Result<(LaneId, Offer), TransportError> {
        if !self.hub.is_mine(peer) {
            let what = format!("a mem lane to an endpoint of {} that another hub made", peer.transport);
            return Err(TransportError::Unsupported { what });
        }
        let index = self.lanes.len();
        let id = LaneId(u32::try_from(index).map_err(|_| TransportError::Unsupported {
            what: "more than 4294967295 lanes of one endpoint".to_owned(),
        })?);
        if index.is_multiple_of(64) {
            self.news.push(Arc::default());
            self.pending.push(0);
        }
        let cord =
            Cord { bell: self.bell.clone(), news: self.news[index / 64].clone(), bit: 1 << (index % 64) };
        let side = Arc::new(Side::new(self.hub.number(), self.rank, &self.hub.config, cord));
        self.lanes.push(Slot::Live(Box::new(Lane::new(id, side.clone(), &self.hub.config))));
        Ok((id, self.hub.offer(side)))
    }
    fn establish(&mut self, lane: LaneId, peer: &Offer) -> Result<(), TransportError> {
        let hub = self.hub.clone();
        let mine = self.live(lane).filter(|lane| lane.is_prepared()).ok_or_else(|| {
            let reason = format!("lane {} is not one that was prepared and has no peer yet", lane.0);
            TransportError::Closed { reason }
        })?;
        let side = hub.meet(&mine.me, peer)?;
        mine.establish(side);
        self.look_at(lane.0 as usize);
        Ok(())
    }

    unsafe fn post_send(&mut self, lane: LaneId, src: Slice, stamp: u64, token: Token) -> Post {
        let Some(live) = self.live(lane) else { return Post::Full };
        // SAFETY: the caller's promise is the same.
        let post = unsafe { live.post_send(src, stamp, token) };
        if post == Post::Accepted {
            self.look_at(lane.0 as usize);
            if self.unflushed.last() != Some(&lane.0) {
                self.unflushed.push(lane.0);
            }
        }
        post
    }
    unsafe fn post_recv(&mut self, lane: LaneId, len: u32, sink: Sink, stamp: u64, token: Token) -> Post {
        let Some(live) = self.live(lane) else { return Post::Full };
        // SAFETY: the caller's promise is the same.
        let post = unsafe { live.post_recv(len, sink, stamp, token) };
        if post == Post::Accepted {
            self.look_at(lane.0 as usize);
        }
        post
    }
    fn flush(&mut self) {
        for index in 0..self.unflushed.len() {
            let lane = self.unflushed[index];
            if let Some(live) = self.live(LaneId(lane)) {
                live.flush();
                // An eager send is done as soon as it is published.
                self.look_at(lane as usize);
            }
        }
        self.unflushed.clear();
    }
    fn poll(&mut self, events: &mut Vec<Event>, budget: usize) -> bool {
        let (before, budget) = (events.len(), budget.max(1));
        for (pending, news) in self.pending.iter_mut().zip(&self.news) {
            *pending |= news.take();
        }
        let mut left = budget;
        let lanes = self.lanes.len();
        for range in [self.first..lanes, 0..self.first] {
            let mut next = self.next_pending(range.start);
            while let Some(index) = next.filter(|&index| index < range.end && left > 0) {
                self.serve(index, events, &mut left);
                self.first = index + 1;
                next = self.next_pending(index + 1);
            }
        }
        if self.pending.iter().any(|&bits| bits != 0) {
            // The budget is spent; a caller that sleeps after this poll must be woken for the rest.
            self.bell.wake();
        }
        events.len() > before || left < budget
    }

    fn arm(&mut self) -> io::Result<()> {
        self.bell.arm()
    }
    fn wakeup(&self) -> BorrowedFd<'_> {
        self.bell.wakeup()
    }

    fn close(&mut self, lane: LaneId) {
        if let Some(live) = self.live(lane) {
            live.close();
            self.look_at(lane.0 as usize);
        }
    }
    fn abort(&mut self, lane: LaneId, cause: TransportError) {
        if let Some(live) = self.live(lane) {
            live.abort(cause);
            self.look_at(lane.0 as usize);
        }
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
            + self.lanes.len() * size_of::<Slot>()
            + self.news.len() * size_of::<News>()
            + self.lanes.iter().map(lane).sum::<usize>()
    }
}

impl Drop for MemEndpoint {
    fn drop(&mut self) {
        for slot in &self.lanes {
            if let Slot::Live(lane) = slot {
                lane.abandon();
                self.hub.withdraw(&lane.me);
            }
        }
    }
}
