//! What the engine shows of its cluster: status, inventory and Kubernetes Events.

pub mod status;
pub mod inventory;
pub mod kube_events;
