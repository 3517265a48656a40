//! Operations that overlap with the caller's own work.
//!
//! A handle that borrows a buffer and waits when it is dropped would be unsound: a handle can be forgotten. So there are
//! two forms: a [`Scope`] that waits before the borrows end, and [`Work`] that owns its buffer.

use super::{Communicator, Inner, RawCall};
use crate::{
    engine::OperationId,
    error::Result,
    plan::{Collective, Rank},
};
use rondel_transport_api::{Element, ReduceOp};
use std::{cell::RefCell, fmt, marker::PhantomData, sync::Arc};

/// Starts operations that borrow their buffers; see [`Communicator::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    comm: &'scope Communicator,
    started: &'scope RefCell<Vec<OperationId>>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("started", &self.started.borrow().len()).finish_non_exhaustive()
    }
}

/// Waits for what a scope started, also when its closure panics.
struct WaitAll<'a> {
    comm: &'a Communicator,
    started: RefCell<Vec<OperationId>>,
}

impl WaitAll<'_> {
    fn wait(&self) -> Result<()> {
        let started = std::mem::take(&mut *self.started.borrow_mut());
        let mut first = Ok(());
        for operation in started {
            let outcome = self.comm.wait_call(operation);
            first = first.and(outcome);
        }
        first
    }
}

impl Drop for WaitAll<'_> {
    fn drop(&mut self) {
        // The closure's panic is on its way; the operations' results have nobody left to go to.
        let _ = self.wait();
    }
}

impl Communicator {
    /// Calls `f` with a [`Scope`] whose operations borrow their buffers and overlap with what `f` does; returns when all
    /// of them are over, with the first error if there was one.
    pub fn scope<'env, R>(
        &'env self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R> {
        let all = WaitAll { comm: self, started: RefCell::new(Vec::new()) };
        let scope = Scope { comm: self, started: &all.started, scope: PhantomData, env: PhantomData };
        let result = f(&scope);
        all.wait()?;
        Ok(result)
    }

    /// In place on a buffer that it owns until [`Work::wait`] gives it back.
    pub fn start_all_reduce<T: Element>(&self, op: ReduceOp, mut buffer: Vec<T>) -> Result<Work<T>> {
        let call = self.reducing(Collective::AllReduce, op, 0, &mut buffer, None);
        self.start_owned(call, buffer)
    }
    /// Every rank's `buffer` becomes the root's.
    pub fn start_broadcast<T: Element>(&self, root: Rank, mut buffer: Vec<T>) -> Result<Work<T>> {
        let at = buffer.as_mut_ptr();
        self.start_owned(self.moving::<T>(Collective::Broadcast, root, buffer.len(), at, at), buffer)
    }
    /// In place: `buffer` is nranks blocks, of which block `rank` is this rank's.
    pub fn start_all_gather<T: Element>(&self, mut buffer: Vec<T>) -> Result<Work<T>> {
        let count = self.block("all_gather", buffer.len())?;
        let recv = buffer.as_mut_ptr();
        let send = recv.wrapping_add(self.rank() as usize * count);
        self.start_owned(self.moving::<T>(Collective::AllGather, 0, count, send, recv), buffer)
    }
    /// In place: `buffer` is nranks blocks; block `rank` becomes the combination, the others are undefined afterwards.
    pub fn start_reduce_scatter<T: Element>(&self, op: ReduceOp, mut buffer: Vec<T>) -> Result<Work<T>> {
        let count = self.block("reduce_scatter", buffer.len())?;
        let send = buffer.as_mut_ptr();
        let recv = send.wrapping_add(self.rank() as usize * count);
        let mut call = self.moving::<T>(Collective::ReduceScatter, 0, count, send, recv);
        call.op = Some(op);
        self.start_owned(call, buffer)
    }
    /// Sends a buffer that it owns.
    pub fn start_send<T: Element>(&self, to: Rank, buffer: Vec<T>) -> Result<Work<T>> {
        let none = std::ptr::null_mut();
        let call = self.moving::<T>(Collective::Send, to, buffer.len(), buffer.as_ptr(), none);
        self.start_owned(call, buffer)
    }
    /// Receives into a buffer that it owns.
    pub fn start_recv<T: Element>(&self, from: Rank, mut buffer: Vec<T>) -> Result<Work<T>> {
        let call =
            self.moving::<T>(Collective::Recv, from, buffer.len(), std::ptr::null(), buffer.as_mut_ptr());
        self.start_owned(call, buffer)
    }

    fn start_owned<T: Element>(&self, call: RawCall, buffer: Vec<T>) -> Result<Work<T>> {
        // SAFETY: the addresses are those of the buffer's heap memory, which `Work` keeps until the operation is over.
        let operation = unsafe { self.start_call(call) }?;
        Ok(Work { inner: self.inner.clone(), operation: Some(operation), buffer })
    }
}

