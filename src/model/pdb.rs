//! PodDisruptionBudgets, as far as Outrigger evaluates them before the API server does.

use std::fmt;

use crate::model::id::ObjectKey;
use crate::model::pod::Pod;
use crate::model::selector::Selector;

/// `minAvailable` or `maxUnavailable` of the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A count.
    Count(i64),
    /// A percentage of the pods.
    Percent(u32),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pdb {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The pods of its namespace that it matches. An empty selector matches all pods. `None` and a
    /// contradictory selector match no pod.
    pub selector: Option<Selector>,
    /// `minAvailable`.
    pub min_available: Option<Bound>,
    /// `maxUnavailable`.
    pub max_unavailable: Option<Bound>,
    /// How many pods may be disrupted now, as last counted by the controller. Zero if the
    /// controller has not processed the current generation.
    pub disruptions_allowed: i64,
    /// How many pods the controller counted.
    pub expected_pods: i64,
    /// How many of the counted pods were healthy.
    pub current_healthy: i64,
    /// How many pods must be healthy.
    pub desired_healthy: i64,
    /// Whether pods that are not ready may always be evicted (`unhealthyPodEvictionPolicy`).
    pub unready_may_go: bool,
    /// Descriptions of its invalid fields, each a sentence fragment. An invalid field makes the
    /// budget stricter.
    pub defects: Vec<String>,
}

impl Pdb {
    /// Returns whether the budget matches a pod.
    pub fn covers_pod(&self, pod: &Pod) -> bool {
        let selector = self.selector.as_ref();
        self.key.namespace == pod.key.namespace
            && selector.is_some_and(|selector| selector.matches(&pod.labels))
    }

    /// Returns whether the budget never allows an eviction, regardless of the state of other pods.
    /// A percentage that rounds down to zero is not permanent: with more pods it would allow an
    /// eviction. Source: spec/disruption.md §6, 11.
    pub fn blocks_permanently(&self) -> bool {
        matches!(self.max_unavailable, Some(Bound::Count(0) | Bound::Percent(0)))
            || self.min_available == Some(Bound::Percent(100))
    }

    /// Returns whether the budget allows no eviction until it is changed or has more pods: it
    /// requires all current pods, or it [blocks permanently](Self::blocks_permanently).
    pub fn requires_all_pods(&self) -> bool {
        let counted = self.expected_pods > 0 && self.desired_healthy >= self.expected_pods;
        counted || self.blocks_permanently()
    }

    /// Returns whether the budget currently allows no eviction, except of pods that are not ready.
    pub fn allows_no_eviction(&self) -> bool {
        self.disruptions_allowed <= 0 || self.blocks_permanently()
    }

    /// Returns whether the budget currently blocks the eviction of a matching pod. A pod of unknown
    /// readiness is not treated as unready (spec/disruption.md §6, 10).
    pub fn blocks_eviction(&self, pod: &Pod) -> bool {
        self.allows_no_eviction() && !(self.unready_may_go && pod.ready == Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, Pdb};
    use crate::model::id::ObjectKey;
    use crate::model::labels::Labels;
    use crate::model::pod::Pod;
    use crate::model::requirement::Requirement;
    use crate::model::selector::Selector;

    fn app(value: &str) -> (String, Requirement) {
        ("app".to_owned(), Requirement::is_in([value]))
    }

    #[test]
    fn pdb_covers_selected_pods_of_its_namespace() {
        let cases = [
            (None, "default", false),
            (Some(Selector::default()), "default", true),
            (Some(Selector::default()), "other", false),
            (Some(Selector::new([app("a")])), "default", true),
            (Some(Selector::new([app("b")])), "default", false),
            // The expressions contradict each other.
            (Some(Selector::new([app("a"), app("b")])), "default", false),
        ];
        for (selector, namespace, expect) in cases {
            let pdb = Pdb { key: ObjectKey::new(namespace, "b"), selector, ..Pdb::default() };
            let pod = Pod {
                key: ObjectKey::new("default", "p"),
                labels: Labels::from([("app".to_owned(), "a".to_owned())]),
                ..Pod::default()
            };
            assert_eq!(pdb.covers_pod(&pod), expect, "{pdb:?}");
        }
    }

    #[test]
    fn pdb_blocks_eviction_temporarily_or_permanently() {
        let (count, percent) = (|n| Some(Bound::Count(n)), |n| Some(Bound::Percent(n)));
        // Each row has `min_available`, `max_unavailable`, the allowed disruptions, whether it
        // blocks now, and whether it blocks permanently.
        let cases = [
            (None, None, 1, false, false),
            (None, None, 0, true, false),
            (None, None, -3, true, false),
            (None, count(1), 0, true, false),
            (None, count(0), 1, true, true),
            (None, percent(0), 1, true, true),
            (None, percent(1), 1, false, false),
            (percent(100), None, 1, true, true),
            (percent(99), None, 1, false, false),
            (count(100), None, 1, false, false),
        ];
        for (min_available, max_unavailable, disruptions_allowed, blocks, permanently) in cases {
            let mut pdb =
                Pdb { min_available, max_unavailable, disruptions_allowed, ..Pdb::default() };
            assert_eq!(pdb.blocks_permanently(), permanently, "{pdb:?}");
            // The readiness of the pod, the eviction policy, and the expected result.
            for (ready, unready_may_go, exempt) in [
                (None, true, false),
                (Some(true), true, false),
                (Some(false), true, true),
                (Some(false), false, false),
            ] {
                pdb.unready_may_go = unready_may_go;
                let pod = Pod { ready, ..Pod::default() };
                assert_eq!(pdb.blocks_eviction(&pod), blocks && !exempt, "{pdb:?} {ready:?}");
            }
        }
    }
}
