//! Samples of scheduled sweeps.

use jiff::Timestamp;

use crate::engine::views::measures::Measures;
use crate::telemetry::cluster_collector::SampleBuffer;

/// Adds the samples of all scheduled sweeps.
pub(super) fn add_sweeps(buffer: &mut SampleBuffer, measures: &Measures<'_>) {
    for (kind, sweep) in &measures.sweeps {
        let labels = [("sweep", kind.as_str())];
        for (name, at) in [
            ("outrigger_sweep_last_timestamp_seconds", sweep.last),
            ("outrigger_sweep_next_timestamp_seconds", sweep.next()),
            ("outrigger_sweep_overdue_timestamp_seconds", sweep.overdue_at()),
        ] {
            if let Some(at) = at {
                buffer.add_sample(name, &labels, unix_seconds(at));
            }
        }
        let Some(result) = sweep.result else {
            continue;
        };
        for (outcome, nodes) in [
            ("disrupted", result.disrupted),
            ("blocked", result.blocked),
            ("observed", result.observed),
        ] {
            let labels = [("sweep", kind.as_str()), ("outcome", outcome)];
            buffer.add_sample("outrigger_sweep_found_nodes", &labels, nodes as f64);
        }
    }
}

fn unix_seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
