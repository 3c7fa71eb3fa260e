//! A small test cluster with a few instance types. Plans are executed immediately, so that the next
//! plan builds on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::{Catalog, type_labels};
use outrigger::model::claim::{ClaimOrigin, ClaimPhase, ClaimRecord};
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ClaimId;
use outrigger::model::instance::{
    CapacityType, Instance, InstanceState, InstanceType, Offering, OfferingKey, Price,
};
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE, Labels, OF_OFFERINGS, OS, POOL,
    REGISTERED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pod::{Pod, PodPhase};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::watched_object::WatchedObject;
use outrigger::scheduling::{NewNodeClaim, RejectionCode, Solution, UnschedulablePod, solve};
use outrigger::state::State;
use outrigger::state::node_claims::NodeClaim;
use outrigger::state::snapshot::NodeRef;
use outrigger::state::snapshot_builder::node_labels;

use super::notation::key_of;

pub(super) const MIB: i64 = 1 << 20;
pub(super) const GIB: i64 = 1 << 30;

/// The result of a case: a message if it fails.
pub(super) type Check = Result<(), String>;

pub(super) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

/// Zone and capacity type of every offering: on-demand in every zone, spot in two zones.
const SOLD: [(&str, CapacityType); 5] = [
    ("z1", CapacityType::Spot),
    ("z2", CapacityType::Spot),
    ("z1", CapacityType::OnDemand),
    ("z2", CapacityType::OnDemand),
    ("z3", CapacityType::OnDemand),
];

/// The properties of an instance type.
#[derive(Clone)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) cpu: i64,
    pub(super) gib: i64,
    pub(super) pods: i64,
    pub(super) arch: &'static str,
    pub(super) os: &'static str,
    pub(super) extended: &'static [(&'static str, i64)],
}

/// The usual type: four cores, four gibibytes, five pods.
pub(super) const USUAL: Shape =
    Shape { name: "default", cpu: 4, gib: 4, pods: 5, arch: "amd64", os: "linux", extended: &[] };

/// The instance types of Karpenter's fake provider.
fn shapes() -> Vec<Shape> {
    vec![
        USUAL,
        Shape { name: "small", cpu: 2, gib: 2, ..USUAL },
        Shape { name: "gpu-a", extended: &[("fake.com/a", 2)], ..USUAL },
        Shape { name: "gpu-b", extended: &[("fake.com/b", 2)], ..USUAL },
        Shape { name: "arm", cpu: 16, gib: 128, arch: "arm64", ..USUAL },
        Shape { name: "single-pod", pods: 1, ..USUAL },
        Shape { name: "windows", os: "windows", ..USUAL },
    ]
}

impl Shape {
    /// The price in $/h: 0.1 per core and per gigabyte, and 1 for accelerators.
    pub(super) fn price(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "small amounts")]
        let (cpu, memory) = (self.cpu as f64, (self.gib * GIB) as f64);
        let extra = if self.extended.is_empty() { 0.0 } else { 1.0 };
        0.1 * cpu + 0.1 * memory / 1e9 + extra
    }

    /// The type with the offerings of Karpenter's fake provider.
    pub(super) fn sold(&self) -> InstanceType {
        let all = SOLD.map(|(zone, capacity_type)| self.offering(zone, capacity_type));
        self.sold_as(all.to_vec())
    }

    pub(super) fn offering(&self, zone: &str, capacity_type: CapacityType) -> Offering {
        Offering {
            zone: zone.into(),
            capacity_type,
            price: Price::new(self.price()).expect("a price"),
            available: true,
            reservation: None,
        }
    }

    pub(super) fn sold_as(&self, offerings: Vec<Offering>) -> InstanceType {
        let is_large = self.cpu > 4 && self.gib > 8;
        let size = if is_large { "large" } else { "small" };
        let mut requirements = Requirements::from_iter([
            (INSTANCE_TYPE, Requirement::is_in([self.name])),
            (ARCH, Requirement::is_in([self.arch])),
            (OS, Requirement::is_in([self.os])),
            (key_of("size"), Requirement::is_in([size])),
            (key_of("integer"), Requirement::is_in([self.cpu.to_string()])),
        ]);
        if is_large {
            requirements.add(key_of("special"), Requirement::is_in(["optional"]));
        }
        type_labels::complete_labels(&mut requirements, &offerings);
        let capacity = Resources {
            cpu_milli: self.cpu * 1000,
            memory: self.gib * GIB,
            ephemeral_storage: 20 * GIB,
            pods: self.pods,
            extended: self
                .extended
                .iter()
                .map(|(name, amount)| ((*name).to_owned(), *amount))
                .collect(),
        };
        let mut allocatable = capacity.clone();
        allocatable.cpu_milli -= 100;
        allocatable.memory -= 10 * MIB;
        InstanceType { name: self.name.into(), requirements, capacity, allocatable, offerings }
    }
}

