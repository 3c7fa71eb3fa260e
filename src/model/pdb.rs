//! A disruption budget of pods, as far as we weigh it before the API server does.
//! It must not know who would disrupt pods.

use std::fmt;

use crate::model::id::ObjectKey;
use crate::model::pod::Pod;
use crate::model::selector::Selector;

/// A bound on pods, as its `spec` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A count.
    Count(i64),
    /// A share of the pods in per cent.
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
    /// The pods of its namespace that it covers: an empty selector covers all, none covers none,
    /// and neither does one that contradicts itself.
    pub selector: Option<Selector>,
    /// How many must stay.
    pub min_available: Option<Bound>,
    /// How many may be away.
    pub max_unavailable: Option<Bound>,
    /// How many pods may be disrupted now, as the controller last counted; none of what it has
    /// not seen yet.
    pub disruptions_allowed: i64,
    /// How many pods it counted.
    pub expected_pods: i64,
    /// How many of them were healthy.
    pub current_healthy: i64,
    /// How many have to be.
    pub desired_healthy: i64,
    /// Whether pods that are not ready may always be evicted (`unhealthyPodEvictionPolicy`).
    pub unready_may_go: bool,
    /// What cannot be understood about it, each a sentence fragment. It protects more rather than
    /// less for it.
    pub defects: Vec<String>,
}

impl Pdb {
    /// Whether it covers a pod.
    pub fn covers(&self, pod: &Pod) -> bool {
        let selector = self.selector.as_ref();
        self.key.namespace == pod.key.namespace
            && selector.is_some_and(|own| own.matches(&pod.labels))
    }

    /// Whether it can never let a pod go, whatever happens to the others. A share that only rounds
    /// to nothing does not count: with more pods it would let one go.
    /// Source: spec/disruption.md §6, 11.
    pub fn blocks_for_ever(&self) -> bool {
        matches!(
            self.max_unavailable,
            Some(Bound::Count(0) | Bound::Percent(0))
        ) || self.min_available == Some(Bound::Percent(100))
    }

    /// Whether it lets no pod go before it is changed or its pods are more: all that there are have
    /// to stay, or it [blocks for ever](Self::blocks_for_ever).
    pub fn wants_all(&self) -> bool {
        let counted = self.expected_pods > 0 && self.desired_healthy >= self.expected_pods;
        counted || self.blocks_for_ever()
    }

    /// Whether it lets no pod go now but such as are not ready.
    pub fn is_shut(&self) -> bool {
        self.disruptions_allowed <= 0 || self.blocks_for_ever()
    }

    /// Whether it keeps a pod that it covers from being evicted now. One whose readiness is not
    /// known does not count as unready (spec/disruption.md §6, 10).
    pub fn keeps(&self, pod: &Pod) -> bool {
        self.is_shut() && !(self.unready_may_go && pod.ready == Some(false))
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

    #[test]
    fn a_budget_covers_what_its_selector_selects_in_its_namespace() {
        let app = |value: &str| ("app".to_owned(), Requirement::is_in([value]));
        let cases = [
            (None, "default", false),
            (Some(Selector::default()), "default", true),
            (Some(Selector::default()), "other", false),
            (Some(Selector::new([app("a")])), "default", true),
            (Some(Selector::new([app("b")])), "default", false),
            // It contradicts itself.
            (Some(Selector::new([app("a"), app("b")])), "default", false),
        ];
        for (selector, namespace, expect) in cases {
            let pdb = Pdb {
                key: ObjectKey::new(namespace, "b"),
                selector,
                ..Pdb::default()
            };
            let pod = Pod {
                key: ObjectKey::new("default", "p"),
                labels: Labels::from([("app".to_owned(), "a".to_owned())]),
                ..Pod::default()
            };
            assert_eq!(pdb.covers(&pod), expect, "{pdb:?}");
        }
    }

    #[test]
    fn a_budget_keeps_pods_while_it_allows_nothing_or_for_ever() {
        let (count, percent) = (|n| Some(Bound::Count(n)), |n| Some(Bound::Percent(n)));
        // What must stay, what may be away, what is allowed now; kept now, kept for ever.
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
        for (min_available, max_unavailable, disruptions_allowed, kept, for_ever) in cases {
            let mut pdb = Pdb {
                min_available,
                max_unavailable,
                disruptions_allowed,
                ..Pdb::default()
            };
            assert_eq!(pdb.blocks_for_ever(), for_ever, "{pdb:?}");
            // What is told of the pod's readiness, and whether it is kept all the same.
            for (ready, unready_may_go, goes) in [
                (None, true, false),
                (Some(true), true, false),
                (Some(false), true, true),
                (Some(false), false, false),
            ] {
                pdb.unready_may_go = unready_may_go;
                let pod = Pod {
                    ready,
                    ..Pod::default()
                };
                assert_eq!(pdb.keeps(&pod), kept && !goes, "{pdb:?} {ready:?}");
            }
        }
    }
}
