//! `outrigger sweep` on EC2: a dry run writes nothing to AWS or to the cluster, a follower refuses
//! the request, and a sweep replaces the nodes that it found.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::cases::ground;
use super::kubelets::{Kubelets, Sizes};
use super::standby::{Host, changes, live};
use crate::plane::audit::changes_of;
use crate::plane::fixture::{self, World, clock, command, now, patience};

/// Each pod fills a node.
const PODS: usize = 3;

/// No sweep runs by itself during the test.
const SWEEP: &str = "sweep \"drift\" { schedule = \"0 0 1 1 *\" }\n";

const KINDS: [&str; 5] = ["drift", "expiry", "consolidation", "repair", "orphans"];

/// Runs a sweep on the daemon of a host. Returns the number of nodes: disrupted, blocked and
/// observed. Fails with the error message.
fn try_sweep(host: &Host, kind: &str, more: &[&str]) -> Result<[u64; 3], String> {
    let swept = fixture::sweep(host.dir.path(), &[&[kind, "--cluster", "tests"], more].concat());
    swept.map(|swept| swept.counts)
}

fn sweep(host: &Host, kind: &str, more: &[&str]) -> [u64; 3] {
    let counts = try_sweep(host, kind, more);
    counts.unwrap_or_else(|why| panic!("{kind} {more:?}: {why}\n{}", host.tail()))
}

/// Changes the disks of the node class, so that all nodes drift.
fn drift(host: &Host) {
    let file = host.dir.path().join("outrigger.hcl");
    let text = fs::read_to_string(&file).expect("it was written");
    let disk = "volume_size = \"50Gi\"";
    assert!(text.contains(disk), "{text}");
    let text = text.replace(disk, "volume_size = \"60Gi\"");
    fs::write(file, text).expect("the configuration is written");
    let reloaded = command(host.dir.path(), &["reload", "--wait"]);
    reloaded.expect("it is reloaded");
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_of_a_sweep_writes_nothing_and_a_sweep_replaces_what_it_found() {
    let test = "aws::sweeps::dry_run_of_a_sweep_writes_nothing_and_a_sweep_replaces_what_it_found";
    let Some((plane, api, aws)) = ground(test, &["--audit"], &[]).await else {
        return;
    };
    let _machines = Kubelets::start(Arc::clone(&aws), api.clone(), Sizes::new());
    let leader = Host::start(&aws, &plane, "host-a", SWEEP);
    leader.until_it_leads(&api).await;
    let follower = Host::start(&aws, &plane, "host-b", SWEEP);
    fixture::deploy(&api, "web", PODS, "1500m", "1Gi").await;
    let settled = |world: &World| {
        world.bound() == PODS && world.nodes.len() == PODS && world.tainted_nodes() == 0
    };
    let first = async |what: &str, is_done: &dyn Fn(&World) -> bool| {
        let world = fixture::within(&api, patience(120).as_secs(), is_done).await;
        assert!(world.is_some(), "{what}\n{}", leader.tail());
        live(&aws)
    };
    let before = first("each pod has a node", &settled).await;
    drift(&follower);
    drift(&leader);
    let start = clock();
    // The changed node class is resolved first.
    while try_sweep(&leader, "drift", &["--dry-run"]) != Ok([0, 0, PODS as u64]) {
        assert!(start.elapsed() < patience(30), "the nodes drift\n{}", leader.tail());
        sleep(Duration::from_millis(500)).await;
    }

    // Dry runs of all kinds change nothing, and the follower refuses to sweep.
    let (calls, since) = (aws.calls().len(), now());
    for kind in KINDS {
        let counts = sweep(&leader, kind, &["--dry-run"]);
        println!("{kind}: disrupted, blocked, observed: {counts:?}");
    }
    let why = try_sweep(&follower, "drift", &[]).expect_err("a follower does not sweep");
    assert!(why.contains("is not led by this host"), "{why}");
    println!("{}", why.trim());
    sleep(Duration::from_secs(3)).await;
    for host in [&leader, &follower] {
        assert_eq!(changes(&aws, host.key, calls), [""; 0], "{}", host.tail());
    }
    assert_eq!(changes_of(&plane, "outrigger", since), [""; 0], "{}", leader.tail());
    assert_eq!(live(&aws), before);

    // The sweep replaces all nodes, because the budget of the pool permits it.
    assert_eq!(sweep(&leader, "drift", &[]), [PODS as u64, 0, 0]);
    let is_new = |world: &World| settled(world) && live(&aws).is_disjoint(&before);
    let after = first("all nodes are replaced", &is_new).await;
    assert_eq!((after.len(), aws.instances().len()), (PODS, 2 * PODS));
}
