//! The engine: one executor walks plans, and one place knows both its actions and the endpoints.

#[forbid(unsafe_code)]
pub mod execution;
