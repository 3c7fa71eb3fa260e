//! Empty nodes: how long they are kept, their blockers, and which nodes are not evaluated, on
//! manually defined fleets with a history.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::disruption::verdict::{Verdict, next_due};
use outrigger::model::claim::{ClaimOrigin, ClaimPhase, ClaimRecord};
use outrigger::model::cluster::{Cluster, RemovedPools};
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::{DO_NOT_DISRUPT, INITIALIZED, POOL, REGISTERED};
use outrigger::model::node::Node;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{BudgetNodes, Consolidation, Pool, Reason};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::plan::{Plan, select_disruptions};
use outrigger::state::State;
use outrigger::state::node_claims::NodeClaim;

/// When all nodes of a fleet were initialized.
const START: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// The time this number of seconds after the start.
fn at(seconds: i64) -> Timestamp {
    START + SignedDuration::from_secs(seconds)
}

/// A pool whose budget allows all nodes to be disrupted, half a minute after the last change.
fn pool(name: &str) -> Pool {
    let mut pool = Pool::new(name);
    pool.disruption.consolidate_after = Some(SignedDuration::from_secs(30));
    pool.disruption.budgets[0].nodes = BudgetNodes::Percent(100);
    pool
}

/// The state of a cluster, and its disruptions.
struct Fleet {
    state: State,
}

impl Fleet {
    fn new(pools: Vec<Pool>) -> Self {
        let mut state = State::default();
        state.apply_configuration(Arc::new(Cluster { pools, ..Cluster::default() }));
        Self { state }
    }

    /// Changes the configuration.
    fn configure(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = Cluster::clone(&self.state.cluster);
        change(&mut cluster);
        self.state.apply_configuration(Arc::new(cluster));
    }

    /// Adds an empty node of a pool, with its claim.
    fn node(&mut self, name: &str, pool: &str) {
        let labels = [(POOL, pool), (REGISTERED, "true"), (INITIALIZED, "true")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let node = Node {
            name: name.into(),
            uid: format!("uid-{name}"),
            provider_id: format!("aws:///zone/i-{name}"),
            labels: labels.into(),
            created: Some(START),
            ready: true,
            ..Node::default()
        };
        self.state.objects.apply(WatchedObject::Node(Box::new(node)), START);
        self.state.ledger.insert(claim(name, pool));
    }

    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.state.objects.nodes[name].clone();
        change(&mut node);
        self.state.objects.apply(WatchedObject::Node(Box::new(node)), START);
    }

    fn claim(&mut self, node: &str) -> &mut NodeClaim {
        let claims = &mut self.state.ledger.claims;
        claims.get_mut(node).expect("a claim by its node's name")
    }

    /// Applies a pod at this time.
    fn apply(&mut self, pod: Pod, now: Timestamp) {
        self.state.objects.apply(WatchedObject::Pod(Box::new(pod)), now);
    }

    /// Deletes a pod at this time.
    fn delete(&mut self, pod: &str, now: Timestamp) {
        let key = ObjectKey::new("default", pod);
        self.state.objects.delete(ObjectKind::Pod, &key, now);
    }

    fn plan(&self, now: Timestamp) -> Plan {
        select_disruptions(&self.state.disruption_view(now), now)
    }

    /// The nodes that are disrupted for this reason.
    fn disrupted(&self, reason: Reason, now: Timestamp) -> Vec<String> {
        let retired = self.plan(now).retire.into_iter();
        let disrupted = retired.filter(|disrupted| disrupted.reason == reason);
        disrupted.map(|disrupted| disrupted.node.to_string()).collect()
    }

    /// The verdict that retains a node for this reason.
    fn verdict(&self, node: &str, reason: Reason, now: Timestamp) -> Option<Verdict> {
        let kept = self.plan(now).kept.into_iter();
        let mut verdicts =
            kept.filter(|retained| retained.node.as_str() == node && retained.reason == reason);
        verdicts.next().map(|retained| retained.verdict)
    }
}

