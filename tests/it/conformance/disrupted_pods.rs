//! Pods of disrupted nodes need a new node, unless they run until the node terminates.

use outrigger::model::claim::ClaimPhase;
use outrigger::model::id::ObjectKey;
use outrigger::model::pdb::Pdb;
use outrigger::model::pod::Pod;
use outrigger::model::pool::Reason;
use outrigger::model::requirement::Requirement;
use outrigger::model::selector::Selector;
use outrigger::model::watched_object::WatchedObject;

use super::fixture::{Check, World, ensure};
use super::notation::{With, pod, pods};
use super::run::{Case, run_cases};

/// A world with a draining node that runs these pods.
fn draining(running: impl IntoIterator<Item = Pod>) -> World {
    let mut world = World::new();
    let node = world.node("default", "z1");
    for pod in running {
        world.bind(pod, &node);
    }
    let claim = world.claim(&node);
    (claim.phase, claim.leaving) = (ClaimPhase::Draining, Some(Reason::Expired));
    world
}

fn check_planned(world: &World, expect: bool) -> Check {
    let plan = world.plan();
    let places = plan.solution.claims.iter().map(|claim| claim.pods.len());
    let count: usize = places.sum();
    ensure((count > 0) == expect, || format!("{count} pods get new nodes"))
}

fn deleting(pod: Pod) -> Pod {
    pod.with(|pod| pod.deleting = Some(jiff::Timestamp::UNIX_EPOCH))
}

/// A PodDisruptionBudget of all pods with `app=a` that allows this number of disruptions.
fn budget(name: &str, disruptions_allowed: i64) -> WatchedObject {
    WatchedObject::Pdb(Pdb {
        key: ObjectKey::new("default", name),
        selector: Some(Selector::new([("app".to_owned(), Requirement::is_in(["a"]))])),
        disruptions_allowed,
        ..Pdb::default()
    })
}

const DRAINING: &[Case] = &[
    ("provisioning:492", || {
        let pod = pod("p").cpu(100).owner("ReplicaSet", "web");
        let world = draining(pods(3, &pod));
        let plan = world.plan();
        plan.makes(1)?;
        plan.together(&["p00", "p01", "p02"])
    }),
    ("scheduling:4061", || {
        let pod = pod("p").cpu(100);
        check_planned(&draining([pod.clone()]), false)?;
        check_planned(&draining([pod.owner("Job", "sum")]), true)
    }),
    ("scheduling:4087", || check_planned(&draining([deleting(pod("p").cpu(100))]), false)),
    ("scheduling:4114", || {
        check_planned(&draining([pod("p").cpu(100).owner("DaemonSet", "agent")]), false)
    }),
    ("scheduling:4171", || {
        let pod = pod("p").cpu(100).owner("ReplicaSet", "web");
        check_planned(&draining([deleting(pod)]), false)
    }),
    ("scheduling:4215", || {
        let pod = pod("p").cpu(100).owner("StatefulSet", "db");
        check_planned(&draining([deleting(pod)]), true)
    }),
    ("scheduling:4262", || {
        let covered = || pod("p").cpu(100).label("app=a");
        let mut world = draining([covered()]);
        world.apply(budget("none", 0));
        check_planned(&world, false)?;
        // The API refuses to evict a pod with two budgets, even if both allow it.
        let mut world = draining([covered()]);
        world.apply(budget("one", 1));
        world.apply(budget("other", 1));
        check_planned(&world, false)
    }),
];

#[test]
fn only_reschedulable_pods_of_a_draining_node_get_capacity() {
    run_cases(DRAINING);
}
