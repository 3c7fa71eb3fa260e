//! Disruptions that a displayed plan of one cluster predicts: immediate ones and consolidations.

use outrigger::model::pool::{Budget, BudgetNodes, Reason};
use outrigger::plan::render::RenderedPlan;
use outrigger::plan::{Plan, full_plan, plan_without_budgets};
use outrigger::state::snapshot::NodeRef;

use super::consolidation_fixture::Fleet;
use super::fixture::NOW;

/// An empty node, a nearly full one, and one whose pod would fit on the nearly full one.
fn fleet(budget: u32) -> Fleet {
    let mut fleet = Fleet::plain();
    fleet.pool(|pool| {
        pool.disruption.budgets = vec![Budget {
            nodes: BudgetNodes::Nodes(budget),
            rate: None,
            reasons: Vec::new(),
            during: None,
        }];
    });
    fleet.node("empty", "s2");
    fleet.node("full", "s4");
    fleet.node("idle", "s4");
    fleet.pod("much", "full", 3500);
    fleet.pod("little", "idle", 300);
    fleet
}

fn retired(plan: &Plan) -> Vec<(&str, Reason)> {
    let all = plan.retire.iter();
    all.map(|disrupted| (disrupted.node.as_str(), disrupted.reason)).collect()
}

#[test]
fn full_plan_disrupts_empty_and_underutilized_nodes() {
    let fleet = fleet(3);
    let plan = full_plan(&fleet.0.state, NOW);
    let both = [("empty", Reason::Empty), ("idle", Reason::Underutilized)];
    assert_eq!(retired(&plan), both);
    let hosts: Vec<String> = plan.placed.iter().map(|placement| placement.0.to_string()).collect();
    assert_eq!((hosts, plan.launches.len()), (vec!["node full".to_owned()], 0));
    assert!(plan.saves.usd_per_h() > 0.0);
}

#[test]
fn emptiness_uses_the_budget_before_consolidation() {
    let plan = full_plan(&fleet(1).0.state, NOW);
    assert_eq!(retired(&plan), [("empty", Reason::Empty)]);
    let kept = plan.kept.iter().find(|retained| {
        retained.node.as_str() == "idle" && retained.reason == Reason::Underutilized
    });
    assert_eq!(kept.map(|retained| retained.verdict.code()), Some("budget"));
}

#[test]
fn plan_shows_further_savings_that_budgets_delay() {
    let fleet = fleet(1);
    let state = &fleet.0.state;
    let (plan, all) = (full_plan(state, NOW), plan_without_budgets(state, NOW));
    let both = [("empty", Reason::Empty), ("idle", Reason::Underutilized)];
    assert_eq!(retired(&all), both);
    let rendered = |unbudgeted| RenderedPlan {
        sweeps: Default::default(),
        cluster: "one",
        plan: &plan,
        before: state.total_cost(),
        solve_seconds: 0.0,
        missing: None,
        unbudgeted,
    };
    let with = rendered(Some(&all));
    let json = with.json();
    let number = |name: &str| json[name].as_f64().expect("a number");
    assert!(number("usd_per_h_unbudgeted") < number("usd_per_h_after"), "{json:#}");
    let words = "As disruption budgets allow, later passes reduce the cost to $";
    assert!(with.text().contains(words), "{}", with.text());
    for none in [None, Some(&plan)] {
        assert!(!rendered(none).text().contains("budgets allow"), "there are no further savings");
    }
}

#[test]
fn node_for_a_pending_pod_is_retained_and_gets_no_other_pods() {
    let mut fleet = fleet(3);
    fleet.waiting("waits", 400);
    let plan = full_plan(&fleet.0.state, NOW);
    let takes = |name: &str| {
        let host = NodeRef::Node(name.into());
        let all = plan.placed.iter().filter(|placement| placement.0 == host);
        let pods: Vec<String> =
            all.flat_map(|placement| &placement.1).map(ToString::to_string).collect();
        pods
    };
    let hosts = ["empty", "full", "idle"];
    let taking = hosts.map(|host| takes(host).iter().any(|pod| pod.ends_with("/waits")));
    let count = taking.iter().filter(|takes_pod| **takes_pod).count();
    assert_eq!(count, 1, "{plan:?}");
    for (name, takes_it) in hosts.into_iter().zip(taking) {
        if takes_it {
            assert_eq!(takes(name).len(), 1, "{plan:?}");
            assert!(retired(&plan).iter().all(|disrupted| disrupted.0 != name), "{plan:?}");
        }
    }
}
