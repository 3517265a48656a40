//! The engine: one executor walks plans, and one place knows both its actions and the endpoints.

pub mod call;
pub mod execution;
pub mod status;
