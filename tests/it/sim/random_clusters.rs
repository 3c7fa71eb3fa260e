//! Random clusters: the engine becomes idle in each, and no further plan remains.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger::catalog::Catalog;
use outrigger::model::buffer::{Buffer, BufferPod};
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::pool::{BudgetNodes, Pool};
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::plan;
use outrigger::plan::render::RenderedPlan;
use outrigger::sim::scenario::Scenario;
use outrigger::sim::workload::{ScaleStep, SimPdb, Workload, WorkloadKind};
use outrigger::sim::{Setup, World};
use outrigger::state::State;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use proptest::test_runner::Config;
use proptest::{option, prop_assert, prop_assert_eq, proptest};

const START: Timestamp = Timestamp::constant(1_772_528_400, 0);
const MIB: i64 = 1 << 20;
const WAYS: &[&[&str]] = &[&["spot"], &["on-demand"], &["spot", "on-demand"]];
const LASTS: SignedDuration = SignedDuration::from_hours(1);

fn minutes(count: i64) -> Timestamp {
    START + SignedDuration::from_mins(count)
}

fn tolerates(key: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    }
}

fn a_workload() -> impl Strategy<Value = Workload> {
    let amounts = (
        select(&[50i64, 250, 900, 1500, 3500][..]),
        select(&[64i64, 700, 3100, 12_000][..]),
        option::weighted(0.3, 1u32..3),
    );
    let steps = vec((0i64..50, 0u32..25), 1..4);
    let ways = (0u8..8, option::of(0u32..3), any::<bool>(), any::<bool>());
    (amounts, steps, ways).prop_map(|((cpu, memory, skew), mut steps, ways)| {
        let (kind, budget, apart, arm) = ways;
        let owns = match kind {
            0 => WorkloadKind::DaemonSet,
            1 => WorkloadKind::Job { run_for: SignedDuration::from_mins(7) },
            _ => WorkloadKind::Deployment,
        };
        let mut workload = Workload::new("", owns);
        let small = owns == WorkloadKind::DaemonSet;
        workload.requests = Resources {
            cpu_milli: if small { 50 } else { cpu },
            memory: MIB * if small { 64 } else { memory },
            ..Resources::default()
        };
        if small {
            workload.tolerations = vec![tolerates("")];
            return workload;
        }
        steps.sort_unstable();
        let step = |(at, replicas)| ScaleStep { at: minutes(at), replicas };
        workload.steps = steps.into_iter().map(step).collect();
        workload.max_skew = skew;
        workload.budget = budget.map(SimPdb::MaxUnavailable);
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        if apart {
            workload.node_selector.extend([label("team", "apart")]);
            workload.tolerations = vec![tolerates("dedicated")];
        } else if arm {
            workload.node_selector.extend([label("kubernetes.io/arch", "arm64")]);
        }
        workload
    })
}

fn a_pool(name: &'static str) -> impl Strategy<Value = Pool> {
    let ways = select(WAYS);
    let after = select(&[0i64, 30, 180][..]);
    let allowed = select(&[10u8, 50, 100][..]);
    (ways, after, allowed).prop_map(move |(ways, after, allowed)| {
        let mut pool = Pool::new(name);
        pool.expire_after = None;
        pool.disruption.consolidate_after = Some(SignedDuration::from_secs(after));
        pool.disruption.budgets[0].nodes = BudgetNodes::Percent(allowed);
        let mut require = |key: &str, values: &[&str]| {
            let wanted = Requirement::is_in(values.iter().copied());
            pool.requirements.add(key, wanted);
        };
        require("karpenter.sh/capacity-type", ways);
        require("karpenter.k8s.aws/instance-family", &["c6i", "m6i", "r6g"]);
        require("topology.kubernetes.io/zone", &["us-east-1a", "us-east-1b"]);
        pool
    })
}

/// A buffer for this number of pods with these millicores.
fn a_buffer(count: u32, cpu_milli: i64) -> Buffer {
    let requests = Resources { cpu_milli, memory: 300 * MIB, pods: 1, ..Resources::default() };
    Buffer {
        name: "room".to_owned(),
        replicas: Some(count),
        pod: Some(BufferPod { requests, ..BufferPod::default() }),
        ..Buffer::default()
    }
}

