//! Verdicts: the typed reasons why a node is not disrupted.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::{Rate, Reason};
use crate::state::candidates::{Candidate, NodeHealth, PendingApproval};
use crate::state::disruption_blockers::DisruptionBlocker;

/// The scope of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleScope {
    /// The rule of a pool.
    Pool,
    /// The rule of a cluster.
    Cluster,
    /// The rule of all clusters.
    Fleet,
}

impl RuleScope {
    /// The spelling in JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Cluster => "cluster",
            Self::Fleet => "fleet",
        }
    }
}

/// The reason why a node is not disrupted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not initialized.
    NotInitialized,
    /// Pods run on it.
    InUse {
        /// How many.
        pods: usize,
    },
    /// Pods are nominated for it.
    Nominated,
    /// A capacity buffer uses its free capacity.
    Buffer(String),
    /// Its pool does not consolidate.
    Never,
    /// Its pool consolidates only empty nodes.
    EmptyOnly,
    /// It is empty, which is a different reason.
    Empty,
    /// Its price is unknown.
    PriceUnknown,
    /// A pod cannot be scheduled elsewhere.
    NoPlace {
        /// The pod.
        pod: PodKey,
    },
    /// A pod has no controller that would recreate it, or uses a scheduler that Outrigger does not
    /// plan for.
    UnmanagedPod {
        /// The pod.
        pod: PodKey,
    },
    /// Moving its pods elsewhere saves too little.
    NotCheaper {
        /// The price of the node.
        price: Price,
    },
    /// Too few cheaper instance types fit its pods.
    TooFewReplacementTypes {
        /// The price of the node.
        price: Price,
    },
    /// The savings do not justify the disruption.
    NotWorthDisruption {
        /// The price of the node.
        price: Price,
    },
    /// Its utilization is not below the threshold of its pool.
    AboveUtilizationThreshold {
        /// Utilization of cpu or memory, in per cent.
        used: u32,
        /// The threshold in per cent.
        least: u32,
    },
    /// Its pool is static.
    Static,
    /// Its pool is not configured any more.
    NoPool,
    /// Pods were added or removed recently.
    RecentlyChanged {
        /// When the time is over.
        until: Timestamp,
    },
    /// It is below the minimum age of its pool.
    TooYoung {
        /// When it will be old enough.
        until: Timestamp,
    },
    /// It or one of its pods blocks disruption.
    Blocked(DisruptionBlocker),
    /// Its static pool has surplus nodes, which are terminated first.
    TooMany,
    /// A replacement would exceed the limits of its pool.
    Limits,
    /// Too many nodes of the cluster are not ready.
    Health(NodeHealth),
    /// It is unhealthy and may recover.
    Recovering {
        /// When it is replaced.
        until: Timestamp,
    },
    /// Too many nodes of its pool are unhealthy to replace one.
    Broken {
        /// Number of unhealthy nodes.
        broken: usize,
        /// Number of nodes.
        total: usize,
    },
    /// The highest number of unhealthy nodes is already being replaced.
    Repairing {
        /// The limit.
        most: usize,
    },
    /// A configuration change would disrupt too many nodes without approval.
    ApprovalPending {
        /// The ID to approve.
        id: String,
        /// Share of the nodes of the cluster that it would disrupt, in per cent.
        percent: usize,
    },
    /// Its Node object is being deleted.
    Deleted,
    /// It is already being disrupted for this reason.
    Leaving(Reason),
    /// It waits for its replacements.
    Replaced,
    /// It has no NodeClaim of Outrigger.
    Unmanaged,
    /// A cool-down after a different change in the cluster.
    CoolDown {
        /// When the time is over.
        until: Timestamp,
        /// The change.
        after: &'static str,
    },
    /// Its pool or cluster is paused.
    Paused {
        /// The scope of the pause.
        of: RuleScope,
        /// When the pause ends. `None` if only a user ends it.
        until: Option<Timestamp>,
        /// The reason that the user gave.
        reason: String,
    },
    /// The Lease of the cluster cannot be read, so it is unknown whether disruption is allowed.
    LeaseUnreadable(String),
    /// Outside maintenance windows.
    Window {
        /// When the next window opens. `None` if none is found.
        opens: Option<Timestamp>,
    },
    /// A disruption budget is used up.
    Budget {
        /// The scope of the budget.
        of: RuleScope,
        /// The rate, if it allows no further disruption now.
        rate: Option<Rate>,
        /// Number of nodes that it allows at a time, or within the period of the rate.
        allowed: usize,
        /// When it allows more at the latest. `None` if that depends on other nodes.
        opens: Option<Timestamp>,
    },
}

impl Verdict {
    /// The verdict for nodes that wait for the approval of a configuration change.
    pub fn approval_pending(unaccepted: &PendingApproval) -> Self {
        Self::ApprovalPending { id: unaccepted.id.clone(), percent: unaccepted.percent() }
    }

