//! Client of the API of one cluster: converts watches to events and commands to API calls.

// Resource types that are watched.
#[cfg(feature = "daemon")]
mod watched_items;
// RBAC permissions that the daemon uses.
pub mod rbac;
// Activity of watch connections.
#[cfg(feature = "daemon")]
pub(crate) mod watch_activity;
// Bearer tokens and their renewal.
#[cfg(feature = "daemon")]
pub(crate) mod token_layer;
// Credential plugins of kubeconfigs.
#[cfg(feature = "daemon")]
pub(crate) mod exec_credential;
// API clients from kubeconfigs.
#[cfg(feature = "daemon")]
pub(crate) mod client;
// Classified API server errors.
#[cfg(feature = "daemon")]
pub(crate) mod api_error;
// Paginated listings.
#[cfg(feature = "daemon")]
pub(crate) mod list;
// Listings of CapacityBuffers.
#[cfg(feature = "daemon")]
pub(crate) mod capacity_buffers;
// Karpenter objects, in the newest served version.
#[cfg(feature = "daemon")]
pub(crate) mod karpenter_objects;
// Reads and writes of the Lease.
#[cfg(feature = "daemon")]
pub(crate) mod lease;
// Watches as events.
#[cfg(feature = "daemon")]
pub(crate) mod watch;
// Commands as API calls.
#[cfg(feature = "daemon")]
pub(crate) mod commands;
// Removal of taints and finalizers for `release`.
#[cfg(feature = "daemon")]
pub(crate) mod release;
// Rate-limited writer of Kubernetes Events.
#[cfg(feature = "daemon")]
pub(crate) mod event_recorder;
