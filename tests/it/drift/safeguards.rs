//! Safeguards that block all disruption: too many unready nodes, or a configuration without
//! approval.

use outrigger::disruption::verdict::Verdict;
use outrigger::model::labels::{POOL, TAINT_DISRUPTED};
use outrigger::model::node::ConditionStatus;
use outrigger::model::pool::{BudgetNodes, Reason};
use outrigger::model::requirement::Requirement;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::template_hash::change_id;
use outrigger::plan::render::RenderedPlan;
use outrigger::plan::{Plan, plan_without_consolidation};
use outrigger::state::candidates::{NodeHealth, PendingApproval};

use super::{Fleet, at, pool};

/// Returns a fleet in which the first nodes are unready.
fn fleet_with_unready(nodes: usize, unready: usize) -> Fleet {
    let mut fleet = Fleet::of(nodes);
    for index in 0..unready {
        fleet.change_node(&format!("n{index}"), |own| own.ready = false);
    }
    fleet
}

#[test]
fn disruption_stops_if_too_many_nodes_are_unready() {
    // The limit is 45 %. The number of nodes, the number of unready ones, and whether the limit is
    // exceeded.
    for (nodes, unready, expect) in [
        (1, 1, false),
        (2, 2, false),
        (3, 3, true),
        (4, 3, true),
        (6, 3, false),
        (7, 4, false),
        (7, 5, true),
        (20, 9, false),
        (20, 10, true),
    ] {
        let fleet = fleet_with_unready(nodes, unready);
        let health = NodeHealth { unready, total: nodes };
        assert_eq!(fleet.plan(at(1)).ailing, expect.then_some(health), "{unready} of {nodes}");
    }
}

#[test]
fn nodes_kept_by_the_unready_limit_are_disrupted_after_it_ends() {
    let mut fleet = fleet_with_unready(6, 4);
    fleet.drift();
    fleet.change_node("n0", |own| own.set_condition("Ready", ConditionStatus::False, at(0)));
    fleet.claim("n5").record.expire_hard_after = Some(jiff::SignedDuration::from_mins(1));
    let plan = fleet.plan(at(60));
    assert_eq!(plan.retire, []);
    let health = NodeHealth { unready: 4, total: 6 };
    let kept = plan.kept.iter().filter(|own| own.verdict == Verdict::Health(health));
    assert_eq!(kept.count(), 6, "{:?}", plan.kept);
    fleet.configure(|own| own.safeguards.max_unready = BudgetNodes::Nodes(4));
    assert_eq!(fleet.plan(at(60)).ailing, None);
    assert!(!fleet.plan(at(60)).retire.is_empty());
}

#[test]
fn unready_limit_ignores_disrupted_and_uninitialized_managed_nodes() {
    let mut fleet = fleet_with_unready(4, 4);
    fleet.change_node("n0", |own| own.taints.push(Taint::new(TAINT_DISRUPTED, Effect::NoSchedule)));
    fleet.change_node("n1", |own| drop(own.labels.remove("karpenter.sh/initialized")));
    assert_eq!(fleet.plan(at(1)).ailing, None, "two of three nodes are unready");
    fleet.change_node("n1", |own| drop(own.labels.remove(POOL)));
    let health = NodeHealth { unready: 3, total: 4 };
    assert_eq!(fleet.plan(at(1)).ailing, Some(health));
}

#[test]
fn nodes_pending_approval_are_kept_and_others_still_drift() {
    let mut fleet = Fleet::of(3);
    fleet.node("n3", "p");
    fleet.configure(|own| own.pools[0].requirements.add("a", Requirement::is_in(["b"])));
    fleet.state.unaccepted = Some(PendingApproval {
        id: "x".into(),
        nodes: ["n0".into(), "n1".into()].into(),
        total: 4,
    });
    assert_eq!(
        fleet.disrupted(Reason::Drifted, at(1)),
        ["n3", "n2"],
        "these nodes had drifted before"
    );
    let pending = Some(Verdict::ApprovalPending { id: "x".into(), percent: 50 });
    assert_eq!(fleet.verdict("n0", Reason::Drifted, at(1)), pending);
    fleet.configure(|own| own.pools[0] = pool("p"));
    fleet.change(|own| own.replicas = Some(0));
    assert_eq!(fleet.plan(at(1)).retire, [], "a smaller number of replicas needs approval too");
    fleet.state.unaccepted = None;
    assert_eq!(fleet.disrupted(Reason::Surplus, at(1)).len(), 4);
}

#[test]
fn change_id_covers_only_changes_that_need_new_nodes() {
    let mut fleet = Fleet::of(0);
    let before = change_id(&fleet.state.cluster);
    fleet.change(|own| drop(own.labels.insert("a".into(), "b".into())));
    assert_eq!(change_id(&fleet.state.cluster), before);
    fleet.change(|own| own.replicas = Some(1));
    let number = change_id(&fleet.state.cluster);
    fleet.change(|own| own.requirements.add("a", Requirement::is_in(["b"])));
    let required = change_id(&fleet.state.cluster);
    fleet.configure(|own| own.pools.clear());
    let removed = change_id(&fleet.state.cluster);
    let mut all = vec![before, number, required, removed];
    assert!(all.iter().all(|own| own.len() == 16), "{all:?}");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4);
}

fn shown(fleet: &Fleet, now: jiff::Timestamp) -> (String, Plan) {
    let plan = plan_without_consolidation(
        &fleet.state.snapshot(now),
        &fleet.state.disruption_view(now),
        now,
    );
    let shown = RenderedPlan {
        sweeps: Default::default(),
        cluster: "one",
        plan: &plan,
        before: 1.0,
        solve_seconds: 0.0,
        missing: None,
        unbudgeted: None,
    };
    let text = shown.text() + &format!("{:#}\n", shown.json()["kept"]);
    (text, plan)
}

#[test]
fn plans_show_disrupted_and_kept_nodes_with_reasons() {
    let mut fleet = Fleet::of(12);
    fleet.drift();
    fleet.change(|own| own.disruption.budgets[0].nodes = BudgetNodes::Nodes(2));
    fleet.change_node("n3", |own| own.set_condition("Ready", ConditionStatus::Unknown, at(0)));
    fleet.state.unaccepted =
        Some(PendingApproval { id: "x".into(), nodes: ["n4".into()].into(), total: 12 });
    let (text, _) = shown(&fleet, at(9));
    insta::assert_snapshot!("drifted", text);
    for index in 0..8 {
        fleet.change_node(&format!("n{index}"), |own| own.ready = false);
    }
    let (text, plan) = shown(&fleet, at(40));
    insta::assert_snapshot!("ailing", text);
    assert!(plan.is_empty());
}
