//! Why a node may not leave on purpose now: every no has a type.
//! It must not know for which reason the node was looked at, beyond its name.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{NodeName, PodKey};
use crate::model::instance::Price;
use crate::model::pool::Reason;
use crate::state::roster::{Blocker, Candidate};

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
    /// As many nodes as the pool's budgets allow are leaving already.
    Budget {
        /// How many may leave at once now.
        allowed: usize,
    },
}

impl Verdict {
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
            Self::Static => "static",
            Self::NoPool => "no_pool",
            Self::TooEarly { .. } => "too_early",
            Self::Blocked(_) => "blocked",
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
            Self::Static => f.write_str("its pool is static"),
            Self::NoPool => f.write_str("its pool is not configured"),
            Self::TooEarly { until } => write!(f, "it must stay unchanged until {until}"),
            Self::Blocked(why) => write!(f, "{why}"),
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
    let due = kept.iter().filter_map(|kept| match kept.verdict {
        Verdict::TooEarly { until } => Some(until),
        _ => None,
    });
    due.min()
}
