//! Times the solver: prints a table of the time and cost of each plan, then criterion's statistics.
//!
//! ```text
//! cargo bench -p outrigger-bench                      the table, then criterion
//! cargo bench -p outrigger-bench -- --table           the table alone
//! cargo bench -p outrigger-bench -- --table ec2       the table of the workloads named like this
//! cargo bench -p outrigger-bench -- diverse           both, of the workloads named like this
//! ```

mod table;

use std::time::Duration;

use criterion::{Criterion, Throughput};
use jiff::Timestamp;
use outrigger::scheduling::solve;
use outrigger_bench::workloads::{RECIPES, Recipe};

/// The same allocator as in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time of every plan.
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = wanted.map_or("", String::as_str);
    if has(table::ROW) {
        for recipe in RECIPES.iter().filter(|recipe| recipe.name == wanted) {
            println!("{}", table::row(recipe));
        }
        return;
    }
    let chosen: Vec<&Recipe> =
        RECIPES.iter().filter(|recipe| recipe.name.contains(wanted)).collect();
    if !has("--test") && !has("--list") {
        table::print(&chosen);
    }
    if !has("--table") {
        time(&chosen);
    }
}

/// Times each workload with criterion. No state is kept between samples. Every sample is a first
/// plan and includes all of its work, down to the counts of spread constraints.
fn time(recipes: &[&Recipe]) {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("solve");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    for recipe in recipes {
        let workload = (recipe.build)();
        let snapshot = workload.snapshot();
        group.throughput(Throughput::Elements(workload.pods.len() as u64));
        group.bench_function(recipe.name, |bencher| {
            bencher.iter_with_large_drop(|| solve(&snapshot, NOW));
        });
    }
    group.finish();
    criterion.final_summary();
}
