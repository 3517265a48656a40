//! Operations of the library as subjects of a measurement.

use super::{
    buffer::{Buffer, Kind},
    cell::{Cell, Place},
    measure::Subject,
    pattern::Pattern,
    test::{Op, Test},
};
use crate::stop::Stop;
use half::{bf16, f16};
use rondel::{Communicator, DataType, Element, F8E4M3, F8E5M2, Group, ReduceOp, plan::Rank};

/// A cell on a communicator, with its buffers.
#[derive(Debug)]
pub(crate) struct Operation<'a> {
    comm: &'a Communicator,
    cell: Cell,
    place: Place,
    op: ReduceOp,
    pattern: Pattern,
    input: Buffer,
    output: Buffer,
}

impl<'a> Operation<'a> {
    /// Allocates the buffers; `unaligned` puts them one element off a page's start.
    pub(crate) fn new(
        comm: &'a Communicator,
        cell: Cell,
        place: Place,
        unaligned: bool,
        kind: Kind,
    ) -> Result<Self, Stop> {
        let offset = if unaligned { cell.dtype.size() } else { 0 };
        let op = cell.op.unwrap_or(Op::Sum);
        let has_root = cell.root.is_none_or(|root| root == comm.rank());
        let (send_blocks, recv_blocks) = match cell.test {
            Test::AllReduce | Test::Broadcast | Test::SendRecv => (1, 1),
            Test::Reduce => (1, if has_root || place == Place::In { 1 } else { 0 }),
            Test::ReduceScatter => (comm.nranks(), 1),
            Test::AllGather => (1, comm.nranks()),
            Test::AllToAll => (comm.nranks(), comm.nranks()),
            Test::Gather => (1, if has_root { comm.nranks() } else { 0 }),
            Test::Scatter => (if has_root { comm.nranks() } else { 0 }, 1),
            Test::Barrier => (0, 0),
        };
        let block = cell.count as usize * cell.dtype.size();
        let (input, output) = match place {
            Place::Out => (send_blocks as usize * block, recv_blocks as usize * block),
            Place::In => (0, send_blocks.max(recv_blocks) as usize * block),
        };
        let buffer = |len| match kind {
            Kind::Plain => Buffer::new(len, offset),
            Kind::Mapped => Buffer::mapped(comm, len, offset),
        };
        Ok(Operation {
            comm,
            cell,
            place,
            op: op.reduce_op(cell.dtype, comm.rank()),
            pattern: Pattern::new(cell.dtype, cell.op, comm.nranks()),
            input: buffer(input)?,
            output: buffer(output)?,
        })
    }

    fn run_as<T: Element>(&mut self) -> rondel::Result<()> {
        let Operation { comm, cell, op, input, output, .. } = self;
        let (op, root) = (*op, cell.root.unwrap_or(0));
        let (send, recv) = (input.elements::<T>(), output.elements_mut::<T>());
        match (cell.test, self.place) {
            (Test::AllReduce, Place::Out) => comm.all_reduce_to(op, send, recv),
            (Test::AllReduce, Place::In) => comm.all_reduce(op, recv),
            (Test::ReduceScatter, Place::Out) => comm.reduce_scatter(op, send, recv),
            (Test::ReduceScatter, Place::In) => comm.reduce_scatter_in_place(op, recv),
            (Test::AllGather, Place::Out) => comm.all_gather(send, recv),
            (Test::AllGather, Place::In) => comm.all_gather_in_place(recv),
            (Test::Broadcast, _) => comm.broadcast(root, recv),
            (Test::Reduce, Place::Out) => comm.reduce_to(op, root, send, recv),
            (Test::Reduce, Place::In) => comm.reduce(op, root, recv),
            (Test::AllToAll, _) => comm.all_to_all(send, recv),
            (Test::Gather, _) => comm.gather(root, send, recv),
            (Test::Scatter, _) => comm.scatter(root, send, recv),
            (Test::SendRecv, _) => shift(comm, send, recv),
            (Test::Barrier, _) => comm.barrier(),
        }
    }
    /// Bytes of one block.
    fn block(&self) -> usize {
        self.cell.count as usize * self.cell.dtype.size()
    }
    fn is_root(&self) -> bool {
        self.cell.root == Some(self.comm.rank())
    }
    /// The rank before this one.
    fn previous(&self) -> Rank {
        (self.comm.rank() + self.comm.nranks() - 1) % self.comm.nranks()
    }
}

