//! Explanations of unschedulable pods: messages and numbers, case by case.

use std::collections::BTreeSet;
use std::fmt::Write;

use insta::{assert_snapshot, with_settings};
use jiff::SignedDuration;
use outrigger::model::affinity::Gang;
use outrigger::model::id::{ClaimId, ObjectKey};
use outrigger::model::instance::{CapacityType, OfferingKey};
use outrigger::model::labels::{ARCH, HOSTNAME, INSTANCE_TYPE, Labels, ZONE};
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint};
use outrigger::plan::render_rejections;
use outrigger::scheduling::RejectionCode;
use outrigger::scheduling::rejection::RejectionDetail;
use outrigger::state::snapshot::{NodeRef, VolumeRequirements};

use super::fixture::{
    CPU, GIB, NOW, World, app, label, pod, pods, port, room, spread, taint, term, world,
};

/// The name of a case, and its change of a world with one pending pod.
type Case = (&'static str, fn(&mut World));

const POD_CASES: &[Case] = &[
    ("invalid_pod", |it| it.pods[0].defects = vec!["cpu \"x\" is no quantity".to_owned()]),
    ("resource claims", |it| it.pods[0].has_resource_claims = true),
    ("volumes", |it| {
        let fault = Some("its claim data is lost".to_owned());
        let key = it.pods[0].key.clone();
        it.mounts.insert(key, VolumeRequirements { fault, ..VolumeRequirements::default() });
    }),
    ("gang", |it| {
        it.pods = pods("p", 3, 1000, GIB);
        it.pods[2].requests.cpu_milli = 400_000;
        for pod in &mut it.pods {
            pod.gang = Some(Gang { name: "workers".to_owned(), least: None });
        }
    }),
    ("priority", |it| it.cluster.scheduling.priority_cutoff = Some(10)),
    ("restricted_label", |it| select(it, HOSTNAME, "n")),
    ("no pool", |it| it.cluster.pools.clear()),
];

const TYPE_CASES: &[Case] = &[
    ("taint", |it| {
        let value = "gpu".to_owned();
        it.pool().taints = vec![Taint { value, ..taint("team", Effect::NoSchedule) }];
    }),
    ("label nobody defines", |it| select(it, "disk", "fast")),
    ("label the pool has otherwise", |it| {
        it.pool().labels = Labels::from([label("disk", "slow")]);
        select(it, "disk", "fast");
    }),
    ("label no type has", |it| select(it, ARCH, "arm64")),
    ("labels no type has together", |it| {
        select(it, CPU, "2");
        select(it, INSTANCE_TYPE, "c-1x-amd64");
    }),
    ("no type in the pool", |it| require(it, INSTANCE_TYPE, &["unknown"])),
    ("host ports", |it| {
        it.daemons = vec![daemon(100)];
        it.daemons[0].template.host_ports = BTreeSet::from([port(80)]);
        it.pods[0].host_ports = BTreeSet::from([port(80)]);
    }),
    ("too little cpu", |it| it.pods[0].requests.cpu_milli = 400_500),
    ("too little memory after daemons", |it| {
        require(it, CPU, &["1"]);
        it.daemons = vec![daemon(100)];
        it.pods[0] = pod("p", 500, 9 * GIB + GIB / 5);
    }),
    ("a device", |it| {
        it.pods[0].requests.extended.insert("example.com/gpu".to_owned(), 1);
    }),
    ("too little of two resources", |it| it.pods[0] = pod("p", 400_000, 9_000 * GIB)),
    ("daemons that take everything", |it| it.daemons = vec![daemon(1_000_000)]),
];

const OFFERING_CASES: &[Case] = &[
    ("zone", |it| select(it, ZONE, "e")),
    ("held down", |it| {
        for (at, instance_type) in it.catalog.types().enumerate() {
            for zone in ["a", "b", "c", "d"] {
                let key = OfferingKey {
                    instance_type: instance_type.name.clone(),
                    zone: zone.into(),
                    capacity_type: CapacityType::OnDemand,
                    reservation: None,
                };
                let until = SignedDuration::from_secs(180 + i64::try_from(at).expect("small"));
                it.holds.mark_unavailable(key, NOW + until, NOW);
            }
        }
    }),
    ("limit", |it| {
        it.pods[0].requests.cpu_milli = 4000;
        it.pool().limits.capacity = vec![("cpu".to_owned(), 100_000)];
        let used = it.usage.entry("general".into()).or_default();
        used.capacity.cpu_milli = 96_000;
    }),
    ("limit that is exceeded", |it| {
        it.pool().limits.capacity = vec![("memory".to_owned(), 10 * GIB)];
        let used = it.usage.entry("general".into()).or_default();
        used.capacity.memory = 12 * GIB;
    }),
    ("limit on nodes", |it| it.pool().limits.nodes = Some(0)),
    ("values", |it| {
        let mut few = Requirement::is_in(["c-1x-amd64", "s-1x-amd64", "m-1x-amd64"]);
        few.min_values = Some(5);
        it.pool().requirements.add(INSTANCE_TYPE, few);
        it.pods[0].requests.cpu_milli = 500;
    }),
];

const TOPOLOGY_CASES: &[Case] = &[
    ("a daemon of every type", |it| {
        it.daemons = vec![daemon(100)];
        it.daemons[0].template.labels = Labels::from([label("app", "agent")]);
        it.pods[0].anti_affinity = vec![term(app("agent"), HOSTNAME)];
        it.pods[0].anti_affinity[0].namespace_selector = Some(Selector::default());
    }),
    ("spread, the emptiest zone out of reach", |it| {
        require(it, ZONE, &["a", "b"]);
        add_full_nodes(it, &[("a", &["x"]), ("b", &["x"]), ("c", &[])]);
        it.pods[0].spread = vec![spread(app("x"), ZONE, 1)];
    }),
    ("spread over a label nobody has", |it| {
        it.pods[0].spread = vec![spread(app("x"), "rack", 1)];
    }),
    ("away from others", |it| {
        add_full_nodes(it, &[("a", &["y", "y"]), ("b", &["y"]), ("c", &["y"]), ("d", &["y"])]);
        it.pods[0].anti_affinity = vec![term(app("y"), ZONE)];
    }),
    ("others away from it", |it| {
        require(it, ZONE, &["a"]);
        add_full_nodes(it, &[("a", &["y"])]);
        it.residents[0].anti_affinity = vec![term(app("x"), ZONE)];
    }),
    ("near others out of reach", |it| {
        add_full_nodes(it, &[("e", &["y"])]);
        it.pods[0].affinity = vec![term(app("y"), ZONE)];
    }),
    ("near nobody", |it| it.pods[0].affinity = vec![term(app("y"), ZONE)]),
    ("near others on a full host", |it| {
        add_full_nodes(it, &[("a", &["y"])]);
        it.pods[0].affinity = vec![term(app("y"), HOSTNAME)];
    }),
    ("away from others on their way", |it| {
        require(it, ZONE, &["a", "b"]);
        add_in_flight_nodes(it, &["c1", "c2"]);
        it.pods[0].anti_affinity = vec![term(app("y"), ZONE)];
    }),
    ("near some and away from others", |it| {
        add_full_nodes(it, &[("a", &["y", "z"]), ("b", &["z"])]);
        it.pods[0].affinity = vec![term(app("y"), ZONE)];
        it.pods[0].anti_affinity = vec![term(app("z"), ZONE)];
    }),
];

fn select(world: &mut World, key: &str, value: &str) {
    let (key, value) = label(key, value);
    world.pods[0].node_selector.insert(key, value);
}

fn require(world: &mut World, key: &str, values: &[&str]) {
    let requirement = Requirement::is_in(values.iter().copied());
    world.pool().requirements.add(key, requirement);
}

fn daemon(cpu_milli: i64) -> DaemonSet {
    DaemonSet {
        key: ObjectKey::new("kube-system", "agent"),
        template: pod("agent", cpu_milli, GIB / 2),
    }
}

/// Full nodes in these zones, with pods of these apps.
fn add_full_nodes(world: &mut World, zones: &[(&str, &[&str])]) {
    for (zone, apps) in zones {
        let name = format!("n-{zone}");
        let mut node = room(&name, Resources::default());
        let labels = [(ZONE, *zone), (HOSTNAME, name.as_str())];
        let labels = labels.map(|(key, value)| (key, Requirement::is_in([value])));
        node.labels = Requirements::from_iter(labels).into();
        world.rooms.push(node);
        for (at, of) in apps.iter().enumerate() {
            world.residents.push(Pod {
                labels: Labels::from([label("app", of)]),
                node: Some(name.as_str().into()),
                ..pod(&format!("{of}-{zone}-{at}"), 100, GIB)
            });
        }
    }
}

/// Adds full in-flight nodes whose zone is undecided, each with a pod.
fn add_in_flight_nodes(world: &mut World, claims: &[&str]) {
    for name in claims {
        let mut node = room(name, Resources::default());
        node.host = NodeRef::Claim(ClaimId::from(*name));
        let zones = Requirement::is_in(["a", "b"]);
        node.labels = Requirements::from_iter([(ZONE, zones)]).into();
        node.initialized = false;
        let there = Pod {
            labels: Labels::from([label("app", "y")]),
            ..pod(&format!("y-{name}"), 100, GIB)
        };
        world.promised.insert(node.host.clone(), vec![there]);
        world.rooms.push(node);
    }
}

fn rendered(cases: &[Case]) -> String {
    let mut out = String::new();
    for (name, edit) in cases {
        let mut world = world();
        world.pods = vec![pod("p", 1000, GIB)];
        world.pods[0].labels = Labels::from([label("app", "x")]);
        edit(&mut world);
        let solution = world.solve();
        let unplaced = solution.unplaced.first().expect(name);
        writeln!(out, "# {name}").expect("written");
        for why in unplaced.reasons.iter() {
            writeln!(out, "{}", render_rejections::rejection_line(why)).expect("written");
            writeln!(out, "{}\n", render_rejections::rejection_json(why)["nearest"])
                .expect("written");
        }
    }
    out
}

#[test]
fn every_rejection_code_shows_the_nearest_miss_in_numbers() {
    with_settings!({
        snapshot_path => "reasons",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        assert_snapshot!("of-itself", rendered(POD_CASES));
        assert_snapshot!("of-types", rendered(TYPE_CASES));
        assert_snapshot!("of-offerings", rendered(OFFERING_CASES));
        assert_snapshot!("of-places", rendered(TOPOLOGY_CASES));
    });
}

#[test]
fn object_text_in_rejections_is_escaped_and_truncated() {
    let wild = format!("\u{1b}[2J\n\u{202e}{}", "x".repeat(10_000));
    let mut world = world();
    world.pods = (0..4).map(|at| pod(&format!("p{at}"), 1000, GIB)).collect();
    world.pods[0].node_selector = Labels::from([label(&wild, &wild)]);
    world.pods[1].defects = vec![wild.clone()];
    world.pods[2].spread = vec![spread(app(&wild), &wild, 1)];
    world.pods[3].requests.extended.insert(wild, 1);
    let solution = world.solve();
    assert_eq!(solution.unplaced.len(), 4);
    for why in solution.unplaced.iter().flat_map(|rejected| rejected.reasons.iter()) {
        for text in [
            why.rejection_text(),
            render_rejections::rejection_line(why),
            render_rejections::rejection_json(why).to_string(),
        ] {
            let clean = !text.contains(['\u{1b}', '\n', '\u{202e}']);
            assert!(clean && text.chars().count() < 2_000, "{text:?}");
        }
    }
}

/// Suitable types are searched once for pods with equal constraints, but each pod gets the numbers
/// of its own rejection.
#[test]
fn similar_pods_get_their_own_rejection_numbers() {
    let mut world = world();
    world.pods = (0..6).map(|at| pod(&format!("p{at}"), 300_000 + at, GIB)).collect();
    for pod in world.pods.iter_mut().step_by(2) {
        pod.node_selector = Labels::from([label(ZONE, "a")]);
    }
    let solution = world.solve();
    assert_eq!(solution.unplaced.len(), 6);
    for (at, rejected) in solution.unplaced.iter().enumerate() {
        let [why] = &rejected.reasons[..] else { panic!("{rejected:?}") };
        let RejectionDetail::Resources { short, types, .. } = &why.miss else { panic!("{why:?}") };
        let asked = 300_000 + i64::try_from(at).expect("small");
        let got = (short[0].asked, short[0].left, *types);
        assert_eq!((got, why.code), ((asked, 255_900, 36), RejectionCode::Resources));
    }
}

/// Each pod has different constraints with a hundred terms, and there are ten pools: a hundred pods
/// are diagnosed, two hundred would exceed the search limit.
#[test]
fn diagnosis_stops_at_the_search_limit() {
    let mut world = world();
    let pool = |at| Pool::new(&format!("pool{at}"));
    world.cluster.pools = (0..10).map(pool).collect();
    let zone = |at: usize| Requirement::is_in([format!("z{at}")]);
    let zones = (0..100).map(|at| Requirements::from_iter([(ZONE, zone(at))]));
    let zones: Vec<Requirements> = zones.collect();
    for (count, some) in [(100, false), (200, true)] {
        world.pods = pods("p", count, 1000, GIB);
        for (at, pod) in world.pods.iter_mut().enumerate() {
            pod.node_selector = Labels::from([label("own", &at.to_string())]);
            pod.node_affinity.clone_from(&zones);
        }
        let solution = world.solve();
        assert_eq!(solution.unplaced.len(), count);
        let why = solution.unplaced.iter().map(|rejected| &rejected.reasons[..]);
        let (left, diagnosed): (Vec<_>, Vec<_>) =
            why.partition(|reasons| reasons[0].code == RejectionCode::SearchLimit);
        assert_eq!(!left.is_empty(), some, "{count} pods");
        assert!(diagnosed.len() >= 100);
        for reasons in left {
            let text = reasons[0].rejection_text();
            let one = reasons.len() == 1 && reasons[0].pool.is_none();
            assert!(one && text.contains("too many kinds of pods"), "{reasons:?}");
        }
        for reasons in diagnosed {
            let all_requirements =
                reasons.iter().all(|why| why.code == RejectionCode::Requirements);
            assert!(all_requirements && reasons.len() == 10, "{reasons:?}");
        }
    }
}
