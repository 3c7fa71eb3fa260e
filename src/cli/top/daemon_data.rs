//! What the daemon was asked, what it last said, and how long it has said nothing.
//! It must not know how it was asked, nor how that is shown.

use jiff::{SignedDuration, Timestamp};

use crate::runtime::control::inventory::{InventoryRequest, ToldInventory};
use crate::runtime::control::{ClusterStatusResponse, StatusResponse};

/// What is asked: how all clusters are doing, or what is in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DaemonRequest {
    Fleet,
    Inside(InventoryRequest),
}

/// What is answered.
#[derive(Debug)]
pub(super) enum DaemonResponse {
    Fleet(StatusResponse),
    Inside(Box<ToldInventory>),
}

/// What was last heard.
#[derive(Debug, Default)]
pub(super) struct DaemonData {
    fleet: Option<StatusResponse>,
    inside: Option<Box<ToldInventory>>,
    /// When there was an answer.
    answered: Option<Timestamp>,
    /// Why there was none since.
    pub(super) fault: Option<String>,
}

impl DaemonData {
    /// Takes in an answer, or why there was none.
    pub(super) fn take(&mut self, answer: Result<DaemonResponse, String>, now: Timestamp) {
        match answer {
            Ok(DaemonResponse::Fleet(told)) => self.fleet = Some(told),
            Ok(DaemonResponse::Inside(told)) => self.inside = Some(told),
            Err(why) => {
                self.fault = Some(why);
                return;
            }
        }
        self.answered = Some(now);
        self.fault = None;
    }

    /// The clusters, by name; of one only where only that is looked at.
    pub(super) fn clusters(&self, only: Option<&str>) -> Vec<&ClusterStatusResponse> {
        let all = self.fleet.iter().flat_map(|own| &own.clusters);
        let wanted = all.filter(|own| only.is_none_or(|name| own.name == name));
        let mut all: Vec<&ClusterStatusResponse> = wanted.collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Whether anything was said of the fleet.
    pub(super) fn has_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// The daemon's version.
    pub(super) fn version(&self) -> &str {
        self.fleet.as_ref().map_or("", |own| &own.outrigger)
    }

    /// Why the configuration was not reloaded.
    pub(super) fn reload_fault(&self) -> Option<&str> {
        self.fleet.as_ref()?.reload_fault.as_deref()
    }

    /// What is in this cluster; none where that was not told yet.
    pub(super) fn inside(&self, cluster: &str) -> Option<&ToldInventory> {
        self.inside.as_deref().filter(|own| own.name == cluster)
    }

    /// For how long nothing was said that should have been.
    pub(super) fn silence(&self, late: SignedDuration, now: Timestamp) -> Option<SignedDuration> {
        let silent = now.duration_since(self.answered?);
        (self.fault.is_some() || silent > late).then_some(silent)
    }
}
