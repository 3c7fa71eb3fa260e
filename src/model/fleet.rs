//! The fleet: what all clusters together may have, and what one of them takes of that.
//! It must not know how the clusters tell each other what they have.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::ClaimId;
use crate::model::pool::{Budget, Limits, Reason};
use crate::model::quantity::Resources;

/// Limits on the nodes of all clusters together, and budgets for their leaving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetLimits {
    /// The limits.
    pub limits: Limits,
    /// How many of all nodes may be leaving at once, or be let go within some time.
    pub budgets: Vec<Budget>,
}

impl FleetLimits {
    /// Whether there is anything that clusters share, so that one host has to know of all of them.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// What one cluster may have in all, given the capacity and the number of nodes of each of the
    /// others. Whoever has more already keeps it, but gets nothing more.
    pub fn share<'a>(&self, others: impl IntoIterator<Item = (&'a Resources, usize)>) -> Limits {
        let (mut capacity, mut nodes) = (Resources::default(), 0_usize);
        for (used, count) in others {
            capacity.add(used);
            nodes = nodes.saturating_add(count);
        }
        self.limits.remaining(&capacity, nodes)
    }
}

/// One instance of a capacity reservation that several clusters may launch into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedReservation {
    /// Its id, by which all clusters mean the same one.
    pub id: String,
    /// How many instances it has for all of them together.
    pub count: u32,
}

/// What one claim takes of what clusters share, beside being one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimUsage {
    /// Its capacity; as long as it is open what is launched, the most of each resource.
    pub capacity: Resources,
    /// The reservation it takes an instance of.
    pub reservation: Option<SharedReservation>,
}

/// A claim that wants its holding before it is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The claim.
    pub claim: ClaimId,
    /// What it will take.
    pub holding: ClaimUsage,
}

/// What one cluster has that budgets of the fleet count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisruptionUsage {
    /// How many nodes.
    pub nodes: usize,
    /// How many of them are not ready, beside those that leave.
    pub unready: usize,
    /// Those that leave.
    pub leaving: BTreeSet<ClaimId>,
    /// When nodes were let go, and why, for as long as a rate of the fleet counts them.
    pub let_go: BTreeMap<ClaimId, (Timestamp, Reason)>,
}

impl DisruptionUsage {
    /// How many nodes are leaving or not ready.
    pub fn disrupted(&self) -> usize {
        self.unready + self.leaving.len()
    }
}

/// What other clusters have that budgets of the fleet count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherClusters {
    /// How many nodes.
    pub nodes: usize,
    /// How many of them are leaving or not ready.
    pub disrupted: usize,
    /// When nodes were let go, and why.
    pub let_go: Vec<(Timestamp, Reason)>,
}

impl OtherClusters {
    /// That of one more cluster.
    pub fn add(&mut self, disruption_usage: &DisruptionUsage) {
        self.nodes += disruption_usage.nodes;
        self.disrupted += disruption_usage.disrupted();
        self.let_go.extend(disruption_usage.let_go.values());
    }
}

/// What a cluster knows of the fleet it belongs to. It may be out of date: what is granted counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetView {
    /// Views count up: answers and news come by different ways, and an older one may come later.
    pub number: u64,
    /// The limits on all clusters together.
    pub limits: Limits,
    /// What this cluster may have in all by what the others have; amounts may be negative.
    pub share: Limits,
    /// Why nothing is granted to anyone now.
    pub closed: Option<String>,
    /// Budgets of all clusters together.
    pub budgets: Vec<Budget>,
    /// What the others have that these count.
    pub others: OtherClusters,
}

impl FleetView {
    /// Whether another view, whatever its number, says the same.
    pub fn says_as(&self, other: &Self) -> bool {
        let share = (&self.limits, &self.share) == (&other.limits, &other.share);
        let budgets = (&self.budgets, &self.others) == (&other.budgets, &other.others);
        share && budgets && self.closed == other.closed
    }

    /// Whether there is anything that nodes count towards.
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
        let own = |(name, most): &(&str, i64)| ((*name).to_owned(), *most);
        Limits {
            nodes,
            capacity: capacity.iter().map(own).collect(),
        }
    }

    fn cpu(cpu_milli: i64) -> Resources {
        Resources {
            cpu_milli,
            memory: 7,
            ..Resources::default()
        }
    }

    #[test]
    fn a_cluster_may_have_what_the_others_leave() {
        let fleet = FleetLimits {
            limits: limits(Some(10), &[("cpu", 8000), ("nvidia.com/gpu", 4)]),
            ..FleetLimits::default()
        };
        let rows = [
            (vec![], Some(10), 8000),
            (vec![(cpu(3000), 4)], Some(6), 5000),
            (vec![(cpu(3000), 4), (cpu(5000), 6)], Some(0), 0),
            // Limits may come when more is there than they allow.
            (vec![(cpu(9000), 40)], Some(0), -1000),
            (
                vec![(cpu(i64::MAX), usize::MAX), (cpu(1), 1)],
                Some(0),
                8000 - i64::MAX,
            ),
        ];
        for (others, nodes, left) in rows {
            let got = fleet.share(others.iter().map(|(used, count)| (used, *count)));
            let expect = limits(nodes, &[("cpu", left), ("nvidia.com/gpu", 4)]);
            assert_eq!(got, expect, "{others:?}");
        }
        let none = FleetLimits::default().share([(&cpu(9000), 40)]);
        assert_eq!(none, Limits::default());
    }

    #[test]
    fn of_two_limits_the_tighter_holds() {
        let cluster = limits(Some(5), &[("cpu", 4000), ("memory", 9)]);
        let share = limits(Some(8), &[("cpu", 1000), ("pods", 3)]);
        let both = limits(Some(5), &[("cpu", 1000), ("memory", 9), ("pods", 3)]);
        assert_eq!(cluster.and(&share), both);
        assert_eq!(share.and(&cluster), both);
        assert_eq!(cluster.and(&Limits::default()), cluster);
    }
}