    /// Returns when the verdict ends by itself or must be evaluated again, if known.
    pub fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::RecentlyChanged { until }
            | Self::TooYoung { until }
            | Self::Recovering { until }
            | Self::CoolDown { until, .. } => Some(*until),
            Self::Blocked(why) => why.ends_at(),
            Self::Paused { until, .. } => *until,
            Self::Window { opens } | Self::Budget { opens, .. } => *opens,
            _ => None,
        }
    }

    /// Returns whether the cause is not the node itself: a budget, a pause or a maintenance window.
    pub fn is_safeguard(&self) -> bool {
        matches!(
            self,
            Self::Paused { .. } | Self::Window { .. } | Self::Budget { .. } | Self::CoolDown { .. }
        )
    }

    /// Returns whether the node is a valid candidate: the cause is other nodes, or the result of
    /// the consolidation.
    pub fn is_eligible(&self) -> bool {
        let weighed = matches!(
            self,
            Self::NotCheaper { .. }
                | Self::NotWorthDisruption { .. }
                | Self::TooFewReplacementTypes { .. }
                | Self::NoPlace { .. }
        );
        weighed || self.is_safeguard()
    }

    /// Returns whether no change of nodes or pods ends the verdict, so users must be notified.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Paused { .. } | Self::LeaseUnreadable(_) | Self::Window { .. } => true,
            Self::Budget { allowed, .. } => *allowed == 0,
            _ => false,
        }
    }

    /// Returns whether users must be notified that a node is kept for this reason. They are
    /// notified of [permanent verdicts](Self::is_permanent). For a node that is due, they are also
    /// notified of blockers that do not end by themselves.
    pub fn is_reported(&self, reason: Reason) -> bool {
        let holds = match self {
            Self::Blocked(why) => why.ends_at().is_none() && !why.is_temporary(),
            Self::Broken { .. } | Self::Repairing { .. } | Self::Limits => true,
            _ => false,
        };
        self.is_permanent() || holds && !reason.is_consolidation()
    }

    /// The spelling in JSON, logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotInitialized => "not_initialized",
            Self::InUse { .. } => "in_use",
            Self::Nominated => "nominated",
            Self::Buffer(_) => "buffer",
            Self::Never => "never",
            Self::EmptyOnly => "empty_only",
            Self::Empty => "empty",
            Self::PriceUnknown => "price_unknown",
            Self::NoPlace { .. } => "no_place",
            Self::UnmanagedPod { .. } => "unmanaged_pod",
            Self::NotCheaper { .. } => "not_cheaper",
            Self::TooFewReplacementTypes { .. } => "too_few_replacement_types",
            Self::NotWorthDisruption { .. } => "not_worth_disruption",
            Self::AboveUtilizationThreshold { .. } => "above_utilization_threshold",
            Self::Static => "static",
            Self::NoPool => "no_pool",
            Self::RecentlyChanged { .. } => "recently_changed",
            Self::TooYoung { .. } => "too_young",
            Self::Blocked(_) => "blocked",
            Self::Deleted => "deleted",
            Self::Leaving(_) => "leaving",
            Self::Replaced => "replaced",
            Self::Unmanaged => "unmanaged",
            Self::CoolDown { .. } => "cool_down",
            Self::Paused { .. } => "paused",
            Self::LeaseUnreadable(_) => "lease_unreadable",
            Self::Window { .. } => "window",
            Self::TooMany => "too_many",
            Self::Limits => "limits",
            Self::Health(_) => "health",
            Self::Recovering { .. } => "recovering",
            Self::Broken { .. } => "broken",
            Self::Repairing { .. } => "repairing",
            Self::ApprovalPending { .. } => "approval_pending",
            Self::Budget { .. } => "budget",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => f.write_str("not initialized"),
            Self::InUse { pods } => write!(f, "not empty: {pods} pod(s) running"),
            Self::Nominated => f.write_str("nominated for pending pods"),
            Self::Buffer(name) => write!(f, "reserved for capacity buffer {name}"),
            Self::Never => f.write_str("consolidation is disabled in its pool"),
            Self::EmptyOnly => f.write_str("its pool consolidates only empty nodes"),
            Self::Empty => f.write_str("empty, not underutilized"),
            Self::PriceUnknown => f.write_str("its price is unknown"),
            Self::NoPlace { pod } => write!(f, "pod {pod} cannot be scheduled elsewhere"),
            Self::UnmanagedPod { pod } => write_unmanaged(f, pod),
            Self::NotCheaper { price } => {
                write_price(f, *price, "moving its pods elsewhere saves too little")
            }
            Self::TooFewReplacementTypes { price } => {
                write_price(f, *price, "too few cheaper instance types fit its pods")
            }
            Self::NotWorthDisruption { price } => {
                write_price(f, *price, "the savings do not justify the disruption")
            }
            Self::AboveUtilizationThreshold { used, least } => write_utilization(f, *used, *least),
            Self::Static => f.write_str("its pool is static"),
            Self::NoPool => f.write_str("its pool is not configured"),
            Self::RecentlyChanged { until } => {
                write!(f, "pods changed recently; not a candidate before {until}")
            }
            Self::TooYoung { until } => {
                write!(f, "below the minimum age of its pool until {until}")
            }
            Self::Blocked(why) => write!(f, "{why}"),
            Self::TooMany => {
                f.write_str("its static pool has surplus nodes, which are terminated first")
            }
            Self::Limits => f.write_str("the limits of its pool do not allow a replacement"),
            Self::Health(NodeHealth { unready, total }) => {
                write!(f, "{unready} of {total} nodes in the cluster are not ready")
            }
            Self::Recovering { until } => {
                write!(f, "it may still recover until {until}")
            }
            Self::Broken { broken, total } => write!(
                f,
                "{broken} of {total} nodes in its pool are unhealthy, too many to replace them"
            ),
            Self::Repairing { most } => {
                write!(f, "at most {most} unhealthy node(s) are replaced at a time")
            }
            Self::ApprovalPending { id, percent } => write_approval(f, id, *percent),
            Self::Deleted => f.write_str("its Node object is being deleted"),
            Self::Leaving(reason) => write!(f, "already being disrupted: {}", reason.as_str()),
            Self::Replaced => f.write_str("to be disrupted once its replacements are ready"),
            Self::Unmanaged => f.write_str("not managed by Outrigger"),
            Self::CoolDown { until, after } => {
                write!(f, "in back-off until {until}, after {after}")
            }
            Self::Paused { of, until, reason } => write_paused(f, *of, *until, reason),
            Self::LeaseUnreadable(why) => f.write_str(why),
            Self::Window { opens: Some(opens) } => {
                write!(f, "outside maintenance windows until {opens}")
            }
            Self::Window { opens: None } => {
                f.write_str("no maintenance window ever allows this reason")
            }
            Self::Budget { of, rate, allowed, opens } => {
                write_budget(f, *of, *rate, *allowed, *opens)
            }
        }
    }
}

