//! Volume topology, and volume limits of nodes.

use outrigger::model::id::ObjectKey;
use outrigger::model::labels::HOSTNAME;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::watched_object::{CsiNode, StorageClass, Volume, VolumeClaim, WatchedObject};

use super::fixture::{Check, World, ensure};
use super::notation::{With, all, pod, pods, spread};
use super::run::{Case, run_cases};

const DRIVER: &str = "csi.example.com";

/// An unbound claim of the class `late`, which waits for its first pod.
fn claim(name: &str) -> VolumeClaim {
    VolumeClaim {
        key: ObjectKey::new("default", name),
        storage_class: "late".to_owned(),
        phase: "Pending".to_owned(),
        ..VolumeClaim::default()
    }
}

/// A claim that is bound to the volume of its own name.
fn bound(name: &str, storage_class: &str) -> VolumeClaim {
    VolumeClaim {
        volume: name.to_owned(),
        storage_class: storage_class.to_owned(),
        phase: "Bound".to_owned(),
        is_bound: true,
        ..claim(name)
    }
}

fn volume(name: &str, terms: &[&[&str]]) -> Volume {
    Volume {
        name: name.to_owned(),
        node_affinity: terms.iter().map(|term| all(term)).collect(),
        driver: DRIVER.to_owned(),
        ..Volume::default()
    }
}

/// The class `late`, whose volumes can be created in these zones.
fn class(zones: &[&[&str]]) -> StorageClass {
    StorageClass {
        name: "late".to_owned(),
        provisioner: DRIVER.to_owned(),
        waits_for_consumer: true,
        allowed_topologies: zones.iter().map(|term| all(term)).collect(),
    }
}

/// A world with the class `late`, the pod `p`, which mounts these claims, and the pod `q` without
/// any volumes.
fn world_with_volumes(claims: &[VolumeClaim], volumes: &[Volume], zones: &[&[&str]]) -> World {
    let mut world = World::new();
    world.apply(WatchedObject::StorageClass(class(zones)));
    for volume in volumes {
        world.apply(WatchedObject::Volume(volume.clone()));
    }
    let mut mounting = pod("p");
    for claim in claims {
        mounting = mounting.volume(&claim.key.name);
        world.apply(WatchedObject::VolumeClaim(claim.clone()));
    }
    world.add([mounting, pod("q")]);
    world
}

fn check_zone(world: &World, zone: &str) -> Check {
    let plan = world.plan();
    plan.placed(&["p", "q"], &[])?;
    plan.has("p", "zone", zone)
}

fn check_placed(world: &World) -> Check {
    world.plan().placed(&["p", "q"], &[])
}

/// Checks that the pod `p` is not placed, and that `q` is placed all the same.
fn check_waiting(world: &World) -> Check {
    world.plan().placed(&["q"], &["p"])
}

const UNUSABLE: &[Case] = &[
    ("provisioning:1995", || {
        let mut world = World::new();
        world.add([pod("p").volume("none"), pod("q")]);
        check_waiting(&world)
    }),
    ("provisioning:2066", || {
        let mut world = World::new();
        world.add([pod("p").volume("none"), pod("q")]);
        check_waiting(&world)
    }),
    ("provisioning:2077", || {
        check_waiting(&world_with_volumes(&[without_class("unknown")], &[], &[]))
    }),
    ("provisioning:2090", || {
        check_waiting(&world_with_volumes(&[bound("gone", "late")], &[], &[]))
    }),
    ("provisioning:2004", || check_bound_claim("")),
    ("provisioning:2024", || check_waiting(&world_with_volumes(&[without_class("")], &[], &[]))),
    ("provisioning:2034", || check_bound_claim("unknown")),
    ("provisioning:2054", || {
        check_waiting(&world_with_volumes(&[without_class("unknown")], &[], &[]))
    }),
    ("scheduling:3662", || {
        let mut world = world_with_volumes(&[claim("v")], &[], &[]);
        let at_once = StorageClass { waits_for_consumer: false, ..class(&[]) };
        world.apply(WatchedObject::StorageClass(at_once));
        check_waiting(&world)
    }),
    ("scheduling:3684", || {
        let deleted = VolumeClaim { deleting: true, ..bound("v", "late") };
        check_waiting(&world_with_volumes(&[deleted], &[volume("v", &[])], &[]))
    }),
    ("scheduling:3707", || {
        let deleted = Volume { deleting: true, ..volume("v", &[]) };
        check_waiting(&world_with_volumes(&[bound("v", "late")], &[deleted], &[]))
    }),
    ("scheduling:3749", || {
        let lost = VolumeClaim { phase: "Lost".to_owned(), ..bound("v", "late") };
        check_waiting(&world_with_volumes(&[lost], &[volume("v", &[])], &[]))
    }),
    ("scheduling:3772", || {
        let binding =
            VolumeClaim { is_bound: false, phase: "Pending".to_owned(), ..bound("v", "late") };
        check_waiting(&world_with_volumes(&[binding], &[volume("v", &[])], &[]))?;
        check_placed(&world_with_volumes(&[bound("v", "late")], &[volume("v", &[])], &[]))
    }),
    // Claims of ephemeral volumes are handled like other claims once they exist.
    ("scheduling:3810", || {
        check_bound_claim("unknown")?;
        check_bound_claim("")
    }),
    ("scheduling:3862", || {
        check_waiting(&world_with_volumes(&[without_class("unknown")], &[], &[]))?;
        check_waiting(&world_with_volumes(&[without_class("")], &[], &[]))
    }),
];

