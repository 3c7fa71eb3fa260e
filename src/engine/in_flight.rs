//! In-flight commands, and the progress of each claim.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Backoff;
use crate::engine::command::{BufferPatch, CommandId};
use crate::model::id::{ClaimId, NodeName, PodKey};
use crate::model::labels::Labels;
use crate::model::watched_object::{Attachment, ObjectKind};
use crate::provider::Launch;

/// A command that was taken and has no answer for this long has failed with an unknown outcome.
/// Executors answer sooner, so this limit only affects lost answers. A command that was queued for
/// this long is withdrawn: the engine may have decided differently since.
pub(super) const ANSWER_MAX: SignedDuration = SignedDuration::from_secs(120);

/// Maximum number of times a log interval doubles. A first interval of two minutes grows to about
/// one hour.
const TOLD_DOUBLED_MAX: u32 = 5;

/// The purpose of an in-flight command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandPurpose {
    /// The one step that a claim has in flight.
    Step(ClaimId),
    /// The eviction of a pod from a claim's node.
    Evict(ClaimId, PodKey),
    /// A listing of instances.
    Listing,
    /// A check whether the objects that a listing lacks exist.
    Probe(ObjectKind),
    /// A new listing of a kind.
    Rewatch(ObjectKind),
    /// The nomination of a node for a pod.
    Nominate(PodKey),
    /// The removal of a pod's nomination.
    ClearNomination(PodKey),
    /// The early binding of a pod to the node of a claim.
    Bind(ClaimId, PodKey),
    /// The deletion of a pod that was bound early to a node that never registered.
    Unbind(PodKey),
    /// The deletion of a Node without a claim.
    Orphan(NodeName),
    /// A report of the memory of nodes to the provider.
    SaveDiscoveredMemory,
    /// The tagging of the instances of claims.
    Tag(Vec<ClaimId>, Labels),
    /// The tagging of an instance that Karpenter launched, for its adoption.
    Adopt(NodeName),
    /// A report of the usage of claims to the fleet.
    ReportUsage,
    /// A report to the fleet of the nodes that its disruption budgets count.
    ReportDisruptions,
    /// A report of unavailable offerings to other clusters.
    MarkUnavailable,
    /// A read of the cluster's Lease.
    ReadLease,
    /// An update of the status of a CapacityBuffer.
    BufferStatus(Box<BufferPatch>),
    /// The update of the Lease that records these disruptions.
    NoteLetGo(Vec<ClaimId>),
    /// The update of the Lease that records the last sweeps.
    RecordSweeps,
}

/// A command without an answer.
#[derive(Clone, Debug)]
pub(super) struct InFlightCommand {
    pub(super) kind: CommandPurpose,
    pub(super) name: &'static str,
    /// When the command was queued, or taken from the queue.
    pub(super) since: Timestamp,
    pub(super) is_taken: bool,
}

impl InFlightCommand {
    /// Returns whether its answer is overdue, or the command was queued for too long.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        now.duration_since(self.since) > ANSWER_MAX
    }
}

/// Whether a disrupted node may be tainted.
///
/// ```text
/// Requested ─ the fleet grants it ─► Granted
///     ├─────── a rate counts it ────────┼─► Recording ─ recorded on the Lease ─► Cleared
///     └─ no rate counts it, or the node is at its hard maximum age ─────────────────▲
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Clearance {
    /// The fleet has to grant the disruption, or nothing was checked yet.
    #[default]
    Requested,
    /// The fleet has granted the disruption.
    Granted,
    /// A rate counts the disruption, so it must be recorded on the Lease first. If the disruption
    /// needed no grant, the fleet may still require one until the record is written.
    Recording { granted: bool },
    /// The node may be tainted: the disruption is recorded, or needs no record.
    Cleared,
}

impl Clearance {
    /// Returns whether the fleet has granted the disruption, or its grant is no longer required.
    pub(super) fn is_granted(self) -> bool {
        matches!(self, Self::Granted | Self::Recording { granted: true } | Self::Cleared)
    }

    /// Records that the fleet has granted the disruption.
    pub(super) fn record_grant(&mut self) {
        match self {
            Self::Requested => *self = Self::Granted,
            Self::Recording { granted } => *granted = true,
            Self::Granted | Self::Cleared => {}
        }
    }
}