fn write_unmanaged(f: &mut fmt::Formatter<'_>, pod: &PodKey) -> fmt::Result {
    write!(
        f,
        "pod {pod} has no controller that would recreate it, or uses a scheduler that Outrigger \
         does not plan for"
    )
}

fn write_utilization(f: &mut fmt::Formatter<'_>, used: u32, least: u32) -> fmt::Result {
    write!(f, "utilization of {used} % is not below the threshold of its pool, {least} %")
}

fn write_approval(f: &mut fmt::Formatter<'_>, id: &str, percent: usize) -> fmt::Result {
    write!(
        f,
        "the new configuration would disrupt {percent} % of the nodes; approve it with `outrigger \
         reload --accept {id}`"
    )
}

fn write_price(f: &mut fmt::Formatter<'_>, price: Price, but: &str) -> fmt::Result {
    write!(f, "it costs {:.4} $/h; {but}", price.usd_per_h())
}

fn write_paused(
    f: &mut fmt::Formatter<'_>,
    scope: RuleScope,
    until: Option<Timestamp>,
    reason: &str,
) -> fmt::Result {
    let subject = match scope {
        RuleScope::Pool => "its pool",
        RuleScope::Cluster | RuleScope::Fleet => "the cluster",
    };
    write!(f, "{subject} is paused")?;
    if let Some(until) = until {
        write!(f, " until {until}")?;
    }
    if reason.is_empty() {
        return Ok(());
    }
    write!(f, ": {reason}")
}

fn write_budget(
    f: &mut fmt::Formatter<'_>,
    scope: RuleScope,
    rate: Option<Rate>,
    allowed: usize,
    opens: Option<Timestamp>,
) -> fmt::Result {
    let whose = match scope {
        RuleScope::Pool => "its pool",
        RuleScope::Cluster => "the cluster",
        RuleScope::Fleet => "the fleet",
    };
    match rate {
        Some(rate) => write!(f, "the disruption budget of {whose} is used up ({rate})")?,
        None => write!(f, "the disruption budget of {whose} allows {allowed} node(s) at a time")?,
    }
    opens.map_or(Ok(()), |opens| write!(f, ", until {opens}"))
}

/// A kept node and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedNode {
    /// The node.
    pub node: NodeName,
    /// The disruption reason that was evaluated.
    pub reason: Reason,
    /// The verdict.
    pub verdict: Verdict,
}

impl RetainedNode {
    /// Keeps a candidate for this reason.
    pub fn new(candidate: &Candidate<'_>, reason: Reason, verdict: Verdict) -> Self {
        Self { node: candidate.node.name.clone(), reason, verdict }
    }
}

/// Returns when the first kept node must be evaluated again.
pub fn next_due(kept: &[RetainedNode]) -> Option<Timestamp> {
    kept.iter().filter_map(|kept| kept.verdict.ends_at()).min()
}