/// Every rank sends to the next and receives from the previous one.
fn shift<T: Element>(comm: &Communicator, send: &[T], recv: &mut [T]) -> rondel::Result<()> {
    let (rank, n) = (comm.rank(), comm.nranks());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let mut group = Group::new();
    group.send(comm, next, send)?;
    group.recv(comm, previous, recv)?;
    group.end()
}

impl Subject for Operation<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let done = match self.cell.dtype {
            DataType::I8 => self.run_as::<i8>(),
            DataType::U8 => self.run_as::<u8>(),
            DataType::I16 => self.run_as::<i16>(),
            DataType::U16 => self.run_as::<u16>(),
            DataType::I32 => self.run_as::<i32>(),
            DataType::U32 => self.run_as::<u32>(),
            DataType::I64 => self.run_as::<i64>(),
            DataType::U64 => self.run_as::<u64>(),
            DataType::Bool => self.run_as::<bool>(),
            DataType::F16 => self.run_as::<f16>(),
            DataType::Bf16 => self.run_as::<bf16>(),
            DataType::F32 => self.run_as::<f32>(),
            DataType::F64 => self.run_as::<f64>(),
            DataType::F8E4M3 => self.run_as::<F8E4M3>(),
            DataType::F8E5M2 => self.run_as::<F8E5M2>(),
        };
        Ok(done?)
    }
    fn touch(&mut self) {
        match self.place {
            Place::Out => self.input.rewrite(),
            Place::In => self.output.rewrite(),
        }
        self.output.reread();
    }
    fn fill(&mut self) {
        let (rank, block, is_root) = (self.comm.rank(), self.block(), self.is_root());
        self.output.bytes_mut().fill(self.pattern.poison());
        let input = match self.place {
            Place::Out => self.input.bytes_mut(),
            Place::In => self.output.bytes_mut(),
        };
        match (self.cell.test, self.place) {
            (Test::AllGather, Place::In) => {
                let own = rank as usize * block;
                self.pattern.fill(&mut input[own..own + block], rank, 0, 0);
            }
            (Test::Broadcast, _) if !is_root => {}
            (Test::AllToAll | Test::Scatter, _) => {
                for (to, part) in (0..).zip(input.chunks_mut(block)) {
                    self.pattern.fill(part, rank, to, 0);
                }
            }
            _ => self.pattern.fill(input, rank, 0, 0),
        }
    }
    fn wrong(&mut self) -> u64 {
        let (rank, block, count) = (self.comm.rank(), self.block(), self.cell.count as usize);
        let root = self.cell.root.unwrap_or(0);
        let (pattern, output) = (&self.pattern, self.output.bytes());
        let from_all = |about: u32| -> u64 {
            let blocks = (0..).zip(output.chunks(block.max(1)));
            blocks.map(|(from, part)| pattern.differing(part, from, about, 0)).sum()
        };
        match (self.cell.test, self.place) {
            (Test::AllReduce, _) => pattern.miscombined(output, 0),
            (Test::Reduce, _) if self.is_root() => pattern.miscombined(output, 0),
            (Test::ReduceScatter, Place::Out) => pattern.miscombined(output, rank as usize * count),
            (Test::ReduceScatter, Place::In) => {
                let own = rank as usize * block;
                pattern.miscombined(&output[own..own + block], rank as usize * count)
            }
            (Test::AllGather, _) => from_all(0),
            (Test::AllToAll, _) => from_all(rank),
            (Test::Gather, _) if self.is_root() => from_all(0),
            (Test::Broadcast, _) => pattern.differing(output, root, 0, 0),
            (Test::Scatter, _) => pattern.differing(output, root, rank, 0),
            (Test::SendRecv, _) => pattern.differing(output, self.previous(), 0, 0),
            (Test::Reduce | Test::Gather | Test::Barrier, _) => 0,
        }
    }
    fn settle(&mut self) {
        if self.place == Place::In {
            self.output.bytes_mut().fill(0);
        }
    }
}
