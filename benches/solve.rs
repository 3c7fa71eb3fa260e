//! Times the solver: a table of what each plan takes and costs, then criterion's statistics.
//! It must not know how the solver comes to its answers.
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

/// As the daemon has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The moment of every plan.
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
    let chosen: Vec<&Recipe> = RECIPES
        .iter()
        .filter(|recipe| recipe.name.contains(wanted))
        .collect();
    if !has("--test") && !has("--list") {
        table::print(&chosen);
    }
    if !has("--table") {
        time(&chosen);
    }
}

/// Lets criterion time each workload. Nothing is kept from one sample to the next: every one is a
/// first plan, and all that it takes is within it, up to the last count of a spread constraint.
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