/// A cluster with its provider.
#[derive(Clone)]
pub(super) struct World {
    pub(super) state: State,
    pub(super) now: Timestamp,
    made: usize,
}

impl World {
    /// A world with one pool without requirements, and the usual types.
    pub(super) fn new() -> Self {
        let cluster = Cluster {
            installation: "tests".to_owned(),
            pools: vec![Pool::new("default")],
            ..Cluster::default()
        };
        let mut state = State::default();
        state.cluster = Arc::new(cluster);
        let types = shapes().into_iter().map(|shape| shape.sold());
        state.catalog = Arc::new(Catalog::new(types));
        Self { state, now: Timestamp::from_second(1_800_000_000).expect("in range"), made: 0 }
    }

    /// A world with one pool and these types only.
    pub(super) fn of_types(types: impl IntoIterator<Item = InstanceType>) -> Self {
        let mut world = Self::new();
        world.state.catalog = Arc::new(Catalog::new(types));
        world
    }

    /// A world with one pool with these requirements, and the usual types.
    pub(super) fn requiring(requirements: &[&str]) -> Self {
        let mut world = Self::new();
        for text in requirements {
            let (key, requirement) = super::notation::read(text);
            world.pool().requirements.add(key, requirement);
        }
        world
    }

    pub(super) fn cluster(&mut self) -> &mut Cluster {
        Arc::make_mut(&mut self.state.cluster)
    }

