//! What is under way: unanswered commands, and how far each claim's next step has come.
//! It must not know which step follows.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::engine::backoff::Backoff;
use crate::engine::command::{BufferPatch, CommandId, Launch};
use crate::model::clock_skew::ClockSkew;
use crate::model::id::{ClaimId, NodeName, ObjectKey, PodKey};
use crate::model::labels::Labels;
use crate::model::watched_object::{Attachment, ObjectKind};
use crate::state::cluster_identity::Mismatch;

/// A command without an answer for this long has failed with an unknown outcome. Whoever carries
/// commands out answers sooner; this is for answers that were lost.
pub(super) const ANSWER_MAX: SignedDuration = SignedDuration::from_secs(120);

/// What lasts is said again after twice the time, five times: from two minutes on, every hour.
const TOLD_DOUBLED_MAX: u32 = 5;

/// What an unanswered command is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandPurpose {
    /// The one step a claim has under way.
    Step(ClaimId),
    /// The eviction of a pod from a claim's node.
    Evict(ClaimId, PodKey),
    /// A listing of instances.
    Listing,
    /// Asking whether objects that a listing lacks exist.
    Probe(ObjectKind),
    /// Asking for a listing of a kind.
    Rewatch(ObjectKind),
    /// Naming a node to a pod.
    Nominate(PodKey),
    /// Taking back what a pod was told.
    ClearNomination(PodKey),
    /// Binding a pod to a claim's node that is still to come.
    Bind(ClaimId, PodKey),
    /// Deleting a pod that was bound to a node that never came.
    Unbind(PodKey),
    /// Removing a Node without a claim.
    Orphan(NodeName),
    /// Telling the provider what nodes have reported.
    SaveDiscoveredMemory,
    /// Putting tags on the instances of claims.
    Tag(Vec<ClaimId>, Labels),
    /// Putting our tags on the instance of a node that another has made.
    Adopt(NodeName),
    /// Telling the fleet what claims take.
    ReportUsage,
    /// Telling the fleet what its budgets count.
    ReportDisruptions,
    /// Telling others of refused offerings.
    MarkUnavailable,
    /// Reading the cluster's Lease.
    ReadLease,
    /// Writing the status of a CapacityBuffer.
    BufferStatus(Box<BufferPatch>),
    /// Writing down that these are let go.
    NoteLetGo(Vec<ClaimId>),
}

/// A command without an answer.
#[derive(Clone, Debug)]
pub(super) struct InFlightCommand {
    pub(super) kind: CommandPurpose,
    pub(super) name: &'static str,
    pub(super) since: Timestamp,
}

impl InFlightCommand {
    /// Whether its answer should have come by now.
    pub(super) fn is_late(&self, now: Timestamp) -> bool {
        now.duration_since(self.since) > ANSWER_MAX
    }
}

/// How far a drain has come.
#[derive(Clone, Debug, Default)]
pub(super) struct DrainState {
    /// UID of the Node that it is of, once it is known: one that is made anew is another.
    pub(super) of: String,
    /// Whether the fleet lets it leave, where that has to be asked.
    pub(super) granted: bool,
    /// Whether it has to be written down before the node is closed, since a rate counts it.
    pub(super) to_note: bool,
    /// Whether the node may be closed: it was written down, or need not be.
    pub(super) cleared: bool,
    /// When the taint was last sent off.
    pub(super) sent: Option<Timestamp>,
    /// When the taint was confirmed.
    pub(super) tainted: Option<Timestamp>,
    /// When what stands beside the taint was last written again.
    pub(super) marked: Option<Timestamp>,
    /// When the API server itself last said that its pods are those that the watch shows.
    pub(super) checked: Option<Timestamp>,
    /// Whether its pods had a place elsewhere, each, where it waits for that: they may be moved.
    pub(super) released: bool,
    /// Whether any was told to go, in an earlier life perhaps: its place is asked for no more.
    pub(super) moved: bool,
    /// Since when its pods are moved, or may be.
    pub(super) began: Option<Timestamp>,
    /// When the node ends whatever is left on it. It only ever comes nearer, and nothing is forced
    /// before the Node says so too.
    pub(super) deadline: Option<Timestamp>,
    /// Whether pods are told to go whatever their disruption budgets say.
    pub(super) forces: bool,
    /// Whether any was: from then on the node cannot stay.
    pub(super) forced: bool,
    /// Whether it is to stay, once nobody is being told to go any more: whoever hears of it after
    /// the node has opened again would go for nothing.
    pub(super) aborts: bool,
    /// When the API server itself has said, after the taint, that no pod is left.
    pub(super) confirmed: Option<Timestamp>,
    /// Pods whose eviction is under way or waits for another attempt.
    pub(super) evictions: BTreeMap<PodKey, Eviction>,
    /// When the API server may be asked for the pods of the node again.
    pub(super) next_list: Option<Timestamp>,
    /// How far its volumes have come.
    pub(super) detach: Detach,
    /// When it was said what holds it.
    pub(super) told: LogBackoff,
}

