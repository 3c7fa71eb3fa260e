//! Why a node may not leave on purpose now: every no has a type.
//! It must not know for which reason the node was looked at, beyond its name.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::{Rate, Reason};
use crate::state::candidates::{Candidate, NodeHealth, PendingApproval};
use crate::state::disruption_blockers::DisruptionBlocker;

/// Whose rule keeps a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleScope {
    /// Its pool's.
    Pool,
    /// Its cluster's.
    Cluster,
    /// That of all clusters.
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

/// What keeps a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not initialized.
    NotInitialized,
    /// Pods run on it.
    InUse {
        /// How many.
        pods: usize,
    },
    /// Pods are expected on it.
    Nominated,
    /// A buffer keeps its room free.
    Buffer(String),
    /// Its pool does not consolidate.
    Never,
    /// Its pool consolidates only empty nodes.
    EmptyOnly,
    /// Nothing runs on it: that is another reason.
    Unused,
    /// Nobody knows what it costs.
    Unpriced,
    /// There is no place elsewhere for a pod.
    NoPlace {
        /// The pod.
        pod: PodKey,
    },
    /// Nobody would make a pod anew, or it is of a scheduler that is not planned for.
    Stray {
        /// The pod.
        pod: PodKey,
    },
    /// What its pods need costs as much elsewhere, or hardly less.
    NotCheaper {
        /// What the node costs.
        price: Price,
    },
    /// What its pods need costs less elsewhere, but of too few types for its pool to choose from.
    Inflexible {
        /// What the node costs.
        price: Price,
    },
    /// What its leaving would save is not worth what it would disrupt.
    Disruptive {
        /// What the node costs.
        price: Price,
    },
    /// Its pods ask for as much of it as its pool wants nodes to be used at least.
    Utilized {
        /// How much of its cpu or memory, in per cent.
        used: u32,
        /// How much that is at least.
        least: u32,
    },
    /// Its pool has a number of nodes whatever runs on them.
    Static,
    /// Its pool is not configured any more.
    NoPool,
    /// Too little time has passed since a pod came or went.
    TooEarly {
        /// When enough will have passed.
        until: Timestamp,
    },
    /// It is younger than its pool lets nodes leave.
    TooYoung {
        /// When it will be old enough.
        until: Timestamp,
    },
    /// It or one of its pods forbids it.
    Blocked(DisruptionBlocker),
    /// Its static pool has more nodes than it is to have, and loses those first.
    TooMany,
    /// Another in its place would be beyond the limits of its pool.
    Limits,
    /// Too many nodes of the cluster are not ready for any to leave on purpose.
    Health(NodeHealth),
    /// It is broken, and may recover.
    Recovering {
        /// When it is given up.
        until: Timestamp,
    },
    /// Too many nodes of its pool are broken for any to be replaced for that.
    Broken {
        /// How many are.
        broken: usize,
        /// How many there are.
        total: usize,
    },
    /// As many broken nodes as may be at once are being replaced already.
    Repairing {
        /// How many may be.
        most: usize,
    },
    /// Too much leaves by another configuration for it to be done unasked.
    Held {
        /// What to accept.
        id: String,
        /// How much of the cluster leaves by it, in per cent.
        percent: usize,
    },
    /// Somebody deletes its Node object.
    Deleted,
    /// It is leaving already, for this reason.
    Leaving(Reason),
    /// Others take its place before it leaves.
    Replaced,
    /// No claim of ours is behind it: it is somebody else's.
    Unmanaged,
    /// Too little time has passed since something else was done in the cluster.
    Cooling {
        /// When enough will have passed.
        until: Timestamp,
        /// What was done.
        after: &'static str,
    },
    /// Its pool or cluster is paused.
    Paused {
        /// Which of them.
        of: RuleScope,
        /// When that is over; none means when somebody ends it.
        until: Option<Timestamp>,
        /// Why, in the words of whoever asked for it.
        reason: String,
    },
    /// It is not known whether it may leave, since the cluster's Lease cannot be read.
    Unread(String),
    /// It is no time for maintenance.
    Window {
        /// When it is; none where that is not to be seen.
        opens: Option<Timestamp>,
    },
    /// As many nodes as a budget allows are leaving already, or were let go lately.
    Budget {
        /// Whose budget.
        of: RuleScope,
        /// Its rate, where that is what is used up.
        rate: Option<Rate>,
        /// How many may leave at once now, or within the time of the rate.
        allowed: usize,
        /// When it allows more at the latest; none where nodes have to come or go first.
        opens: Option<Timestamp>,
    },
}

