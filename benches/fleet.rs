//! Fleets with unused capacity, and their state after each step of consolidation.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::model::cluster::Cluster;
use outrigger::model::id::{NodeName, PodKey};
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, HOSTNAME, INITIALIZED, INSTANCE_TYPE, Labels, OS, POOL, REGISTERED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{Budget, BudgetNodes, Pool};
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{self, Plan};
use outrigger::scheduling::{NewNodeClaim, solve};
use outrigger::state::State;
use outrigger::state::snapshot::NodeRef;

use crate::catalogs::FAKE_ZONES;
use crate::workloads::standing::scattered;
use crate::workloads::{Workload, fake};

/// Nodes of one cluster with their pods.
#[derive(Clone, Debug)]
pub struct Fleet {
    cluster: Arc<Cluster>,
    catalog: Arc<Catalog>,
    nodes: BTreeMap<NodeName, OfferingKey>,
    pods: BTreeMap<PodKey, Pod>,
    made: usize,
    now: Timestamp,
}

impl Fleet {
    /// Returns the fleet that is planned for the pods of a workload. All nodes may be disrupted at
    /// the same time.
    pub fn planned(workload: Workload, now: Timestamp) -> Self {
        let claims = solve(&workload.snapshot(), now).claims;
        let mut cluster = workload.cluster;
        for pool in &mut cluster.pools {
            pool.disruption.budgets = vec![Budget {
                nodes: BudgetNodes::Percent(100),
                rate: None,
                reasons: Vec::new(),
                during: None,
            }];
        }
        let pods = workload.pods.into_iter().map(|mut pod| {
            // A pod without an owner would never be moved.
            pod.owner
                .get_or_insert_with(|| Owner { kind: "ReplicaSet".to_owned(), ..Owner::default() });
            pod
        });
        let mut fleet = Self {
            cluster: Arc::new(cluster),
            catalog: Arc::new(workload.catalog),
            nodes: BTreeMap::new(),
            pods: pods.map(|pod| (pod.key.clone(), pod)).collect(),
            made: 0,
            now,
        };
        for claim in &claims {
            fleet.make(claim);
        }
        fleet.pods.retain(|_, pod| pod.node.is_some());
        fleet
    }

    /// Returns a fleet with this number of nodes. Each node has twenty pods of different
    /// deployments and is slightly larger than needed.
    pub fn standing(nodes: usize, now: Timestamp) -> Self {
        let (catalog, homes) = scattered(nodes);
        let workload = Workload { catalog, ..fake(Vec::new()) };
        let mut fleet = Self::planned(workload, now);
        for (at, (name, pods)) in homes.into_iter().enumerate() {
            let zone = FAKE_ZONES[at % FAKE_ZONES.len()];
            let node = NodeName::from(format!("node-{at:05}"));
            let offering = OfferingKey {
                instance_type: name,
                zone: zone.into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
            };
            fleet.nodes.insert(node.clone(), offering);
            for pod in pods {
                let key = pod.key.clone();
                fleet.pods.insert(key.clone(), pod);
                fleet.bind(&key, &node);
            }
        }
        fleet
    }

    /// Changes the pool of all nodes.
    pub fn configure(&mut self, change: impl FnOnce(&mut Pool)) {
        change(&mut Arc::make_mut(&mut self.cluster).pools[0]);
    }

    /// Removes each pod with a probability of `per_cent` percent.
    pub fn thin_out(&mut self, random: &mut Rng, per_cent: u32) {
        self.pods.retain(|_, _| random.u32(0..100) >= per_cent);
    }

