//! Kubelets: they register nodes, run pods, and stop reporting. Node controllers react to missing
//! reports.

use jiff::Timestamp;

use crate::model::id::{InstanceId, NodeName, PodKey};
use crate::model::instance::{Instance, InstanceType};
use crate::model::labels::{ARCH, DO_NOT_SYNC_TAINTS, HOSTNAME, INSTANCE_TYPE, Labels, OS, ZONE};
use crate::model::node::{ConditionStatus, Node};
use crate::model::pod::PodPhase;
use crate::model::taint::{Effect, Taint, UNREACHABLE};
use crate::sim::cluster::workload_controllers::pod_ids;
use crate::sim::cluster::{ClusterTimer, SimCluster};
use crate::sim::timeline::TimelineFact;
use crate::sim::workload::WorkloadKind;

/// Kubelets report every 10 s. A node without a report for 40 s is not ready. Source: Kubernetes,
/// node-monitor-grace-period.
const GRACE_MS: i64 = 40_000;

/// Default toleration of pods for an unreachable node: five minutes. Source:
/// DefaultTolerationSeconds.
const TOLERATION_MS: i64 = 300_000;

/// A Node whose kubelet never reported is unreachable after a minute. Source: Kubernetes,
/// node-startup-grace-period.
pub(super) const NEVER_CAME_MS: i64 = 60_000;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The kubelet of one node.
#[derive(Clone, Debug)]
pub struct SimKubelet {
    /// The instance.
    pub instance: InstanceId,
    /// Launch time of the instance.
    pub launched: Timestamp,
    /// Whether the machine is running.
    pub alive: bool,
    startup_taints: Vec<Taint>,
}

/// A machine that is booting.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// The instance.
    pub instance: &'a Instance,
    /// The instance type.
    pub shape: &'a InstanceType,
    /// Labels that the node registers with.
    pub labels: &'a Labels,
    /// Taints that the node registers with.
    pub taints: &'a [Taint],
    /// The taints that an agent on the node removes, which are among `taints`.
    pub startup_taints: &'a [Taint],
    /// Whether the node ever becomes ready.
    pub gets_ready: bool,
}

