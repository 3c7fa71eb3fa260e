//! Volume topology, and volume limits of nodes.

use outrigger::model::id::ObjectKey;
use outrigger::model::labels::HOSTNAME;
use outrigger::model::requirement::{Requirement, Requirements};
use outrigger::model::watched_object::{CsiNode, StorageClass, Volume, VolumeClaim, WatchedObject};

use super::fixture::{Check, World, ensure};
use super::notation::{With, all, pod, pods, spread};
use super::run::{Case, judge};

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
fn mounting(claims: &[VolumeClaim], volumes: &[Volume], zones: &[&[&str]]) -> World {
    let mut world = World::new();
    world.apply(WatchedObject::StorageClass(class(zones)));
    for volume in volumes {
        world.apply(WatchedObject::Volume(volume.clone()));
    }
    let mut own = pod("p");
    for claim in claims {
        own = own.volume(&claim.key.name);
        world.apply(WatchedObject::VolumeClaim(claim.clone()));
    }
    world.add([own, pod("q")]);
    world
}

fn in_zone(world: &World, zone: &str) -> Check {
    let plan = world.plan();
    plan.placed(&["p", "q"], &[])?;
    plan.has("p", "zone", zone)
}

fn anywhere(world: &World) -> Check {
    world.plan().placed(&["p", "q"], &[])
}

/// Checks that the pod `p` is not placed, and that `q` is placed all the same.
fn waits(world: &World) -> Check {
    world.plan().placed(&["q"], &["p"])
}

const FAULTS: &[Case] = &[
    ("provisioning:1995", || {
        let mut world = World::new();
        world.add([pod("p").volume("none"), pod("q")]);
        waits(&world)
    }),
    ("provisioning:2066", || {
        let mut world = World::new();
        world.add([pod("p").volume("none"), pod("q")]);
        waits(&world)
    }),
    ("provisioning:2077", || waits(&mounting(&[without_class("unknown")], &[], &[]))),
    ("provisioning:2090", || waits(&mounting(&[bound("gone", "late")], &[], &[]))),
    ("provisioning:2004", || in_its_zone("")),
    ("provisioning:2024", || waits(&mounting(&[without_class("")], &[], &[]))),
    ("provisioning:2034", || in_its_zone("unknown")),
    ("provisioning:2054", || waits(&mounting(&[without_class("unknown")], &[], &[]))),
    ("scheduling:3662", || {
        let mut world = mounting(&[claim("v")], &[], &[]);
        let at_once = StorageClass { waits_for_consumer: false, ..class(&[]) };
        world.apply(WatchedObject::StorageClass(at_once));
        waits(&world)
    }),
    ("scheduling:3684", || {
        let leaving = VolumeClaim { deleting: true, ..bound("v", "late") };
        waits(&mounting(&[leaving], &[volume("v", &[])], &[]))
    }),
    ("scheduling:3707", || {
        let leaving = Volume { deleting: true, ..volume("v", &[]) };
        waits(&mounting(&[bound("v", "late")], &[leaving], &[]))
    }),
    ("scheduling:3749", || {
        let lost = VolumeClaim { phase: "Lost".to_owned(), ..bound("v", "late") };
        waits(&mounting(&[lost], &[volume("v", &[])], &[]))
    }),
    ("scheduling:3772", || {
        let binding =
            VolumeClaim { is_bound: false, phase: "Pending".to_owned(), ..bound("v", "late") };
        waits(&mounting(&[binding], &[volume("v", &[])], &[]))?;
        anywhere(&mounting(&[bound("v", "late")], &[volume("v", &[])], &[]))
    }),
    // Claims of ephemeral volumes are handled like other claims once they exist.
    ("scheduling:3810", || {
        in_its_zone("unknown")?;
        in_its_zone("")
    }),
    ("scheduling:3862", || {
        waits(&mounting(&[without_class("unknown")], &[], &[]))?;
        waits(&mounting(&[without_class("")], &[], &[]))
    }),
];

fn without_class(storage_class: &str) -> VolumeClaim {
    VolumeClaim { storage_class: storage_class.to_owned(), ..claim("v") }
}

/// Checks that a bound claim needs no storage class.
fn in_its_zone(storage_class: &str) -> Check {
    let volumes = [volume("v", &[&["zone in z3"]])];
    in_zone(&mounting(&[bound("v", storage_class)], &volumes, &[]), "z3")
}

#[test]
fn pods_wait_for_volumes_that_cannot_be_used() {
    judge(FAULTS);
}

