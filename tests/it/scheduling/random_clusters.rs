//! Random clusters: pools, nodes and pods, small enough for many of them per second.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use outrigger::catalog::Catalog;
use outrigger::model::affinity::TopologySpread;
use outrigger::model::cluster::{MinValuesPolicy, PreferencePolicy, Scheduling};
use outrigger::model::fleet::FleetView;
use outrigger::model::id::{ClaimId, ObjectKey, Zone};
use outrigger::model::instance::{CapacityType, OfferingKey, Price};
use outrigger::model::labels::{ARCH, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, Labels, ZONE};
use outrigger::model::pod::{DaemonSet, Owner, Pod};
use outrigger::model::pool::{Limits, Pool};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Operator, Requirement, Requirements};
use outrigger::model::reservation::Reservation;
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::{ObjectKind, WorkloadSelector};
use outrigger::state::snapshot::{ExistingNode, NodeRef};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::{collection, option};

use super::features::{Feature, without};
use super::fixture::{
    CPU, DEFAULT, GIB, MIB, NOW, World, app as app_of, kwok_like, label, pod, room, taint,
};
use super::random_pods::{
    APPS, DEVICE, DISKS, Deployment, OTHER, RACK, a_crowded_deployment, a_daemon, a_default_spread,
    a_deployment, a_settled_pod,
};

fn maybe_taint(share: f64, effect: Effect) -> impl Strategy<Value = Option<Taint>> {
    let of_value = move |value: &str| Taint { value: value.to_owned(), ..taint("x", effect) };
    option::weighted(share, select(&["", "1"][..]).prop_map(of_value))
}

/// A requirement of a pool, in addition to racks and teams.
fn a_pool_requirement() -> impl Strategy<Value = Option<(&'static str, Requirement)>> {
    let large = Requirement::from_operator(Operator::Gt, &["2".to_owned()]);
    let large = large.expect("an integer");
    prop_oneof![
        10 => Just(None),
        2 => Just(Some((ZONE, Requirement::is_in(["a", "b"])))),
        1 => Just(Some((ZONE, Requirement::not_in(["a"])))),
        1 => Just(Some((ARCH, Requirement::is_in(["arm64"])))),
        1 => Just(Some((CPU, large))),
    ]
}

/// The teams of the nodes of a pool: none, one by label, one or two by requirement.
#[derive(Clone, Copy, Debug)]
enum Team {
    None,
    Label,
    Either(&'static [&'static str]),
}

fn a_team() -> impl Strategy<Value = Team> {
    prop_oneof![
        3 => Just(Team::None),
        1 => Just(Team::Label),
        1 => Just(Team::Either(&["x"])),
        2 => Just(Team::Either(&["x", "y"])),
    ]
}

/// A label with `min_values`.
fn a_min_values() -> impl Strategy<Value = Option<(&'static str, u32)>> {
    let types = (2u32..9).prop_map(|least| (INSTANCE_TYPE, least));
    option::weighted(0.15, prop_oneof![types, Just((ZONE, 2))])
}

