//! One cluster of a fleet: its provider account, its usage, and whether the usage is known.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::fleet::PATIENCE;
use crate::model::capacity_scope::CapacityScope;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::fleet::{ClaimUsage, DisruptionUsage, FleetView};
use crate::model::id::ClaimId;
use crate::model::pool::Limits;
use crate::model::quantity::Resources;

/// A cluster of the fleet and its usage.
#[derive(Debug)]
pub(super) struct Member {
    /// The provider account of the cluster.
    pub(super) market: CapacityScope,
    /// True if the current engine of the cluster has reported its usage. Only then may it request
    /// grants.
    pub(super) speaks: bool,
    /// True if any engine of the cluster has ever reported its usage.
    pub(super) known: bool,
    /// Total capacity and number of nodes.
    pub(super) sum: (Resources, usize),
    /// The usage of budgets by the cluster. `None` before its first report.
    pub(super) disruption_usage: Option<DisruptionUsage>,
    /// The last view that was sent to the cluster.
    pub(super) view: Option<Arc<FleetView>>,
    /// When the cluster started to launch nodes. `None` in observe mode.
    managed: Option<Timestamp>,
    /// The limits of the cluster itself.
    limits: Limits,
    held: BTreeMap<ClaimId, ClaimUsage>,
}

impl Member {
    /// Creates a cluster with unknown usage.
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self {
            market: CapacityScope::from_cluster(cluster),
            speaks: false,
            known: false,
            sum: (Resources::default(), 0),
            disruption_usage: None,
            view: None,
            managed: None,
            limits: Limits::default(),
            held: BTreeMap::new(),
        }
    }

    /// Sets the configuration of the cluster.
    pub(super) fn configure(&mut self, cluster: &Cluster, now: Timestamp) {
        self.market = CapacityScope::from_cluster(cluster);
        self.limits.clone_from(&cluster.limits);
        let managed = cluster.mode == ManagementMode::Manage;
        self.managed = managed.then(|| self.managed.unwrap_or(now));
    }

    /// Until when other clusters wait for the usage of this cluster.
    pub(super) fn awaited_until(&self) -> Option<Timestamp> {
        let since = self.managed.filter(|_| !self.known)?;
        Some(since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX))
    }

    /// Until when other clusters disrupt no nodes because the nodes of this cluster are not known.
    pub(super) fn report_awaited_until(&self) -> Option<Timestamp> {
        let since = self.managed.filter(|_| self.disruption_usage.is_none())?;
        Some(since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX))
    }

    /// The usage of the cluster. Before its first report, this is the maximum that its own limits
    /// allow.
    pub(super) fn counted_usage(&self) -> (Cow<'_, Resources>, usize) {
        if self.known || self.managed.is_none() {
            return (Cow::Borrowed(&self.sum.0), self.sum.1);
        }
        let mut largest = Resources::default();
        for (name, amount) in &self.limits.capacity {
            largest.set_amount(name, *amount);
        }
        (Cow::Owned(largest), self.limits.nodes.unwrap_or(0) as usize)
    }

    /// The grant of a claim.
    pub(super) fn grant_of(&self, claim: &ClaimId) -> Option<&ClaimUsage> {
        self.held.get(claim)
    }

    /// Sets or removes the grant of a claim.
    pub(super) fn set_grant(&mut self, claim: ClaimId, holding: Option<ClaimUsage>) {
        if let Some(holding) = &holding {
            self.sum.0.add(&holding.capacity);
            self.sum.1 += 1;
        }
        let before = match holding {
            Some(holding) => self.held.insert(claim, holding),
            None => self.held.remove(&claim),
        };
        if let Some(before) = before {
            self.sum.0.subtract(&before.capacity);
            self.sum.1 -= 1;
        }
    }

    /// The number of instances of the cluster in a capacity reservation.
    pub(super) fn reserved_instances(&self, reservation: &str) -> usize {
        let all = self.held.values().filter_map(|grant| grant.reservation.as_ref());
        all.filter(|held| held.id == reservation).count()
    }

    /// Clears the usage of the cluster.
    pub(super) fn clear_usage(&mut self) {
        self.held.clear();
        self.sum = (Resources::default(), 0);
    }
}
