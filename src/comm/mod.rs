//! Communicators: what callers use. Checks arguments and does nothing else per call.

use crate::{
    bootstrap::Rendezvous,
    error::{Error, Result},
    plan::{Collective, Rank},
};
use rondel_transport_api::{DataType, Element, ReduceOp, Transport};
use std::{sync::Arc, time::Duration};

/// A group of ranks that make the same calls in the same order.
///
/// All methods may be called from any thread; calls of one communicator must come in the same order on every rank.
#[derive(Debug)]
pub struct Communicator {
    _private: (),
}

/// Makes a [`Communicator`].
#[derive(Debug)]
pub struct Builder {
    _private: (),
}

impl Builder {
    /// Reads the `RONDEL_*` settings of the environment for everything that is not set here. On by default.
    pub fn environment(self, read: bool) -> Self {
        let _ = read;
        todo!()
    }
    /// Bounds joining, and every operation. Default 30 minutes for operations, 60 s for joining.
    pub fn timeout(self, timeout: Duration) -> Self {
        let _ = timeout;
        todo!()
    }
    /// After how long a waiting rank asks the others what they are doing. Default 1 s.
    pub fn stall_after(self, after: Duration) -> Self {
        let _ = after;
        todo!()
    }
    /// Transports to choose from, best first. Default: all that are built in.
    pub fn transports(self, transports: Vec<Arc<dyn Transport>>) -> Self {
        let _ = transports;
        todo!()
    }
    /// Restricts the choice to one algorithm, where it does the collective.
    pub fn algorithm(self, name: &str) -> Self {
        let _ = name;
        todo!()
    }
    /// Fixes the number of channels.
    pub fn channels(self, channels: u32) -> Self {
        let _ = channels;
        todo!()
    }
    /// Meets the other ranks.
    pub fn connect(self, rendezvous: Rendezvous) -> Result<Communicator> {
        let _ = rendezvous;
        todo!()
    }
}

/// Which way a call goes, and what it is expected to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Channels.
    pub channels: u32,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Predicted time.
    pub predicted: Duration,
    /// Transport that carries it ("tcp", or several joined by "+").
    pub transport: String,
    /// Every candidate with its predicted time, best first.
    pub candidates: Vec<(&'static str, Duration)>,
}

/// Memory and traffic of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes held: lanes, scratch, plans.
    pub memory_bytes: u64,
    /// Lanes that exist.
    pub lanes: u32,
    /// Payload bytes that left, by peer.
    pub sent_bytes: Vec<u64>,
    /// Payload bytes that arrived, by peer.
    pub received_bytes: Vec<u64>,
    /// Operations that completed.
    pub operations: u64,
}

impl Communicator {
    /// Starts to make one.
    pub fn builder() -> Builder {
        todo!()
    }
    /// This rank.
    pub fn rank(&self) -> Rank {
        todo!()
    }
    /// Ranks.
    pub fn nranks(&self) -> u32 {
        todo!()
    }
    /// For each rank, host name and process id.
    pub fn members(&self) -> Vec<(String, u32)> {
        todo!()
    }
    /// In place: every rank's `buffer` becomes the combination of all.
    pub fn all_reduce<T: Element>(&self, op: ReduceOp, buffer: &mut [T]) -> Result<()> {
        let _ = (op, buffer);
        todo!()
    }
    /// `recv` becomes the combination of all ranks' `send`. Both have the same length.
    pub fn all_reduce_to<T: Element>(&self, op: ReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (op, send, recv);
        todo!()
    }
    /// `send` is nranks blocks of `recv.len()`; `recv` becomes the combination of all ranks' block `rank`.
    pub fn reduce_scatter<T: Element>(&self, op: ReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (op, send, recv);
        todo!()
    }
    /// In place: `buffer` is nranks blocks; block `rank` becomes the combination, the others are not defined afterwards.
    pub fn reduce_scatter_in_place<T: Element>(&self, op: ReduceOp, buffer: &mut [T]) -> Result<()> {
        let _ = (op, buffer);
        todo!()
    }
    /// `recv` is nranks blocks of `send.len()`; block r becomes rank r's `send`.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (send, recv);
        todo!()
    }
    /// In place: `buffer` is nranks blocks, of which block `rank` is this rank's.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let _ = buffer;
        todo!()
    }
    /// Every rank's `buffer` becomes the root's.
    pub fn broadcast<T: Element>(&self, root: Rank, buffer: &mut [T]) -> Result<()> {
        let _ = (root, buffer);
        todo!()
    }
    /// In place: the root's `buffer` becomes the combination of all; the others' are left as they are.
    pub fn reduce<T: Element>(&self, op: ReduceOp, root: Rank, buffer: &mut [T]) -> Result<()> {
        let _ = (op, root, buffer);
        todo!()
    }
    /// The root's `recv` becomes the combination of all ranks' `send`; other ranks' `recv` may be empty.
    pub fn reduce_to<T: Element>(&self, op: ReduceOp, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (op, root, send, recv);
        todo!()
    }
    /// Both are nranks blocks; block r of `recv` becomes block `rank` of rank r's `send`.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (send, recv);
        todo!()
    }
    /// The root's `recv` (nranks blocks of `send.len()`; empty elsewhere) becomes all ranks' `send`.
    pub fn gather<T: Element>(&self, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (root, send, recv);
        todo!()
    }
    /// `recv` becomes block `rank` of the root's `send` (nranks blocks of `recv.len()`; empty elsewhere).
    pub fn scatter<T: Element>(&self, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        let _ = (root, send, recv);
        todo!()
    }
    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        todo!()
    }
    /// Sends to one rank; returns when `buffer` may be reused.
    pub fn send<T: Element>(&self, to: Rank, buffer: &[T]) -> Result<()> {
        let _ = (to, buffer);
        todo!()
    }
    /// Receives what one rank sends.
    pub fn recv<T: Element>(&self, from: Rank, buffer: &mut [T]) -> Result<()> {
        let _ = (from, buffer);
        todo!()
    }
    /// Which way a call of this kind goes. `count` as in [`Call`](crate::engine::call::Call).
    pub fn explain(&self, collective: Collective, dtype: DataType, count: u64) -> Choice {
        let _ = (collective, dtype, count);
        todo!()
    }
    /// Memory and traffic so far.
    pub fn stats(&self) -> Stats {
        todo!()
    }
    /// A handle that ends everything from another thread.
    pub fn aborter(&self) -> Aborter {
        todo!()
    }
    /// Whether it has failed, and of what.
    pub fn failure(&self) -> Option<Error> {
        todo!()
    }
    /// Communicators of the ranks that give the same color, ordered by `key`, then by rank; `None` for no color.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let _ = (color, key);
        todo!()
    }
}

/// Ends a communicator from any thread.
#[derive(Clone, Debug)]
pub struct Aborter {
    _private: (),
}

impl Aborter {
    /// Everything that waits on the communicator fails at once, here and on all other ranks. Does not block.
    pub fn abort(&self, reason: &str) {
        let _ = reason;
        todo!()
    }
}
