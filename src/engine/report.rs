//! What the engine decided and saw, for people: one report a line of the log.
//! It must not know how lines are written or counted.

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::{FailureKind, OfferingRefusal};
use crate::engine::event::Interruption;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, PoolName, TypeName, Zone};
use crate::model::instance::{OfferingKey, Price};
use crate::model::pool::Reason;
use crate::scheduling::UnschedulablePod;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::state::candidates::{NodeHealth, PendingApproval};
use crate::state::cluster_identity::{HeldEnds, Mismatch};
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::DrainBlocker;

/// Something worth a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Every watch is synced and two instance listings agree: decisions begin.
    Ready,
    /// Nothing voluntary is done until the view is whole again; why.
    Frozen(String),
    /// Nothing at all is done: the API server, the instances and the configuration are not of one
    /// cluster.
    Mismatch(Mismatch),
    /// They are of one cluster again.
    Matches,
    /// More than one Node says that it is an instance: none of them leaves on purpose.
    SameInstance {
        /// The instance.
        instance: InstanceId,
        /// The Nodes.
        nodes: Vec<NodeName>,
    },
    /// Instances do not end without a drain before a person accepts it: they are too many.
    EndsHeld(HeldEnds),
    /// None is held any more.
    EndsReleased,
    /// A node of a pool has not registered in time, nor any that was launched in its zone since:
    /// launches there wait, and then one node is tried.
    Unregistered {
        /// The pool.
        pool: PoolName,
        /// The zone.
        zone: Zone,
        /// How often it was found so.
        failures: u32,
        /// When one node is tried.
        until: Timestamp,
    },
    /// Launches of a pool into a zone wait no longer.
    Registers {
        /// The pool.
        pool: PoolName,
        /// The zone.
        zone: Zone,
        /// Pools and zones where they still do.
        left: usize,
    },
    /// The view is whole again.
    Thawed,
    /// A round of placing pods: how many pods waited, and what became of them.
    Planned {
        /// Pods that waited.
        pending: usize,
        /// Pods that existing hosts will take.
        placed: usize,
        /// New claims.
        claims: usize,
        /// Pods with no answer.
        unplaced: usize,
        /// Price of the new claims, by their cheapest offerings.
        price: Price,
    },
    /// How long pods had waited, each from when it was first seen, when they were planned for the
    /// first time.
    Decided(Vec<SignedDuration>),
    /// A pod that was seen to wait runs, so long after it was made.
    PodStarted(SignedDuration),
    /// A pod has no answer; repeated only when the answer changes.
    Unplaced(UnschedulablePod),
    /// No pod is without an answer any more.
    AllAnswered,
    /// What shall be there whatever pods ask for cannot be had; repeated only when that changes.
    Short(Shortfall),
    /// What was short is there, or is not wanted any more.
    Enough(StaticDemand),
    /// A claim was planned for these pods (in observe mode: would be).
    ClaimPlanned {
        /// The claim.
        claim: ClaimId,
        /// The pool.
        pool: PoolName,
        /// The cheapest offering.
        offering: OfferingKey,
        /// Its price.
        price: Price,
        /// How many offerings may be launched for it.
        offerings: usize,
        /// Pods it is planned for.
        pods: Vec<PodKey>,
    },
    /// An instance was launched for a claim.
    ClaimLaunched {
        /// The claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// What was launched.
        offering: OfferingKey,
        /// Its price, if the catalog knows it.
        price: Option<Price>,
    },
    /// A launch was refused; its pods are planned again.
    ClaimRefused {
        /// The claim.
        claim: ClaimId,
        /// What was refused.
        refusals: Vec<OfferingRefusal>,
    },
    /// A launch has failed for good: the claim goes on under another id, whose launch is another.
    ClaimRenewed {
        /// The claim as it was called.
        claim: ClaimId,
        /// What it is called now; none where the engine plans its pods anew, since the pool or node
        /// class has changed, or its cheapest offering is held down by now.
        next: Option<ClaimId>,
    },
    /// The fleet had no room for a claim; its pods are planned again.
    ClaimDenied {
        /// The claim.
        claim: ClaimId,
        /// Which limit leaves too little, with its numbers.
        why: String,
    },
    /// The pods of a claim were bound to its node before that is there.
    BoundEarly {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// How many.
        pods: usize,
        /// How long after the launch was answered.
        after: SignedDuration,
    },
    /// Pods wait for their node, although they were to be bound before it is there.
    NotEarly {
        /// The claim.
        claim: ClaimId,
        /// Why.
        why: String,
    },
    /// The instance of a node that Karpenter has made is ours by its tags.
    Adopted {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
    },
    /// Nodes of Karpenter's are not taken over, since there is no pool of their name; repeated only
    /// when their number changes.
    NotAdopted {
        /// What their pool is called.
        pool: PoolName,
        /// How many.
        nodes: usize,
    },
    /// A claim moved on to another phase.
    ClaimPhase {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// Its node, once known.
        node: Option<NodeName>,
        /// The phase it is in now.
        phase: ClaimPhase,
        /// Whether it had come so far before it was looked at: what is found at a start.
        found: bool,
    },
    /// A node is asked to leave (in observe mode: would be).
    Retire {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// Its node, if it has one.
        node: Option<NodeName>,
        /// Why.
        reason: Reason,
        /// What it cost per hour.
        price: Option<Price>,
        /// How many of its pods will need another place.
        pods: usize,
    },
    /// So many nodes may leave for a reason, as far as they are concerned: budgets, pauses and
    /// times may keep them. Said when that changes.
    Eligible {
        /// The reason.
        reason: Reason,
        /// How many.
        nodes: usize,
    },
    /// Nodes leave together (in observe mode: would), since their pods can be had for less.
    Consolidates {
        /// Their pool; none where they are of several.
        pool: Option<PoolName>,
        /// How many nodes leave.
        nodes: usize,
        /// How many come in their place.
        claims: usize,
        /// What those cost that leave.
        before: Price,
        /// What those cost that come.
        after: Price,
    },
    /// A node that is about to leave has drifted.
    Drifted {
        /// Its node.
        node: NodeName,
        /// In what, in Karpenter's spelling.
        why: &'static str,
    },
    /// So many nodes are not ready that none leaves on purpose.
    Ailing(NodeHealth),
    /// Enough nodes are ready again for others to leave on purpose.
    Well(NodeHealth),
    /// By another configuration more nodes would leave than may unasked: they stay until it is
    /// accepted.
    Held(PendingApproval),
    /// They may leave: it is accepted, or another has come.
    Unheld {
        /// What was to be accepted.
        id: String,
        /// How many nodes stayed until then.
        nodes: usize,
    },
    /// The provider says that something happens to an instance.
    Interrupted {
        /// The claim.
        claim: ClaimId,
        /// Its node, if it has one.
        node: Option<NodeName>,
        /// The instance.
        instance: InstanceId,
        /// What happens to it.
        what: Interruption,
        /// Whether nothing is done about it.
        ignored: bool,
    },
    /// A node was to leave but stays: something came in between.
    Kept {
        /// The claim.
        claim: ClaimId,
        /// For which reason it was to leave.
        reason: Reason,
        /// Why it stays.
        why: String,
    },
    /// Nothing voluntary is done in a pool, or in the whole cluster: somebody has paused it.
    Paused {
        /// The pool; none means the whole cluster.
        pool: Option<PoolName>,
        /// Until when; none means until somebody ends it.
        until: Option<Timestamp>,
        /// Why, in the words of whoever asked for it.
        why: String,
    },
    /// A pause is over.
    Resumed {
        /// The pool; none means the whole cluster.
        pool: Option<PoolName>,
    },
    /// Nodes of a pool are due to leave, and stay until it is time or somebody lets them; repeated
    /// only when that changes.
    Shut {
        /// The pool.
        pool: PoolName,
        /// For which reason they are due.
        reason: Reason,
        /// What keeps them.
        why: String,
    },
    /// The pods or volumes of a leaving node have held it for a while; repeated after twice the
    /// time each time.
    DrainHeld {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// How long its pods have been told to go.
        since: SignedDuration,
        /// What holds it: the first few.
        held_by: Vec<DrainBlocker>,
        /// How many more do.
        more: usize,
        /// When it ends all the same, if it does.
        deadline: Option<Timestamp>,
    },
    /// A leaving node ends although pods or volumes hold it: its time is up.
    DrainForced {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// What held it: the first few.
        held_by: Vec<DrainBlocker>,
        /// How many more did.
        more: usize,
    },
    /// An instance does not end although it was told to; repeated after twice the time each time.
    Lingers {
        /// The claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// Since it was first told.
        since: SignedDuration,
    },
    /// A pod of a leaving node was told to go, and the API server has taken that.
    Evicted {
        /// The pod.
        pod: PodKey,
        /// For which reason its node leaves.
        reason: Reason,
    },
    /// A node that was asked to leave is gone, with its instance.
    Ended {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
        /// How long it took from when it was asked.
        took: SignedDuration,
        /// How old its claim has become.
        age: SignedDuration,
    },
    /// A node has less than nine tenths of what its instance type promises.
    Lacking {
        /// The node.
        node: NodeName,
        /// Its instance type.
        instance_type: TypeName,
        /// Of what: `cpu`, `memory` or `pods`.
        resource: &'static str,
        /// What is promised.
        promised: i64,
        /// What it has.
        found: i64,
    },
    /// A node came without the taint that keeps pods off it until it is registered.
    Unguarded {
        /// The node.
        node: NodeName,
    },
    /// An eviction was refused by a disruption budget; it is tried again. Said once for each pod of
    /// a leaving node.
    EvictRefused {
        /// The pod.
        pod: PodKey,
        /// In the API server's words.
        text: String,
    },
    /// A Node of ours has no instance, and goes: said once.
    Orphan {
        /// The node.
        node: NodeName,
    },
    /// Nodes stay closed to pods, since the cluster is only observed from here on.
    LeftClosed {
        /// How many.
        nodes: usize,
    },
    /// What somebody wrote cannot be understood and counts for nothing; told once as long as it
    /// stands.
    Misread(InvalidInput),
    /// A command failed.
    Failed {
        /// The command's name.
        command: &'static str,
        /// How.
        kind: FailureKind,
        /// In words.
        text: String,
    },
    /// An instance of ours whose tags cannot be read, or that two claims share: left alone.
    Stranger {
        /// The instance.
        instance: InstanceId,
        /// What is wrong with it.
        why: String,
    },
}
