use crate::plan::partition::{Cut, Partition, Piece};
use crate::plan::{Alias, Builder, Collective, Layout, Plan, Shape, Span};
use proptest::prelude::*;

/// A plan of rank 0 with scratch for the whole input in one run, and for its first chunk in another.
fn plan(collective: Collective, nranks: u32, nchunks: u32, splittable: bool) -> Plan {
    let mut b = Builder::new(collective, 0, &Shape::flat(nranks), nchunks, Alias::None, false);
    let chunks = collective.input(0, &Shape::flat(nranks)).chunks(nchunks);
    b.scratch_like(Span::input(0, chunks));
    b.scratch_like(Span::input(0, 1));
    if !splittable {
        b.unsplittable();
    }
    b.build()
}

fn cut(count: u64, element: u32) -> Cut {
    Cut { count, element, channels: 1, round_bytes: 1 << 20, slice_bytes: 1 << 16 }
}

fn scratch(chunk: u32, len: u32) -> Span {
    Span { buf: crate::plan::Buf::Scratch, chunk, len }
}

#[test]
fn few_elements_are_not_starved_by_padding() {
    let plan = plan(Collective::AllReduce, 8, 8, true);
    let piece = Partition::new(&plan, cut(8, 4)).piece(0, 0);
    assert_eq!(piece, Piece { first: 0, len: 8, chunk: 1, stride: 8 });
    assert_eq!(Partition::new(&plan, cut(1000, 4)).piece(0, 0).chunk, 128, "125 up to whole lines");
    assert_eq!(Partition::new(&plan, cut(1000, 12)).piece(0, 0).chunk, 128, "a line of these is 192 bytes");
    assert_eq!(Partition::new(&plan, cut(4000, 3)).piece(0, 0).chunk, 512, "500 up to 192 bytes");
}

#[test]
fn a_count_of_zero_has_one_empty_round() {
    let plan = plan(Collective::AllReduce, 4, 4, true);
    let partition = Partition::new(&plan, Cut { channels: 4, ..cut(0, 4) });
    assert_eq!((partition.rounds(), partition.channels(), partition.slices()), (1, 1, 1));
    assert_eq!(partition.bytes(&plan, &partition.piece(0, 0), Span::input(0, 4), 0), 0..0);
    assert_eq!(partition.scratch_bytes(&plan), 0);
}

#[test]
fn rounds_are_even_and_bounded() {
    let plan = plan(Collective::AllReduce, 4, 4, true);
    let partition = Partition::new(&plan, cut((2 << 20) / 4 + 1, 4));
    assert_eq!(partition.rounds(), 3);
    assert!(partition.piece(0, 0).len.abs_diff(partition.piece(2, 0).len) < 64);

    let blocked = self::plan(Collective::AllToAll, 4, 1, true);
    let partition = Partition::new(&blocked, cut(1 << 20, 4));
    assert_eq!(partition.piece(0, 0).len * 4 * 4, 1 << 20, "a round covers parts of all four blocks");
}

#[test]
fn ranks_with_other_layouts_agree() {
    let shape = Shape::flat(5).with_root(3);
    let of = |rank| Builder::new(Collective::Gather, rank, &shape, 1, Alias::None, false).build();
    let partitions: Vec<_> = (0..5).map(|rank| Partition::new(&of(rank), cut(1_000_001, 3))).collect();
    assert!(partitions.iter().all(|partition| *partition == partitions[0]));
    assert!(partitions[0].rounds() > 1);
}

#[test]
fn an_unsplittable_plan_is_not_cut() {
    let plan = plan(Collective::AllGather, 4, 1, false);
    let partition = Partition::new(&plan, Cut { channels: 4, ..cut(10_000_000, 8) });
    assert_eq!((partition.rounds(), partition.channels(), partition.slices()), (1, 1, 1));
    let bytes = partition.bytes(&plan, &partition.piece(0, 0), Span::output(1, 2), 0);
    assert_eq!(bytes, 80_000_000..240_000_000);
}

#[test]
fn huge_counts_do_not_overflow() {
    for collective in [Collective::AllReduce, Collective::AllToAll] {
        for splittable in [true, false] {
            let plan = plan(collective, 1000, 1000, splittable);
            let partition = Partition::new(&plan, Cut { channels: 64, ..cut(1 << 57, 8) });
            let piece = partition.piece(partition.rounds() - 1, partition.channels() - 1);
            assert!(piece.first + piece.len <= 1 << 57);
            partition.bytes(&plan, &piece, Span::input(999, 1), partition.slices() - 1);
            partition.bytes(&plan, &piece, Span::input(0, 1000), partition.slices() - 1);
            partition.bytes(&plan, &piece, scratch(999, 1), partition.slices() - 1);
            partition.scratch_bytes(&plan);
        }
    }
}

