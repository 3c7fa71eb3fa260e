//! Verdicts: the typed reasons why a node is not disrupted.

use std::fmt;

use jiff::Timestamp;
use thiserror::Error;

use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::named_enum::named_enum;
use crate::model::pool::{Rate, Reason};
use crate::model::sweep::SweepKind;
use crate::state::candidates::{Candidate, NodeHealth, PendingApproval};
use crate::state::disruption_blockers::DisruptionBlocker;

named_enum! {
    /// The scope of a rule. The names appear in JSON and logs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum RuleScope {
        /// The rule of a pool.
        Pool => "pool",
        /// The rule of a cluster.
        Cluster => "cluster",
        /// The rule of all clusters.
        Fleet => "fleet",
    }
}

/// The reason why a node is not disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Verdict {
    /// The node is not initialized.
    #[error("not initialized")]
    NotInitialized,
    /// Pods run on the node.
    #[error("not empty: {pods} pod(s) running")]
    InUse {
        /// Number of these pods.
        pods: usize,
    },
    /// Pods are nominated for the node.
    #[error("nominated for pending pods")]
    Nominated,
    /// A capacity buffer uses the free capacity of the node.
    #[error("reserved for capacity buffer {0}")]
    Buffer(String),
    /// Consolidation is turned off in the pool of the node.
    #[error("consolidation is disabled in its pool")]
    Never,
    /// The pool consolidates only empty nodes.
    #[error("its pool consolidates only empty nodes")]
    EmptyOnly,
    /// The node is empty, which is a different disruption reason.
    #[error("empty, not underutilized")]
    Empty,
    /// The price of the node is unknown.
    #[error("its price is unknown")]
    PriceUnknown,
    /// A pod of the node cannot be scheduled elsewhere.
    #[error("pod {pod} cannot be scheduled elsewhere")]
    NoPlace {
        /// The pod.
        pod: PodKey,
    },
    /// A pod has no controller that would recreate it, or uses a scheduler that Outrigger does not
    /// plan for.
    #[error(
        "pod {pod} has no controller that would recreate it, or uses a scheduler that Outrigger \
         does not plan for"
    )]
    UnmanagedPod {
        /// The pod.
        pod: PodKey,
    },
    /// Moving the pods of the node elsewhere saves too little.
    #[error(
        "it costs {:.4} $/h; moving its pods elsewhere saves too little",
        .price.usd_per_h()
    )]
    NotCheaper {
        /// The price of the node.
        price: Price,
    },
    /// Too few cheaper instance types fit the pods of the node.
    #[error(
        "it costs {:.4} $/h; too few cheaper instance types fit its pods",
        .price.usd_per_h()
    )]
    TooFewReplacementTypes {
        /// The price of the node.
        price: Price,
    },
    /// The savings do not justify the disruption.
    #[error(
        "it costs {:.4} $/h; the savings do not justify the disruption",
        .price.usd_per_h()
    )]
    NotWorthDisruption {
        /// The price of the node.
        price: Price,
    },
    /// The utilization of the node is not below the threshold of its pool.
    #[error("utilization of {used} % is not below the threshold of its pool, {least} %")]
    AboveUtilizationThreshold {
        /// Utilization of cpu or memory, in per cent.
        used: u32,
        /// The threshold in per cent.
        least: u32,
    },
    /// The pool of the node is static.
    #[error("its pool is static")]
    Static,
    /// The pool of the node is no longer configured.
    #[error("its pool is not configured")]
    NoPool,
    /// Pods were added or removed recently.
    #[error("pods changed recently; not a candidate before {until}")]
    RecentlyChanged {
        /// When the node may become a candidate again.
        until: Timestamp,
    },
    /// The node is below the minimum age of its pool.
    #[error("below the minimum age of its pool until {until}")]
    TooYoung {
        /// When the node will be old enough.
        until: Timestamp,
    },
    /// The node or one of its pods blocks disruption.
    #[error("{0}")]
    Blocked(DisruptionBlocker),
    /// The static pool of the node has surplus nodes, which are terminated first.
    #[error("its static pool has surplus nodes, which are terminated first")]
    TooMany,
    /// A replacement would exceed the limits of the pool.
    #[error("the limits of its pool do not allow a replacement")]
    Limits,
    /// Too many nodes of the cluster are not ready.
    #[error("{} of {} nodes in the cluster are not ready", .0.unready, .0.total)]
    Health(NodeHealth),
    /// The node is unhealthy and may recover.
    #[error("it may still recover until {until}")]
    Recovering {
        /// When the node is replaced.
        until: Timestamp,
    },
    /// Too many nodes of the pool are unhealthy, so Outrigger replaces none of them.
    #[error("{broken} of {total} nodes in its pool are unhealthy, too many to replace them")]
    Broken {
        /// Number of unhealthy nodes.
        broken: usize,
        /// Number of nodes.
        total: usize,
    },
    /// The highest number of unhealthy nodes is already being replaced.
    #[error("at most {most} unhealthy node(s) are replaced at a time")]
    Repairing {
        /// The limit.
        most: usize,
    },
    /// A configuration change would disrupt too many nodes without approval.
    #[error(
        "the new configuration would disrupt {percent} % of the nodes; approve it with `outrigger \
         reload --accept {id}`"
    )]
    ApprovalPending {
        /// The ID to approve.
        id: String,
        /// Percentage of the nodes of the cluster that the new configuration would disrupt.
        percent: usize,
    },
    /// The Node object is being deleted.
    #[error("its Node object is being deleted")]
    Deleted,
    /// The node is already being disrupted for this reason.
    #[error("already being disrupted: {}", .0.as_str())]
    Leaving(Reason),
    /// The node waits for its replacements.
    #[error("to be disrupted once its replacements are ready")]
    Replaced,
    /// The node has no NodeClaim of Outrigger.
    #[error("not managed by Outrigger")]
    Unmanaged,
    /// A cool-down after a different change in the cluster.
    #[error("in back-off until {until}, after {after}")]
    CoolDown {
        /// The end of the cool-down.
        until: Timestamp,
        /// The change.
        after: &'static str,
    },
    /// A user has paused the pool or the cluster.
    #[error(fmt = write_paused)]
    Paused {
        /// The scope of the pause.
        of: RuleScope,
        /// When the pause ends. `None` if only a user ends it.
        until: Option<Timestamp>,
        /// The reason that the user gave.
        reason: String,
    },
    /// The Lease of the cluster cannot be read, so it is unknown whether disruption is allowed.
    #[error("{0}")]
    LeaseUnreadable(String),
    /// Its cluster has scheduled sweeps for the reason, and none has found the node yet.
    #[error(fmt = write_awaits_sweep)]
    AwaitsSweep {
        /// The kind of sweep.
        sweep: SweepKind,
        /// When it runs next. `None` if that is not known.
        at: Option<Timestamp>,
    },
    /// No maintenance window allows disruption now.
    #[error(fmt = write_window)]
    Window {
        /// When the next window opens. `None` if none is found.
        opens: Option<Timestamp>,
    },
    /// A disruption budget is used up.
    #[error(fmt = write_budget)]
    Budget {
        /// The scope of the budget.
        of: RuleScope,
        /// The rate of the budget, if the rate allows no further disruption now.
        rate: Option<Rate>,
        /// Number of nodes that the budget allows at a time, or within the period of the rate.
        allowed: usize,
        /// The latest time at which the budget allows more. `None` if that depends on other nodes.
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
            Self::AwaitsSweep { at, .. } => *at,
            _ => None,
        }
    }

    /// Returns whether the cause is not the node itself: a budget, a pause, a maintenance window or
    /// the schedule of sweeps.
    pub fn is_safeguard(&self) -> bool {
        matches!(
            self,
            Self::Paused { .. }
                | Self::AwaitsSweep { .. }
                | Self::Window { .. }
                | Self::Budget { .. }
                | Self::CoolDown { .. }
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
            Self::AwaitsSweep { .. } => "awaits_sweep",
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

fn write_paused(
    scope: &RuleScope,
    until: &Option<Timestamp>,
    reason: &str,
    f: &mut fmt::Formatter<'_>,
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

fn write_window(opens: &Option<Timestamp>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match opens {
        Some(opens) => write!(f, "outside maintenance windows until {opens}"),
        None => f.write_str("no maintenance window ever allows this reason"),
    }
}

fn write_awaits_sweep(
    sweep: &SweepKind,
    at: &Option<Timestamp>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "waits for the next {} sweep", sweep.as_str())?;
    at.map_or(Ok(()), |at| write!(f, " at {at}"))
}

fn write_budget(
    scope: &RuleScope,
    rate: &Option<Rate>,
    allowed: &usize,
    opens: &Option<Timestamp>,
    f: &mut fmt::Formatter<'_>,
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
