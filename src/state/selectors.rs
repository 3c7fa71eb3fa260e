//! Selectors of Services and pod controllers, and the selector that kube-scheduler derives from
//! them for default topology spread.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::id::ObjectKey;
use crate::model::labels::Labels;
use crate::model::pod::Owner;
use crate::model::requirement::Requirement;
use crate::model::selector::Selector;
use crate::model::watched_object::{ObjectKind, WorkloadSelector};

/// The selectors of workloads, by kind and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSelectors {
    all: BTreeMap<ObjectKind, BTreeMap<ObjectKey, Selector>>,
    /// The Services of each namespace. Each Service is indexed by the label of its selector that
    /// has the fewest Services, so that only few are checked per pod.
    services: BTreeMap<String, ByLabel>,
}

/// Names of Services, by a label and its value.
type ByLabel = BTreeMap<String, BTreeMap<String, BTreeSet<ObjectKey>>>;

impl WorkloadSelectors {
    /// Adds or replaces a selector.
    pub fn apply(&mut self, selector: WorkloadSelector) {
        if self.contains_selector(&selector) {
            return;
        }
        self.delete(selector.kind, &selector.key);
        if selector.kind == ObjectKind::Service {
            let by_label = self.services.entry(selector.key.namespace.clone()).or_default();
            if let Some((key, value)) =
                label_pairs(&selector.selector).min_by_key(|(key, value)| {
                    let known = by_label.get(*key).and_then(|values| values.get(*value));
                    known.map_or(0, BTreeSet::len)
                })
            {
                let values = by_label.entry(key.to_owned()).or_default();
                let names = values.entry(value.to_owned()).or_default();
                names.insert(selector.key.clone());
            }
        }
        let of_kind = self.all.entry(selector.kind).or_default();
        of_kind.insert(selector.key, selector.selector);
    }

    /// Removes a selector.
    pub fn delete(&mut self, kind: ObjectKind, key: &ObjectKey) {
        let of_kind = self.all.get_mut(&kind);
        let Some(selector) = of_kind.and_then(|selectors| selectors.remove(key)) else {
            return;
        };
        if let Some(by_label) =
            self.services.get_mut(&key.namespace).filter(|_| kind == ObjectKind::Service)
        {
            for (label, value) in label_pairs(&selector) {
                if let Some(values) = by_label.get_mut(label) {
                    if let Some(names) = values.get_mut(value) {
                        names.remove(key);
                    }
                    values.retain(|_, names| !names.is_empty());
                }
            }
            by_label.retain(|_, values| !values.is_empty());
            if by_label.is_empty() {
                self.services.remove(&key.namespace);
            }
        }
    }

    /// Returns whether an identical selector exists.
    pub fn contains_selector(&self, selector: &WorkloadSelector) -> bool {
        self.get(selector.kind, &selector.key) == Some(&selector.selector)
    }

    /// Returns the keys of a kind.
    pub fn keys_of_kind(&self, kind: ObjectKind) -> impl Iterator<Item = &ObjectKey> {
        self.all.get(&kind).into_iter().flat_map(BTreeMap::keys)
    }

    fn get(&self, kind: ObjectKind, key: &ObjectKey) -> Option<&Selector> {
        self.all.get(&kind)?.get(key)
    }

    /// Returns the selector for default topology spread of a pod with these labels and this
    /// controller, or `None` if no Service or controller selects it.
    ///
    /// All requirements of the Services and the controller must be met. If a ReplicationController
    /// requires a label, its value of this label takes precedence. Source: kube-scheduler,
    /// `helper.DefaultSelector`. kube-scheduler finds a controller by kind and name, even if its
    /// selector does not select the pod.
    pub fn default_spread_selector(
        &self,
        namespace: &str,
        labels: &Labels,
        owner: Option<&Owner>,
    ) -> Option<Selector> {
        let services = self.candidate_services(namespace, labels);
        let mut expressions: BTreeSet<&(String, Requirement)> = services
            .filter(|selector| selector.matches(labels))
            .flat_map(Selector::expressions)
            .collect();
        let of_owner = owner.and_then(|owner| {
            let kind = controller_kind(&owner.kind)?;
            let key = ObjectKey::new(namespace, owner.name.as_str());
            Some((kind, self.get(kind, &key)?.expressions()))
        });
        if let Some((kind, required)) = of_owner {
            if kind == ObjectKind::ReplicationController {
                expressions.retain(|(label, _)| required.iter().all(|(other, _)| other != label));
            }
            expressions.extend(required);
        }
        let selector = Selector::new(expressions.into_iter().cloned());
        (!selector.expressions().is_empty()).then_some(selector)
    }

    /// Returns a small superset of the Services that select pods with these labels.
    fn candidate_services<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Selector> {
        let by_label = self.services.get(namespace);
        labels
            .iter()
            .filter_map(move |(label, value)| by_label?.get(label)?.get(value))
            .flatten()
            .filter_map(|key| self.get(ObjectKind::Service, key))
    }
}

/// Returns the controller kinds with default spread. kube-scheduler also checks their API group.
/// Controllers of other groups have different pod names, so their names do not conflict.
fn controller_kind(kind: &str) -> Option<ObjectKind> {
    match kind {
        "ReplicationController" => Some(ObjectKind::ReplicationController),
        "ReplicaSet" => Some(ObjectKind::ReplicaSet),
        "StatefulSet" => Some(ObjectKind::StatefulSet),
        _ => None,
    }
}

