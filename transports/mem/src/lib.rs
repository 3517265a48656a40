//! Lanes between threads of one process.
