//! Scheduled sweeps: when the nodes of a cluster are checked for one kind of disruption.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::cron_schedule::CronSchedule;
use crate::model::id::{ClaimId, PoolName};
use crate::model::named_enum::named_enum;
use crate::model::pool::Reason;

named_enum! {
    /// The kinds of sweeps. The names are labels of `sweep` blocks, and appear in JSON, metrics and
    /// on the Lease.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum SweepKind {
        /// Nodes that their pool or node class would launch differently now.
        Drift => "drift",
        /// Nodes older than the lifetime of their pool.
        Expiry => "expiry",
        /// Underutilized nodes.
        Consolidation => "consolidation",
        /// Unhealthy nodes. These sweeps only report: unhealthy nodes are replaced without them.
        Repair => "repair",
        /// Nodes without an instance.
        Orphans => "orphans",
    }
}

impl SweepKind {
    /// Returns the kind of sweep that finds nodes for a disruption reason. No sweep finds nodes for
    /// any other reason.
    pub fn of_reason(reason: Reason) -> Option<Self> {
        match reason {
            Reason::Drifted => Some(Self::Drift),
            Reason::Expired => Some(Self::Expiry),
            Reason::Underutilized => Some(Self::Consolidation),
            Reason::Unhealthy => Some(Self::Repair),
            Reason::Orphaned => Some(Self::Orphans),
            _ => None,
        }
    }
}

impl SweepKind {
    /// Returns the kind of sweep without which nodes are not disrupted for a reason, once it has a
    /// schedule. Unhealthy nodes and vanished instances do not wait.
    pub fn that_delays(reason: Reason) -> Option<Self> {
        Self::of_reason(reason).filter(|kind| kind.delays_disruption())
    }

    /// Returns whether nodes wait for sweeps of this kind before their pods are evicted.
    pub fn delays_disruption(self) -> bool {
        !matches!(self, Self::Repair | Self::Orphans)
    }
}

/// A sweep that a user requests. It runs once, in addition to those of the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepRequest {
    /// Identifies the request to the caller.
    pub id: u64,
    /// The kind.
    pub kind: SweepKind,
    /// The pool whose nodes are checked. `None` for all pools.
    pub pool: Option<PoolName>,
    /// A request that could not start until then is dropped.
    pub until: Timestamp,
}

impl SweepRequest {
    /// Returns whether the nodes of a pool are checked.
    pub fn covers(&self, pool: &PoolName) -> bool {
        self.pool.as_ref().is_none_or(|wanted| wanted == pool)
    }
}

/// When the sweeps of one kind run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepSchedule {
    /// The occurrences, before jitter.
    pub schedule: CronSchedule,
    /// Each cluster runs its sweep later than the occurrence by a fixed part of this duration.
    pub jitter: SignedDuration,
    /// Whether a sweep that no host could run in time runs once, as soon as possible.
    pub catch_up: bool,
}

/// Which due nodes a sweep permits to disrupt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SweepScope {
    /// None: no sweep has run yet, or the last one has completed.
    #[default]
    None,
    /// All: the sweep has not completed.
    All,
    /// The nodes of these claims, which the last sweep found.
    Claims(BTreeSet<ClaimId>),
}

/// The sweeps of one kind, as the Lease records them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepRecord {
    /// No occurrence up to this time runs any more.
    pub done_until: Timestamp,
    /// Id of the schedule. A record of a different schedule is ignored.
    pub schedule: String,
    /// The occurrence of the last sweep. `None` before the first one.
    pub last: Option<Timestamp>,
    /// Since when the schedule is in force.
    pub known_since: Timestamp,
    /// When the running sweep of consolidation has started.
    pub running_since: Timestamp,
    /// Which nodes may be disrupted.
    pub scope: SweepScope,
}
