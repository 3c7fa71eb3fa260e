//! Balances clusters between hosts: decides which Leases this host may hold, request and hand over.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::STEADY;
use crate::coordination::leader_election::{
    LeaseStatus, cluster_to_request, hands_over_to, may_hold,
};
use crate::host::clock;
use crate::model::id::ClusterName;

/// After handing back a requested cluster, a host requests nothing for this long. The time doubles
/// with each further return.
const SHY: Duration = Duration::from_mins(30);
/// Number of times that `SHY` doubles: up to 16 hours.
const SHY_MAX: u32 = 5;

/// State of the Leases of all managed clusters of this host.
#[derive(Debug, Default)]
pub(crate) struct LeaseBalancer(watch::Sender<LeaseTable>);

/// The states of the Leases, and when any state last changed.
#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    /// True if one host must lead all clusters.
    together: bool,
    /// Time of the last change of a state.
    changed: Option<Instant>,
    places: BTreeMap<ClusterName, LeaseStatus>,
    /// Clusters that this host leads and whose engines make no decisions, each with the time since
    /// when.
    unwell: BTreeMap<ClusterName, Instant>,
    /// How many times in succession this host has handed requested clusters back, and when it last
    /// did.
    returned: Option<(u32, Instant)>,
}

impl LeaseTable {
    /// Returns whether this host requests no clusters, because its engines made no decisions for
    /// clusters that it had requested.
    fn is_backing_off(&self) -> bool {
        self.returned.is_some_and(|(times, at)| {
            let doubled = times.saturating_sub(1).min(SHY_MAX);
            at.elapsed() < SHY.saturating_mul(1 << doubled)
        })
    }
}

impl LeaseBalancer {
    /// Returns a receiver that is notified of changes of the states.
    pub(super) fn subscribe_changes(&self) -> watch::Receiver<LeaseTable> {
        self.0.subscribe()
    }

    /// Sets the managed clusters of this host, and whether one host must lead all these clusters.
    pub(crate) fn configure(&self, together: bool, clusters: &[ClusterName]) {
        self.0.send_modify(|table| {
            table.together = together;
            table.changed = Some(clock::monotonic_now());
            table.places.retain(|name, _| clusters.contains(name));
            table.unwell.retain(|name, _| clusters.contains(name));
            for name in clusters {
                table.places.entry(name.clone()).or_insert(LeaseStatus::Unknown);
            }
        });
    }

    /// Updates the state of one Lease. Returns whether this host may hold it.
    pub(super) fn update_status(&self, cluster: &ClusterName, status: LeaseStatus) -> bool {
        self.0.send_if_modified(|table| match table.places.get_mut(cluster) {
            Some(current) if *current != status => {
                *current = status;
                table.changed = Some(clock::monotonic_now());
                true
            }
            _ => false,
        });
        let table = self.0.borrow();
        !table.together || may_hold(cluster, &table.places)
    }

    /// Returns whether this host requests the cluster from its leader.
    pub(super) fn requests_handover_of(&self, cluster: &ClusterName) -> bool {
        let table = self.0.borrow();
        let is_steady = table.changed.is_some_and(|it| it.elapsed() >= STEADY);
        // A host with an engine that makes no decisions must not request more clusters.
        let is_well = table.unwell.is_empty();
        let may_ask = is_steady && is_well && !table.is_backing_off() && !table.together;
        may_ask && cluster_to_request(&table.places) == Some(cluster)
    }

    /// Records whether the engine of a cluster that this host leads makes decisions.
    pub(super) fn report_health(&self, cluster: &ClusterName, well: bool) {
        self.0.send_if_modified(|table| {
            if well {
                table.unwell.remove(cluster);
            } else {
                let since = table.unwell.entry(cluster.clone());
                since.or_insert_with(clock::monotonic_now);
            }
            false
        });
    }

    /// Returns whether the engine of a cluster has made no decisions for this long.
    pub(super) fn is_unhealthy_for(&self, cluster: &ClusterName, span: Duration) -> bool {
        let table = self.0.borrow();
        let since = table.unwell.get(cluster);
        since.is_some_and(|since| since.elapsed() >= span)
    }

    /// Records that a cluster that this host had requested has become ready.
    pub(super) fn on_handover_ready(&self, since: Instant) {
        self.0.send_if_modified(|table| {
            table.returned = table.returned.filter(|(_, at)| since < *at);
            false
        });
    }

    /// Records that a requested cluster was handed back.
    pub(super) fn on_handover_returned(&self) {
        self.0.send_if_modified(|table| {
            let times = table.returned.map_or(0, |(times, _)| times);
            // Clusters that are handed back for the same cause increase the number once.
            let times = times + u32::from(!table.is_backing_off());
            table.returned = Some((times, clock::monotonic_now()));
            false
        });
    }

    /// Returns whether this host hands a cluster over to a requesting host.
    pub(super) fn hands_over_to(&self, host: &str) -> bool {
        let table = self.0.borrow();
        !table.together && hands_over_to(host, &table.places)
    }
}
