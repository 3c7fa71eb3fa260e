//! Which nodes should leave on purpose, and why each of the others may not.
//! It must not know how a node is drained or ended.

pub mod verdict;
pub mod eligibility;
pub mod maintenance_windows;
pub mod cooldown;
pub mod budgets;
pub mod emptiness;
pub mod static_scale_down;
pub mod instance_drift;
pub mod drift;
pub mod expiry;
pub mod repair;
pub mod cluster_health;
pub mod config_impact;
pub mod consolidation_backoff;
pub mod balanced;
pub mod consolidation;
