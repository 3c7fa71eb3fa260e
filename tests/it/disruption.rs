//! Nodes that may be voluntarily disrupted, and the blockers of all others.

mod blockers;
mod consolidate_after;
mod consolidation;
mod emptiness;
mod predicted;
mod fixture;
mod terminating_pods;
mod small_fleets;
mod balanced;
mod consolidation_fixture;