/// The disrupted taint of a node. It can be confirmed without having been sent: a result may belong
/// to an earlier drain that was cancelled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaintProgress {
    /// When the taint was last sent. This time is kept if a different client removes the taint.
    pub(super) sent: Option<Timestamp>,
    /// When the taint was confirmed.
    pub(super) confirmed: Option<Timestamp>,
    /// When the disruption label and annotation were last restored.
    pub(super) marks_restored: Option<Timestamp>,
}

/// Whether the pods of a disrupted node may be evicted.
///
/// ```text
/// Waiting ─ each pod has a place ─► Released ─ first eviction ─► Begun { released: true }
///     └─ first eviction, for a reason that waits for no places ─► Begun { released: false }
/// ```
///
/// `Begun` keeps `released`: if an empty node loses its taint after its daemons were evicted, and
/// pods are bound to it, the disruption is cancelled before the node is tainted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Release {
    /// No pod was evicted, and a drain that waits for places evicts none.
    #[default]
    Waiting,
    /// Each pod has a place, and must keep it until the first eviction.
    Released,
    /// A pod was evicted, possibly by an earlier process. Only pods that are not in
    /// [`DrainState::placed`] still need a place.
    Begun { released: bool },
}

impl Release {
    /// Returns whether each pod had a place when evictions were permitted.
    pub(super) fn is_released(self) -> bool {
        matches!(self, Self::Released | Self::Begun { released: true })
    }
}

/// The time during which the pods of a node are evicted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EvictionPeriod {
    /// When evictions started or became allowed.
    pub(super) began: Timestamp,
    pub(super) deadline: Option<Deadline>,
    pub(super) cancellation: Cancellation,
    /// When the blockers of the drain were last logged.
    pub(super) told: LogBackoff,
}

/// The deadline of a drain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// When the node is terminated even if pods remain. The deadline can only become earlier. No
    /// pod is deleted regardless of its budgets before the Node has the deadline as an annotation.
    pub(super) at: Timestamp,
    /// True if all pods are deleted regardless of their PodDisruptionBudgets, and not only those
    /// that would outlast the deadline.
    pub(super) forces: bool,
}

/// Whether a voluntary drain that takes too long can be cancelled.
///
/// ```text
/// Possible ◄─ a pod blocks the drain, or none does ─► Pending ─ no eviction in flight ─► cancelled
///     └─ a pod is deleted regardless of its PodDisruptionBudgets ─► Impossible
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cancellation {
    #[default]
    Possible,
    /// The drain is cancelled as soon as no eviction is in flight. No further pod is evicted: after
    /// the node is untainted, the eviction would be in vain.
    Pending,
    /// A pod was deleted regardless of its budgets.
    Impossible,
}

/// The results of listings of a node's pods from the API server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodListing {
    /// Earliest time of the next listing.
    pub(super) next: Option<Timestamp>,
    /// When the last listing was answered, if the listing matched the pods in the watch cache.
    pub(super) matched: Option<Timestamp>,
    /// When a listing confirmed that no pod remains. This can precede the confirmed taint: a result
    /// may belong to an earlier drain that was cancelled.
    pub(super) confirmed: Option<Timestamp>,
}

/// The progress of a drain. [`crate::engine::drain::drain`] performs its steps:
///
/// ```text
/// clearance ─► taint ─► release ─► evictions ─► detach ─► confirmed ─► ClaimPhase::Terminating
///     ▲          │                     └───────────┴─ deadline ─────────────▲
///     └─ another client removes the taint
/// ```
///
/// The release and the eviction period remain valid if the taint is removed. If a drain waits for
/// no places, its eviction period begins before the taint. A cancelled drain is kept until the
/// claim is disrupted again.
#[derive(Clone, Debug, Default)]
pub(super) struct DrainState {
    /// UID of the drained Node, once known. A recreated Node has a different UID.
    pub(super) node_uid: String,
    /// Whether the node may be tainted.
    pub(super) clearance: Clearance,
    pub(super) taint: TaintProgress,
    /// Whether the pods may be evicted.
    pub(super) release: Release,
    /// The time of the evictions. `None` before evictions are allowed.
    pub(super) period: Option<EvictionPeriod>,
    /// Pods whose eviction is in flight or waits for a retry.
    pub(super) evictions: BTreeMap<PodKey, Eviction>,
    /// Pods that had a place when evictions began.
    pub(super) placed: BTreeSet<PodKey>,
    /// Other pods, and when they became reschedulable.
    pub(super) reschedulable_since: BTreeMap<PodKey, Timestamp>,
    /// Those of them that are not evicted yet, because they have no place.
    pub(super) held: BTreeSet<PodKey>,
    /// The progress of volume detachment.
    pub(super) detach: Detach,
    pub(super) listing: PodListing,
}

