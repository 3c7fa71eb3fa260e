//! Whether the cluster state is complete, and what is missing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::backoff::Backoff;
use crate::model::clock_skew::ClockSkew;
use crate::model::id::{NodeName, ObjectKey};
use crate::model::watched_object::ObjectKind;
use crate::state::cluster_identity::Mismatch;

/// Whether the engine decides.
///
/// ```text
/// Starting ─ complete ─► Ready ─ fault ─► OutOfSync ─ complete for QUIET ─► Ready
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SyncPhase {
    /// The cluster state has not been complete yet: no node is launched or disrupted.
    #[default]
    Starting,
    /// The cluster state is complete.
    Ready,
    /// Voluntary disruption is suspended.
    OutOfSync {
        /// When the cluster state went out of sync.
        since: Timestamp,
        /// When the cluster state became complete again.
        complete_since: Option<Timestamp>,
    },
}

/// The synchronization of the cluster state.
#[derive(Clone, Debug, Default)]
pub(super) struct SyncState {
    /// Whether the engine decides.
    pub(super) phase: SyncPhase,
    /// When decisions started or last resumed. Deadlines are not counted from earlier times.
    pub(super) thawed: Option<Timestamp>,
    /// True if a listing of instances is in flight.
    pub(super) listing: bool,
    /// When the last listing of instances was requested.
    pub(super) listing_asked: Option<Timestamp>,
    /// When the last answered listing of instances was requested.
    pub(super) listing_answered: Option<Timestamp>,
    /// When decisions last resumed after a gap longer than a short outage.
    pub(super) gap: Option<Timestamp>,
    /// Why the last listing of instances is ignored, if it is.
    pub(super) listing_fault: Option<String>,
    /// Why the last listing of instances failed, if it did.
    pub(super) listing_failed: Option<String>,
    /// True if the last listing contained changes.
    pub(super) listing_news: bool,
    /// The mismatch of the API server, the instances and the configuration, if they belong to
    /// different clusters.
    pub(super) mismatch: Option<Mismatch>,
    /// True if the first comparison is reported even if it finds no mismatch.
    pub(super) reports_match: bool,
    /// Clock skew between this host and a remote clock, if the skew suspends decisions.
    pub(super) clock_skew: Option<ClockSkew>,
    /// Objects missing from incomplete listings.
    pub(super) doubts: BTreeMap<ObjectKind, Vec<(ObjectKey, String)>>,
    /// The objects of the last probe of each kind, and the number of listings before it.
    pub(super) probes: BTreeMap<ObjectKind, (u64, Vec<(ObjectKey, String)>)>,
    /// Kinds with a probe in progress.
    pub(super) probing: BTreeMap<ObjectKind, Backoff>,
    /// Number of listings of each kind.
    pub(super) resets: BTreeMap<ObjectKind, u64>,
    /// Nodes that were deleted although pods may still be bound to them.
    pub(super) gone_nodes: BTreeSet<NodeName>,
    /// True if a decision waits for the next sign of activity from a watch.
    pub(super) awaits_sign: bool,
    /// Since when pods have been bound to unknown nodes.
    pub(super) unknown_since: Option<Timestamp>,
}

impl SyncState {
    /// Returns the number of listings of a kind.
    pub(super) fn listing_count(&self, kind: ObjectKind) -> u64 {
        self.resets.get(&kind).copied().unwrap_or(0)
    }
}
