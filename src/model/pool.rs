//! A pool: the rule by which nodes are made and left, already parsed and already valid.
//! It must not know the text it was written in.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{NodeClassName, PoolName};
use crate::model::labels::Labels;
use crate::model::node::ConditionStatus;
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

    /// The reasons a budget or window may name.
    pub const BUDGETED: [Self; 4] = [
        Self::Empty,
        Self::Underutilized,
        Self::Drifted,
        Self::Expired,
    ];

    /// Whether budgets, windows and pauses count where a node leaves for it.
    pub fn is_budgeted(self) -> bool {
        Self::BUDGETED.contains(&self)
    }

    /// Whether a node that leaves for it and is not ready ends at once, with all that is on it:
    /// nothing there answers.
    pub fn ends_at_once(self) -> bool {
        matches!(self, Self::Unhealthy | Self::TimedOut)
    }

    /// Whether a node leaves for it to save money.
    pub fn is_consolidation(self) -> bool {
        matches!(self, Self::Empty | Self::Underutilized)
    }
}

/// Whether rules that name these reasons hold for one: those that name none hold for all.
pub fn names(reasons: &[Reason], reason: Reason) -> bool {
    reasons.is_empty() || reasons.contains(&reason)
}

/// How many nodes a budget lets go at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetNodes {
    /// A count.
    Nodes(u32),
    /// A share of the pool's nodes in per cent, rounded up.
    Percent(u8),
}

impl BudgetNodes {
    /// How many of `total` nodes that is.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Nodes(count) => count as usize,
            Self::Percent(percent) => (total * usize::from(percent)).div_ceil(100),
        }
    }
}

/// How many nodes a budget lets go within any span of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub nodes: u32,
    /// Within how long.
    pub per: SignedDuration,
}

impl Rate {
    /// Most nodes of a rate: each is remembered on the Lease of its cluster for as long as it
    /// counts, and an object has room for some thousands.
    pub const NODES_MAX: u32 = 1000;

    const UNITS: [(&'static str, SignedDuration); 3] = [
        ("m", SignedDuration::from_mins(1)),
        ("h", SignedDuration::from_hours(1)),
        ("d", SignedDuration::from_hours(24)),
    ];

    /// A rate as it is written: `20/h`, a number from 1 to [`NODES_MAX`](Self::NODES_MAX) and `m`,
    /// `h` or `d`.
    pub fn parse(text: &str) -> Option<Self> {
        let (nodes, unit) = text.split_once('/')?;
        let plain = !nodes.is_empty() && nodes.bytes().all(|own| own.is_ascii_digit());
        let nodes: u32 = plain.then(|| nodes.parse().ok()).flatten()?;
        let (_, per) = Self::UNITS.into_iter().find(|(name, _)| *name == unit)?;
        (1..=Self::NODES_MAX)
            .contains(&nodes)
            .then_some(Self { nodes, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Self::UNITS.into_iter().find(|(_, per)| *per == self.per);
        write!(f, "{}/{}", self.nodes, unit.map_or("?", |(name, _)| name))
    }
}

/// How many nodes may be leaving at once, or be let go within some time, for some reasons, at some
/// times: nodes of a pool, of a cluster, or of all clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many at once; all of them where only a rate is given.
    pub nodes: BudgetNodes,
    /// How many within some time; none where only their number at once counts.
    pub rate: Option<Rate>,
    /// For which reasons; empty means all.
    pub reasons: Vec<Reason>,
    /// When it holds; none means always.
    pub during: Option<Window>,
}

impl Budget {
    /// Whether it holds for this reason now.
    pub fn holds(&self, reason: Reason, now: Timestamp) -> bool {
        let mut during = self.during.iter();
        names(&self.reasons, reason) && during.all(|window| window.active_at(now))
    }

    /// The rate that counts for a reason at any time.
    pub fn rate_for(&self, reason: Reason) -> Option<Rate> {
        self.rate.filter(|_| names(&self.reasons, reason))
    }

    /// How many of `total` nodes may be leaving at once, if the budget holds for this reason now.
    pub fn allowed(&self, reason: Reason, total: usize, now: Timestamp) -> Option<usize> {
        self.holds(reason, now).then(|| self.nodes.of(total))
    }
}

/// A time for maintenance, or against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Whether nodes leave only within such times, rather than outside of them.
    pub allows: bool,
    /// For which reasons; empty means all.
    pub reasons: Vec<Reason>,
    /// When.
    pub during: Window,
}

/// How long nothing is consolidated after something else was done in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoolDown {
    /// After an instance was launched.
    pub after_launch: SignedDuration,
    /// After an instance was ended.
    pub after_end: SignedDuration,
    /// After a node that was to leave could not.
    pub after_failure: SignedDuration,
}

