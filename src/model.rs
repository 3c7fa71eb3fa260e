//! The vocabulary: what pods, nodes, pools, instance types and claims are, as plain values.
//! It must not know how they are read, watched, launched or decided upon.
//!
//! One word per thing, everywhere (code, HCL, logs, metrics, docs):
//!
//! | word | meaning |
//! |---|---|
//! | cluster, pool, node class | a watched Kubernetes API; a rule for nodes; how EC2 makes one |
//! | claim | one promised node, from plan to termination; lives in EC2 tags |
//! | instance type, offering | a shape; shape × zone × capacity type with a price |
//! | overlay | what is known better of them than the catalog knows it |
//! | buffer, virtual pod | room kept free; a pod that is not there and keeps it |
//! | unplaced | a pod with no answer, and why |
//! | candidate, verdict | a node considered for leaving; why it may not |
//! | reason | why a node leaves: Empty, Drifted, Expired, … |
//! | drain, evict, cordon, terminate | four different acts |

// The order is the architecture: a module names only those above it. Blank lines keep rustfmt
// from sorting.

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
// Eviction annotations and deletion cost.
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
// Cron time windows.
pub mod window;
// Pools.
pub mod pool;
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
