//! Operations on the memory of several ranks, and what they do to it when they are done one after the other.

use crate::{cases::Random, simulation::WORLD};
use rondel::{
    DataType, ReduceOp,
    engine::{Submission, call::Call},
    plan::{Alias, Collective, Layout, Rank, Shape},
};

/// Elements of each rank's memory, all of which programs may use.
pub(crate) const ARENA: usize = 600;
/// Most elements of a block.
pub(crate) const COUNT: usize = 24;

/// What one rank does in an operation. Offsets and lengths are in elements of its arena.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Rank of the job.
    pub(crate) rank: usize,
    collective: Collective,
    /// The root; of a send or receive, the peer.
    root: Rank,
    alias: Alias,
    input: Range,
    output: Range,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    len: usize,
}

impl Range {
    fn overlaps(self, other: Range) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
    fn of(self, arena: &[i64]) -> &[i64] {
        &arena[self.start..self.start + self.len]
    }
}

/// One operation of all its ranks. `parts` are in the order of the communicator, those of a send and its receive in this one.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) team: usize,
    op: ReduceOp,
    count: usize,
    pub(crate) parts: Vec<Part>,
}

impl Step {
    fn is_point_to_point(&self) -> bool {
        self.parts[0].collective == Collective::Send
    }

    /// Whether the order of the two matters: on any rank's memory, or to the matching of messages.
    fn is_ordered_with(&self, other: &Step) -> bool {
        let same_kind = match (self.is_point_to_point(), other.is_point_to_point()) {
            (false, false) => true,
            (true, true) => {
                self.parts[0].rank == other.parts[0].rank && self.parts[1].rank == other.parts[1].rank
            }
            _ => false,
        };
        self.team == other.team && same_kind
            || self.parts.iter().any(|a| other.parts.iter().any(|b| a.rank == b.rank && a.clashes(b)))
    }

    /// What it does to everybody's memory.
    pub(crate) fn apply(&self, arenas: &mut [Vec<i64>]) {
        let inputs: Vec<Vec<i64>> =
            self.parts.iter().map(|part| part.input.of(&arenas[part.rank]).to_vec()).collect();
        let combine = |at: usize| {
            let values = inputs.iter().map(|input| input[at]);
            match self.op {
                ReduceOp::Max => values.max(),
                ReduceOp::Min => values.min(),
                _ => values.reduce(i64::wrapping_add),
            }
            .expect("somebody takes part")
        };
        let root = self.parts[0].root as usize;
        for (rank, part) in self.parts.iter().enumerate() {
            for k in 0..part.output.len {
                let (block, within) = (k / self.count, k % self.count);
                arenas[part.rank][part.output.start + k] = match part.collective {
                    Collective::AllReduce | Collective::Reduce => combine(k),
                    Collective::ReduceScatter => combine(rank * self.count + k),
                    Collective::AllGather | Collective::Gather => inputs[block][within],
                    Collective::Broadcast => inputs[root][k],
                    Collective::AllToAll => inputs[block][rank * self.count + within],
                    Collective::Scatter => inputs[root][rank * self.count + k],
                    Collective::Recv => inputs[0][k],
                    Collective::Barrier | Collective::Send => unreachable!("they have no output"),
                };
            }
        }
    }
}

impl Part {
    fn clashes(&self, other: &Part) -> bool {
        let extents =
            |part: &Part| [(part.input, matches!(part.alias, Alias::OutputAt(_))), (part.output, true)];
        let ours = extents(self);
        let theirs = extents(other);
        ours.iter().any(|a| theirs.iter().any(|b| (a.1 || b.1) && a.0.overlaps(b.0)))
    }

