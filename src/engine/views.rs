//! Views of the cluster: status, inventory and Kubernetes Events.

// Status of one cluster.
pub mod status;
// Inventory of nodes and pods.
pub mod inventory;
// Values that metrics show and no report contains.
pub mod measures;
// Results and dry runs of requested sweeps.
pub mod swept_nodes;
// Reports as Kubernetes Events.
pub mod kube_events;
