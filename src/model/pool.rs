//! A pool: the rule by which nodes are made and left, already parsed and already valid.
//! It must not know the text it was written in.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{NodeClassName, PoolName};
use crate::model::labels::Labels;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Taint;
use crate::model::window::Window;

/// Why a node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing but daemons runs on it.
    Empty,
    /// Its pods fit elsewhere or on something cheaper.
    Underutilized,
    /// It is not what its pool asks for any more.
    Drifted,
    /// It is older than its pool allows.
    Expired,
    /// The provider takes it back.
    Interrupted,
    /// It is broken.
    Unhealthy,
    /// Its instance or its Node has no counterpart.
    Orphaned,
    /// It did not launch, register or initialize in time.
    TimedOut,
    /// Its static pool has more nodes than it is to have.
    Surplus,
    /// Somebody deletes its Node, and its finalizer asks for a drain first.
    Deleted,
}

impl Reason {
    /// The spelling in HCL, logs, metrics and annotations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Underutilized => "underutilized",
            Self::Drifted => "drifted",
            Self::Expired => "expired",
            Self::Interrupted => "interrupted",
            Self::Unhealthy => "unhealthy",
            Self::Orphaned => "orphaned",
            Self::TimedOut => "timed_out",
            Self::Surplus => "surplus",
            Self::Deleted => "deleted",
        }
    }

    /// Whether a node leaves for it only once all its pods have a place elsewhere, and stays if
    /// they find none.
    pub fn waits_for_places(self) -> bool {
        matches!(self, Self::Underutilized | Self::Drifted | Self::Expired)
    }

    /// Whether it can wait until the node's termination grace period is over, so that pods hold
    /// it up for no longer.
    pub fn is_eventual(self) -> bool {
        matches!(self, Self::Drifted | Self::Expired)
    }

    /// Whether nothing but we wants it to leave, so that it may as well stay.
    pub fn is_voluntary(self) -> bool {
        self.waits_for_places() || matches!(self, Self::Empty | Self::Surplus)
    }

    /// Reads what `as_str` gives.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|own| own.as_str() == text)
    }

    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Empty,
        Self::Underutilized,
        Self::Drifted,
        Self::Expired,
        Self::Interrupted,
        Self::Unhealthy,
        Self::Orphaned,
        Self::TimedOut,
        Self::Surplus,
        Self::Deleted,
    ];

    /// The reasons a budget may name.
    pub const BUDGETED: [Self; 3] = [Self::Empty, Self::Underutilized, Self::Drifted];
}

/// How many nodes a budget lets go at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// A count.
    Nodes(u32),
    /// A share of the pool's nodes in per cent, rounded up.
    Percent(u8),
}

/// How many nodes of a pool may be leaving at once, for some reasons, at some times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many.
    pub nodes: Allowance,
    /// For which reasons; empty means all.
    pub reasons: Vec<Reason>,
    /// When it holds; none means always.
    pub during: Option<Window>,
}

impl Budget {
    /// How many of `total` nodes may be leaving at once, if the budget holds for this reason now.
    pub fn allowed(&self, reason: Reason, total: usize, now: Timestamp) -> Option<usize> {
        let holds = (self.reasons.is_empty() || self.reasons.contains(&reason))
            && self
                .during
                .as_ref()
                .is_none_or(|window| window.active_at(now));
        holds.then(|| match self.nodes {
            Allowance::Nodes(count) => count as usize,
            Allowance::Percent(percent) => (total * usize::from(percent)).div_ceil(100),
        })
    }
}

/// Which nodes consolidation may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consolidation {
    /// Only empty ones.
    Empty,
    /// Empty and underutilized ones.
    #[default]
    EmptyOrUnderutilized,
    /// Like the former, weighing savings against disruption.
    Balanced,
}

/// Which pods may be moved that do not forbid it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Safety {
    /// All of them, as Karpenter does.
    #[default]
    Standard,
    /// Those that Cluster Autoscaler would move: that a controller makes anew, that lose nothing
    /// on a disk of the node, and in kube-system such as a disruption budget covers.
    Conservative,
}

/// What becomes of a node whose pods do not leave it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnBlocked {
    /// They are waited for, for as long as the termination grace period allows.
    #[default]
    Wait,
    /// The node stays, if nothing but we wants it to leave and no pod was told to go whatever its
    /// disruption budget says.
    Abort,
    /// They are told to go whatever their disruption budgets say, each with its own grace.
    Force,
}

/// When and how nodes of a pool are disrupted on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Which nodes consolidation may touch.
    pub consolidation: Consolidation,
    /// How long a node must have been without change; none means consolidation never.
    pub consolidate_after: Option<SignedDuration>,
    /// Which pods may be moved that do not forbid it.
    pub safety: Safety,
    /// How old a node must be to leave for any reason but its age.
    pub min_age: SignedDuration,
    /// Only nodes of whose cpu and memory less than so many per cent are asked for are
    /// underutilized; none where that does not count.
    pub utilization_threshold: Option<u32>,
    /// How long a node must have been underutilized with nothing against its leaving.
    pub unneeded_for: SignedDuration,
    /// What becomes of a node whose pods do not leave it in time.
    pub on_blocked: OnBlocked,
    /// How long its pods may take before that, from when they are told to go.
    pub drain_timeout: SignedDuration,
    /// How many at once. At most this many by every one of them.
    pub budgets: Vec<Budget>,
}

