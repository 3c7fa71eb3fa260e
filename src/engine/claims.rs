//! Look-ups, deadlines and conditions of claims, which several steps use.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::NodePatch;
use crate::engine::context::Context;
use crate::engine::controllers::Consolidation;
use crate::engine::in_flight::{ClaimProgress, DrainState};
use crate::engine::report::Report;
use crate::model::claim::{ClaimRecord, ID_ALPHABET, TAG_CLAIM};
use crate::model::cluster::{Cluster, MinValuesPolicy};
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::{Instance, OfferingKey};
use crate::model::labels::{
    FINALIZER, Labels, OF_OFFERINGS, PLACEMENT_GROUP_PARTITION, ZONE, ZONE_ID,
};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::{Budget, Pool, Reason};
use crate::model::reservation::Reservation;
use crate::model::taint::Taint;
use crate::state::node_claims::NodeClaim;

impl Context {
    /// Returns the pool of a claim, or the default settings if the pool is no longer configured.
    pub(super) fn pool_of(&self, claim: &NodeClaim) -> Cow<'_, Pool> {
        let pool = self.state.cluster.pool(claim.record.pool.as_str());
        pool.map_or_else(|| Cow::Owned(Pool::new(claim.record.pool.as_str())), Cow::Borrowed)
    }

    /// Returns a claim and its Node, if the watch shows it.
    pub(super) fn claim_and_node(&self, id: &ClaimId) -> Option<(&NodeClaim, &Node)> {
        let claim = self.claim(id)?;
        Some((claim, self.node_of(claim)?))
    }

    /// Returns the claim with this ID.
    pub(super) fn claim(&self, id: &ClaimId) -> Option<&NodeClaim> {
        self.state.ledger.claims.get(id)
    }

    /// Returns the drain of a claim's node.
    pub(super) fn drain_of(&self, id: &ClaimId) -> Option<&DrainState> {
        self.progress.get(id).map(|progress| &progress.drain)
    }

    /// Returns the progress of a claim.
    pub(super) fn progress_of(&mut self, id: &ClaimId) -> &mut ClaimProgress {
        self.progress.entry(id.clone()).or_default()
    }

    /// Returns the Node of a claim, as the watch shows it.
    pub(super) fn node_of(&self, claim: &NodeClaim) -> Option<&Node> {
        self.state.node_of(claim)
    }
}

/// Returns whether the watch still shows the version of the Node before the engine's last change.
pub(super) fn is_stale(cx: &Context, id: &ClaimId, node: &Node) -> bool {
    let progress = cx.progress.get(id);
    progress
        .and_then(|progress| progress.patched.as_ref())
        .is_some_and(|version| *version == node.version)
}

/// Returns whether two Nodes have the providerID of a claim's instance, so that a termination
/// would lose the pods of both. An instance that the provider reclaims is drained anyway.
pub(super) fn is_ambiguous(cx: &Context, claim: &NodeClaim, reason: Reason) -> bool {
    let nodes = &cx.state.objects.node_instances;
    let live = claim.live_instance();
    reason != Reason::Interrupted
        && live.is_some_and(|instance| nodes.is_shared(instance.id.as_str()))
}

/// Returns the deadline of a claim's phase. After a restart each phase has its whole timeout
/// again.
pub(super) fn phase_deadline(
    cx: &Context,
    claim: &NodeClaim,
    timeout: SignedDuration,
) -> Timestamp {
    let from = cx.state.started.map_or(claim.since, |at| at.max(claim.since));
    from.checked_add(timeout).unwrap_or(Timestamp::MAX)
}

