//! State of the controllers. The methods of a controller are in the module of the controller.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::disruption::consolidation_backoff::ConsolidationBackoff;
use crate::engine::backoff::{Backoff, Denied};
use crate::engine::in_flight::{GroupKey, Nomination, OpeningGroup};
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, PoolName};
use crate::model::pod::Pod;
use crate::provider::{Interruption, NoticeReceipt};

/// Consolidation, its savings and the replacement pods.
#[derive(Debug, Default)]
pub(super) struct Consolidation {
    pub(super) savings: SavingsTracker,
    pub(super) schedule: ConsolidationSchedule,
    pub(super) replacement_pods: ReplacementPods,
}

/// Changes since the last run of consolidation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsolidationSchedule {
    /// Time of the last run.
    pub(super) last: Option<Timestamp>,
    /// Number of consecutive runs that found nothing.
    pub(super) vain: u32,
    /// Number of pods that have left their nodes since the last run.
    pub(super) left: usize,
    /// Times of the first and the last change since the last run.
    pub(super) stirred: Option<(Timestamp, Timestamp)>,
    /// When a budget or a maintenance window allows waiting disruptions, or a back-off of an
    /// offering ends.
    pub(super) opens: Option<Timestamp>,
    /// When the next node becomes a candidate for consolidation, or may receive moved pods again.
    pub(super) ripens: Option<Timestamp>,
    /// When a run was last postponed because of nodes that were being disrupted together.
    pub(super) waited: Option<Timestamp>,
    /// When nodes were last disrupted together.
    pub(super) moved: Option<Timestamp>,
}

/// Savings and losses of consolidation.
#[derive(Clone, Debug, Default)]
pub(super) struct SavingsTracker {
    pub(super) pools: BTreeMap<PoolName, ConsolidationBackoff>,
    /// Expected saving of each disrupted node in $/h, and its pool.
    pub(super) shares: BTreeMap<ClaimId, (PoolName, f64)>,
    /// The highest number of pods since the start of the back-off, by pool and by node.
    pub(super) in_pools: BTreeMap<PoolName, usize>,
    pub(super) on_nodes: BTreeMap<ClaimId, usize>,
}

/// Recently evicted pods by the UID of their owner, pending replacement pods, and the claims that
/// wait for them.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplacementPods {
    pub(super) departed: BTreeMap<String, Vec<EvictedPod>>,
    pub(super) replacements: BTreeMap<PodKey, EvictedPod>,
    pub(super) awaited: BTreeMap<ClaimId, Awaited>,
    /// Pods whose place a replacement pod has taken, with the pool from which that pod was moved,
    /// and the time.
    pub(super) ousted: BTreeMap<PodKey, (PoolName, Timestamp)>,
}

/// A pod that consolidation evicted from its node, and its planned place.
#[derive(Clone, Debug)]
pub(super) struct EvictedPod {
    pub(super) pod: Pod,
    /// The pool of its node.
    pub(super) pool: PoolName,
    /// When it was evicted.
    pub(super) at: Timestamp,
    /// The claim that was planned for it.
    pub(super) place: Option<ClaimId>,
}

/// Replacement pods that a claim's node waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) count: usize,
    /// Until when other pods wait for the replacement pods.
    pub(super) held: Timestamp,
    /// Until when the node is needed. Some owners recreate a pod only after the old one has ended.
    pub(super) needed: Timestamp,
}

/// Nominations of pending pods.
#[derive(Debug, Default)]
pub(super) struct Nominations {
    /// Nominations of pods that are still pending.
    pub(super) pending: BTreeMap<PodKey, Nomination>,
    /// Groups of tainted nodes that are untainted together.
    pub(super) untaint_groups: BTreeMap<GroupKey, OpeningGroup>,
    /// True if the API server denies the patch that nominates nodes.
    pub(super) denied: Denied,
}

/// Interruption notices and unhealthy instances.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    pub(super) notices: BTreeMap<InstanceId, PendingInterruption>,
    /// The receipts of notices that are not handled yet.
    pub(super) receipts: BTreeMap<InstanceId, Vec<NoticeReceipt>>,
    pub(super) unhealthy: BTreeMap<InstanceId, UnhealthyInstance>,
}

/// A notice about an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingInterruption {
    pub(super) what: Interruption,
    /// The announced time of the interruption.
    pub(super) at: Timestamp,
    /// True if the notice was handled.
    pub(super) heeded: bool,
}

/// An instance whose status checks fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnhealthyInstance {
    /// Time of the last report.
    pub(super) heard: Timestamp,
    /// True if the instance was reported.
    pub(super) told: bool,
    /// True if the reason for keeping the node was reported.
    pub(super) braked: bool,
}

/// Nodes and instances without a claim.
#[derive(Debug, Default)]
pub(super) struct Unclaimed {
    pub(super) orphans: BTreeMap<NodeName, Orphan>,
    /// Instances with more than one Node, as last reported.
    pub(super) same_instances: SameInstances,
    pub(super) adoption: AdoptionController,
}

/// A Node without an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orphan {
    /// When it was first seen without an instance.
    pub(super) since: Timestamp,
    /// True if its deletion was reported.
    pub(super) is_told: bool,
}

/// Instances with more than one Node.
pub(super) type SameInstances = BTreeMap<InstanceId, BTreeSet<NodeName>>;

/// The progress of adoption.
#[derive(Clone, Debug, Default)]
pub(super) struct AdoptionController {
    /// Nodes being adopted.
    pub(super) nodes: BTreeMap<NodeName, AdoptionAttempt>,
    /// Back-off after a denied call. This back-off applies to all adoptions.
    pub(super) pause: Backoff,
    /// Number of nodes not adopted because their pool is not configured, as last reported.
    pub(super) left: BTreeMap<PoolName, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdoptionAttempt {
    pub(super) retry: Backoff,
    /// When the instance was tagged.
    pub(super) done: Option<Timestamp>,
    pub(super) in_flight: bool,
}
