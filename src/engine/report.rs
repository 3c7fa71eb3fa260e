//! Reports of the engine: decisions and observations, one log line each.

// Texts and values of a report for all outputs.
pub mod description;
// The table of all reports.
pub mod describe;
// Examples of every kind.
#[cfg(test)]
pub(crate) mod examples;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, InstanceId, NodeName, PodKey, PoolName, TypeName, Zone};
use crate::model::instance::{CapacityType, OfferingKey, Price};
use crate::model::pool::Reason;
use crate::model::sweep::SweepKind;
use crate::provider::{FailureKind, Interruption, OfferingRefusal};
use crate::scheduling::UnschedulablePod;
use crate::scheduling::static_pools::{Shortfall, StaticDemand};
use crate::state::candidates::{NodeHealth, PendingApproval};
use crate::state::cluster_identity::{HeldEnds, Mismatch};
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::DrainBlocker;
use crate::state::sweeps::SweepResult;

/// A report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// All watches are in sync and two instance listings agree: decisions start.
    Ready,
    /// The cluster state is out of sync, and why. Decisions are suspended.
    Frozen(String),
    /// The API server, the instances and the configuration belong to different clusters. All
    /// changes are suspended.
    Mismatch(Mismatch),
    /// The API server, the instances and the configuration belong to the same cluster again.
    Matches,
    /// Several Nodes have the providerID of one instance. The voluntary disruption of these Nodes
    /// is blocked.
    SameInstance {
        /// The instance.
        instance: InstanceId,
        /// The Nodes.
        nodes: Vec<NodeName>,
    },
    /// Too many instances would be terminated without a drain. The termination of these instances
    /// waits for approval.
    EndsHeld(HeldEnds),
    /// No termination waits for approval.
    EndsReleased,
    /// A node of a pool has not registered in time, and no node launched later in its zone has
    /// registered. Launches in the zone wait for a test launch.
    Unregistered {
        /// The pool.
        pool: PoolName,
        /// The zone.
        zone: Zone,
        /// Number of consecutive failures.
        failures: u32,
        /// Time of the next test launch.
        until: Timestamp,
    },
    /// An instance has ended before its node has registered, and Outrigger has not requested it.
    EndedEarly {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// The instance.
        instance: InstanceId,
        /// Its offering.
        offering: OfferingKey,
        /// Why, as the provider says.
        why: String,
        /// Pods that were planned for it.
        pods: Vec<PodKey>,
    },
    /// Launches of a pool in a zone no longer wait for a test launch.
    Registers {
        /// The pool.
        pool: PoolName,
        /// The zone.
        zone: Zone,
        /// Number of pools and zones in which launches still wait.
        left: usize,
    },
    /// The cluster state is in sync again.
    Thawed,
    /// A planning pass: number of pending pods, and the result.
    Planned {
        /// Pending pods.
        pending: usize,
        /// Pods that fit existing nodes.
        placed: usize,
        /// New claims.
        claims: usize,
        /// Unschedulable pods.
        unplaced: usize,
        /// Price of the new claims, by their cheapest offerings.
        price: Price,
    },
    /// Waiting times of pods that were planned for the first time, each counted from when the pod
    /// was first seen.
    Decided(Vec<SignedDuration>),
    /// A pending pod was bound to a node. The value is the time since its creation.
    PodBound(SignedDuration),
    /// A pending pod has started to run. The value is the time since its creation.
    PodStarted(SignedDuration),
    /// A pod is unschedulable. Repeated only when the reasons change.
    Unplaced(UnschedulablePod),
    /// No unschedulable pods remain.
    AllAnswered,
    /// Nodes of a static pool or capacity of a buffer cannot be launched. Repeated only when the
    /// shortfall changes.
    Short(Shortfall),
    /// A shortfall ended: the capacity exists or is no longer required.
    Enough(StaticDemand),
    /// A claim was planned for these pods. In observe mode, the report only means that the claim
    /// would be planned.
    ClaimPlanned {
        /// The claim.
        claim: ClaimId,
        /// The pool.
        pool: PoolName,
        /// The cheapest offering.
        offering: OfferingKey,
        /// Its price.
        price: Price,
        /// Number of offerings for the launch.
        offerings: usize,
        /// `provisioned`, or the disruption reason of the nodes that the claim replaces.
        reason: &'static str,
        /// True if the offerings have fewer values of a label than `min_values` requires.
        relaxed: bool,
        /// Pods of the claim.
        pods: Vec<PodKey>,
    },
    /// An instance was launched for a claim.
    ClaimLaunched {
        /// The claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// The launched offering.
        offering: OfferingKey,
        /// Its price, if the catalog knows it.
        price: Option<Price>,
    },
    /// A launch was refused. The pods of its claim are planned again.
    ClaimRefused {
        /// The claim.
        claim: ClaimId,
        /// The refused offerings.
        refusals: Vec<OfferingRefusal>,
    },
    /// A launch has failed permanently. The claim is replaced by one with a new id and a new
    /// launch.
    ClaimRenewed {
        /// The old id.
        claim: ClaimId,
        /// The new id. `None` if its pods are planned again, because the pool or node class has
        /// changed, or its cheapest offering is unavailable.
        next: Option<ClaimId>,
    },
    /// The instance of a claim was launched together with others. From now on the claim has the id
    /// that the instance determines.
    ClaimNamed {
        /// The id until now.
        claim: ClaimId,
        /// The id from now on.
        name: ClaimId,
    },
    /// A limit denied a claim. The pods of the claim are planned again.
    ClaimDenied {
        /// The claim.
        claim: ClaimId,
        /// The limit, with its numbers.
        why: String,
    },
    /// The pods of a claim were bound early to its node.
    BoundEarly {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// Number of pods.
        pods: usize,
        /// Time since the launch completed.
        after: SignedDuration,
    },
    /// Pods could not be bound early and wait for their node.
    NotEarly {
        /// The claim.
        claim: ClaimId,
        /// Why.
        why: String,
    },
    /// A Karpenter node was adopted: its instance was tagged.
    Adopted {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
    },
    /// Karpenter nodes are not adopted: their pool is not configured. Repeated only when their
    /// number changes.
    NotAdopted {
        /// Name of their pool.
        pool: PoolName,
        /// Number of nodes.
        nodes: usize,
    },
    /// A claim entered a phase.
    ClaimPhase {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// Its node, once known.
        node: Option<NodeName>,
        /// Instance type, zone and capacity type of its instance, once known.
        offering: Option<OfferingKey>,
        /// The new phase.
        phase: ClaimPhase,
        /// True if the claim enters the phase after a drain that left no pods on its node.
        drained: bool,
        /// True if the claim had reached the phase before this process started.
        found: bool,
    },
    /// A node is disrupted. In observe mode, the report only means that the node would be
    /// disrupted.
    Retire {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// Its node, if it has one.
        node: Option<NodeName>,
        /// Capacity type of its instance, once known.
        capacity_type: Option<CapacityType>,
        /// Why.
        reason: Reason,
        /// Its price per hour.
        price: Option<Price>,
        /// Number of its pods to reschedule.
        pods: usize,
    },
    /// Number of nodes eligible for disruption by reason, before budgets, pauses and windows.
    /// Reported on changes.
    Eligible {
        /// The reason.
        reason: Reason,
        /// Number of nodes.
        nodes: usize,
    },
    /// Nodes are consolidated. In observe mode, the report only means that the nodes would be
    /// consolidated.
    Consolidates {
        /// Their pools.
        pools: BTreeSet<PoolName>,
        /// Number of disrupted nodes.
        nodes: usize,
        /// Number of replacement nodes.
        claims: usize,
        /// Price of the disrupted nodes.
        before: Price,
        /// Price of the replacement nodes.
        after: Price,
    },
    /// A node has drifted.
    Drifted {
        /// Its node.
        node: NodeName,
        /// The drifted field, in Karpenter's spelling.
        why: &'static str,
    },
    /// Too many nodes are not ready. Voluntary disruption is suspended.
    Ailing(NodeHealth),
    /// Enough nodes are ready. Voluntary disruption resumes.
    Well(NodeHealth),
    /// A configuration change would disrupt too many nodes. These disruptions wait for approval.
    Held(PendingApproval),
    /// The nodes no longer wait for approval: the change was approved or superseded.
    Unheld {
        /// The id of the approval.
        id: String,
        /// Number of nodes that waited.
        nodes: usize,
    },
    /// The provider sent an interruption notice.
    Interrupted {
        /// The claim.
        claim: ClaimId,
        /// Its node, if it has one.
        node: Option<NodeName>,
        /// The instance.
        instance: InstanceId,
        /// Kind of interruption.
        what: Interruption,
        /// True if the notice is ignored.
        ignored: bool,
    },
    /// The disruption of a node was cancelled.
    Kept {
        /// The claim.
        claim: ClaimId,
        /// Its disruption reason.
        reason: Reason,
        /// Why it was cancelled.
        why: String,
    },
    /// A user paused voluntary disruption in a pool or in the cluster.
    Paused {
        /// The pool. `None` means the whole cluster.
        pool: Option<PoolName>,
        /// End of the pause. `None` means until resumed.
        until: Option<Timestamp>,
        /// The reason, as given by the user.
        why: String,
    },
    /// A pause ended.
    Resumed {
        /// The pool. `None` means the whole cluster.
        pool: Option<PoolName>,
    },
    /// The disruption of due nodes of a pool is blocked. Repeated only when that changes.
    Shut {
        /// The pool.
        pool: PoolName,
        /// Their disruption reason.
        reason: Reason,
        /// The blocker.
        why: String,
    },
    /// A scheduled sweep did not run, because no host could run it in time.
    SweepSkipped {
        /// Its kind.
        sweep: SweepKind,
        /// The occurrence of its schedule.
        at: Timestamp,
    },
    /// A scheduled sweep has run.
    Swept {
        /// Its kind.
        sweep: SweepKind,
        /// The occurrence of its schedule.
        at: Timestamp,
        /// What it found.
        result: SweepResult,
    },
    /// Pods or volumes block the drain of a node. Repeated with doubled intervals.
    DrainHeld {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// Time since evictions started or became allowed.
        since: SignedDuration,
        /// The first blockers.
        held_by: Vec<DrainBlocker>,
        /// Number of further blockers.
        more: usize,
        /// When the node is terminated despite the blockers. `None` if it is not.
        deadline: Option<Timestamp>,
    },
    /// A drain timed out, and the node is terminated despite blockers.
    DrainForced {
        /// The claim.
        claim: ClaimId,
        /// Its node.
        node: NodeName,
        /// The first blockers.
        held_by: Vec<DrainBlocker>,
        /// Number of further blockers.
        more: usize,
    },
    /// An instance has not terminated for a long time after the request. Repeated with doubled
    /// intervals.
    Lingers {
        /// The claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// Time since the first request.
        since: SignedDuration,
    },
    /// A pod of a disrupted node was evicted.
    Evicted {
        /// The pod.
        pod: PodKey,
        /// Disruption reason of its node.
        reason: Reason,
    },
    /// A disrupted node and its instance are terminated.
    Ended {
        /// The node.
        node: NodeName,
        /// Its pool.
        pool: PoolName,
        /// Time since the start of its disruption.
        took: SignedDuration,
        /// Time since the termination of the instance was first requested, if it was.
        ending: Option<SignedDuration>,
        /// Age of its claim.
        age: SignedDuration,
    },
    /// A node has less than nine tenths of the capacity of its instance type.
    Lacking {
        /// The node.
        node: NodeName,
        /// Its instance type.
        instance_type: TypeName,
        /// The resource: `cpu`, `memory` or `pods`.
        resource: &'static str,
        /// Capacity of the instance type.
        promised: i64,
        /// Capacity of the node.
        found: i64,
    },
    /// A node registered without the taint that keeps pods off the node until its registration.
    Unguarded {
        /// The node.
        node: NodeName,
    },
    /// A PodDisruptionBudget refused an eviction, which is retried. Reported once per pod of a
    /// disrupted node.
    EvictRefused {
        /// The pod.
        pod: PodKey,
        /// The message of the API server.
        text: String,
    },
    /// An Outrigger Node has no instance and is deleted. Reported once.
    Orphan {
        /// The node.
        node: NodeName,
    },
    /// The cluster switched to observe mode, and disrupted nodes remain tainted.
    LeftClosed {
        /// Number of nodes.
        nodes: usize,
    },
    /// A user-written value is invalid and ignored. Reported once while it exists.
    Misread(InvalidInput),
    /// A command failed.
    Failed {
        /// The command's name.
        command: &'static str,
        /// Kind of failure.
        kind: FailureKind,
        /// Error message.
        text: String,
    },
    /// An Outrigger instance with invalid tags, or shared by two claims, is ignored.
    Stranger {
        /// The instance.
        instance: InstanceId,
        /// The problem.
        why: String,
    },
}