impl SimCluster {
    /// Registers the node of a booted machine.
    pub fn register(&mut self, boot: &Boot<'_>, now: Timestamp) -> NodeName {
        let instance = boot.instance;
        let to_come = instance.node.as_ref().map(|node| node.name.clone());
        let name = to_come.unwrap_or_else(|| self.free_name(&instance.id));
        let mut labels = boot.labels.clone();
        for key in [ARCH, OS] {
            let value = boot
                .shape
                .requirements
                .get(key)
                .and_then(|requirement| requirement.values()?.first());
            labels.extend(value.map(|value| (key.to_owned(), value.clone())));
        }
        labels.insert(HOSTNAME.to_owned(), name.0.clone());
        labels.insert(INSTANCE_TYPE.to_owned(), instance.offering.instance_type.0.clone());
        labels.insert(ZONE.to_owned(), instance.offering.zone.0.clone());
        // As in the user data: the kubelet registers with all taints.
        labels.insert(DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
        let mut taints = boot.taints.to_vec();
        taints.push(Taint::new(NOT_READY, Effect::NoSchedule));
        let node = Node {
            name: name.clone(),
            uid: self.store.new_uid(),
            provider_id: format!("aws:///{}/{}", instance.offering.zone, instance.id),
            created: Some(now),
            labels,
            taints,
            has_kubelet: true,
            capacity: boot.shape.capacity.clone(),
            allocatable: boot.shape.allocatable.clone(),
            ..Node::default()
        };
        self.join_node(node, now);
        let kubelet = SimKubelet {
            instance: instance.id.clone(),
            launched: instance.launched,
            alive: true,
            startup_taints: boot.startup_taints.to_vec(),
        };
        self.kubelets.insert(name.clone(), kubelet);
        self.facts
            .push(TimelineFact::Registered { node: name.clone(), instance: instance.id.clone() });
        if boot.gets_ready {
            // The network plugin needs a few seconds.
            self.set_timer(now, 3000, 12_000, ClusterTimer::Ready(name.clone()));
        }
        self.on_node_changed(now);
        name
    }

    /// A kubelet registers its node. If the Node exists, its labels and taints are kept.
    fn join_node(&mut self, node: Node, now: Timestamp) {
        let name = node.name.clone();
        let exists = self.store.change_node(&name, now, |store| {
            store.has_kubelet = true;
            store.capacity.clone_from(&node.capacity);
            store.allocatable.clone_from(&node.allocatable);
            store.taints.retain(|taint| taint.key != UNREACHABLE);
            store.taints.push(Taint::new(NOT_READY, Effect::NoSchedule));
        });
        if !exists {
            self.store.put_node(node, now);
            return;
        }
        // Pods with a pending deletion are terminated now that there is a kubelet.
        for (pod, uid) in self.running_on(&name) {
            let known = self.store.pod(&pod, &uid);
            if known.is_some_and(|pod| pod.deleting.is_some()) {
                self.set_timer(now, 100, 500, ClusterTimer::Leave(pod, uid));
            }
        }
    }

    /// Node name by IP address, as in EC2: the previous name if the kubelet has registered before,
    /// else the first free name. Addresses and names are reused.
    fn free_name(&self, instance: &InstanceId) -> NodeName {
        let mut kubelets = self.kubelets.iter();
        if let Some((name, _)) = kubelets.find(|(_, kubelet)| kubelet.instance == *instance) {
            return name.clone();
        }
        (0..)
            .map(numbered_name)
            .find(|name| {
                let kubelet = self.kubelets.get(name);
                kubelet.is_none_or(|kubelet| !kubelet.alive)
                    && !self.store.nodes().contains_key(name)
                    && self.store.pods_on(name.as_str()).next().is_none()
            })
            .unwrap_or_else(|| numbered_name(usize::MAX))
    }

    /// Adds a node without an instance.
    pub fn add_node(&mut self, node: Node, now: Timestamp) {
        let kubelet = SimKubelet {
            instance: InstanceId(node.instance_id().unwrap_or_default().to_owned()),
            launched: now,
            alive: true,
            startup_taints: Vec::new(),
        };
        self.kubelets.insert(node.name.clone(), kubelet);
        self.store.put_node(node, now);
        self.on_node_changed(now);
    }

    /// The kubelet of a node, including deleted nodes.
    pub fn kubelet_of(&self, node: &str) -> Option<&SimKubelet> {
        self.kubelets.get(node)
    }

    /// The node of an instance, if it exists.
    pub fn node_of(&self, instance: &str) -> Option<&Node> {
        self.store.nodes().values().find(|node| node.instance_id() == Some(instance))
    }

    pub(super) fn is_alive(&self, node: &NodeName) -> bool {
        self.kubelets.get(node).is_some_and(|kubelet| kubelet.alive)
    }

    pub(super) fn on_node_changed(&mut self, now: Timestamp) {
        self.schedule_daemon_reconcile(now);
        self.trigger_scheduler(now);
    }

    pub(super) fn on_node_ready(&mut self, name: &NodeName, now: Timestamp) {
        let Some(kubelet) = self.kubelets.get(name).filter(|kubelet| kubelet.alive) else {
            return;
        };
        let after = now.duration_since(kubelet.launched);
        let starting = !kubelet.startup_taints.is_empty();
        let changed = self.store.change_node(name, now, |node| {
            node.ready = true;
            node.set_condition("Ready", ConditionStatus::True, now);
            node.taints.retain(|taint| taint.key != NOT_READY);
        });
        if !changed {
            return;
        }
        self.facts.push(TimelineFact::Ready { node: name.clone(), after });
        if starting {
            self.set_timer(now, 2000, 8000, ClusterTimer::Unstart(name.clone()));
        }
        for (pod, uid) in self.bound_to(name) {
            self.set_timer(now, 800, 3000, ClusterTimer::Run(pod, uid));
        }
        self.on_node_changed(now);
    }

    pub(super) fn remove_startup_taints(&mut self, name: &NodeName, now: Timestamp) {
        let Some(kubelet) = self.kubelets.get(name).filter(|kubelet| kubelet.alive) else {
            return;
        };
        let startup_taints = kubelet.startup_taints.clone();
        self.store.change_node(name, now, |node| {
            node.taints.retain(|taint| !startup_taints.iter().any(|other| other.matches(taint)));
        });
        self.on_node_changed(now);
    }

    pub(super) fn run_pod(&mut self, key: &PodKey, uid: &str, now: Timestamp) {
        let Some(pod) = self.store.pod(key, uid) else {
            return;
        };
        let Some(node) = pod.node.clone() else { return };
        let ready = self.store.nodes().get(&node).is_some_and(|node| node.ready);
        if pod.phase != PodPhase::Pending
            || pod.deleting.is_some()
            || !ready
            || !self.is_alive(&node)
        {
            return;
        }
        let owner = self.owner_index(pod);
        self.store.change_pod(key, uid, now, |pod| {
            pod.phase = PodPhase::Running;
            pod.started = Some(now);
            pod.ready = Some(true);
        });
        let Some(owner) = owner else { return };
        self.unbalanced.insert(owner);
        if !self.owned[owner].outdated.is_empty() {
            self.schedule_reconcile(owner, now);
        }
        if let WorkloadKind::Job { run_for } = self.owned[owner].workload.owns {
            self.timers.add_after(now, run_for, ClusterTimer::Finish(key.clone(), uid.to_owned()));
        }
    }

    /// The machine of an instance has ended: its kubelet stops reporting.
    pub fn on_machine_ended(&mut self, instance: &InstanceId, now: Timestamp) {
        let mut kubelets = self.kubelets.iter_mut();
        let found = kubelets.find(|(_, kubelet)| kubelet.instance == *instance);
        let Some((name, kubelet)) = found else { return };
        kubelet.alive = false;
        let name = name.clone();
        self.set_timer(now, GRACE_MS, GRACE_MS, ClusterTimer::Silent(name));
    }

    pub(super) fn on_node_silent(&mut self, name: &NodeName, now: Timestamp) {
        // A different machine may have the name now.
        if self.kubelets.get(name).is_some_and(|kubelet| kubelet.alive) {
            return;
        }
        let changed = self.store.change_node(name, now, |node| {
            node.ready = false;
            node.set_condition("Ready", ConditionStatus::Unknown, now);
            node.taints.retain(|taint| taint.key != NOT_READY);
            node.taints.push(Taint::new(UNREACHABLE, Effect::NoSchedule));
            node.taints.push(Taint::new(UNREACHABLE, Effect::NoExecute));
        });
        if !changed {
            return;
        }
        for (pod, uid) in self.running_on(name) {
            self.store.change_pod(&pod, &uid, now, |pod| pod.ready = Some(false));
            let pod = self.store.pods().get(&pod);
            let owner = pod.and_then(|pod| self.owner_index(pod));
            self.unbalanced.extend(owner);
        }
        self.set_timer(now, TOLERATION_MS, TOLERATION_MS, ClusterTimer::EvictLost(name.clone()));
    }

    /// Keys and UIDs of the pods bound to a node.
    fn bound_to(&self, name: &NodeName) -> Vec<(PodKey, String)> {
        pod_ids(self.store.pods_on(name.as_str()))
    }

    /// Keys and UIDs of the pods on a node that have not ended.
    fn running_on(&self, name: &NodeName) -> Vec<(PodKey, String)> {
        let pods = self.store.pods_on(name.as_str());
        pod_ids(pods.filter(|pod| !pod.is_terminal()))
    }

    /// The taint manager requests the deletion of the pods. No kubelet confirms the deletion.
    pub(super) fn evict_lost(&mut self, name: &NodeName, now: Timestamp) {
        if self.store.nodes().get(name).is_none_or(|node| node.ready) {
            return;
        }
        for (pod, uid) in self.running_on(name) {
            let known = self.store.pod(&pod, &uid);
            if known.is_none_or(|pod| !pod.is_daemon()) {
                self.delete_pod(&pod, &uid, now);
            }
        }
    }

    /// The pod garbage collector removes pods bound to a node that does not exist.
    pub(super) fn collect_pods(&mut self, name: &NodeName, now: Timestamp) {
        if self.store.nodes().contains_key(name) {
            return;
        }
        for (pod, uid) in self.bound_to(name) {
            self.forget_pod(&pod, &uid, now);
        }
    }
}

/// The node name of the IP address with this number.
fn numbered_name(number: usize) -> NodeName {
    let (high, low) = (number / 250, number % 250 + 4);
    NodeName(format!("ip-10-0-{high}-{low}.ec2.internal"))
}
