//! Instances and Nodes of version 0.1, with its exact tags and labels.

use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use outrigger::model::labels::Labels;
use outrigger::model::node::Node;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, bound, owned_pod};

/// Tags of an instance. `#` is the number of the instance, `@` the time of its launch. Copied
/// from a daemon that did not identify clusters by their UID yet.
const TAGS: &str = "\
    karpenter.k8s.aws/ec2nodeclass=
    karpenter.sh/nodepool=general
    kubernetes.io/cluster/one=owned
    outrigger.dev/claim=3ppznqn52ikd#
    outrigger.dev/cluster=one
    outrigger.dev/command-id=yhwpdfzceota7
    outrigger.dev/created-at=@
    outrigger.dev/expire-after=2592000
    outrigger.dev/installation=tests
    outrigger.dev/node-class-hash=v2:none
    outrigger.dev/pool-hash=v2:cbf29ce484222325:796963c89bcce00b
    outrigger.dev/reason=provisioned
    outrigger.dev/schema-version=1
    outrigger.dev/startup-taints=
    outrigger.dev/termination-grace-period=never";

/// Labels of its Node.
const LABELS: &str = "\
    karpenter.k8s.aws/instance-category=t
    karpenter.k8s.aws/instance-cpu=2
    karpenter.k8s.aws/instance-family=t4g
    karpenter.k8s.aws/instance-generation=4
    karpenter.k8s.aws/instance-memory=512
    karpenter.k8s.aws/instance-size=nano
    karpenter.sh/capacity-type=spot
    karpenter.sh/initialized=true
    karpenter.sh/nodepool=general
    karpenter.sh/registered=true
    kubernetes.io/arch=arm64
    kubernetes.io/os=linux
    node.kubernetes.io/instance-type=t4g.nano
    outrigger.dev/managed-by=tests
    topology.kubernetes.io/region=us-east-1
    topology.kubernetes.io/zone=us-east-1a";

/// Annotations of its Node.
const ANNOTATIONS: &str = "\
    outrigger.dev/claim=3ppznqn52ikd#
    outrigger.dev/initialized-at=@
    outrigger.dev/node-class-hash=v2:none
    outrigger.dev/pool-hash=v2:cbf29ce484222325:796963c89bcce00b";

const COUNT: usize = 9;

fn pairs(text: &str, number: usize, at: &str) -> Labels {
    let lines = text.lines().map(str::trim);
    let pairs = lines.filter_map(|line| line.split_once('='));
    let fill = |text: &str| text.replace('#', &(number + 1).to_string()).replace('@', at);
    let pairs = pairs.map(|(key, value)| (key.to_owned(), fill(value)));
    pairs.collect()
}

/// A cluster of version 0.1 from some days ago; the daemon has just been replaced.
fn cluster_of_0_1() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    let at = "2027-01-12T08:00:05.2Z";
    let launched = at.parse().expect("a time");
    let mut nodes = Vec::new();
    for number in 0..COUNT {
        let id = format!("i-{number}");
        let it = stage.engine.state().catalog.get("t4g.nano");
        let (capacity, allocatable) =
            it.map(|it| (it.capacity.clone(), it.allocatable.clone())).expect("a known type");
        nodes.push(Node {
            name: NodeName(format!("node-{number}")),
            uid: format!("uid-{number}"),
            version: "7".into(),
            provider_id: format!("aws:///us-east-1a/{id}"),
            labels: pairs(LABELS, number, at),
            annotations: pairs(ANNOTATIONS, number, at),
            ready: true,
            capacity,
            allocatable,
            created: Some(launched),
            ..Node::default()
        });
        let instance = Instance {
            id: id.as_str().into(),
            offering: OfferingKey {
                instance_type: "t4g.nano".into(),
                zone: "us-east-1a".into(),
                capacity_type: CapacityType::Spot,
                reservation: None,
            },
            state: InstanceState::Running,
            launched,
            tags: pairs(TAGS, number, at).into(),
            facts: None,
            node: None,
        };
        stage.instances.insert(id, instance);
    }
    stage.sync(nodes, Vec::new());
    for number in 0..COUNT {
        let pod = owned_pod(&format!("p{number}"));
        stage.apply(bound(pod, &format!("node-{number}")));
    }
    stage
}

#[test]
fn nodes_of_version_0_1_are_taken_over_without_drift_or_termination() {
    let mut stage = cluster_of_0_1();
    stage.run(3 * 3_600, &[]);
    let claims = &stage.engine.state().ledger.claims;
    assert_eq!(claims.len(), COUNT, "each instance is a claim");
    let known = claims.values().filter(|claim| claim.node.is_some());
    assert_eq!(known.count(), COUNT, "each claim has its Node");
    assert!(stage.engine.is_ready());
    for name in ["launch", "terminate", "evict", "delete_node", "delete_pod"] {
        assert_eq!(stage.count(name), 0, "{name} in {:?}", stage.commands);
    }
    let nodes = stage.engine.state().objects.nodes.values();
    let tainted = nodes.filter(|node| node.has_disrupted_taint());
    assert_eq!(tainted.count(), 0);
    // A changed pool makes these nodes drift like nodes of this version.
    stage.change(|cluster| cluster.pools[0].node_class = Some("other".into()));
    stage.run(600, &[]);
    let drift_reports = stage.reports.iter();
    let drift_reports =
        drift_reports.filter(|report| matches!(report, Report::Held(_) | Report::Drifted { .. }));
    assert!(drift_reports.count() > 0, "no node has drifted");
}

#[test]
fn instances_of_version_0_1_without_nodes_are_not_terminated() {
    let mut stage = cluster_of_0_1();
    for number in 0..COUNT {
        let key = ObjectKey::new("", format!("node-{number}"));
        stage.event(Event::Deleted(ObjectKind::Node, key));
    }
    for _ in 0..60 {
        stage.run(60, &[]);
        stage.event(Event::Reset(ObjectKind::Node, Vec::<WatchedObject>::new()));
    }
    assert_eq!(stage.count("terminate"), 0);
}
