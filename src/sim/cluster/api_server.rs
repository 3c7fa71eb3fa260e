//! API calls of clients, with the responses of the API server.

use jiff::Timestamp;

use crate::coordination::lease_annotations::{ACCEPTED, accepted_with};
use crate::engine::command::{Command, LeasePatch, NewNode, NodePatch};
use crate::model::id::{NodeName, PodKey};
use crate::model::labels::{Labels, TAINT_DISRUPTED};
use crate::model::node::Node;
use crate::model::pod::PodPhase;
use crate::provider::{CommandResult, FailureKind};
use crate::sim::cloud::failed_result;
use crate::sim::cluster::kubelet::NEVER_CAME_MS;
use crate::sim::cluster::{ClusterTimer, SimCluster};

/// Message of the API server if a disruption budget blocks an eviction.
const BUDGET: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl SimCluster {
    /// Executes a command for the API server. `None` for all other commands.
    pub fn execute_command(&mut self, command: &Command, now: Timestamp) -> Option<CommandResult> {
        let answer = match command {
            Command::CreateNode(node) => self.create_node(node, now),
            Command::Bind { pod, uid, node } => self.bind_to(pod, uid, node, now),
            Command::DeletePod { pod, uid, grace_seconds } => {
                self.delete_within(pod, uid, *grace_seconds, now)
            }
            Command::PatchNode(patch) => self.patch_node(patch, now),
            Command::DeleteNode { node, uid } => self.delete_node(node, uid, now),
            Command::Evict { pod, uid } => self.evict(pod, uid, now),
            Command::Nominate { pod, uid, node } => self.nominate(pod, uid, None, Some(node), now),
            Command::ClearNomination { pod, uid, node } => {
                self.nominate(pod, uid, Some(node), None, now)
            }
            Command::ListPodsOn { node } => {
                CommandResult::Pods(self.store().pods_on(node.as_str()).cloned().collect())
            }
            Command::ListAttachments { node } => {
                CommandResult::Attachments(self.store().attached_to(node.as_str()))
            }
            Command::Probe { kind, objects } => CommandResult::Probed {
                alive: objects
                    .iter()
                    .filter(|(key, uid)| self.store().has_object(*kind, key, uid))
                    .count(),
            },
            Command::ReadLease => CommandResult::Lease(self.lease.clone()),
            Command::PatchLease(patch) => self.patch_lease(patch),
            // The simulated cluster has no such objects.
            Command::PatchBuffer(patch) => gone_result("CapacityBuffer", &patch.key.name),
            Command::Launch(_)
            | Command::Terminate { .. }
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::SaveDiscoveredMemory { .. }
            | Command::ListInstances
            | Command::Rewatch { .. }
            | Command::RequestGrant(_)
            | Command::RequestDisruption { .. }
            | Command::ReportDisruptions(_)
            | Command::ReportUsage { .. }
            | Command::MarkUnavailable { .. } => return None,
        };
        self.refresh_budgets();
        Some(answer)
    }

    /// An external actor removes the taint of a disrupted node.
    pub fn remove_taint(&mut self, name: &NodeName, now: Timestamp) {
        self.store.change_node(name, now, |node| {
            node.taints.retain(|taint| taint.key != TAINT_DISRUPTED);
        });
        self.on_node_changed(now);
    }

    fn create_node(&mut self, new_node: &NewNode, now: Timestamp) -> CommandResult {
        if self.store.nodes().contains_key(&new_node.name) {
            return conflict_result("a node of this name exists already");
        }
        let node = Node {
            name: new_node.name.clone(),
            uid: self.store.new_uid(),
            provider_id: new_node.provider_id.clone(),
            created: Some(now),
            labels: new_node.labels.clone(),
            annotations: new_node.annotations.clone(),
            taints: new_node.taints.clone(),
            capacity: new_node.capacity.clone(),
            allocatable: new_node.allocatable.clone(),
            ..Node::default()
        };
        self.store.put_node(node, now);
        self.set_timer(
            now,
            NEVER_CAME_MS,
            NEVER_CAME_MS,
            ClusterTimer::Silent(new_node.name.clone()),
        );
        self.on_node_changed(now);
        CommandResult::Done
    }

    /// Binds a pod. As in Kubernetes, the API server does not check whether it fits.
    fn bind_to(
        &mut self,
        key: &PodKey,
        uid: &str,
        node: &NodeName,
        now: Timestamp,
    ) -> CommandResult {
        let Some(pod) = self.store.pods().get(key) else {
            return gone_result("pod", &key.name);
        };
        if pod.uid != uid || pod.node.is_some() || pod.deleting.is_some() || pod.is_terminal() {
            return conflict_result("the pod is another, bound or on its way out");
        }
        self.on_pod_bound(key, uid, node, now);
        self.trigger_scheduler(now);
        CommandResult::Done
    }

    fn delete_within(
        &mut self,
        key: &PodKey,
        uid: &str,
        seconds: u32,
        now: Timestamp,
    ) -> CommandResult {
        match self.store.pods().get(key) {
            None => return gone_result("pod", &key.name),
            Some(pod) if pod.uid != uid => return gone_result("pod of that UID", &key.name),
            Some(_) => {}
        }
        if seconds == 0 {
            self.forget_pod(key, uid, now);
        } else {
            self.end_within(key, uid, seconds, now);
        }
        CommandResult::Done
    }

    fn patch_node(&mut self, patch: &NodePatch, now: Timestamp) -> CommandResult {
        match self.store.nodes().get(&patch.node) {
            None => return gone_result("node", patch.node.as_str()),
            Some(node) if node.version != patch.version => {
                return conflict_result("the object has been modified");
            }
            Some(_) => {}
        }
        self.store.change_node(&patch.node, now, |node| {
            merge_changes(&mut node.labels, &patch.labels);
            merge_changes(&mut node.annotations, &patch.annotations);
            if let Some(taints) = &patch.taints {
                node.taints.clone_from(taints);
            }
            if let Some(finalizers) = &patch.finalizers {
                node.finalizers.clone_from(finalizers);
            }
            if node.node_claim == patch.disowned {
                node.node_claim = None;
            }
        });
        let node = self.store.nodes().get(&patch.node);
        if node.is_some_and(|node| node.deleting.is_some() && node.finalizers.is_empty()) {
            self.remove_node_now(&patch.node, now);
        }
        self.on_node_changed(now);
        CommandResult::Done
    }

    /// A user approves a held change by its ID, as `outrigger reload --accept` does.
    pub fn approve_held(&mut self, id: &str) {
        let lease = self.lease.get_or_insert_default();
        lease.version.push('+');
        let known = lease.annotations.get(ACCEPTED).map(String::as_str);
        let text = accepted_with(known, id);
        lease.annotations.insert(ACCEPTED.to_owned(), text);
    }

    fn patch_lease(&mut self, patch: &LeasePatch) -> CommandResult {
        let version = self.lease.as_ref().map(|lease| &lease.version);
        if version != patch.version.as_ref() {
            return conflict_result("the Lease has been modified");
        }
        let mut lease = self.lease.take().unwrap_or_default();
        lease.version.push('+');
        merge_changes(&mut lease.annotations, &patch.annotations);
        self.lease = Some(lease);
        CommandResult::Lease(self.lease.clone())
    }

    fn nominate(
        &mut self,
        key: &PodKey,
        uid: &str,
        from: Option<&NodeName>,
        to: Option<&NodeName>,
        now: Timestamp,
    ) -> CommandResult {
        let pod = self.store.pods().get(key);
        if pod.is_some_and(|pod| pod.uid == uid && pod.nominated_node.as_ref() != from) {
            return conflict_result("the test operation failed");
        }
        let is_changed = self.store.change_pod(key, uid, now, |pod| {
            if pod.node.is_none() {
                pod.nominated_node = to.cloned();
            }
        });
        if is_changed {
            CommandResult::Done
        } else {
            conflict_result("there is no such pod any more")
        }
    }

    fn delete_node(&mut self, name: &NodeName, uid: &str, now: Timestamp) -> CommandResult {
        match self.store.nodes().get(name) {
            None => return gone_result("node", name.as_str()),
            Some(node) if node.uid != uid => {
                return conflict_result("the UID in the precondition differs");
            }
            Some(_) => {}
        }
        self.remove_node(name, now);
        CommandResult::Done
    }

    /// Deletes a node. The node is removed after its finalizers.
    pub fn remove_node(&mut self, name: &NodeName, now: Timestamp) {
        let node = self.store.nodes().get(name);
        if node.is_some_and(|node| node.finalizers.is_empty()) {
            self.remove_node_now(name, now);
            return;
        }
        self.store.change_node(name, now, |node| {
            node.deleting.get_or_insert(now);
        });
    }

    fn remove_node_now(&mut self, name: &NodeName, now: Timestamp) {
        self.store.remove_node(name);
        // The pod garbage collector runs every 20 s and then waits for another 20 s.
        self.set_timer(now, 20_000, 40_000, ClusterTimer::Collect(name.clone()));
    }

    fn evict(&mut self, key: &PodKey, uid: &str, now: Timestamp) -> CommandResult {
        let Some(pod) = self.store.pods().get(key) else {
            return gone_result("pod", &key.name);
        };
        if pod.uid != uid {
            return conflict_result("the UID in the precondition differs");
        }
        let is_unprotected =
            pod.deleting.is_some() || pod.is_terminal() || pod.phase == PodPhase::Pending;
        let owner = self.owner_index(pod);
        let allowance = owner.and_then(|owner| self.allowed_disruptions(owner));
        if !is_unprotected && allowance.is_some_and(|allowed| allowed <= 0) {
            return CommandResult::EvictRefused(BUDGET.to_owned());
        }
        if pod.deleting.is_none() {
            self.evictions += 1;
        }
        self.delete_pod(key, uid, now);
        CommandResult::Done
    }
}

fn merge_changes(labels: &mut Labels, changes: &[(String, Option<String>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => labels.insert(key.clone(), value.clone()),
            None => labels.remove(key),
        };
    }
}

fn gone_result(kind: &str, name: &str) -> CommandResult {
    failed_result(FailureKind::Gone, &format!("{kind} {name:?} not found"))
}

fn conflict_result(text: &str) -> CommandResult {
    failed_result(FailureKind::Conflict, text)
}
