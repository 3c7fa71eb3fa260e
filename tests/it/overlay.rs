//! The effect of overlays on plans, through the state and its snapshots, and none on reported cost.

use std::sync::Arc;

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::model::claim::{ClaimOrigin, ClaimPhase, ClaimRecord};
use outrigger::model::cluster::Cluster;
use outrigger::model::id::ObjectKey;
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, POOL, ZONE};
use outrigger::model::node::Node;
use outrigger::model::overlay::{Overlay, PriceAdjustment};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;
use outrigger::plan::{Plan, provision};
use outrigger::scheduling::{RejectionCode, solve};
use outrigger::state::State;
use outrigger::state::node_claims::NodeClaim;
use outrigger::state::snapshot::NodeRef;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// A device that no type of the catalog has.
const DEVICE: &str = "example.com/device";
/// Two types of one size, at 0.096 and 0.1008 $/h on demand.
const TYPES: [&str; 2] = ["m6i.large", "m7i.large"];

/// A pool for on-demand nodes in one zone.
fn pool(name: &str) -> Pool {
    let mut pool = Pool::new(name);
    let on_demand = Requirement::is_in(["on-demand"]);
    pool.requirements.add(CAPACITY_TYPE, on_demand);
    pool.requirements.add(ZONE, Requirement::is_in(["us-east-1a"]));
    pool
}

fn overlay(label: (&str, &str)) -> Overlay {
    let mut named = Overlay { name: label.1.to_owned(), ..Overlay::default() };
    named.requirements.add(label.0, Requirement::is_in([label.1]));
    named
}

/// An overlay that adjusts prices.
fn priced(label: (&str, &str), adjustment: &str) -> Overlay {
    Overlay { price: PriceAdjustment::parse(adjustment).ok(), ..overlay(label) }
}

/// An overlay that adds this number of devices to the first type.
fn devices(amount: i64) -> Overlay {
    Overlay { capacity: [(DEVICE.to_owned(), amount)].into(), ..overlay((INSTANCE_TYPE, TYPES[0])) }
}

fn cluster(overlays: Vec<Overlay>) -> Arc<Cluster> {
    Arc::new(Cluster { pools: vec![pool("general")], overlays, ..Cluster::default() })
}

fn catalog() -> Arc<Catalog> {
    let shipped = Catalog::shipped();
    let types = TYPES.map(|name| shipped.get(name).expect("it ships").clone());
    Arc::new(Catalog::new(types))
}

/// A pending pod that requests this number of devices.
fn pod(name: &str, devices: i64) -> WatchedObject {
    let mut pod =
        Pod { key: ObjectKey::new("default", name), unschedulable: true, ..Pod::default() };
    pod.requests.cpu_milli = 100;
    pod.requests.pods = 1;
    if devices > 0 {
        pod.requests.extended.insert(DEVICE.to_owned(), devices);
    }
    WatchedObject::Pod(Box::new(pod))
}

fn offline(cluster: Arc<Cluster>, pods: Vec<WatchedObject>) -> State {
    State::offline(cluster, catalog(), pods, NOW)
}

fn planned(state: &State) -> Plan {
    let plan = provision(&state.snapshot(NOW), NOW);
    assert_eq!(plan.findings, Vec::<String>::new());
    plan
}

/// A claim of the first type. It is launched if `node` names its node.
fn claim(node: Option<&str>) -> NodeClaim {
    let record = ClaimRecord {
        id: "c".into(),
        installation: "tests".into(),
        cluster: "one".into(),
        origin: ClaimOrigin::default(),
        pool: "general".into(),
        node_class: None,
        created: NOW,
        expire_after: None,
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: String::new(),
        node_class_hash: String::new(),
        startup_taints: Vec::new(),
        reason: String::new(),
        command_id: String::new(),
    };
    let mut claim = NodeClaim::new(record, ClaimPhase::Planned, NOW);
    let offering = OfferingKey {
        instance_type: TYPES[0].into(),
        zone: "us-east-1a".into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    };
    let Some(node) = node else {
        claim.offerings = vec![offering];
        return claim;
    };
    claim.phase = ClaimPhase::Launched;
    claim.node = Some(node.into());
    claim.instance = Some(Instance {
        id: format!("i-{node}").as_str().into(),
        offering,
        state: InstanceState::Running,
        launched: NOW,
        tags: Default::default(),
        node: None,
        facts: None,
    });
    claim
}

/// Overlays, the type that is planned first, and its reported price, which is the provider's.
#[test]
fn overlay_prices_select_the_type_but_not_the_reported_cost() {
    let rows = [
        (vec![], TYPES[0], 0.096),
        (vec![priced((INSTANCE_TYPE, TYPES[1]), "-50%")], TYPES[1], 0.1008),
        (vec![priced((INSTANCE_TYPE, TYPES[0]), "+1")], TYPES[1], 0.1008),
        (vec![priced((INSTANCE_TYPE, TYPES[1]), "-1%")], TYPES[0], 0.096),
        (vec![priced((POOL, "general"), "-50%")], TYPES[0], 0.096),
    ];
    for (overlays, expect, paid) in rows {
        let state = offline(cluster(overlays.clone()), vec![pod("a", 0)]);
        let plan = planned(&state);
        let [launch] = plan.launches.as_slice() else {
            panic!("one node: {plan:?}");
        };
        let (first, price) = &launch.offerings[0];
        let found = (first.instance_type.as_str(), price.usd_per_h());
        assert_eq!(found, (expect, paid), "{overlays:?}");

        // An existing node also has the provider's price.
        let mut node = Node { name: "n".into(), ..Node::default() };
        for (key, value) in
            [(INSTANCE_TYPE, expect), (ZONE, "us-east-1a"), (CAPACITY_TYPE, "on-demand")]
        {
            node.labels.insert(key.to_owned(), value.to_owned());
        }
        let mut state = state;
        state.objects.apply(WatchedObject::Node(Box::new(node)), NOW);
        assert_eq!(state.total_cost(), paid, "{overlays:?}");
    }
}

