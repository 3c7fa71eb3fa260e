//! Detects that the API server, the instances and the configuration belong to different clusters.
//! Launches, terminations and Node changes are then suspended until all three match or a user
//! approves the mismatch.
//!
//! The reasons are in docs/decisions/036-cluster-identity.md.

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::controllers::{SameInstances, Unclaimed};
use crate::engine::report::Report;
use crate::engine::undrained_terminations;
use crate::model::id::ClusterUid;

impl Engine {
    /// Reports the result of the first comparison even if everything matches: the engine of the
    /// last leadership term reported a mismatch, and the end of the mismatch would otherwise not be
    /// reported.
    pub fn report_first_match(&mut self) {
        self.cx.sync.reports_match = true;
    }
}

impl Unclaimed {
    /// Reports each instance whose providerID several Nodes have. Each set of Nodes is reported
    /// once.
    pub(super) fn report_same_instances(&mut self, cx: &mut Context) {
        let shared = cx.state.objects.node_instances.shared_instances();
        let ledger = &cx.state.ledger;
        let ours = shared.filter(|(id, _)| ledger.by_instance(id.as_str()).is_some());
        let instances: SameInstances =
            ours.map(|(id, nodes)| (id.clone(), nodes.clone())).collect();
        for (instance, nodes) in &instances {
            if self.same_instances.get(instance) != Some(nodes) {
                cx.outbox.reports.push_back(Report::SameInstance {
                    instance: instance.clone(),
                    nodes: nodes.iter().cloned().collect(),
                });
            }
        }
        self.same_instances = instances;
    }
}

/// Compares the API server with the tags of the instances. While either of the two is not fully
/// known, the previous result remains valid.
pub(super) fn check_identity(cx: &mut Context, now: Timestamp) {
    let cluster = &cx.state.cluster;
    let kinds = cluster.watched_kinds();
    let silence_max = cluster.api.silence_max();
    let views = cx.state.views.sync_fault(kinds, now, silence_max);
    let listed = cx.state.ledger.is_settled() && cx.sync.listing_fault.is_none();
    undrained_terminations::count_missing_nodes(cx, now);
    if views.is_none() && listed {
        compare_identity(cx);
    }
}

/// Handles a changed cluster UID. The API server may belong to a different cluster from one
/// listing to the next, so queued commands for the old cluster are cancelled.
pub(super) fn check_cluster_uid(cx: &mut Context, before: Option<ClusterUid>) {
    if before.is_some() && before != cx.state.cluster_uid() {
        compare_identity(cx);
    }
}

fn compare_identity(cx: &mut Context) {
    let found = match cx.state.identity_mismatch() {
        Some(found) => Some(found),
        None => undrained_terminations::missing_nodes_mismatch(cx),
    };
    let before = std::mem::replace(&mut cx.sync.mismatch, found.clone());
    let reports_match = std::mem::take(&mut cx.sync.reports_match);
    if before == found && !(reports_match && found.is_none()) {
        return;
    }
    match found {
        Some(mismatch) => cx.outbox.push_report(Report::Mismatch(mismatch)),
        None => cx.outbox.push_report(Report::Matches),
    }
    cancel_during_mismatch(cx);
}

/// During a mismatch, cancels all queued commands that change something. The result of an in-flight
/// command may have queued such a command.
pub(super) fn cancel_during_mismatch(cx: &mut Context) {
    if cx.sync.mismatch.is_some() {
        let why = "the API server and the instances belong to different clusters";
        cx.outbox.cancel_queued(why, |command| !command.is_read_only());
    }
}
