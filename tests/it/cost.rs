//! Compares the cost of plans for simple pods with a lower bound and with a greedy algorithm.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use outrigger::catalog::Catalog;
use outrigger::model::cluster::PlacementHints;
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::instance::InstanceType;
use outrigger::model::labels::INSTANCE_TYPE;
use outrigger::model::pod::{DaemonSet, Pod};
use outrigger::model::pool::Pool;
use outrigger::model::quantity::Resources;
use outrigger::model::requirement::Requirement;
use outrigger::plan::provision;
use outrigger::scheduling::{NewNodeClaim, Solution, solve};
use outrigger::state::snapshot::ExistingNode;
use outrigger_bench::catalogs::{self, GIB, MIB};
use outrigger_bench::greedy::greedy;
use outrigger_bench::workloads::{self, Workload, deployments, diverse, pods};
use proptest::prelude::{Strategy, any};
use proptest::sample::{Index, select};
use proptest::{collection, prop_assert, proptest};

/// A tolerance for the rounding errors of price sums.
pub(crate) const ROUNDING: f64 = 1.0 + 1e-9;

/// The default overhead price of a node in $/h, which is added when plans are compared.
const NODE_PRICE: f64 = 0.005;

/// A workload of a thousand plain pods, the lower bound of its cost, and the allowed cost.
pub(crate) struct PlainWorkload {
    pub(crate) name: &'static str,
    pub(crate) build: fn() -> Workload,
    /// The lower bound in $/h. `tests/it/cost_bound.rs` computes it with a linear program, whose
    /// crate takes too long to compile for a test that runs often.
    pub(crate) bound: f64,
    /// The allowed ratio of the cost to the bound.
    most: f64,
}

pub(crate) const PLAIN_WORKLOADS: [PlainWorkload; 4] = [
    PlainWorkload {
        name: "fake",
        build: || workloads::fake(diverse::plain(1_000)),
        bound: 217.0,
        most: 1.01,
    },
    PlainWorkload {
        name: "kwok",
        build: || workloads::kwok(diverse::plain(1_000)),
        bound: 18.05,
        most: 1.04,
    },
    PlainWorkload {
        name: "ec2-cmr",
        build: || workloads::ec2_cmr(diverse::plain(1_000)),
        bound: 25.88,
        most: 1.09,
    },
    PlainWorkload {
        name: "ec2-amd64-not-t",
        build: || workloads::ec2_amd64_not_t(diverse::plain(1_000)),
        bound: 25.88,
        most: 1.07,
    },
];

pub(crate) fn plan(workload: &Workload) -> Solution {
    solve(&workload.snapshot(), Timestamp::UNIX_EPOCH)
}

pub(crate) fn cost(solution: &Solution) -> f64 {
    let price = |claim: &NewNodeClaim| claim.offerings[0].1.usd_per_h();
    solution.claims.iter().map(price).sum()
}

pub(crate) fn is_close(got: f64, expect: f64, tolerance: f64) -> bool {
    (got - expect).abs() <= tolerance
}

#[test]
fn greedy_algorithm_grows_claims_to_the_largest_type() {
    let workload = workloads::kwok((0..300).map(|at| pod(at, 1_000, GIB)).collect());
    let got = greedy(&workload.snapshot(), &workload.pods);
    // The first claim fills the largest type, the second one gets the other pods.
    let largest_price = 256.0 * (0.025 + 0.001 * 2.0 * 1.073_741_824);
    let expect = largest_price * (1.0 + 48.0 / 256.0);
    let right = got.nodes == 2 && got.unplaced == 0 && is_close(got.usd_per_h, expect, 1e-6);
    assert!(right, "{got:?}");
    let too_large = workloads::kwok(vec![pod(0, 300_000, GIB)]);
    let got = greedy(&too_large.snapshot(), &too_large.pods);
    assert_eq!((got.nodes, got.unplaced), (0, 1));
}