/// Returns the key-value pairs of an equality-based selector, such as that of a Service.
fn label_pairs(selector: &Selector) -> impl Iterator<Item = (&str, &str)> {
    let expressions = selector.expressions().iter();
    expressions.filter_map(|(label, requirement)| {
        Some((label.as_str(), requirement.values()?.first()?.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection;
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
    use proptest::sample::select;

    use super::WorkloadSelectors;
    use crate::model::id::ObjectKey;
    use crate::model::labels::Labels;
    use crate::model::pod::Owner;
    use crate::model::selector::Selector;
    use crate::model::watched_object::{ObjectKind, WorkloadSelector};

    /// `app=a tier=x`.
    fn labels(text: &str) -> Labels {
        let pair = |word: &str| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        text.split(' ').filter_map(pair).collect()
    }

    fn selecting(kind: ObjectKind, name: &str, selector: &str) -> WorkloadSelector {
        WorkloadSelector {
            kind,
            key: ObjectKey::new("default", name),
            selector: Selector::from_labels(&labels(selector)),
        }
    }

    fn text(selector: Option<Selector>) -> String {
        let expressions = selector.iter().flat_map(Selector::expressions);
        let texts = expressions.map(|(label, requirement)| format!("{label} {requirement}"));
        texts.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn default_spread_selector_merges_services_and_controller() {
        let mut all = WorkloadSelectors::default();
        for (kind, name, selector) in [
            (ObjectKind::Service, "s", "app=a"),
            (ObjectKind::Service, "t", "app=a tier=x"),
            (ObjectKind::Service, "all", ""),
            (ObjectKind::ReplicationController, "w", "app=b"),
            (ObjectKind::ReplicaSet, "w", "app=b"),
            (ObjectKind::StatefulSet, "w", "set=w"),
            (ObjectKind::StatefulSet, "all", ""),
        ] {
            all.apply(selecting(kind, name, selector));
        }
        let cases = [
            ("", "", ""),
            ("app=b", "", ""),
            ("app=a", "", "app in [a]"),
            ("app=a tier=y", "", "app in [a]"),
            ("app=a tier=x", "", "app in [a], tier in [x]"),
            ("app=a", "StatefulSet w", "app in [a], set in [w]"),
            ("app=a", "StatefulSet all", "app in [a]"),
            ("app=a", "StatefulSet gone", "app in [a]"),
            ("app=a", "Job w", "app in [a]"),
            // Both match, so the result is ambiguous.
            ("app=a", "ReplicaSet w", "app in [a], app in [b]"),
            ("app=a tier=x", "ReplicationController w", "app in [b], tier in [x]"),
            ("", "ReplicaSet w", "app in [b]"),
        ];
        for (workload, owner, expect) in cases {
            let owner = owner.split_once(' ').map(|(kind, name)| Owner {
                kind: kind.to_owned(),
                name: name.to_owned(),
                uid: String::new(),
            });
            let found = all.default_spread_selector("default", &labels(workload), owner.as_ref());
            assert_eq!(text(found), expect, "{workload} {owner:?}");
            assert_eq!(
                all.default_spread_selector("other", &labels(workload), owner.as_ref()),
                None
            );
        }
    }

    #[test]
    fn only_few_candidate_services_are_checked_per_pod() {
        // One Service for all pods and one for each pod, as for message brokers.
        let mut all = WorkloadSelectors::default();
        for at in 0..1000 {
            let selector = format!("app=a pod=a-{at}");
            all.apply(selecting(ObjectKind::Service, &format!("s{at}"), &selector));
        }
        all.apply(selecting(ObjectKind::Service, "s", "app=a"));
        for at in 0..1000 {
            let pod_labels = labels(&format!("app=a pod=a-{at}"));
            let count = all.candidate_services("default", &pod_labels).count();
            assert!(count <= 3, "{count} for {pod_labels:?}");
        }
    }

    fn a_selector() -> impl Strategy<Value = String> {
        let label = (select(&["app", "tier"][..]), select(&["a", "b"][..]));
        let word = label.prop_map(|(key, value)| format!("{key}={value}"));
        collection::vec(word, 0..3).prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn indexed_services_equal_a_scan_of_all_services(
            steps in collection::vec((0..6usize, a_selector(), any::<bool>()), 0..30),
            pod_text in a_selector(),
        ) {
            let (mut all, mut known) = (WorkloadSelectors::default(), BTreeMap::new());
            for (name, selector, is_deleted) in steps {
                let workload = selecting(ObjectKind::Service, &format!("s{name}"), &selector);
                if is_deleted {
                    all.delete(ObjectKind::Service, &workload.key);
                    known.remove(&workload.key);
                } else {
                    all.apply(workload.clone());
                    known.insert(workload.key, workload.selector);
                }
            }
            let pod_labels = labels(&pod_text);
            let matching = known.values().filter(|selector| selector.matches(&pod_labels));
            let expected = matching.flat_map(Selector::expressions).cloned();
            let found = all.default_spread_selector("default", &pod_labels, None);
            prop_assert_eq!(found.unwrap_or_default(), Selector::new(expected));
            for key in known.keys() {
                all.delete(ObjectKind::Service, key);
            }
            prop_assert_eq!(all.services.len(), 0);
        }
    }
}