impl Verdict {
    /// That of whatever is due by a configuration that nobody has accepted.
    pub fn held(unaccepted: &PendingApproval) -> Self {
        Self::Held {
            id: unaccepted.id.clone(),
            percent: unaccepted.percent(),
        }
    }

    /// When it is over by itself, or may be looked at again, where that is known.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::TooEarly { until }
            | Self::TooYoung { until }
            | Self::Recovering { until }
            | Self::Cooling { until, .. } => Some(*until),
            Self::Blocked(why) => why.until(),
            Self::Paused { until, .. } => *until,
            Self::Window { opens } | Self::Budget { opens, .. } => *opens,
            _ => None,
        }
    }

    /// Whether it is no fault of the node: others were first, or it is not the time.
    pub fn is_brake(&self) -> bool {
        matches!(
            self,
            Self::Paused { .. } | Self::Window { .. } | Self::Budget { .. } | Self::Cooling { .. }
        )
    }

    /// Whether a node of which this is said might leave: what keeps it is said of others, or came
    /// out when it was weighed.
    pub fn is_eligible(&self) -> bool {
        let weighed = matches!(
            self,
            Self::NotCheaper { .. }
                | Self::Disruptive { .. }
                | Self::Inflexible { .. }
                | Self::NoPlace { .. }
        );
        weighed || self.is_brake()
    }

    /// Whether nothing that happens to nodes and pods ends it, which people have to know.
    pub fn is_shut(&self) -> bool {
        match self {
            Self::Paused { .. } | Self::Unread(_) | Self::Window { .. } => true,
            Self::Budget { allowed, .. } => *allowed == 0,
            _ => false,
        }
    }

    /// Whether people have to know that a node of which this is said stays, where it is looked at
    /// for this reason: it [is shut](Self::is_shut) or, where the node is due to leave, it is held
    /// by what is not over by itself.
    pub fn is_told(&self, reason: Reason) -> bool {
        let holds = match self {
            Self::Blocked(why) => why.until().is_none() && !why.is_passing(),
            Self::Broken { .. } | Self::Repairing { .. } | Self::Limits => true,
            _ => false,
        };
        self.is_shut() || holds && !reason.is_consolidation()
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
            Self::Unused => "unused",
            Self::Unpriced => "unpriced",
            Self::NoPlace { .. } => "no_place",
            Self::Stray { .. } => "stray",
            Self::NotCheaper { .. } => "not_cheaper",
            Self::Inflexible { .. } => "inflexible",
            Self::Disruptive { .. } => "disruptive",
            Self::Utilized { .. } => "utilized",
            Self::Static => "static",
            Self::NoPool => "no_pool",
            Self::TooEarly { .. } => "too_early",
            Self::TooYoung { .. } => "too_young",
            Self::Blocked(_) => "blocked",
            Self::Deleted => "deleted",
            Self::Leaving(_) => "leaving",
            Self::Replaced => "replaced",
            Self::Unmanaged => "unmanaged",
            Self::Cooling { .. } => "cooling",
            Self::Paused { .. } => "paused",
            Self::Unread(_) => "unread",
            Self::Window { .. } => "window",
            Self::TooMany => "too_many",
            Self::Limits => "limits",
            Self::Health(_) => "health",
            Self::Recovering { .. } => "recovering",
            Self::Broken { .. } => "broken",
            Self::Repairing { .. } => "repairing",
            Self::Held { .. } => "held",
            Self::Budget { .. } => "budget",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => f.write_str("it is not initialized"),
            Self::InUse { pods } => write!(f, "{pods} pods run on it"),
            Self::Nominated => f.write_str("pods are expected on it"),
            Self::Buffer(name) => write!(f, "it is kept for buffer {name}"),
            Self::Never => f.write_str("its pool does not consolidate"),
            Self::EmptyOnly => f.write_str("its pool consolidates only empty nodes"),
            Self::Unused => f.write_str("nothing runs on it"),
            Self::Unpriced => f.write_str("nobody knows what it costs"),
            Self::NoPlace { pod } => write!(f, "there is no place elsewhere for pod {pod}"),
            Self::Stray { pod } => write!(f, "nobody would make pod {pod} anew, or plan for it"),
            Self::NotCheaper { price } => costs(f, *price, "its pods elsewhere hardly less"),
            Self::Inflexible { price } => costs(
                f,
                *price,
                "too few types that its pods could have cost less",
            ),
            Self::Disruptive { price } => {
                costs(f, *price, "what its leaving would save is not worth it")
            }
            Self::Utilized { used, least } => {
                write!(
                    f,
                    "its pods ask for {used} % of it, and its pool lets nodes be below {least} %"
                )
            }
            Self::Static => f.write_str("its pool is static"),
            Self::NoPool => f.write_str("its pool is not configured"),
            Self::TooEarly { until } => write!(f, "it must stay unchanged until {until}"),
            Self::TooYoung { until } => write!(f, "it is too young to leave until {until}"),
            Self::Blocked(why) => write!(f, "{why}"),
            Self::TooMany => f.write_str("its static pool has more nodes than it is to have"),
            Self::Limits => f.write_str("the limits of its pool leave no room for another"),
            Self::Health(NodeHealth { unready, total }) => {
                write!(f, "{unready} of {total} nodes of the cluster are not ready")
            }
            Self::Recovering { until } => write!(f, "it may recover until {until}"),
            Self::Broken { broken, total } => write!(
                f,
                "{broken} of {total} nodes of its pool are broken: it may not be their fault"
            ),
            Self::Repairing { most } => {
                write!(f, "no more than {most} broken nodes are replaced at once")
            }
            Self::Held { id, percent } => write!(
                f,
                "{percent} % of the nodes are due by the new configuration, which is to be \
                 accepted with `outrigger reload --accept {id}`"
            ),
            Self::Deleted => f.write_str("somebody deletes its Node object"),
            Self::Leaving(reason) => write!(f, "it is leaving already: {}", reason.as_str()),
            Self::Replaced => f.write_str("it leaves once others have taken its place"),
            Self::Unmanaged => f.write_str("no claim of ours is behind it"),
            Self::Cooling { until, after } => {
                write!(f, "nothing leaves until {until}, after {after}")
            }
            Self::Paused { of, until, reason } => paused(f, *of, *until, reason),
            Self::Unread(why) => f.write_str(why),
            Self::Window { opens: Some(opens) } => {
                write!(f, "it is no time for maintenance before {opens}")
            }
            Self::Window { opens: None } => f.write_str("it is never time for maintenance"),
            Self::Budget {
                of,
                rate,
                allowed,
                opens,
            } => budget(f, *of, *rate, *allowed, *opens),
        }
    }
}