/// The claim of a node that was initialized at the start.
fn claim(node: &str, pool: &str) -> NodeClaim {
    let record = ClaimRecord {
        id: node.into(),
        installation: "tests".into(),
        cluster: "one".into(),
        origin: ClaimOrigin::default(),
        pool: pool.into(),
        node_class: None,
        created: START,
        expire_hard_after: None,
        expire_after: None,
        termination_grace_period: None,
        pool_hash: String::new(),
        node_class_hash: String::new(),
        startup_taints: Vec::new(),
        reason: String::new(),
        command_id: String::new(),
    };
    let mut claim = NodeClaim::new(record, ClaimPhase::Initialized, START);
    claim.node = Some(node.into());
    claim.instance = Some(Instance {
        id: format!("i-{node}").into(),
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
    claim
}

/// A running pod whose owner is of this kind.
fn pod(name: &str, node: &str, owner: &str) -> Pod {
    Pod {
        key: ObjectKey::new("default", name),
        uid: format!("uid-{name}"),
        node: Some(node.into()),
        phase: PodPhase::Running,
        owner: Some(Owner { kind: owner.into(), name: "owner".into(), uid: "owner".into() }),
        ..Pod::default()
    }
}

/// A fleet with one empty node.
fn empty_node() -> Fleet {
    let mut fleet = Fleet::new(vec![pool("general")]);
    fleet.node("n", "general");
    fleet
}

fn annotate(fleet: &mut Fleet, value: &str) {
    let note = (DO_NOT_DISRUPT.to_owned(), value.to_owned());
    fleet.change_node("n", |node| node.annotations.extend([note]));
}

/// A terminating pod on the node.
fn terminating_pod(owner: &str) -> Pod {
    Pod { deleting: Some(START), ..pod("p", "n", owner) }
}

/// A change of the empty node, and the code of the verdict that retains it, if any.
type Row = (&'static str, fn(&mut Fleet), Option<&'static str>);

const ROWS: [Row; 22] = [
    ("no pods", |_| {}, None),
    ("a daemon pod", |it| it.apply(pod("p", "n", "DaemonSet"), START), None),
    ("a mirror pod", |it| it.apply(pod("p", "n", "Node"), START), None),
    (
        "a terminated pod",
        |it| {
            let mut pod = pod("p", "n", "Job");
            pod.phase = PodPhase::Succeeded;
            it.apply(pod, START);
        },
        None,
    ),
    ("a pod on another node", |it| it.apply(pod("p", "other", "ReplicaSet"), START), None),
    ("a pod", |it| it.apply(pod("p", "n", "ReplicaSet"), START), Some("in_use")),
    (
        "a pod without an owner",
        |it| {
            let pod = Pod { owner: None, ..pod("p", "n", "") };
            it.apply(pod, START);
        },
        Some("in_use"),
    ),
    // The next pod of this name is created only when this one is deleted.
    (
        "a terminating pod of a StatefulSet",
        |it| it.apply(terminating_pod("StatefulSet"), START),
        Some("in_use"),
    ),
    ("annotated with do-not-disrupt", |it| annotate(it, "true"), Some("blocked")),
    ("annotated with false", |it| annotate(it, "false"), None),
    ("annotated with a duration", |it| annotate(it, "1h"), None),
    ("nominated for pods", |it| it.state.nominate("n".into(), at(61)), Some("nominated")),
    ("the nomination has expired", |it| it.state.nominate("n".into(), at(60)), None),
    (
        "the pool is static",
        |it| it.configure(|cluster| cluster.pools[0].replicas = Some(1)),
        Some("static"),
    ),
    (
        "the pool is removed, and its nodes are kept",
        |it| {
            it.configure(|cluster| {
                cluster.safeguards.removed_pools = RemovedPools::Keep;
                cluster.pools.clear();
            });
        },
        Some("no_pool"),
    ),
    (
        "the pool never consolidates",
        |it| it.configure(|cluster| cluster.pools[0].disruption.consolidate_after = None),
        Some("never"),
    ),
    (
        "the pool consolidates only empty nodes",
        |it| {
            it.configure(|cluster| cluster.pools[0].disruption.consolidation = Consolidation::Empty)
        },
        None,
    ),
    (
        "the node is not initialized",
        |it| {
            it.change_node("n", |node| drop(node.labels.remove(INITIALIZED)));
            it.claim("n").phase = ClaimPhase::Registered;
        },
        Some("not_initialized"),
    ),
    (
        "the initialized label is false",
        |it| {
            let no = (INITIALIZED.to_owned(), "false".to_owned());
            it.change_node("n", |node| node.labels.extend([no]));
        },
        Some("not_initialized"),
    ),
    (
        "a capacity buffer reserves the node",
        |it| drop(it.state.held.insert("n".into(), "spare".to_owned())),
        Some("buffer"),
    ),
    (
        "a capacity buffer reserves the node, and a pod runs on it",
        |it| {
            it.state.held.insert("n".into(), "spare".to_owned());
            it.apply(pod("p", "n", "ReplicaSet"), START);
        },
        Some("in_use"),
    ),
    (
        "a capacity buffer reserves another node",
        |it| drop(it.state.held.insert("m".into(), "spare".to_owned())),
        None,
    ),
];

#[test]
fn empty_node_is_disrupted_unless_a_verdict_retains_it() {
    for (what, change, keeps) in ROWS {
        let mut fleet = empty_node();
        change(&mut fleet);
        let verdict = fleet.verdict("n", Reason::Empty, at(60));
        assert_eq!(verdict.as_ref().map(Verdict::code), keeps, "{what}");
        let disrupted = fleet.disrupted(Reason::Empty, at(60));
        assert_eq!(disrupted.is_empty(), keeps.is_some(), "{what}: {disrupted:?}");
    }
}

#[test]
fn unmanaged_and_draining_nodes_are_not_candidates() {
    let mut fleet = empty_node();
    fleet.claim("n").leaving = Some(Reason::Expired);
    fleet.claim("n").phase = ClaimPhase::Draining;
    let unmanaged = Node {
        name: "stranger".into(),
        labels: fleet.state.objects.nodes["n"].labels.clone(),
        ready: true,
        ..Node::default()
    };
    fleet.state.objects.apply(WatchedObject::Node(Box::new(unmanaged)), START);
    let plan = fleet.plan(at(60));
    assert_eq!((plan.retire, plan.kept), (vec![], vec![]));
}

/// A history of changes, and the time in seconds after which the node may be disrupted.
type History = (&'static str, fn(&mut Fleet), i64);

const HISTORIES: [History; 7] = [
    ("no changes since the initialization", |_| {}, 30),
    (
        "a pod was bound and deleted",
        |it| {
            it.apply(pod("p", "n", "ReplicaSet"), at(100));
            it.delete("p", at(200));
        },
        230,
    ),
    (
        "a pod has terminated",
        |it| {
            let mut pod = pod("p", "n", "Job");
            it.apply(pod.clone(), at(100));
            pod.phase = PodPhase::Succeeded;
            it.apply(pod, at(300));
            // The deletion of a terminated pod is not a change.
            it.delete("p", at(400));
        },
        330,
    ),
    (
        "several pods were bound and deleted",
        |it| {
            for (seconds, name) in [(100, "a"), (103, "b"), (106, "c")] {
                it.apply(pod(name, "n", "ReplicaSet"), at(seconds));
            }
            for (seconds, name) in [(110, "c"), (112, "a"), (114, "b")] {
                it.delete(name, at(seconds));
            }
        },
        144,
    ),
    (
        "a daemon pod was bound and deleted",
        |it| {
            it.apply(pod("p", "n", "DaemonSet"), at(100));
            it.delete("p", at(200));
        },
        30,
    ),
    (
        "a pod is pending, and one was bound to an unknown node",
        |it| {
            let waits = Pod { node: None, unschedulable: true, ..pod("p", "", "ReplicaSet") };
            it.apply(waits, at(100));
            it.apply(pod("q", "unknown", "ReplicaSet"), at(100));
        },
        30,
    ),
    (
        "the pool has a longer consolidate_after",
        |it| {
            let after = SignedDuration::from_secs(90);
            it.configure(|cluster| cluster.pools[0].disruption.consolidate_after = Some(after));
        },
        90,
    ),
];

#[test]
fn consolidate_after_starts_at_the_last_pod_change() {
    for (what, history, due) in HISTORIES {
        let mut fleet = empty_node();
        history(&mut fleet);
        let early = at(due - 1);
        let until = at(due);
        let verdict = fleet.verdict("n", Reason::Empty, early);
        assert_eq!(verdict, Some(Verdict::RecentlyChanged { until }), "{what}");
        assert_eq!(next_due(&fleet.plan(early).kept), Some(until), "{what}");
        assert_eq!(fleet.disrupted(Reason::Empty, until), ["n"], "{what}");
    }
    let mut fleet = empty_node();
    let at_once = Some(SignedDuration::ZERO);
    fleet.configure(|cluster| cluster.pools[0].disruption.consolidate_after = at_once);
    assert_eq!(fleet.disrupted(Reason::Empty, START), ["n"]);
}

#[test]
fn budgets_limit_simultaneous_disruptions_of_empty_nodes() {
    use BudgetNodes::{Nodes, Percent};
    // The number of pools, of nodes per pool, the budget, and the disrupted nodes per pool.
    for (pools, nodes, allowance, expect) in [
        (1, 10, Percent(100), 10),
        (1, 10, Percent(0), 0),
        (1, 10, Nodes(0), 0),
        (1, 10, Nodes(3), 3),
        (1, 3, Nodes(10), 3),
        (1, 10, Percent(10), 1),
        (1, 11, Percent(10), 2),
        (10, 3, Nodes(2), 2),
        (10, 3, Percent(100), 3),
    ] {
        let what = format!("{allowance:?} of {nodes}");
        let names: Vec<String> = (0..pools).map(|at| format!("pool-{at}")).collect();
        let pool_with_budget = |name: &String| {
            let mut limited = pool(name);
            limited.disruption.budgets[0].nodes = allowance;
            limited
        };
        let mut fleet = Fleet::new(names.iter().map(pool_with_budget).collect());
        for pool in &names {
            for number in 0..nodes {
                fleet.node(&format!("{pool}-{number}"), pool);
            }
        }
        let disrupted = fleet.disrupted(Reason::Empty, at(60));
        for pool in &names {
            let in_pool = disrupted.iter().filter(|node| node.starts_with(&format!("{pool}-")));
            assert_eq!(in_pool.count(), expect, "{what}");
        }
        // The other nodes have the verdict of the budget.
        let kept = fleet.plan(at(60)).kept;
        let budget = kept.iter().filter(|retained| retained.verdict.code() == "budget");
        assert_eq!(budget.count(), pools * (nodes - expect), "{what}");
    }
}
