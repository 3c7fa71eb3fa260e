//! Pools: requirements, limits, disruption settings and lifetimes of nodes, parsed and valid.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{NodeClassName, PoolName};
use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;
use crate::model::node::ConditionStatus;
use crate::model::quantity::Resources;
use crate::model::requirement::Requirements;
use crate::model::taint::Taint;
use crate::model::window::Window;

named_enum! {
    /// Why a node is disrupted. The names appear in HCL, logs, metrics and annotations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// Only daemons run on the node.
        Empty => "empty",
        /// The pods of the node can be scheduled on other nodes or on a cheaper node.
        Underutilized => "underutilized",
        /// The node no longer matches its pool or node class.
        Drifted => "drifted",
        /// The node has exceeded the maximum age of its pool.
        Expired => "expired",
        /// The provider interrupts the node.
        Interrupted => "interrupted",
        /// The node is unhealthy.
        Unhealthy => "unhealthy",
        /// The instance of the node has no Node object, or the Node object has no instance.
        Orphaned => "orphaned",
        /// The node did not launch, register or initialize in time.
        TimedOut => "timed_out",
        /// The static pool of the node has more nodes than configured.
        Surplus => "surplus",
        /// A user deletes the Node object, and the finalizer drains the node first.
        Deleted => "deleted",
    }
}

impl Reason {
    /// Returns whether the node is only disrupted once all its pods can be scheduled elsewhere, and
    /// is kept otherwise.
    pub fn waits_for_placements(self) -> bool {
        matches!(self, Self::Underutilized | Self::Drifted | Self::Expired)
    }

    /// Returns whether the node's termination grace period limits how long its pods can delay the
    /// disruption.
    pub fn is_eventual(self) -> bool {
        matches!(self, Self::Drifted | Self::Expired)
    }

    /// Returns whether the disruption is voluntary, so that it can be cancelled.
    pub fn is_voluntary(self) -> bool {
        self.waits_for_placements() || matches!(self, Self::Empty | Self::Surplus)
    }

    /// The reasons that a budget or window may name.
    pub const BUDGETED: [Self; 4] =
        [Self::Empty, Self::Underutilized, Self::Drifted, Self::Expired];

    /// Returns whether budgets, windows and pauses apply to the reason.
    pub fn is_budgeted(self) -> bool {
        Self::BUDGETED.contains(&self)
    }

    /// Returns whether an unready node is terminated immediately without a drain: its kubelet does
    /// not respond.
    pub fn terminates_undrained(self) -> bool {
        matches!(self, Self::Unhealthy | Self::TimedOut)
    }

    /// Returns whether the disruption reduces cost.
    pub fn is_consolidation(self) -> bool {
        matches!(self, Self::Empty | Self::Underutilized)
    }
}

/// Returns whether a rule with these reasons applies to one reason. A rule without reasons applies
/// to all reasons.
pub fn applies_to_reason(reasons: &[Reason], reason: Reason) -> bool {
    reasons.is_empty() || reasons.contains(&reason)
}

/// How many nodes a budget allows to be disrupted simultaneously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetNodes {
    /// A count.
    Nodes(u32),
    /// A percentage of the pool's nodes, rounded up.
    Percent(u8),
}

impl BudgetNodes {
    /// The number of nodes, given `total` nodes.
    pub fn nodes_of(self, total: usize) -> usize {
        match self {
            Self::Nodes(count) => count as usize,
            Self::Percent(percent) => (total * usize::from(percent)).div_ceil(100),
        }
    }
}

/// How many nodes a budget allows to be disrupted within any period of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of nodes.
    pub nodes: u32,
    /// Length of the period.
    pub per: SignedDuration,
}

impl Rate {
    /// Maximum number of nodes in a rate. The Lease of the cluster records each disrupted node for
    /// the length of the period, and an object has space for a few thousand.
    pub const NODES_MAX: u32 = 1000;