fn a_setup() -> impl Strategy<Value = Setup> {
    let fixed = (a_pool("fixed"), option::of(0u32..4), option::of(0u32..4));
    let fixed = fixed.prop_map(|(mut pool, replicas, nodes)| {
        pool.limits.nodes = nodes.filter(|_| replicas.is_some());
        (pool.replicas, pool.weight) = (replicas, 0);
        pool
    });
    let room = option::of((1u32..6, select(&[400i64, 2500][..])));
    let pools = (a_pool("any"), a_pool("apart"), any::<bool>(), (fixed, room));
    (vec(a_workload(), 1..6), pools).prop_map(|(mut workloads, pools)| {
        let (general, mut apart, starts, (fixed, room)) = pools;
        for (at, workload) in workloads.iter_mut().enumerate() {
            workload.name = format!("w{at}");
        }
        apart.labels.extend([("team".to_owned(), "apart".to_owned())]);
        apart.taints = vec![Taint::new("dedicated", Effect::NoSchedule)];
        if starts {
            apart.startup_taints = vec![Taint::new("example.com/agent", Effect::NoSchedule)];
        }
        let cluster = Cluster {
            installation: "test".to_owned(),
            name: "demo".into(),
            mode: ManagementMode::Manage,
            pools: vec![general, apart, fixed],
            buffers: room.map(|(count, cpu)| a_buffer(count, cpu)).into_iter().collect(),
            ..Cluster::default()
        };
        let scenario = Scenario {
            title: "random".to_owned(),
            start: START,
            end: START + LASTS,
            boot: SignedDuration::from_secs(30),
            fixed_type: "m6i.4xlarge".into(),
            workloads,
            shortages: Vec::new(),
            batches: false,
            interruptions: Vec::new(),
            outages: Vec::new(),
            settle: SignedDuration::from_mins(90),
            calm: SignedDuration::from_mins(15),
            config: String::new(),
            reloads: Vec::new(),
        };
        Setup::new(Arc::new(scenario), Arc::new(cluster), &Catalog::shipped())
    })
}

fn objects(world: &World) -> Vec<WatchedObject> {
    let store = world.ground_truth().cluster.store();
    ObjectKind::ALL.iter().flat_map(|kind| store.list_kind(*kind)).collect()
}

/// The plan for a cluster with these objects as JSON, without its duration.
fn rendered_plan(world: &World, objects: Vec<WatchedObject>) -> String {
    let (cluster, catalog) =
        (world.ground_truth().config.clone(), world.ground_truth().catalog.clone());
    let now = world.now();
    let state = State::offline(cluster, catalog, objects, now);
    let plan =
        plan::plan_without_consolidation(&state.snapshot(now), &state.disruption_view(now), now);
    let shown = RenderedPlan {
        sweeps: Default::default(),
        cluster: "demo",
        plan: &plan,
        solve_seconds: 0.0,
        missing: None,
        unbudgeted: None,
        before: state.total_cost(),
    };
    shown.json().to_string()
}

proptest! {
    #![proptest_config(Config { cases: 8, ..Config::default() })]

    #[test]
    fn plan_for_a_converged_cluster_is_empty(setup in a_setup(), seed in any::<u64>()) {
        let mut world = World::new(setup, seed, false);
        let violations = world.run_and_check().to_vec();
        prop_assert!(violations.is_empty(), "{:#?}", violations);
        let engine = world.engine().expect("the daemon runs");
        let (state, now) = (engine.state(), world.now());
        let (snapshot, disruption_view) = (state.snapshot(now), state.disruption_view(now));
        let plan = plan::plan_without_consolidation(&snapshot, &disruption_view, now);
        prop_assert!(plan.is_empty() && plan.unplaced.is_empty(), "{:#?}", plan);
    }

    #[test]
    fn order_of_objects_does_not_change_the_plan(
        setup in a_setup(),
        seed in any::<u64>(),
        stop in 1i64..60,
    ) {
        let mut world = World::new(setup, seed, false);
        world.run_until(minutes(stop));
        let mut objects = objects(&world);
        let expect = rendered_plan(&world, objects.clone());
        fastrand::Rng::with_seed(seed).shuffle(&mut objects);
        prop_assert_eq!(rendered_plan(&world, objects), expect);
    }
}
