//! Calls and settings that are wrong: what was given, what was expected, and what to do. The communicator stays healthy.

use crate::threads::{builder, ranks};
use rondel::{
    Communicator, DataType, Error, Group, ReduceOp, Rendezvous, Result, comm::RawCall, env::Env,
    plan::Collective,
};

/// The call is refused in these words, on this rank alone, and the next call works.
fn refused<T: std::fmt::Debug>(outcome: Result<T>, words: &[&str]) {
    match outcome {
        Err(error @ (Error::Usage(_) | Error::Setup(_))) => {
            let said = error.to_string();
            let missing: Vec<_> = words.iter().filter(|word| !said.contains(**word)).collect();
            assert!(missing.is_empty(), "{said:?} does not say {missing:?}");
        }
        other => panic!("expected to be refused with {words:?}, got {other:?}"),
    }
}

fn still_works(comm: &Communicator) {
    let mut buffer = [1u32; 100];
    comm.all_reduce(ReduceOp::Sum, &mut buffer).unwrap();
    assert_eq!(buffer, [comm.nranks(); 100]);
}

#[test]
fn ranks_out_of_range() {
    ranks(2, |comm| {
        let range = ["out of range", "2 ranks, 0 to 1"];
        let with = |given| [given, range[0], range[1]];
        if comm.rank() == 1 {
            let (send, mut recv) = ([1u8; 4], [0u8; 8]);
            refused(comm.broadcast(2, &mut recv), &with("broadcast: root 2"));
            refused(comm.reduce(ReduceOp::Sum, 7, &mut recv), &with("reduce: root 7"));
            refused(comm.reduce_to(ReduceOp::Sum, 2, &send, &mut recv), &with("reduce: root 2"));
            refused(comm.gather(2, &send, &mut recv), &with("gather: root 2"));
            refused(comm.scatter(u32::MAX, &send, &mut recv), &with("scatter: root 4294967295"));
            refused(comm.send(2, &send), &with("send: peer 2"));
            refused(comm.recv(3, &mut recv), &with("recv: peer 3"));
            refused(comm.send(1, &send), &["send: rank 1 names itself", "one group"]);
            refused(comm.start_broadcast(2, vec![0u8; 3]), &with("broadcast: root 2"));
            refused(Group::new().send(&comm, 2, &send), &with("send: peer 2"));
            let scoped = comm.scope(|s| s.broadcast(9, &mut recv)).unwrap();
            refused(scoped, &with("broadcast: root 9"));
        }
        still_works(&comm);
    });
}

#[test]
fn lengths_that_do_not_fit() {
    ranks(2, |comm| {
        if comm.rank() == 0 {
            let (send, mut recv) = ([1u8; 5], [0u8; 8]);
            refused(
                comm.all_reduce_to(ReduceOp::Sum, &send, &mut recv),
                &["all_reduce", "recv has 8", "send has 5"],
            );
            refused(
                comm.all_gather(&send, &mut recv),
                &["all_gather", "recv has 8", "send has 5", "2 x 5 = 10"],
            );
            refused(
                comm.reduce_scatter(ReduceOp::Sum, &send, &mut recv),
                &["reduce_scatter", "send has 5", "recv has 8", "2 x 8 = 16"],
            );
            refused(comm.all_to_all(&send, &mut recv), &["all_to_all", "recv has 8", "send has 5"]);
            let mut odd = [0u8; 5];
            refused(
                comm.all_to_all(&send, &mut odd),
                &["all_to_all", "5 elements", "2 equal blocks", "multiple of 2"],
            );
            refused(comm.all_gather_in_place(&mut odd), &["all_gather", "5 elements", "2 equal blocks"]);
            refused(
                comm.reduce_scatter_in_place(ReduceOp::Sum, &mut odd),
                &["reduce_scatter", "5 elements", "2 equal blocks"],
            );
            refused(comm.gather(0, &send, &mut recv), &["gather", "recv has 8", "2 x 5 = 10"]);
            refused(comm.scatter(0, &send, &mut recv), &["scatter", "send has 5", "2 x 8 = 16"]);
            refused(
                comm.reduce_to(ReduceOp::Sum, 0, &send, &mut recv),
                &["reduce", "recv has 8", "send has 5"],
            );
        }
        still_works(&comm);
    });
}

