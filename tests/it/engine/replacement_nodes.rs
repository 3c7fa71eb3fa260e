//! Voluntarily disrupted nodes wait until their pods have a new node.

use jiff::SignedDuration;
use outrigger::disruption::budgets::Budgets;
use outrigger::disruption::expiry::claim_expiry;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::labels::{
    DISRUPTION_REASON, DO_NOT_DISRUPT, EXCLUDE_BALANCERS, TAINT_DISRUPTED,
};
use outrigger::model::node::Node;
use outrigger::model::pool::Reason;
use outrigger::model::taint::{Effect, Taint};
use outrigger::model::watched_object::WatchedObject;
use outrigger::state::State;

use super::{Stage, bound, owned_pod};

/// A stage with one node and one pod on it, seconds before the node expires.
pub(super) fn expiring() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    let hour = SignedDuration::from_hours(1);
    stage.change(|cluster| cluster.pools[0].expire_after = Some(hour));
    stage.sync(vec![], vec![owned_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(40, &[]);
    let due = claim_expiry(&stage.launches[0].claim).expect("the claim expires");
    let wait = due.duration_since(stage.now).as_secs();
    stage.run(wait - 5, &[]);
    stage.commands.clear();
    stage.reports.clear();
    stage
}

fn node_named(stage: &Stage, name: &str) -> Node {
    stage.engine.state().objects.nodes[&NodeName::from(name)].clone()
}

pub(super) fn disruptions(stage: &Stage) -> Vec<String> {
    let disruptions = stage.reports.iter().filter_map(|report| match report {
        Report::Retire { reason, .. } => Some(format!("disrupted: {}", reason.as_str())),
        Report::Kept { why, .. } => Some(format!("kept: {why}")),
        _ => None,
    });
    disruptions.collect()
}

#[test]
fn expired_node_is_tainted_and_replaced_before_its_pods_move() {
    let mut stage = expiring();
    assert_eq!(disruptions(&stage), [""; 0]);
    stage.run(60, &[]);
    assert_eq!(disruptions(&stage), ["disrupted: expired"]);
    assert_eq!(stage.commands, ["patch_node", "launch"], "no pod is evicted yet");
    assert!(node_named(&stage, "node-0").has_disrupted_taint());
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(3, &[]);
    assert!(stage.count("evict") > 0, "{:?}", stage.commands);
    assert_eq!(stage.launches.len(), 2, "one replacement");
}

#[test]
fn disruption_is_cancelled_when_a_pod_becomes_do_not_disrupt() {
    let mut stage = expiring();
    stage.run(30, &[]);
    let mut pod = owned_pod("a");
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(pod, "node-0"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(30, &[]);
    let why = format!("kept: pod default/a is annotated {DO_NOT_DISRUPT}=true");
    assert_eq!(disruptions(&stage)[..2], ["disrupted: expired".to_owned(), why]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
    assert!(!node_named(&stage, "node-0").has_disrupted_taint());
}

#[test]
fn disruption_without_a_replacement_is_cancelled_and_retried_later() {
    let mut stage = expiring();
    let tries = |stage: &Stage| {
        let is_disruption = |text: &&String| text.as_str() == "disrupted: expired";
        disruptions(stage).iter().filter(is_disruption).count()
    };
    for (minutes, expect) in [(5, 1), (16, 1), (3, 2), (19, 2), (4, 3), (19, 3), (3, 4)] {
        stage.run(60 * minutes, &["launch"]);
        assert_eq!(tries(&stage), expect, "{:?}", disruptions(&stage));
    }
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
    let reasons = [Reason::Expired, Reason::Drifted, Reason::Underutilized];
    assert!(reasons.iter().all(|reason| reason.waits_for_placements()));
}

/// Another pod takes the capacity of the new node that was planned for the pod of the old node.
#[test]
fn pods_are_not_evicted_if_another_pod_takes_the_replacement_capacity() {
    for (taken, moves) in [(true, false), (false, true)] {
        let mut stage = expiring();
        stage.run(30, &[]);
        if taken {
            let mut other = owned_pod("a");
            other.key = ObjectKey::new("default", "other");
            other.uid = "other".into();
            other.requests.cpu_milli = 1900;
            stage.apply(bound(other, "node-1"));
        }
        stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
        stage.run(30, &[]);
        assert_eq!(stage.count("evict") > 0, moves, "{taken}");
        assert_eq!(stage.launches.len(), if taken { 3 } else { 2 });
    }
}

/// The patch that taints a node may arrive after the disruption was cancelled: until the watch
/// shows the taint, or the patch can no longer arrive, no other node may be disrupted instead.
#[test]
fn node_that_may_still_be_tainted_counts_in_budgets() {
    let stage = expiring();
    let counted = |change: &dyn Fn(&mut State), at: i64| {
        let mut state = stage.engine.state().clone();
        change(&mut state);
        let now = stage.now + SignedDuration::from_secs(at);
        let disruption_view = state.disruption_view(now);
        Budgets::new(&disruption_view, now).total_and_disrupted()
    };
    let until = stage.now + SignedDuration::from_secs(30);
    let with_patch_sent = |state: &mut State| {
        let claims = state.ledger.claims.values_mut();
        claims.for_each(|claim| claim.closing_until = Some(until));
    };
    let tainted = |state: &mut State| {
        let mut node = state.objects.nodes.values().next().expect("a node").clone();
        node.taints = vec![Taint::new(TAINT_DISRUPTED, Effect::NoSchedule)];
        state.objects.nodes.insert(node.name.clone(), node);
    };
    assert_eq!(counted(&|_| {}, 0), (1, 0));
    assert_eq!(counted(&with_patch_sent, 0), (1, 1));
    assert_eq!(counted(&with_patch_sent, 31), (1, 0));
    assert_eq!(counted(&tainted, 31), (1, 1));
}

#[test]
fn cancelled_disruption_removes_its_marks_even_if_a_user_removed_the_taint() {
    let mut stage = expiring();
    stage.run(30, &[]);
    let mut node = node_named(&stage, "node-0");
    assert!(node.has_disrupted_taint() && node.annotations.contains_key(DISRUPTION_REASON));
    node.taints.retain(|taint| taint.key != TAINT_DISRUPTED);
    node.version.push('+');
    let mut pod = owned_pod("a");
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    stage.apply(bound(pod, "node-0"));
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.run(30, &[]);
    let node = node_named(&stage, "node-0");
    assert!(!node.has_disrupted_taint(), "{:?}", stage.commands);
    let has_marks = node.annotations.contains_key(DISRUPTION_REASON)
        || node.labels.contains_key(EXCLUDE_BALANCERS);
    assert!(!has_marks, "{node:?}");
}