    const UNITS: [(&'static str, SignedDuration); 3] = [
        ("m", SignedDuration::from_mins(1)),
        ("h", SignedDuration::from_hours(1)),
        ("d", SignedDuration::from_hours(24)),
    ];

    /// Parses a rate such as `20/h`: a number from 1 to [`Self::NODES_MAX`], a slash and
    /// `m`, `h` or `d`.
    pub fn parse(text: &str) -> Option<Self> {
        let (nodes, unit) = text.split_once('/')?;
        let is_number = !nodes.is_empty() && nodes.bytes().all(|byte| byte.is_ascii_digit());
        let nodes: u32 = is_number.then(|| nodes.parse().ok()).flatten()?;
        let (_, per) = Self::UNITS.into_iter().find(|(name, _)| *name == unit)?;
        (1..=Self::NODES_MAX).contains(&nodes).then_some(Self { nodes, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Self::UNITS.into_iter().find(|(_, per)| *per == self.per);
        write!(f, "{}/{}", self.nodes, unit.map_or("?", |(name, _)| name))
    }
}

/// A disruption budget of a pool, a cluster or all clusters: how many nodes may be disrupted
/// simultaneously or per period, for some reasons, at some times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum number of nodes disrupted simultaneously. All nodes if only a rate is set.
    pub nodes: BudgetNodes,
    /// Maximum number of nodes per period. `None` means no rate.
    pub rate: Option<Rate>,
    /// Reasons that the budget applies to. Empty means all.
    pub reasons: Vec<Reason>,
    /// When the budget applies. `None` means always.
    pub during: Option<Window>,
}

impl Budget {
    /// Creates a budget for all reasons that always applies and has no rate.
    pub const fn new(nodes: BudgetNodes) -> Self {
        Self { nodes, rate: None, reasons: Vec::new(), during: None }
    }

    /// Returns whether the budget applies to this reason now.
    pub fn applies_to(&self, reason: Reason, now: Timestamp) -> bool {
        let mut during = self.during.iter();
        applies_to_reason(&self.reasons, reason) && during.all(|window| window.is_open_at(now))
    }

    /// The rate that applies to a reason at any time.
    pub fn rate_for(&self, reason: Reason) -> Option<Rate> {
        self.rate.filter(|_| applies_to_reason(&self.reasons, reason))
    }

    /// How many of `total` nodes may be disrupted simultaneously, if the budget applies to this
    /// reason now.
    pub fn allowed_nodes(&self, reason: Reason, total: usize, now: Timestamp) -> Option<usize> {
        self.applies_to(reason, now).then(|| self.nodes.nodes_of(total))
    }
}

/// A maintenance window, which either allows or blocks disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Whether nodes are disrupted only within the window, rather than only outside of it.
    pub allows: bool,
    /// Reasons that the window applies to. Empty means all.
    pub reasons: Vec<Reason>,
    /// When the window is open.
    pub during: Window,
}

/// How long consolidation pauses after an event in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoolDown {
    /// Pause after the launch of an instance.
    pub after_launch: SignedDuration,
    /// Pause after the termination of an instance.
    pub after_end: SignedDuration,
    /// Pause after a failed disruption.
    pub after_failure: SignedDuration,
}

/// Disruption settings of a cluster, in addition to those of its pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDisruption {
    /// Disruption budgets for all its nodes.
    pub budgets: Vec<Budget>,
    /// Maintenance windows.
    pub windows: Vec<Maintenance>,
    /// How long consolidation pauses after an event.
    pub cool_down: CoolDown,
}

/// Which nodes consolidation may disrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consolidation {
    /// Only empty nodes.
    Empty,
    /// Empty and underutilized nodes.
    #[default]
    EmptyOrUnderutilized,
    /// Empty and underutilized nodes, after weighing the savings against the disruption.
    Balanced,
}

