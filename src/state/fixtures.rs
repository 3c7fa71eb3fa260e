//! Pods, nodes and claims for tests of the state.

use jiff::Timestamp;

use crate::model::claim::{ClaimPhase, ClaimRecord};
use crate::model::id::ObjectKey;
use crate::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use crate::model::labels::{INITIALIZED, Labels, REGISTERED};
use crate::model::node::Node;
use crate::model::pod::{Pod, PodPhase};
use crate::model::quantity::Resources;
use crate::model::watched_object::WatchedObject;
use crate::state::node_claims::NodeClaim;

pub(crate) const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A running pod of 100 milli-cpu.
pub(crate) fn pod(namespace: &str, name: &str, node: &str) -> Pod {
    Pod {
        key: ObjectKey::new(namespace, name),
        node: Some(node.into()),
        phase: PodPhase::Running,
        requests: Resources { cpu_milli: 100, pods: 1, ..Resources::default() },
        ..Pod::default()
    }
}

/// A pending pod of 100 milli-cpu.
pub(crate) fn waiting(namespace: &str, name: &str) -> Pod {
    Pod { node: None, phase: PodPhase::Pending, unschedulable: true, ..pod(namespace, name, "") }
}

/// A node of 1000 milli-cpu and 10 pods that has started, of the instance `i-` and its name.
pub(crate) fn node(name: &str) -> WatchedObject {
    let ready = [REGISTERED, INITIALIZED].map(|key| (key.to_owned(), "true".to_owned()));
    WatchedObject::Node(Box::new(Node {
        name: name.into(),
        provider_id: format!("aws:///zone/i-{name}"),
        labels: Labels::from(ready),
        allocatable: Resources { cpu_milli: 1000, pods: 10, ..Resources::default() },
        ..Node::default()
    }))
}

/// A claim of the pool `general`. A claim with a node also has an instance.
pub(crate) fn claim(id: &str, node: Option<&str>, phase: ClaimPhase) -> NodeClaim {
    let record = ClaimRecord {
        id: id.into(),
        installation: "tests".into(),
        cluster: "one".into(),
        pool: "general".into(),
        created: NOW,
        ..ClaimRecord::default()
    };
    let mut claim = NodeClaim::new(record, phase, NOW);
    claim.node = node.map(Into::into);
    claim.instance = node.map(|node| Instance {
        id: format!("i-{node}").into(),
        offering: OfferingKey {
            instance_type: "none".into(),
            zone: "zone".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        },
        state: InstanceState::Running,
        launched: NOW,
        tags: Default::default(),
        node: None,
        facts: None,
    });
    claim
}

impl From<Pod> for WatchedObject {
    fn from(pod: Pod) -> Self {
        Self::Pod(Box::new(pod))
    }
}
