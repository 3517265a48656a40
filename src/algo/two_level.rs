//! Two levels: what can stay inside a host stays there, and each byte crosses between hosts as rarely as possible.
//!
//! With H hosts of m ranks, the fewest on any host being R: the first R ranks of each host own the R *rails*. A vector
//! of B bytes is cut into R parts, one per rail, and each part again into H chunks.
//!
//! * `all_reduce`: inside each host, a direct reduce-scatter onto the rail owners; along each rail, a ring all-reduce
//!   over one owner per host; inside each host, a direct all-gather from the owners to all its ranks.
//! * `broadcast`, `reduce`: a chain over one leader per host (the root, or its first rank), one-shot inside.
//! * `reduce_scatter`, `all_gather`: of hosts of equal size only, whose R = m rails have H blocks each: direct inside,
//!   ring along the rail, in this or in the opposite order.
//!
//! | collective       | steps, at most | bytes sent inside, per rank     | bytes sent across, per rank |
//! |------------------|------------|---------------------------------|-----------------------------|
//! | `all_reduce`     | 2 + 2(H-1) | owners (R+m-2)/R B, others B    | owners 2(H-1)/H B/R         |
//! | `reduce_scatter` | 1 + (H-1)  | (m-1)/m B                       | (H-1)/H B/m                 |
//! | `all_gather`     | (H-1) + 1  | (m-1)/m B                       | (H-1)/H B/m                 |
//! | `broadcast`      | (H-1) + 1  | leaders (m-1) B                 | leaders B, the last host's 0 |
//! | `reduce`         | 1 + (H-1)  | all but leaders B               | leaders B, the root 0       |
//!
//! (B of reduce_scatter and all_gather: all blocks together.)
//!
//! Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019;
//! the rails of unequal hosts are ours.

use super::{Algorithm, Group, direct, one_shot, ring};
use crate::plan::{Buf, Builder, Collective, Rank, Shape, Span};

pub(super) const TWO_LEVEL: Algorithm = Algorithm { name: "two_level", supports, chunks, build };

fn supports(collective: Collective, shape: &Shape) -> bool {
    let hosts = shape.nhosts();
    let has_levels = hosts > 1 && shape.nranks() > hosts;
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => has_levels,
        Collective::ReduceScatter | Collective::AllGather => has_levels && Levels::of(shape).are_equal(),
        _ => false,
    }
}

fn chunks(collective: Collective, shape: &Shape) -> u32 {
    let levels = Levels::of(shape);
    if collective == Collective::AllReduce { (levels.rails * levels.hosts.len()) as u32 } else { 1 }
}

fn build(b: &mut Builder, collective: Collective, shape: &Shape) {
    let levels = Levels::of(shape);
    match collective {
        Collective::AllReduce => all_reduce(b, &levels),
        Collective::ReduceScatter => reduce_scatter(b, &levels),
        Collective::AllGather => all_gather(b, &levels),
        Collective::Broadcast => broadcast(b, &levels, shape.root),
        Collective::Reduce => reduce(b, &levels, shape.root),
        _ => unreachable!("`supports` says no"),
    }
}

/// A shape as hosts of ranks.
#[derive(Clone, Debug)]
struct Levels {
    /// The ranks of each host, hosts and ranks in the order of the shape.
    hosts: Vec<Vec<Rank>>,
    /// The place of each rank, by rank.
    places: Vec<Place>,
    /// Rails: the fewest ranks of any host.
    rails: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Index of the host.
    host: usize,
    /// Index of the rank among those of its host.
    index: usize,
}

