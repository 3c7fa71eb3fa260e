//! From a launched instance to an initialized node, and its checks afterwards.

use jiff::{SignedDuration, Timestamp};

use crate::engine::Engine;
use crate::engine::command::{Command, NodePatch};
use crate::engine::drain::deadline::unfinished_disruption;
use crate::engine::in_flight::ClaimStep;
use crate::engine::report::Report;
use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeName};
use crate::model::instance::CapacityType;
use crate::model::labels::{
    AWAITING_KUBELET, AWAITING_KUBELET_FORMER, CAPACITY_TYPE, CLAIM, CLUSTER, DO_NOT_SYNC_TAINTS,
    FINALIZER, INITIALIZED, INITIALIZED_AT, Labels, NODE_CLASS_HASH, OF_OFFERINGS, OF_RESERVATIONS,
    PLACEMENT_GROUP_PARTITION, POOL_HASH, REGISTERED, TAINT_UNREGISTERED, ZONE, ZONE_ID,
};
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::reservation::Reservation;
use crate::model::taint::Taint;
use crate::model::watched_object::ObjectKind;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot_builder::node_labels;

/// A Node that vanished while its instance runs was deleted by a user. The instance is terminated
/// after this time, unless the Node comes back.
const NODE_MISSED_MAX: SignedDuration = SignedDuration::from_secs(60);
/// Delay before the pods of such a Node are evicted, and maximum wait for them.
const EVICTS_AFTER: SignedDuration = SignedDuration::from_secs(20);
const EVICTS_MAX: SignedDuration = SignedDuration::from_mins(10);
/// Interval between checks while pods are bound to it.
const PODS_LEFT_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Before the engine terminates an instance because its Node is missing, it lists the nodes again.
/// It repeats the request after this time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(60);

impl Engine {
    pub(super) fn check_registration(&mut self, id: &ClaimId, now: Timestamp) {
        let Some(claim) = self.claim(id) else {
            return;
        };
        let node = self.node_of(claim);
        if node.is_some_and(Node::is_registered) {
            self.enter_phase(id, ClaimPhase::Registered, now);
            return;
        }
        let deadline = self.phase_deadline(claim, self.pool_of(claim).registration_timeout);
        if deadline > now {
            if node.is_none_or(Node::is_awaited) {
                self.wake_at(deadline, "a registration is overdue");
                self.bind_early(id, now);
                return;
            }
            let fresh = node.filter(|node| !self.is_stale(id, node));
            let ready = fresh.is_some_and(|node| node.ready);
            let unplaced = self.awaits_partition(claim);
            // A node that is ready is registered and untainted in one step.
            let held = self.is_held(claim, now);
            let stays_tainted = held || self.waits_for_nominations(claim);
            let closed = stays_tainted && (!ready || !self.may_untaint(id, now));
            let waits = unplaced || (ready && closed && !held);
            self.wake_at(deadline, "a registration is overdue");
            if !waits {
                self.send_registration(id, closed, now);
            }
            return;
        }
        let runs = node.is_some_and(Node::may_run_pods);
        let is_there = node.is_some();
        self.on_not_registered(id, now);
        if runs {
            self.disrupt_node(id, Reason::TimedOut, now);
            return;
        }
        // Nothing runs on an existing Node that did not register: its taint is NoExecute, or its
        // kubelet never registered.
        if is_there || self.is_confirmed_missing(id, now) {
            self.terminate_undrained(id, Reason::TimedOut, now);
        }
    }

    /// Returns whether EC2 chooses the partition of a node and the engine does not know it yet.
    /// Pods may be spread over partitions, and the next listing has it. Source: spec/aws.md §5.12.
    pub(super) fn awaits_partition(&self, claim: &NodeClaim) -> bool {
        let instance = claim.instance.as_ref();
        let Some(unseen) = instance.filter(|instance| instance.facts.is_none()) else {
            return false;
        };
        let catalog = self.state.catalog_of(&claim.record.pool);
        let instance_type = catalog.get(unseen.offering.instance_type.as_str());
        let partitions = instance_type
            .and_then(|instance_type| instance_type.requirements.get(PLACEMENT_GROUP_PARTITION));
        let several = partitions.and_then(|partition| partition.values());
        several.is_some_and(|values| values.len() > 1)
            && !claim.labels.contains_key(PLACEMENT_GROUP_PARTITION)
    }

