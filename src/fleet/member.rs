//! One cluster of a fleet: who sells to it, what it has, and whether that is known.
//! It must not know what the others have.

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

/// A cluster and what it has.
#[derive(Debug)]
pub(super) struct Member {
    /// Who sells to it.
    pub(super) market: CapacityScope,
    /// Whether its engine has said what it has, so that it may ask for more.
    pub(super) speaks: bool,
    /// Whether any engine of it ever has.
    pub(super) known: bool,
    /// Sum and number of all it has.
    pub(super) sum: (Resources, usize),
    /// What it has that budgets count; none before it has said so.
    pub(super) muster: Option<DisruptionUsage>,
    /// What it was told last.
    pub(super) view: Option<Arc<FleetView>>,
    /// Since when it makes nodes; none while it does not.
    managed: Option<Timestamp>,
    /// Its own limits.
    limits: Limits,
    held: BTreeMap<ClaimId, ClaimUsage>,
}

impl Member {
    /// A cluster of which nothing is known.
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self {
            market: CapacityScope::of(cluster),
            speaks: false,
            known: false,
            sum: (Resources::default(), 0),
            muster: None,
            view: None,
            managed: None,
            limits: Limits::default(),
            held: BTreeMap::new(),
        }
    }

    /// Its configuration is this.
    pub(super) fn configure(&mut self, cluster: &Cluster, now: Timestamp) {
        self.market = CapacityScope::of(cluster);
        self.limits.clone_from(&cluster.limits);
        let managed = cluster.mode == ManagementMode::Manage;
        self.managed = managed.then(|| self.managed.unwrap_or(now));
    }

    /// Until when the others wait for it to say what it has.
    pub(super) fn awaited_until(&self) -> Option<Timestamp> {
        let since = self.managed.filter(|_| !self.known)?;
        Some(since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX))
    }

    /// Until when nodes of the others stay, since it has not said which nodes it has.
    pub(super) fn muster_until(&self) -> Option<Timestamp> {
        let since = self.managed.filter(|_| self.muster.is_none())?;
        Some(since.checked_add(PATIENCE).unwrap_or(Timestamp::MAX))
    }

    /// What it counts for. Of one that nobody has heard of, all that its own limits allow it.
    pub(super) fn counted(&self) -> (Cow<'_, Resources>, usize) {
        if self.known || self.managed.is_none() {
            return (Cow::Borrowed(&self.sum.0), self.sum.1);
        }
        let mut most = Resources::default();
        for (name, amount) in &self.limits.capacity {
            most.put(name, *amount);
        }
        (Cow::Owned(most), self.limits.nodes.unwrap_or(0) as usize)
    }

    /// What a claim has.
    pub(super) fn holding(&self, claim: &ClaimId) -> Option<&ClaimUsage> {
        self.held.get(claim)
    }

    /// Gives a claim this, or nothing.
    pub(super) fn hold(&mut self, claim: ClaimId, holding: Option<ClaimUsage>) {
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

    /// How many instances of a reservation it has.
    pub(super) fn taken(&self, reservation: &str) -> usize {
        let all = self
            .held
            .values()
            .filter_map(|own| own.reservation.as_ref());
        all.filter(|own| own.id == reservation).count()
    }

    /// It has nothing.
    pub(super) fn forget(&mut self) {
        self.held.clear();
        self.sum = (Resources::default(), 0);
    }
}
