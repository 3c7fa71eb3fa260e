//! What placing is measured with: workloads, what they cost at least, and what the greedy pays.
//! It must not know how the solver comes to its answers, nor the clock.

pub mod catalogs;
pub mod workloads;
pub mod fleet;
pub mod supply;
#[cfg(feature = "bound")]
pub mod bound;
pub mod greedy;
