//! The engine over `mem`, all ranks in one thread and in virtual time.

mod allocations;
mod results;
mod simulation;
