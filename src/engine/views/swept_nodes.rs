//! Requested sweeps: the result, and a dry run.

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::garbage_collection::preview_orphans;
use crate::engine::sweep_result::{SweepRun, SweptNode, found_nodes, nodes_of_request};
use crate::model::sweep::{SweepKind, SweepRequest};
use crate::plan;
use crate::state::candidates::DisruptionView;

impl Engine {
    /// Returns the result of a requested sweep, once it has run.
    pub fn sweep_run(&self, kind: SweepKind, id: u64) -> Option<&SweepRun> {
        self.cx.sweep_runs.get(&kind).filter(|run| run.id == id)
    }

    /// Returns the nodes that a requested sweep would find now, and changes nothing. Nodes that it
    /// would disrupt have the outcome of observed nodes.
    pub fn preview_sweep(&self, request: &SweepRequest, now: Timestamp) -> Vec<SweptNode> {
        let state = &self.cx.state;
        let sweeps = state.sweeps.with_request(request.clone(), now);
        let view = DisruptionView { sweeps: Some(&sweeps), ..state.disruption_view(now) };
        let found = match request.kind {
            SweepKind::Orphans => preview_orphans(&self.cx, &self.unclaimed),
            SweepKind::Consolidation => {
                let plan = plan::consolidate(&view, &state.what_if(now), now);
                found_nodes(state, request.kind, &plan, false)
            }
            SweepKind::Drift | SweepKind::Expiry | SweepKind::Repair => {
                let plan = plan::select_disruptions(&view, now);
                found_nodes(state, request.kind, &plan, false)
            }
        };
        nodes_of_request(&found, request)
    }

    /// Returns why a requested sweep would not start now.
    pub fn sweep_obstacle(&self, now: Timestamp) -> Option<String> {
        if let Some(mismatch) = self.mismatch() {
            return Some(mismatch.to_string());
        }
        let fault = self.cx.state.notes.fault.clone();
        self.missing_information(now).or(fault)
    }
}
