//! Queue of the nodes whose pods are evicted in waves.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::model::id::{ClaimId, PodKey};

/// A new node that remains tainted for pods that are still to be evicted.
pub(super) struct HeldNode {
    pub(super) id: ClaimId,
    /// Its pods that can wait for a wave.
    pub(super) reschedulable: Vec<PodKey>,
    /// True if its pods may be evicted now.
    pub(super) may_leave: bool,
}

/// New nodes whose pods may be evicted.
#[derive(Clone, Debug, Default)]
pub(super) struct Waves {
    /// Start of the wave of each node whose wave is not over.
    pub(super) begun: BTreeMap<ClaimId, Timestamp>,
    /// Pods of later waves.
    pub(super) later: BTreeSet<PodKey>,
}

impl Waves {
    /// Returns since when the pods of a new node may be evicted.
    pub(super) fn wave_start(&self, claim: &ClaimId) -> Option<Timestamp> {
        self.begun.get(claim).copied()
    }

    /// Returns whether a pod belongs to a later wave.
    pub(super) fn is_in_later_wave(&self, pod: &PodKey) -> bool {
        self.later.contains(pod)
    }

    /// Returns whether any wave is queued, or still has pods to be bound to their new nodes.
    pub(super) fn is_active(&self) -> bool {
        self.has_queued() || !self.begun.is_empty()
    }

    /// Returns whether any wave is queued.
    pub(super) fn has_queued(&self) -> bool {
        self.queued_pods() > 0
    }

    /// Returns the number of pods of later waves.
    pub(super) fn queued_pods(&self) -> usize {
        self.later.len()
    }
}
