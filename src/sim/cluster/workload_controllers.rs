//! Controllers of Deployments, StatefulSets, Jobs and DaemonSets: they create and replace pods.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::pod::{DaemonSet, Pod, PodPhase};
use crate::model::taint::{Effect, Toleration, TolerationOperator};
use crate::sim::cluster::scheduler_filters::fits_when_empty;
use crate::sim::cluster::{ClusterTimer, SimCluster};
use crate::sim::event_queue::time_after;
use crate::sim::timeline::TimelineFact;
use crate::sim::workload::{Workload, WorkloadKind};

/// A workload with its current state.
#[derive(Clone, Debug)]
pub struct SimWorkload {
    /// The workload. A DaemonSet also has the tolerations that its controller adds.
    pub workload: Workload,
    template: Pod,
    /// Desired replicas. For a job, the total number of requested runs.
    pub desired: u32,
    /// Number of successful runs.
    pub succeeded: u32,
    /// UIDs of pods with an outdated template, during a rollout.
    pub(super) outdated: BTreeSet<String>,
    asked: bool,
}

/// Tolerations that the DaemonSet controller adds to every daemon. Source: Kubernetes
/// documentation, DaemonSet, taints and tolerations.
const DAEMON_TOLERATIONS: [(&str, Effect); 6] = [
    ("node.kubernetes.io/not-ready", Effect::NoExecute),
    ("node.kubernetes.io/unreachable", Effect::NoExecute),
    ("node.kubernetes.io/disk-pressure", Effect::NoSchedule),
    ("node.kubernetes.io/memory-pressure", Effect::NoSchedule),
    ("node.kubernetes.io/pid-pressure", Effect::NoSchedule),
    ("node.kubernetes.io/unschedulable", Effect::NoSchedule),
];

impl SimCluster {
    pub(super) fn adopt_workload(&mut self, workload: &Workload) {
        let index = self.owned.len();
        let mut workload = workload.clone();
        if workload.owns == WorkloadKind::DaemonSet {
            self.store.put_daemon_set(DaemonSet {
                key: workload.key(),
                template: workload.pod_template(),
            });
            workload.tolerations.extend(DAEMON_TOLERATIONS.map(|(key, effect)| Toleration {
                key: key.to_owned(),
                operator: TolerationOperator::Exists,
                value: String::new(),
                effect: Some(effect),
            }));
        }
        for step in &workload.steps {
            self.timers.add_at(step.at, ClusterTimer::Scale(index, step.replicas));
        }
        for at in &workload.rollouts {
            self.timers.add_at(*at, ClusterTimer::Roll(index));
        }
        let template = workload.pod_template();
        self.owners.insert(workload.name.clone(), index);
        self.owned.push(SimWorkload {
            workload,
            template,
            desired: 0,
            succeeded: 0,
            outdated: BTreeSet::new(),
            asked: false,
        });
        self.unbalanced.insert(index);
    }

    /// The workloads.
    pub fn workloads(&self) -> impl Iterator<Item = &SimWorkload> {
        self.owned.iter()
    }

    /// The workload that owns a pod.
    pub fn owner_of(&self, pod: &Pod) -> Option<&SimWorkload> {
        self.owned.get(self.owner_index(pod)?)
    }

    pub(super) fn owner_index(&self, pod: &Pod) -> Option<usize> {
        self.owners.get(&pod.owner.as_ref()?.name).copied()
    }

    /// Changes the number of replicas. For a job, adds this number of runs.
    pub fn scale(&mut self, workload: &str, replicas: u32, now: Timestamp) {
        if let Some(index) = self.owners.get(workload).copied() {
            self.set_replicas(index, replicas, now);
        }
    }

    pub(super) fn set_replicas(&mut self, owner: usize, replicas: u32, now: Timestamp) {
        let Some(owned) = self.owned.get_mut(owner) else {
            return;
        };
        let from = owned.desired;
        let job = matches!(owned.workload.owns, WorkloadKind::Job { .. });
        owned.desired = if job { from + replicas } else { replicas };
        let from = if job { replicas } else { from };
        let workload = owned.workload.name.clone();
        if !job && from == replicas {
            return;
        }
        self.facts.push(TimelineFact::Scaled { workload, from, to: replicas });
        self.schedule_reconcile(owner, now);
    }

    pub(super) fn schedule_reconcile(&mut self, owner: usize, now: Timestamp) {
        self.unbalanced.insert(owner);
        // Controllers react within tens of milliseconds.
        let wait = self.draw_pace(20, 200);
        let Some(owned) = self.owned.get_mut(owner).filter(|owned| !owned.asked) else {
            return;
        };
        owned.asked = true;
        self.timers.add_after(now, wait, ClusterTimer::Reconcile(owner));
    }

