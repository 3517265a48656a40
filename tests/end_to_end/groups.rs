//! Calls that are started together.

use crate::threads::ranks;
use half::bf16;
use rondel::{Communicator, Error, Group, ReduceOp, plan::Rank};

/// The message number `k` from one rank to another.
fn message(from: Rank, to: Rank, k: usize) -> Vec<u32> {
    (0..(k * 997) % 5000).map(|i| from << 24 | to << 16 | (k + i) as u32 & 0xffff).collect()
}

/// Everybody sends several messages to everybody, itself included. `order` decides in which order the calls are added;
/// only messages between the same two ranks keep theirs.
fn exchange(comm: &Communicator, order: impl Fn(usize) -> usize) {
    const MESSAGES: usize = 12;
    let (n, me) = (comm.nranks() as usize, comm.rank());
    let peer = |turn: usize| (order(turn) % n) as Rank;
    let sent: Vec<Vec<Vec<u32>>> =
        (0..n).map(|turn| (0..MESSAGES).map(|k| message(me, peer(turn), k)).collect()).collect();
    let mut received: Vec<Vec<Vec<u32>>> = (0..n)
        .map(|turn| (0..MESSAGES).map(|k| vec![u32::MAX; message(peer(turn), me, k).len()]).collect())
        .collect();
    let mut group = Group::new();
    for (turn, (sent, received)) in sent.iter().zip(&mut received).enumerate() {
        for (out, into) in sent.iter().zip(received) {
            group.send(comm, peer(turn), out).unwrap();
            group.recv(comm, peer(turn), into).unwrap();
        }
    }
    group.end().unwrap();
    for (turn, messages) in received.iter().enumerate() {
        for (k, got) in messages.iter().enumerate() {
            assert_eq!(*got, message(peer(turn), me, k), "message {k} from rank {} to {me}", peer(turn));
        }
    }
}

#[test]
fn sends_and_receives_in_any_order() {
    for nranks in [1, 2, 5] {
        ranks(nranks, |comm| {
            let (n, me) = (nranks as usize, comm.rank() as usize);
            exchange(&comm, |turn| turn);
            exchange(&comm, |turn| n - 1 - turn);
            exchange(&comm, |turn| turn + me);
        });
    }
}

#[test]
fn receives_first_do_not_lock_up() {
    ranks(2, |comm| {
        let peer = 1 - comm.rank();
        let out = vec![comm.rank() as f64; 1 << 20];
        let mut into = vec![-1.0; 1 << 20];
        let mut group = Group::new();
        group.recv(&comm, peer, &mut into).unwrap();
        group.send(&comm, peer, &out).unwrap();
        group.end().unwrap();
        assert!(into.iter().all(|&element| element == f64::from(peer)));
    });
}

#[test]
fn types_and_collectives_mix() {
    ranks(3, |comm| {
        let (right, left) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        let (bytes, floats) = ([comm.rank() as u8; 3], [bf16::from_f32(comm.rank() as f32); 5]);
        let (mut got_bytes, mut got_floats) = ([0u8; 3], [bf16::ZERO; 5]);
        let mut sums = vec![1i64; 1000];
        let mut group = Group::new();
        group.send(&comm, right, &bytes).unwrap();
        group.all_reduce(&comm, ReduceOp::Sum, &mut sums).unwrap();
        group.send(&comm, right, &floats).unwrap();
        group.recv(&comm, left, &mut got_bytes).unwrap();
        group.recv(&comm, left, &mut got_floats).unwrap();
        group.end().unwrap();
        assert_eq!(got_bytes, [left as u8; 3]);
        assert_eq!(got_floats, [bf16::from_f32(left as f32); 5]);
        assert!(sums.iter().all(|&sum| sum == 3));
    });
}

#[test]
fn two_communicators_in_one_group() {
    ranks(4, |comm| {
        let pairs = comm.split(Some(comm.rank() % 2), 0).unwrap().expect("a color was given");
        let (mut everybody, mut pair) = (vec![1u32; 5000], vec![comm.rank(); 5000]);
        let mut group = Group::new();
        // The order between communicators is free.
        if comm.rank() < 2 {
            group.all_reduce(&comm, ReduceOp::Sum, &mut everybody).unwrap();
            group.all_reduce(&pairs, ReduceOp::Sum, &mut pair).unwrap();
        } else {
            group.all_reduce(&pairs, ReduceOp::Sum, &mut pair).unwrap();
            group.all_reduce(&comm, ReduceOp::Sum, &mut everybody).unwrap();
        }
        group.end().unwrap();
        assert!(everybody.iter().all(|&sum| sum == 4));
        assert!(pair.iter().all(|&sum| sum == 2 * (comm.rank() % 2) + 2));
    });
}

/// What a library would do: collect its own calls, and leave it to its caller when to start them.
fn neighbours<'a>(comm: &'a Communicator, out: &'a [u16], into: &'a mut [u16]) -> Group<'a> {
    let (n, rank) = (comm.nranks(), comm.rank());
    let mut group = Group::new();
    group.send(comm, (rank + 1) % n, out).unwrap();
    group.recv(comm, (rank + n - 1) % n, into).unwrap();
    group
}

#[test]
fn groups_nest() {
    ranks(3, |comm| {
        let out = [comm.rank() as u16; 100];
        let (mut first, mut second) = ([u16::MAX; 100], [u16::MAX; 100]);
        let mut outer = Group::new();
        outer.join(neighbours(&comm, &out, &mut first));
        outer.join(neighbours(&comm, &out, &mut second));
        outer.end().unwrap();
        let left = ((comm.rank() + 2) % 3) as u16;
        assert_eq!((first, second), ([left; 100], [left; 100]));
    });
}

#[test]
fn an_error_leaves_a_clean_state() {
    ranks(2, |comm| {
        let out = [1u8; 10];
        let (mut into, mut more) = ([0u8; 10], [0u8; 10]);
        let mut group = Group::new();
        group.send(&comm, 1 - comm.rank(), &out).unwrap();
        let refused = group.recv(&comm, 2, &mut into).unwrap_err();
        assert!(matches!(refused, Error::Usage(_)), "{refused}");
        drop(group);

        let mut group = Group::new();
        group.send(&comm, comm.rank(), &out).unwrap();
        let lonely = group.end().unwrap_err();
        assert!(lonely.to_string().contains("needs its receive in the same group"), "{lonely}");

        let mut group = Group::new();
        group.send(&comm, comm.rank(), &out).unwrap();
        group.recv(&comm, comm.rank(), &mut more[..5]).unwrap();
        let uneven = group.end().unwrap_err();
        assert!(uneven.to_string().contains("10 x uint8 to itself and receives 5 x uint8"), "{uneven}");

        exchange(&comm, |turn| turn);
        let mut sums = [1u32; 10];
        comm.all_reduce(ReduceOp::Sum, &mut sums).unwrap();
        assert_eq!(sums, [2; 10]);
    });
}