#[test]
fn plans_for_plain_pods_cost_little_more_than_their_bound() {
    for PlainWorkload { name, build, bound, most } in PLAIN_WORKLOADS {
        let workload = build();
        let solution = plan(&workload);
        assert!(solution.unplaced.is_empty(), "{name}");
        let cost = cost(&solution);
        let greedy = greedy(&workload.snapshot(), &workload.pods).usd_per_h;
        assert!(cost + 0.005 >= bound, "{name}: {cost} is below {bound}");
        assert!(cost <= most * bound, "{name}: {cost} is above {most} times {bound}");
        assert!(cost <= ROUNDING * greedy, "{name}: {cost}, and {greedy} for the greedy plan");
    }
}

#[test]
fn workloads_have_the_pods_that_their_names_promise() {
    let count = |workload: &Workload, is: fn(&Pod) -> bool| {
        workload.pods.iter().filter(|pod| is(pod)).count()
    };
    for recipe in workloads::RECIPES.iter().filter(|recipe| !recipe.name.ends_with("0000")) {
        let workload = (recipe.build)();
        let named = recipe.name.rsplit('-').next().and_then(|last| last.parse().ok());
        let expect = named.unwrap_or(1_000);
        assert_eq!(workload.pods.len(), expect, "{}", recipe.name);
        if recipe.name.contains("diverse") {
            let spread = |key: fn(&str) -> bool| {
                let pods = workload.pods.iter();
                pods.filter(|pod| pod.spread.iter().any(|constraint| key(&constraint.topology_key)))
                    .count()
            };
            let kinds = [
                workload.pods.iter().filter(|pod| is_generic(pod)).count(),
                spread(|key| key == "topology.kubernetes.io/zone"),
                spread(|key| key == "kubernetes.io/hostname"),
                count(&workload, |pod| !pod.affinity.is_empty()),
                count(&workload, |pod| !pod.anti_affinity.is_empty()),
            ];
            assert_eq!(kinds, [expect / 5; 5], "{}", recipe.name);
        }
    }
}

#[test]
fn standing_cluster_runs_only_pods_that_may_run_there() {
    let workload = workloads::standing::standing();
    let running = workload.running.iter().flat_map(|it| &it.nodes);
    assert_eq!(running.map(|(_, count)| count).sum::<u32>(), 100_000);
    assert_eq!(workload.rooms.len(), 5_000);
    let fits = |room: &ExistingNode| Resources::default().fit_into(&room.free);
    assert!(workload.rooms.iter().all(fits));
    for it in &workload.running {
        let nodes: BTreeSet<&NodeName> = it.nodes.iter().map(|(node, _)| node).collect();
        assert_eq!(nodes.len(), 500, "no two pods of one kind share a host");
    }
    let apart = |pod: &&Pod| !pod.anti_affinity.is_empty();
    assert!(workload.pods.iter().any(|pod| !pod.spread.is_empty()));
    assert!(workload.pods.iter().filter(apart).count() > 50);
}

fn is_generic(pod: &Pod) -> bool {
    pod.spread.is_empty() && pod.affinity.is_empty() && pod.anti_affinity.is_empty()
}

fn pod(at: usize, cpu_milli: i64, memory: i64) -> Pod {
    pods::plain(&format!("p{at:04}"), cpu_milli, memory)
}

// Random workloads.

/// The catalogs are built once, because the EC2 types are slow to parse.
static CATALOGS: LazyLock<[Catalog; 3]> =
    LazyLock::new(|| [catalogs::fake(60), catalogs::kwok(), Catalog::shipped()]);

fn a_catalog() -> impl Strategy<Value = Catalog> {
    let picked = collection::vec(any::<Index>(), 1..40);
    (0..CATALOGS.len(), picked).prop_map(|(of, picked)| {
        let types: Vec<&InstanceType> = CATALOGS[of].types().collect();
        Catalog::new(picked.iter().map(|at| (*at.get(&types)).clone()))
    })
}

pub(crate) fn a_workload() -> impl Strategy<Value = Workload> {
    let cpu = select(&[0, 100, 250, 900, 1500, 3500, 15_000][..]);
    let memory = select(&[0, 100, 700, 2048, 9000, 28_000][..]);
    let pods = collection::vec((cpu, memory, 1usize..100), 1..12);
    (a_catalog(), pods, any::<bool>()).prop_map(|(catalog, pods, daemon)| {
        let sizes = pods.iter();
        let each = sizes.flat_map(|(cpu, memory, count)| vec![(*cpu, *memory * MIB); *count]);
        let pods = each.enumerate().map(|(at, (cpu, memory))| pod(at, cpu, memory));
        let mut workload = Workload::new(catalog, Pool::new("p"), pods.collect());
        let agent = DaemonSet {
            key: ObjectKey::new("kube-system", "agent"),
            template: pods::plain("agent", 50, 64 * MIB),
        };
        workload.daemon_sets.extend(daemon.then_some(agent));
        workload
    })
}