    /// The first pool.
    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.cluster().pools[0]
    }

    /// Adds a pool. The pools are sorted by weight.
    pub(super) fn add_pool(&mut self, name: &str, weight: u32) -> &mut Pool {
        let pool = Pool { weight, ..Pool::new(name) };
        let pools = &mut self.cluster().pools;
        pools.push(pool);
        pools.sort_by(|a, b| (b.weight, &a.name).cmp(&(a.weight, &b.name)));
        let at = pools.iter().position(|pool| pool.name.as_str() == name);
        &mut pools[at.expect("it was added")]
    }

    /// Applies an object like an event of a watch.
    pub(super) fn apply(&mut self, object: WatchedObject) {
        self.state.objects.apply(object, self.now);
    }

    /// Adds pending pods.
    pub(super) fn add(&mut self, pods: impl IntoIterator<Item = Pod>) -> &mut Self {
        for mut pod in pods {
            pod.unschedulable = true;
            pod.uid = format!("uid-{}", pod.key.name);
            self.apply(WatchedObject::Pod(Box::new(pod)));
        }
        self
    }

    /// Adds a running pod on a node.
    pub(super) fn bind(&mut self, mut pod: Pod, node: &str) {
        pod.node = Some(node.into());
        pod.phase = PodPhase::Running;
        pod.unschedulable = false;
        pod.uid = format!("uid-{}", pod.key.name);
        self.apply(WatchedObject::Pod(Box::new(pod)));
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, name: &str) {
        let kind = outrigger::model::watched_object::ObjectKind::Pod;
        let key = outrigger::model::id::ObjectKey::new("default", name);
        self.state.objects.delete(kind, &key, self.now);
    }

    /// Adds an initialized node of the first pool, of this type in this zone.
    pub(super) fn node(&mut self, instance_type: &str, zone: &str) -> String {
        let pool = self.pool().name.to_string();
        self.node_of(&pool, instance_type, zone, CapacityType::OnDemand)
    }

    /// Adds an initialized node of any pool and capacity type.
    pub(super) fn node_of(
        &mut self,
        pool: &str,
        instance_type: &str,
        zone: &str,
        capacity_type: CapacityType,
    ) -> String {
        let key = OfferingKey {
            instance_type: instance_type.into(),
            zone: zone.into(),
            capacity_type,
            reservation: None,
        };
        self.make(pool, key, Labels::new(), ClaimPhase::Initialized)
    }

    /// Adds an unmanaged node with these labels and its host name.
    pub(super) fn unmanaged_node(&mut self, name: &str, labels: &[(&str, &str)], cpu: i64) {
        let mut node = Node {
            name: name.into(),
            provider_id: format!("other:///{name}"),
            ready: true,
            ..Node::default()
        };
        let host = [(HOSTNAME, name)];
        let pairs = labels.iter().chain(&host);
        node.labels =
            pairs.map(|(key, value)| (key_of(key).to_owned(), (*value).to_owned())).collect();
        node.capacity = Resources {
            cpu_milli: cpu * 1000,
            memory: cpu * GIB,
            pods: 110,
            ..Resources::default()
        };
        node.allocatable = node.capacity.clone();
        self.apply(WatchedObject::Node(Box::new(node)));
    }

    /// Changes a node like an event of a watch.
    pub(super) fn change(&mut self, node: &str, change: impl FnOnce(&mut Node)) {
        let mut changed = self.state.objects.nodes[node].clone();
        change(&mut changed);
        self.apply(WatchedObject::Node(Box::new(changed)));
    }

    /// The claim of a node.
    pub(super) fn claim(&mut self, node: &str) -> &mut NodeClaim {
        let mut claims = self.state.ledger.claims.values_mut();
        let of = |claim: &&mut NodeClaim| {
            let name = claim.node.as_ref();
            name.is_some_and(|name| name.as_str() == node)
        };
        claims.find(of).expect("a node with a claim")
    }

    /// Adds a claim with its instance and, from the phase `Registered` on, its node.
    fn make(&mut self, pool: &str, key: OfferingKey, labels: Labels, phase: ClaimPhase) -> String {
        let name = format!("n{}", self.made);
        self.made += 1;
        let pool = self.state.cluster.pool(pool).expect("a pool").clone();
        let mut claim = NodeClaim::new(record(&name, &pool, self.now), phase, self.now);
        // A node that became ready just now would still be reserved for its pods.
        claim.since = self.now - SignedDuration::from_hours(1);
        claim.labels = labels;
        let it = self.state.catalog.get(key.instance_type.as_str());
        let it = it.expect("a type").clone();
        let mut node = Node {
            name: name.as_str().into(),
            uid: format!("uid-{name}"),
            provider_id: format!("fake:///{}/{name}", key.zone),
            labels: node_labels(&claim, &pool),
            taints: pool.taints.clone(),
            ready: true,
            capacity: it.capacity.clone(),
            allocatable: it.allocatable.clone(),
            ..Node::default()
        };
        let single =
            |values: &BTreeSet<String>| (values.len() == 1).then(|| values.first().cloned());
        for (label, requirement) in it.requirements.iter() {
            let value = requirement.values().and_then(single).flatten();
            node.labels.extend(value.map(|value| (label.to_owned(), value)));
        }
        let mut set = |key: &str, value: &str| node.labels.insert(key.to_owned(), value.to_owned());
        set(ZONE, key.zone.as_str());
        set(CAPACITY_TYPE, key.capacity_type.as_str());
        set(HOSTNAME, &name);
        if phase >= ClaimPhase::Registered {
            set(REGISTERED, "true");
        }
        if phase >= ClaimPhase::Initialized {
            set(INITIALIZED, "true");
        }
        claim.instance = Some(Instance {
            id: name.as_str().into(),
            offering: key,
            state: InstanceState::Running,
            launched: self.now,
            tags: claim.record.to_tags().into(),
            node: None,
            facts: None,
        });
        if phase >= ClaimPhase::Registered {
            claim.node = Some(name.as_str().into());
            self.apply(WatchedObject::Node(Box::new(node)));
        }
        self.state.ledger.insert(claim);
        name
    }

    /// Schedules all pending pods.
    pub(super) fn plan(&self) -> Plan {
        let snapshot = self.state.snapshot(self.now);
        let solution = solve(&snapshot, self.now);
        let mut pod_nodes = BTreeMap::new();
        for (host, pods) in &solution.placed {
            let room = snapshot.rooms.iter().find(|room| room.host == *host);
            let values =
                |requirement: &Requirement| requirement.values().cloned().unwrap_or_default();
            let labels = room.expect("a room").labels.iter();
            let pod_node = PodNode {
                name: host.to_string(),
                labels: labels
                    .map(|(key, requirement)| (key.to_owned(), values(requirement)))
                    .collect(),
                types: BTreeSet::new(),
            };
            pod_nodes.extend(pods.iter().map(|pod| (pod.name.clone(), pod_node.clone())));
        }
        for (at, claim) in solution.claims.iter().enumerate() {
            let pod_node = self.pod_node(at, claim);
            pod_nodes.extend(claim.pods.iter().map(|pod| (pod.name.clone(), pod_node.clone())));
        }
        Plan { solution, pod_nodes }
    }

    /// The possible types and labels of a planned node, over all of its offerings.
    fn pod_node(&self, at: usize, claim: &NewNodeClaim) -> PodNode {
        let pool = self.state.cluster.pool(claim.pool.as_str());
        let mut sure = pool.expect("a pool").labels.clone();
        sure.extend(claim.labels.clone());
        sure.insert(POOL.to_owned(), claim.pool.to_string());
        let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |key: &str, value: &str| {
            let values = labels.entry(key.to_owned()).or_default();
            values.insert(value.to_owned());
        };
        for (key, value) in &sure {
            add(key, value);
        }
        let mut types = BTreeSet::new();
        for (offering, _) in &claim.offerings {
            let it = self.state.catalog.get(offering.instance_type.as_str());
            let requirements = it.expect("a type").requirements.iter();
            types.insert(offering.instance_type.to_string());
            for (key, requirement) in requirements.filter(|(key, _)| !OF_OFFERINGS.contains(key)) {
                let value = requirement.values().filter(|values| values.len() == 1);
                // The empty text stands for a type without the label.
                add(key, value.and_then(BTreeSet::first).map_or("", String::as_str));
            }
            add(ZONE, offering.zone.as_str());
            add(CAPACITY_TYPE, offering.capacity_type.as_str());
        }
        PodNode { name: format!("new node {at}"), labels, types }
    }

    /// Plans, launches the cheapest offerings of the planned nodes, and binds the pods.
    pub(super) fn settle(&mut self) -> Plan {
        self.settle_as(ClaimPhase::Initialized)
    }

    /// Plans, and adds the planned nodes in this phase. Pods are bound only to existing nodes.
    pub(super) fn settle_as(&mut self, phase: ClaimPhase) -> Plan {
        let plan = self.plan();
        for (host, pods) in &plan.solution.placed {
            for key in pods {
                let pod = self.state.objects.pods[key].clone();
                match host {
                    NodeRef::Node(node) => self.bind(pod, node.as_str()),
                    NodeRef::Claim(id) => {
                        let claim = self.state.ledger.claims.get_mut(id).expect("a claim");
                        claim.pods.insert(key.clone());
                    }
                }
            }
        }
        for claim in &plan.solution.claims {
            let key = claim.offerings[0].0.clone();
            let name = self.make(claim.pool.as_str(), key, claim.labels.clone(), phase);
            if phase < ClaimPhase::Registered {
                let new_claim = self.state.ledger.claims.get_mut(name.as_str());
                let new_claim = new_claim.expect("a new claim");
                new_claim.pods = claim.pods.iter().cloned().collect();
                if phase < ClaimPhase::Launched {
                    // Any of the offerings may be launched.
                    new_claim.instance = None;
                    let all = claim.offerings.iter();
                    new_claim.offerings = all.map(|(key, _)| key.clone()).collect();
                }
                continue;
            }
            for key in &claim.pods {
                let pod = self.state.objects.pods[key].clone();
                self.bind(pod, &name);
            }
        }
        plan
    }

    /// The numbers of running pods of the namespace `default` with this label (`app=a`) in each
    /// topology domain, in ascending order. A domain without pods counts only if it has a node.
    pub(super) fn counts(&self, key: &str, selector: &str) -> Vec<usize> {
        let (label, value) = selector.split_once('=').expect("app=a");
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for node in self.state.objects.nodes.values() {
            if let Some(place) = node.labels.get(key_of(key)) {
                let pods = self.state.objects.pods_on(node.name.as_str());
                let is_selected =
                    |pod: &&Pod| pod.labels.get(label).is_some_and(|found| found == value);
                let live = |pod: &&Pod| {
                    let in_default = pod.key.namespace == "default";
                    in_default && !pod.is_terminal() && pod.deleting.is_none()
                };
                *places.entry(place.clone()).or_default() +=
                    pods.filter(is_selected).filter(live).count();
            }
        }
        let mut counts: Vec<usize> = places.into_values().collect();
        counts.sort_unstable();
        counts
    }

    /// The node on which a pod runs.
    pub(super) fn node_with(&self, pod: &str) -> Option<&Node> {
        let key = outrigger::model::id::ObjectKey::new("default", pod);
        let name = self.state.objects.pods.get(&key)?.node.as_ref()?;
        self.state.objects.nodes.get(name)
    }
}