    pub(super) fn schedule_daemon_reconcile(&mut self, now: Timestamp) {
        for owner in 0..self.owned.len() {
            if self.owned[owner].workload.owns == WorkloadKind::DaemonSet {
                self.schedule_reconcile(owner, now);
            }
        }
    }

    pub(super) fn reconcile(&mut self, owner: usize, now: Timestamp) {
        let Some(owned) = self.owned.get_mut(owner) else {
            return;
        };
        owned.asked = false;
        let (desired, succeeded) = (owned.desired, owned.succeeded);
        match owned.workload.owns {
            WorkloadKind::Deployment if !owned.outdated.is_empty() => {
                self.continue_rollout(owner, desired as usize, now);
            }
            WorkloadKind::Deployment => self.reconcile_count(owner, desired as usize, now),
            WorkloadKind::StatefulSet => self.reconcile_ordinals(owner, desired, now),
            WorkloadKind::Job { .. } => {
                self.reconcile_count(owner, desired.saturating_sub(succeeded) as usize, now);
            }
            WorkloadKind::DaemonSet => self.reconcile_daemons(owner, now),
        }
    }

    fn reconcile_count(&mut self, owner: usize, wanted: usize, now: Timestamp) {
        let name = self.owned[owner].workload.name.clone();
        let mut active: Vec<&Pod> = self.store.active_pods_of(&name).collect();
        if active.len() > wanted {
            // Deletion order of the ReplicaSet controller: pending before bound, unready before
            // ready, young before old.
            active.sort_by_key(|pod| {
                (pod.node.is_some(), is_healthy(pod), pod.created.map(std::cmp::Reverse), &pod.key)
            });
            let surplus = active[..active.len() - wanted].iter().copied();
            self.delete_pods(pod_ids(surplus), now);
            return;
        }
        for _ in active.len()..wanted {
            self.make_pod(owner, None, None, now);
        }
    }

    /// Pod names are reused once they are free. All pods are created at the same time (`Parallel`).
    fn reconcile_ordinals(&mut self, owner: usize, wanted: u32, now: Timestamp) {
        let workload = &self.owned[owner].workload;
        let wanted_keys: BTreeSet<PodKey> = (0..wanted)
            .map(|ordinal| {
                let name = format!("{}-{ordinal}", workload.name);
                ObjectKey::new(workload.namespace(), name.as_str())
            })
            .collect();
        let missing: Vec<String> = wanted_keys
            .iter()
            .filter(|key| !self.store.pods().contains_key(*key))
            .map(|key| key.name.clone())
            .collect();
        let pods = self.store.pods_of(&workload.name);
        let surplus = pod_ids(pods.filter(|pod| !wanted_keys.contains(&pod.key)));
        self.delete_pods(surplus, now);
        for name in missing {
            self.make_pod(owner, Some(name), None, now);
        }
    }

    fn reconcile_daemons(&mut self, owner: usize, now: Timestamp) {
        let workload = &self.owned[owner].workload;
        let served: BTreeSet<&NodeName> = self
            .store
            .active_pods_of(&workload.name)
            .filter_map(|pod| self.targets.get(&pod.key))
            .collect();
        let missing: Vec<NodeName> = self
            .store
            .nodes()
            .values()
            .filter(|node| !served.contains(&node.name))
            .filter(|node| fits_when_empty(workload, node))
            .map(|node| node.name.clone())
            .collect();
        for node in missing {
            self.make_pod(owner, None, Some(node), now);
        }
    }

    /// Creates a pod with a given or unique name, for one node or any node.
    pub(super) fn make_pod(
        &mut self,
        owner: usize,
        name: Option<String>,
        target: Option<NodeName>,
        now: Timestamp,
    ) {
        self.born += 1;
        let uid = self.store.new_uid();
        let owned = &self.owned[owner];
        let mut pod = owned.template.clone();
        pod.key.name = name.unwrap_or_else(|| format!("{}-{:05}", owned.workload.name, self.born));
        pod.uid.clone_from(&uid);
        pod.created = Some(now);
        let key = pod.key.clone();
        if let Some(node) = target {
            self.targets.insert(key.clone(), node);
        }
        self.waiting.insert((-i64::from(pod.priority), self.born), (key, uid));
        self.store.put_pod(pod, now);
        self.trigger_scheduler(now);
    }

    /// Requests the deletion of pods.
    pub(super) fn delete_pods(&mut self, pods: Vec<(PodKey, String)>, now: Timestamp) {
        for (key, uid) in pods {
            self.delete_pod(&key, &uid, now);
        }
    }

