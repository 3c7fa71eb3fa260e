//! `outrigger plan` and `explain` of a live cluster: they write nothing, and the predictions match.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use super::Plane;
use super::fixture::{
    Setup, World, client, free_port, instances, remove_pod, scale, strand, until, until_ready,
};
use super::lifecycle::{deploy_both, size};
use crate::binary::run;

/// Verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];

/// The consolidation delay in the test. The nodes have been quiet for longer when the plan is
/// computed.
const QUIET: Duration = Duration::from_secs(12);

/// The maximum ratio of the final cost to the planned one.
const NEARLY: f64 = 1.05;

/// Returns the exit code and stdout of `outrigger`.
fn asked(config: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let config = config.to_str().expect("a readable path");
    let output = run(&[arguments, &["--config", config]].concat(), "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{arguments:?}: {errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (output.status.code(), text)
}

/// Returns the configuration of the daemon with the kubeconfig of a user with read access, and with
/// a delay of consolidation.
fn for_observer(plane: &Plane, setup: &Setup) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    let text = fs::read_to_string(setup.path().join("outrigger.hcl")).expect("it was written");
    let observer = plane.kubeconfig_of("observer").expect("a kubeconfig");
    let path = |own: &Path| own.to_str().expect("a readable path").to_owned();
    let text = text.replace(&path(&plane.daemons()), &path(&observer));
    let after = format!("consolidate_after = \"{}s\"", QUIET.as_secs());
    let text = text.replace("consolidate_after = \"0s\"", &after);
    assert!(text.contains("observer") && text.contains(&after), "{text}");
    fs::write(dir.path().join("main.hcl"), text).expect("it is written");
    dir
}

/// Returns the verbs of the observer's requests, and the refused requests.
fn audited(plane: &Plane) -> (BTreeSet<String>, Vec<String>) {
    let log = fs::read_to_string(plane.logs_dir().join("audit.log")).expect("an audit log");
    let events = log.lines().map(|line| {
        let event: Value = serde_json::from_str(line).expect("an event");
        event
    });
    let (mut verbs, mut refused) = (BTreeSet::new(), Vec::new());
    for event in events.filter(|own| own["user"]["username"] == "observer") {
        verbs.insert(event["verb"].as_str().unwrap_or_default().to_owned());
        if event["responseStatus"]["code"] == 403 {
            refused.push(event["requestURI"].to_string());
        }
    }
    (verbs, refused)
}

/// Creates a cluster with half as many pods as its nodes had, and one more pending pod, without a
/// running daemon.
async fn halved(api: &Client, setup: &Setup, half: usize) -> World {
    let mut daemon = setup.daemon();
    until_ready(setup, 1).await;
    deploy_both(api).await;
    let calm = |world: &World| world.bound() == 4 * half && world.tainted_nodes() == 0;
    until(api, setup, 90, "all pods bound", calm).await;
    daemon.kill();
    scale(api, "small", half).await;
    scale(api, "large", half).await;
    let fewer = |world: &World| world.pods.len() == 2 * half;
    let world = until(api, setup, 60, "half of the pods", fewer).await;
    strand(api, "stranded").await;
    sleep(QUIET).await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn live_plan_writes_nothing_and_matches_the_outcome() {
    let name = "plane::plan::live_plan_writes_nothing_and_matches_the_outcome";
    let Some(plane) = Plane::start_or_skip_with(name, &["--audit"]) else {
        return;
    };
    let port = free_port();
    let setup = Setup::scaling_down(&plane.daemons(), port, "\"100%\"");
    let _cloud = setup.cloud(port);
    let api = client(plane.kubeconfig()).await;
    let half = size() / 2;
    let world = halved(&api, &setup, half).await;

    let config = for_observer(&plane, &setup);
    let made = instances(port).await;
    let plan = ["plan", "--json", "--detailed-exitcode", "--cluster", "bench"];
    let (code, text) = asked(config.path(), &plan);
    assert_eq!(code, Some(2), "{text}");
    let plan: Value = serde_json::from_str(&text).expect("JSON");
    let usd = |field: &str| plan[field].as_f64().expect("a number");
    let (before, after) = (usd("usd_per_h_before"), usd("usd_per_h_after"));
    assert!((before - world.cost()).abs() < 0.01, "{before}: {}", world.cost());
    let retired = plan["retire"].as_array().expect("a list");
    assert!(!retired.is_empty() && after < before, "{text}");
    assert_eq!(plan["unplaced"], serde_json::json!([]), "{text}");
    let (code, text) = asked(config.path(), &["plan"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("- disrupt ") && text.contains("Plan: "), "{text}");
    let (code, text) = asked(config.path(), &["explain", "pod", "default/stranded"]);
    assert_eq!(code, Some(0), "{text}");
    let node = retired[0]["node"].as_str().expect("a name");
    let (_, text) = asked(config.path(), &["explain", "node", node]);
    assert!(text.contains("would be disrupted now"), "{text}");
    let (verbs, refused) = audited(&plane);
    let reads: BTreeSet<String> = READS.map(str::to_owned).into();
    assert_eq!(verbs, reads, "the verbs of the observer");
    assert_eq!(refused, Vec::<String>::new());
    let tainted = World::read(&api).await.tainted_nodes();
    assert_eq!(tainted, world.tainted_nodes(), "a node was changed");
    assert_eq!(made, instances(port).await, "the instances changed");

    remove_pod(&api, "stranded").await;
    let _daemon = setup.daemon();
    let world = until(&api, &setup, 180, "the planned state", |world| {
        let whole = world.bound() == 2 * half && world.tainted_nodes() == 0;
        whole && world.cost() <= after * NEARLY
    })
    .await;
    println!("{before:.2} $/h, planned {after:.2}, became {:.2}", world.cost());
}
