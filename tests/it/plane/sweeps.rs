//! Scheduled and requested sweeps on a real control plane, in real time: nodes are disrupted from
//! the minute of their sweep, and a dry run writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::api::core::v1::Node;
use outrigger::model::labels::POOL;
use serde_json::{Value, json};

use super::Plane;
use super::audit::{changes_of, first_disruptions};
use super::fixture::{
    Setup, World, client, clock, command, create, free_port, now, patience, sweep, until,
    until_ready,
};

/// A schedule that does not fire during the test.
const YEARLY: &str = "0 0 1 1 *";

/// The requirement of pools whose nodes drift when the zone is replaced.
const ZONE_A: &str = "  require \"topology.kubernetes.io/zone\" { in = [\"test-zone-a\"] }\n";

/// The window in which disruption of one pool is denied.
const CLOSED: &str =
    "    window {\n      action = \"deny\"\n      during = schedule.closed\n    }\n";

/// The pools, each with one pod on one node.
const POOLS: [&str; 3] = ["closed", "drifting", "expiring"];

/// Returns the schedule of one minute of each day.
fn daily_at(at: Timestamp) -> String {
    at.strftime("%M %H * * *").to_string()
}

/// Returns the start of the minute that follows after at least this time.
fn minute_after(time: Duration) -> Timestamp {
    let later = now() + time;
    let minute = later.round(Unit::Minute).expect("a minute");
    if minute < later { minute + SignedDuration::from_mins(1) } else { minute }
}

/// Returns a set-up whose nodes drift if their zone is replaced. A window denies
/// disruption in the pool `closed` all day.
fn setup(plane: &Plane, cloud: u16) -> Setup {
    let kubeconfig = plane.daemons();
    let own = Setup::new(&[("bench", kubeconfig.as_path())], Some(cloud));
    let file = own.path().join("outrigger.hcl");
    let mut text = fs::read_to_string(&file).expect("it was written");
    let general = text.find("pool \"general\"").expect("the last block");
    text.truncate(general);
    for kind in ["drift", "expiry"] {
        text += &format!("sweep \"{kind}\" {{ schedule = \"{YEARLY}\" }}\n");
    }
    text += "schedule \"closed\" {\n  start = \"0 0 * * *\"\n  duration = \"24h\"\n}\n";
    for pool in POOLS {
        let (expires, window) = match pool {
            "expiring" => ("20s", ""),
            "closed" => ("never", CLOSED),
            _ => ("never", ""),
        };
        let zones = if pool == "expiring" { "" } else { ZONE_A };
        text += &format!(
            "pool \"{pool}\" {{\n{zones}  expire_after = \"{expires}\"\n  \
             require \"karpenter.sh/capacity-type\" {{ in = [\"on-demand\"] }}\n  \
             require \"kubernetes.io/arch\" {{ in = [\"amd64\"] }}\n  disruption {{\n    \
             consolidation = \"empty\"\n    consolidate_after = \"5s\"\n    \
             budget {{ nodes = \"100%\" }}\n{window}  }}\n}}\n",
        );
    }
    fs::write(file, text).expect("the configuration is written");
    own
}

/// Returns the outcomes of a requested sweep by pool.
fn swept(setup: &Setup, arguments: &[&str]) -> Vec<(String, String)> {
    let swept = sweep(setup.path(), &[arguments, &["--cluster", "bench"]].concat());
    swept.unwrap_or_else(|why| panic!("{arguments:?}: {why}")).nodes
}

/// Returns what `outrigger status` shows as found by the last sweep of a kind: disrupted, blocked
/// and observed.
fn found(setup: &Setup, kind: &str) -> Option<[u64; 3]> {
    let status = command(setup.path(), &["status", "--json"]).expect("a status");
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let sweeps = status["clusters"][0]["status"]["sweeps"].as_array().cloned().unwrap_or_default();
    let sweep = sweeps.into_iter().find(|sweep| sweep["kind"] == kind)?;
    assert_eq!(sweep["overdue"], false, "{sweep}");
    let count = |key: &str| sweep["found"][key].as_u64();
    Some([count("disrupted")?, count("blocked")?, count("observed")?])
}

fn pool_of(node: &Node) -> Option<&String> {
    node.metadata.labels.as_ref()?.get(POOL)
}

fn nodes_by_pool(world: &World) -> BTreeMap<String, String> {
    let named = |node: &Node| Some((pool_of(node)?.clone(), node.metadata.name.clone()?));
    world.nodes.iter().filter_map(named).collect()
}

