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

pub mod id;
pub mod labels;
pub mod quantity;
pub mod requirement;
pub mod selector;
pub mod affinity;
pub mod taint;
pub mod duration;
pub mod pod;
pub mod eviction;
pub mod pdb;
pub mod node;
pub mod watched_object;
pub mod reservation;
pub mod instance;
pub mod window;
pub mod pool;
pub mod clock_skew;
pub mod overlay;
pub mod buffer;
pub mod buffer_object;
pub mod fleet;
pub mod node_class;
pub mod claim;
pub mod proxy;
pub mod cluster;
pub mod capacity_scope;
pub mod template_hash;
