//! The buffers of a call on every rank, filled so that each result is known.

use rondel::{
    DataType, ReduceOp,
    engine::{Submission, call::Call},
    plan::{Alias, Collective, Layout, Rank, Shape},
};

/// What [`Buffers::spoil`] writes.
const SPOILED: u8 = 0x5b;

/// Every rank's buffers of one call, filled so that each result is known.
pub(crate) struct Buffers {
    collective: Collective,
    shape: Shape,
    dtype: DataType,
    count: usize,
    seed: u64,
    in_place: Vec<Alias>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Buffers {
    pub(crate) fn new(
        collective: Collective,
        shape: &Shape,
        dtype: DataType,
        count: usize,
        in_place: bool,
        seed: u64,
    ) -> Self {
        let ranks = 0..shape.nranks();
        let blocks = |layout| match layout {
            Layout::Absent => 0,
            Layout::Flat => 1,
            Layout::Blocked(blocks) => blocks as usize,
        };
        let mut buffers = Self {
            collective,
            shape: shape.clone(),
            dtype,
            count,
            seed,
            in_place: ranks
                .clone()
                .map(|rank| collective.in_place(rank, shape).filter(|_| in_place).unwrap_or(Alias::None))
                .collect(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        for rank in ranks {
            let elements = blocks(collective.input(rank, shape)) * count;
            let mut input = Vec::with_capacity(elements * dtype.size());
            for k in 0..elements as u64 {
                buffers.encode(buffers.value(rank, k), &mut input);
            }
            let mut output = vec![0xaa; blocks(collective.output(rank, shape)) * count * dtype.size()];
            if let Alias::InputAt(block) = buffers.in_place[rank as usize] {
                let at = block as usize * count * dtype.size();
                output[at..at + input.len()].copy_from_slice(&input);
            }
            buffers.inputs.push(input);
            buffers.outputs.push(output);
        }
        buffers
    }

    /// Small integers, so that every sum is exact in every type.
    fn value(&self, rank: Rank, k: u64) -> i64 {
        ((u64::from(rank) * 7 + k * 3 + self.seed) % 11) as i64
    }

    /// Appends a value in the type of the elements.
    fn encode(&self, value: i64, bytes: &mut Vec<u8>) {
        match self.dtype {
            DataType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DataType::I32 => bytes.extend((value as i32).to_le_bytes()),
            DataType::I64 => bytes.extend(value.to_le_bytes()),
            other => panic!("the tests do not use {other}"),
        }
    }

    pub(crate) fn submission(&mut self, rank: usize, op: ReduceOp) -> Submission {
        let at =
            |buffer: &mut Vec<u8>| if buffer.is_empty() { std::ptr::null_mut() } else { buffer.as_mut_ptr() };
        let (mut input, mut output) = (at(&mut self.inputs[rank]), at(&mut self.outputs[rank]));
        let block = |block: u32| block as usize * self.count * self.dtype.size();
        match self.in_place[rank] {
            Alias::None => {}
            Alias::InputAt(at) => input = output.wrapping_add(block(at)),
            Alias::OutputAt(at) => output = input.wrapping_add(block(at)),
        }
        Submission {
            call: Call {
                seq: 0,
                collective: self.collective,
                dtype: self.dtype,
                op: self.collective.reduces().then_some(op),
                count: self.count as u64,
                root: self.shape.root,
            },
            reduction: op.reduction(self.dtype, self.shape.nranks()).unwrap(),
            input,
            output,
            alias: self.in_place[rank],
            timeout: None,
        }
    }

    pub(crate) fn check(&self, what: &str) {
        self.check_with(what, |value| value);
    }

    /// Every element of every output is what `finish` makes of what the collective promises.
    pub(crate) fn check_with(&self, what: &str, finish: impl Fn(i64) -> i64) {
        for rank in 0..self.shape.nranks() {
            if let Err(wrong) = self.verdict(rank, &finish) {
                panic!("{what}: {wrong}");
            }
        }
    }

    /// The first element of one rank's output that is wrong, in words.
    pub(crate) fn verdict(&self, rank: Rank, finish: impl Fn(i64) -> i64) -> Result<(), String> {
        let n = self.shape.nranks();
        let (root, count) = (self.shape.root, self.count as u64);
        let sum = |k| (0..n).map(|rank| self.value(rank, k)).sum();
        let expect = |k: u64| -> i64 {
            let (block, within) = (k.checked_div(count).unwrap_or(0), k.checked_rem(count).unwrap_or(0));
            match self.collective {
                Collective::AllReduce | Collective::Reduce => sum(k),
                Collective::ReduceScatter => sum(u64::from(rank) * count + k),
                Collective::AllGather | Collective::Gather => self.value(block as Rank, within),
                Collective::Broadcast => self.value(root, k),
                Collective::AllToAll => self.value(block as Rank, u64::from(rank) * count + within),
                Collective::Scatter => self.value(root, u64::from(rank) * count + k),
                other => panic!("the tests do not check {}", other.name()),
            }
        };
        let output = match self.in_place[rank as usize] {
            Alias::OutputAt(block) => {
                let bytes = self.count * self.dtype.size();
                &self.inputs[rank as usize][block as usize * bytes..][..bytes]
            }
            _ => &self.outputs[rank as usize][..],
        };
        let mut expected = Vec::new();
        for (k, element) in output.chunks_exact(self.dtype.size()).enumerate() {
            expected.clear();
            self.encode(finish(expect(k as u64)), &mut expected);
            if element != expected {
                return Err(format!("rank {rank}, element {k}: {element:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }

    /// Writes over all memory of a rank, as its owner may once its operation is over.
    pub(crate) fn spoil(&mut self, rank: usize) {
        self.inputs[rank].fill(SPOILED);
        self.outputs[rank].fill(SPOILED);
    }

    /// Whether nobody has written to the memory of a rank since.
    pub(crate) fn is_spoiled(&self, rank: usize) -> bool {
        self.inputs[rank].iter().chain(&self.outputs[rank]).all(|&byte| byte == SPOILED)
    }
}
