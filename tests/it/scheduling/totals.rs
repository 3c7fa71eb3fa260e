//! The totals of a plan, compared with the plan.

use std::collections::BTreeSet;

use jiff::Timestamp;
use outrigger::model::affinity::Gang;
use outrigger::model::id::PodKey;
use outrigger::model::pod::Pod;
use outrigger::scheduling::solution_cost::SolutionCost;
use outrigger::scheduling::{Solution, solve, solve_if_wanted};
use outrigger_bench::workloads::hopeless::hopeless;
use outrigger_bench::workloads::standing::standing;
use outrigger_bench::workloads::{Workload, deployments, diverse, fake, kwok};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Gangs of ten pods. Every third gang requires more pods than there are.
fn gangs() -> Vec<Pod> {
    let mut pods = diverse::plain(200);
    for (at, pod) in pods.iter_mut().enumerate() {
        let gang = at / 10;
        pod.gang = Some(Gang {
            name: format!("gang-{gang}"),
            least: Some(if gang % 3 == 0 { 11 } else { 10 }),
        });
    }
    pods
}

fn check(name: &str, workload: &Workload) {
    let snapshot = workload.snapshot();
    let solution = solve(&snapshot, NOW);
    let (weight, same) = solve_if_wanted(&snapshot, NOW, |_| true);
    assert_eq!(same.as_ref(), Some(&solution), "{name}");
    let mut observed = None;
    let (again, _) = solve_if_wanted(&snapshot, NOW, |cost| {
        observed = Some(cost.clone());
        false
    });
    assert_eq!(again, weight, "{name}");
    assert!(observed.is_none_or(|cost| cost == weight), "{name}");
    check_cost(name, &weight, &solution);
}

fn check_cost(name: &str, weight: &SolutionCost, solution: &Solution) {
    assert_eq!(weight.bought.len(), solution.claims.len(), "{name}");
    for (bought, claim) in weight.bought.iter().zip(&solution.claims) {
        let price = claim.offerings[0].1.usd_per_h();
        assert!((bought.price - price).abs() < 1e-9, "{name}: {claim:?}");
        let pods: u64 = bought.pods.iter().map(|(_, count)| count).sum();
        assert_eq!(pods, claim.pods.len() as u64, "{name}");
        let sizes = bought.pods.iter();
        let cpu = sizes.map(|((cpu, _), count)| cpu * i64::try_from(*count).expect("few"));
        assert!(cpu.sum::<i64>() <= claim.requests.cpu_milli, "{name}");
    }
    let left: BTreeSet<&PodKey> = weight.left.iter().collect();
    let unplaced = solution.unplaced.iter().map(|rejected| &rejected.pod);
    assert_eq!(left, unplaced.collect(), "{name}");
    assert_eq!(left.len(), weight.left.len(), "{name}");
}

#[test]
fn solution_cost_equals_the_contents_of_the_plan() {
    for (name, workload) in [
        ("two", kwok(deployments::two())),
        ("diverse", fake(diverse::diverse(300))),
        ("preferences", fake(diverse::preferences(200))),
        ("gangs", fake(gangs())),
        ("hopeless", hopeless()),
        ("standing", standing()),
    ] {
        check(name, &workload);
    }
}
