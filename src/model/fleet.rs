//! Limits and budgets that all clusters share, and the usage of each cluster.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::ClaimId;
use crate::model::pool::{Budget, Limits, Reason};
use crate::model::quantity::Resources;

/// Limits and disruption budgets of all clusters together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetLimits {
    /// The limits.
    pub limits: Limits,
    /// Disruption budgets: how many nodes of all clusters may be disrupted simultaneously or per
    /// period.
    pub budgets: Vec<Budget>,
}

impl FleetLimits {
    /// Returns whether clusters share a limit or budget, so that one host must collect the usage of
    /// all clusters.
    pub fn has_limits(&self) -> bool {
        *self != Self::default()
    }

    /// The maximum usage of one cluster, given the capacity and node count of each other cluster. A
    /// cluster above this maximum keeps its nodes and launches no more.
    pub fn cluster_share<'a>(
        &self,
        others: impl IntoIterator<Item = (&'a Resources, usize)>,
    ) -> Limits {
        let (mut capacity, mut nodes) = (Resources::default(), 0_usize);
        for (used, count) in others {
            capacity.add(used);
            nodes = nodes.saturating_add(count);
        }
        self.limits.remaining_after(&capacity, nodes)
    }
}

/// One instance of a capacity reservation that several clusters may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedReservation {
    /// Its ID, the same in all clusters.
    pub id: String,
    /// How many instances the reservation has in total.
    pub count: u32,
}

/// The resources of a claim that are subtracted from shared limits, in addition to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimUsage {
    /// Its capacity. Until the instance type is known, the maximum of each resource.
    pub capacity: Resources,
    /// The reservation that the claim uses.
    pub reservation: Option<SharedReservation>,
}

/// A claim that needs approval before launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The claim.
    pub claim: ClaimId,
    /// The usage after launch.
    pub holding: ClaimUsage,
}

/// Nodes and disruptions of one cluster, for the budgets of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisruptionUsage {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of unready nodes that are not being disrupted.
    pub unready: usize,
    /// Claims that are being disrupted.
    pub leaving: BTreeSet<ClaimId>,
    /// Disruptions within the period of a rate of the fleet, each with its time and reason.
    pub let_go: BTreeMap<ClaimId, (Timestamp, Reason)>,
}

impl DisruptionUsage {
    /// The number of nodes that are being disrupted or not ready.
    pub fn disrupted_nodes(&self) -> usize {
        self.unready + self.leaving.len()
    }
}

/// Total nodes and disruptions of the other clusters, for the budgets of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherClusters {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of nodes that are being disrupted or not ready.
    pub disrupted: usize,
    /// Time and reason of each disruption of a node.
    pub let_go: Vec<(Timestamp, Reason)>,
}

impl OtherClusters {
    /// Adds the usage of one cluster.
    pub fn add_usage(&mut self, disruption_usage: &DisruptionUsage) {
        self.nodes += disruption_usage.nodes;
        self.disrupted += disruption_usage.disrupted_nodes();
        self.let_go.extend(disruption_usage.let_go.values());
    }
}

/// The state of the fleet as a cluster knows it. This state may be outdated: only grants are
/// binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetView {
    /// Version number, which increases. Responses and updates use different channels, so an older
    /// view may arrive later.
    pub number: u64,
    /// The limits on all clusters together.
    pub limits: Limits,
    /// The maximum usage of this cluster, given the usage of the other clusters. Quantities may be
    /// negative.
    pub share: Limits,
    /// Why no launches or disruptions are granted now.
    pub closed: Option<String>,
    /// Budgets of all clusters together.
    pub budgets: Vec<Budget>,
    /// Nodes and disruptions of the other clusters, for these budgets.
    pub others: OtherClusters,
}

impl FleetView {
    /// Returns whether two views are equal, ignoring the version number.
    pub fn has_same_content(&self, other: &Self) -> bool {
        let share = (&self.limits, &self.share) == (&other.limits, &other.share);
        let budgets = (&self.budgets, &self.others) == (&other.budgets, &other.others);
        share && budgets && self.closed == other.closed
    }

    /// Returns whether a shared limit exists.
    pub fn is_limited(&self) -> bool {
        self.limits != Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::FleetLimits;
    use crate::model::pool::Limits;
    use crate::model::quantity::Resources;

    fn limits(nodes: Option<u32>, capacity: &[(&str, i64)]) -> Limits {
        let capacity = capacity.iter();
        Limits {
            nodes,
            capacity: capacity.map(|(name, limit)| ((*name).to_owned(), *limit)).collect(),
        }
    }

    fn cpu(cpu_milli: i64) -> Resources {
        Resources { cpu_milli, memory: 7, ..Resources::default() }
    }

    #[test]
    fn cluster_share_is_the_limit_minus_usage_of_others() {
        let fleet = FleetLimits {
            limits: limits(Some(10), &[("cpu", 8000), ("nvidia.com/gpu", 4)]),
            ..FleetLimits::default()
        };
        let rows = [
            (vec![], Some(10), 8000),
            (vec![(cpu(3000), 4)], Some(6), 5000),
            (vec![(cpu(3000), 4), (cpu(5000), 6)], Some(0), 0),
            // A new limit may be below the current usage.
            (vec![(cpu(9000), 40)], Some(0), -1000),
            (vec![(cpu(i64::MAX), usize::MAX), (cpu(1), 1)], Some(0), 8000 - i64::MAX),
        ];
        for (others, nodes, left) in rows {
            let got = fleet.cluster_share(others.iter().map(|(used, count)| (used, *count)));
            let expect = limits(nodes, &[("cpu", left), ("nvidia.com/gpu", 4)]);
            assert_eq!(got, expect, "{others:?}");
        }
        let none = FleetLimits::default().cluster_share([(&cpu(9000), 40)]);
        assert_eq!(none, Limits::default());
    }

    #[test]
    fn stricter_of_two_limits_applies() {
        let cluster = limits(Some(5), &[("cpu", 4000), ("memory", 9)]);
        let share = limits(Some(8), &[("cpu", 1000), ("pods", 3)]);
        let both = limits(Some(5), &[("cpu", 1000), ("memory", 9), ("pods", 3)]);
        assert_eq!(cluster.stricter_of(&share), both);
        assert_eq!(share.stricter_of(&cluster), both);
        assert_eq!(cluster.stricter_of(&Limits::default()), cluster);
    }
}
