//! Decides which nodes to disrupt, and gives a verdict for every other candidate. This module does
//! not drain or terminate nodes.

// Verdict of a node: why it is not disrupted.
pub mod verdict;
// Verdicts that apply to a node for every reason.
pub mod eligibility;
// Maintenance windows and their next start.
pub mod maintenance_windows;
// Cooldowns after other changes, as in Cluster Autoscaler.
pub mod cooldown;
// Disruption budgets of pool, cluster and fleet.
pub mod budgets;
// Empty nodes.
pub mod emptiness;
// Nodes above the replicas of a static pool.
pub mod static_scale_down;
// Drift of the instance: image, subnet, groups.
pub mod instance_drift;
// Nodes that differ from their pool or node class.
pub mod drift;
// Expired nodes.
pub mod expiry;
// Unhealthy nodes.
pub mod repair;
// Voluntary disruption is suspended while too many nodes are not ready.
pub mod cluster_health;
// Disruptions that a configuration change causes.
pub mod config_impact;
// Consolidation back-off of a pool.
pub mod consolidation_backoff;
// The `balanced` policy: savings against disruption.
pub mod balanced;
// Consolidation of underutilized nodes.
pub mod consolidation;
