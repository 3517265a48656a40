//! Communicators over real sockets between real ranks.
//!
//! * [`job`]: ranks that are processes, each this test binary again, for what only processes can do: die, stop, be strangers.
//! * [`threads`]: ranks that are threads of this process, each with a communicator of its own, for everything else.
//! * [`worker`]: what the ranks of a job do.

#![expect(clippy::print_stderr, reason = "figures for whoever runs a test with --nocapture")]

mod bad_input;
mod buffers;
mod failures;
mod groups;
mod intruders;
mod job;
mod joining;
mod kills;
mod mismatches;
mod overlap;
mod report;
mod resources;
mod results;
mod split;
mod threads;
mod worker;
