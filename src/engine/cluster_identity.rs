//! Detects that the API server, the instances and the configuration belong to different clusters.
//! Launches, terminations and Node changes are then suspended until they match or a user approves
//! it.
//!
//! The reasons are in docs/decisions/036-cluster-identity.md.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::id::{ClusterUid, InstanceId, NodeName};
use crate::state::cluster_identity::Mismatch;

/// Instances with more than one Node.
pub(super) type SameInstances = BTreeMap<InstanceId, BTreeSet<NodeName>>;

impl Engine {
    /// Compares the API server with the tags of the instances. While either is not fully known, the
    /// previous result remains valid.
    pub(super) fn check_identity(&mut self, now: Timestamp) {
        let cluster = &self.state.cluster;
        let kinds = cluster.watched_kinds();
        let silence_max = cluster.api.silence_max();
        let views = self.state.views.sync_fault(kinds, now, silence_max);
        let listed = self.state.ledger.is_settled() && self.looking.listing_fault.is_none();
        self.count_missing_nodes(now);
        if views.is_none() && listed {
            self.compare_identity();
        }
    }

    /// Handles a changed cluster UID. The API server may belong to a different cluster from one
    /// listing to the next, so queued commands for the old cluster are cancelled.
    pub(super) fn check_cluster_uid(&mut self, before: Option<ClusterUid>) {
        if before.is_some() && before != self.state.cluster_uid() {
            self.compare_identity();
        }
    }

    fn compare_identity(&mut self) {
        let found = match self.state.identity_mismatch() {
            Some(found) => Some(found),
            None => self.missing_nodes(),
        };
        let before = std::mem::replace(&mut self.looking.mismatch, found.clone());
        let reports_match = std::mem::take(&mut self.looking.reports_match);
        if before == found && !(reports_match && found.is_none()) {
            return;
        }
        match found {
            Some(mismatch) => self.push_report(Report::Mismatch(mismatch)),
            None => self.push_report(Report::Matches),
        }
        self.cancel_during_mismatch();
    }

    /// Cancels all queued commands that change something during a mismatch. The result of an
    /// in-flight command may have queued one.
    pub(super) fn cancel_during_mismatch(&mut self) {
        if self.looking.mismatch.is_some() {
            let why = "the API server and the instances belong to different clusters";
            self.cancel_queued(why, |command| !command.is_read_only());
        }
    }

    /// Reports each instance whose providerID several Nodes have, once per set of Nodes.
    pub(super) fn report_same_instances(&mut self) {
        let shared = self.state.objects.node_instances.shared_instances();
        let ledger = &self.state.ledger;
        let ours = shared.filter(|(id, _)| ledger.by_instance(id.as_str()).is_some());
        let instances: SameInstances =
            ours.map(|(id, nodes)| (id.clone(), nodes.clone())).collect();
        for (instance, nodes) in &instances {
            if self.same_instances.get(instance) != Some(nodes) {
                self.reports.push_back(Report::SameInstance {
                    instance: instance.clone(),
                    nodes: nodes.iter().cloned().collect(),
                });
            }
        }
        self.same_instances = instances;
    }

    /// Reports the result of the first comparison even if everything matches: the engine of the
    /// last leadership term reported a mismatch, and its end would otherwise not be reported.
    pub fn report_first_match(&mut self) {
        self.looking.reports_match = true;
    }

    /// Returns the mismatch of the API server, the instances and the configuration, if there is
    /// one.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.looking.mismatch.as_ref()
    }
}
