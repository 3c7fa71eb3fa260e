//! The table of the time and cost of each workload's plan, as Markdown.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use outrigger::model::id::PodKey;
use outrigger::scheduling::{NewNodeClaim, Solution, solve};
use outrigger::state::snapshot::Snapshot;
use outrigger_bench::bound::bound;
use outrigger_bench::greedy::greedy;
use outrigger_bench::workloads::{Recipe, Workload};

use crate::NOW;

/// Requests one row. Each row is computed in a separate process, so that its memory is measured
/// separately.
pub(crate) const ROW: &str = "--row";

/// Maximum number of plans. The number is smaller if they take long.
const RUNS_MAX: usize = 21;
const LONG_ENOUGH: Duration = Duration::from_secs(10);
/// With more pods, the greedy algorithm takes minutes.
const GREEDY_PODS_MAX: usize = 20_000;

const HEAD: [&str; 13] = [
    "workload", "pods", "ms", "pods/s", "× rival", "nodes", "$/h", "bound", "above", "greedy",
    "unplaced", "in MiB", "peak MiB",
];
const NAME_WIDTH: usize = 31;
const WIDTH: usize = 9;

fn line(cells: &[String]) -> String {
    let (name, figures) = cells.split_first().expect("a name");
    let mut line = format!("| {name:NAME_WIDTH$} |");
    for figure in figures {
        line += &format!(" {figure:>WIDTH$} |");
    }
    line
}

/// Prints the table of these workloads.
pub(crate) fn print(recipes: &[&Recipe]) {
    println!("{}", line(&HEAD.map(str::to_owned)));
    let name = format!("|-{}-|", "-".repeat(NAME_WIDTH));
    let figure = format!("-{}:|", "-".repeat(WIDTH));
    println!("{name}{}", figure.repeat(HEAD.len() - 1));
    let program = env::current_exe().expect("the path of this program");
    for recipe in recipes {
        let status = Command::new(&program).args([ROW, recipe.name]).status();
        assert!(status.is_ok_and(|status| status.success()), "no row of {}", recipe.name);
    }
    println!();
}

/// Returns the row of a workload.
pub(crate) fn row(recipe: &Recipe) -> String {
    let workload = (recipe.build)();
    let snapshot = workload.snapshot();
    let before = memory_mib("VmRSS:");
    let (solution, took) = measure(&snapshot);
    let peak = memory_mib("VmHWM:");

    let pods = workload.pods.len();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = pods as f64 / took.as_secs_f64();
    let price = |claim: &NewNodeClaim| claim.offerings[0].1.usd_per_h();
    let cost: f64 = solution.claims.iter().map(price).fold(0.0, |sum, price| sum + price);
    let keys: BTreeSet<&PodKey> = solution.claims.iter().flat_map(|claim| &claim.pods).collect();
    let claimed = workload.pods.iter().filter(|pod| keys.contains(&pod.key));
    let least = bound(&snapshot, claimed).expect("a bound").usd_per_h;
    let above = |cost: f64| format!("{:.2} %", 100.0 * (cost / least - 1.0));
    let absent = || "–".to_owned();
    line(&[
        recipe.name.to_owned(),
        pods.to_string(),
        format!("{:.2}", 1000.0 * took.as_secs_f64()),
        format!("{rate:.0}"),
        recipe.rival.map_or_else(absent, |rival| format!("{:.0}", rate / rival)),
        solution.claims.len().to_string(),
        format!("{cost:.2}"),
        format!("{least:.2}"),
        if least > 0.0 { above(cost) } else { absent() },
        greedy_cost(&workload, &snapshot).map_or_else(absent, above),
        solution.unplaced.len().to_string(),
        before.map_or_else(absent, |mib| mib.to_string()),
        peak.map_or_else(absent, |mib| mib.to_string()),
    ])
}

/// Returns a plan and the median time of several plans, each without previous state.
#[expect(clippy::disallowed_methods, reason = "time is what is measured here")]
fn measure(snapshot: &Snapshot<'_>) -> (Solution, Duration) {
    let began = Instant::now();
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let solution = solve(snapshot, NOW);
        times.push(start.elapsed());
        if times.len() == RUNS_MAX || began.elapsed() > LONG_ENOUGH {
            times.sort();
            return (solution, times[times.len() / 2]);
        }
    }
}

/// Cost of the greedy plan, if it supports these pods.
fn greedy_cost(workload: &Workload, snapshot: &Snapshot<'_>) -> Option<f64> {
    let can = workload.is_plain() && workload.pods.len() <= GREEDY_PODS_MAX;
    can.then(|| greedy(snapshot, &workload.pods).usd_per_h)
}

/// Current or peak memory of this process. Available only on Linux.
fn memory_mib(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}