fn a_pool(name: &'static str) -> impl Strategy<Value = Pool> {
    let taints = (
        maybe_taint(0.2, Effect::NoSchedule),
        maybe_taint(0.3, Effect::PreferNoSchedule),
        maybe_taint(0.2, Effect::NoExecute),
    );
    let rack = prop_oneof![
        4 => Just(vec![]),
        1 => Just(vec!["r1"]),
        2 => Just(vec!["r1", "r2"]),
    ];
    let limits = (option::weighted(0.2, 1i64..80), option::weighted(0.1, 0u32..6));
    let labels = (a_team(), rack, any::<bool>(), a_pool_requirement(), a_min_values());
    let rest = (0u32..2, option::weighted(0.07, Just(1)));
    (taints, labels, limits, rest).prop_map(
        move |(taints, (team, rack, spot, wish, choice), limits, (weight, replicas))| {
            let mut pool = Pool { weight, replicas, ..Pool::new(name) };
            pool.taints = [taints.0, taints.1].into_iter().flatten().collect();
            pool.startup_taints = taints.2.into_iter().collect();
            let mut wanted: Vec<(&str, Requirement)> = wish.into_iter().collect();
            match team {
                Team::None => {}
                Team::Label => pool.labels = Labels::from([label("team", "x")]),
                Team::Either(teams) => {
                    wanted.push(("team", Requirement::is_in(teams.iter().copied())));
                }
            }
            if !rack.is_empty() {
                wanted.push((RACK, Requirement::is_in(rack)));
            }
            if !spot {
                wanted.push((CAPACITY_TYPE, Requirement::is_in(["on-demand"])));
            }
            if let Some((key, least)) = choice {
                let mut many = Requirement::exists();
                many.min_values = Some(least);
                wanted.push((key, many));
            }
            for (key, wanted) in wanted {
                pool.requirements.add(key, wanted);
            }
            let cpu = limits.0.map(|cpu| ("cpu".to_owned(), cpu * 1000));
            pool.limits.capacity = cpu.into_iter().collect();
            pool.limits.nodes = limits.1;
            pool
        },
    )
}

fn a_room() -> impl Strategy<Value = ExistingNode> {
    let taints = (maybe_taint(0.2, Effect::NoExecute), maybe_taint(0.2, Effect::PreferNoSchedule));
    let zones = prop_oneof![
        3 => Just(vec!["a"]),
        3 => Just(vec!["b"]),
        1 => Just(vec!["a", "b"]),
        1 => Just(vec![]),
    ];
    let labels = (
        zones,
        select(&["spot", "on-demand"][..]),
        option::weighted(0.4, select(&["r1", "r2"][..])),
    );
    let states = (any::<bool>(), option::weighted(0.15, Just(())));
    let disks = option::weighted(0.3, 0i64..4);
    (-1i64..9, states, labels, taints, disks).prop_map(
        |(cpu, (initialized, closed), (zones, capacity_type, rack), taints, disks)| {
            let free = pod("", cpu * 1000, 16 * GIB).requests;
            let mut room = room("", Resources { pods: 5, ..free });
            let labels = [
                (ARCH, vec!["amd64"]),
                (CAPACITY_TYPE, vec![capacity_type]),
                (ZONE, zones),
                (RACK, rack.into_iter().collect()),
            ];
            let labels = labels.into_iter().filter(|(_, values)| !values.is_empty());
            room.labels = labels
                .map(|(key, values)| (key, Requirement::is_in(values)))
                .collect::<Requirements>()
                .into();
            room.taints = [taints.0, taints.1].into_iter().flatten().collect();
            room.free.extended.extend(disks.map(|count| (DISKS.to_owned(), count)));
            (room.initialized, room.open) = (initialized, closed.is_none());
            room
        },
    )
}

/// Names the nodes. A node whose zone is undecided belongs to a claim.
fn with_names(rooms: Vec<ExistingNode>) -> Vec<ExistingNode> {
    let with_name = |(at, mut room): (usize, ExistingNode)| {
        let settled = room
            .labels
            .get(ZONE)
            .and_then(Requirement::values)
            .is_none_or(|values| values.len() == 1);
        let name = format!("n{at}");
        if settled {
            room.host = NodeRef::Node(name.as_str().into());
            Arc::make_mut(&mut room.labels).add(HOSTNAME, Requirement::is_in([name]));
        } else {
            room.host = NodeRef::Claim(ClaimId::from(name));
            room.initialized = false;
        }
        room
    };
    rooms.into_iter().enumerate().map(with_name).collect()
}

