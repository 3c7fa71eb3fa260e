//! Pods to measure with, one by one.
//! It must not know how many of them there are.

use std::collections::BTreeSet;

use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::Labels;
use outrigger::model::pod::Pod;
use outrigger::model::quantity::Resources;
use outrigger::model::selector::Selector;

/// Where all pods live.
pub const NAMESPACE: &str = "default";

/// One label.
pub fn label(key: &str, value: &str) -> Labels {
    Labels::from([(key.to_owned(), value.to_owned())])
}

/// A pod that asks for resources and waits.
pub fn plain(name: &str, cpu_milli: i64, memory: i64) -> Pod {
    Pod {
        key: ObjectKey::new(NAMESPACE, name),
        uid: name.to_owned(),
        unschedulable: true,
        requests: Resources {
            cpu_milli,
            memory,
            pods: 1,
            ..Resources::default()
        },
        ..Pod::default()
    }
}

/// Pods with these labels, spread over a label of nodes with a skew of one at most, as a
/// constraint is that names nothing else.
pub fn spread(topology_key: &str, selected: &Labels) -> TopologySpread {
    TopologySpread {
        selector: Some(Selector::of_labels(selected)),
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        min_domains: 1,
        honors_affinity: true,
        honors_taints: false,
        is_hard: true,
    }
}

/// Pods with these labels, together or apart as far as a label of nodes goes.
pub fn term(topology_key: &str, selected: &Labels) -> PodTerm {
    PodTerm {
        selector: Some(Selector::of_labels(selected)),
        namespaces: BTreeSet::from([NAMESPACE.to_owned()]),
        namespace_selector: None,
        topology_key: topology_key.to_owned(),
    }
}
