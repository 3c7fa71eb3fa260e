//! Karpenter's own test cases, applied to our scheduler, and the registry that maps each case to
//! our test or to the reason for omitting it.

mod run;
mod fixture;
mod notation;
mod provisioning;
mod labels;
mod preferences;
mod packing;
mod existing_nodes;
mod disrupted_pods;
mod min_values;
mod volumes;
mod topology;
mod defaults;
mod affinity;
mod launch;
mod reservations;
#[cfg(feature = "daemon")]
mod manifests;
mod registry;
