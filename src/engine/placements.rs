//! Where the pods of nodes that leave will go: what was planned last, as long as it is still so.
//! It must not know why a node leaves, nor who waits for these places.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::engine::Engine;
use crate::model::id::{NodeName, PodKey};
use crate::plan::Plan;
use crate::state::node_claims::NodeClaim;
use crate::state::snapshot::NodeRef;

/// Pods that were planned onto nodes, by these; claims say themselves whom they are made for.
#[derive(Clone, Debug, Default)]
pub(super) struct Placements {
    planned: BTreeMap<NodeName, Vec<PodKey>>,
    /// Pods that have a place, once anyone has asked in this pass.
    housed: Option<BTreeSet<PodKey>>,
}

impl Placements {
    /// All pods that wait have been planned.
    pub(super) fn planned(&mut self, plan: &Plan) {
        self.planned.clear();
        self.add(plan);
    }

    /// Some pods have been planned beside all others.
    pub(super) fn planned_too(&mut self, plan: &Plan) {
        let anew = plan.pods();
        let before = self.planned.values_mut();
        before.for_each(|own| own.retain(|pod| !anew.contains(pod)));
        self.add(plan);
    }

    fn add(&mut self, plan: &Plan) {
        for (host, pods) in &plan.placed {
            if let NodeRef::Node(node) = host {
                let planned = self.planned.entry(node.clone()).or_default();
                planned.extend(pods.iter().cloned());
            }
        }
        self.housed = None;
    }

    /// Pods that were planned onto nodes which are there.
    pub(super) fn on_nodes(&self) -> impl Iterator<Item = &PodKey> {
        self.planned.values().flatten()
    }

    /// The cluster may be another.
    pub(super) fn doubt(&mut self) {
        self.housed = None;
    }
}

impl Engine {
    /// Whether each of these pods, which will have to move, has a place on a node that is ready, be
    /// it held for such pods, and that stays. One that has only just come to a node that leaves has
    /// not been planned for at all; one whose claim came to nothing, or whose place another one
    /// took, waits again.
    pub(super) fn have_places(&mut self, pods: &[PodKey], now: Timestamp) -> bool {
        if pods.is_empty() {
            return true;
        }
        if self.places.housed.is_none() {
            let is_prepared = |own: &NodeClaim| self.is_prepared(own);
            let housed = self.state.housed(&self.places.planned, is_prepared, now);
            self.places.housed = Some(housed.into_iter().cloned().collect());
        }
        let housed = self.places.housed.as_ref();
        housed.is_some_and(|housed| pods.iter().all(|pod| housed.contains(pod)))
    }
}