impl Levels {
    fn of(shape: &Shape) -> Self {
        let mut hosts: Vec<Vec<Rank>> = Vec::new();
        let mut met = vec![None; shape.nhosts() as usize];
        let mut places = vec![Place::default(); shape.order.len()];
        for &rank in &shape.order {
            let host = *met[shape.hosts[rank as usize] as usize].get_or_insert_with(|| {
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            places[rank as usize] = Place { host, index: hosts[host].len() };
            hosts[host].push(rank);
        }
        let rails = hosts.iter().map(Vec::len).min().unwrap_or(0);
        Levels { hosts, places, rails }
    }

    fn are_equal(&self) -> bool {
        self.hosts.iter().all(|host| host.len() == self.rails)
    }

    fn place(&self, rank: Rank) -> Place {
        self.places[rank as usize]
    }

    /// The ranks of the host of a rank.
    fn inside(&self, rank: Rank) -> Group {
        Group::new(self.hosts[self.place(rank).host].clone(), rank)
    }

    /// The rank of each host that has the index of this one, which owns a rail.
    fn rail(&self, rank: Rank) -> Group {
        let index = self.place(rank).index;
        Group::new(self.hosts.iter().map(|host| host[index]).collect(), rank)
    }

    /// One rank of each host: the root, or the first one.
    fn leaders(&self, root: Rank) -> Vec<Rank> {
        let root_host = self.place(root).host;
        let leader = |(i, host): (usize, &Vec<Rank>)| if i == root_host { root } else { host[0] };
        self.hosts.iter().enumerate().map(leader).collect()
    }
}

fn all_reduce(b: &mut Builder, levels: &Levels) {
    let rank = b.rank();
    let (inside, rails, nhosts) = (levels.inside(rank), levels.rails, levels.hosts.len() as u32);
    let index_of = |rank| levels.place(rank).index;
    let part = |buf, owner| Span { buf, chunk: index_of(owner) as u32 * nhosts, len: nhosts };
    let owns = |&rank: &Rank| index_of(rank) < rails;

    for owner in inside.others().filter(owns) {
        b.send(owner, part(Buf::Input, owner));
    }
    if owns(&rank) {
        let mut held = part(Buf::Input, rank);
        let sum = part(Buf::Output, rank);
        if inside.len() > 1 {
            one_shot::combine(b, &inside, held, sum, false);
            held = sum;
        }
        let host_of = |rank| levels.place(rank).host as u32;
        ring::all_reduce(b, &levels.rail(rank), |r| held.at(host_of(r)), |r| sum.at(host_of(r)));
    }
    for owner in inside.others().rev().filter(owns) {
        b.recv(owner, part(Buf::Output, owner));
    }
    if owns(&rank) {
        for to in inside.others() {
            b.send(to, part(Buf::Output, rank));
        }
    }
}

/// The blocks of a host are combined in the order in which the ring asks for them.
fn reduce_scatter(b: &mut Builder, levels: &Levels) {
    let rank = b.rank();
    let (inside, rail) = (levels.inside(rank), levels.rail(rank));
    let mut sums = vec![Span::input(0, 1); levels.hosts.len()];
    for distance in 1..=rail.len() {
        let host = levels.place(rail.behind(distance)).host;
        let block = |owner: Rank| Span::input(levels.hosts[host][levels.place(owner).index], 1);
        for to in inside.others() {
            b.send(to, block(to));
        }
        sums[host] = b.scratch_like(block(rank));
        one_shot::combine(b, &inside, block(rank), sums[host], false);
    }
    let sum = |owner| sums[levels.place(owner).host];
    ring::reduce_scatter(b, &rail, sum, |_, owner| sum(owner), Span::output(0, 1));
}

/// A block goes to the next host first and then to the other ranks of this one, in the order of arrival.
fn all_gather(b: &mut Builder, levels: &Levels) {
    let rank = b.rank();
    let (inside, rail) = (levels.inside(rank), levels.rail(rank));
    let input = Span::input(0, 1);
    ring::all_gather(b, &rail, input, |owner| Span::output(owner, 1));
    for distance in 0..rail.len() {
        let owner = rail.behind(distance);
        let held = if distance == 0 { input } else { Span::output(owner, 1) };
        let host = &levels.hosts[levels.place(owner).host];
        direct::all_gather(b, &inside, held, |from| Span::output(host[levels.place(from).index], 1));
    }
    b.copy(input, Span::output(rank, 1), false);
}

fn broadcast(b: &mut Builder, levels: &Levels, root: Rank) {
    let rank = b.rank();
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let held = if rank == root { input } else { output };
    let leaders = levels.leaders(root);
    let leader = leaders[levels.place(rank).host];
    if rank == leader {
        ring::broadcast(b, Group::new(leaders, rank), root, held);
    }
    one_shot::broadcast(b, &levels.inside(rank), leader, held);
    if rank == root {
        b.copy(input, output, false);
    }
}

fn reduce(b: &mut Builder, levels: &Levels, root: Rank) {
    let rank = b.rank();
    let inside = levels.inside(rank);
    let (input, output) = (Span::input(0, 1), Span::output(0, 1));
    let leaders = levels.leaders(root);
    let leader = leaders[levels.place(rank).host];
    if rank != leader {
        return b.send(leader, input);
    }
    let mut held = input;
    if inside.len() > 1 {
        held = b.scratch_like(input);
        one_shot::combine(b, &inside, input, held, false);
    }
    let sum = |b: &mut Builder| match held.buf {
        _ if rank == root => output,
        Buf::Scratch => held,
        Buf::Input | Buf::Output => b.scratch_like(input),
    };
    ring::reduce(b, Group::new(leaders, rank), root, held, sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::traffic::Traffic;

    /// Ranks dealt out to hosts of these sizes, in turn, so that no host's ranks follow each other.
    fn shape(sizes: &[u32]) -> Shape {
        let mut left = sizes.to_vec();
        let mut hosts = Vec::new();
        while left.iter().any(|&ranks| ranks > 0) {
            for (host, ranks) in (0..).zip(&mut left) {
                if *ranks > 0 {
                    hosts.push(host);
                    *ranks -= 1;
                }
            }
        }
        Shape { hosts: hosts.clone().into(), ..Shape::flat(hosts.len() as u32) }
    }

    const SHAPES: &[&[u32]] =
        &[&[2, 1], &[2, 2], &[1, 3], &[3, 2, 4], &[2, 2, 2, 2], &[4, 4], &[1, 1, 5], &[8, 8, 8, 8]];

    #[test]
    fn all_reduce_traffic_is_as_stated() {
        for sizes in SHAPES {
            let shape = shape(sizes);
            let (nhosts, rails) = (sizes.len(), *sizes.iter().min().unwrap() as usize);
            let of = |rank: Rank| {
                let levels = Levels::of(&shape);
                let Place { host, index } = levels.place(rank);
                let m = levels.hosts[host].len();
                if index < rails { (rails + m - 2) * nhosts + 2 * (nhosts - 1) } else { rails * nhosts }
            };
            let expected: Vec<u32> = (0..shape.nranks()).map(|rank| of(rank) as u32).collect();
            let traffic = Traffic::of(&TWO_LEVEL, Collective::AllReduce, &shape);
            assert_eq!(traffic.chunks, expected, "{sizes:?}");
            let steps = 2 + 2 * (nhosts - 1);
            assert!(traffic.steps as usize <= steps, "{sizes:?}: {} steps", traffic.steps);
            assert!(rails == 1 || traffic.steps as usize == steps, "{sizes:?}: {} steps", traffic.steps);
        }
    }

    #[test]
    fn blocks_travel_as_stated() {
        for sizes in SHAPES.iter().filter(|sizes| sizes.iter().all(|&m| m == sizes[0])) {
            let (shape, nhosts, m) = (shape(sizes), sizes.len() as u32, sizes[0]);
            let sent = (m - 1) * nhosts + nhosts - 1;
            for collective in [Collective::ReduceScatter, Collective::AllGather] {
                Traffic::of(&TWO_LEVEL, collective, &shape).assert_all(nhosts, sent, sent);
            }
        }
    }

    #[test]
    fn rooted_traffic_is_as_stated() {
        for sizes in SHAPES {
            let shape = shape(sizes);
            for root in 0..shape.nranks() {
                for collective in [Collective::Broadcast, Collective::Reduce] {
                    let traffic = Traffic::of(&TWO_LEVEL, collective, &shape.clone().with_root(root));
                    assert!(traffic.steps <= sizes.len() as u32, "{sizes:?} root {root}: {traffic:?}");
                    assert_eq!(
                        traffic.chunks.iter().sum::<u32>(),
                        shape.nranks() - 1,
                        "{sizes:?} root {root}"
                    );
                }
            }
        }
    }

    #[test]
    fn only_shapes_of_two_levels_are_supported() {
        let supports = |sizes, collective| supports(collective, &shape(sizes));
        assert!(!supports(&[4], Collective::AllReduce));
        assert!(!supports(&[1, 1, 1], Collective::AllReduce));
        assert!(supports(&[1, 2], Collective::AllReduce));
        assert!(supports(&[2, 2], Collective::AllGather));
        assert!(!supports(&[1, 2], Collective::AllGather));
        assert!(!supports(&[2, 2], Collective::Gather));
    }
}