fn without_class(storage_class: &str) -> VolumeClaim {
    VolumeClaim { storage_class: storage_class.to_owned(), ..claim("v") }
}

/// Checks that a bound claim needs no storage class.
fn check_bound_claim(storage_class: &str) -> Check {
    let volumes = [volume("v", &[&["zone in z3"]])];
    check_zone(&world_with_volumes(&[bound("v", storage_class)], &volumes, &[]), "z3")
}

#[test]
fn pods_with_unusable_volumes_are_not_placed() {
    run_cases(UNUSABLE);
}

const ZONES: &[Case] = &[
    ("provisioning:2103", check_class),
    ("provisioning:2116", check_class),
    ("scheduling:3204", check_class),
    ("provisioning:2138", check_other_class),
    ("provisioning:2150", check_other_class),
    ("provisioning:2171", || check_bound_claim("late")),
    ("provisioning:2182", || check_bound_claim("late")),
    ("provisioning:2317", check_other_volume),
    ("provisioning:2330", check_other_volume),
    ("provisioning:2203", check_local_volume),
    ("provisioning:2244", check_local_volume),
    ("provisioning:2290", || {
        let volumes = [Volume { node_affinity: vec![on_host("gone")], ..volume("v", &[]) }];
        check_waiting(&world_with_volumes(&[bound("v", "late")], &volumes, &[]))
    }),
    ("scheduling:3093", || {
        let mut local = local_volume();
        local.node_affinity.push(all(&["zone in unknown"]));
        check_waiting(&world_with_volumes(&[bound("v", "late")], &[local], &[]))
    }),
    ("provisioning:2353", || {
        let volumes = [volume("v", &[&["zone in z3"]])];
        let mut world = world_with_volumes(&[bound("v", "late")], &volumes, &[]);
        let pod = pod("p").volume("v").need(&["team in x"]).need(&["os in linux"]);
        world.add([pod.prefer(1, &["zone in z1"])]);
        check_zone(&world, "z3")
    }),
    ("scheduling:3047", || {
        let volumes = [volume("v", &[&["zone in z2 z3"]])];
        let mut world = world_with_volumes(&[bound("v", "late")], &volumes, &[]);
        check_zones(&world, &["z2", "z3", "z2|z3"])?;
        world.add([pod("p").volume("v").select("zone", "z3")]);
        check_zone(&world, "z3")
    }),
    ("scheduling:3118", || {
        let terms: &[&[&str]] = &[&["zone in z2"], &["zone in z3"]];
        let mut world = world_with_volumes(&[claim("v")], &[], terms);
        check_zones(&world, &["z2", "z3", "z2|z3"])?;
        world.add([pod("p").volume("v").select("zone", "z2")]);
        check_zone(&world, "z2")
    }),
    ("scheduling:3165", || {
        let volumes = [
            volume("v", &[&["zone in z1"], &["zone in z2"]]),
            volume("w", &[&["zone in z2"], &["zone in z3"]]),
        ];
        check_zone(
            &world_with_volumes(&[bound("v", "late"), bound("w", "late")], &volumes, &[]),
            "z2",
        )
    }),
    // The API server selects the default class and writes it into the claim.
    ("scheduling:3318", check_class),
    ("scheduling:3414", check_class),
];

fn check_class() -> Check {
    let world = world_with_volumes(&[claim("v")], &[], &[&["zone in z3"]]);
    check_zone(&world, "z3")
}

fn check_other_class() -> Check {
    let mut world = world_with_volumes(&[claim("v")], &[], &[&["zone in z1"]]);
    world.add([pod("p").volume("v").select("zone", "z3")]);
    check_waiting(&world)
}