fn record(name: &str, pool: &Pool, now: Timestamp) -> ClaimRecord {
    ClaimRecord {
        id: ClaimId::from(name),
        installation: "tests".to_owned(),
        cluster: "".into(),
        origin: ClaimOrigin::default(),
        pool: pool.name.clone(),
        node_class: pool.node_class.clone(),
        created: now,
        expire_after: pool.expire_after,
        expire_hard_after: pool.expire_hard_after,
        termination_grace_period: pool.termination_grace_period,
        pool_hash: "v1:none".to_owned(),
        node_class_hash: "v1:none".to_owned(),
        startup_taints: pool.startup_taints.clone(),
        reason: "provisioned".to_owned(),
        command_id: "none".to_owned(),
    }
}

/// The planned node of a pod.
#[derive(Clone, Debug)]
struct PodNode {
    name: String,
    /// The possible values of each label. The empty text stands for its absence.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Types that may be launched; empty for an existing node.
    types: BTreeSet<String>,
}

/// The solution of the scheduler, with the node of each pod by the name of the pod.
pub(super) struct Plan {
    pub(super) solution: Solution,
    pod_nodes: BTreeMap<String, PodNode>,
}

impl Plan {
    fn pod_node(&self, pod: &str) -> Result<&PodNode, String> {
        let why = || match self.why(pod) {
            Some(unplaced) => format!("{pod} is not placed: {:?}", unplaced.reasons),
            None => format!("{pod} has no result"),
        };
        self.pod_nodes.get(pod).ok_or_else(why)
    }

