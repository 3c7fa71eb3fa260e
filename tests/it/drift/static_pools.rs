//! Static pools with drifted nodes: replaced one by one, within their limits.

use outrigger::disruption::verdict::Verdict;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::pool::{BudgetNodes, Pool, Reason};

use super::{Fleet, at, pool};

/// Returns a static pool with this number of replicas and this limit of nodes.
fn static_pool(name: &str, replicas: u32, most: Option<u32>) -> Pool {
    let mut pool = pool(name);
    pool.replicas = Some(replicas);
    pool.limits.nodes = most;
    pool
}

/// Returns a fleet with this pool and this many drifted nodes.
fn fleet(nodes: u32, pool: Pool) -> Fleet {
    let mut fleet = Fleet::new(vec![pool]);
    for at in 0..nodes {
        fleet.node(&format!("n{at}"), "p");
    }
    fleet.drift();
    fleet
}

fn drifted(fleet: &Fleet) -> usize {
    fleet.disrupted(Reason::Drifted, at(1)).len()
}

#[test]
fn each_static_pool_has_its_own_budget() {
    for (nodes, expect) in
        [(BudgetNodes::Nodes(2), 2), (BudgetNodes::Percent(30), 3), (BudgetNodes::Nodes(0), 0)]
    {
        let mut fleet = fleet(10, static_pool("p", 10, None));
        fleet.change(|own| own.disruption.budgets[0].nodes = nodes);
        assert_eq!(drifted(&fleet), expect, "{nodes:?}");
    }
    let mut fleet = fleet(4, static_pool("p", 4, None));
    fleet.configure(|own| own.pools.push(static_pool("q", 3, Some(4))));
    for at in 0..3 {
        fleet.node(&format!("q{at}"), "q");
    }
    fleet.drift();
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    assert_eq!(fleet.disrupted(Reason::Drifted, at(1)), ["n0", "n1", "q0"]);
}

#[test]
fn node_limit_bounds_the_replacement_of_static_nodes() {
    for (most, expect) in [(Some(4), 0), (Some(5), 1), (Some(6), 2), (Some(99), 4), (None, 4)] {
        let fleet = fleet(4, static_pool("p", 4, most));
        assert_eq!(drifted(&fleet), expect, "{most:?}");
        let kept = fleet.verdict("n3", Reason::Drifted, at(1));
        assert_eq!(kept, (expect < 4).then_some(Verdict::Limits), "{most:?}");
    }
    // Disrupted nodes count until they are gone, and so do their replacements.
    let mut fleet = fleet(4, static_pool("p", 4, Some(6)));
    fleet.start_disruption("n0", Reason::Drifted);
    assert_eq!(drifted(&fleet), 2);
    fleet.node("n4", "p");
    assert_eq!(drifted(&fleet), 1);
    fleet.state.ledger.remove(&"n0".into());
    assert_eq!(drifted(&fleet), 2);
}

#[test]
fn surplus_nodes_are_removed_before_drifted_nodes() {
    let fleet = fleet(4, static_pool("p", 3, None));
    let plan = fleet.plan(at(1));
    let reasons: Vec<Reason> = plan.retire.iter().map(|own| own.reason).collect();
    assert_eq!(reasons, [Reason::Surplus]);
    let stays = plan.kept.iter().filter(|own| own.verdict == Verdict::TooMany);
    assert_eq!(stays.count(), 3);
}

#[test]
fn zero_replicas_remove_all_nodes_and_annotated_nodes_are_kept() {
    let empty_pool = fleet(2, static_pool("p", 0, None));
    assert_eq!(empty_pool.disrupted(Reason::Surplus, at(1)), ["n0", "n1"]);
    assert_eq!(drifted(&empty_pool), 0);
    let mut own = fleet(2, static_pool("p", 2, None));
    own.change_node("n0", |own| drop(own.annotations.insert(DO_NOT_DISRUPT.into(), "true".into())));
    assert_eq!(own.disrupted(Reason::Drifted, at(1)), ["n1"]);
    let mut same = Fleet::new(vec![static_pool("p", 1, None)]);
    same.node("n0", "p");
    assert_eq!(drifted(&same), 0, "it has not drifted");
}
