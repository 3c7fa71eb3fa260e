//! Scale-down of Deployments on a real control plane: the time to minimum cost, the number of
//! requests, and the effect of killing the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use outrigger_bench::workloads::deployments::{Deployment, of_all_sizes, small_and_large};

use super::Plane;
use super::audit::{Allowed, audited};
use super::fixture::{
    Process, Setup, World, client, clock, deploy_like, free_port, instances, is_campaign, scale,
    until_bound, until_ready,
};
use super::lifecycle::scatter;

/// Returns the time without a change after which the cluster counts as settled. In a campaign this
/// exceeds every delay of the daemon except the back-off after a failure. Other runs print no
/// figures, so a shorter time is enough: the simulation checks what happens later.
fn still() -> Duration {
    Duration::from_secs(if is_campaign() { 20 } else { 12 })
}

/// Consolidation keeps its new nodes for ten minutes, unless pods are deleted. A restarted daemon
/// does not know the number of deleted pods (docs/decisions/027-consolidation.md).
const RESTED: Duration = Duration::from_secs(630);

/// The interval between two reads of the cluster.
const LOOK: Duration = Duration::from_millis(500);

/// Deployments, each with the number of its pods after the scale-down.
type Sizes = Vec<(Deployment, usize)>;

/// Returns 500 small and 500 large pods without constraints, of which 350 each remain.
fn anywhere() -> Sizes {
    let free = |own: Deployment| Deployment { spread: Vec::new(), ..own };
    small_and_large().map(|own| (free(own), 350)).to_vec()
}

/// Returns the same spread over hosts, of which 300 each remain.
fn over_hosts() -> Sizes {
    small_and_large().map(|own| (own, 300)).to_vec()
}

/// Returns thirty deployments of all sizes: a thousand pods, of which 700 remain.
fn thirty() -> Sizes {
    let all = of_all_sizes().into_iter();
    let left = |own: &Deployment| if own.replicas == 35 { 25 } else { 20 };
    all.map(|own| (left(&own), own)).map(|(left, own)| (own, left)).collect()
}

/// Divides every size by `divisor`, unless this is a campaign.
fn cut(mut all: Sizes, divisor: usize) -> Sizes {
    if !is_campaign() {
        for (own, left) in &mut all {
            own.replicas = own.replicas.div_ceil(divisor);
            *left = left.div_ceil(divisor);
        }
    }
    all
}

fn pods_of(all: &Sizes) -> (usize, usize) {
    let before = all.iter().map(|(own, _)| own.replicas);
    (before.sum(), all.iter().map(|(_, left)| left).sum())
}

/// The state of nodes and pods that shows whether anything changes.
type Seen = BTreeMap<String, (String, bool)>;

fn seen(world: &World) -> Seen {
    let of_node = |own: &Node| {
        let taints = own.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let taints = taints.map_or(0, Vec::len).to_string();
        let name = own.metadata.name.clone().unwrap_or_default();
        (name, (taints, own.metadata.deletion_timestamp.is_some()))
    };
    let of_pod = |own: &Pod| {
        let node = own.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let phase = own.status.as_ref().and_then(|status| status.phase.clone());
        let place = format!("{node:?} {phase:?}");
        let name = own.metadata.name.clone().unwrap_or_default();
        (name, (place, own.metadata.deletion_timestamp.is_some()))
    };
    let nodes = world.nodes.iter().map(of_node);
    nodes.chain(world.pods.iter().map(of_pod)).collect()
}

fn running(world: &World) -> usize {
    let runs = |own: &&Pod| {
        let phase = own.status.as_ref().and_then(|status| status.phase.as_ref());
        phase.is_some_and(|own| own == "Running") && own.metadata.deletion_timestamp.is_none()
    };
    world.pods.iter().filter(runs).count()
}

/// Waits until nothing has changed for a while. Returns the time of the last change, and the final
/// state.
async fn settled(api: &Client, setup: &Setup, still: Duration, most: Duration) -> (f64, World) {
    let start = clock();
    let (mut last, mut before, mut told) = (start.elapsed(), Seen::new(), (0, 0));
    loop {
        let world = World::read(api).await;
        let (at, now) = (start.elapsed(), seen(&world));
        if now != before {
            (last, before) = (at, now);
        }
        let counts = (world.nodes.len(), world.tainted_nodes());
        if is_campaign() && counts != std::mem::replace(&mut told, counts) {
            println!(
                "  {:6.1} s: {} nodes for {:.2} $/h, {} of them leaving; {} pods, {} run",
                at.as_secs_f64(),
                counts.0,
                world.cost(),
                counts.1,
                world.pods.len(),
                running(&world),
            );
        }
        if at - last >= still && counts.1 == 0 {
            return (last.as_secs_f64(), world);
        }
        assert!(at < most, "still changing after {:.0} s\n{}", at.as_secs_f64(), setup.tail());
        tokio::time::sleep(LOOK).await;
    }
}

