//! Two daemons for one cluster: one leads, and the other takes over when it stops.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use outrigger::model::claim::TAG_CLAIM;
use serde_json::Value;

use super::Plane;
use super::audit::changes_of;
use super::fixture::{
    Process, Setup, World, client, clock, deploy, free_port, instances, is_campaign, now, scale,
    until, until_ready,
};
use super::lifecycle::{provider_id, scatter};
use super::many_clusters::{setup, with_own_lease};
use super::term_order::{assert_terms, audited};

/// The time limit for a takeover.
pub(crate) const TAKEN_OVER: Duration = Duration::from_secs(20);

/// The time for which a resumed daemon is observed. It renews its Lease every two seconds.
pub(crate) const WATCHED: Duration = Duration::from_secs(5);

/// A daemon with its own user.
struct Host {
    user: &'static str,
    setup: Setup,
    daemon: Process,
}

impl Host {
    fn start(plane: &Plane, user: &'static str, cloud: u16) -> Self {
        let kubeconfig = plane.kubeconfig_of(user).expect("a kubeconfig");
        let setup = Setup::new(&[("bench", Path::new(&kubeconfig))], Some(cloud));
        Self { user, daemon: setup.daemon(), setup }
    }
}

/// Whether the daemon with this directory holds a Lease. It writes its holder name there.
pub(crate) async fn holds(api: &Client, lease: &str, directory: &Path) -> bool {
    let leases: Api<Lease> = Api::namespaced(api.clone(), "kube-system");
    let lease = leases.get_opt(lease).await.expect("an answer");
    let holder = lease.and_then(|own| own.spec?.holder_identity);
    let name = fs::read_to_string(directory.join("holder")).unwrap_or_default();
    holder.is_some_and(|own| !name.is_empty() && own.split('/').next() == Some(&name))
}