    pub(crate) fn submission(&self, step: &Step, nranks: u32, arena: &mut [i64]) -> Submission {
        let base = arena.as_mut_ptr();
        let at = |range: Range| base.wrapping_add(range.start).cast::<u8>();
        let absent = std::ptr::null_mut();
        let has = |layout| layout != Layout::Absent;
        let rooted = Shape::flat(nranks).with_root(self.root);
        let me = step.parts.iter().position(|part| part.rank == self.rank).expect("its own part") as Rank;
        let (input, output) = (self.collective.input(me, &rooted), self.collective.output(me, &rooted));
        Submission {
            call: Call {
                seq: 0,
                collective: self.collective,
                dtype: DataType::I64,
                op: self.collective.reduces().then_some(step.op),
                count: step.count as u64,
                root: self.root,
            },
            reduction: step.op.reduction(DataType::I64, nranks).expect("defined for integers"),
            input: if has(input) { at(self.input) } else { absent },
            output: if has(output) { at(self.output) } else { absent },
            alias: self.alias,
            timeout: None,
        }
    }
}

pub(crate) fn step(random: &mut Random, teams: &[Vec<Rank>]) -> Step {
    use Collective::*;
    let team = if random.chance(40) { WORLD } else { random.below(teams.len()) };
    let members = &teams[team];
    let count = 1 + random.below(COUNT);
    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][random.below(3)];
    let n = members.len();
    if random.chance(30) {
        let from = random.below(n);
        let to = (from + 1 + random.below(n - 1)) % n;
        let range = |random: &mut Random| Range { start: random.below(ARENA - COUNT), len: count };
        let none = Range { start: 0, len: 0 };
        let part = |rank: usize, collective, peer: usize, input, output| Part {
            rank: members[rank] as usize,
            collective,
            root: peer as Rank,
            alias: Alias::None,
            input,
            output,
        };
        let parts =
            vec![part(from, Send, to, range(random), none), part(to, Recv, from, none, range(random))];
        return Step { team, op, count, parts };
    }
    let all: Vec<Collective> = Collective::of_all_ranks().collect();
    let collective = all[random.below(all.len())];
    let root = if collective.has_root() { random.below(n) as Rank } else { 0 };
    let shape = Shape::flat(n as u32).with_root(root);
    let part = |rank: usize| place(random, members[rank] as usize, rank as Rank, collective, &shape, count);
    let parts = (0..n).map(part).collect();
    Step { team, op, count, parts }
}

/// Where a rank's buffers of a collective lie.
fn place(
    random: &mut Random,
    of_job: usize,
    rank: Rank,
    collective: Collective,
    shape: &Shape,
    count: usize,
) -> Part {
    let elements = |layout| match layout {
        Layout::Absent => 0,
        Layout::Flat => count,
        Layout::Blocked(blocks) => blocks as usize * count,
    };
    let lens = [elements(collective.input(rank, shape)), elements(collective.output(rank, shape))];
    let alias = collective.in_place(rank, shape).filter(|_| random.chance(50)).unwrap_or(Alias::None);
    let mut any = |len: usize| Range { start: random.below(ARENA - len), len };
    let (input, output) = loop {
        let (mut input, mut output) = (any(lens[0]), any(lens[1]));
        match alias {
            Alias::None if input.overlaps(output) => continue,
            Alias::None => {}
            Alias::InputAt(block) => input.start = output.start + block as usize * count,
            Alias::OutputAt(block) => output.start = input.start + block as usize * count,
        }
        break (input, output);
    };
    Part { rank: of_job, collective, root: shape.root, alias, input, output }
}

/// One of the orders in which a rank may begin its parts: only what does not depend on each other changes places.
pub(crate) fn order(random: &mut Random, rank: usize, steps: &[Step]) -> Vec<(usize, usize)> {
    let part = |step: &Step| step.parts.iter().position(|part| part.rank == rank);
    let mut order: Vec<(usize, usize)> =
        steps.iter().enumerate().filter_map(|(k, step)| part(step).map(|part| (k, part))).collect();
    for _ in 0..order.len() * 3 {
        let at = random.below(order.len().max(2) - 1);
        if let Some(&[(a, _), (b, _)]) = order.get(at..at + 2)
            && !steps[a].is_ordered_with(&steps[b])
        {
            order.swap(at, at + 1);
        }
    }
    order
}
