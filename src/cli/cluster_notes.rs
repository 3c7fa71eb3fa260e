//! Notes on a cluster for `outrigger status` and `outrigger top`: unusual conditions, and changes
//! that wait for an approval.

use jiff::{SignedDuration, Timestamp};

use crate::engine::views::status::{ClusterStatus, Paused, SweepFindings, SweepStatus};
use crate::host::text::bounded_line;

/// Describes each unusual condition of a cluster in one line.
pub fn cluster_notes(status: &ClusterStatus, now: Timestamp) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(why) = &status.held_by {
        notes.push(format!("voluntary disruption is suspended: {}", bounded_line(why)));
    }
    notes.extend(status.undone.iter().map(|fault| bounded_line(fault)));
    if status.unready_nodes > 0 {
        notes.push(format!("nodes not ready: {}", status.unready_nodes));
    }
    if status.waiting_pods > 0 {
        let (waiting, unplaced) = (status.waiting_pods, status.unplaced_pods);
        notes.push(format!("pending pods: {waiting}, of which unschedulable: {unplaced}"));
    }
    if let Some(pause) = &status.paused {
        notes.push(describe_pause("the cluster", pause, now));
    }
    notes.extend(pending_approvals(status));
    for pool in &status.pools {
        if let Some(pause) = &pool.paused {
            notes.push(describe_pause(&format!("pool {}", bounded_line(&pool.name)), pause, now));
        }
    }
    notes
}

/// Describes each change that waits for an approval, with the command that approves it.
pub fn pending_approvals(status: &ClusterStatus) -> impl Iterator<Item = String> {
    let change = status.unaccepted.iter().map(|approval| {
        let (nodes, total, id) = (approval.nodes, approval.total, &approval.id);
        format!(
            "the new configuration would disrupt {nodes} of {total} nodes; to approve: \
             outrigger reload --accept {id}"
        )
    });
    let terminations = status.held_ends.iter().map(|approval| {
        let (instances, total, id) = (approval.nodes, approval.total, &approval.id);
        format!(
            "{instances} of {total} instances would be terminated without a drain; to approve: \
             outrigger reload --accept {id}"
        )
    });
    change.chain(terminations)
}

/// Describes the scheduled sweeps of one kind.
pub fn describe_sweep(sweep: &SweepStatus) -> String {
    let last = sweep.last.map_or("not run yet".to_owned(), |at| format!("last at {at}"));
    let found = sweep.found.map_or(String::new(), |found| {
        let SweepFindings { disrupted, blocked, observed } = found;
        let total = disrupted + blocked + observed;
        format!(", found {total} ({disrupted} disrupted, {blocked} blocked, {observed} observed)")
    });
    let overdue = if sweep.overdue { ", OVERDUE" } else { "" };
    let next = sweep.next.map_or("never".to_owned(), |at| format!("at {at}"));
    format!("sweep {}: {last}{found}, next {next}{overdue}", bounded_line(&sweep.kind))
}

fn describe_pause(target: &str, pause: &Paused, now: Timestamp) -> String {
    let until = match pause.until {
        Some(until) => {
            let left = until.duration_since(now).max(SignedDuration::ZERO);
            let left = SignedDuration::from_secs(left.as_secs());
            format!("for {left:#}, until {until}")
        }
        None => "until it is resumed".to_owned(),
    };
    format!("{target} is paused {until}: {}", bounded_line(&pause.reason))
}
