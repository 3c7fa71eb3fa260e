//! Ground truth of one cluster, built from events: plain structs, no locks.
//! It must not know what is decided from it.

pub mod holds;

pub mod snapshot;
