//! Communicators: what callers use. Checks arguments and does nothing else per call.

mod buffer;
mod builder;
mod call;
mod group;
mod overlap;
mod split;

pub use buffer::Buffer;
pub use builder::{Builder, built_in_transports};
pub use call::RawCall;
pub use group::Group;
pub use overlap::{Scope, Work};

use crate::{
    cost::tuner::Tuner,
    engine::{CommId, OperationId, Stats, progress::Context},
    error::{Error, Result, UsageError},
    plan::{Collective, Rank, Shape},
};
use call::blocks;
use rondel_transport_api::{DataType, Element, ReduceOp};
use std::{fmt, sync::Arc, time::Duration};

/// A group of ranks that make the same calls in the same order.
///
/// All methods may be called from any thread; calls of one communicator must come in the same order on every rank.
///
/// Buffers are slices of any [`Element`] type. A call that is wrong ([`Error::Usage`]) has touched nothing. A call that
/// failed ([`Error::Failed`]) leaves its output undefined and the communicator dead.
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<Context>,
    comm: CommId,
    /// Identifies it within the job.
    id: u64,
    rank: Rank,
    members: Arc<[MemberName]>,
    /// For each rank, its rank in the job.
    job_ranks: Arc<[Rank]>,
    shape: Shape,
    transport: String,
    tuner: Arc<Tuner>,
    settings: builder::Settings,
    splits: std::sync::atomic::AtomicU32,
    /// The process that made it.
    pid: u32,
}

