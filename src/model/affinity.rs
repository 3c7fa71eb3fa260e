//! Inter-pod affinity, anti-affinity, topology spread and gangs.

use std::collections::BTreeSet;

use crate::model::labels::Labels;
use crate::model::selector::Selector;

/// A pod affinity or anti-affinity term: the pods that it selects, and the topology key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodTerm {
    /// Labels of the pods. `None` selects no pod.
    pub selector: Option<Selector>,
    /// Namespaces by name. If the term in the API has neither names nor a namespace selector, this
    /// is the namespace of the pod itself.
    pub namespaces: BTreeSet<String>,
    /// Namespaces by label, in addition to the named ones.
    pub namespace_selector: Option<Selector>,
    /// The label whose values are the topology domains.
    pub topology_key: String,
}

impl PodTerm {
    /// Returns whether the term selects a pod with these labels in this namespace. `of_namespace`
    /// has the labels of the namespace.
    pub fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        let is_named = self.namespaces.contains(namespace);
        let is_selected_namespace = is_named
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|selector| selector.matches(of_namespace.unwrap_or(&NO_LABELS)));
        let selector = self.selector.as_ref();
        is_selected_namespace && selector.is_some_and(|selector| selector.matches(labels))
    }
}

static NO_LABELS: Labels = Labels::new();

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologySpread {
    /// Selects the pods that are counted, in the namespace of the pod with the constraint. `None`
    /// counts no pod. The requirements from `matchLabelKeys` are included.
    pub selector: Option<Selector>,
    /// The label whose values are the topology domains.
    pub topology_key: String,
    /// Maximum difference in the number of pods between a domain and the domain with the fewest
    /// pods.
    pub max_skew: u32,
    /// If there are fewer domains than this, the smallest number of pods in a domain is treated as
    /// zero.
    pub min_domains: u32,
    /// Whether only nodes that match the pod's node selector and affinity are included.
    pub honors_affinity: bool,
    /// Whether only nodes whose taints the pod tolerates are included.
    pub honors_taints: bool,
    /// Whether the constraint is required (`DoNotSchedule`) or preferred (`ScheduleAnyway`).
    pub is_hard: bool,
}

/// A preference with its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Preferred<T> {
    /// The weight, from 1 to 100.
    pub weight: i32,
    /// The preferred term.
    pub term: T,
}

/// A group of pods that must be scheduled together (PodGroups, Kueue pod groups).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gang {
    /// Its name, unique in the pod's namespace.
    pub name: String,
    /// Minimum number of pods that must be scheduled together. `None` means all pods of the group.
    pub least: Option<u32>,
}
