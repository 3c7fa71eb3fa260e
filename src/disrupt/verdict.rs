//! Why a node may not leave on purpose now: every no has a type.
//! It must not know for which reason the node was looked at, beyond its name.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::NodeName;
use crate::model::pool::Reason;
use crate::state::roster::{Blocker, Candidate, Health, Hold};

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
    /// Its pool has a number of nodes whatever runs on them.
    Static,
    /// Its pool is not configured any more.
    NoPool,
    /// Too little time has passed since a pod came or went.
    TooEarly {
        /// When enough will have passed.
        until: Timestamp,
    },
    /// It or one of its pods forbids it.
    Blocked(Blocker),
    /// Its static pool has more nodes than it is to have, and loses those first.
    TooMany,
    /// Another in its place would be beyond the limits of its pool.
    Limits,
    /// Too many nodes of the cluster are not ready for any to leave on purpose.
    Health(Health),
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
    /// As many nodes as the pool's budgets allow are leaving already.
    Budget {
        /// How many may leave at once now.
        allowed: usize,
    },
}

impl Verdict {
    /// That of whatever is due by a configuration that nobody has accepted.
    pub fn held(hold: &Hold) -> Self {
        Self::Held {
            id: hold.id.clone(),
            percent: hold.percent(),
        }
    }

    /// The spelling in JSON, logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotInitialized => "not_initialized",
            Self::InUse { .. } => "in_use",
            Self::Nominated => "nominated",
            Self::Buffer(_) => "buffer",
            Self::Never => "never",
            Self::Static => "static",
            Self::NoPool => "no_pool",
            Self::TooEarly { .. } => "too_early",
            Self::Blocked(_) => "blocked",
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
            Self::Static => f.write_str("its pool is static"),
            Self::NoPool => f.write_str("its pool is not configured"),
            Self::TooEarly { until } => write!(f, "it must stay unchanged until {until}"),
            Self::Blocked(why) => write!(f, "{why}"),
            Self::TooMany => f.write_str("its static pool has more nodes than it is to have"),
            Self::Limits => f.write_str("the limits of its pool leave no room for another"),
            Self::Health(Health { unready, total }) => {
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
            Self::Budget { allowed } => {
                write!(
                    f,
                    "the budgets of its pool allow {allowed} nodes to leave at once now"
                )
            }
        }
    }
}

/// A node that stays, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The node.
    pub node: NodeName,
    /// For which reason it was looked at.
    pub reason: Reason,
    /// What keeps it.
    pub verdict: Verdict,
}

impl Kept {
    /// A node that does not leave for this reason.
    pub fn new(candidate: &Candidate<'_>, reason: Reason, verdict: Verdict) -> Self {
        Self {
            node: candidate.node.name.clone(),
            reason,
            verdict,
        }
    }
}

/// What speaks against a node's leaving for a reason that needs no more than its pods' consent.
/// With a grace period nodes leave that drift whatever their pods say: no pod may hold them for
/// longer. Source: spec/disruption.md §1.2.
pub fn objection(candidate: &Candidate<'_>, reason: Reason, now: Timestamp) -> Option<Verdict> {
    if candidate.initialized.is_none() {
        return Some(Verdict::NotInitialized);
    }
    if candidate.nominated {
        return Some(Verdict::Nominated);
    }
    insists(candidate, reason, now).map(Verdict::Blocked)
}

/// What a node or its pods say against its leaving for a reason, where that is heeded: a claim that
/// is as old as it may be at all has to leave.
pub fn insists(candidate: &Candidate<'_>, reason: Reason, now: Timestamp) -> Option<Blocker> {
    let record = candidate.claim.map(|own| &own.record);
    if reason == Reason::Expired && record.is_some_and(|own| own.is_overdue(now)) {
        return None;
    }
    let grace = record.is_some_and(|own| own.termination_grace_period.is_some());
    let eventual = reason == Reason::Drifted && grace;
    let blocker = candidate.blocker.clone();
    blocker.filter(|own| !(eventual && matches!(own, Blocker::Pod(..))))
}

/// When the first node that is too early now may be looked at again.
pub fn next_due(kept: &[Kept]) -> Option<Timestamp> {
    let due = kept.iter().filter_map(|kept| match kept.verdict {
        Verdict::TooEarly { until } | Verdict::Recovering { until } => Some(until),
        _ => None,
    });
    due.min()
}
