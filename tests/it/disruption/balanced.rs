//! Savings of consolidations, and their approval by the `balanced` policy.

use outrigger::disruption::balanced::Balance;
use outrigger::model::instance::InstanceType;
use outrigger::model::labels::{DO_NOT_DISRUPT, INSTANCE_TYPE, ZONE};
use outrigger::model::pool::{BudgetNodes, Consolidation};
use outrigger::model::requirement::Requirement;
use outrigger::plan::{Plan, lowest_total_price};
use outrigger::state::candidates::Candidate;

use super::consolidation_fixture::{
    Fleet, ON_DEMAND, SPOT, buying, instance_type, plan_summary, sizes,
};
use super::fixture::NOW;

/// Types for one, two and four dollars per hour, and a free one.
fn priced() -> Vec<InstanceType> {
    [("p0", 0.0), ("p1", 1.0), ("p2", 2.0), ("p4", 4.0)]
        .map(|(name, price)| instance_type(name, 100, &[(ON_DEMAND, "a", price)]))
        .into()
}

/// A node: its name, which begins with the name of its pool, its type, and its number of pods. Its
/// disruption cost is one more than the number of pods.
type NodeSpec = (&'static str, &'static str, usize);

/// Nodes of the balanced pools `x` and `y`, and of `z`, which is not balanced.
fn fleet_of(nodes: &[NodeSpec]) -> Fleet {
    let pools = ["x", "y", "z"].map(|name| {
        let mut pool = buying(name, &[ON_DEMAND]);
        if name != "z" {
            pool.disruption.consolidation = Consolidation::Balanced;
        }
        pool
    });
    let mut fleet = Fleet::new(priced(), pools.into());
    for (name, of, pods) in nodes {
        fleet.node_of(name, &name[..1], (of, "a", ON_DEMAND));
        for at in 0..*pods {
            fleet.pod(&format!("{name}-{at}"), name, 100);
        }
    }
    fleet
}

/// Whether disrupting these nodes together is worth these savings.
fn approves(fleet: &Fleet, names: &[&str], saved: f64) -> bool {
    let disruption_view = fleet.0.state.disruption_view(NOW);
    let is_disrupted = |candidate: &&Candidate<'_>| names.contains(&candidate.node.name.as_str());
    let candidates = disruption_view.candidates.iter().filter(is_disrupted);
    Balance::new(&disruption_view).approves(candidates, saved)
}

/// The nodes of a fleet, the disrupted ones, and the minimum sufficient savings, if there are any.
type Score = (&'static str, &'static [NodeSpec], &'static [&'static str], Option<f64>);

const EVEN: [NodeSpec; 3] = [("x1", "p1", 1), ("x2", "p1", 1), ("x3", "p1", 1)];
const UNEVEN: [NodeSpec; 2] = [("x1", "p1", 1), ("x2", "p1", 9)];
const POOLS: [NodeSpec; 4] = [("x1", "p1", 1), ("x2", "p1", 1), ("y1", "p2", 1), ("y2", "p2", 1)];

const SCORES: [Score; 14] = [
    ("all nodes of equal cost, for half of their price", &EVEN, &["x1", "x2", "x3"], Some(1.5)),
    ("two of these nodes", &EVEN, &["x1", "x2"], Some(1.0)),
    ("the only node of a pool", &[("x1", "p1", 1)], &["x1"], Some(0.5)),
    ("a node with a low disruption cost", &UNEVEN, &["x1"], Some(2.0 / 12.0)),
    ("a node with a high disruption cost", &UNEVEN, &["x2"], Some(10.0 / 12.0)),
    ("both nodes", &UNEVEN, &["x1", "x2"], Some(1.0)),
    ("a node without pods", &[("x1", "p1", 0), ("x2", "p1", 99)], &["x1"], Some(1.0 / 101.0)),
    ("the more expensive node", &[("x1", "p4", 1), ("x2", "p1", 1)], &["x1"], Some(1.25)),
    ("nodes of two equal pools", &POOLS, &["x1", "y1"], Some(1.5)),
    (
        "nodes of two pools, one with a higher disruption cost",
        &[("x1", "p1", 1), ("x2", "p1", 1), ("y1", "p2", 3), ("y2", "p2", 1)],
        &["x1", "y1"],
        Some(2.0),
    ),
    (
        "nodes of two pools, one of which is not balanced",
        &[("x1", "p1", 1), ("z1", "p1", 9)],
        &["x1", "z1"],
        Some(1.0),
    ),
    ("the pool is not balanced", &[("z1", "p1", 9), ("x1", "p1", 1)], &["z1"], Some(0.0)),
    ("the pool costs nothing", &[("x1", "p0", 1), ("x2", "p0", 1)], &["x1"], None),
    (
        "another node of the pool has an unknown type and a disruption cost",
        &[("x1", "p1", 1), ("x2", "unknown", 9)],
        &["x1"],
        Some(1.0 / 12.0),
    ),
];

