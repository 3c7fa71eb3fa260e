//! Runs many seeds to their end and prints violated invariants.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::{SimulateArgs, VIOLATIONS};
use crate::cli::{FAILED, success_or};
use crate::host::clock::Stopwatch;
use crate::sim::invariants::Violation;
use crate::sim::{Setup, World};

/// Runs `count` seeds on all cores. Fails if any invariant is violated.
pub(super) fn run(
    setup_of: &(dyn Fn(u64) -> Setup + Sync),
    count: u64,
    arguments: &SimulateArgs,
) -> io::Result<ExitCode> {
    let (first, faults) = (arguments.seed, arguments.faults);
    let watch = Stopwatch::start();
    let next = AtomicU64::new(0);
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut failed: Vec<(u64, Vec<Violation>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    loop {
                        let offset = next.fetch_add(1, Ordering::Relaxed);
                        if offset >= count {
                            return failed;
                        }
                        let seed = first.wrapping_add(offset);
                        let mut world = World::new(setup_of(seed), seed, faults);
                        let violations = world.run_and_check();
                        if !violations.is_empty() {
                            failed.push((seed, violations.to_vec()));
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|worker| {
                worker.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))
            })
            .collect()
    });
    failed.sort_by_key(|(seed, _)| *seed);
    let mut out = io::stdout().lock();
    for (seed, violations) in &failed {
        writeln!(out, "seed {seed}: {}", arguments.repeat_command(*seed))?;
        for violation in violations.iter().take(VIOLATIONS) {
            writeln!(out, "  {violation}")?;
        }
        if violations.len() > VIOLATIONS {
            writeln!(out, "  and {} more", violations.len() - VIOLATIONS)?;
        }
    }
    let (bad, seconds) = (failed.len(), watch.elapsed().as_secs_f64());
    writeln!(out, "{count} seeds, {bad} failed, {seconds:.1} s")?;
    Ok(success_or(FAILED, bad == 0))
}
