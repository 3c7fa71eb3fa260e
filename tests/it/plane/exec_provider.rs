//! The full lifecycle with a user-supplied program as the provider, on a real control plane.

use std::collections::BTreeSet;
use std::fs;

use super::fixture::{Setup, World, client, clock, plane, scale, until, until_ready};
use super::lifecycle::{bytes_mb, deploy_both, provider_id, size};

/// Checks that no claim ever had two instances. Returns the ids of the live ones.
fn live_of_single(setup: &Setup) -> BTreeSet<String> {
    let all = setup.journal();
    let claims: BTreeSet<String> = all.iter().map(|own| own["claim"].to_string()).collect();
    assert_eq!(claims.len(), all.len(), "claims with two instances");
    let live = all.iter().filter(|own| own["ended"].is_null());
    let ids = live.map(|own| own["id"].as_str().expect("an id").to_owned());
    ids.collect()
}

fn instances_of(world: &World) -> BTreeSet<String> {
    let ids = world.nodes.iter().map(provider_id);
    ids.map(|id| id.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_nodes_from_an_exec_program_that_exits_once() {
    let name = "plane::exec_provider::pods_get_nodes_from_an_exec_program_that_exits_once";
    let Some(plane) = plane(name) else { return };
    let marks = tempfile::TempDir::new().expect("a directory");
    let once = marks.path().join("once");
    let once = once.to_str().expect("a readable path");
    // The first run of the program exits after the first launch and before its response.
    let faults = ["--fault", "die-launch", "--once", once];
    let setup = Setup::with_program(&plane.daemons(), &faults);
    let mut daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    let start = clock();
    deploy_both(&api).await;
    let pods = 2 * size();
    let quiet = |world: &World| world.bound() == pods && world.empty_nodes() == 0;
    let world = until(&api, &setup, 120, "all pods bound", quiet).await;
    let bound = start.elapsed();
    let (cpu, peak) = daemon.figures();
    println!(
        "{pods} pods bound after {:.1} s on {} nodes for {:.2} $/h; daemon {cpu:.2} s of cpu, \
         {:.1} MB peak",
        bound.as_secs_f64(),
        world.nodes.len(),
        world.cost(),
        bytes_mb(peak),
    );
    assert!(fs::exists(once).is_ok_and(|it| it), "the program has exited");
    assert_eq!(setup.told("exec program exited").len(), 1);
    assert_eq!(live_of_single(&setup), instances_of(&world));

    // The next daemon and the next program know the instances.
    scale(&api, "large", 0).await;
    daemon.kill();
    let _daemon = setup.daemon();
    until(&api, &setup, 180, "half of the pods are gone", |world| {
        world.bound() == size() && world.empty_nodes() == 0
    })
    .await;

    // A reload that would disrupt all nodes reports that they are kept.
    let (amd, arm) = ("in = [\"amd64\"]", "in = [\"arm64\"]");
    setup.reload("pool \"general\"", "fleet { max_disrupted_per_reload = 0 }\npool \"general\"");
    let (held, mut printed) = ("nodes, more than max_disrupted_per_reload", String::new());
    // Nodes were just removed: until the cluster is in sync again, the reload makes no estimate.
    for from in [amd, arm, arm, arm] {
        printed = setup.reload(from, arm);
        if printed.contains(held) {
            break;
        }
    }
    assert!(printed.contains(held), "{printed}");
    let printed = setup.reload(arm, amd);
    assert!(!printed.contains("would disrupt"), "{printed}");

    scale(&api, "small", 0).await;
    let gone = |world: &World| world.nodes.is_empty();
    until(&api, &setup, 180, "every node gone", gone).await;
    assert_eq!(live_of_single(&setup), BTreeSet::new(), "no instance remains");
}
