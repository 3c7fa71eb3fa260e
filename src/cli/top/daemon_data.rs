//! The last responses of the daemon, and the time since then.

use jiff::{SignedDuration, Timestamp};

use crate::runtime::control_inventory::{InventoryRequest, ToldInventory};
use crate::runtime::control_status::{ClusterStatusResponse, StatusResponse};

/// A request: the status of all clusters, or the inventory of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonRequest {
    /// The status of all clusters.
    Fleet,
    /// The inventory of one cluster.
    Inside(InventoryRequest),
}

/// A response of the daemon.
#[derive(Debug)]
pub enum DaemonResponse {
    /// The status of all clusters.
    Fleet(StatusResponse),
    /// The inventory of one cluster.
    Inside(Box<ToldInventory>),
}

/// The last responses.
#[derive(Debug, Default)]
pub struct DaemonData {
    fleet: Option<StatusResponse>,
    inside: Option<Box<ToldInventory>>,
    /// The time of the last response.
    answered: Option<Timestamp>,
    /// Why the last request failed.
    pub fault: Option<String>,
}

impl DaemonData {
    /// Stores a response, and clears the failure of the last request.
    pub fn store_response(&mut self, response: DaemonResponse, now: Timestamp) {
        match response {
            DaemonResponse::Fleet(fleet) => self.fleet = Some(fleet),
            DaemonResponse::Inside(inventory) => self.inside = Some(inventory),
        }
        self.answered = Some(now);
        self.fault = None;
    }

    /// Returns the clusters sorted by name, or only the chosen one.
    pub fn clusters(&self, only: Option<&str>) -> Vec<&ClusterStatusResponse> {
        let all = self.fleet.iter().flat_map(|fleet| &fleet.clusters);
        let wanted = all.filter(|cluster| only.is_none_or(|name| cluster.name == name));
        let mut all: Vec<&ClusterStatusResponse> = wanted.collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Returns whether the status of the fleet was received.
    pub fn has_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// Returns the daemon's version.
    pub fn version(&self) -> &str {
        self.fleet.as_ref().map_or("", |fleet| &fleet.outrigger)
    }

    /// Returns why the last reload of the configuration failed.
    pub fn reload_fault(&self) -> Option<&str> {
        self.fleet.as_ref()?.reload_fault.as_deref()
    }

    /// Returns the inventory of this cluster, if it was received.
    pub fn inventory_of(&self, cluster: &str) -> Option<&ToldInventory> {
        self.inside.as_deref().filter(|it| it.name == cluster)
    }

    /// Returns the time since the last response if the last request failed or the time exceeds
    /// `late`.
    pub fn silent_for(&self, late: SignedDuration, now: Timestamp) -> Option<SignedDuration> {
        let silent = now.duration_since(self.answered?);
        (self.fault.is_some() || silent > late).then_some(silent)
    }
}
