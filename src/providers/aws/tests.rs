//! Tests of AWS requests and responses against a fake AWS.

// API calls of idle clusters.
#[cfg(test)]
pub(crate) mod idle_calls;
// A moto server for in-process tests.
#[cfg(test)]
pub(crate) mod moto;
// Denied IAM permissions.
#[cfg(test)]
pub(super) mod iam_denied;
// A fake AWS with canned responses.
mod canned;
// Images while SSM is unavailable.
mod image_fallback;
// EC2 errors of launches.
mod faults;
// Image lookup and caching.
mod images;
// CreateFleet and launch template requests.
mod launches;
/// Launches in batches.
mod batches;
// Cluster information for user data.
mod cluster_info;
// Paginated EC2 listings.
mod listings;
// On-demand and spot prices.
mod prices;
// Instance profiles.
mod profiles;
// Launch templates.
mod templates;
// Interruption queue messages.
mod queue;
// Resolution of node classes.
mod node_classes;