/// Limits on the sum of some nodes: a pool's, a cluster's, those of all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Capacity by resource name; `cpu` in thousandths. A missing name is not limited.
    pub capacity: Vec<(String, i64)>,
}

impl Limits {
    /// What remains of them after `used` capacity and `nodes` nodes; only limited names are listed,
    /// amounts may be negative.
    pub fn remaining(&self, used: &Resources, nodes: usize) -> Self {
        let taken = u32::try_from(nodes).unwrap_or(u32::MAX);
        let left = |(name, most): &(String, i64)| {
            let left = most.saturating_sub(used.get(name));
            (name.clone(), left)
        };
        Self {
            nodes: self.nodes.map(|most| most.saturating_sub(taken)),
            capacity: self.capacity.iter().map(left).collect(),
        }
    }

    /// Limits that hold where both these and `other` do.
    pub fn and(&self, other: &Self) -> Self {
        let mut capacity: BTreeMap<String, i64> = self.capacity.iter().cloned().collect();
        for (name, most) in &other.capacity {
            let own = capacity.entry(name.clone()).or_insert(*most);
            *own = (*own).min(*most);
        }
        Self {
            nodes: [self.nodes, other.nodes].into_iter().flatten().min(),
            capacity: capacity.into_iter().collect(),
        }
    }
}

/// A rule for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: PoolName,
    /// How EC2 makes its nodes; none where a simulated cloud makes them.
    pub node_class: Option<NodeClassName>,
    /// What the nodes' labels may be.
    pub requirements: Requirements,
    /// Labels the nodes get.
    pub labels: Labels,
    /// Annotations the nodes get.
    pub annotations: Labels,
    /// Taints the nodes get.
    pub taints: Vec<Taint>,
    /// Taints the nodes start with, taken away by someone else; ignored when placing pods.
    pub startup_taints: Vec<Taint>,
    /// Limits on all its nodes together.
    pub limits: Limits,
    /// Preference over other pools, higher first: 0 to 100.
    pub weight: u32,
    /// How many nodes there are whatever pods ask for (a static pool); none where pods decide. A
    /// static pool has no weight, is never consolidated, and is limited only in its nodes.
    pub replicas: Option<u32>,
    /// Age at which a node leaves; none means never.
    pub expire_after: Option<SignedDuration>,
    /// How long a leaving node's pods may hold it; none means for ever.
    pub termination_grace_period: Option<SignedDuration>,
    /// How long a launch may take.
    pub launch_timeout: SignedDuration,
    /// How long a launched instance may take to register.
    pub registration_timeout: SignedDuration,
    /// How long a registered node may take to initialize.
    pub initialization_timeout: SignedDuration,
    /// When its nodes are disrupted on purpose.
    pub disruption: Disruption,
}

impl Pool {
    /// A pool of this name with every setting at its default (Karpenter's where it has one).
    pub fn new(name: &str) -> Self {
        Self {
            name: PoolName::from(name),
            node_class: None,
            requirements: Requirements::default(),
            labels: Labels::default(),
            annotations: Labels::default(),
            taints: Vec::new(),
            startup_taints: Vec::new(),
            limits: Limits::default(),
            weight: 0,
            replicas: None,
            expire_after: Some(SignedDuration::from_hours(720)),
            termination_grace_period: None,
            launch_timeout: SignedDuration::from_mins(5),
            registration_timeout: SignedDuration::from_mins(15),
            initialization_timeout: SignedDuration::from_mins(15),
            disruption: Disruption {
                consolidation: Consolidation::default(),
                consolidate_after: Some(SignedDuration::ZERO),
                safety: Safety::default(),
                min_age: SignedDuration::ZERO,
                utilization_threshold: None,
                unneeded_for: SignedDuration::ZERO,
                on_blocked: OnBlocked::default(),
                drain_timeout: SignedDuration::from_mins(15),
                budgets: vec![Budget {
                    nodes: Allowance::Percent(10),
                    reasons: Vec::new(),
                    during: None,
                }],
            },
        }
    }

    /// The most restrictive allowance of all budgets that hold for this reason now; `total` where
    /// none holds. Source: spec/disruption.md §1.6.
    pub fn allowed_disruptions(&self, reason: Reason, total: usize, now: Timestamp) -> usize {
        self.disruption
            .budgets
            .iter()
            .filter_map(|budget| budget.allowed(reason, total, now))
            .min()
            .unwrap_or(total)
    }

    /// What remains of the limits after `used` capacity and `nodes` nodes; only limited names are
    /// listed, amounts may be negative.
    pub fn remaining(&self, used: &Resources, nodes: usize) -> Limits {
        self.limits.remaining(used, nodes)
    }
}