impl DrainState {
    /// Returns when the node is terminated even if pods remain.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        Some(self.period?.deadline?.at)
    }

    /// Changes whether the drain can be cancelled. Nothing is recorded before the eviction period
    /// begins.
    pub(super) fn set_cancellation(&mut self, cancellation: Cancellation) {
        if let Some(period) = &mut self.period {
            period.cancellation = cancellation;
        }
    }

    /// Records the UID of the Node. A changed UID means that a user deleted the Node and its
    /// kubelet recreated it without the taint. In this case the progress of the drain is reset. The
    /// fleet's permission and the record on the Lease belong to the claim and are kept.
    pub(super) fn reset_if_recreated(&mut self, uid: &str) {
        if self.node_uid == uid {
            return;
        }
        if !self.node_uid.is_empty() {
            *self = Self { clearance: self.clearance, ..Self::default() };
        }
        self.node_uid = uid.to_owned();
    }
}

/// The eviction or deletion of one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Eviction {
    /// UID of the pod. A recreated pod has a different UID.
    pub(super) uid: String,
    pub(super) in_flight: bool,
    pub(super) retry: Backoff,
    /// True if the pod is deleted and not evicted, so that budgets are ignored.
    pub(super) deletes: bool,
    /// True if the refusal of the eviction was reported.
    pub(super) told: bool,
    /// True if the eviction was reported.
    pub(super) taken: bool,
    /// When the last attempt was refused. `None` if it was not refused.
    pub(super) refused: Option<Timestamp>,
}

/// The progress of volume detachment from a disrupted node.
#[derive(Clone, Debug, Default)]
pub(super) struct Detach {
    /// When the wait started.
    pub(super) since: Option<Timestamp>,
    /// Earliest time of the next listing from the API server.
    pub(super) next_list: Option<Timestamp>,
    /// Attachments in the last listing.
    pub(super) left: Vec<Attachment>,
    /// True if the wait is over.
    pub(super) over: bool,
}

/// Doubles the interval between reports of a condition that persists, so that it remains visible
/// and does not flood the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogBackoff {
    times: u32,
    next: Option<Timestamp>,
}

impl LogBackoff {
    /// Returns when to report next, for a condition that began at `since` and is first reported
    /// after `first`.
    pub(super) fn next_report_at(&self, since: Timestamp, first: SignedDuration) -> Timestamp {
        let next = self.next.or(since.checked_add(first).ok());
        next.unwrap_or(Timestamp::MAX)
    }

    /// Records that the condition was reported.
    pub(super) fn record_report(&mut self, now: Timestamp, first: SignedDuration) {
        self.times = self.times.saturating_add(1);
        let wait = first * 2_i32.pow(self.times.min(TOLD_DOUBLED_MAX));
        self.next = now.checked_add(wait).ok();
    }
}

/// The progress of early binding to a claim's node.
#[derive(Clone, Debug, Default)]
pub(super) struct Early {
    /// True if its Node exists, created by the engine or by a different client. The engine does not
    /// try to create it again.
    pub(super) made: bool,
    /// True if the reason for not creating the Node was reported.
    pub(super) told: bool,
    /// Pods that are bound to the node, or will be.
    pub(super) binds: BTreeMap<PodKey, PodAttempt>,
    /// Number of pods bound since the last report.
    pub(super) bound: usize,
}

/// The early binding of one pod, or its deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct PodAttempt {
    /// UID of the pod.
    pub(super) uid: String,
    pub(super) in_flight: bool,
    /// True if there are no more attempts.
    pub(super) over: bool,
    pub(super) tries: u32,
    pub(super) retry: Backoff,
}

