//! Simulated cluster: API server, workload controllers, scheduler, kubelets, disruption budgets.

// kube-scheduler's filters, written independently.
pub mod scheduler_filters;
// Objects of the API server.
pub mod store;
// Deployments, StatefulSets, Jobs, DaemonSets.
pub mod workload_controllers;
// Rolling updates of Deployments.
mod rollout;
// Controller of PodDisruptionBudgets.
pub mod pdb_controller;
// kube-scheduler: filter, score, bind.
pub mod scheduler;
// Kubelets and node controllers.
pub mod kubelet;
// API calls of clients.
pub mod api_server;

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::coordination::lease_annotations::AnnotatedLease;
use crate::model::id::{NodeName, PodKey};
use crate::sim::cluster::kubelet::SimKubelet;
use crate::sim::cluster::store::Store;
use crate::sim::cluster::workload_controllers::SimWorkload;
use crate::sim::event_queue::Timers;
use crate::sim::rng::{duration_between, random_stream};
use crate::sim::timeline::TimelineFact;
use crate::sim::workload::Workload;

/// A pending pod: its rank (priority, then age), key and UID.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiter {
    rank: (i64, u64),
    key: PodKey,
    uid: String,
}

/// Scheduled actions of the cluster's own components.
#[derive(Clone, Debug)]
enum ClusterTimer {
    Scale(usize, u32),
    Roll(usize),
    Reconcile(usize),
    Schedule,
    Bind(NodeName, Vec<Waiter>),
    Run(PodKey, String),
    Finish(PodKey, String),
    Leave(PodKey, String),
    Detach(String),
    Clean(PodKey, String),
    Ready(NodeName),
    Unstart(NodeName),
    Silent(NodeName),
    EvictLost(NodeName),
    Collect(NodeName),
}

/// A simulated cluster.
#[derive(Clone, Debug)]
pub struct SimCluster {
    store: Store,
    owned: Vec<SimWorkload>,
    owners: BTreeMap<String, usize>,
    kubelets: BTreeMap<NodeName, SimKubelet>,
    targets: BTreeMap<PodKey, NodeName>,
    waiting: BTreeMap<(i64, u64), (PodKey, String)>,
    /// Nodes of pods whose binding is in progress.
    assumed: BTreeMap<PodKey, NodeName>,
    scheduling: bool,
    unbalanced: BTreeSet<usize>,
    timers: Timers<ClusterTimer>,
    /// Timeline facts that are not yet in the timeline.
    pub(super) facts: Vec<TimelineFact>,
    /// Time from creation to binding of each bound pod, without daemons.
    pub(super) bind_waits: Vec<SignedDuration>,
    /// Number of granted evictions.
    pub(super) evictions: u32,
    /// UIDs of pods that no kubelet can terminate.
    hung: BTreeSet<String>,
    paces: Rng,
    born: u64,
    lease: Option<AnnotatedLease>,
}

impl SimCluster {
    /// The Lease, if it exists.
    pub fn lease(&self) -> Option<&AnnotatedLease> {
        self.lease.as_ref()
    }

    /// Creates a cluster without nodes for these workloads.
    pub fn new(workloads: &[Workload], seed: u64) -> Self {
        let mut cluster = Self {
            store: Store::default(),
            owned: Vec::new(),
            owners: BTreeMap::new(),
            kubelets: BTreeMap::new(),
            targets: BTreeMap::new(),
            waiting: BTreeMap::new(),
            assumed: BTreeMap::new(),
            scheduling: false,
            unbalanced: BTreeSet::new(),
            timers: Timers::default(),
            facts: Vec::new(),
            bind_waits: Vec::new(),
            evictions: 0,
            hung: BTreeSet::new(),
            paces: random_stream(seed, "cluster/paces"),
            born: 0,
            lease: None,
        };
        for name in ["default", "kube-system"] {
            cluster.store.put_namespace(name);
        }
        for workload in workloads {
            cluster.adopt_workload(workload);
        }
        cluster
    }

    /// The objects of the API server.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The objects of the API server, for changes by tests and other clients.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Time of the next action.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.timers.next_at()
    }

    /// Executes all actions due at `now`.
    pub fn run_due(&mut self, now: Timestamp) {
        while let Some((at, todo)) = self.timers.pop_due(now) {
            self.handle_timer(todo, at);
        }
        self.refresh_budgets();
    }

    fn handle_timer(&mut self, todo: ClusterTimer, now: Timestamp) {
        match todo {
            ClusterTimer::Scale(owner, replicas) => self.set_replicas(owner, replicas, now),
            ClusterTimer::Roll(owner) => self.start_rollout(owner, now),
            ClusterTimer::Reconcile(owner) => self.reconcile(owner, now),
            ClusterTimer::Schedule => self.schedule_pods(now),
            ClusterTimer::Bind(node, pods) => self.bind_pods(&node, pods, now),
            ClusterTimer::Run(pod, uid) => self.run_pod(&pod, &uid, now),
            ClusterTimer::Finish(pod, uid) => self.finish_pod(&pod, &uid, now),
            ClusterTimer::Leave(pod, uid) => self.on_pod_terminated(&pod, &uid, now),
            ClusterTimer::Detach(name) => self.store.detach_volume(&name),
            ClusterTimer::Clean(pod, uid) => self.delete_pod(&pod, &uid, now),
            ClusterTimer::Ready(node) => self.on_node_ready(&node, now),
            ClusterTimer::Unstart(node) => self.remove_startup_taints(&node, now),
            ClusterTimer::Silent(node) => self.on_node_silent(&node, now),
            ClusterTimer::EvictLost(node) => self.evict_lost(&node, now),
            ClusterTimer::Collect(node) => self.collect_pods(&node, now),
        }
    }

    /// Schedules an action after a delay drawn between two numbers of milliseconds.
    fn set_timer(&mut self, now: Timestamp, low_ms: i64, high_ms: i64, todo: ClusterTimer) {
        let wait = self.draw_pace(low_ms, high_ms);
        self.timers.add_after(now, wait, todo);
    }

    fn draw_pace(&mut self, low_ms: i64, high_ms: i64) -> SignedDuration {
        let ms = SignedDuration::from_millis;
        duration_between(&mut self.paces, ms(low_ms), ms(high_ms))
    }
}
