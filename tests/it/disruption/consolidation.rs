//! Consolidation of fleets with free capacity.

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use outrigger::model::instance::Price;
use outrigger::model::pool::Consolidation;
use outrigger::plan::{self, Plan, next_due};
use outrigger_bench::fleet::Fleet;
use outrigger_bench::workloads::{self, deployments, diverse};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Consolidates until there is nothing to do. Returns the number of plans.
fn settle(fleet: &mut Fleet) -> usize {
    for stage in 0..10 {
        let plan = fleet.plan();
        if plan.retire.is_empty() {
            return stage;
        }
        let before = fleet.cost();
        fleet.carry_out(&plan);
        assert!(fleet.cost() < before, "each plan must save cost");
    }
    panic!("consolidation does not end");
}

#[test]
fn consolidated_fleet_costs_little_more_than_a_new_plan() {
    let mut random = Rng::with_seed(1);
    for (name, workload) in [
        ("two", workloads::kwok(deployments::two())),
        ("thirty", workloads::kwok(deployments::thirty())),
        ("plain", workloads::ec2_cmr(diverse::plain(400))),
        ("diverse", workloads::fake(diverse::diverse(300))),
    ] {
        for per_cent in [10, 30, 60] {
            let mut fleet = Fleet::planned(workload.clone(), NOW);
            fleet.thin_out(&mut random, per_cent);
            fleet.end_empty();
            let (before, afresh) = (fleet.cost(), fleet.afresh());
            let stages = settle(&mut fleet);
            let after = fleet.cost();
            let what = format!("{name} {per_cent} %: {before} to {after}, new plan {afresh}");
            assert!(after <= 1.05 * afresh, "{what}");
            assert!(stages > 0 && after < before, "{what}");
        }
    }
}

#[test]
fn consolidation_disrupts_few_more_nodes_than_necessary() {
    let mut fleet = Fleet::standing(200, NOW);
    fleet.thin_out(&mut Rng::with_seed(1), 30);
    let (before, afresh) = (fleet.cost(), fleet.afresh());
    let plan = fleet.plan();
    let prices = plan.retire.iter().filter_map(|disrupted| disrupted.price);
    let disrupted_price: f64 = prices.map(Price::usd_per_h).sum();
    fleet.carry_out(&plan);
    let (saved, all) = (before - fleet.cost(), before - afresh);
    assert!(saved >= 0.9 * all, "{saved} of {all} are saved");
    // A disrupted node saves its own price at most.
    assert!(
        disrupted_price <= 2.0 * saved,
        "{disrupted_price} $/h are disrupted to save {saved} of {before}"
    );
}

/// The saved share of the total cost, divided by the used share of the total disruption cost.
fn score(fleet: &Fleet, plan: &Plan) -> f64 {
    let state = fleet.state();
    let disruption_view = state.disruption_view(NOW);
    let all: f64 = disruption_view.candidates.iter().map(|candidate| candidate.cost).sum();
    let candidates = disruption_view
        .candidates
        .iter()
        .filter(|disrupted| plan.retire.iter().any(|it| it.node == disrupted.node.name));
    let disrupted: f64 = candidates.map(|candidate| candidate.cost).sum();
    let mut after = fleet.clone();
    after.carry_out(plan);
    (1.0 - after.cost() / fleet.cost()) / (disrupted / all)
}

#[test]
fn balanced_consolidation_is_worth_its_disruption() {
    let mut fleet = Fleet::standing(300, NOW);
    let greedy = score(&fleet, &fleet.plan());
    assert!(greedy < 0.5, "{greedy}");
    fleet.configure(|pool| pool.disruption.consolidation = Consolidation::Balanced);
    let plan = fleet.plan();
    let balanced = score(&fleet, &plan);
    assert!(!plan.retire.is_empty() && balanced >= 0.5, "{balanced}");
    let codes = plan.kept.iter().map(|retained| retained.verdict.code());
    assert_eq!(
        codes.filter(|code| *code == "not_worth_disruption").count(),
        300 - plan.retire.len()
    );
}

#[test]
fn nodes_at_the_utilization_threshold_are_retained() {
    let mut fleet = Fleet::standing(100, NOW);
    fleet.thin_out(&mut Rng::with_seed(1), 30);
    let state = fleet.state();
    let disruption_view = state.disruption_view(NOW);
    let used = |name: &str| {
        let mut all = disruption_view.candidates.iter();
        let found = all.find(|it| it.node.name.as_str() == name);
        found.and_then(|it| it.utilization).expect("a utilization")
    };
    let names = disruption_view.candidates.iter().map(|candidate| candidate.node.name.as_str());
    let mut sorted: Vec<u32> = names.map(used).collect();
    sorted.sort_unstable();
    let median = sorted[50];
    fleet.configure(|pool| pool.disruption.utilization_threshold = Some(median));
    let plan = fleet.plan();
    assert!(!plan.retire.is_empty());
    let most = plan.retire.iter().map(|disrupted| used(disrupted.node.as_str())).max();
    assert!(most < Some(median), "{most:?} of {median}");
    let kept = plan
        .kept
        .iter()
        .filter(|retained| retained.verdict.code() == "above_utilization_threshold");
    let least = kept.map(|retained| used(retained.node.as_str())).min();
    assert_eq!(least, Some(median));
}

#[test]
fn nodes_are_consolidated_only_after_unneeded_for() {
    let mut fleet = Fleet::standing(50, NOW);
    let hour = SignedDuration::from_hours(1);
    fleet.configure(|pool| pool.disruption.unneeded_for = hour);
    let plan = fleet.plan();
    assert!(plan.retire.is_empty());
    let due = next_due(&plan.kept).expect("a due time");
    assert_eq!(due, NOW + hour);
    let state = fleet.state();
    let plan = plan::consolidate(&state.disruption_view(due), &state.what_if(due), due);
    assert!(!plan.retire.is_empty());
}
