//! A few nodes with pods, unchanged for an hour, and their verdicts.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::disruption::eligibility::retaining_verdict;
use outrigger::disruption::verdict::Verdict;
use outrigger::model::claim::{ClaimOrigin, ClaimPhase, ClaimRecord};
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::{
    CAPACITY_TYPE, INITIALIZED, INITIALIZED_AT, INSTANCE_TYPE, Labels, POOL, REGISTERED, ZONE,
};
use outrigger::model::node::Node;
use outrigger::model::pdb::Pdb;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{BudgetNodes, Pool, Reason};
use outrigger::model::quantity::Resources;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{Plan, select_disruptions};
use outrigger::state::State;
use outrigger::state::node_claims::NodeClaim;

pub(super) const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// The time since which nothing has changed.
pub(super) fn earlier() -> Timestamp {
    NOW - SignedDuration::from_hours(1)
}

/// A pool whose budget allows all nodes to be disrupted at once.
pub(super) fn pool(name: &str) -> Pool {
    let mut pool = Pool::new(name);
    pool.disruption.budgets[0].nodes = BudgetNodes::Percent(100);
    pool
}

/// A running pod on a node. If `kind` is not empty, it has a controller of this kind.
pub(super) fn pod(name: &str, node: &str, kind: &str) -> Pod {
    let mut pod = Pod {
        key: ObjectKey::new("default", name),
        uid: name.to_owned(),
        node: Some(node.into()),
        phase: PodPhase::Running,
        ready: Some(true),
        started: Some(earlier()),
        labels: Labels::from([("app".to_owned(), name.to_owned())]),
        ..Pod::default()
    };
    pod.owner = (!kind.is_empty()).then(|| Owner {
        kind: kind.to_owned(),
        name: format!("of-{name}"),
        uid: format!("of-{name}"),
    });
    (pod.requests.cpu_milli, pod.requests.pods) = (100, 1);
    pod
}

pub(super) fn annotated(mut pod: Pod, key: &str, value: &str) -> Pod {
    pod.annotations.insert(key.to_owned(), value.to_owned());
    pod
}

/// A PodDisruptionBudget for the pods of one app, which allows this number of disruptions.
pub(super) fn pdb(name: &str, app: &str, disruptions_allowed: i64) -> Pdb {
    let labels = Labels::from([("app".to_owned(), app.to_owned())]);
    Pdb {
        key: ObjectKey::new("default", name),
        selector: Some(Selector::from_labels(&labels)),
        disruptions_allowed,
        ..Pdb::default()
    }
}

/// The state of a cluster.
pub(super) struct Scene {
    pub(super) state: State,
}

impl Scene {
    pub(super) fn new(pools: Vec<Pool>) -> Self {
        let mut state = State::default();
        state.apply_configuration(Arc::new(Cluster { pools, ..Cluster::default() }));
        Self { state }
    }

    /// One node of one pool, with these pods.
    pub(super) fn with(pods: impl IntoIterator<Item = Pod>) -> Self {
        let mut scene = Self::new(vec![pool("general")]);
        scene.node("n", "general");
        pods.into_iter().for_each(|pod| scene.pod(pod));
        scene
    }

