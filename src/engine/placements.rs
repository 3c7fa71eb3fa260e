//! Planned placements of pods on existing nodes, as long as they are valid.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::{NodeName, PodKey};
use crate::plan::Plan;
use crate::state::snapshot::NodeRef;

/// Planned placements on nodes. Placements on new nodes are stored in the claims.
#[derive(Clone, Debug, Default)]
pub(super) struct Placements {
    pub(super) planned: BTreeMap<NodeName, Vec<PodKey>>,
    /// Pods that have a place. This set is computed at most once per pass.
    pub(super) housed: Option<BTreeSet<PodKey>>,
}

impl Placements {
    /// Records a full plan of all pending pods.
    pub(super) fn record_plan(&mut self, plan: &Plan) {
        self.planned.clear();
        self.add_places(plan);
    }

    /// Adds a plan of some pods to the last full plan.
    pub(super) fn add_partial_plan(&mut self, plan: &Plan) {
        let planned = plan.scheduled_pods();
        let before = self.planned.values_mut();
        before.for_each(|pods| pods.retain(|pod| !planned.contains(pod)));
        self.add_places(plan);
    }

    fn add_places(&mut self, plan: &Plan) {
        for (host, pods) in &plan.placed {
            if let NodeRef::Node(node) = host {
                let planned = self.planned.entry(node.clone()).or_default();
                planned.extend(pods.iter().cloned());
            }
        }
        self.housed = None;
    }

    /// Returns the pods planned onto existing nodes.
    pub(super) fn pods_on_existing_nodes(&self) -> impl Iterator<Item = &PodKey> {
        self.planned.values().flatten()
    }

    /// Discards computed results, because the cluster may have changed.
    pub(super) fn discard_computed(&mut self) {
        self.housed = None;
    }
}
