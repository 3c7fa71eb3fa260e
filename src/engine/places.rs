//! Where the pods of nodes that leave will go: what was planned last, as long as it is still so.
//! It must not know why a node leaves, nor who waits for these places.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::engine::Engine;
use crate::model::id::{NodeName, PodKey};
use crate::plan::Plan;
use crate::state::snapshot::Host;

/// Pods that were planned onto nodes, with these; claims say themselves whom they are made for.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(BTreeMap<PodKey, NodeName>);

impl Places {
    /// All pods that wait have been planned.
    pub(super) fn planned(&mut self, plan: &Plan) {
        self.0.clear();
        for (host, pods) in &plan.placed {
            if let Host::Node(node) = host {
                self.0
                    .extend(pods.iter().map(|pod| (pod.clone(), node.clone())));
            }
        }
    }
}

impl Engine {
    /// Whether a pod that will have to move was planned onto a node that is ready, be it
    /// held for such pods, and that stays.
    /// One that has only just come to a node that leaves has not been planned for at all, nor has
    /// one whose claim came to nothing.
    pub(super) fn has_place(&self, pod: &PodKey, now: Timestamp) -> bool {
        let claims = self.state.ledger.claims.values();
        let mut claims = claims.filter(|own| own.pods.contains(pod)).peekable();
        if claims.peek().is_some() {
            return claims.all(|own| self.is_prepared(own, now) && own.leaving.is_none());
        }
        let name = self.places.0.get(pod);
        let node = name.and_then(|name| self.state.objects.nodes.get(name));
        let open = node.filter(|own| own.ready && !own.has_disrupted_taint());
        open.is_some_and(|own| {
            let claim = self.state.claim_of(own);
            claim.is_none_or(|claim| claim.leaving.is_none())
        })
    }
}