fn a_scheduling() -> impl Strategy<Value = Scheduling> {
    let bounds = (select(&[60u32, 3, 1][..]), select(&[200u32, 120, 100][..]));
    let strict = prop_oneof![Just(MinValuesPolicy::Strict), Just(MinValuesPolicy::BestEffort)];
    let respects = prop_oneof![Just(PreferencePolicy::Respect), Just(PreferencePolicy::Ignore)];
    let cutoff = option::weighted(0.1, Just(5));
    let price = select(&[0.0, 0.005, 1.0][..]);
    (bounds, strict, respects, cutoff, price).prop_map(
        |((alternatives, percent), min_values, preferences, priority_cutoff, price)| Scheduling {
            max_launch_options: alternatives,
            alternative_price_percent: percent,
            min_values,
            preferences,
            priority_cutoff,
            node_overhead_price: Price::new(price).expect("a price"),
            ..Scheduling::default()
        },
    )
}

/// A DaemonSet with small requests. Its node constraints stay.
fn daemon_set((at, mut template): (usize, Pod)) -> DaemonSet {
    let namespace = template.key.namespace.as_str();
    let key = ObjectKey::new(namespace, format!("d{at}"));
    template.requests.cpu_milli = 100;
    template.requests.memory = 100 * MIB;
    template.requests.extended.clear();
    DaemonSet { key, template }
}

/// Adds all daemons to the expected ones of nodes that are not initialized.
fn expect_daemons(world: &mut World) {
    let keys = world.daemons.iter().map(|set| (set.key.clone(), true));
    let keys: Vec<(ObjectKey, bool)> = keys.collect();
    for room in world.rooms.iter_mut().filter(|room| room.open && !room.initialized) {
        room.daemons.clone_from(&keys);
    }
}

fn add_deployments(world: &mut World, deployments: &[Deployment]) {
    for (of, deployment) in deployments.iter().enumerate() {
        for at in 0..deployment.replicas {
            let mut pod = deployment.pod.clone();
            pod.key.name = format!("p{of}-{at}");
            if let Some(gang) = &mut pod.gang {
                gang.name = format!("g{of}");
            }
            let mounts = deployment.mounts(at);
            world.mounts.extend(mounts.map(|mounts| (pod.key.clone(), mounts)));
            world.pods.push(pod);
        }
    }
}

/// Adds bound and promised pods to the nodes.
fn add_bound_and_promised_pods(
    world: &mut World,
    residents: Vec<(usize, Pod)>,
    promised: Vec<(usize, Pod)>,
) {
    if world.rooms.is_empty() {
        return;
    }
    for (at, (room, mut pod)) in residents.into_iter().enumerate() {
        let room = &world.rooms[room % world.rooms.len()];
        // A claim without a node runs no pods.
        if let NodeRef::Node(name) = &room.host {
            pod.key.name = format!("r{at}");
            pod.node = Some(name.clone());
            world.residents.push(pod);
        }
    }
    for (at, (room, mut pod)) in promised.into_iter().enumerate() {
        let room = &world.rooms[room % world.rooms.len()];
        if room.open {
            pod.key.name = format!("w{at}");
            pod.deleting = None;
            let host = room.host.clone();
            world.promised.entry(host).or_default().push(pod);
        }
    }
}

/// Zones with different prices, some types with a device, and some unavailable offerings.
fn a_catalog() -> impl Strategy<Value = Catalog> {
    let zones = ["a", "b", "c"];
    let unavailable = collection::vec((0usize..60, 0usize..6), 0..8);
    unavailable.prop_map(move |unavailable| {
        let mut types = kwok_like("amd64", &[1, 2, 4, 8, 16], &zones);
        types.extend(kwok_like("arm64", &[2, 4, 8, 32], &zones));
        for (at, it) in types.iter_mut().enumerate() {
            if at % 5 == 0 {
                it.capacity.extended.insert(DEVICE.to_owned(), 2);
                it.allocatable.extended.insert(DEVICE.to_owned(), 2);
            }
            for offering in &mut it.offerings {
                let more = match offering.zone.as_str() {
                    "a" => 1.01,
                    "b" => 1.0,
                    _ => 1.3,
                };
                let price = Price::new(offering.price.usd_per_h() * more);
                offering.price = price.expect("a price");
            }
            it.offerings.sort_by_key(|offering| offering.price);
        }
        for (at, offering) in unavailable {
            let at = at % types.len();
            types[at].offerings[offering].available = false;
        }
        Catalog::new(types)
    })
}