    /// Adds a node that was initialized an hour ago.
    pub(super) fn node(&mut self, name: &str, of: &str) {
        let labels = [
            (POOL, of),
            (INSTANCE_TYPE, "m6i.large"),
            (CAPACITY_TYPE, "on-demand"),
            (ZONE, "us-east-1a"),
            (REGISTERED, "true"),
            (INITIALIZED, "true"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let stamp = (INITIALIZED_AT.to_owned(), earlier().to_string());
        let node = Node {
            name: name.into(),
            uid: name.to_owned(),
            provider_id: format!("aws:///us-east-1a/i-{name}"),
            created: Some(earlier()),
            labels: labels.into(),
            annotations: [stamp].into(),
            ready: true,
            allocatable: Resources {
                cpu_milli: 2_000,
                memory: 8 << 30,
                pods: 29,
                ..Resources::default()
            },
            ..Node::default()
        };
        let pool = self.state.cluster.pool(of).cloned();
        let pool = pool.unwrap_or_else(|| Pool::new(of));
        let mut claim = NodeClaim::new(record(name, &pool), ClaimPhase::Initialized, earlier());
        claim.node = Some(name.into());
        claim.instance = Some(Instance {
            id: format!("i-{name}").into(),
            offering: OfferingKey {
                instance_type: "m6i.large".into(),
                zone: "us-east-1a".into(),
                capacity_type: CapacityType::OnDemand,
                reservation: None,
            },
            state: InstanceState::Running,
            launched: earlier(),
            tags: Default::default(),
            node: None,
            facts: None,
        });
        self.state.ledger.insert(claim);
        self.apply(WatchedObject::Node(Box::new(node)));
    }

    pub(super) fn pod(&mut self, pod: Pod) {
        self.apply(WatchedObject::Pod(Box::new(pod)));
    }

    pub(super) fn apply(&mut self, object: WatchedObject) {
        self.state.objects.apply(object, earlier());
    }

    /// Changes a node.
    pub(super) fn edit(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.state.objects.nodes[name].clone();
        change(&mut node);
        self.apply(WatchedObject::Node(Box::new(node)));
    }

    /// The claim of a node.
    pub(super) fn claim(&mut self, name: &str) -> &mut NodeClaim {
        self.state.ledger.claims.get_mut(name).expect("a node with a claim")
    }

    /// Changes the only pool, or the first.
    pub(super) fn configure(&mut self, change: impl FnOnce(&mut Pool)) {
        let mut cluster = Cluster::clone(&self.state.cluster);
        change(&mut cluster.pools[0]);
        self.state.apply_configuration(Arc::new(cluster));
    }

    pub(super) fn plan(&self) -> Plan {
        select_disruptions(&self.state.disruption_view(NOW), NOW)
    }

    /// The disrupted nodes, with their reasons.
    pub(super) fn disruptions(&self) -> Vec<(String, Reason)> {
        let plan = self.plan();
        let all = plan.retire.into_iter();
        all.map(|disrupted| (disrupted.node.0, disrupted.reason)).collect()
    }

    /// The verdict that retains a node for a reason, whether it is due or not. The outer option is
    /// `None` if the node is not a candidate.
    pub(super) fn retaining_verdict_for(
        &self,
        name: &str,
        reason: Reason,
    ) -> Option<Option<Verdict>> {
        let disruption_view = self.state.disruption_view(NOW);
        let mut all = disruption_view.candidates.iter();
        let candidate = all.find(|candidate| candidate.node.name.as_str() == name)?;
        let pool = disruption_view.cluster.pool(candidate.pool.as_str());
        Some(retaining_verdict(candidate, pool, reason, NOW))
    }

    /// The code of this verdict: `-` if the node may be disrupted, `gone` if it is not a candidate.
    pub(super) fn verdict_code(&self, reason: Reason) -> &'static str {
        match self.retaining_verdict_for("n", reason) {
            None => "gone",
            Some(None) => "-",
            Some(Some(Verdict::Blocked(why))) => why.code(),
            Some(Some(verdict)) => verdict.code(),
        }
    }
}

fn record(name: &str, pool: &Pool) -> ClaimRecord {
    ClaimRecord {
        id: name.into(),
        installation: "tests".to_owned(),
        cluster: "".into(),
        origin: ClaimOrigin::default(),
        pool: pool.name.clone(),
        node_class: None,
        created: earlier(),
        expire_hard_after: None,
        expire_after: pool.expire_after,
        termination_grace_period: pool.termination_grace_period,
        pool_hash: String::new(),
        node_class_hash: String::new(),
        startup_taints: Vec::new(),
        reason: String::new(),
        command_id: String::new(),
    }
}