    /// Returns whether nodes were listed again since a claim's Node was first missing. The Node may
    /// exist although the watch does not show it.
    fn is_confirmed_missing(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let resets = self.looking.listing_count(ObjectKind::Node);
        let overdue = self.progress_of(id).overdue;
        if overdue.is_some_and(|(_, before)| resets > before) {
            return true;
        }
        // The requested listing may be lost, so request it again.
        let next = overdue.and_then(|(asked, _)| asked.checked_add(LOOK_AGAIN).ok());
        if self.waits_until(next, "list the nodes again", now) {
            return false;
        }
        self.progress_of(id).overdue = Some((now, resets));
        self.restart_watch(ObjectKind::Node, now);
        let next = now.checked_add(LOOK_AGAIN).unwrap_or(now);
        self.wake_at(next, "list the nodes again");
        false
    }

    fn send_registration(&mut self, id: &ClaimId, closed: bool, now: Timestamp) {
        let known = self.claim_and_node(id);
        let Some((claim, node)) = known.filter(|(_, node)| !self.is_stale(id, node)) else {
            return;
        };
        let patch = self.registration_patch(claim, node, closed, now);
        let unguarded = !node.is_registered() && !node.has_unregistered_taint();
        let node = node.name.clone();
        let reported = &mut self.works.entry(id.clone()).or_default().told_unguarded;
        if unguarded && !std::mem::replace(reported, true) {
            self.push_report(Report::Unguarded { node });
        }
        self.send_step(id, ClaimStep::Register, Command::PatchNode(patch), now);
    }