fn costs(f: &mut fmt::Formatter<'_>, price: Price, but: &str) -> fmt::Result {
    write!(f, "it costs {:.4} $/h, and {but}", price.usd_per_h())
}

fn paused(
    f: &mut fmt::Formatter<'_>,
    of: RuleScope,
    until: Option<Timestamp>,
    reason: &str,
) -> fmt::Result {
    let whole = match of {
        RuleScope::Pool => "its pool",
        RuleScope::Cluster | RuleScope::Fleet => "the cluster",
    };
    write!(f, "{whole} is paused")?;
    if let Some(until) = until {
        write!(f, " until {until}")?;
    }
    if reason.is_empty() {
        return Ok(());
    }
    write!(f, ": {reason}")
}

fn budget(
    f: &mut fmt::Formatter<'_>,
    of: RuleScope,
    rate: Option<Rate>,
    allowed: usize,
    opens: Option<Timestamp>,
) -> fmt::Result {
    let whose = match of {
        RuleScope::Pool => "its pool",
        RuleScope::Cluster => "the cluster",
        RuleScope::Fleet => "the fleet",
    };
    match rate {
        Some(rate) => write!(f, "the budgets of {whose} let {rate} nodes go, and have")?,
        None => write!(
            f,
            "the budgets of {whose} allow {allowed} nodes to leave at once now"
        )?,
    }
    opens.map_or(Ok(()), |opens| write!(f, ", until {opens}"))
}

/// A node that stays, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedNode {
    /// The node.
    pub node: NodeName,
    /// For which reason it was looked at.
    pub reason: Reason,
    /// What keeps it.
    pub verdict: Verdict,
}

impl RetainedNode {
    /// A node that does not leave for this reason.
    pub fn new(candidate: &Candidate<'_>, reason: Reason, verdict: Verdict) -> Self {
        Self {
            node: candidate.node.name.clone(),
            reason,
            verdict,
        }
    }
}

/// When the first node that is too early now may be looked at again.
pub fn next_due(kept: &[RetainedNode]) -> Option<Timestamp> {
    kept.iter().filter_map(|kept| kept.verdict.until()).min()
}
