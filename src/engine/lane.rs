//! The engine's lanes: how they come to be, and whose turn it is on them.

use super::{Command, Engine, RunId};
use crate::{
    bootstrap::LaneOffer,
    error::Cause,
    plan::{LaneIndex, Rank},
};
use rondel_transport_api::{LaneId, TransportError};
use std::collections::VecDeque;

/// The channel number of the lanes that carry sends and receives, apart from the collectives' channels.
pub(crate) const POINT_TO_POINT: u16 = u16::MAX;

/// A lane as the engine sees it.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Index of the communicator that it belongs to.
    pub(crate) comm: usize,
    /// The other end, as a rank of the communicator.
    pub(crate) peer: Rank,
    /// Index of the endpoint that carries it.
    pub(crate) endpoint: usize,
    /// Its number there.
    pub(crate) id: LaneId,
    pub(crate) phase: Phase,
    pub(crate) sending: Turns,
    pub(crate) receiving: Turns,
    /// Posts of a staged step that the endpoint refused: they come before anything else on this lane.
    pub(crate) owed: VecDeque<super::staging::OwedPost>,
    /// Staged steps that wait for a message of this lane.
    pub(crate) staged: u32,
}

/// How far a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Our half is on its way; the peer's has not come.
    Offered,
    /// Both halves are known; the endpoint is connecting.
    Connecting,
    /// Usable.
    Ready,
    /// Ended.
    Closed,
}

/// Whose turn it is on one direction of a lane: executions post strictly one after the other.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queue: VecDeque<(RunId, LaneIndex)>,
}

impl Turns {
    /// Takes a place at the end. Returns whether it is its turn at once.
    pub(crate) fn join(&mut self, run: RunId, lane: LaneIndex) -> bool {
        self.queue.push_back((run, lane));
        self.queue.len() == 1
    }
    /// The first has posted everything. Returns whose turn it is now.
    pub(crate) fn pass(&mut self, run: RunId) -> Option<(RunId, LaneIndex)> {
        debug_assert_eq!(self.queue.front().map(|t| t.0), Some(run), "only the front passes its turn");
        self.queue.pop_front();
        self.queue.front().copied()
    }
}

/// A peer's half of a lane of a communicator that does not exist here yet.
#[derive(Debug)]
pub(crate) struct EarlyOffer {
    pub(crate) from: Rank,
    pub(crate) offer: LaneOffer,
}
/// Halves that are kept for communicators to come; more than any job that behaves will send.
const EARLY_OFFERS: usize = 1 << 16;

impl Engine {
    /// The lane to a peer, made on first use: our half of it is offered, and posts are refused until it stands.
    pub(super) fn lane_to(
        &mut self,
        comm: usize,
        peer: Rank,
        channel: u16,
    ) -> Result<u32, (Rank, TransportError)> {
        if let Some(&lane) = self.comms[comm].lanes.get(&(peer, channel)) {
            return Ok(lane);
        }
        let spec = &self.comms[comm].spec;
        let Some(path) = &spec.paths[peer as usize] else {
            return Err((
                peer,
                TransportError::Unsupported { what: "no transport reaches this rank".into() },
            ));
        };
        let port = &mut self.ports[path.endpoint];
        let (id, offer) = port.endpoint.prepare(&path.advert).map_err(|error| (peer, error))?;
        let lane = self.lanes.len() as u32;
        port.lanes.insert(id, lane);
        self.commands.push(Command::Offer {
            to: spec.members[peer as usize],
            offer: LaneOffer { comm: spec.id, channel, endpoint: path.endpoint as u8, offer },
        });
        self.lanes.push(Lane {
            comm,
            peer,
            endpoint: path.endpoint,
            id,
            phase: Phase::Offered,
            sending: Turns::default(),
            receiving: Turns::default(),
            owed: VecDeque::new(),
            staged: 0,
        });
        self.comms[comm].lanes.insert((peer, channel), lane);
        Ok(lane)
    }

    /// A peer's half of a lane. Ours is made if it does not exist yet, so that the first of the two to need the lane is
    /// enough. A communicator that was destroyed here makes it too: over that lane it says goodbye.
    pub(super) fn handle_offer(&mut self, from: Rank, offer: LaneOffer) {
        let Some(comm) = self.comms.iter().position(|c| c.spec.id == offer.comm) else {
            if self.early_offers.len() < EARLY_OFFERS {
                self.early_offers.push(EarlyOffer { from, offer });
            }
            return;
        };
        let Some(peer) = self.comms[comm].rank_of(from).filter(|_| self.comms[comm].failure.is_none()) else {
            return;
        };
        let established = self.lane_to(comm, peer, offer.channel).and_then(|lane| {
            let state = &mut self.lanes[lane as usize];
            if state.phase != Phase::Offered {
                return Ok(());
            }
            state.phase = Phase::Connecting;
            let endpoint = &mut self.ports[state.endpoint].endpoint;
            endpoint.establish(state.id, &offer.offer).map_err(|error| (peer, error))
        });
        if let Err((peer, error)) = established {
            self.fail(comm, Cause::LaneLost { peer, error }, true);
        }
    }
}
