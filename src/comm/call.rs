//! From a caller's arguments to a submission: every check that a call gets, and nothing else.

use super::Communicator;
use crate::{
    engine::{Submission, call::Call},
    error::{Result, UsageError},
    plan::{Alias, Collective, Layout, Rank},
};
use rondel_transport_api::{Combine, DataType, ReduceOp, Reduction};

/// A call with its buffers as addresses, as the C interface and other bindings make it.
#[derive(Clone, Copy, Debug)]
pub struct RawCall {
    /// What is done.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined; only where the collective reduces.
    pub op: Option<ReduceOp>,
    /// Elements of a flat buffer, or of one block of a blocked one.
    pub count: usize,
    /// The root of a rooted collective, the peer of a send or receive; ignored otherwise.
    pub root: Rank,
    /// First element of the input; ignored where the rank has none.
    pub send: *const u8,
    /// First element of the output; ignored where the rank has none.
    pub recv: *mut u8,
}

/// What a barrier sends: one byte that nobody looks at.
static BARRIER: u8 = 0;

impl Communicator {
    /// Checks a call.
    pub(super) fn check(&self, call: &RawCall) -> Result<Submission> {
        let name = call.collective.name();
        let (rank, nranks) = (self.rank(), self.nranks());
        let named = match call.collective {
            Collective::Send | Collective::Recv => Some("peer"),
            _ if call.collective.has_root() => Some("root"),
            _ => None,
        };
        if let Some(what) = named
            && call.root >= nranks
        {
            return Err(UsageError::new(format!(
                "{name}: {what} {} is out of range: the communicator has {nranks} ranks, 0 to {}",
                call.root,
                nranks - 1
            )));
        }
        if call.root == rank && call.collective.is_point_to_point() {
            return Err(UsageError::new(format!(
                "{name}: rank {rank} names itself; a send to self and its receive must be in one group"
            )));
        }
        let barrier = call.collective == Collective::Barrier;
        let reduction = match (call.collective.reduces(), call.op) {
            (true, Some(op)) => op.reduction(call.dtype, nranks).map_err(|error| {
                UsageError::new(format!("{name}: {op} of {}: {}", call.dtype, error.reason))
            })?,
            (true, None) => return Err(UsageError::new(format!("{name}: needs a reduction operator"))),
            (false, _) => Reduction { dtype: call.dtype, combine: Combine::Sum, pre: None, divide: None },
        };
        let root = if named.is_some() { call.root } else { 0 };
        let (input, output) =
            (call.collective.input_at(rank == root, nranks), call.collective.output_at(rank == root, nranks));
        let input = self.region(call, input, call.send.cast_mut(), "send")?;
        let output = self.region(call, output, call.recv, "receive")?;
        let alias = self.alias(call, input, output)?;
        Ok(Submission {
            call: Call {
                seq: 0,
                collective: call.collective,
                dtype: if barrier { DataType::U8 } else { call.dtype },
                op: call.op.filter(|_| call.collective.reduces()),
                count: if barrier { 1 } else { call.count as u64 },
                root,
            },
            reduction,
            input: if barrier { (&raw const BARRIER).cast_mut() } else { input.0 },
            output: output.0,
            alias,
            timeout: None,
        })
    }

    /// Address and bytes of a buffer, null and 0 where there is none.
    fn region(&self, call: &RawCall, layout: Layout, addr: *mut u8, what: &str) -> Result<(*mut u8, usize)> {
        let blocks = match layout {
            Layout::Absent => return Ok((std::ptr::null_mut(), 0)),
            Layout::Flat => 1,
            Layout::Blocked(blocks) => blocks as usize,
        };
        if call.collective == Collective::Barrier {
            return Ok((std::ptr::null_mut(), 0));
        }
        let bytes = call.count.checked_mul(call.dtype.size()).and_then(|bytes| bytes.checked_mul(blocks));
        let Some(bytes) = bytes.filter(|&bytes| bytes <= isize::MAX as usize) else {
            return Err(UsageError::new(format!(
                "{}: {blocks} x {} elements of {} do not fit into the address space",
                call.collective.name(),
                call.count,
                call.dtype
            )));
        };
        if addr.is_null() && bytes > 0 {
            return Err(UsageError::new(format!(
                "{}: the {what} buffer is null, but {} elements of {} were asked for",
                call.collective.name(),
                call.count,
                call.dtype
            )));
        }
        Ok((addr, bytes))
    }

    /// How input and output lie: apart, or in place by the rule of each collective. Any other overlap is refused.
    fn alias(&self, call: &RawCall, input: (*mut u8, usize), output: (*mut u8, usize)) -> Result<Alias> {
        let (send, recv) = (input.0 as usize, output.0 as usize);
        if input.1 == 0 || output.1 == 0 || send + input.1 <= recv || recv + output.1 <= send {
            return Ok(Alias::None);
        }
        let rank = self.rank();
        let block = rank as usize * call.count * call.dtype.size();
        let rule = match call.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast if send == recv => {
                return Ok(Alias::InputAt(0));
            }
            Collective::AllGather | Collective::Gather if send == recv + block => {
                return Ok(Alias::InputAt(rank));
            }
            Collective::ReduceScatter | Collective::Scatter if recv == send + block => {
                return Ok(Alias::OutputAt(rank));
            }
            Collective::AllGather | Collective::Gather => {
                "the send buffer to be block `rank` of the receive buffer"
            }
            Collective::ReduceScatter | Collective::Scatter => {
                "the receive buffer to be block `rank` of the send buffer"
            }
            Collective::AllToAll => "two buffers: it does not work in place",
            _ => "the two buffers to be the same",
        };
        Err(UsageError::new(format!(
            "{}: send ({} bytes) and receive buffer ({} bytes) overlap by accident; in place needs {rule}",
            call.collective.name(),
            input.1,
            output.1
        )))
    }
}

/// Checks the lengths of two slices of which one is `blocks` times as long as the other.
pub(super) fn blocks(name: &str, whole: (&str, usize), part: (&str, usize), blocks: usize) -> Result<()> {
    if part.1.checked_mul(blocks) == Some(whole.1) {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "{name}: {} has {} elements, {} has {}: expected {blocks} x {} = {}",
        whole.0,
        whole.1,
        part.0,
        part.1,
        part.1,
        part.1.saturating_mul(blocks)
    )))
}