/// A rank as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberName {
    /// Where it runs.
    pub hostname: String,
    /// Its process.
    pub pid: u32,
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
    /// Transport that carries it ("shm", "tcp", or several joined by "+").
    pub transport: String,
    /// Every candidate with its predicted time, best first.
    pub candidates: Vec<(&'static str, Duration)>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("nranks", &self.nranks())
            .field("id", &format_args!("{:#x}", self.inner.id))
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Starts to make one.
    pub fn builder() -> Builder {
        Builder::default()
    }
    /// This rank.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }
    /// Ranks.
    pub fn nranks(&self) -> u32 {
        self.inner.members.len() as u32
    }
    /// Host and process of every rank.
    pub fn members(&self) -> &[MemberName] {
        &self.inner.members
    }
    /// The transports that carry it ("shm", "tcp", or several joined by "+").
    pub fn transport(&self) -> &str {
        &self.inner.transport
    }

    /// In place: every rank's `buffer` becomes the combination of all.
    pub fn all_reduce<T: Element>(&self, op: ReduceOp, buffer: &mut [T]) -> Result<()> {
        self.run(self.reducing(Collective::AllReduce, op, 0, buffer, None))
    }
    /// `recv` becomes the combination of all ranks' `send`. Both have the same length.
    pub fn all_reduce_to<T: Element>(&self, op: ReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        blocks("all_reduce", ("recv", recv.len()), ("send", send.len()), 1)?;
        self.run(self.reducing(Collective::AllReduce, op, 0, recv, Some(send)))
    }
    /// `send` is nranks blocks of `recv.len()`; `recv` becomes the combination of all ranks' block `rank`.
    pub fn reduce_scatter<T: Element>(&self, op: ReduceOp, send: &[T], recv: &mut [T]) -> Result<()> {
        self.whole("reduce_scatter", ("send", send.len()), ("recv", recv.len()))?;
        self.run(self.reducing(Collective::ReduceScatter, op, 0, recv, Some(send)))
    }
    /// In place: `buffer` is nranks blocks; block `rank` becomes the combination, the others are undefined afterwards.
    pub fn reduce_scatter_in_place<T: Element>(&self, op: ReduceOp, buffer: &mut [T]) -> Result<()> {
        let count = self.block("reduce_scatter", buffer.len())?;
        let send = buffer.as_mut_ptr();
        let recv = send.wrapping_add(self.rank() as usize * count);
        let mut call = self.moving::<T>(Collective::ReduceScatter, 0, count, send, recv);
        call.op = Some(op);
        self.run(call)
    }
    /// `recv` is nranks blocks of `send.len()`; block r becomes rank r's `send`.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        self.whole("all_gather", ("recv", recv.len()), ("send", send.len()))?;
        self.run(self.moving::<T>(Collective::AllGather, 0, send.len(), send.as_ptr(), recv.as_mut_ptr()))
    }
    /// In place: `buffer` is nranks blocks, of which block `rank` is this rank's.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = self.block("all_gather", buffer.len())?;
        let recv = buffer.as_mut_ptr();
        let send = recv.wrapping_add(self.rank() as usize * count);
        self.run(self.moving::<T>(Collective::AllGather, 0, count, send, recv))
    }
    /// Every rank's `buffer` becomes the root's.
    pub fn broadcast<T: Element>(&self, root: Rank, buffer: &mut [T]) -> Result<()> {
        let at = buffer.as_mut_ptr();
        self.run(self.moving::<T>(Collective::Broadcast, root, buffer.len(), at, at))
    }
    /// In place: the root's `buffer` becomes the combination of all; the others' are left as they are.
    pub fn reduce<T: Element>(&self, op: ReduceOp, root: Rank, buffer: &mut [T]) -> Result<()> {
        self.run(self.reducing(Collective::Reduce, op, root, buffer, None))
    }
    /// The root's `recv` becomes the combination of all ranks' `send`; other ranks' `recv` may be empty.
    pub fn reduce_to<T: Element>(&self, op: ReduceOp, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        if self.rank() == root {
            blocks("reduce", ("recv", recv.len()), ("send", send.len()), 1)?;
        }
        let at = recv.as_mut_ptr();
        let mut call = self.moving::<T>(Collective::Reduce, root, send.len(), send.as_ptr(), at);
        call.op = Some(op);
        self.run(call)
    }
    /// Both are nranks blocks; block r of `recv` becomes block `rank` of rank r's `send`.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        blocks("all_to_all", ("recv", recv.len()), ("send", send.len()), 1)?;
        let count = self.block("all_to_all", send.len())?;
        self.run(self.moving::<T>(Collective::AllToAll, 0, count, send.as_ptr(), recv.as_mut_ptr()))
    }
    /// The root's `recv` (nranks blocks of `send.len()`; may be empty elsewhere) becomes all ranks' `send`.
    pub fn gather<T: Element>(&self, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        if self.rank() == root {
            self.whole("gather", ("recv", recv.len()), ("send", send.len()))?;
        }
        self.run(self.moving::<T>(Collective::Gather, root, send.len(), send.as_ptr(), recv.as_mut_ptr()))
    }
    /// `recv` becomes block `rank` of the root's `send` (nranks blocks of `recv.len()`; may be empty elsewhere).
    pub fn scatter<T: Element>(&self, root: Rank, send: &[T], recv: &mut [T]) -> Result<()> {
        if self.rank() == root {
            self.whole("scatter", ("send", send.len()), ("recv", recv.len()))?;
        }
        self.run(self.moving::<T>(Collective::Scatter, root, recv.len(), send.as_ptr(), recv.as_mut_ptr()))
    }
    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.run(self.moving::<u8>(Collective::Barrier, 0, 0, std::ptr::null(), std::ptr::null_mut()))
    }
    /// Sends to one rank; returns when `buffer` may be reused.
    pub fn send<T: Element>(&self, to: Rank, buffer: &[T]) -> Result<()> {
        let none = std::ptr::null_mut();
        self.run(self.moving::<T>(Collective::Send, to, buffer.len(), buffer.as_ptr(), none))
    }
    /// Receives what one rank sends.
    pub fn recv<T: Element>(&self, from: Rank, buffer: &mut [T]) -> Result<()> {
        let none = std::ptr::null();
        self.run(self.moving::<T>(Collective::Recv, from, buffer.len(), none, buffer.as_mut_ptr()))
    }

    /// Makes a call with its buffers as addresses and waits until it is over.
    ///
    /// # Safety
    /// The buffers are valid for the call's count and type (input for reading, output for writing, both for writing
    /// where one lies inside the other), and nobody else touches them until this returns.
    pub unsafe fn call(&self, call: RawCall) -> Result<()> {
        let submission = self.check(&call)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.context.run(self.inner.comm, submission) }
    }

    /// Starts a call; [`wait_call`](Communicator::wait_call) ends it.
    ///
    /// # Safety
    /// As for [`call`](Communicator::call), until `wait_call` has returned for it.
    pub unsafe fn start_call(&self, call: RawCall) -> Result<OperationId> {
        let submission = self.check(&call)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.context.start(self.inner.comm, submission) }
    }
    /// Waits for a call that was started.
    pub fn wait_call(&self, operation: OperationId) -> Result<()> {
        self.inner.context.wait(operation)
    }
    /// The result of a call that was started, if it is over. Makes some progress.
    pub fn test_call(&self, operation: OperationId) -> Option<Result<()>> {
        self.inner.context.test(operation)
    }

    /// Which way a call of this kind goes. `count` as in [`RawCall`].
    pub fn explain(&self, collective: Collective, dtype: DataType, count: u64) -> Choice {
        let blocks = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            Collective::Barrier | Collective::Send | Collective::Recv => 1,
            _ => u64::from(self.nranks()),
        };
        let bytes = count * dtype.size() as u64 * blocks;
        let route = self.inner.tuner.route(collective, bytes);
        let candidates = self.inner.tuner.candidates(collective, bytes);
        let named = candidates.iter().find(|(name, _)| *name == route.algorithm.name);
        Choice {
            algorithm: route.algorithm.name,
            channels: route.channels,
            slice_bytes: route.slice_bytes,
            predicted: named.map_or(Duration::ZERO, |&(_, time)| time),
            transport: self.inner.transport.clone(),
            candidates,
        }
    }

    /// Memory and traffic so far.
    pub fn stats(&self) -> Stats {
        self.inner.context.with_engine(|engine| engine.stats(self.inner.comm))
    }
    /// A handle that ends everything from another thread.
    pub fn aborter(&self) -> Aborter {
        Aborter { inner: Arc::downgrade(&self.inner) }
    }
    /// Why it is dead, if it is.
    pub fn failure(&self) -> Option<Error> {
        self.inner.context.with_engine(|engine| engine.failure(self.inner.comm).cloned().map(Error::Failed))
    }

    fn run(&self, call: RawCall) -> Result<()> {
        // SAFETY: callers in this module take their addresses from slices that are borrowed until this returns, with
        // the lengths checked against `count`.
        unsafe { self.call(call) }
    }

    fn moving<T: Element>(
        &self,
        collective: Collective,
        root: Rank,
        count: usize,
        send: *const T,
        recv: *mut T,
    ) -> RawCall {
        RawCall { collective, dtype: T::DTYPE, op: None, count, root, send: send.cast(), recv: recv.cast() }
    }

    /// `send`: `None` for in place.
    fn reducing<T: Element>(
        &self,
        collective: Collective,
        op: ReduceOp,
        root: Rank,
        recv: &mut [T],
        send: Option<&[T]>,
    ) -> RawCall {
        let (recv, count) = (recv.as_mut_ptr(), recv.len());
        let send = send.map_or(recv.cast_const(), <[T]>::as_ptr);
        let mut call = self.moving::<T>(collective, root, count, send, recv);
        call.op = Some(op);
        call
    }

    /// Elements of a block of a buffer of `len` elements.
    fn block(&self, name: &str, len: usize) -> Result<usize> {
        let nranks = self.nranks() as usize;
        if len.is_multiple_of(nranks) {
            return Ok(len / nranks);
        }
        Err(UsageError::new(format!(
            "{name}: a buffer of {len} elements cannot be cut into {nranks} equal blocks, one for each rank: make its \
             length a multiple of {nranks}"
        )))
    }

    fn whole(&self, name: &str, whole: (&str, usize), part: (&str, usize)) -> Result<()> {
        blocks(name, whole, part, self.nranks() as usize)
    }
}

/// How long destroying a communicator waits for its lanes to say goodbye.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

impl Drop for Inner {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A forked child has a copy of everything, but the connections are its parent's: it must not say goodbye on
            // them, nor read from them. What it cannot use it leaves alone.
            std::mem::forget(self.context.clone());
            return;
        }
        let comm = self.comm;
        self.context.with_engine(|engine| engine.close(comm));
        self.context.drive_until(LEAVE_WITHIN, |engine| engine.is_closed(comm));
    }
}

/// Ends a communicator from any thread.
#[derive(Clone)]
pub struct Aborter {
    inner: std::sync::Weak<Inner>,
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aborter")
    }
}

impl Aborter {
    /// Everything that waits on the communicator fails at once, here and on all other ranks. Local and bounded.
    pub fn abort(&self, reason: &str) {
        if let Some(inner) = self.inner.upgrade() {
            inner.context.with_engine(|engine| engine.abort(inner.comm, reason));
        }
    }
}
