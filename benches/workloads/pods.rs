//! Single pods for the benchmarks.

use std::collections::BTreeSet;

use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::Labels;
use outrigger::model::pod::Pod;
use outrigger::model::quantity::Resources;
use outrigger::model::selector::Selector;

/// Namespace of all pods.
pub const NAMESPACE: &str = "default";

/// Returns one label.
pub fn label(key: &str, value: &str) -> Labels {
    Labels::from([(key.to_owned(), value.to_owned())])
}

/// Returns a pending pod with resource requests.
pub fn plain(name: &str, cpu_milli: i64, memory: i64) -> Pod {
    Pod {
        key: ObjectKey::new(NAMESPACE, name),
        uid: name.to_owned(),
        unschedulable: true,
        requests: Resources { cpu_milli, memory, pods: 1, ..Resources::default() },
        ..Pod::default()
    }
}

/// Returns a spread constraint with a maximum skew of one and default values, for pods with these
/// labels.
pub fn spread(topology_key: &str, selected: &Labels) -> TopologySpread {
    TopologySpread {
        selector: Some(Selector::from_labels(selected)),
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    }
}

/// Returns an affinity term for pods with these labels in the domains of a topology key.
pub fn term(topology_key: &str, selected: &Labels) -> PodTerm {
    PodTerm {
        selector: Some(Selector::from_labels(selected)),
        namespaces: BTreeSet::from([NAMESPACE.to_owned()]),
        namespace_selector: None,
        topology_key: topology_key.to_owned(),
    }
}