impl DrainState {
    /// The Node has this UID. Where that is another than before, somebody has deleted the Node and
    /// its kubelet has made it anew, open to pods: what was done about those of the other says
    /// nothing of these. What the fleet has granted, and what is written down, is of the claim.
    pub(super) fn follow(&mut self, uid: &str) {
        if self.of == uid {
            return;
        }
        if !self.of.is_empty() {
            *self = Self {
                granted: self.granted,
                to_note: self.to_note,
                cleared: self.cleared,
                ..Self::default()
            };
        }
        self.of = uid.to_owned();
    }
}

/// One pod's eviction or deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Eviction {
    /// UID of the pod: one of the same name is another.
    pub(super) uid: String,
    pub(super) in_flight: bool,
    pub(super) retry: Backoff,
    /// Whether it is deleted, and its budgets are asked no more.
    pub(super) deletes: bool,
    /// Whether it was said that it is refused.
    pub(super) told: bool,
    /// Whether it was said that it is taken.
    pub(super) taken: bool,
    /// When it was last refused, if it was the last time.
    pub(super) refused: Option<Timestamp>,
}

/// How far the volumes of a leaving node have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Detach {
    /// Since when they are waited for.
    pub(super) since: Option<Timestamp>,
    /// When the API server may be asked for them again.
    pub(super) next_list: Option<Timestamp>,
    /// Those that were left when it last was.
    pub(super) left: Vec<Attachment>,
    /// Whether they are waited for no more.
    pub(super) over: bool,
}

/// Something that lasts is said again after twice the time each time, so that nobody misses it and
/// no log is filled with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogBackoff {
    times: u32,
    next: Option<Timestamp>,
}

impl LogBackoff {
    /// When it is to be said next, if it has lasted since then and is first said after this long.
    pub(super) fn next(&self, since: Timestamp, first: SignedDuration) -> Timestamp {
        let next = self.next.or(since.checked_add(first).ok());
        next.unwrap_or(Timestamp::MAX)
    }

    /// Notes that it was said.
    pub(super) fn told(&mut self, now: Timestamp, first: SignedDuration) {
        self.times = self.times.saturating_add(1);
        let wait = first * 2_i32.pow(self.times.min(TOLD_DOUBLED_MAX));
        self.next = now.checked_add(wait).ok();
    }
}

/// How far pods have come to a node that is still to come.
#[derive(Clone, Debug, Default)]
pub(super) struct Early {
    /// Whether its Node was made, or somebody else has made one: it is not tried again.
    pub(super) made: bool,
    /// Whether it was said why no Node is made.
    pub(super) told: bool,
    /// Pods that are bound to it, or are to be.
    pub(super) binds: BTreeMap<PodKey, PodAttempt>,
    /// How many of them were bound since it was last said.
    pub(super) bound: usize,
}

/// One pod's way to a node, or away from it.
#[derive(Clone, Debug, Default)]
pub(super) struct PodAttempt {
    /// UID of the pod.
    pub(super) uid: String,
    pub(super) in_flight: bool,
    /// Whether nothing more is tried.
    pub(super) over: bool,
    pub(super) tries: u32,
    pub(super) retry: Backoff,
}

/// What is under way for one claim.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimProgress {
    /// The step without an answer.
    pub(super) step: Option<(CommandId, ClaimStep)>,
    /// When a failed step may be tried again.
    pub(super) retry: Backoff,
    /// Whether the fleet has granted what it takes.
    pub(super) granted: bool,
    /// What is launched, as it was first asked for: the same token must mean the same launch.
    pub(super) launch: Option<Box<Launch>>,
    /// Whether a launch had no answer: there may be an instance.
    pub(super) unsure: bool,
    /// Version of the Node that was changed last; nothing more is decided upon it.
    pub(super) patched: Option<String>,
    /// UID of the Node whose removal was asked for.
    pub(super) removed: Option<String>,
    /// When the first of its pods was told of its node.
    pub(super) hinting: Option<Timestamp>,
    /// What was done for its pods before its node is there.
    pub(super) early: Early,
    /// The drain, if it leaves.
    pub(super) drain: DrainState,
    /// When it was asked to leave.
    pub(super) asked: Option<Timestamp>,
    /// Whether it was said what its node lacks.
    pub(super) told_lacking: bool,
    /// Whether it was said that its node came unguarded.
    pub(super) told_unguarded: bool,
    /// Whether its node has not registered in time.
    pub(super) unregistered: bool,
    /// When its instance was first told to end.
    pub(super) told_to_end: Option<Timestamp>,
    /// When it was said that its instance does not end.
    pub(super) lingers: LogBackoff,
    /// Whether its instance may end without a drain, and counts as one that did.
    pub(super) undrained: bool,
    /// Whether tags are being put on its instance.
    pub(super) tagging: bool,
    /// When they may be tried again, if that failed: nothing else waits for it.
    pub(super) tag_again: Backoff,
    /// When its Node was first missed.
    pub(super) node_missed: Option<Timestamp>,
    /// When nodes were listed once more for want of its Node, and how many listings there had been.
    pub(super) overdue: Option<(Timestamp, u64)>,
}

