//! Proof that plans do what their collective promises: public for the command line and benches, but unstable.
//!
//! Messages have no tags, so all ranks' plans form one fixed graph of events. Its outcome does not depend on timing:
//! one symbolic run proves the result for every run, and what is left to show is that nothing races, that nothing
//! waits in a circle, and that both ends of every message mean the same bytes. Three views:
//!
//! * [`Operation::check`]: each plan on its own; messages pair by pair; order of all conflicting steps; for a barrier,
//!   that everybody's exit follows everybody's entry.
//! * [`Operation::run`]: all ranks' executions over *symbols*. Every result is the expression that it was computed by, so
//!   that missing, repeated, unscaled and unfinished contributions show, and results that may differ in bits.
//! * [`Operation::run_bytes`]: the same over the bytes of a cut: rounds, channels, chunks and slices of odd lengths.
//!
//! Architecture Invariant: pure, like everything that it runs.

mod bytes;
mod fault;
mod machine;
#[cfg(test)]
mod mutation;
mod operation;
mod statics;
mod symbols;
#[cfg(test)]
mod tests;

pub use fault::{Fault, Reason};
pub use machine::Schedule;
pub use operation::Operation;

use crate::plan::Collective;

/// How a second operation's memory lies relative to that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Elsewhere, and the two overlap in time as the lane rule allows.
    Disjoint,
    /// In the same buffers, and the two overlap in time: this must fail.
    Shared,
    /// In the same buffers; a rank starts the second when it is done with the first.
    Ordered,
}

impl Operation {
    /// Everything that needs no run.
    ///
    /// # Errors
    ///
    /// The first [`Fault`] found.
    pub fn check(&self) -> Result<(), Fault> {
        for (plan, &alias) in self.plans.iter().zip(&self.aliases) {
            statics::check_plan(plan, self.collective, alias)?;
            statics::check_order(plan)?;
        }
        let senders = statics::match_messages(self)?;
        if self.collective == Collective::Barrier {
            statics::check_barrier(self, &senders)?;
        }
        Ok(())
    }
}
