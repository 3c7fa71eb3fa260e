//! Domain types: pods, nodes, pools, instance types and claims as plain values.
//!
//! Each term has one meaning in code, HCL, logs, metrics and docs:
//!
//! | term | meaning |
//! |---|---|
//! | cluster | a watched Kubernetes API |
//! | pool, node class | requirements and limits of nodes; their EC2 settings |
//! | claim | one requested node, from plan to termination; stored in EC2 tags |
//! | instance type, offering | capacity and labels; type × zone × capacity type with a price |
//! | overlay | an override of the catalog's prices and capacities |
//! | buffer, virtual pod | reserved capacity; a placeholder pod that reserves it |
//! | unschedulable | a pod that no node can run, with the rejections |
//! | candidate, verdict | a node considered for disruption; why it cannot be disrupted |
//! | reason | why a node is disrupted: Empty, Drifted, Expired, … |
//! | drain, evict, cordon, terminate | four different operations |

// A module depends only on the modules above it. Comments between modules keep rustfmt from
// sorting them.

// Enums with a name for each variant.
pub(crate) mod named_enum;
// Newtypes for names and ids.
pub mod id;
// Well-known labels, annotations, taints and tags.
pub mod labels;
// Quantities and resource lists.
pub mod quantity;
// Label requirements and their intersection.
pub mod requirement;
// Label selectors.
pub mod selector;
// Pod affinity, anti-affinity and topology spread.
pub mod affinity;
// Taints and tolerations.
pub mod taint;
// Durations in Go syntax.
pub mod duration;
// Pods.
pub mod pod;
// Reads `do-not-disrupt` and other annotations of pods; deletion cost.
pub mod eviction;
// PodDisruptionBudgets.
pub mod pdb;
// Nodes.
pub mod node;
// All watched object types.
pub mod watched_object;
// Capacity reservations and Capacity Blocks.
pub mod reservation;
// Instance types, offerings, instances.
pub mod instance;
// Cron schedules in a time zone.
pub mod cron_schedule;
// Cron time windows.
pub mod window;
// Pools.
pub mod pool;
// Kinds and schedules of sweeps.
pub mod sweep;
// Clock skew and its limit.
pub mod clock_skew;
// Price and capacity overlays.
pub mod overlay;
// Buffers.
pub mod buffer;
// CapacityBuffer objects and their status.
pub mod buffer_object;
// Fleet limits and usage.
pub mod fleet;
// Node classes.
pub mod node_class;
// Claims, their phases and tags.
pub mod claim;
// Proxy to a cluster's API.
pub mod proxy;
// Cluster settings.
pub mod cluster;
// Account and region in which capacity is shared.
pub mod capacity_scope;
// Hashes for drift and in-place updates.
pub mod template_hash;