fn any_cut() -> impl Strategy<Value = Cut> {
    let element = prop::sample::select(vec![1u32, 2, 3, 4, 8, 12, 16]);
    let count = prop_oneof![0..40u64, 0..20_000u64];
    (count, element, 1..5u32, 0..20_000u64, 0..2_000u64).prop_map(
        |(count, element, channels, round_bytes, slice_bytes)| Cut {
            count,
            element,
            channels,
            round_bytes,
            slice_bytes,
        },
    )
}

fn pieces(partition: &Partition) -> impl Iterator<Item = Piece> + '_ {
    (0..partition.rounds())
        .flat_map(move |round| (0..partition.channels()).map(move |channel| partition.piece(round, channel)))
}

proptest! {
    /// Pieces follow each other; in each, slices tile spans and chunks tile the piece, of every block.
    #[test]
    fn everything_is_covered_once(cut in any_cut(), n in 1..9u32, nchunks in 1..12u32, blocked: bool) {
        let collective = if blocked { Collective::ReduceScatter } else { Collective::AllReduce };
        let plan = plan(collective, n, nchunks, true);
        let partition = Partition::new(&plan, cut);
        let element = u64::from(cut.element);
        let chunks = plan.input().chunks(plan.nchunks());
        let line = 64 / (1..=64).rev().find(|d| 64 % d == 0 && element % d == 0).unwrap();
        let mut next = 0;
        for piece in pieces(&partition) {
            prop_assert_eq!(piece.first, next);
            next += piece.len;
            prop_assert!(piece.len <= partition.piece(0, 0).len);
            prop_assert!(piece.len == 0 || piece.first % line == 0);
            let mut covered = 0;
            for chunk in 0..chunks {
                let block = if blocked { u64::from(chunk) * cut.count } else { covered };
                let start = (block + piece.first) * element;
                let mut at = start;
                for slice in 0..partition.slices() {
                    let bytes = partition.bytes(&plan, &piece, Span::input(chunk, 1), slice);
                    if !bytes.is_empty() {
                        prop_assert_eq!(bytes.start, at);
                        prop_assert_eq!(bytes.end % element, 0);
                        at = bytes.end;
                    }
                }
                covered += (at - start) / element;
                prop_assert!(!blocked || at - start == piece.len * element);
            }
            prop_assert!(blocked || covered == piece.len);
        }
        prop_assert_eq!(next, cut.count);
    }

    /// A round stays within its bytes, a slice near its own.
    #[test]
    fn sizes_are_bounded(cut in any_cut(), n in 1..9u32, blocked: bool) {
        let collective = if blocked { Collective::AllToAll } else { Collective::AllReduce };
        let plan = plan(collective, n, n, true);
        let partition = Partition::new(&plan, cut);
        let blocks = if blocked { u64::from(n) } else { 1 };
        let round: u64 = (0..partition.channels()).map(|channel| partition.piece(0, channel).len).sum();
        let least = 64 * u64::from(cut.element) * blocks;
        prop_assert!(round * u64::from(cut.element) * blocks <= cut.round_bytes.max(least));
        let slice = partition.bytes(&plan, &partition.piece(0, 0), Span::input(0, 1), 0);
        prop_assert!(slice.end - slice.start <= cut.slice_bytes.max(64) + 64 * u64::from(cut.element));
    }

    /// Scratch has the slices of what it is like, without overlap and within the set; several chunks are the
    /// concatenation of each.
    #[test]
    fn scratch_has_the_extent_of_its_logical_chunks(
        cut in any_cut(), n in 1..9u32, nchunks in 1..12u32, blocked: bool, start: u32, len: u32,
    ) {
        let collective = if blocked { Collective::ReduceScatter } else { Collective::AllReduce };
        let plan = plan(collective, n, nchunks, true);
        let partition = Partition::new(&plan, cut);
        let chunks = plan.input().chunks(plan.nchunks());
        let first = start % chunks;
        let len = 1 + len % (chunks - first);
        let size = partition.scratch_bytes(&plan);
        let is_flat = plan.input() == Layout::Flat;
        for piece in pieces(&partition) {
            for slice in 0..partition.slices() {
                let bytes = partition.bytes(&plan, &piece, scratch(first, len), slice);
                prop_assert!(bytes.end <= size);
                if is_flat {
                    let like = partition.bytes(&plan, &piece, Span::input(first, len), slice);
                    prop_assert_eq!(bytes.end - bytes.start, like.end - like.start);
                }
            }
            let whole = |span| {
                let last = partition.bytes(&plan, &piece, span, partition.slices() - 1);
                partition.bytes(&plan, &piece, span, 0).start..last.end
            };
            let mut next = whole(scratch(first, len)).start;
            for chunk in first..first + len {
                let bytes = whole(scratch(chunk, 1));
                prop_assert!(bytes.start == next || bytes.is_empty());
                if !bytes.is_empty() {
                    next = bytes.end;
                }
            }
            prop_assert_eq!(next, whole(scratch(first, len)).end);
            prop_assert!(whole(scratch(chunks, 1)).start >= whole(scratch(0, chunks)).end);
        }
    }
}