/// Joins a launched instance to its claim, and returns the ID of the claim. An instance of a batch
/// determines this ID, because only then a later listing or process derives the same one. If a
/// listing has shown the instance first, its claim takes over the pods of the launch.
pub(super) fn join_launched_instance(
    cx: &mut Context,
    consolidation: &mut Consolidation,
    id: &ClaimId,
    instance: Instance,
    now: Timestamp,
) -> ClaimId {
    let Cluster { installation, name, .. } = &*cx.state.cluster;
    let is_of_batch = !instance.tags.contains_key(TAG_CLAIM);
    let record = ClaimRecord::of_instance(&instance, installation, name).ok();
    let Some(record) = record.filter(|record| is_of_batch && record.id != *id) else {
        cx.state.ledger.join_instance(id, instance);
        return id.clone();
    };
    let named = record.id.clone();
    let ledger = &mut cx.state.ledger;
    let Some(mut planned) = ledger.claims.get(id).cloned() else {
        return id.clone();
    };
    ledger.remove(id);
    match ledger.claims.get_mut(&named) {
        // Pods that were planned for the listed claim meanwhile are planned again.
        Some(listed) => {
            listed.pods = planned.pods;
            listed.labels = planned.labels;
            listed.devices = planned.devices;
            cx.batcher.plan_again_at(now);
        }
        None => {
            planned.record.id = named.clone();
            ledger.insert(planned);
            ledger.join_instance(&named, instance);
        }
    }
    if let Some(progress) = cx.progress.remove(id) {
        cx.progress.entry(named.clone()).or_insert(progress);
    }
    consolidation.replacement_pods.rename_place(id, &named);
    let claim = id.clone();
    cx.outbox.push_report(Report::ClaimNamed { claim, name: named.clone() });
    named
}

/// Excludes the time that a launch was queued from the timeout of its claim.
pub(super) fn exclude_queue_time(cx: &mut Context, id: &ClaimId, queued: SignedDuration) {
    if let Some(claim) = cx.state.ledger.claims.get_mut(id) {
        claim.since = claim.since.checked_add(queued).unwrap_or(claim.since);
    }
}

/// Returns the deadline of a condition first seen at `since`. The time during which decisions were
/// suspended is not included.
pub(super) fn condition_deadline(
    cx: &Context,
    since: Timestamp,
    timeout: SignedDuration,
) -> Timestamp {
    let from = cx.sync.thawed.map_or(since, |at| at.max(since));
    from.checked_add(timeout).unwrap_or(Timestamp::MAX)
}

/// Returns whether the offerings of a launch have fewer values of a label than `min_values` of the
/// pool requires, which the policy `best_effort` permits.
pub(super) fn is_relaxed<'o>(
    cx: &Context,
    pool: &Pool,
    offerings: impl Iterator<Item = &'o OfferingKey> + Clone,
) -> bool {
    cx.state.cluster.scheduling.min_values == MinValuesPolicy::BestEffort
        && cx.state.catalog_of(&pool.name).falls_short(&pool.requirements, offerings)
}

/// Forgets a claim that failed or whose instance is gone.
pub(super) fn forget_claim(cx: &mut Context, id: &ClaimId) {
    cx.state.ledger.remove(id);
    cx.progress.remove(id);
}

/// Returns whether any unfinished pod is bound to a node. Daemons and mirror pods are ignored.
pub(super) fn has_pods(cx: &Context, node: &NodeName) -> bool {
    let mut pods = cx.state.objects.pods_on(node.as_str());
    pods.any(Pod::occupies_node)
}

/// Returns whether a node is initialized: it is ready, has no temporary taints and has every
/// extended resource that its pods request. Source: spec/disruption.md §3.7.
pub(super) fn is_started(cx: &Context, claim: &NodeClaim, node: &Node, taints: &[Taint]) -> bool {
    let startup = &claim.record.startup_taints;
    let pods = claim.pods.iter();
    let mut pods = pods.filter_map(|key| cx.state.objects.pods.get(key));
    node.ready
        && !taints.iter().any(|taint| {
            taint.is_ephemeral() || startup.iter().any(|startup| startup.matches(taint))
        })
        && !pods.any(|pod| {
            pod.requests.extended.iter().any(|(name, amount)| {
                *amount > 0
                    && node.allocatable.get(name) <= 0
                    && !has_pod_requesting(cx, node, name)
            })
        })
}

