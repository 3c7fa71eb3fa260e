//! What pods ask of each other's places: affinity, anti-affinity and spread.
//! It must not know where anybody is.

use std::collections::BTreeSet;

use crate::model::labels::Labels;
use crate::model::selector::Selector;

/// Which pods a term of affinity or anti-affinity speaks of, and how far "together" reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodTerm {
    /// Labels of the pods; none selects no pod.
    pub selector: Option<Selector>,
    /// Their namespaces by name. A term that names none and selects none speaks of its own pod's,
    /// which is written here.
    pub namespaces: BTreeSet<String>,
    /// Their namespaces by labels, beside the named ones.
    pub namespace_selector: Option<Selector>,
    /// The label whose value is a place.
    pub topology_key: String,
}

impl PodTerm {
    /// Whether it speaks of pods with these labels in a namespace, which has labels of its own.
    pub fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        let named = self.namespaces.contains(namespace);
        let by_labels = |selector: &Selector| selector.matches(of_namespace.unwrap_or(&NO_LABELS));
        let meant = named || self.namespace_selector.as_ref().is_some_and(by_labels);
        let selector = self.selector.as_ref();
        meant && selector.is_some_and(|selector| selector.matches(labels))
    }
}

static NO_LABELS: Labels = Labels::new();

/// How evenly pods are spread over the values of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologySpread {
    /// The pods that are counted, in the pod's own namespace; none counts no pod. What
    /// `matchLabelKeys` name is in it.
    pub selector: Option<Selector>,
    /// The label whose values are the places.
    pub topology_key: String,
    /// By how many a place may lead the emptiest.
    pub max_skew: u32,
    /// With fewer places than this the emptiest counts as having none.
    pub min_domains: u32,
    /// Whether only nodes that the pod's selector and affinity allow are places.
    pub honors_affinity: bool,
    /// Whether only nodes whose taints the pod tolerates are places.
    pub honors_taints: bool,
    /// Whether it must hold (`DoNotSchedule`) or is a wish (`ScheduleAnyway`).
    pub is_hard: bool,
}

/// A wish, and how much it is worth.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Preferred<T> {
    /// From 1 to 100.
    pub weight: i32,
    /// What is wished for.
    pub term: T,
}

/// Pods that are of use only together (PodGroups, Kueue pod groups).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gang {
    /// Its name, unique in the pod's namespace.
    pub name: String,
    /// How many of its pods have to find a place for any to be of use; none means all.
    pub least: Option<u32>,
}
