//! Karpenter's own test cases, applied to our scheduler, and the registry that maps each case to
//! our test or to the reason for omitting it.

mod judge;
mod world;
mod notation;
mod provisioning;
mod labels;
mod wishes;
mod packing;
mod running;
mod leaving;
mod minimums;
mod volumes;
mod topology;
mod defaults;
mod affinity;
mod launch;
mod reservations;
#[cfg(feature = "daemon")]
mod manifests;
mod registry;