/// Which pods may be evicted, unless they forbid it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Safety {
    /// All pods, as in Karpenter.
    #[default]
    Standard,
    /// The pods that Cluster Autoscaler would evict: a controller recreates them, they lose no data
    /// on a disk of the node, and in kube-system a PodDisruptionBudget matches them.
    Conservative,
}

/// Action when a drain exceeds `drain_timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnBlocked {
    /// Keep draining until the termination grace period ends. Without a grace period, a voluntary
    /// disruption is cancelled if a pod is permanently protected or its PodDisruptionBudget
    /// requires all of its pods.
    #[default]
    Wait,
    /// Cancel a voluntary disruption and keep the node, unless a pod was already deleted regardless
    /// of its PodDisruptionBudget.
    Abort,
    /// Delete the remaining pods regardless of PodDisruptionBudgets, each with its own grace
    /// period.
    Force,
}

/// Disruption settings of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disruption {
    /// Which nodes consolidation may disrupt.
    pub consolidation: Consolidation,
    /// How long a node must be unchanged before consolidation. `None` disables consolidation.
    pub consolidate_after: Option<SignedDuration>,
    /// Which pods may be evicted, unless they forbid it.
    pub safety: Safety,
    /// Minimum age of a node for any disruption other than expiration.
    pub min_age: SignedDuration,
    /// A node is only underutilized if less than this percentage of its CPU and of its memory is
    /// requested. `None` means no threshold.
    pub utilization_threshold: Option<u32>,
    /// Minimum number of instance types in the replacement of a spot node by a cheaper spot node. 0
    /// disables such replacements.
    pub spot_to_spot_min_types: u32,
    /// How long the set of pods on a node must be unchanged before the node is considered
    /// underutilized.
    pub unneeded_for: SignedDuration,
    /// Action when a drain exceeds `drain_timeout`.
    pub on_blocked: OnBlocked,
    /// Maximum drain time, from the first eviction, before `on_blocked` applies.
    pub drain_timeout: SignedDuration,
    /// Disruption budgets. Every budget must allow a disruption.
    pub budgets: Vec<Budget>,
    /// Maintenance windows.
    pub windows: Vec<Maintenance>,
}

/// How long a node may have a condition before it is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    /// Type of the condition.
    pub condition: String,
    /// Status of the condition.
    pub status: ConditionStatus,
    /// The duration. `None` means that the condition never replaces a node.
    pub after: Option<SignedDuration>,
}

impl RepairPolicy {
    /// The default policies. Source: Karpenter's AWS provider, spec/disruption.md §3.4.
    pub fn default_policies() -> Vec<Self> {
        use ConditionStatus::{False, Unknown};
        [
            ("Ready", False, 30),
            ("Ready", Unknown, 30),
            ("AcceleratedHardwareReady", False, 10),
            ("StorageReady", False, 30),
            ("NetworkingReady", False, 30),
            ("KernelReady", False, 30),
            ("ContainerRuntimeReady", False, 30),
        ]
        .into_iter()
        .map(|(condition, status, minutes)| Self {
            condition: condition.to_owned(),
            status,
            after: Some(SignedDuration::from_mins(minutes)),
        })
        .collect()
    }
}

/// Limits on the total of a set of nodes: of a pool, a cluster, or all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Capacity by resource name; `cpu` in thousandths. A missing resource is not limited.
    pub capacity: Vec<(String, i64)>,
}

impl Limits {
    /// Returns the remaining limits after `used` capacity and `nodes` nodes. Only limited resources
    /// are listed, and quantities may be negative.
    pub fn remaining_after(&self, used: &Resources, nodes: usize) -> Self {
        let taken = u32::try_from(nodes).unwrap_or(u32::MAX);
        Self {
            nodes: self.nodes.map(|limit| limit.saturating_sub(taken)),
            capacity: self
                .capacity
                .iter()
                .map(|(name, limit)| (name.clone(), limit.saturating_sub(used.get(name))))
                .collect(),
        }
    }

