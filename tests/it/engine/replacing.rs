//! Nodes that leave on purpose, and wait until their pods have a place elsewhere.
//! It must not know what makes them due.

use jiff::SignedDuration;
use outrigger::disrupt::expiry::due_at;
use outrigger::engine::report::Report;
use outrigger::model::cluster::Mode;
use outrigger::model::id::NodeName;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::node::Node;
use outrigger::model::object::Object;
use outrigger::model::pod::{Owner, Pod};
use outrigger::model::pool::Reason;

use super::{Stage, bound, waiting_pod};

pub(super) fn owned_pod() -> Pod {
    let mut pod = waiting_pod("a");
    pod.owner = Some(Owner {
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "web".into(),
    });
    pod
}

/// A stage with one node and one pod on it, at the moment when the node has become too old.
pub(super) fn expiring() -> Stage {
    let mut stage = Stage::new(Mode::Manage);
    let hour = SignedDuration::from_hours(1);
    stage.change(|own| own.pools[0].expire_after = Some(hour));
    stage.sync(vec![], vec![owned_pod()]);
    stage.run(10, &[]);
    stage.apply(Object::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod(), "node-0"));
    stage.run(40, &[]);
    let due = due_at(&stage.launches[0].claim).expect("it expires");
    let wait = due.duration_since(stage.now).as_secs();
    stage.run(wait - 5, &[]);
    stage.seen.clear();
    stage.reports.clear();
    stage
}

fn shown(stage: &Stage, name: &str) -> Node {
    stage.engine.state().objects.nodes[&NodeName::from(name)].clone()
}

pub(super) fn told(stage: &Stage) -> Vec<String> {
    let told = stage.reports.iter().filter_map(|own| match own {
        Report::Retire { reason, .. } => Some(format!("leaves: {}", reason.as_str())),
        Report::Kept { why, .. } => Some(format!("stays: {why}")),
        _ => None,
    });
    told.collect()
}

#[test]
fn an_old_node_is_closed_and_replaced_before_its_pods_move() {
    let mut stage = expiring();
    assert_eq!(told(&stage), [""; 0]);
    stage.run(60, &[]);
    assert_eq!(told(&stage), ["leaves: expired"]);
    assert_eq!(stage.seen, ["patch_node", "launch"], "nothing is moved yet");
    assert!(shown(&stage, "node-0").has_disrupted_taint());
    stage.apply(Object::Node(Box::new(stage.node(1))));
    stage.run(3, &[]);
    assert!(stage.count("evict") > 0, "{:?}", stage.seen);
    assert_eq!(stage.launches.len(), 2, "one in its place");
}

#[test]
fn a_node_stays_where_something_has_come_that_must_not_be_disrupted() {
    let mut stage = expiring();
    stage.run(30, &[]);
    let mut pod = owned_pod();
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(pod, "node-0"));
    stage.apply(Object::Node(Box::new(stage.node(1))));
    stage.run(30, &[]);
    let why = format!("stays: pod default/a is annotated {DO_NOT_DISRUPT}=true");
    assert_eq!(told(&stage)[..2], ["leaves: expired".to_owned(), why]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.seen);
    assert!(!shown(&stage, "node-0").has_disrupted_taint());
}

#[test]
fn a_node_stays_whose_pods_find_no_place_and_is_tried_again_later_each_time() {
    let mut stage = expiring();
    let tries = |stage: &Stage| {
        let leaves = |own: &&String| own.as_str() == "leaves: expired";
        told(stage).iter().filter(leaves).count()
    };
    for (minutes, expect) in [(5, 1), (16, 1), (3, 2), (19, 2), (4, 3), (19, 3), (3, 4)] {
        stage.run(60 * minutes, &["launch"]);
        assert_eq!(tries(&stage), expect, "{:?}", told(&stage));
    }
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.seen);
    let reasons = [Reason::Expired, Reason::Drifted, Reason::Underutilized];
    assert!(reasons.iter().all(|own| own.waits_for_places()));
}