fn check_other_volume() -> Check {
    let volumes = [volume("v", &[&["zone in z1"]])];
    let mut world = world_with_volumes(&[bound("v", "late")], &volumes, &[]);
    world.add([pod("p").volume("v").select("zone", "z3")]);
    check_waiting(&world)
}

fn on_host(name: &str) -> Requirements {
    Requirements::from_iter([(HOSTNAME, Requirement::is_in([name]))])
}

fn local_volume() -> Volume {
    Volume {
        is_local: true,
        driver: String::new(),
        node_affinity: vec![on_host("gone")],
        ..volume("v", &[])
    }
}

/// Checks that a pod with a local volume waits: only the node of the volume has its directory.
fn check_local_volume() -> Check {
    check_waiting(&world_with_volumes(&[bound("v", "late")], &[local_volume()], &[]))
}

fn check_zones(world: &World, zones: &[&str]) -> Check {
    let plan = world.plan();
    plan.placed(&["p", "q"], &[])?;
    let zone = plan.label("p", "zone")?;
    ensure(zones.contains(&zone.as_str()), || zone.clone())
}

#[test]
fn pods_are_placed_in_the_topology_of_their_volumes() {
    run_cases(ZONES);
}

/// A world with a node to which this number of volumes can be attached.
fn with_attach_limit(limit: u32) -> World {
    let mut world = World::new();
    world.apply(WatchedObject::StorageClass(class(&[])));
    world.unmanaged_node("other", &[("zone", "z1")], 100);
    world.apply(WatchedObject::CsiNode(CsiNode {
        name: "other".into(),
        limits: vec![(DRIVER.to_owned(), limit)],
    }));
    world
}

const LIMITS: &[Case] = &[
    ("scheduling:2903", || {
        let mut world = with_attach_limit(10);
        for at in 0..6 {
            let names = [format!("a{at}"), format!("b{at}")];
            let mut pod = pod(&format!("p{at}"));
            for name in &names {
                world.apply(WatchedObject::VolumeClaim(claim(name)));
                pod = pod.volume(name);
            }
            world.add([pod]);
        }
        let plan = world.plan();
        plan.all_placed()?;
        plan.makes(1)?;
        let on_it = |(_, pods): &(_, Vec<_>)| pods.len();
        let counts: Vec<usize> = plan.solution.placed.iter().map(on_it).collect();
        ensure(counts == [5], || format!("{counts:?} pods on the node"))
    }),
    ("scheduling:3009", || {
        let mut world = with_attach_limit(0);
        let nfs = Volume { driver: String::new(), ..volume("v", &[]) };
        world.apply(WatchedObject::Volume(nfs));
        world.apply(WatchedObject::VolumeClaim(bound("v", "")));
        world.add([pod("p").volume("v")]).plan().on("p", "other")
    }),
];

#[test]
fn attach_limits_of_a_node_limit_its_pods() {
    run_cases(LIMITS);
}

const SPREAD: &[Case] = &[("topology:3359", || {
    // The pod must run in the zone of its volume. The other zones still count as domains.
    let mut world = World::new();
    world.apply(WatchedObject::StorageClass(class(&[])));
    for zone in ["z1", "z2", "z3"] {
        let node = world.node("single-pod", zone);
        world.bind(pod(&format!("r{zone}")).label("app=a"), &node);
    }
    world.apply(WatchedObject::Volume(volume("v", &[&["zone in z1"]])));
    world.apply(WatchedObject::VolumeClaim(bound("v", "late")));
    let mut constraint = spread("zone", 1, "app=a");
    constraint.min_domains = 3;
    let pod = pod("p").label("app=a").volume("v").spread(constraint);
    world.add([pod]).settle().all_placed()?;
    let counts = world.counts("zone", "app=a");
    ensure(counts == [1, 1, 2], || format!("{counts:?}"))?;
    let zone = world.node_with("p").and_then(|node| node.labels.get("topology.kubernetes.io/zone"));
    ensure(zone.is_some_and(|zone| zone == "z1"), || format!("{zone:?}"))
})];

#[test]
fn volume_topology_does_not_change_the_counted_spread_domains() {
    run_cases(SPREAD);
}

/// Why: `docs/decisions/013-what-is-counted-differently.md`.
#[test]
fn volume_shared_by_pending_pods_counts_once_per_pod() {
    let mut world = with_attach_limit(10);
    world.apply(WatchedObject::VolumeClaim(claim("v")));
    let plan = world.add(pods(11, &pod("p").volume("v"))).plan();
    plan.makes(1).expect("ten pods on the existing node");
}