    /// Returns the labels that follow from the launched instance and that the Node does not have
    /// yet. Pods that select them were planned onto it. Source: spec/aws.md §13.2.
    pub(super) fn labels_of_instance(&self, claim: &NodeClaim, node: &Node) -> Labels {
        let Some(instance) = &claim.instance else {
            return Labels::new();
        };
        let catalog = self.state.catalog_of(&claim.record.pool);
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

    /// Returns the one patch that registers a node: labels, annotations and taints. It removes the
    /// unregistered taint, unless the node remains tainted for now.
    fn registration_patch(
        &self,
        claim: &NodeClaim,
        node: &Node,
        closed: bool,
        now: Timestamp,
    ) -> NodePatch {
        let pool = self.pool_of(claim);
        let mut labels = self.labels_of_instance(claim, node);
        labels.extend(node_labels(claim, &pool));
        labels.insert(REGISTERED.to_owned(), "true".to_owned());
        if let Some(instance) = &claim.instance {
            let bought = instance.offering.capacity_type.as_str();
            labels.insert(CAPACITY_TYPE.to_owned(), bought.to_owned());
        }
        let mut annotations = pool.annotations.clone();
        for (key, value) in [
            (CLAIM, claim.record.id.to_string()),
            (CLUSTER, claim.record.cluster.to_string()),
            (POOL_HASH, claim.record.pool_hash.clone()),
            (NODE_CLASS_HASH, claim.record.node_class_hash.clone()),
        ] {
            annotations.insert(key.to_owned(), value);
        }
        let mut taints = node.taints.clone();
        taints.retain(|taint| taint.key != TAINT_UNREGISTERED || closed);
        let synced = node.labels.get(DO_NOT_SYNC_TAINTS);
        if synced.is_none_or(|value| value != "true") {
            for wanted in pool.taints.iter().chain(&claim.record.startup_taints) {
                if !taints.iter().any(|taint| taint.matches(wanted)) {
                    taints.push(wanted.clone());
                }
            }
        }
        if self.is_started(claim, node, &taints) {
            labels.insert(INITIALIZED.to_owned(), "true".to_owned());
            annotations.insert(INITIALIZED_AT.to_owned(), now.to_string());
        }
        let mut annotations = NodePatch::set_values(annotations);
        let awaiting = [AWAITING_KUBELET, AWAITING_KUBELET_FORMER];
        let present = awaiting.into_iter().filter(|key| node.annotations.contains_key(*key));
        annotations.extend(present.map(|key| (key.to_owned(), None)));
        NodePatch {
            node: node.name.clone(),
            version: node.version.clone(),
            labels: NodePatch::set_values(labels),
            annotations,
            taints: Some(taints),
            finalizers: self.finalizers_of(node),
            disowned: None,
        }
    }

    /// Returns the finalizers that a node needs, if they differ from its current ones. It has
    /// Outrigger's finalizer only if configured. A Node that is being deleted keeps its finalizers.
    fn finalizers_of(&self, node: &Node) -> Option<Vec<String>> {
        let wanted = self.state.cluster.finalizer;
        if wanted == node.has_finalizer() || node.deleting.is_some() {
            return None;
        }
        let finalizer = wanted.then(|| FINALIZER.to_owned());
        Some(other_finalizers(node).chain(finalizer).collect())
    }

    pub(super) fn check_initialization(&mut self, id: &ClaimId, now: Timestamp) {
        if !self.is_node_unchanged(id, now) {
            return;
        }
        let Some((claim, node)) = self.claim_and_node(id) else {
            return;
        };
        if node.is_initialized() {
            self.enter_phase(id, ClaimPhase::Initialized, now);
            return;
        }
        let deadline = self.phase_deadline(claim, self.pool_of(claim).initialization_timeout);
        if deadline <= now {
            self.disrupt_node(id, Reason::TimedOut, now);
            return;
        }
        if node.has_unregistered_taint() {
            self.wake_at(deadline, "an initialization is overdue");
            if self.may_untaint(id, now)
                && let Some(patch) = self.untaint_patch_of(id, now)
            {
                self.send_step(id, ClaimStep::Open, Command::PatchNode(patch), now);
            }
            return;
        }
        let patch = NodePatch {
            labels: vec![(INITIALIZED.to_owned(), Some("true".to_owned()))],
            annotations: vec![(INITIALIZED_AT.to_owned(), Some(now.to_string()))],
            ..NodePatch::for_node(node)
        };
        let started = self.is_started(claim, node, &node.taints) && !self.is_stale(id, node);
        self.wake_at(deadline, "an initialization is overdue");
        if started {
            self.send_step(id, ClaimStep::Initialize, Command::PatchNode(patch), now);
        }
    }

    /// Returns the patch that untaints a node. It also marks the node as initialized if nothing
    /// else is missing.
    fn untaint_patch_of(&self, id: &ClaimId, now: Timestamp) -> Option<NodePatch> {
        let claim = self.claim(id)?;
        let node = self.node_of(claim).filter(|node| !self.is_stale(id, node))?;
        let mut taints = node.taints.clone();
        taints.retain(|taint| taint.key != TAINT_UNREGISTERED);
        let started = self.is_started(claim, node, &taints);
        let label = (INITIALIZED.to_owned(), Some("true".to_owned()));
        let annotation = (INITIALIZED_AT.to_owned(), Some(now.to_string()));
        Some(NodePatch {
            labels: Vec::from_iter(started.then_some(label)),
            annotations: Vec::from_iter(started.then_some(annotation)),
            taints: Some(taints),
            ..NodePatch::for_node(node)
        })
    }

    /// Returns whether a node is initialized: it is ready, has no temporary taints and has every
    /// extended resource that its pods request. Source: spec/disruption.md §3.7.
    pub(super) fn is_started(&self, claim: &NodeClaim, node: &Node, taints: &[Taint]) -> bool {
        let startup = &claim.record.startup_taints;
        let pods = claim.pods.iter();
        let mut pods = pods.filter_map(|key| self.state.objects.pods.get(key));
        node.ready
            && !taints.iter().any(|taint| {
                taint.is_ephemeral() || startup.iter().any(|startup| startup.matches(taint))
            })
            && !pods.any(|pod| {
                pod.requests.extended.iter().any(|(name, amount)| {
                    *amount > 0 && node.allocatable.get(name) <= 0 && !self.has_user_of(node, name)
                })
            })
    }

    /// Returns whether a pod on a node requests a resource. Nodes do not show the resources of a
    /// DeviceClass (KEP-5004), but the scheduler binds the pods anyway.
    fn has_user_of(&self, node: &Node, resource: &str) -> bool {
        let mut pods = self.state.objects.pods_on(node.name.as_str());
        pods.any(|pod| pod.occupies_node() && pod.requests.get(resource) > 0)
    }

    pub(super) fn check_initialized_node(&mut self, id: &ClaimId, now: Timestamp) {
        if !self.is_node_unchanged(id, now) {
            return;
        }
        let known = self.claim_and_node(id);
        let Some((claim, node)) =
            known.filter(|(_, node)| node.deleting.is_none() && !self.is_stale(id, node))
        else {
            return;
        };
        let finalizers = self.finalizers_of(node);
        // A disruption that this process cancelled is not resumed.
        let unfinished = unfinished_disruption(node).filter(|_| claim.withdrawn.is_none());
        if let Some(reason) = unfinished {
            // An earlier process evicted pods, or may have.
            self.resume_disruption(id, reason, now);
        } else if node.is_marked() {
            // The taint is from an earlier process. The engine decides again whether to disrupt the
            // node.
            self.send_untaint(id, now);
        } else if let Some(patch) = self.takeover_patch(claim, node) {
            self.send_step(id, ClaimStep::TakeOver, Command::PatchNode(patch), now);
        } else if let Some(patch) = demotion_patch(claim, node) {
            self.send_step(id, ClaimStep::Demote, Command::PatchNode(patch), now);
        } else if finalizers.is_some() {
            let patch = NodePatch { finalizers, ..NodePatch::for_node(node) };
            self.send_step(id, ClaimStep::Finalizer, Command::PatchNode(patch), now);
        }
    }

    /// Returns whether a registered claim's Node still exists unchanged. If its kubelet has
    /// registered again, the claim returns to an earlier phase.
    fn is_node_unchanged(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        if self.node_vanished(id, now) {
            return false;
        }
        let claim = self.claim(id);
        let node = claim.and_then(|claim| self.node_of(claim));
        if let Some(node) = node.filter(|node| node.deleting.is_some() && node.has_finalizer()) {
            let shared = claim.is_some_and(|claim| self.is_ambiguous(claim, Reason::Deleted));
            // If a second Node has the same providerID, only this object is deleted.
            match finalizer_removal_patch(node).filter(|_| shared) {
                Some(patch) if !self.is_stale(id, node) => {
                    self.send_step(id, ClaimStep::Finalizer, Command::PatchNode(patch), now);
                }
                Some(_) => {}
                None => self.disrupt_node(id, Reason::Deleted, now),
            }
            return false;
        }
        let has_reset = node.is_some_and(|node| !node.is_registered() && !self.is_stale(id, node));
        if has_reset {
            self.enter_phase(id, ClaimPhase::Launched, now);
        }
        !has_reset
    }

    /// Returns whether a registered claim's Node is gone. Its instance is terminated after a while,
    /// but not while the cluster state is out of sync.
    pub(super) fn node_vanished(&mut self, id: &ClaimId, now: Timestamp) -> bool {
        let Some(claim) = self.claim(id) else {
            return true;
        };
        if self.node_of(claim).is_some() {
            let leaves = claim.leaving.is_some();
            if let Some(progress) = self.works.get_mut(id) {
                let was_missed = progress.node_missed.take().is_some();
                progress.overdue = None;
                if was_missed && !leaves {
                    let evictions = std::mem::take(&mut progress.drain.evictions);
                    // The node is ready again.
                    self.cancel_claim_commands(
                        |command| match command {
                            Command::Evict { pod, .. } => evictions.contains_key(pod),
                            _ => false,
                        },
                        now,
                    );
                }
            }
            return false;
        }
        let bound = claim.node.clone().filter(|name| self.has_pods(name));
        let progress = self.works.entry(id.clone()).or_default();
        let since = *progress.node_missed.get_or_insert(now);
        let due = self.condition_deadline(since, NODE_MISSED_MAX);
        let evicts =
            bound.as_ref().is_some_and(|name| self.evict_of_vanished(id, name, since, now));
        if due > now {
            self.wake_at(due, "a node has vanished");
        } else if evicts {
            let next_check = self.condition_deadline(now, PODS_LEFT_AGAIN);
            self.wake_at(next_check, "the pods of a node that was deleted are evicted");
        } else if bound.is_some_and(|name| !self.looking.gone_nodes.contains(&name)) {
            // The Node may exist although the listing lacks it, because pods are bound to it. A
            // probe checks it.
            let next_check = self.condition_deadline(now, PODS_LEFT_AGAIN);
            self.wake_at(next_check, "pods are bound to a node that has vanished");
        } else if self.is_ready() && self.is_confirmed_missing(id, now) {
            self.terminate_undrained(id, Reason::Orphaned, now);
        }
        true
    }

    /// Evicts the pods of a Node that a user has deleted, until the API server has none left.
    /// Returns whether pods remain.
    ///
    /// It evicts nothing while only listings lack the Node: the watch has to show its deletion, or
    /// a probe has to confirm it. It also evicts nothing while the safeguard on terminations
    /// without a drain holds, because many Nodes that disappear simultaneously are a mistake.
    fn evict_of_vanished(
        &mut self,
        id: &ClaimId,
        node: &NodeName,
        since: Timestamp,
        now: Timestamp,
    ) -> bool {
        let (from, until) = (
            self.condition_deadline(since, EVICTS_AFTER),
            self.condition_deadline(since, EVICTS_MAX),
        );
        if self.waits_until(from, "the pods of a node that has vanished may be evicted", now) {
            return false;
        }
        let accepted = self.claim(id).is_some_and(|claim| self.is_termination_approved(claim));
        let is_deleted = self.looking.gone_nodes.contains(node);
        let may = is_deleted && self.is_managing() && self.is_ready() && until > now;
        may && (accepted || self.is_within_safeguard(id, now))
            && self.is_confirmed_missing(id, now)
            && self.evict_pods(id, node, now)
    }

    /// Returns whether pods that have not ended are bound to a node, without daemons and mirror
    /// pods.
    pub(super) fn has_pods(&self, node: &NodeName) -> bool {
        let mut pods = self.state.objects.pods_on(node.as_str());
        pods.any(Pod::occupies_node)
    }
}

/// Returns the finalizers of a Node, except Outrigger's.
fn other_finalizers(node: &Node) -> impl Iterator<Item = String> {
    let finalizers = node.finalizers.iter();
    finalizers.filter(|finalizer| *finalizer != FINALIZER).cloned()
}

/// Returns the patch that removes Outrigger's finalizer from a Node, if it has it.
pub(super) fn finalizer_removal_patch(node: &Node) -> Option<NodePatch> {
    node.has_finalizer().then(|| NodePatch {
        finalizers: Some(other_finalizers(node).collect()),
        ..NodePatch::for_node(node)
    })
}

/// Returns the patch for a node whose capacity reservation has ended. Its instance continues as an
/// on-demand instance. Source: spec/aws.md §5.11 and §10, 88.
fn demotion_patch(claim: &NodeClaim, node: &Node) -> Option<NodePatch> {
    let bought = claim.instance.as_ref()?.offering.capacity_type;
    if bought != CapacityType::OnDemand {
        return None;
    }
    let label = node.labels.get(CAPACITY_TYPE).map(String::as_str);
    let mut keys = OF_RESERVATIONS.iter();
    let is_reserved = label == Some(CapacityType::Reserved.as_str())
        || keys.any(|key| node.labels.contains_key(*key));
    is_reserved.then(|| {
        let capacity_type = (CAPACITY_TYPE.to_owned(), Some(bought.as_str().to_owned()));
        let removed = OF_RESERVATIONS.map(|key| (key.to_owned(), None));
        NodePatch {
            labels: [capacity_type].into_iter().chain(removed).collect(),
            ..NodePatch::for_node(node)
        }
    })
}
