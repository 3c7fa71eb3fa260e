//! What hosts and other autoscalers tell each other on the Lease of a cluster.

pub mod lease_annotations;
pub mod leader_election;
pub mod other_autoscaler;
