//! Times consolidation: the time of a plan for a whole fleet, and the final cost of the fleet.
//!
//! ```text
//! cargo bench -p outrigger-bench --bench consolidate
//! ```

use std::time::{Duration, Instant};

use fastrand::Rng;
use jiff::Timestamp;
use outrigger::plan;
use outrigger_bench::fleet::Fleet;

/// The same allocator as in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time of every plan.
const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// Number of timed plans.
const RUNS: usize = 5;
/// Maximum number of moves until a fleet must be stable.
const STAGES_MAX: usize = 20;

fn main() {
    println!(
        "| nodes | pods taken away | ms of the view | ms of the plan | $/h | in the end | afresh | \
         above | stages | peak MiB |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for nodes in [1_000, 5_000] {
        for per_cent in [0, 30] {
            row(nodes, per_cent);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "time is what is measured here")]
fn row(nodes: usize, per_cent: u32) {
    let mut fleet = Fleet::standing(nodes, NOW);
    fleet.thin_out(&mut Rng::with_seed(1), per_cent);
    let state = fleet.state();
    let (mut views, mut plans) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        let (disruption_view, field) = (state.disruption_view(NOW), state.what_if(NOW));
        views.push(start.elapsed());
        let start = Instant::now();
        let plan = plan::consolidate(&disruption_view, &field, NOW);
        plans.push(start.elapsed());
        assert!(!plan.retire.is_empty(), "there is something to be saved");
    }
    let (before, afresh) = (fleet.cost(), fleet.afresh());
    let mut stages = 0;
    for _ in 0..STAGES_MAX {
        let plan = fleet.plan();
        if plan.retire.is_empty() {
            break;
        }
        fleet.carry_out(&plan);
        stages += 1;
    }
    let after = fleet.cost();
    println!(
        "| {nodes} | {per_cent} % | {:.0} | {:.0} | {before:.0} | {after:.0} | {afresh:.0} | \
         {:.1} % | {stages} | {} |",
        median(&mut views),
        median(&mut plans),
        100.0 * (after / afresh - 1.0),
        peak_mib().unwrap_or_default(),
    );
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    1000.0 * times[times.len() / 2].as_secs_f64()
}

/// Peak memory of this process. Available only on Linux.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}