    /// The rejection of a pod, if it is not placed.
    pub(super) fn why(&self, pod: &str) -> Option<&UnschedulablePod> {
        let mut unplaced = self.solution.unplaced.iter();
        unplaced.find(|rejected| rejected.pod.name == pod)
    }

    /// Checks that every pod is placed.
    pub(super) fn all_placed(&self) -> Check {
        match self.solution.unplaced.first() {
            Some(rejected) => {
                Err(format!("{} is not placed: {:?}", rejected.pod, rejected.reasons))
            }
            None => Ok(()),
        }
    }

    /// Checks the number of placed pods.
    pub(super) fn places(&self, count: usize) -> Check {
        let placed = self.pod_nodes.len();
        ensure(placed == count, || {
            let first = self.solution.unplaced.first();
            format!("{placed} pods are placed, not {count}: {first:?}")
        })
    }

    /// Checks that the first pods are placed and the second ones are not.
    pub(super) fn placed(&self, placed: &[&str], not: &[&str]) -> Check {
        for pod in placed {
            self.pod_node(pod)?;
        }
        match not.iter().find(|pod| self.pod_nodes.contains_key(**pod)) {
            Some(pod) => Err(format!("{pod} is placed on {}", self.pod_nodes[*pod].name)),
            None => Ok(()),
        }
    }