impl<'scope> Scope<'scope, '_> {
    /// In place: every rank's `buffer` becomes the combination of all.
    pub fn all_reduce<T: Element>(&'scope self, op: ReduceOp, buffer: &'scope mut [T]) -> Result<()> {
        self.start(self.comm.reducing(Collective::AllReduce, op, 0, buffer, None))
    }
    /// `recv` becomes the combination of all ranks' `send`.
    pub fn all_reduce_to<T: Element>(
        &'scope self,
        op: ReduceOp,
        send: &'scope [T],
        recv: &'scope mut [T],
    ) -> Result<()> {
        super::blocks("all_reduce", ("recv", recv.len()), ("send", send.len()), 1)?;
        self.start(self.comm.reducing(Collective::AllReduce, op, 0, recv, Some(send)))
    }
    /// `send` is nranks blocks of `recv.len()`; `recv` becomes the combination of all ranks' block `rank`.
    pub fn reduce_scatter<T: Element>(
        &'scope self,
        op: ReduceOp,
        send: &'scope [T],
        recv: &'scope mut [T],
    ) -> Result<()> {
        self.comm.whole("reduce_scatter", ("send", send.len()), ("recv", recv.len()))?;
        self.start(self.comm.reducing(Collective::ReduceScatter, op, 0, recv, Some(send)))
    }
    /// `recv` is nranks blocks of `send.len()`; block r becomes rank r's `send`.
    pub fn all_gather<T: Element>(&'scope self, send: &'scope [T], recv: &'scope mut [T]) -> Result<()> {
        self.comm.whole("all_gather", ("recv", recv.len()), ("send", send.len()))?;
        let (from, to) = (send.as_ptr(), recv.as_mut_ptr());
        self.start(self.comm.moving::<T>(Collective::AllGather, 0, send.len(), from, to))
    }
    /// Every rank's `buffer` becomes the root's.
    pub fn broadcast<T: Element>(&'scope self, root: Rank, buffer: &'scope mut [T]) -> Result<()> {
        let at = buffer.as_mut_ptr();
        self.start(self.comm.moving::<T>(Collective::Broadcast, root, buffer.len(), at, at))
    }
    /// Sends to one rank.
    pub fn send<T: Element>(&'scope self, to: Rank, buffer: &'scope [T]) -> Result<()> {
        let none = std::ptr::null_mut();
        self.start(self.comm.moving::<T>(Collective::Send, to, buffer.len(), buffer.as_ptr(), none))
    }
    /// Receives what one rank sends.
    pub fn recv<T: Element>(&'scope self, from: Rank, buffer: &'scope mut [T]) -> Result<()> {
        let none = std::ptr::null();
        self.start(self.comm.moving::<T>(Collective::Recv, from, buffer.len(), none, buffer.as_mut_ptr()))
    }

    fn start(&self, call: RawCall) -> Result<()> {
        // SAFETY: the buffers are borrowed for 'scope, and the scope waits before that ends.
        let operation = unsafe { self.comm.start_call(call) }?;
        self.started.borrow_mut().push(operation);
        Ok(())
    }
}

/// An operation under way that owns its buffer. Dropping it waits until nobody touches the buffer any more.
#[must_use = "dropping it waits; `wait` gives the buffer back"]
pub struct Work<T: Element> {
    inner: Arc<Inner>,
    operation: Option<OperationId>,
    buffer: Vec<T>,
}

impl<T: Element> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("over", &self.operation.is_none()).finish_non_exhaustive()
    }
}

impl<T: Element> Work<T> {
    /// Waits until it is over, and gives the buffer back.
    pub fn wait(mut self) -> Result<Vec<T>> {
        if let Some(operation) = self.operation.take() {
            self.inner.context.wait(operation)?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }
    /// Makes some progress; whether it is over and went well.
    pub fn test(&mut self) -> Result<bool> {
        let Some(operation) = self.operation else { return Ok(true) };
        match self.inner.context.test(operation) {
            Some(outcome) => {
                self.operation = None;
                outcome.map(|()| true)
            }
            None => Ok(false),
        }
    }
}

impl<T: Element> Drop for Work<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            // Whoever drops it does not want to know.
            let _ = self.inner.context.wait(operation);
        }
    }
}