/// An overlay adds devices to the types of one pool only: the pod gets a node of this pool, and the
/// types of the other pool do not change.
#[test]
fn overlay_for_one_pool_does_not_affect_other_pools() {
    for (one, other) in [("general", "other"), ("other", "general")] {
        let cluster = Cluster {
            pools: vec![pool("general"), pool("other")],
            overlays: vec![Overlay {
                capacity: [(DEVICE.to_owned(), 1)].into(),
                ..overlay((POOL, one))
            }],
            ..Cluster::default()
        };
        let state = offline(Arc::new(cluster), vec![pod("a", 1)]);
        let snapshot = state.snapshot(NOW);
        assert_eq!(snapshot.catalog_of(&other.into()), snapshot.catalog);
        let plan = planned(&state);
        let pools: Vec<&str> = plan.launches.iter().map(|launch| launch.pool.as_str()).collect();
        assert_eq!(pools, [one]);
    }
}

/// Overlays that add devices, and the number of nodes for three pods with one device each.
#[test]
fn pods_use_the_devices_that_an_overlay_adds() {
    for (overlays, nodes) in [
        (vec![], 0),
        (vec![devices(0)], 0),
        (vec![devices(1)], 3),
        (vec![devices(2)], 2),
        (vec![devices(3)], 1),
    ] {
        let pods = ["a", "b", "c"].map(|name| pod(name, 1)).to_vec();
        let state = offline(cluster(overlays.clone()), pods);
        let plan = planned(&state);
        assert_eq!(plan.launches.len(), nodes, "{overlays:?}");
        let lost = if nodes == 0 { 3 } else { 0 };
        assert_eq!(plan.unplaced.len(), lost, "{overlays:?}");
        let offerings = plan.launches.iter().flat_map(|launch| &launch.offerings);
        for (offering, _) in offerings {
            assert_eq!(offering.instance_type.as_str(), TYPES[0]);
        }
    }
}

/// The devices of an in-flight node are used before the Node reports them: for a claim without a
/// Node, and for a Node whose device plugin does not run yet.
#[test]
fn overlay_devices_of_an_in_flight_node_are_used_once() {
    for node in [None, Some("n")] {
        let mut state = State::default();
        state.apply_catalog(catalog());
        state.apply_configuration(cluster(vec![devices(2)]));
        let node_claim = claim(node);
        let host = match node {
            None => NodeRef::Claim("c".into()),
            Some(name) => NodeRef::Node(name.into()),
        };
        state.ledger.insert(node_claim);
        if let Some(name) = node {
            let node = Node {
                name: name.into(),
                provider_id: format!("aws:///us-east-1a/i-{name}"),
                ready: true,
                ..Node::default()
            };
            state.objects.apply(WatchedObject::Node(Box::new(node)), NOW);
        }
        for name in ["a", "b", "c"] {
            state.objects.apply(pod(name, 1), NOW);
        }
        let plan = planned(&state);
        let taken: Vec<(&NodeRef, usize)> = plan.placed.iter().map(|(h, p)| (h, p.len())).collect();
        assert_eq!(taken, [(&host, 2)]);
        assert_eq!(plan.launches.len(), 1);
        let usage = &state.snapshot(NOW).usage["general"];
        assert_eq!(usage.capacity.get(DEVICE), 2, "{node:?}");
    }
}

/// A limit on devices, and how many of three nodes with one device each it allows.
#[test]
fn overlay_devices_count_against_pool_limits() {
    for (most, nodes) in [(0, 0), (2, 2), (3, 3)] {
        let mut limited = Cluster::clone(&cluster(vec![devices(1)]));
        limited.pools[0].limits.capacity = vec![(DEVICE.to_owned(), most)];
        let pods = ["a", "b", "c"].map(|name| pod(name, 1)).to_vec();
        let state = offline(Arc::new(limited), pods);
        let plan = planned(&state);
        assert_eq!(plan.launches.len(), nodes, "{most}");
        assert_eq!(plan.unplaced.len(), 3 - nodes, "{most}");
    }
}

/// Overlays are applied again when the configuration or the catalog changes.
#[test]
fn overlays_follow_the_latest_configuration_and_catalog() {
    let mut state = State::default();
    state.objects.apply(pod("a", 1), NOW);
    let found = |state: &State| {
        let solution = solve(&state.snapshot(NOW), NOW);
        let codes = solution.unplaced.iter().flat_map(|rejected| rejected.reasons.iter());
        assert!(codes.clone().all(|why| why.code != RejectionCode::NoPool));
        (solution.claims.len(), solution.unplaced.len())
    };
    state.apply_configuration(cluster(vec![devices(1)]));
    assert_eq!(found(&state), (0, 1), "the catalog is empty");
    state.apply_catalog(catalog());
    assert_eq!(found(&state), (1, 0));
    state.apply_configuration(cluster(vec![]));
    assert_eq!(found(&state), (0, 1), "the overlay is removed");
    state.apply_configuration(cluster(vec![devices(1)]));
    assert_eq!(found(&state), (1, 0));
    state.apply_catalog(Arc::new(Catalog::default()));
    assert_eq!(found(&state), (0, 1), "the catalog is empty again");
}