/// Checks that every pod runs, and that no taints or empty nodes remain.
fn all_run(world: &World, pods: usize, setup: &Setup) {
    assert_eq!(running(world), pods, "running pods\n{}", setup.tail());
    assert_eq!(world.tainted_nodes(), 0, "a taint remains");
    let empty = world.empty_nodes();
    assert_eq!(empty, 0, "empty nodes remain\n{}", setup.tail());
}

/// The result of a scale-down.
#[derive(Debug)]
struct Outcome {
    seconds: f64,
    nodes: usize,
    usd_per_h: f64,
    cpu_seconds: f64,
    before: f64,
}

/// A cluster with its daemon, and all pods bound.
struct Bench {
    plane: Plane,
    setup: Setup,
    api: Client,
    port: u16,
    _cloud: Process,
    daemon: Process,
    still: Duration,
}

impl Bench {
    /// Creates all deployments at once and waits until the cluster is settled. Returns `None` if
    /// there is no plane.
    async fn scaled_out(test: &str, all: &Sizes, budget: Allowed) -> Option<Self> {
        let plane = Plane::start_or_skip_with(test, &["--audit"])?;
        let port = free_port();
        let setup = Setup::scaling_down(&plane.daemons(), port, &budget.text());
        let own = Self {
            _cloud: setup.cloud(port),
            daemon: setup.daemon(),
            api: client(plane.kubeconfig()).await,
            still: still(),
            plane,
            setup,
            port,
        };
        until_ready(&own.setup, 1).await;
        for (deployment, _) in all {
            deploy_like(&own.api, deployment, deployment.replicas).await;
        }
        until_bound(&own.api, &own.setup, 300, pods_of(all).0).await;
        if is_campaign() {
            let (_, world) = own.settled().await;
            all_run(&world, pods_of(all).0, &own.setup);
        }
        Some(own)
    }

    async fn settled(&self) -> (f64, World) {
        settled(&self.api, &self.setup, self.still, Duration::from_secs(3600)).await
    }

    async fn scale(&self, all: &Sizes, replicas: impl Fn(&(Deployment, usize)) -> usize) {
        for own in all {
            scale(&self.api, &own.0.name, replicas(own)).await;
        }
    }

    /// Waits until the cluster costs at most this and nothing changes. A busy machine may pause for
    /// longer between two moves than [`still`] waits.
    async fn settled_at_cost(&self, mut world: World, most: f64) -> World {
        let start = clock();
        while world.cost() > most && start.elapsed() < RESTED {
            (_, world) = self.settled().await;
        }
        world
    }

    /// Scales all deployments down, and waits until the cluster is settled.
    async fn scaled_down(&self, all: &Sizes) -> Outcome {
        let before = World::read(&self.api).await.cost();
        let (cpu, _) = self.daemon.figures();
        self.scale(all, |own| own.1).await;
        let (seconds, world) = self.settled().await;
        let outcome = Outcome {
            seconds,
            nodes: world.nodes.len(),
            usd_per_h: world.cost(),
            cpu_seconds: self.daemon.figures().0 - cpu,
            before,
        };
        println!(
            "{:?} pods: settled after {:.1} s on {} nodes for {:.2} $/h, {before:.2} before; \
             daemon {:.2} s of cpu",
            pods_of(all),
            outcome.seconds,
            outcome.nodes,
            outcome.usd_per_h,
            outcome.cpu_seconds,
        );
        if is_campaign() {
            println!("{}", self.setup.told("INFO consolidating nodes").join("\n"));
        }
        all_run(&world, pods_of(all).1, &self.setup);
        outcome
    }
}

/// Scales out and down again. Returns the result in a campaign. Other runs only check that unneeded
/// nodes were removed.
async fn saves(test: &str, all: Sizes, budget: Allowed) -> Option<Outcome> {
    let bench = Bench::scaled_out(test, &all, budget).await?;
    let mut outcome = bench.scaled_down(&all).await;
    let most = 0.9 * outcome.before;
    if !is_campaign() {
        let world = World::read(&bench.api).await;
        let world = bench.settled_at_cost(world, most).await;
        all_run(&world, pods_of(&all).1, &bench.setup);
        outcome.usd_per_h = world.cost();
    }
    let audited = audited(&bench.plane, budget);
    println!("{audited:?} of {budget:?}");
    assert_eq!(audited.above, 0, "above the budget: {audited:?}");
    assert!(audited.removed > 0, "{audited:?}");
    assert!(outcome.usd_per_h <= most, "{outcome:?}");
    is_campaign().then_some(outcome)
}

const ALL: Allowed = Allowed::Percent(100);

