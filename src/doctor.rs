//! Checks everything that the daemon needs, and reports what is wrong with a fix for each finding.
//! The checks write nothing.
//!
//! ```text
//! configuration                      files -> clusters
//! host                               systemd, home directories, referenced files
//! cluster NAME                       (several in parallel)
//!   kubeconfig -> api -> version     each needs the previous one
//!                     -> clock, rights, lease, autoscalers, priority       (in parallel)
//!   pools
//!   aws -> identity, types, network, reads, queue, instances, node classes (parallel to the API)
//! ```

// The tree of check results, as text and JSON.
pub mod report;
// Diagnostic codes of checks.
pub mod codes;
// Selection and time limits of checks.
#[cfg(feature = "daemon")]
pub(crate) mod options;
// Configuration, files and systemd unit.
#[cfg(feature = "daemon")]
mod host_checks;
// Connection to the API server.
#[cfg(feature = "daemon")]
mod api_checks;
// RBAC permissions.
#[cfg(feature = "daemon")]
mod rbac_checks;
// Lease, other autoscalers, API priority.
#[cfg(feature = "daemon")]
mod cluster_checks;
// Instances launched for a different API server.
#[cfg(feature = "aws")]
mod instance_checks;
// Node classes: resolution and dry runs.
#[cfg(feature = "aws")]
mod node_class_checks;
// AWS identity, permissions and queue.
#[cfg(feature = "aws")]
mod aws_checks;
// The checks in their order, for one cluster or all.
#[cfg(feature = "daemon")]
pub(crate) mod run;