/// Waits until a condition holds, at most for the [`patience`] of these seconds.
async fn wait_for(what: &str, seconds: u64, setup: &Setup, is_true: impl Fn() -> bool) {
    let start = clock();
    while !is_true() {
        assert!(start.elapsed() < patience(seconds), "{what}: not in time\n{}", setup.tail());
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Whether each pool has one node, and each pod is bound.
fn is_settled(world: &World) -> bool {
    let pools: BTreeSet<&String> = world.nodes.iter().filter_map(pool_of).collect();
    let counts = [world.bound(), world.nodes.len(), pools.len()];
    counts == [POOLS.len(); 3] && world.tainted_nodes() == 0
}

fn outcome(pool: &str, outcome: &str) -> (String, String) {
    (pool.to_owned(), outcome.to_owned())
}

/// Checks that dry runs find the nodes that are due, and write nothing.
async fn check_dry_runs(plane: &Plane, setup: &Setup) {
    let due = |kind| move || swept(setup, &[kind, "--dry-run"]).len();
    wait_for("drift", 20, setup, || due("drift")() == 2).await;
    wait_for("expiry", 30, setup, || due("expiry")() == 1).await;
    let since = now();
    let drifted = [outcome("closed", "blocked"), outcome("drifting", "observed")];
    assert_eq!(swept(setup, &["drift", "--dry-run"]), drifted);
    assert_eq!(swept(setup, &["drift", "--dry-run", "--pool", "drifting"]), drifted[1..]);
    let expired = [outcome("expiring", "observed")];
    assert_eq!(swept(setup, &["expiry", "--dry-run"]), expired);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(changes_of(plane, "outrigger", since), [""; 0], "{}", setup.tail());
}

/// Checks that nodes are disrupted from the minute of their sweep, or from the end of the window
/// that denies it.
async fn check_scheduled_sweeps(plane: &Plane, setup: &Setup, nodes: &BTreeMap<String, String>) {
    // Two reloads precede it.
    let sweep_at = minute_after(patience(10));
    let opens_at = sweep_at + SignedDuration::from_mins(1);
    let start = daily_at(opens_at - SignedDuration::from_mins(10));
    setup.reload("0 0 * * *\"\n  duration = \"24h\"", &format!("{start}\"\n  duration = \"10m\""));
    setup.reload(YEARLY, &daily_at(sweep_at));
    let counts = || (found(setup, "drift"), found(setup, "expiry"));
    let expected = (Some([1, 1, 0]), Some([1, 0, 0]));
    wait_for("the sweeps", 120, setup, || counts() == expected).await;
    let disrupted = || {
        let first = first_disruptions(plane);
        POOLS.map(|pool| first.get(&nodes[pool]).copied())
    };
    wait_for("all are disrupted", 90, setup, || disrupted().iter().all(Option::is_some)).await;
    let [closed, drifted, expired] = disrupted().map(|at| at.expect("it was disrupted"));
    println!("swept at {sweep_at}: drifted {drifted}, expired {expired}, closed {closed}");
    for (at, from) in [(drifted, sweep_at), (expired, sweep_at), (closed, opens_at)] {
        let until = from + SignedDuration::try_from(patience(15)).expect("seconds");
        assert!((from..until).contains(&at), "{at} is not in {from}..{until}\n{}", setup.tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_disrupted_from_the_minute_of_their_sweep() {
    let name = "plane::sweeps::nodes_are_disrupted_from_the_minute_of_their_sweep";
    let Some(plane) = Plane::start_or_skip_with(name, &["--audit"]) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let cloud = free_port();
    let setup = setup(&plane, cloud);
    let _cloud = setup.cloud(cloud);
    let _daemon = setup.daemon();
    until_ready(&setup, 1).await;
    for pool in POOLS {
        let rules = json!({"nodeSelector": {POOL: pool}});
        create(&api, pool, 1, ("900m", "1Gi"), rules).await;
    }
    let world = until(&api, &setup, 60, "a node in each pool", is_settled).await;
    let before = nodes_by_pool(&world);

    setup.reload("test-zone-a", "test-zone-b");
    check_dry_runs(&plane, &setup).await;
    check_scheduled_sweeps(&plane, &setup, &before).await;
    until(&api, &setup, 60, "the nodes are replaced", |world| {
        let now: BTreeSet<String> = nodes_by_pool(world).into_values().collect();
        is_settled(world) && before.values().all(|node| !now.contains(node))
    })
    .await;

    // A requested sweep of one pool disrupts its node now, and no other.
    setup.reload("test-zone-b", "test-zone-c");
    let drifted = || swept(&setup, &["drift", "--dry-run"]).len();
    wait_for("drift", 20, &setup, || drifted() == 2).await;
    let count = first_disruptions(&plane).len();
    let found = swept(&setup, &["drift", "--pool", "drifting"]);
    assert_eq!(found, [outcome("drifting", "disrupted")]);
    wait_for("the taint", 20, &setup, || first_disruptions(&plane).len() > count).await;
    until(&api, &setup, 60, "the node is replaced", is_settled).await;
    assert_eq!(first_disruptions(&plane).len(), count + 1, "{}", setup.tail());
}