#[tokio::test(flavor = "multi_thread")]
async fn scale_down_consolidates_unconstrained_pods() {
    let name = "plane::scale_down::scale_down_consolidates_unconstrained_pods";
    if let Some(outcome) = saves(name, cut(anywhere(), 12), ALL).await {
        // Karpenter 1.14 on two cores: 91 s, 8 to 9 nodes, 52.1 $/h, 5 s of CPU.
        assert!(outcome.seconds <= 45.0, "more than half of Karpenter's time");
        assert!(outcome.usd_per_h <= 1.05 * 50.2, "5 % above the bound");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_down_of_thirty_deployments_takes_at_most_two_minutes() {
    let name = "plane::scale_down::scale_down_of_thirty_deployments_takes_at_most_two_minutes";
    if let Some(outcome) = saves(name, cut(thirty(), 10), ALL).await {
        // Karpenter 1.14 on two cores: moving after 480 s, 43 nodes, 50.6 $/h, 44 s of CPU.
        assert!(outcome.seconds <= 120.0, "too slow");
        assert!(outcome.usd_per_h <= 1.08 * 46.2, "8 % above the bound");
        assert!(outcome.cpu_seconds <= 4.4, "more than a tenth of Karpenter's CPU time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn host_spread_pods_are_consolidated_onto_fewer_nodes() {
    let name = "plane::scale_down::host_spread_pods_are_consolidated_onto_fewer_nodes";
    if let Some(outcome) = saves(name, cut(over_hosts(), 12), ALL).await {
        // Karpenter 1.14 on two cores: 72 s, 300 nodes, 70.3 $/h, 56 s of CPU.
        assert!(outcome.seconds <= 36.0, "more than half of Karpenter's time");
        assert!(outcome.usd_per_h <= 70.3, "more expensive than Karpenter");
        assert!(outcome.cpu_seconds <= 5.6, "more than a tenth of Karpenter's CPU time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn percentage_budget_bounds_concurrent_disruption() {
    let name = "plane::scale_down::percentage_budget_bounds_concurrent_disruption";
    saves(name, cut(anywhere(), 12), Allowed::Percent(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_count_budget_bounds_concurrent_disruption() {
    let name = "plane::scale_down::node_count_budget_bounds_concurrent_disruption";
    saves(name, cut(anywhere(), 12), Allowed::Nodes(3)).await;
}

/// Kills the daemon at random moments during a scale-down, and repeats the scale-down until all
/// kills are done. The final state must be as good as without kills.
async fn survives(test: &str, mut all: Sizes, budget: Allowed, kills: u64) {
    let Some(mut bench) = Bench::scaled_out(test, &all, budget).await else {
        return;
    };
    let before = World::read(&bench.api).await.cost();
    let mut calm = None;
    if is_campaign() {
        calm = Some(bench.scaled_down(&all).await);
    }
    let (mut kill, mut rounds) = (0, 0);
    let mut world = World::read(&bench.api).await;
    while kill < kills {
        rounds += 1;
        if calm.is_some() {
            bench.scale(&all, |own| own.0.replicas).await;
            until_bound(&bench.api, &bench.setup, 300, pods_of(&all).0).await;
            bench.settled().await;
        }
        bench.scale(&all, |own| own.1).await;
        let start = clock();
        let (mut last, mut before) = (start.elapsed(), Seen::new());
        // A daemon decides nothing in its first five seconds.
        while kill < kills && start.elapsed() - last < 2 * still() {
            tokio::time::sleep(Duration::from_millis(500 + scatter(kill) % 13_500)).await;
            bench.daemon.kill();
            bench.daemon = bench.setup.daemon();
            kill += 1;
            let now = seen(&World::read(&bench.api).await);
            if now != before {
                (last, before) = (start.elapsed(), now);
            }
        }
        (_, world) = bench.settled().await;
        all_run(&world, pods_of(&all).1, &bench.setup);
    }
    let most = calm.as_ref().map_or(0.9 * before, |own| 1.05 * own.usd_per_h);
    // A node that was launched before the kill for consolidation may be removed only after ten
    // minutes. A campaign waits for that; in other runs more pods are deleted, which ends this
    // time.
    if calm.is_some() {
        bench.still = RESTED;
        (_, world) = bench.settled().await;
    } else if world.cost() > most {
        let fewer = all.len() / 5;
        for own in &mut all[..fewer] {
            own.1 = 0;
        }
        bench.scale(&all, |own| own.1).await;
    }
    world = bench.settled_at_cost(world, most).await;
    all_run(&world, pods_of(&all).1, &bench.setup);
    let audited = audited(&bench.plane, budget);
    println!(
        "{kills} kills in {rounds} rounds: {} nodes for {:.2} $/h, {before:.2} before; without a \
         kill {calm:?}; {audited:?} of {budget:?}",
        world.nodes.len(),
        world.cost(),
    );
    assert_eq!(audited.above, 0, "above the budget: {audited:?}");
    assert!(world.cost() <= most, "more expensive than {most:.2} $/h");
    let live = |own: &serde_json::Value| {
        !matches!(own["state"].as_str(), Some("shutting-down" | "terminated"))
    };
    let left = instances(bench.port).await.iter().filter(|own| live(own)).count();
    assert_eq!(left, world.nodes.len(), "instances without a node");
}

/// Returns the number of kills: a hundred in a campaign, otherwise one.
fn kills() -> u64 {
    if is_campaign() { 100 } else { 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn consolidation_survives_killed_daemons() {
    let name = "plane::scale_down::consolidation_survives_killed_daemons";
    survives(name, cut(thirty(), 20), ALL, kills()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_hold_while_the_daemon_is_killed() {
    let name = "plane::scale_down::budgets_hold_while_the_daemon_is_killed";
    survives(name, cut(thirty(), 20), Allowed::Percent(10), kills()).await;
}
