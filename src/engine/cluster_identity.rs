//! Stops everything where the API server, the instances and the configuration are not of one
//! cluster: no launch, no end and no change of a Node, until they are or a person accepts it.
//! It must not know how that is found out.
//!
//! Why so: docs/decisions/036-which-cluster-this-is.md.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::model::id::{ClusterUid, InstanceId, NodeName};
use crate::state::cluster_identity::Mismatch;

/// Instances of more than one Node.
pub(super) type SameInstances = BTreeMap<InstanceId, BTreeSet<NodeName>>;

impl Engine {
    /// Compares what the API server shows with what instances say of themselves. While either is
    /// not known as a whole, what was found before holds.
    pub(super) fn check_identity(&mut self, now: Timestamp) {
        let cluster = &self.state.cluster;
        let kinds = cluster.kinds();
        let silence_max = cluster.api.silence_max();
        let views = self.state.views.fault(kinds, now, silence_max);
        let listed = self.state.ledger.is_settled() && self.looking.listing_fault.is_none();
        self.count_missing_nodes(now);
        if views.is_none() && listed {
            self.compare(now);
        }
    }

    /// The API server may answer for another cluster from one listing to the next: no command that
    /// was decided for the other is given out any more.
    pub(super) fn heed_cluster_uid(&mut self, before: Option<ClusterUid>, now: Timestamp) {
        if before.is_some() && before != self.state.cluster_uid() {
            self.compare(now);
        }
    }

    fn compare(&mut self, now: Timestamp) {
        let found = match self.state.mismatch() {
            Some(found) => Some(found),
            None => self.missing_nodes(),
        };
        let before = std::mem::replace(&mut self.looking.mismatch, found.clone());
        if before == found {
            return;
        }
        match found {
            Some(mismatch) => self.report(Report::Mismatch(mismatch)),
            None => self.report(Report::Matches),
        }
        self.withhold(now);
    }

    /// Takes back every command that would change something while that holds: the answer to one
    /// that was on its way may have led to another.
    pub(super) fn withhold(&mut self, now: Timestamp) {
        if self.looking.mismatch.is_some() {
            let why = "the API server and the instances are not of one cluster";
            self.withdraw(why, |own| !own.is_look(), now);
        }
    }

    /// Reports each of our instances whose providerID more than one Node has, once per set of
    /// Nodes.
    pub(super) fn tell_same_instances(&mut self) {
        let shared = self.state.objects.node_instances.shared();
        let ledger = &self.state.ledger;
        let ours = shared.filter(|(id, _)| ledger.by_instance(id.as_str()).is_some());
        let all: SameInstances = ours
            .map(|(id, nodes)| (id.clone(), nodes.clone()))
            .collect();
        for (instance, nodes) in &all {
            if self.same_instances.get(instance) != Some(nodes) {
                self.reports.push_back(Report::SameInstance {
                    instance: instance.clone(),
                    nodes: nodes.iter().cloned().collect(),
                });
            }
        }
        self.same_instances = all;
    }

    /// Why the API server, the instances and the configuration are not of one cluster, if so.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.looking.mismatch.as_ref()
    }
}