/// What a pod was told: the node that it is planned for.
#[derive(Clone, Debug)]
pub(super) struct Nomination {
    /// The node.
    pub(super) node: NodeName,
    /// UID of the pod.
    pub(super) uid: String,
    /// Whether the answer is out.
    pub(super) out: bool,
    /// When it was sent or answered.
    pub(super) at: Timestamp,
    /// Whether the watch shows it.
    pub(super) here: bool,
    /// Whether the watch has shown it. If it does no more, someone has taken it back.
    pub(super) shown: bool,
    /// How often the pod was told.
    pub(super) tells: u32,
    /// Since when, and how often, it had to be told again although its node is open.
    pub(super) refused: Option<(Timestamp, u32)>,
}

/// What nodes that open together have in common: their plan, and when their wave began.
pub(super) type GroupKey = (String, Option<Timestamp>);

/// The nodes of one plan that are still closed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpeningGroup {
    /// When the first of them was ready.
    pub(super) since: Option<Timestamp>,
    /// When all their pods had been told.
    pub(super) told: Option<Timestamp>,
    /// Whether one is on its way.
    pub(super) coming: bool,
    /// Whether pods of one are being told.
    pub(super) telling: bool,
    /// Whether the scheduler took from a pod of one what it was told.
    pub(super) bereft: bool,
}

impl ClaimProgress {
    /// Whether the fleet has been asked for what the claim takes, or has granted it.
    pub(super) fn is_asked_for(&self) -> bool {
        self.granted
            || self
                .step
                .is_some_and(|(_, step)| step == ClaimStep::RequestGrant)
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
    /// Whether nothing follows from its being done but the next step.
    pub(super) fn is_plain(self) -> bool {
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

/// How the view of the cluster is kept whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Looking {
    /// Whether decisions have begun.
    pub(super) ready: bool,
    /// Since when nothing voluntary is done.
    pub(super) frozen: Option<Timestamp>,
    /// When decisions began or last went on; deadlines count from here at the earliest.
    pub(super) thawed: Option<Timestamp>,
    /// Since when the view has been whole while frozen.
    pub(super) whole_since: Option<Timestamp>,
    /// Whether a listing of instances is under way.
    pub(super) listing: bool,
    /// When instances were last asked for.
    pub(super) listing_asked: Option<Timestamp>,
    /// When the listing of instances was asked for that was answered last.
    pub(super) listing_answered: Option<Timestamp>,
    /// When decisions last went on after a gap that was longer than a short outage.
    pub(super) gap: Option<Timestamp>,
    /// Why the last listing of instances does not count, if it does not.
    pub(super) listing_fault: Option<String>,
    /// Why the last listing of instances failed, if it did.
    pub(super) listing_failed: Option<String>,
    /// Whether the last listing told anything that was not known.
    pub(super) listing_news: bool,
    /// Why the API server, the instances and the configuration are not of one cluster, if so.
    pub(super) mismatch: Option<Mismatch>,
    /// How far the clock of this host differs from another, where that is a fault.
    pub(super) clock_skew: Option<ClockSkew>,
    /// What doubted listings lack.
    pub(super) doubts: BTreeMap<ObjectKind, Vec<(ObjectKey, String)>>,
    /// What the last probe of each kind asks for, and how many listings there were before it.
    pub(super) probes: BTreeMap<ObjectKind, (u64, Vec<(ObjectKey, String)>)>,
    /// Kinds that are being probed.
    pub(super) probing: BTreeMap<ObjectKind, Backoff>,
    /// How many listings of each kind there were.
    pub(super) resets: BTreeMap<ObjectKind, u64>,
    /// Nodes that are known to be gone although pods may still be bound to them.
    pub(super) gone_nodes: BTreeSet<NodeName>,
    /// Whether something waits for a watch to give a sign of life.
    pub(super) awaits_sign: bool,
    /// Since when pods have been bound to nodes we do not know.
    pub(super) unknown_since: Option<Timestamp>,
}

impl Looking {
    /// How many listings of a kind there were.
    pub(super) fn listings(&self, kind: ObjectKind) -> u64 {
        self.resets.get(&kind).copied().unwrap_or(0)
    }
}
