//! rondel: collective communication for AI clusters.
