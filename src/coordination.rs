//! Coordination between hosts and with other autoscalers by Leases and their annotations.

// Lease annotations: pauses, rate records, approvals.
pub mod lease_annotations;
// Rules of the Lease, without I/O.
pub mod leader_election;
// Detection of another active autoscaler.
pub mod other_autoscaler;