    /// Keeps this number of pods of each owner, the first by name.
    pub fn scale(&mut self, replicas: impl Fn(&str) -> usize) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        self.pods.retain(|_, pod| {
            let owner = pod.owner.as_ref().map_or("", |own| own.name.as_str());
            let count = counts.entry(owner.to_owned()).or_default();
            *count += 1;
            *count <= replicas(owner)
        });
    }

    /// Removes nodes without pods.
    pub fn end_empty(&mut self) {
        let used: Vec<NodeName> = self.pods.values().filter_map(|own| own.node.clone()).collect();
        let used: std::collections::BTreeSet<NodeName> = used.into_iter().collect();
        self.nodes.retain(|name, _| used.contains(name));
    }

    fn make(&mut self, claim: &NewNodeClaim) {
        let name = NodeName::from(format!("node-{:05}", self.made));
        self.made += 1;
        self.nodes.insert(name.clone(), claim.offerings[0].0.clone());
        for key in &claim.pods {
            self.bind(key, &name);
        }
    }

    fn bind(&mut self, key: &PodKey, node: &NodeName) {
        if let Some(pod) = self.pods.get_mut(key) {
            (pod.node, pod.phase, pod.ready) = (Some(node.clone()), PodPhase::Running, Some(true));
            pod.unschedulable = false;
        }
    }

    /// Returns the cluster state of this fleet.
    pub fn state(&self) -> State {
        let nodes = self.nodes.iter().map(|(name, own)| self.node(name, own));
        let nodes = nodes.map(|own| WatchedObject::Node(Box::new(own)));
        let pods = self.pods.values().map(|own| WatchedObject::Pod(Box::new(own.clone())));
        let (cluster, catalog) = (self.cluster.clone(), self.catalog.clone());
        State::offline(cluster, catalog, nodes.chain(pods).collect(), self.now)
    }

    fn node(&self, name: &NodeName, offering: &OfferingKey) -> Node {
        let shape = self.catalog.get(offering.instance_type.as_str());
        let shape = shape.expect("a type of the catalog");
        let pool = &self.cluster.pools[0];
        let own = [
            (HOSTNAME, name.as_str()),
            (INSTANCE_TYPE, offering.instance_type.as_str()),
            (ZONE, offering.zone.as_str()),
            (CAPACITY_TYPE, offering.capacity_type.as_str()),
            (OS, "linux"),
            (ARCH, "amd64"),
            (POOL, pool.name.as_str()),
            (REGISTERED, "true"),
            (INITIALIZED, "true"),
        ];
        let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut labels: Labels = pool.labels.clone();
        labels.extend(own);
        Node {
            provider_id: format!("fleet:///{name}"),
            name: name.clone(),
            uid: name.to_string(),
            created: Some(self.now),
            labels,
            ready: true,
            has_kubelet: true,
            capacity: shape.capacity.clone(),
            allocatable: shape.allocatable.clone(),
            ..Node::default()
        }
    }

    /// Total price of the nodes, in $/h.
    pub fn cost(&self) -> f64 {
        let price = |own| self.catalog.offering(own).map(|own| own.price.usd_per_h());
        self.nodes.values().filter_map(price).sum()
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Price of a new plan for all pods on an empty cluster, in $/h.
    pub fn afresh(&self) -> f64 {
        let state = self.state();
        let field = state.what_if(self.now);
        let all = field.tenancies.keys().copied().collect();
        let empty = field.without_nodes(&all, &Default::default());
        plan::lowest_total_price(&solve(&empty, self.now).claims).usd_per_h()
    }

    /// Plans the next move without executing it.
    pub fn plan(&self) -> Plan {
        let state = self.state();
        plan::consolidate(&state.disruption_view(self.now), &state.what_if(self.now), self.now)
    }

    /// Executes a move. Returns the number of pods moved.
    pub fn carry_out(&mut self, plan: &Plan) -> usize {
        for own in &plan.retire {
            self.nodes.remove(&own.node);
        }
        let mut moved = 0;
        for claim in &plan.launches {
            moved += claim.pods.len();
            self.make(claim);
        }
        for (host, pods) in &plan.placed {
            let NodeRef::Node(name) = host else { continue };
            moved += pods.len();
            for key in pods {
                self.bind(key, name);
            }
        }
        let lost = self.pods.values().filter(|own| {
            let node = own.node.as_ref();
            node.is_none_or(|node| !self.nodes.contains_key(node))
        });
        assert_eq!(lost.count(), 0, "pods without a node");
        moved
    }
}