/// The cost of a plan for comparisons, including the overhead price of its nodes.
fn comparable_cost(usd_per_h: f64, nodes: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred nodes")]
    let nodes = nodes as f64;
    usd_per_h + NODE_PRICE * nodes
}

proptest! {
    #[test]
    fn pools_of_one_weight_compete_by_price(
        workload in a_workload(),
        pools in 2..5usize,
        deal in 0..64usize,
    ) {
        // Every pool has some of the types; some types are in several pools.
        let types: Vec<InstanceType> = workload.catalog.types().cloned().collect();
        let pool = |at: usize| {
            let mut pool = Pool::new(&format!("p{at}"));
            let shared = |place: &usize| (place * 7 + at).is_multiple_of(5);
            let own = |place: &usize| (place + deal) % pools == at || shared(place);
            let names = (0..types.len()).filter(own).map(|place| types[place].name.as_str());
            pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(names));
            pool
        };
        let pools: Vec<Pool> = (0..pools).map(pool).collect();
        let mut joint = workload.clone();
        joint.cluster.pools.clone_from(&pools);
        let joint = plan(&joint);
        let own = comparable_cost(cost(&joint), joint.claims.len());
        for pool in pools {
            let mut alone = workload.clone();
            alone.cluster.pools = vec![pool];
            let alone = plan(&alone);
            if alone.unplaced.len() <= joint.unplaced.len() {
                let most = comparable_cost(cost(&alone), alone.claims.len());
                prop_assert!(own <= ROUNDING * most, "{own} with all pools, {most} with one pool");
            }
            prop_assert!(joint.unplaced.len() <= alone.unplaced.len());
        }
    }

    #[test]
    fn plan_for_plain_pods_never_costs_more_than_the_greedy_plan(workload in a_workload()) {
        let solution = plan(&workload);
        let greedy = greedy(&workload.snapshot(), &workload.pods);
        let own = comparable_cost(cost(&solution), solution.claims.len());
        let most = comparable_cost(greedy.usd_per_h, greedy.nodes);
        prop_assert!(solution.unplaced.len() == greedy.unplaced);
        prop_assert!(own <= ROUNDING * most, "{own}, and {most} for the greedy plan");
    }
}

/// Plans thirty Deployments. Returns the cost in $/h, the number of nodes, and the largest number
/// of pods of one Deployment on one node.
fn plan_with_hints(hints: PlacementHints) -> (f64, usize, usize) {
    let mut workload = workloads::kwok(deployments::thirty());
    workload.cluster.placement_hints = hints;
    let plan = provision(&workload.snapshot(), Timestamp::UNIX_EPOCH);
    assert_eq!(plan.unplaced.len(), 0);
    let app = |pod: &ObjectKey| pod.name.split('-').next().map(str::to_owned);
    let of = |claim: &NewNodeClaim| {
        let apps: Vec<_> = claim.pods.iter().map(app).collect();
        let same = |one| apps.iter().filter(|other| *other == one).count();
        apps.iter().map(same).max().unwrap_or(0)
    };
    let cost = plan.launches.iter().map(|launch| launch.offerings[0].1.usd_per_h());
    let most = plan.launches.iter().map(of).max();
    (cost.sum(), plan.launches.len(), most.unwrap_or(0))
}

#[test]
fn placement_hints_separate_spread_pods_if_that_costs_little() {
    let (tight, _, crowded) = plan_with_hints(PlacementHints::Off);
    let (cost, nodes, most) = plan_with_hints(PlacementHints::On);
    assert!(crowded > 1 && most == 1, "{crowded} and {most} on one node");
    assert!(cost <= 1.05 * tight, "{cost} and {tight} $/h");
    // Copies of small packings are merged with copies of others, or there would be 125 nodes.
    assert!(nodes <= 64, "{nodes} nodes");
}