const ZONES: &[Case] = &[
    ("provisioning:2103", of_class),
    ("provisioning:2116", of_class),
    ("scheduling:3204", of_class),
    ("provisioning:2138", of_another_class),
    ("provisioning:2150", of_another_class),
    ("provisioning:2171", || in_its_zone("late")),
    ("provisioning:2182", || in_its_zone("late")),
    ("provisioning:2317", of_another_volume),
    ("provisioning:2330", of_another_volume),
    ("provisioning:2203", local),
    ("provisioning:2244", local),
    ("provisioning:2290", || {
        let volumes = [Volume { node_affinity: vec![on_host("gone")], ..volume("v", &[]) }];
        waits(&mounting(&[bound("v", "late")], &volumes, &[]))
    }),
    ("scheduling:3093", || {
        let mut own = local_volume();
        own.node_affinity.push(all(&["zone in unknown"]));
        waits(&mounting(&[bound("v", "late")], &[own], &[]))
    }),
    ("provisioning:2353", || {
        let volumes = [volume("v", &[&["zone in z3"]])];
        let mut world = mounting(&[bound("v", "late")], &volumes, &[]);
        let own = pod("p").volume("v").need(&["team in x"]).need(&["os in linux"]);
        world.add([own.wish(1, &["zone in z1"])]);
        in_zone(&world, "z3")
    }),
    ("scheduling:3047", || {
        let volumes = [volume("v", &[&["zone in z2 z3"]])];
        let mut world = mounting(&[bound("v", "late")], &volumes, &[]);
        in_one_of(&world, &["z2", "z3", "z2|z3"])?;
        world.add([pod("p").volume("v").select("zone", "z3")]);
        in_zone(&world, "z3")
    }),
    ("scheduling:3118", || {
        let terms: &[&[&str]] = &[&["zone in z2"], &["zone in z3"]];
        let mut world = mounting(&[claim("v")], &[], terms);
        in_one_of(&world, &["z2", "z3", "z2|z3"])?;
        world.add([pod("p").volume("v").select("zone", "z2")]);
        in_zone(&world, "z2")
    }),
    ("scheduling:3165", || {
        let volumes = [
            volume("v", &[&["zone in z1"], &["zone in z2"]]),
            volume("w", &[&["zone in z2"], &["zone in z3"]]),
        ];
        in_zone(&mounting(&[bound("v", "late"), bound("w", "late")], &volumes, &[]), "z2")
    }),
    // The API server selects the default class and writes it into the claim.
    ("scheduling:3318", of_class),
    ("scheduling:3414", of_class),
];

fn of_class() -> Check {
    let world = mounting(&[claim("v")], &[], &[&["zone in z3"]]);
    in_zone(&world, "z3")
}

fn of_another_class() -> Check {
    let mut world = mounting(&[claim("v")], &[], &[&["zone in z1"]]);
    world.add([pod("p").volume("v").select("zone", "z3")]);
    waits(&world)
}

fn of_another_volume() -> Check {
    let volumes = [volume("v", &[&["zone in z1"]])];
    let mut world = mounting(&[bound("v", "late")], &volumes, &[]);
    world.add([pod("p").volume("v").select("zone", "z3")]);
    waits(&world)
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
fn local() -> Check {
    waits(&mounting(&[bound("v", "late")], &[local_volume()], &[]))
}

fn in_one_of(world: &World, zones: &[&str]) -> Check {
    let plan = world.plan();
    plan.placed(&["p", "q"], &[])?;
    let zone = plan.label("p", "zone")?;
    ensure(zones.contains(&zone.as_str()), || zone.clone())
}

#[test]
fn pods_go_where_their_volumes_are() {
    judge(ZONES);
}

/// A world with a node to which this number of volumes can be attached.
fn attaching(limit: u32) -> World {
    let mut world = World::new();
    world.apply(WatchedObject::StorageClass(class(&[])));
    world.foreign("other", &[("zone", "z1")], 100);
    world.apply(WatchedObject::CsiNode(CsiNode {
        name: "other".into(),
        limits: vec![(DRIVER.to_owned(), limit)],
    }));
    world
}

const LIMITS: &[Case] = &[
    ("scheduling:2903", || {
        let mut world = attaching(10);
        for at in 0..6 {
            let names = [format!("a{at}"), format!("b{at}")];
            let mut own = pod(&format!("p{at}"));
            for name in &names {
                world.apply(WatchedObject::VolumeClaim(claim(name)));
                own = own.volume(name);
            }
            world.add([own]);
        }
        let plan = world.plan();
        plan.all_placed()?;
        plan.makes(1)?;
        let on_it = |(_, pods): &(_, Vec<_>)| pods.len();
        let counts: Vec<usize> = plan.solution.placed.iter().map(on_it).collect();
        ensure(counts == [5], || format!("{counts:?} pods on the node"))
    }),
    ("scheduling:3009", || {
        let mut world = attaching(0);
        let nfs = Volume { driver: String::new(), ..volume("v", &[]) };
        world.apply(WatchedObject::Volume(nfs));
        world.apply(WatchedObject::VolumeClaim(bound("v", "")));
        world.add([pod("p").volume("v")]).plan().on("p", "other")
    }),
];

#[test]
fn a_node_takes_no_more_volumes_than_its_drivers_attach() {
    judge(LIMITS);
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
    let own = pod("p").label("app=a").volume("v").spread(constraint);
    world.add([own]).settle().all_placed()?;
    let counts = world.counts("zone", "app=a");
    ensure(counts == [1, 1, 2], || format!("{counts:?}"))?;
    let zone = world.node_with("p").and_then(|node| node.labels.get("topology.kubernetes.io/zone"));
    ensure(zone.is_some_and(|zone| zone == "z1"), || format!("{zone:?}"))
})];

#[test]
fn a_volume_narrows_where_a_pod_goes_and_not_what_is_counted() {
    judge(SPREAD);
}

/// Why: `docs/decisions/013-what-is-counted-differently.md`.
#[test]
fn a_volume_that_waiting_pods_share_counts_for_each() {
    let mut world = attaching(10);
    world.apply(WatchedObject::VolumeClaim(claim("v")));
    let plan = world.add(pods(11, &pod("p").volume("v"))).plan();
    plan.makes(1).expect("ten pods on the existing node");
}
