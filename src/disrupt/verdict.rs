//! Why a node may not leave on purpose now: every no has a type.
//! It must not know for which reason the node was looked at, beyond its name.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::state::blockers::Blocker;
use crate::state::roster::Candidate;

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
    Blocked(Blocker),
    /// Somebody deletes its Node object.
    Deleted,
    /// It is leaving already, for this reason.
    Leaving(Reason),
    /// Others take its place before it leaves.
    Replaced,
    /// No claim of ours is behind it: it is somebody else's.
    Unmanaged,
    /// As many nodes as the pool's budgets allow are leaving already.
    Budget {
        /// How many may leave at once now.
        allowed: usize,
    },
}

impl Verdict {
    /// When it is over by itself, where that is known.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::TooEarly { until } | Self::TooYoung { until } => Some(*until),
            Self::Blocked(why) => why.until(),
            _ => None,
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
            Self::EmptyOnly => "empty_only",
            Self::Unused => "unused",
            Self::Unpriced => "unpriced",
            Self::NoPlace { .. } => "no_place",
            Self::Stray { .. } => "stray",
            Self::NotCheaper { .. } => "not_cheaper",
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
            Self::NotCheaper { price } => {
                let price = price.usd_per_h();
                write!(
                    f,
                    "it costs {price:.4} $/h, and its pods elsewhere hardly less"
                )
            }
            Self::Disruptive { price } => {
                let price = price.usd_per_h();
                write!(
                    f,
                    "it costs {price:.4} $/h, and what its leaving would save is not worth it"
                )
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
            Self::Deleted => f.write_str("somebody deletes its Node object"),
            Self::Leaving(reason) => write!(f, "it is leaving already: {}", reason.as_str()),
            Self::Replaced => f.write_str("it leaves once others have taken its place"),
            Self::Unmanaged => f.write_str("no claim of ours is behind it"),
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

/// When the first node that is too early now may be looked at again.
pub fn next_due(kept: &[Kept]) -> Option<Timestamp> {
    kept.iter().filter_map(|kept| kept.verdict.until()).min()
}