    /// Checks that a pod is rejected with this code and a text that contains `words`.
    pub(super) fn refused(&self, pod: &str, code: RejectionCode, words: &str) -> Check {
        self.placed(&[], &[pod])?;
        let reasons = self.why(pod).map(|rejected| rejected.reasons.clone());
        let reasons = reasons.unwrap_or_default();
        let matches_reason = |why: &outrigger::scheduling::PoolRejection| {
            why.code == code && why.rejection_text().contains(words)
        };
        ensure(reasons.iter().any(matches_reason), || format!("{pod}: {reasons:?}"))
    }

    /// The possible values of a label of a pod's node, joined by `|`; empty if it is absent.
    pub(super) fn label(&self, pod: &str, key: &str) -> Result<String, String> {
        let values = self.pod_node(pod)?.labels.get(key_of(key));
        let values = values.map(|values| values.iter().cloned().collect::<Vec<_>>());
        Ok(values.unwrap_or_default().join("|"))
    }

    /// Checks that a label of a pod's node certainly has this value.
    pub(super) fn has(&self, pod: &str, key: &str, value: &str) -> Check {
        let label = self.label(pod, key)?;
        ensure(label == value, || format!("{key} of {pod}'s node is {label:?}, not {value:?}"))
    }

    /// Checks that these pods share a node.
    pub(super) fn together(&self, pods: &[&str]) -> Check {
        let mut pod_nodes = BTreeSet::new();
        for pod in pods {
            pod_nodes.insert(&self.pod_node(pod)?.name);
        }
        ensure(pod_nodes.len() == 1, || format!("{pods:?} are on {pod_nodes:?}"))
    }

    /// Checks that no two of these pods share a node.
    pub(super) fn apart(&self, pods: &[&str]) -> Check {
        let mut pod_nodes = BTreeSet::new();
        for pod in pods {
            pod_nodes.insert(&self.pod_node(pod)?.name);
        }
        ensure(pod_nodes.len() == pods.len(), || format!("{pods:?} are on {pod_nodes:?}"))
    }

    /// Checks that a pod is placed on the existing node of this name.
    pub(super) fn on(&self, pod: &str, node: &str) -> Check {
        let name = &self.pod_node(pod)?.name;
        ensure(*name == format!("node {node}"), || {
            format!("{pod} is placed on {name}, not on node {node}")
        })
    }

    /// Checks the number of planned nodes.
    pub(super) fn makes(&self, count: usize) -> Check {
        let made = self.solution.claims.len();
        ensure(made == count, || {
            let pod_nodes = self.pod_nodes.iter().map(|(pod, pod_node)| (pod, &pod_node.name));
            let pod_nodes: Vec<_> = pod_nodes.collect();
            format!("{made} new nodes, not {count}: {pod_nodes:?}")
        })
    }

    /// The types that may be launched for a pod's node.
    pub(super) fn types(&self, pod: &str) -> Result<Vec<&str>, String> {
        Ok(self.pod_node(pod)?.types.iter().map(String::as_str).collect())
    }

    /// The planned claim that contains a pod.
    pub(super) fn claim_of(&self, pod: &str) -> Result<&NewNodeClaim, String> {
        let mut claims = self.solution.claims.iter();
        let has = |claim: &&NewNodeClaim| claim.pods.iter().any(|key| key.name == pod);
        let claim = claims.find(has);
        claim.ok_or_else(|| format!("{pod} is on no planned node: {:?}", self.why(pod)))
    }

    /// The preferred type for a pod's node.
    pub(super) fn first_type(&self, pod: &str) -> Result<&str, String> {
        let claim = self.claim_of(pod)?;
        Ok(claim.offerings[0].0.instance_type.as_str())
    }
}
