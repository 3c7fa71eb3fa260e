//! The status of the clusters, as the control socket returns it.

use serde::{Deserialize, Serialize};

use crate::engine::views::status::ClusterStatus;

/// Status of all clusters.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatusResponse {
    /// The format version of the response.
    pub format_version: String,
    /// The version of the daemon.
    pub outrigger: String,
    /// Error of the last reload, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload_fault: Option<String>,
    /// The clusters, in the order of the configuration.
    pub clusters: Vec<ClusterStatusResponse>,
}

/// Status of one cluster.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClusterStatusResponse {
    /// The name of the cluster.
    pub name: String,
    /// The health of the cluster.
    pub standing: String,
    /// True if the cluster needs no attention, because this host or another host makes decisions
    /// for it.
    pub is_well: bool,
    /// The reason why this host is not the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub led_by: Option<String>,
    /// Data of the engine of the cluster. `None` if no engine runs here or the engine does not
    /// answer in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ClusterStatus>,
}
