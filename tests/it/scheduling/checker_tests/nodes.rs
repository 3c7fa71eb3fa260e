//! Constraints between a single node and its pods.

use outrigger::model::labels::{ATTACHABLE, HOSTNAME, Labels, NODE_NAME, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::state::snapshot::{ExistingNode, NodeRef, VolumeRequirements};
use std::sync::Arc;

use super::super::fixture::{GIB, World, label, pod, pods, port, taint, tolerates};
use super::{base_world, hostname, key, plan, requiring};

/// Checks whether the checker accepts the only pod on `n0`, or rejects it with these words.
fn check_on_n0(words: Option<&str>, edit: impl FnOnce(&mut Pod, &mut ExistingNode, &mut World)) {
    let mut world = base_world();
    world.pods.push(pod("p", 100, GIB));
    let (mut pod, mut room) = (world.pods[0].clone(), world.rooms[0].clone());
    edit(&mut pod, &mut room, &mut world);
    (world.pods[0], world.rooms[0]) = (pod, room);
    let plan = plan(&world).place_on("n0", &["p"]);
    match words {
        None => plan.assert_accepted(),
        Some(words) => plan.assert_rejected(words),
    }
}

#[test]
fn checker_rejects_a_node_without_the_requested_resources() {
    let short = Some("n0 has too little");
    check_on_n0(None, |pod, _, _| pod.requests.cpu_milli = 4000);
    check_on_n0(short, |pod, _, _| pod.requests.cpu_milli = 4001);
    check_on_n0(short, |pod, _, _| pod.requests.memory = 17 * GIB);
    check_on_n0(short, |pod, _, _| pod.requests.ephemeral_storage = 1);
    check_on_n0(short, |_, room, _| room.free.pods = 0);
    let gpu = |pod: &mut Pod| pod.requests.extended.insert("gpu".to_owned(), 1);
    check_on_n0(short, |pod, _, _| {
        gpu(pod);
    });
    check_on_n0(None, |pod, room, _| {
        gpu(pod);
        room.free.extended.insert("gpu".to_owned(), 1);
    });
    // The scheduler ignores resources without requests.
    check_on_n0(None, |_, room, _| room.free.ephemeral_storage = -1);
    let mut world = base_world();
    world.pods = pods("p", 2, 2500, GIB);
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_accepted();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected("cpu: 5000 of 4000");
}

#[test]
fn checker_rejects_a_node_without_the_required_labels() {
    let words = Some("requires other labels");
    let select = |pod: &mut Pod, zone| pod.node_selector = Labels::from([label(ZONE, zone)]);
    check_on_n0(None, |pod, _, _| select(pod, "a"));
    check_on_n0(words, |pod, _, _| select(pod, "b"));
    check_on_n0(words, |pod, _, _| {
        pod.node_selector = Labels::from([label("rack", "r1")]);
    });
    let zone = |values: &[&str]| requiring(ZONE, Requirement::is_in(values.iter().copied()));
    check_on_n0(None, |pod, _, _| {
        pod.node_affinity = vec![zone(&["c"]), zone(&["a", "b"])];
    });
    check_on_n0(words, |pod, _, _| {
        pod.node_affinity = vec![zone(&["c"]), zone(&["b"])];
    });
    check_on_n0(words, |pod, _, _| {
        pod.node_affinity = vec![zone(&["a"])];
        select(pod, "b");
    });
    check_on_n0(None, |pod, _, _| {
        pod.node_affinity = vec![requiring("rack", Requirement::not_in(["r1"]))];
    });
    check_on_n0(words, |pod, _, _| {
        pod.node_affinity = vec![requiring("rack", Requirement::exists())];
    });
    check_on_n0(words, |pod, _, _| {
        pod.node_affinity = vec![requiring(ZONE, Requirement::does_not_exist())];
    });
    check_on_n0(None, |pod, _, _| pod.node_affinity = vec![hostname("n0")]);
    for (wanted, words) in [
        (Requirement::is_in(["n0"]), None),
        (Requirement::is_in(["n1"]), words),
        (Requirement::not_in(["n0"]), words),
        (Requirement::not_in(["n1"]), None),
    ] {
        check_on_n0(words, |pod, _, _| {
            pod.node_affinity = vec![requiring(NODE_NAME, wanted)];
        });
    }
}

#[test]
fn checker_rejects_an_untolerated_taint() {
    let words = Some("does not tolerate");
    let valued = |effect| Taint { value: "5".to_owned(), ..taint("x", effect) };
    let with = |operator, value: &str, effect| Toleration {
        operator,
        value: value.to_owned(),
        effect,
        ..tolerates("x")
    };
    use TolerationOperator::{Equal, Exists, Gt, Lt};
    for effect in [Effect::NoSchedule, Effect::NoExecute] {
        check_on_n0(words, |_, room, _| room.taints = vec![valued(effect)]);
        for (toleration, words) in [
            (tolerates("x"), None),
            (tolerates("y"), words),
            (tolerates(""), None),
            (with(Exists, "", Some(effect)), None),
            (with(Exists, "", Some(Effect::PreferNoSchedule)), words),
            (with(Equal, "5", None), None),
            (with(Equal, "", None), words),
            (with(Gt, "4", None), None),
            (with(Gt, "5", None), words),
            (with(Lt, "5", None), words),
            (with(Lt, "6", None), None),
            (with(Lt, "many", None), words),
            (with(Lt, "06", None), words),
            (with(Gt, "+4", None), words),
            (with(Gt, "-0", None), words),
            (with(Gt, "-1", None), None),
        ] {
            check_on_n0(words, |pod, room, _| {
                pod.tolerations = vec![toleration];
                room.taints = vec![valued(effect)];
            });
        }
    }
    check_on_n0(None, |_, room, _| {
        room.taints = vec![valued(Effect::PreferNoSchedule)];
    });
    check_on_n0(words, |pod, room, _| {
        pod.tolerations = vec![tolerates("x")];
        room.taints = vec![valued(Effect::NoSchedule), taint("y", Effect::NoExecute)];
    });
}

#[test]
fn checker_rejects_a_host_port_conflict() {
    let words = Some("host port 80 twice");
    let at = |protocol: &str, address: &str| (protocol.to_owned(), address.to_owned(), 80);
    for (taken, wanted, words) in [
        (at("TCP", ""), at("TCP", ""), words),
        (at("TCP", ""), at("TCP", "10.0.0.1"), words),
        (at("TCP", "10.0.0.1"), at("TCP", "0.0.0.0"), words),
        (at("TCP", "10.0.0.1"), at("TCP", "10.0.0.1"), words),
        (at("TCP", "10.0.0.1"), at("TCP", "10.0.0.2"), None),
        (at("TCP", ""), at("UDP", ""), None),
        (port(81), at("TCP", ""), None),
    ] {
        check_on_n0(words, |pod, room, _| {
            room.host_ports.insert(taken);
            pod.host_ports.insert(wanted);
        });
    }
    let mut world = base_world();
    world.pods = pods("p", 2, 100, GIB);
    for pod in &mut world.pods {
        pod.host_ports.insert(port(80));
    }
    plan(&world).place_on("n0", &["p0"]).place_on("n1", &["p1"]).assert_accepted();
    plan(&world).place_on("n0", &["p0", "p1"]).assert_rejected("port 80 twice");
}

#[test]
fn checker_rejects_unusable_volumes_and_exceeded_attach_limits() {
    let zone = |zone: &str| requiring(ZONE, Requirement::is_in([zone]));
    let disks = format!("{ATTACHABLE}disk");
    let mounts = |alternatives: &[&str]| VolumeRequirements {
        alternatives: alternatives.iter().map(|name| zone(name)).collect(),
        ..VolumeRequirements::default()
    };
    let words = Some("cannot use its volumes");
    for (alternatives, words) in
        [(&[][..], None), (&["a"], None), (&["b"], words), (&["b", "a"], None)]
    {
        check_on_n0(words, |_, _, world| {
            world.mounts.insert(key("p"), mounts(alternatives));
        });
    }
    check_on_n0(words, |_, _, world| {
        let fault = Some("it is lost".to_owned());
        let lost = VolumeRequirements { fault, ..mounts(&[]) };
        world.mounts.insert(key("p"), lost);
    });
    for (limit, words) in [
        (None, None),
        (Some(2), None),
        (Some(1), Some("too little attachable-volumes-csi-disk: 2 of 1")),
    ] {
        check_on_n0(words, |_, room, world| {
            room.free.extended.extend(limit.map(|limit| (disks.clone(), limit)));
            let mut volumes = mounts(&[]);
            volumes.attached.insert(disks.clone(), 2);
            world.mounts.insert(key("p"), volumes);
        });
    }
}

#[test]
fn checker_rejects_pods_on_a_closed_node() {
    check_on_n0(Some("n0 accepts no pods"), |_, room, _| room.open = false);
}

#[test]
fn every_possible_zone_of_a_node_must_suit_its_pods() {
    let mut world = base_world();
    world.pods = vec![pod("p", 100, GIB)];
    world.pods[0].node_selector = Labels::from([label(ZONE, "a")]);
    for (zones, good) in [(&["a"][..], true), (&["a", "b"], false)] {
        world.rooms[0].labels = requiring(ZONE, Requirement::is_in(zones.iter().copied())).into();
        Arc::make_mut(&mut world.rooms[0].labels).add(HOSTNAME, Requirement::is_in(["n0"]));
        assert_eq!(world.rooms[0].host, NodeRef::Node("n0".into()));
        let plan = plan(&world).place_on("n0", &["p"]);
        if good {
            plan.assert_accepted();
        } else {
            plan.assert_rejected("requires other labels");
        }
    }
}
