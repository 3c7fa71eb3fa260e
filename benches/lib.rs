//! Workloads for scheduling benchmarks, a lower bound on their cost, and the cost of the greedy
//! algorithm.

pub mod catalogs;
pub mod workloads;
pub mod fleet;
pub mod supply;
#[cfg(feature = "bound")]
pub mod bound;
pub mod greedy;
