//! The supply of a pool: node templates, DaemonSet overhead, minValues and limits.

/// Limits that apply to a pool: those of the pool itself, of the cluster and of the fleet.
pub(super) mod limits;
/// DaemonSets that run on the nodes of a pool, for each type and offering.
pub(super) mod daemon_overhead;
// Offerings that a class of pods may use.
pub(super) mod compatible;
/// Labels that offerings, launches and instance types decide.
pub(super) mod offering_labels;
/// The instance types of a pool minus DaemonSet overhead, and which pods may use which offerings.
pub(super) mod node_template;
/// Values of a label that the types of a claim must have together (`minValues`).
pub(super) mod min_values;