#[test]
fn buffers_that_overlap_by_accident() {
    ranks(2, |comm| {
        let mut memory = [1u64; 64];
        let start = memory.as_mut_ptr();
        let at = |element: usize| start.wrapping_add(element).cast::<u8>();
        let (rank, count) = (comm.rank() as usize, 8);
        let raw = |collective: Collective, send: usize, recv: usize| RawCall {
            collective,
            dtype: DataType::U64,
            op: collective.reduces().then_some(ReduceOp::Sum),
            count,
            root: 0,
            send: at(send),
            recv: at(recv),
        };
        // SAFETY: everything lies within `memory`, which nobody else touches.
        let call = |collective, send, recv| unsafe { comm.call(raw(collective, send, recv)) };
        let same = "the two buffers to be the same";
        refused(call(Collective::AllReduce, 0, 7), &["all_reduce", "overlap", "64 bytes", same]);
        refused(call(Collective::AllReduce, 7, 0), &["all_reduce", "overlap", same]);
        let block = "block `rank` of the receive buffer";
        refused(call(Collective::AllGather, (1 - rank) * count, 0), &["all_gather", "overlap", block]);
        let block = "block `rank` of the send buffer";
        refused(
            call(Collective::ReduceScatter, 0, (1 - rank) * count),
            &["reduce_scatter", "overlap", block],
        );
        refused(call(Collective::AllToAll, 0, 0), &["all_to_all", "overlap", "two buffers"]);
        call(Collective::AllGather, rank * count, 0).unwrap();
        call(Collective::ReduceScatter, 0, rank * count).unwrap();
        call(Collective::AllReduce, 0, 0).unwrap();
        call(Collective::AllReduce, 0, 8).unwrap();
        still_works(&comm);
    });
}

#[test]
fn raw_calls_without_sense() {
    ranks(2, |comm| {
        let mut memory = [1u64; 8];
        let good = RawCall {
            collective: Collective::AllReduce,
            dtype: DataType::U64,
            op: Some(ReduceOp::Sum),
            count: 8,
            root: 0,
            send: memory.as_ptr().cast(),
            recv: memory.as_mut_ptr().cast(),
        };
        // SAFETY: a call that is wrong touches nothing; the good one's buffer is there.
        let call = |raw| unsafe { comm.call(raw) };
        if comm.rank() == 0 {
            refused(call(RawCall { op: None, ..good }), &["all_reduce", "needs a reduction operator"]);
            refused(
                call(RawCall { count: usize::MAX / 4, ..good }),
                &["all_reduce", "uint64", "do not fit into the address space"],
            );
            refused(
                call(RawCall { send: std::ptr::null(), ..good }),
                &["all_reduce", "send buffer is null", "8 elements"],
            );
            refused(
                call(RawCall { recv: std::ptr::null_mut(), ..good }),
                &["all_reduce", "receive buffer is null"],
            );
        }
        call(good).unwrap();
        call(RawCall { count: 0, send: std::ptr::null(), recv: std::ptr::null_mut(), ..good }).unwrap();
        still_works(&comm);
    });
}

#[test]
fn operators_that_a_type_has_not() {
    ranks(2, |comm| {
        if comm.rank() == 0 {
            refused(comm.all_reduce(ReduceOp::Avg, &mut [true; 4]), &["all_reduce", "avg", "bool"]);
            let scaled = ReduceOp::PreMulSum(rondel::Scalar::Float(0.5));
            refused(comm.all_reduce(scaled, &mut [1i32; 4]), &["all_reduce", "mulsum:0.5", "int32"]);
        }
        still_works(&comm);
    });
}

#[test]
fn settings_that_nobody_knows() {
    let connect = |builder: rondel::comm::Builder| {
        let rendezvous = Rendezvous::local().unwrap();
        builder.connect(rendezvous)
    };
    refused(connect(builder().algorithm("rings")), &["unknown algorithm \"rings\"", "ring", "tree"]);
    refused(connect(builder().transport("udp")), &["unknown transport \"udp\"", "tcp"]);
    refused(connect(builder().channels(0)), &["channels", "0", "1 to 16"]);
    refused(connect(builder().channels(1000)), &["channels", "1000", "1 to 16"]);
    let setup = |rendezvous: Result<Rendezvous, rondel::error::SetupError>| {
        rendezvous.map_err(|error| Error::Setup(error.into()))
    };
    refused(setup(Rendezvous::root("127.0.0.1:4000", 0, 0)), &["number of ranks is 0", "expected 1 to"]);
    refused(setup(Rendezvous::root("127.0.0.1:4000", 2, 2)), &["rank 2", "numbered from 0 to 1"]);
    refused(setup(Rendezvous::root("127.0.0.1", 0, 2)), &["127.0.0.1", "host:port"]);
    let env = |name: &str, value: &str| {
        Env::parse([(name.to_owned(), value.to_owned())]).map_err(|error| Error::Setup(error.into()))
    };
    refused(env("RONDEL_CHANNELS", "0"), &["RONDEL_CHANNELS", "\"0\"", "1 to"]);
    refused(env("RONDEL_NRANKS", "0"), &["RONDEL_NRANKS", "\"0\"", "1 to"]);
}
