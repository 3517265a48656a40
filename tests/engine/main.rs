//! The engine over `mem`, all ranks in one thread and in virtual time.

mod allocations;
mod buffers;
mod cases;
mod disagreements;
mod faults;
mod losses;
mod model;
mod programs;
mod results;
mod simulation;
