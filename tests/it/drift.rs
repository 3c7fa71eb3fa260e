//! Drifted, expired, unhealthy and orphaned nodes: decisions for manually defined fleets.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::disruption::verdict::{RuleScope, Verdict};
use outrigger::model::claim::{ClaimOrigin, ClaimPhase, ClaimRecord};
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::{
    ARCH, CAPACITY_TYPE, INITIALIZED, INSTANCE_TYPE, POOL, REGISTERED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{BudgetNodes, Pool, Reason};
use outrigger::model::template_hash::hashes_in;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{Plan, select_disruptions};
use outrigger::state::State;
use outrigger::state::node_claims::NodeClaim;

mod safeguards;
mod expiry;
mod provider;
mod repair;
mod causes;
mod static_pools;

/// The creation time of all nodes of a fleet.
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Returns the time this many minutes after the start.
fn at(minutes: i64) -> Timestamp {
    START + SignedDuration::from_mins(minutes)
}

/// Returns a pool that never consolidates and allows the disruption of all its nodes at once.
fn pool(name: &str) -> Pool {
    let mut pool = Pool::new(name);
    pool.expire_after = None;
    pool.disruption.consolidate_after = None;
    pool.disruption.budgets[0].nodes = BudgetNodes::Percent(100);
    pool
}

/// The pool's budget allows this many disruptions at once, at any time.
fn budget_verdict(allowed: usize) -> Verdict {
    Verdict::Budget { of: RuleScope::Pool, rate: None, allowed, opens: None }
}

/// The state of a cluster, and its disruption decisions.
struct Fleet {
    state: State,
}

impl Fleet {
    fn new(pools: Vec<Pool>) -> Self {
        let mut state = State::default();
        state.apply_catalog(Arc::new(Catalog::shipped()));
        let mut fleet = Self { state };
        fleet.configure(|own| own.pools = pools);
        fleet
    }

    /// Returns a fleet with one pool `p` and the nodes `n0`, `n1` and so on, with a pod on each.
    fn of(nodes: usize) -> Self {
        let mut fleet = Self::new(vec![pool("p")]);
        for at in 0..nodes {
            fleet.node(&format!("n{at}"), "p");
            fleet.pod(&format!("n{at}"));
        }
        fleet
    }

    /// Changes the configuration.
    fn configure(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = Cluster::clone(&self.state.cluster);
        change(&mut cluster);
        self.state.apply_configuration(Arc::new(cluster));
    }

    /// Changes the only pool.
    fn change(&mut self, change: impl FnOnce(&mut Pool)) {
        self.configure(|own| change(&mut own.pools[0]));
    }

    /// Makes all nodes drift.
    fn drift(&mut self) {
        for claim in self.state.ledger.claims.values_mut() {
            claim.record.pool_hash = "v2:0000000000000000:0000000000000000".into();
        }
    }

    /// Adds an empty node of a pool with a claim that matches the pool.
    fn node(&mut self, name: &str, pool: &str) {
        let labels = [
            (POOL, pool),
            (REGISTERED, "true"),
            (INITIALIZED, "true"),
            (INSTANCE_TYPE, "m6i.large"),
            (ZONE, "us-east-1a"),
            (CAPACITY_TYPE, "on-demand"),
            (ARCH, "amd64"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let node = Node {
            name: name.into(),
            uid: format!("uid-{name}"),
            provider_id: format!("aws:///us-east-1a/i-{name}"),
            labels: labels.into(),
            created: Some(START),
            ready: true,
            ..Node::default()
        };
        let node = WatchedObject::Node(Box::new(node));
        self.state.objects.apply(node, START);
        let configured = self.state.cluster.pool(pool).expect("a pool");
        let (pool_hash, node_class_hash) = hashes_in(&self.state.cluster, configured);
        let record = ClaimRecord {
            id: name.into(),
            installation: "tests".into(),
            cluster: "one".into(),
            origin: ClaimOrigin::default(),
            pool: pool.into(),
            node_class: None,
            created: START,
            expire_after: configured.expire_after,
            expire_hard_after: configured.expire_hard_after,
            termination_grace_period: configured.termination_grace_period,
            pool_hash,
            node_class_hash,
            startup_taints: Vec::new(),
            reason: String::new(),
            command_id: String::new(),
        };
        let mut claim = NodeClaim::new(record, ClaimPhase::Initialized, START);
        claim.node = Some(name.into());
        claim.instance = Some(Instance {
            id: format!("i-{name}").as_str().into(),
            offering: OfferingKey {
                instance_type: "m6i.large".into(),
                zone: "us-east-1a".into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
            },
            state: InstanceState::Running,
            launched: START,
            tags: Default::default(),
            node: None,
            facts: None,
        });
        self.state.ledger.insert(claim);
    }

    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.state.objects.nodes[name].clone();
        change(&mut node);
        let node = WatchedObject::Node(Box::new(node));
        self.state.objects.apply(node, START);
    }

    fn claim(&mut self, node: &str) -> &mut NodeClaim {
        let claims = &mut self.state.ledger.claims;
        claims.get_mut(node).expect("a claim by its node's name")
    }

    fn instance(&mut self, node: &str) -> &mut Instance {
        self.claim(node).instance.as_mut().expect("an instance")
    }

    /// Adds a pod to a node, with the name of the node.
    fn pod(&mut self, node: &str) {
        self.apply(pod(node));
    }

    fn apply(&mut self, pod: Pod) {
        self.state.objects.apply(WatchedObject::Pod(Box::new(pod)), START);
    }

    /// Marks a node as being disrupted.
    fn start_disruption(&mut self, node: &str, reason: Reason) {
        let claim = self.claim(node);
        (claim.leaving, claim.phase) = (Some(reason), ClaimPhase::Draining);
    }

    fn plan(&self, now: Timestamp) -> Plan {
        select_disruptions(&self.state.disruption_view(now), now)
    }

    /// Returns the nodes that are disrupted for this reason, in the order of the plan.
    fn disrupted(&self, reason: Reason, now: Timestamp) -> Vec<String> {
        let retired = self.plan(now).retire.into_iter();
        let own = retired.filter(|own| own.reason == reason);
        own.map(|own| own.node.to_string()).collect()
    }

    /// Returns the drift causes of the disrupted nodes, in the order of their names.
    fn drift_causes(&self, now: Timestamp) -> Vec<&'static str> {
        let mut retired = self.plan(now).retire;
        retired.sort_by(|one, other| one.node.cmp(&other.node));
        retired.into_iter().filter_map(|own| own.cause).collect()
    }

    /// Returns the verdict that keeps a node from disruption for this reason.
    fn verdict(&self, node: &str, reason: Reason, now: Timestamp) -> Option<Verdict> {
        let kept = self.plan(now).kept.into_iter();
        let mut own = kept.filter(|own| own.node.as_str() == node && own.reason == reason);
        own.next().map(|own| own.verdict)
    }
}

/// Returns a pod of a Deployment on a node, with the name of the node.
fn pod(node: &str) -> Pod {
    Pod {
        key: ObjectKey::new("default", node),
        node: Some(node.into()),
        phase: PodPhase::Running,
        owner: Some(Owner { kind: "ReplicaSet".into(), name: "web".into(), uid: "web".into() }),
        ..Pod::default()
    }
}