/// Waits until this host is the leader. Returns the time.
async fn leads(api: &Client, host: &Host, limit: Duration) -> Duration {
    let start = clock();
    while !holds(api, "outrigger", host.setup.path()).await {
        let waited = start.elapsed();
        assert!(waited < limit, "{} does not lead\n{}", host.user, host.setup.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    start.elapsed()
}

/// The way in which a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is suspended, and resumed when the other host leads.
    Pause,
    /// It is killed and not restarted.
    Silence,
    /// It is killed and restarted at once.
    Death,
    /// It gets SIGTERM.
    Leave,
}

const ENDS: [End; 4] = [End::Pause, End::Silence, End::Death, End::Leave];

/// Checks that no claim ever had two instances, and that each live instance has a node.
async fn all_accounted_for(cloud: u16, world: &World) {
    let all = instances(cloud).await;
    let text = |own: &Value, name: &str| own[name].as_str().unwrap_or_default().to_owned();
    let claims: BTreeSet<String> = all.iter().map(|own| text(&own["tags"], TAG_CLAIM)).collect();
    assert!(!claims.contains(""), "{all:?}");
    assert_eq!(claims.len(), all.len(), "claims with two instances");
    let lives = |own: &&Value| matches!(text(own, "state").as_str(), "pending" | "running");
    let live: BTreeSet<String> = all.iter().filter(lives).map(|own| text(own, "id")).collect();
    let ids = world.nodes.iter().map(provider_id);
    let nodes = ids.map(|id| id.rsplit('/').next().unwrap_or_default().to_owned());
    assert_eq!(nodes.collect::<BTreeSet<_>>(), live, "each instance has a node");
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_host_takes_over_when_the_leader_stops() {
    let name = "plane::standby::standby_host_takes_over_when_the_leader_stops";
    let Some(plane) = Plane::start_or_skip_with(name, &["--audit"]) else {
        return;
    };
    let (cloud, rounds) = (free_port(), if is_campaign() { 50 } else { ENDS.len() });
    let (mut one, mut other);
    one = Host::start(&plane, "host-a", cloud);
    let _cloud = one.setup.cloud(cloud);
    let api = client(plane.kubeconfig()).await;
    until_ready(&one.setup, 1).await;
    leads(&api, &one, TAKEN_OVER).await;
    other = Host::start(&plane, "host-b", cloud);
    deploy(&api, "small", 0, "1", "1Gi").await;
    let mut pods = 0;
    for round in 0..rounds {
        let end = ENDS[round % ENDS.len()];
        // The follower must have seen the leader: it reads the Lease every other second.
        tokio::time::sleep(Duration::from_secs(3)).await;
        pods = if pods == 0 { 24 } else { (pods * 7 + round * 5) % 40 };
        scale(&api, "small", pods).await;
        let moment = scatter(round as u64) % 3000;
        tokio::time::sleep(Duration::from_millis(moment)).await;
        match end {
            End::Pause => one.daemon.signal("STOP"),
            End::Silence | End::Death => one.daemon.kill(),
            End::Leave => one.daemon.signal("TERM"),
        }
        if end == End::Death {
            one.daemon = one.setup.daemon();
            // The released lock shows the follower that the leader has ended. The holder name
            // changes with each start.
            tokio::time::sleep(Duration::from_secs(1)).await;
            std::mem::swap(&mut one, &mut other);
        }
        let took = leads(&api, &other, TAKEN_OVER).await;
        let is_told = matches!(end, End::Death | End::Leave);
        assert!(!is_told || took < Duration::from_secs(6), "{end:?}: {took:?}");
        match end {
            End::Pause => {
                let since = now();
                one.daemon.signal("CONT");
                tokio::time::sleep(WATCHED).await;
                let changes = changes_of(&plane, one.user, since);
                assert_eq!(changes, Vec::<String>::new(), "{}", one.setup.tail());
            }
            End::Silence | End::Leave => {
                one.daemon.kill();
                one.daemon = one.setup.daemon();
            }
            End::Death => {}
        }
        let settled = |world: &World| {
            world.bound() == pods && world.pods.len() == pods && world.empty_nodes() == 0
        };
        let what = format!("{pods} pods bound after {end:?}");
        let world = until(&api, &other.setup, 90, &what, settled).await;
        println!(
            "round {round}, {end:?}: the other leads after {:.1} s; {pods} pods on {} nodes",
            took.as_secs_f64(),
            world.nodes.len(),
        );
        all_accounted_for(cloud, &world).await;
        std::mem::swap(&mut one, &mut other);
    }
    // A leader changes nothing while all pods fit on the existing nodes.
    let least = if is_campaign() { rounds / 4 } else { 2 };
    assert_terms(&audited(&plane, &[one.user, other.user]), (1, least));
}

/// Clusters on one API, each with a Lease of its own.
const SHARED: [&str; 3] = ["shared-1", "shared-2", "shared-3"];

/// Returns how many of these clusters a host leads.
async fn share(api: &Client, host: &Setup) -> usize {
    let mut count = 0;
    for own in SHARED {
        count += usize::from(holds(api, own, host.path()).await);
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn later_host_gets_its_share_of_clusters() {
    let name = "plane::standby::later_host_gets_its_share_of_clusters";
    let Some(plane) = Plane::start_or_skip_with(name, &["--lean"]) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let clusters = SHARED.map(|own| (own, plane.kubeconfig()));
    let cloud = free_port();
    let setup = || setup(&clusters, cloud, with_own_lease);
    let (one, other) = (setup(), setup());
    let _cloud = one.cloud(cloud);
    let _first = one.daemon();
    until_ready(&one, SHARED.len()).await;
    assert_eq!(share(&api, &one).await, SHARED.len());
    let _second = other.daemon();
    until_ready(&other, 1).await;
    assert_eq!(share(&api, &other).await, 1, "{}", other.tail());
    assert_eq!(share(&api, &one).await, 2, "{}", one.tail());
    // Each cluster has a leader from here on: nothing is left to share.
    tokio::time::sleep(WATCHED).await;
    assert_eq!(share(&api, &one).await + share(&api, &other).await, SHARED.len());
    assert_eq!(one.told("lost leadership").len(), 1, "{}", one.tail());
}