/// When nodes of a cluster are disrupted on purpose, whatever their pools say besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDisruption {
    /// How many of its nodes at once, or within some time.
    pub budgets: Vec<Budget>,
    /// When.
    pub windows: Vec<Maintenance>,
    /// How long nothing is consolidated after something else was done.
    pub cool_down: CoolDown,
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
    /// They are waited for, for as long as the termination grace period allows. Without one, what
    /// nothing but we wants to leave stays if a pod on it asks to stay for ever, or its disruption
    /// budget wants all of its pods.
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
    /// Of how many types, at least, the cheaper node may be that takes a spot node's place, if it
    /// is spot, too; none takes its place where that is 0.
    pub spot_to_spot_min_types: u32,
    /// How long no pod must have come to a node or left it before it leaves as underutilized.
    pub unneeded_for: SignedDuration,
    /// What becomes of a node whose pods do not leave it in time.
    pub on_blocked: OnBlocked,
    /// How long its pods may take before that, from when they are told to go.
    pub drain_timeout: SignedDuration,
    /// How many at once. At most this many by every one of them.
    pub budgets: Vec<Budget>,
    /// When.
    pub windows: Vec<Maintenance>,
}

/// For how long a node may have a condition before it is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairPolicy {
    /// Type of the condition.
    pub condition: String,
    /// What it says.
    pub status: ConditionStatus,
    /// For how long; none means that it is no reason to replace a node.
    pub after: Option<SignedDuration>,
}

impl RepairPolicy {
    /// What holds where nothing else is said. Source: Karpenter's AWS provider,
    /// spec/disruption.md §3.4.
    pub fn defaults() -> Vec<Self> {
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
    /// Age at which a node leaves whatever budgets and annotations say; none means never.
    pub expire_hard_after: Option<SignedDuration>,
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
    /// When its nodes count as broken; where there is none, never.
    pub repair: Vec<RepairPolicy>,
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
                budgets: vec![Budget {
                    nodes: BudgetNodes::Percent(10),
                    rate: None,
                    reasons: Vec::new(),
                    during: None,
                }],
                windows: Vec::new(),
            },
            repair: RepairPolicy::defaults(),
        }
    }

    /// Whether the pool asks for several types, or several values of another label (`min_values`).
    pub fn is_varied(&self) -> bool {
        self.requirements
            .iter()
            .any(|(_, own)| own.min_values.is_some())
    }

    /// What remains of the limits after `used` capacity and `nodes` nodes; only limited names are
    /// listed, amounts may be negative.
    pub fn remaining(&self, used: &Resources, nodes: usize) -> Limits {
        self.limits.remaining(used, nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rate, Reason};

    #[test]
    fn a_rate_is_a_number_within_a_minute_an_hour_or_a_day() {
        for text in ["1/m", "20/h", "1000/d"] {
            let rate = Rate::parse(text).expect("a rate");
            assert_eq!(rate.to_string(), text);
        }
        let bad = [
            "", "20", "20/", "/h", "0/h", "1001/d", "20/w", "-1/h", "+1/h", "2.5/h", "1 /h",
        ];
        for text in bad {
            assert_eq!(Rate::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_reason_is_read_as_it_is_written_and_budgets_are_for_those_on_purpose() {
        for reason in Reason::BUDGETED {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
            assert!(reason.is_budgeted());
        }
        assert_eq!(Reason::parse("interrupted"), Some(Reason::Interrupted));
        assert!(!Reason::Interrupted.is_budgeted());
        assert_eq!(Reason::parse("Empty"), None);
    }
}
