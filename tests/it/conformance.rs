//! What Karpenter's own tests state, case by case, held against our solver; and the registry of all
//! of them, which says where each case is tested or why it is none of ours.
//! It must not know how the solver comes to its answers.

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
