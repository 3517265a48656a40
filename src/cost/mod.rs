//! What a plan costs.

pub mod tuner;