#[test]
fn balanced_pool_needs_half_the_disruption_share_as_savings() {
    for (what, nodes, disrupted, least) in SCORES {
        let fleet = fleet_of(nodes);
        let Some(least) = least else {
            assert!(!approves(&fleet, disrupted, 1e9), "{what}");
            continue;
        };
        assert!(approves(&fleet, disrupted, least), "{what}: {least}");
        let less = least * 0.999 - 0.001;
        let weighs = disrupted.iter().any(|name| !name.starts_with('z'));
        assert_eq!(approves(&fleet, disrupted, less), !weighs, "{what}: {less}");
    }
}

/// Nodes that must not be disrupted are part of the totals.
#[test]
fn balanced_shares_include_the_blocked_nodes_of_a_pool() {
    let mut fleet = fleet_of(&UNEVEN);
    let note = (DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    fleet.0.edit("x2", |node| node.annotations.extend([note]));
    assert!(approves(&fleet, &["x1"], 2.0 / 12.0));
    assert!(!approves(&fleet_of(&UNEVEN[..1]), &["x1"], 2.0 / 12.0));
}

#[test]
fn balanced_threshold_is_independent_of_cluster_size() {
    for count in 1..60 {
        let names: Vec<String> = (0..count).map(|at| format!("x{at:02}")).collect();
        let mut fleet = fleet_of(&[]);
        // The sums of this price have rounding errors.
        let third = instance_type("third", 100, &[(ON_DEMAND, "a", 0.1 / 3.0)]);
        let catalog = fleet.0.state.catalog.with([third]);
        fleet.0.state.apply_catalog(catalog.into());
        for name in &names {
            fleet.node_of(name, "x", ("third", "a", ON_DEMAND));
            fleet.pod(name, name, 100);
        }
        let disrupted: Vec<&str> = names.iter().map(String::as_str).collect();
        let half = 0.05 / 3.0 * f64::from(count);
        assert!(approves(&fleet, &disrupted, half), "{count}");
        assert!(!approves(&fleet, &disrupted, half * 0.999), "{count}");
    }
}

/// A fleet with a balanced on-demand pool.
fn balanced_pool(types: Vec<InstanceType>) -> Fleet {
    let mut fleet = Fleet::new(types, vec![buying("general", &[ON_DEMAND])]);
    fleet.pool(|pool| pool.disruption.consolidation = Consolidation::Balanced);
    fleet
}

/// A node of the type `old` at this price, and a type `new` that may replace it.
fn replaceable_node(price: f64, offers: &[super::consolidation_fixture::OfferingSpec]) -> Fleet {
    let mut fleet = balanced_pool(vec![
        instance_type("old", 4, &[(ON_DEMAND, "a", price)]),
        instance_type("new", 4, offers),
    ]);
    fleet.node("n", "old");
    fleet.pod("p", "n", 3000);
    fleet
}

#[test]
fn balanced_pool_disrupts_only_for_sufficient_savings() {
    // For a single node, saving half of its price is just sufficient.
    for (what, offers, expect) in [
        ("half of the price", &[(ON_DEMAND, "a", 0.2)][..], "n -> new/a/on-demand"),
        ("more than half of the price", &[(ON_DEMAND, "a", 0.3)], ""),
        ("the same price", &[(ON_DEMAND, "a", 0.4)], ""),
        ("only spot is cheap", &[(ON_DEMAND, "a", 0.3), (SPOT, "a", 0.1)], ""),
    ] {
        let fleet = replaceable_node(0.4, offers);
        assert_eq!(fleet.changes(), expect, "{what}");
        let keeps = if expect.is_empty() { "not_worth_disruption" } else { "-" };
        assert_eq!(fleet.retaining_code("n"), keeps, "{what}");
    }
    // The price of the node does not depend on whether its offering is available.
    let mut fleet = replaceable_node(0.4, &[(ON_DEMAND, "a", 0.2)]);
    let mut old = fleet.0.state.catalog.get("old").expect("a type").clone();
    old.offerings[0].available = false;
    let catalog = fleet.0.state.catalog.with([old]);
    fleet.0.state.apply_catalog(catalog.into());
    assert_eq!(fleet.changes(), "n -> new/a/on-demand");

    // The pod of the node fits on another node.
    let mut fleet = balanced_pool(sizes());
    for (name, pods, cores) in [("n", 1, 1000), ("other", 7, 500)] {
        fleet.node(name, "s4");
        for at in 0..pods {
            fleet.pod(&format!("{name}-{at}"), name, cores / 2);
        }
    }
    assert_eq!(fleet.changes(), "n ->");
    fleet.pool(|pool| pool.disruption.budgets[0].nodes = BudgetNodes::Percent(0));
    assert_eq!((fleet.changes().as_str(), fleet.retaining_code("n")), ("", "budget"));

    // A node that is too large is replaced, a well utilized one is not.
    for (cpu_milli, expect) in [(1000, "n -> s2/a/on-demand"), (7000, "")] {
        let mut fleet = balanced_pool(sizes());
        fleet.node("n", "s8");
        fleet.pod("p", "n", cpu_milli);
        assert_eq!(fleet.changes(), expect);
    }

    // Many underutilized nodes are replaced by few.
    let mut fleet = balanced_pool(sizes());
    for at in 0..10 {
        fleet.node(&format!("n{at}"), "s4");
        fleet.pod(&format!("p{at}"), &format!("n{at}"), 500);
    }
    assert!(fleet.plan().retire.len() >= 8, "{}", fleet.changes());
}

/// The price of the disrupted nodes, and that of the launched ones.
fn prices(plan: &Plan) -> (f64, f64) {
    let prices = plan.retire.iter().map(|disrupted| disrupted.price.expect("a price"));
    let before: f64 = prices.map(|price| price.usd_per_h()).sum();
    (before, lowest_total_price(&plan.launches).usd_per_h())
}

/// Whether two pairs of prices are equal, up to rounding errors.
fn is_close((one, other): (f64, f64), expect: (f64, f64)) -> bool {
    (one - expect.0).abs() < 1e-9 && (other - expect.1).abs() < 1e-9
}

#[test]
fn savings_are_removed_price_minus_replacement_price() {
    type Change = fn(&mut Fleet);
    let rows: [(&str, Change, (f64, f64)); 6] = [
        ("spot is offered, but the pool is on-demand only", |_| {}, (0.8, 0.2)),
        (
            "the pool allows both capacity types",
            |it| it.configure(|cluster| cluster.pools[0] = buying("general", &[ON_DEMAND, SPOT])),
            (0.8, 0.2 / 3.0),
        ),
        (
            "the pool excludes the cheap zone",
            |it| {
                let cheap = instance_type("cheap", 2, &[(ON_DEMAND, "b", 0.01)]);
                let catalog = it.0.state.catalog.with([cheap]);
                it.0.state.apply_catalog(catalog.into());
                it.pool(|pool| pool.requirements.add(ZONE, Requirement::is_in(["a"])));
            },
            (0.8, 0.2),
        ),
        (
            "two nodes are replaced, each by a separate one",
            |it| {
                it.node_of("m", "general", ("s8", "b", ON_DEMAND));
                it.pod_as("q", "m", 3000, |pod| {
                    pod.node_selector.insert(ZONE.to_owned(), "b".to_owned());
                });
                it.pod_as("p", "n", 1000, |pod| {
                    pod.node_selector.insert(ZONE.to_owned(), "a".to_owned());
                });
            },
            (1.6, 0.6),
        ),
        (
            "the node is not replaced",
            |it| {
                it.node("other", "s2");
                it.pod("q", "other", 500);
            },
            (0.8, 0.0),
        ),
        (
            "there is no suitable type",
            |it| it.pool(|pool| pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(["s8"]))),
            (0.0, 0.0),
        ),
    ];
    for (what, change, expect) in rows {
        let mut fleet = Fleet::plain();
        fleet.node("n", "s8");
        fleet.pod("p", "n", 1000);
        fleet.0.pod(super::fixture::pod("daemon", "n", "DaemonSet"));
        change(&mut fleet);
        let plan = fleet.plan();
        let found = prices(&plan);
        assert!(is_close(found, expect), "{what}: {found:?} {}", plan_summary(&plan));
        // Daemon pods are not rescheduled.
        assert!(plan.retire.iter().all(|disrupted| disrupted.pods == 1), "{what}");
    }
}
