//! Tests of the simulated cluster, and of the engine in it.

mod setup;
mod day;
mod node_deletion;
mod external_changes;
mod disruption_invariants;
mod random_fleets;
mod random_sweeps;
mod random_clusters;
mod scenarios;
mod scale_down;
mod two_clusters;
