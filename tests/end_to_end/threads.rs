//! Jobs whose ranks are threads of this process.

use rondel::{Communicator, Rendezvous, bootstrap::UniqueId, comm::Builder, env::Env};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Barrier,
    time::Duration,
};

/// Settings that do not depend on the environment of whoever runs the tests.
pub(crate) fn builder() -> Builder {
    let env = Env::parse([]).expect("no variables are no error");
    Communicator::builder().env(env).timeout(Duration::from_secs(60)).join_timeout(Duration::from_secs(30))
}

/// The transports that ranks of one host have; what is said of one holds of all.
pub(crate) const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// Runs `part` on every rank of a job of its own, over one transport; what each rank returned, by rank.
pub(crate) fn ranks_over<R: Send>(
    transport: &str,
    nranks: u32,
    part: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    ranks_with(nranks, builder().transport(transport), |comm| {
        assert!(nranks == 1 || comm.transport() == transport, "over {}", comm.transport());
        part(comm)
    })
}

/// Runs `part` on every rank of a job of its own, over the best transport; what each rank returned, by rank.
pub(crate) fn ranks<R: Send>(nranks: u32, part: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    ranks_with(nranks, builder(), part)
}

/// The same, and no rank leaves before all are through, be it with a panic. For parts that wait for ranks that do nothing.
pub(crate) fn ranks_that_stay<R: Send>(
    nranks: u32,
    builder: Builder,
    part: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let over = Barrier::new(nranks as usize);
    ranks_with(nranks, builder, |comm| {
        let result = catch_unwind(AssertUnwindSafe(|| part(&comm)));
        over.wait();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// As [`ranks`], with other settings.
pub(crate) fn ranks_with<R: Send>(
    nranks: u32,
    builder: Builder,
    part: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let id = UniqueId::generate(None, Some("lo"), None).expect("an id");
    let run = |rank| {
        let rendezvous = Rendezvous::unique_id(&id, rank, nranks).expect("a rank in range");
        part(builder.clone().connect(rendezvous).expect("all ranks are here"))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..nranks).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}
