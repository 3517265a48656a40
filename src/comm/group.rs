//! Calls that are started together: sends and receives in any order without deadlock, on several communicators.

use super::{Communicator, RawCall};
use crate::{
    engine::OperationId,
    error::{Result, UsageError},
    plan::{Collective, Rank},
};
use rondel_transport_api::{Element, ReduceOp, kernels};
use std::{fmt, marker::PhantomData};

/// Collects calls, starts them together at [`end`](Group::end) and waits for all.
///
/// Each call is checked when it is added. Nothing is started before `end`, so a group that is dropped, or whose addition
/// failed, leaves everything as it was. Calls on one communicator keep their order. Groups nest by
/// [`join`](Group::join): a function may build a group of its own and hand it to its caller's.
///
/// A group is not `Send`: its calls belong to the thread that collects them.
///
/// ```no_run
/// # fn f(comm: &rondel::Communicator, a: &[f32], b: &mut [f32]) -> rondel::Result<()> {
/// let (right, left) = ((comm.rank() + 1) % comm.nranks(), (comm.rank() + comm.nranks() - 1) % comm.nranks());
/// let mut group = rondel::Group::new();
/// group.send(comm, right, a)?;
/// group.recv(comm, left, b)?;
/// group.end()
/// # }
/// ```
#[must_use = "nothing is started before `end`"]
#[derive(Default)]
pub struct Group<'a> {
    calls: Vec<(&'a Communicator, RawCall)>,
    buffers: PhantomData<(&'a mut [u8], *const ())>,
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

impl<'a> Group<'a> {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds all calls of another group behind those of this one.
    pub fn join(&mut self, inner: Group<'a>) {
        self.calls.extend(inner.calls);
    }

    /// Sends to one rank, possibly this one.
    pub fn send<T: Element>(&mut self, comm: &'a Communicator, to: Rank, buffer: &'a [T]) -> Result<()> {
        let none = std::ptr::null_mut();
        self.add(comm, comm.moving::<T>(Collective::Send, to, buffer.len(), buffer.as_ptr(), none))
    }
    /// Receives what one rank sends, possibly this one.
    pub fn recv<T: Element>(
        &mut self,
        comm: &'a Communicator,
        from: Rank,
        buffer: &'a mut [T],
    ) -> Result<()> {
        let none = std::ptr::null();
        self.add(comm, comm.moving::<T>(Collective::Recv, from, buffer.len(), none, buffer.as_mut_ptr()))
    }
    /// In place: every rank's `buffer` becomes the combination of all.
    pub fn all_reduce<T: Element>(
        &mut self,
        comm: &'a Communicator,
        op: ReduceOp,
        buffer: &'a mut [T],
    ) -> Result<()> {
        self.add(comm, comm.reducing(Collective::AllReduce, op, 0, buffer, None))
    }
    /// Every rank's `buffer` becomes the root's.
    pub fn broadcast<T: Element>(
        &mut self,
        comm: &'a Communicator,
        root: Rank,
        buffer: &'a mut [T],
    ) -> Result<()> {
        let at = buffer.as_mut_ptr();
        self.add(comm, comm.moving::<T>(Collective::Broadcast, root, buffer.len(), at, at))
    }
    /// `recv` is nranks blocks of `send.len()`; block r becomes rank r's `send`.
    pub fn all_gather<T: Element>(
        &mut self,
        comm: &'a Communicator,
        send: &'a [T],
        recv: &'a mut [T],
    ) -> Result<()> {
        comm.whole("all_gather", ("recv", recv.len()), ("send", send.len()))?;
        let (from, to) = (send.as_ptr(), recv.as_mut_ptr());
        self.add(comm, comm.moving::<T>(Collective::AllGather, 0, send.len(), from, to))
    }
    /// `send` is nranks blocks of `recv.len()`; `recv` becomes the combination of all ranks' block `rank`.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        comm: &'a Communicator,
        op: ReduceOp,
        send: &'a [T],
        recv: &'a mut [T],
    ) -> Result<()> {
        comm.whole("reduce_scatter", ("send", send.len()), ("recv", recv.len()))?;
        self.add(comm, comm.reducing(Collective::ReduceScatter, op, 0, recv, Some(send)))
    }

    fn add(&mut self, comm: &'a Communicator, call: RawCall) -> Result<()> {
        if !to_self(comm, &call) {
            comm.check(&call)?;
        }
        self.calls.push((comm, call));
        Ok(())
    }

    /// Starts all calls and waits for them. The first error is returned when all are over.
    pub fn end(self) -> Result<()> {
        let (own, others): (Vec<_>, Vec<_>) =
            self.calls.into_iter().partition(|(comm, call)| to_self(comm, call));
        let copies = match_own(&own)?;
        let mut started: Vec<(&Communicator, OperationId)> = Vec::with_capacity(others.len());
        let mut first = Ok(());
        for (comm, call) in others {
            // SAFETY: the buffers are borrowed for 'a, which outlives this call, and all that started is waited for.
            match unsafe { comm.start_call(call) } {
                Ok(operation) => started.push((comm, operation)),
                Err(error) => first = first.and(Err(error)),
            }
        }
        for (from, to, bytes) in copies {
            // SAFETY: both are borrowed for 'a, one of them mutably, so they do not overlap.
            unsafe { kernels::copy(from, to, bytes, rondel_transport_api::Keep::Keep) };
        }
        for (comm, operation) in started {
            let outcome = comm.wait_call(operation);
            first = first.and(outcome);
        }
        first
    }
}

fn to_self(comm: &Communicator, call: &RawCall) -> bool {
    call.collective.is_point_to_point() && call.root == comm.rank()
}

/// Pairs sends to self with their receives, in order, per communicator: what to copy from where to where.
fn match_own(own: &[(&Communicator, RawCall)]) -> Result<Vec<(*const u8, *mut u8, usize)>> {
    let mut copies = Vec::new();
    let mut communicators: Vec<&Communicator> = Vec::new();
    for (comm, _) in own {
        if !communicators.iter().any(|known| std::ptr::eq(*known, *comm)) {
            communicators.push(comm);
        }
    }
    for comm in communicators {
        let of = |collective| {
            own.iter()
                .filter(move |(c, call)| std::ptr::eq(*c, comm) && call.collective == collective)
                .map(|(_, call)| call)
        };
        let (sends, receives) = (of(Collective::Send), of(Collective::Recv));
        let (nsends, nreceives) = (sends.clone().count(), receives.clone().count());
        if nsends != nreceives {
            return Err(UsageError::new(format!(
                "group: rank {} sends {nsends} messages to itself and receives {nreceives}: every send to self needs \
                 its receive in the same group",
                comm.rank()
            )));
        }
        for (send, receive) in sends.zip(receives) {
            if (send.dtype, send.count) != (receive.dtype, receive.count) {
                return Err(UsageError::new(format!(
                    "group: rank {} sends {} x {} to itself and receives {} x {}",
                    comm.rank(),
                    send.count,
                    send.dtype,
                    receive.count,
                    receive.dtype
                )));
            }
            copies.push((send.send, receive.recv, send.count * send.dtype.size()));
        }
    }
    Ok(copies)
}