    /// Returns the stricter one of the two limits for each resource.
    pub fn stricter_of(&self, other: &Self) -> Self {
        let mut capacity: BTreeMap<String, i64> = self.capacity.iter().cloned().collect();
        for (name, other_limit) in &other.capacity {
            let limit = capacity.entry(name.clone()).or_insert(*other_limit);
            *limit = (*limit).min(*other_limit);
        }
        Self {
            nodes: [self.nodes, other.nodes].into_iter().flatten().min(),
            capacity: capacity.into_iter().collect(),
        }
    }
}

/// A pool of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: PoolName,
    /// The node class. `None` for a simulated cloud.
    pub node_class: Option<NodeClassName>,
    /// Allowed values of the nodes' labels.
    pub requirements: Requirements,
    /// Labels of the nodes.
    pub labels: Labels,
    /// Annotations of the nodes.
    pub annotations: Labels,
    /// Taints of the nodes.
    pub taints: Vec<Taint>,
    /// Startup taints of the nodes, which another controller removes. They are ignored in
    /// scheduling.
    pub startup_taints: Vec<Taint>,
    /// Limits on the sum of all its nodes.
    pub limits: Limits,
    /// Preference over other pools, highest first: 0 to 100.
    pub weight: u32,
    /// Fixed number of nodes (a static pool). `None` means that pods determine the number. A static
    /// pool has no weight, is never consolidated, and has only a limit on its number of nodes.
    pub replicas: Option<u32>,
    /// Age at which a node expires. `None` means never.
    pub expire_after: Option<SignedDuration>,
    /// Age at which a node expires regardless of budgets and annotations. `None` means never.
    pub expire_hard_after: Option<SignedDuration>,
    /// Maximum drain time of a node. `None` means unlimited.
    pub termination_grace_period: Option<SignedDuration>,
    /// Timeout of a launch.
    pub launch_timeout: SignedDuration,
    /// Timeout from launch to registration.
    pub registration_timeout: SignedDuration,
    /// Timeout from registration to initialization.
    pub initialization_timeout: SignedDuration,
    /// Disruption settings.
    pub disruption: Disruption,
    /// Conditions that mark a node as unhealthy. Empty means that nodes are never repaired.
    pub repair: Vec<RepairPolicy>,
}

impl Pool {
    /// A pool of this name with default settings (Karpenter's defaults, if any).
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
            expire_hard_after: None,
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
                spot_to_spot_min_types: 1,
                unneeded_for: SignedDuration::ZERO,
                on_blocked: OnBlocked::default(),
                drain_timeout: SignedDuration::from_mins(15),
                budgets: vec![Budget::new(BudgetNodes::Percent(10))],
                windows: Vec::new(),
            },
            repair: RepairPolicy::default_policies(),
        }
    }

    /// Returns whether the pool requires several instance types, or several values of another label
    /// (`min_values`).
    pub fn is_varied(&self) -> bool {
        self.requirements.iter().any(|(_, requirement)| requirement.min_values.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, Reason};

    #[test]
    fn rate_is_a_count_per_minute_hour_or_day() {
        for text in ["1/m", "20/h", "1000/d"] {
            let rate = Rate::parse(text).expect("a rate");
            assert_eq!(rate.to_string(), text);
        }
        let bad = ["", "20", "20/", "/h", "0/h", "1001/d", "20/w", "-1/h", "+1/h", "2.5/h", "1 /h"];
        for text in bad {
            assert_eq!(Rate::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn reasons_round_trip_and_only_voluntary_ones_are_budgeted() {
        for reason in Reason::BUDGETED {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
            assert!(reason.is_budgeted());
        }
        assert_eq!(Reason::parse("interrupted"), Some(Reason::Interrupted));
        assert!(!Reason::Interrupted.is_budgeted());
        assert_eq!(Reason::parse("Empty"), None);
    }
}