/// Returns the labels that follow from the launched instance and that the Node does not have yet.
/// Pods that select these labels were planned onto the Node. Source: spec/aws.md §13.2.
pub(super) fn labels_of_instance(cx: &Context, claim: &NodeClaim, node: &Node) -> Labels {
    let Some(instance) = &claim.instance else {
        return Labels::new();
    };
    let catalog = cx.state.catalog_of(&claim.record.pool);
    let key = &instance.offering;
    let instance_type = catalog.get(key.instance_type.as_str());
    let mut labels: Labels = instance_type
        .into_iter()
        .flat_map(|instance_type| instance_type.requirements.iter())
        .filter(|(key, _)| !OF_OFFERINGS.contains(key))
        .filter_map(|(key, requirement)| {
            let only = requirement.values().filter(|values| values.len() == 1)?.first()?;
            Some((key.to_owned(), only.clone()))
        })
        .collect();
    labels.insert(ZONE.to_owned(), key.zone.to_string());
    let zone_id = catalog.zone_ids().get(&key.zone);
    let zone_id = zone_id.filter(|id| !id.is_empty());
    labels.extend(zone_id.map(|id| (ZONE_ID.to_owned(), id.clone())));
    let partition = instance.facts.as_deref().and_then(|fact| fact.partition);
    let partition = partition.map(|partition| partition.to_string());
    labels.extend(partition.map(|partition| (PLACEMENT_GROUP_PARTITION.to_owned(), partition)));
    let reservation = key.reservation.as_deref();
    let reservation = reservation.and_then(|id| catalog.reservations().get(id));
    labels.extend(reservation.map(Reservation::node_labels).into_iter().flatten());
    labels.retain(|key, _| !node.labels.contains_key(key));
    labels
}

/// Returns the patch that removes Outrigger's finalizer from a Node, if the Node has this
/// finalizer.
pub(super) fn finalizer_removal_patch(node: &Node) -> Option<NodePatch> {
    node.has_finalizer().then(|| NodePatch {
        finalizers: Some(other_finalizers(node).collect()),
        ..NodePatch::for_node(node)
    })
}

/// Returns whether EC2 chooses the partition of a node and the engine does not know it yet. Pods
/// may be spread over partitions, and the next listing shows the partition. Source: spec/aws.md
/// §5.12.
pub(super) fn awaits_partition(cx: &Context, claim: &NodeClaim) -> bool {
    let instance = claim.instance.as_ref();
    let Some(unseen) = instance.filter(|instance| instance.facts.is_none()) else {
        return false;
    };
    let catalog = cx.state.catalog_of(&claim.record.pool);
    let instance_type = catalog.get(unseen.offering.instance_type.as_str());
    let partitions = instance_type
        .and_then(|instance_type| instance_type.requirements.get(PLACEMENT_GROUP_PARTITION));
    let several = partitions.and_then(|partition| partition.values());
    several.is_some_and(|values| values.len() > 1)
        && !claim.labels.contains_key(PLACEMENT_GROUP_PARTITION)
}

/// Returns whether a pod on a node requests a resource. Nodes do not show the resources of a
/// DeviceClass (KEP-5004), but the scheduler binds the pods anyway.
pub(super) fn has_pod_requesting(cx: &Context, node: &Node, resource: &str) -> bool {
    let mut pods = cx.state.objects.pods_on(node.name.as_str());
    pods.any(|pod| pod.occupies_node() && pod.requests.get(resource) > 0)
}

/// Returns the finalizers of a Node, except Outrigger's.
pub(super) fn other_finalizers(node: &Node) -> impl Iterator<Item = String> {
    let finalizers = node.finalizers.iter();
    finalizers.filter(|finalizer| *finalizer != FINALIZER).cloned()
}

/// Length of a claim's ID: 13 characters of 5 bits are 65 bits, so collisions are negligible.
pub(super) const CLAIM_ID_LENGTH: usize = 13;

/// Returns a new random ID.
pub(super) fn new_random_id(cx: &mut Context) -> String {
    (0..CLAIM_ID_LENGTH).map(|_| char::from(ID_ALPHABET[cx.rng.usize(0..32)])).collect()
}

impl Context {
    /// Returns all budgets that count nodes of a pool.
    pub(super) fn budgets_for(&self, pool: &PoolName) -> impl Iterator<Item = &Budget> {
        let cluster = &self.state.cluster;
        let pools = cluster.pool(pool.as_str()).into_iter();
        let pool_budgets = pools.flat_map(|pool| &pool.disruption.budgets);
        let fleet = self.state.fleet.iter().flat_map(|fleet| &fleet.budgets);
        pool_budgets.chain(&cluster.disruption.budgets).chain(fleet)
    }
}