/// The default spread, the apps that Services select, and whether the pods of each Deployment have
/// a controller.
type Defaults = (Vec<TopologySpread>, Vec<&'static str>, Vec<bool>);

fn some_defaults() -> impl Strategy<Value = Option<Defaults>> {
    let spread = collection::vec(a_default_spread(), 1..3);
    let services = collection::vec(select(APPS), 0..2);
    option::weighted(0.25, (spread, services, collection::vec(any::<bool>(), 7)))
}

fn spread_by_default(world: &mut World, (mut spread, services, owned): Defaults) {
    spread.sort();
    spread.dedup_by_key(|constraint| (constraint.topology_key.clone(), constraint.is_hard));
    world.cluster.scheduling.default_spread = spread;
    for app in services {
        world.select(WorkloadSelector {
            kind: ObjectKind::Service,
            key: ObjectKey::new(DEFAULT, app),
            selector: app_of(app),
        });
    }
    let mut pods = std::mem::take(&mut world.pods);
    for pod in &mut pods {
        // The name is `p`, the index of the Deployment, and the index of the pod.
        let (of, _) = pod.key.name[1..].split_once('-').expect("a pod's name");
        if !owned[of.parse::<usize>().expect("a number")] {
            continue;
        }
        let workload = WorkloadSelector {
            kind: ObjectKind::ReplicaSet,
            key: ObjectKey::new(pod.key.namespace.as_str(), of),
            selector: Selector::from_labels(&pod.labels),
        };
        pod.owner =
            Some(Owner { kind: "ReplicaSet".to_owned(), name: of.to_owned(), uid: String::new() });
        if !world.selecting.contains(&workload) {
            world.select(workload);
        }
    }
    world.pods = pods;
}

/// Types, zones and instance counts of reservations; empty in most worlds.
fn reservations() -> impl Strategy<Value = Vec<(usize, &'static str, u32)>> {
    let one = (0usize..60, select(&["a", "b"][..]), 0u32..4);
    prop_oneof![
        3 => Just(Vec::new()),
        1 => collection::vec(one, 1..5),
    ]
}

fn add_reservations(world: &mut World, all: &[(usize, &'static str, u32)]) {
    let named = all.iter().enumerate().map(|(at, (of, zone, total))| {
        let it = world.catalog.types().nth(of % world.catalog.len());
        let it = it.expect("a type").name.clone();
        let reservation = Reservation::new(&format!("cr-{at}"), *total);
        (it, Zone::from(*zone), reservation)
    });
    let named: Vec<_> = named.collect();
    world.catalog = world.catalog.with_reservations(named);
}

/// Marks an offering as unavailable.
fn mark_unavailable(world: &mut World, at: usize, zone: &str) {
    let it = world.catalog.types().nth(at % world.catalog.len());
    let key = OfferingKey {
        instance_type: it.expect("a type").name.clone(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    };
    world.holds.mark_unavailable(key, NOW + SignedDuration::from_secs(1), NOW);
}

/// Sets the usage of the first pool.
fn set_usage(world: &mut World, used: Option<(usize, i64)>) {
    if let (Some((nodes, cpu)), Some(pool)) = (used, world.cluster.pools.first()) {
        let usage = world.usage.entry(pool.name.clone()).or_default();
        (usage.nodes, usage.capacity.cpu_milli) = (nodes, cpu * 1000);
    }
}

/// Rarely, the share of the fleet limits that other clusters leave.
fn a_fleet_view() -> impl Strategy<Value = Option<FleetView>> {
    let share = (1i64..120, 0u32..9, option::weighted(0.1, Just("wait")));
    let view = |(cores, nodes, closed): (i64, u32, Option<&str>)| FleetView {
        limits: core_limits(200, 9),
        share: core_limits(cores, nodes),
        closed: closed.map(str::to_owned),
        ..FleetView::default()
    };
    option::weighted(0.15, share.prop_map(view))
}

fn core_limits(cores: i64, nodes: u32) -> Limits {
    Limits { nodes: Some(nodes), capacity: vec![("cpu".to_owned(), cores * 1000)] }
}

/// A world without these features.
pub(crate) fn a_world(disabled: &'static [Feature]) -> impl Strategy<Value = World> {
    let rooms = collection::vec(a_room(), 0..5);
    a_world_of(collection::vec(a_deployment(), 0..7), rooms, disabled)
}

/// A world with many pods that are spread over hosts, and few others.
pub(crate) fn a_crowded_world(disabled: &'static [Feature]) -> impl Strategy<Value = World> {
    let others = prop_oneof![
        2 => Just(Vec::new()),
        1 => collection::vec(a_deployment(), 1..3),
    ];
    let deployments = (others, collection::vec(a_crowded_deployment(), 1..3));
    let deployments = deployments.prop_map(|(some, crowds)| [some, crowds].concat());
    let rooms = prop_oneof![
        2 => Just(Vec::new()),
        1 => collection::vec(a_room(), 1..4),
    ];
    a_world_of(deployments, rooms, disabled)
}

fn a_world_of(
    deployments: impl Strategy<Value = Vec<Deployment>>,
    rooms: impl Strategy<Value = Vec<ExistingNode>>,
    disabled: &'static [Feature],
) -> impl Strategy<Value = World> {
    let count = prop_oneof![1 => Just(0usize), 4 => Just(1), 5 => Just(2)];
    let pools = (a_pool("one"), a_pool("two"), count);
    let holds = collection::vec((0usize..30, select(&["a", "b"][..])), 0..20);
    let settled = (
        collection::vec((0usize..5, a_settled_pod()), 0..6),
        collection::vec((0usize..5, a_settled_pod()), 0..3),
    );
    let daemons = collection::vec(a_daemon(), 0..3);
    let used = option::weighted(0.3, (0usize..3, 0i64..20));
    let limits = (option::weighted(0.2, 1i64..120), option::weighted(0.1, 0u32..9), a_fleet_view());
    let supply = (a_catalog(), a_scheduling(), used, some_defaults(), reservations(), limits);
    let all = (deployments, pools, rooms, holds, settled, daemons, supply);
    all.prop_map(move |(deployments, pools, rooms, holds, settled, daemons, supply)| {
        let (catalog, scheduling, used, defaults, reserved, (cpu, nodes, view)) = supply;
        let limits = (cpu, nodes);
        let mut world = World {
            catalog,
            rooms: with_names(rooms),
            daemons: daemons.into_iter().enumerate().map(daemon_set).collect(),
            namespaces: BTreeMap::from([
                (DEFAULT.to_owned(), Labels::from([label("env", "dev")])),
                (OTHER.to_owned(), Labels::from([label("env", "prod")])),
            ]),
            ..World::default()
        };
        add_reservations(&mut world, &reserved);
        for (at, zone) in holds {
            mark_unavailable(&mut world, at, zone);
        }
        world.cluster.pools = [pools.0, pools.1].into_iter().take(pools.2).collect();
        world.cluster.scheduling = scheduling;
        let cpu = limits.0.map(|cpu| ("cpu".to_owned(), cpu * 1000));
        world.cluster.limits.capacity = cpu.into_iter().collect();
        world.cluster.limits.nodes = limits.1;
        world.fleet = view;
        set_usage(&mut world, used);
        expect_daemons(&mut world);
        add_deployments(&mut world, &deployments);
        add_bound_and_promised_pods(&mut world, settled.0, settled.1);
        if let Some(defaults) = defaults {
            spread_by_default(&mut world, defaults);
        }
        without(world, disabled)
    })
}