/// The progress of one claim.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimProgress {
    /// The step without an answer.
    pub(super) step: Option<(CommandId, ClaimStep)>,
    /// When a failed step may be retried.
    pub(super) retry: Backoff,
    /// True if the fleet has granted the usage of the claim.
    pub(super) granted: bool,
    /// The launch as first requested. Retries with the same client token must have the same
    /// parameters.
    pub(super) launch: Option<Box<Launch>>,
    /// True if a launch had no answer, so that an instance may exist.
    pub(super) unsure: bool,
    /// Version of the Node before the engine's last change. While the watch still shows this
    /// version, the engine makes no decision about the Node.
    pub(super) patched: Option<String>,
    /// UID of the Node whose deletion was requested.
    pub(super) removed: Option<String>,
    /// When the first of its pods was nominated.
    pub(super) hinting: Option<Timestamp>,
    /// The progress of early binding.
    pub(super) early: Early,
    /// The drain of its node, if it is disrupted.
    pub(super) drain: DrainState,
    /// When its disruption started.
    pub(super) asked: Option<Timestamp>,
    /// True if missing capacity of its node was reported.
    pub(super) told_lacking: bool,
    /// True if the missing unregistered taint of its node was reported.
    pub(super) told_unguarded: bool,
    /// True if its node did not register in time.
    pub(super) unregistered: bool,
    /// True if the end of its drain was reported.
    pub(super) told_drained: bool,
    /// When the termination of its instance was first requested.
    pub(super) told_to_end: Option<Timestamp>,
    /// When the instance was first listed as terminated.
    pub(super) terminated: Option<Timestamp>,
    /// When the slow termination of its instance was last reported.
    pub(super) lingers: LogBackoff,
    /// True if its instance may be terminated without a drain and is counted by the safeguard.
    pub(super) undrained: bool,
    /// True if its instance is being tagged.
    pub(super) tagging: bool,
    /// When tagging may be retried. No other step waits for the tagging.
    pub(super) tag_again: Backoff,
    /// When its Node was first missing.
    pub(super) node_missed: Option<Timestamp>,
    /// When the engine listed nodes again because the Node of the claim was missing, and the number
    /// of earlier listings.
    pub(super) overdue: Option<(Timestamp, u64)>,
}

/// The nomination of a node for a pod.
#[derive(Clone, Debug)]
pub(super) struct Nomination {
    /// The nominated node.
    pub(super) node: NodeName,
    /// UID of the pod.
    pub(super) uid: String,
    /// True if the nomination is in flight.
    pub(super) out: bool,
    /// When the nomination was sent or answered.
    pub(super) at: Timestamp,
    /// True if the watch shows the nomination.
    pub(super) here: bool,
    /// True if the watch has ever shown it. If this is true and `here` is false, a different client
    /// has removed the nomination.
    pub(super) shown: bool,
    /// Number of nominations sent for the pod.
    pub(super) tells: u32,
    /// Since when and how many times the pod was nominated again although its node is untainted.
    pub(super) refused: Option<(Timestamp, u32)>,
}

/// Key of the nodes that are untainted together: their plan and the start of their wave.
pub(super) type GroupKey = (String, Option<Timestamp>);

/// The nodes of one plan that are still tainted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpeningGroup {
    /// When the first of these nodes was ready.
    pub(super) since: Option<Timestamp>,
    /// When all their pods were nominated.
    pub(super) told: Option<Timestamp>,
    /// True if one of these nodes is not ready yet.
    pub(super) coming: bool,
    /// True if pods of one of these nodes are being nominated.
    pub(super) telling: bool,
    /// True if the scheduler removed the nomination of a pod for one of these nodes.
    pub(super) bereft: bool,
}

impl ClaimProgress {
    /// Returns whether a grant for the claim was requested from the fleet or received.
    pub(super) fn is_grant_requested(&self) -> bool {
        self.granted || matches!(self.step, Some((_, ClaimStep::RequestGrant)))
    }
}

/// The steps of a claim that need an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimStep {
    RequestGrant,
    RequestDisruption,
    Launch,
    MakeNode,
    Register,
    Open,
    Initialize,
    Demote,
    Stamp,
    TakeOver,
    Taint,
    Mark,
    Deadline,
    Untaint,
    ListPods,
    ListAttachments,
    Terminate,
    Finalizer,
    DeleteNode,
}

impl ClaimStep {
    /// Returns whether the success of this step requires no action before the next step.
    pub(super) fn needs_no_action(self) -> bool {
        matches!(
            self,
            Self::Register
                | Self::Open
                | Self::Initialize
                | Self::Demote
                | Self::Stamp
                | Self::TakeOver
                | Self::Deadline
                | Self::Finalizer
                | Self::DeleteNode
        )
    }
}
