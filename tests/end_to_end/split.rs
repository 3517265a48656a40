//! Communicators of some of the ranks.

use crate::threads::ranks;
use rondel::{Communicator, ReduceOp};

/// The ranks of `comm`'s members as the job numbers them, by rank in `comm`.
fn job_ranks(comm: &Communicator, job_rank: u32) -> Vec<u32> {
    let mut all = vec![u32::MAX; comm.nranks() as usize];
    comm.all_gather(&[job_rank], &mut all).unwrap();
    all
}

#[test]
fn keys_order_the_ranks() {
    ranks(6, |comm| {
        let rank = comm.rank();
        let child = comm.split(Some(rank % 2), -(rank as i32)).unwrap().expect("a color was given");
        let expected: Vec<u32> = (0..6).rev().filter(|r| r % 2 == rank % 2).collect();
        assert_eq!(child.nranks(), 3);
        assert_eq!(expected[child.rank() as usize], rank);
        assert_eq!(job_ranks(&child, rank), expected);

        let grandchild = child.split(Some(7), 0).unwrap().expect("a color was given");
        assert_eq!(job_ranks(&grandchild, rank), expected);
        assert_eq!(job_ranks(&comm, rank), (0..6).collect::<Vec<_>>());
    });
}

#[test]
fn ranks_without_a_color_get_none() {
    ranks(4, |comm| {
        let rank = comm.rank();
        let child = comm.split((rank != 1).then_some(5), 0).unwrap();
        assert_eq!(child.is_none(), rank == 1);
        if let Some(child) = child {
            assert_eq!(job_ranks(&child, rank), [0, 2, 3]);
        }
        let alone = comm.split(Some(rank), 0).unwrap().expect("a color was given");
        let mut buffer = [rank; 3];
        alone.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
        assert_eq!((alone.nranks(), buffer), (1, [rank; 3]));
    });
}

#[test]
fn parent_and_children_end_in_any_order() {
    ranks(3, |comm| {
        let rank = comm.rank();
        let early = comm.split(Some(0), 0).unwrap().expect("a color was given");
        let late = comm.split(Some(0), 0).unwrap().expect("a color was given");
        let unused = comm.split(Some(0), 0).unwrap();
        assert_eq!(job_ranks(&early, rank), [0, 1, 2]);
        drop(early);
        assert_eq!(job_ranks(&comm, rank), [0, 1, 2]);
        drop(unused);
        drop(comm);
        assert_eq!(job_ranks(&late, rank), [0, 1, 2]);
    });
}

#[test]
fn many_children_one_after_the_other() {
    ranks(3, |comm| {
        for _ in 0..30 {
            let child = comm.split(Some(0), 0).unwrap().expect("a color was given");
            assert_eq!(job_ranks(&child, comm.rank()), [0, 1, 2]);
        }
        let lanes = comm.stats().lanes;
        assert!(lanes <= 4, "{lanes} lanes of three ranks");
    });
}
