//! What consolidation makes of fleets with holes.
//! It must not know how a move is found.

use fastrand::Rng;
use jiff::Timestamp;
use outrigger::model::instance::Price;
use outrigger_bench::fleet::Fleet;
use outrigger_bench::workloads::{self, deployments, diverse};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Consolidates until nothing moves any more. Returns how many moves that took.
fn settle(fleet: &mut Fleet) -> usize {
    for stage in 0..10 {
        let plan = fleet.plan();
        if plan.retire.is_empty() {
            return stage;
        }
        let before = fleet.cost();
        fleet.carry_out(&plan);
        assert!(fleet.cost() < before, "each move saves something");
    }
    panic!("it does not come to rest");
}

#[test]
fn a_fleet_with_holes_costs_hardly_more_in_the_end_than_one_planned_afresh() {
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
            let what = format!("{name} {per_cent} %: {before} to {after}, afresh {afresh}");
            assert!(after <= 1.05 * afresh, "{what}");
            assert!(stages > 0 && after < before, "{what}");
        }
    }
}

#[test]
fn hardly_more_nodes_leave_than_it_takes() {
    let mut fleet = Fleet::standing(200, NOW);
    fleet.thin_out(&mut Rng::with_seed(1), 30);
    let (before, afresh) = (fleet.cost(), fleet.afresh());
    let plan = fleet.plan();
    let prices = plan.retire.iter().filter_map(|own| own.price);
    let leaves: f64 = prices.map(Price::usd_per_h).sum();
    fleet.carry_out(&plan);
    let (saved, all) = (before - fleet.cost(), before - afresh);
    assert!(saved >= 0.9 * all, "{saved} of {all} are saved");
    // What leaves saves its own price at most.
    assert!(
        leaves <= 2.0 * saved,
        "{leaves} $/h leave to save {saved} of {before}"
    );
}
