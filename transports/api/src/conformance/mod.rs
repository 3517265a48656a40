//! The conformance suite: the seam's contract as tests, to be run on every transport.
//!
//! A transport's test implements [`Fixture`], which opens endpoints that reach each other, and names it in one line:
//!
//! ```text
//! // tests/conformance.rs; rondel-transport-api is a dev-dependency with the feature "conformance"
//! struct Mesh { /* the hub, the listener, ... */ }
//! impl Fixture for Mesh { /* ... */ }
//! rondel_transport_api::conformance_tests!(Mesh);
//! ```
//!
//! The suite drives all endpoints from one thread, in turn, except where it tests sleeping. Besides what each test
//! asks, every event is checked: it belongs to a post that was accepted by that endpoint, is the only one of its token,
//! comes in the order of its lane and direction, and not after the lane's `Closed`. Every buffer is guarded on both
//! sides, and stays alive until the event of its token.
//!
//! A test that fails says which clause of the contract it stands for.

mod endings;
mod flow;
mod memory;
mod messages;
mod offers;
mod progress;
mod reductions;
mod regions;
mod rig;
mod sleeping;

pub use endings::*;
pub use flow::*;
pub use messages::*;
pub use offers::*;
pub use progress::*;
pub use reductions::*;
pub use regions::*;
pub use sleeping::*;

use crate::{Acceptor, Config, Endpoint, Transport, handshake::Key};
use std::{sync::Arc, time::Duration};

/// What the suite needs in order to test a transport. One is made for each test and lives as long as its endpoints.
pub trait Fixture: Sized {
    /// How long nothing may happen before a test calls it a hang. Set lingers and silences of the transport well below.
    const PATIENCE: Duration = Duration::from_secs(10);
    /// The endpoints may answer `Full` though they have room (a fault decorator does).
    const SPURIOUS_FULL: bool = false;

    /// Prepares a network for one test.
    fn new() -> Self;
    /// Opens `n` endpoints of ranks 0 to `n - 1` that all reach each other. Called once.
    fn endpoints(&self, n: usize) -> Vec<Box<dyn Endpoint>>;
    /// Called before every round of polls: time to advance a virtual clock, or to serve a listener.
    fn tick(&self) {}
    /// Ends an endpoint as the death of its process would: no goodbye.
    fn kill(&self, endpoint: Box<dyn Endpoint>) {
        drop(endpoint);
    }
}

/// Settings for the endpoint of a test: a fixed key, short lingers and silences, and an acceptor without a listener.
///
/// # Panics
/// If the process has no descriptor left.
pub fn test_config(rank: u32) -> Config {
    Config {
        key: Key::from_secret(b"conformance"),
        rank,
        acceptor: Arc::new(Acceptor::new(Vec::new()).expect("an eventfd for the acceptor")),
        linger: Duration::from_millis(500),
        silence: Duration::from_secs(2),
        socket_ifname: None,
        socket_family: None,
        sockets_per_lane: 1,
    }
}

/// Opens `n` endpoints of ranks 0 to `n - 1` on a transport's first port, with [`test_config`].
///
/// # Panics
/// If the transport has no port or does not open it.
pub fn open_all(transport: &dyn Transport, n: usize) -> Vec<Box<dyn Endpoint>> {
    let open = |rank| {
        let config = test_config(rank);
        let ports = transport.discover(&config).expect("the transport can be used here");
        transport.open(&ports[0], &config).expect("the first port opens")
    };
    (0..n as u32).map(open).collect()
}

/// Makes one `#[test]` of each test of the suite, for a [`Fixture`](crate::conformance::Fixture).
///
/// Put it into a module of its own for each fixture.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:ty) => {
        $crate::conformance_tests! { @each $fixture:
            // Clauses 1, 2, 6, 7: messages
            messages_meet_by_count,
            every_size_arrives_at_any_alignment,
            empty_messages_need_no_memory,
            posts_are_full_before_established,
            full_changes_nothing,
            a_lane_needs_no_help_from_other_lanes,
            both_directions_move_at_once,
            sources_may_be_overwritten_after_done,
            mismatched_lengths_and_stamps_are_named,
            one_flush_moves_a_batch,
            small_budgets_make_progress,
            random_traffic_on_a_mesh,
            lanes_are_counted,
            // Sink::Reduce
            reductions_equal_the_kernels,
            reductions_of_long_messages_equal_the_kernels,
            // Clause 10: weak progress
            a_peer_may_stop_polling_after_its_last_done,
            a_peer_may_exit_after_its_last_done,
            early_messages_need_their_sender_no_more,
            // Clauses 3, 4, 9, 11: endings
            a_graceful_close_delivers_what_was_accepted,
            a_graceful_close_needs_no_peer,
            a_close_fails_receives_without_message,
            both_ends_may_close_at_once,
            a_lane_may_close_before_it_is_established,
            a_close_while_connecting_reaches_the_peer,
            an_abort_gives_every_token_one_event,
            a_dead_peer_is_noticed,
            other_lanes_outlive_an_abort,
            // Clause 8: sleeping
            no_wakeup_is_lost_in_a_pingpong,
            no_wakeup_is_lost_with_two_endpoints,
            no_wakeup_is_lost_from_allocated_memory,
            a_close_wakes_a_sleeper,
            // Clause 9 and foreign bytes
            reaching_is_symmetric,
            foreign_offers_are_refused,
            regions_are_told_apart,
            // Clause 12: memory of the endpoint's
            allocated_memory_outlives_everything,
            messages_from_allocated_memory_arrive,
            sources_in_allocated_memory_may_be_overwritten_after_done,
            allocated_memory_is_reduced_from,
            regions_may_go_while_posts_name_them,
            slices_outside_of_their_region_are_plain,
            an_end_never_delivers_what_was_overwritten,
            progress_from_allocated_memory_is_weak,
        }
    };
    (@each $fixture:ty: $($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::$name::<$fixture>();
            }
        )*
    };
}