    /// Requests the deletion of a pod. A running pod terminates within its grace period. All other
    /// pods are removed immediately.
    pub fn delete_pod(&mut self, key: &PodKey, uid: &str, now: Timestamp) {
        let pod = self.store.pods().get(key);
        let grace = pod.map_or(0, |pod| pod.grace_seconds);
        self.end_within(key, uid, u32::try_from(grace).unwrap_or(0), now);
    }

    /// Makes a pod hang, so that no kubelet can terminate it.
    pub fn hang_pod(&mut self, uid: &str) {
        self.hung.insert(uid.to_owned());
    }

    /// Requests the deletion of a pod with a different grace period. The grace period of a
    /// terminating pod can only be shortened.
    pub(super) fn end_within(&mut self, key: &PodKey, uid: &str, seconds: u32, now: Timestamp) {
        let Some(pod) = self.store.pod(key, uid) else {
            return;
        };
        let until = time_after(now, SignedDuration::from_secs(i64::from(seconds)));
        if let Some(end) = pod.ends_by() {
            let node = pod.node.as_ref();
            if until < end && node.is_some_and(|node| self.is_alive(node)) {
                self.store.change_pod(key, uid, now, |pod| pod.gone_by = Some(until));
                let leave = ClusterTimer::Leave(key.clone(), uid.to_owned());
                self.timers.add_at(until, leave);
            }
            return;
        }
        let Some(node) = pod.node.clone().filter(|_| !pod.is_terminal()) else {
            self.forget_pod(key, uid, now);
            return;
        };
        let grace = i64::from(seconds).saturating_mul(1000).clamp(0, 5000);
        let owner = self.owner_index(pod);
        self.store.change_pod(key, uid, now, |pod| {
            pod.deleting = Some(now);
            pod.gone_by = Some(until);
            pod.ready = Some(false);
        });
        if let Some(owner) = owner {
            self.schedule_reconcile(owner, now);
        }
        if self.is_alive(&node) {
            // Most processes end well before the end of their grace period.
            self.set_timer(
                now,
                grace.min(500),
                grace,
                ClusterTimer::Leave(key.clone(), uid.to_owned()),
            );
        } else if !self.store.nodes().contains_key(&node) {
            self.forget_pod(key, uid, now);
        }
    }

    /// Handles the termination of a pod by its kubelet, unless the pod hangs. A pod with finalizers
    /// still exists afterwards.
    pub(super) fn on_pod_terminated(&mut self, key: &PodKey, uid: &str, now: Timestamp) {
        if self.hung.contains(uid) {
            return;
        }
        let known = self.store.pod(key, uid);
        if known.is_some_and(|pod| !pod.finalizers.is_empty()) {
            self.store.change_pod(key, uid, now, |pod| pod.phase = PodPhase::Failed);
            return;
        }
        for name in self.store.mounted_by(uid) {
            // The attach/detach controller runs every few seconds.
            self.set_timer(now, 1000, 8000, ClusterTimer::Detach(name));
        }
        self.forget_pod(key, uid, now);
    }

    /// Removes a pod whose process has ended.
    pub(super) fn forget_pod(&mut self, key: &PodKey, uid: &str, now: Timestamp) {
        let Some(pod) = self.store.remove_pod(key, uid, now) else {
            return;
        };
        self.targets.remove(key);
        if let Some(owner) = self.owner_index(&pod) {
            self.schedule_reconcile(owner, now);
        }
        if pod.node.is_some() {
            self.trigger_scheduler(now);
        }
    }

    /// Completes a job's pod. The pod is cleaned up later.
    pub(super) fn finish_pod(&mut self, key: &PodKey, uid: &str, now: Timestamp) {
        let Some(pod) = self.store.pod(key, uid) else {
            return;
        };
        let alive = pod.node.clone().is_some_and(|node| self.is_alive(&node));
        if pod.deleting.is_some() || pod.phase != PodPhase::Running || !alive {
            return;
        }
        let Some(owner) = self.owner_index(pod) else {
            return;
        };
        self.owned[owner].succeeded += 1;
        self.store.change_pod(key, uid, now, |pod| {
            pod.phase = PodPhase::Succeeded;
            pod.ready = Some(false);
        });
        // `ttlSecondsAfterFinished` of ten minutes.
        self.set_timer(now, 600_000, 600_000, ClusterTimer::Clean(key.clone(), uid.to_owned()));
        self.schedule_reconcile(owner, now);
        self.trigger_scheduler(now);
    }
}

/// Keys and UIDs of pods.
pub(super) fn pod_ids<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<(PodKey, String)> {
    pods.map(|pod| (pod.key.clone(), pod.uid.clone())).collect()
}

/// Returns true if disruption budgets count a pod as healthy, ignoring its deletion.
pub(super) fn is_healthy(pod: &Pod) -> bool {
    pod.ready == Some(true)
}
