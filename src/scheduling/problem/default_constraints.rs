//! Default topology spread of pods that define none. The constraints come from the configuration of
//! kube-scheduler, and count the pods that the same selectors match.

use std::collections::BTreeMap;

use crate::model::affinity::TopologySpread;
use crate::model::pod::{Owner, Pod};
use crate::model::selector::Selector;
use crate::state::selectors::WorkloadSelectors;
use crate::state::snapshot::Snapshot;

/// Default topology spread of pods, computed once per group of identical pods.
#[derive(Debug)]
pub(crate) struct DefaultConstraints<'a> {
    configured: &'a [TopologySpread],
    selectors: &'a WorkloadSelectors,
    /// Ordinal of the default spread, by ordinal of namespace and labels, and by controller.
    deduced: BTreeMap<(usize, Option<&'a Owner>), Option<usize>>,
    by_selector: BTreeMap<Selector, usize>,
    all: Vec<Vec<TopologySpread>>,
}

impl<'a> DefaultConstraints<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot<'a>) -> Self {
        Self {
            configured: &snapshot.cluster.scheduling.default_spread,
            selectors: snapshot.selectors,
            deduced: BTreeMap::new(),
            by_selector: BTreeMap::new(),
            all: Vec::new(),
        }
    }

    /// Returns the ordinal of the default spread of a pod, or `None` if the pod has its own spread
    /// or no selector matches. Source: kube-scheduler, PodTopologySpread,
    /// `buildDefaultConstraints`.
    pub(crate) fn ordinal_for(&mut self, pod: &'a Pod, labels: usize) -> Option<usize> {
        if self.configured.is_empty() || !pod.spread.is_empty() {
            return None;
        }
        let key = (labels, pod.owner.as_ref());
        if let Some(known) = self.deduced.get(&key) {
            return *known;
        }
        let selector =
            self.selectors.default_spread_selector(&pod.key.namespace, &pod.labels, key.1);
        let ordinal = selector.map(|selector| self.ordinal_of(selector));
        self.deduced.insert(key, ordinal);
        ordinal
    }

    /// Constraints by their ordinal.
    pub(crate) fn get(&self, ordinal: usize) -> &[TopologySpread] {
        &self.all[ordinal]
    }

    fn ordinal_of(&mut self, selector: Selector) -> usize {
        if let Some(known) = self.by_selector.get(&selector) {
            return *known;
        }
        let constraints = self.configured.iter().map(|configured| TopologySpread {
            selector: Some(selector.clone()),
            ..configured.clone()
        });
        let ordinal = self.all.len();
        self.all.push(constraints.collect());
        self.by_selector.insert(selector, ordinal);
        ordinal
    }
}
