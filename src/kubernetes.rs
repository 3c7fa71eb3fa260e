//! Client of the API of one cluster: converts watches to events and commands to API calls.

// Resource types that are watched.
mod watched_items;
// RBAC permissions that the daemon uses.
pub(crate) mod rbac;
// Signs of life of watch connections.
pub(crate) mod watch_activity;
// Bearer tokens and their renewal.
pub(crate) mod token_layer;
// Credential plugins of kubeconfigs.
pub(crate) mod exec_credential;
// API clients from kubeconfigs.
pub(crate) mod client;
// Classified API server errors.
pub(crate) mod api_error;
// Paginated listings.
pub(crate) mod list;
// Listings of CapacityBuffers.
pub(crate) mod capacity_buffers;
// Karpenter objects, in the newest served version.
pub(crate) mod karpenter_objects;
// Reads and writes of the Lease.
pub(crate) mod lease;
// Watches as events.
pub(crate) mod watch;
// Commands as API calls.
pub(crate) mod commands;
// Removal of taints and finalizers for `release`.
pub(crate) mod release;
// Rate-limited writer of Kubernetes Events.
pub(crate) mod event_recorder;
