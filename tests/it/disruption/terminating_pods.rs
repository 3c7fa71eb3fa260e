//! Pods that kube-scheduler does not bind to their planned nodes, because terminating pods still
//! count on their old nodes.

use jiff::{SignedDuration, Timestamp};
use outrigger::model::affinity::{PodTerm, TopologySpread};
use outrigger::model::claim::ClaimPhase;
use outrigger::model::id::PodKey;
use outrigger::model::labels::{HOSTNAME, Labels, ZONE};
use outrigger::model::pod::Pod;
use outrigger::model::pool::Reason;
use outrigger::model::selector::Selector;
use outrigger::plan::{Plan, provision};
use outrigger::scheduling::NewNodeClaim;
use outrigger::state::snapshot::NodeRef;

use super::consolidation_fixture::{Fleet, ON_DEMAND, app};
use super::fixture::NOW;

/// Pods of one Deployment: one on a full node in zone `a`, two on a draining node in zone `b`, and
/// one that has been pending for this number of seconds. Another node in `b` is free.
fn fleet(waited: i64, max_skew: u32) -> Fleet {
    let mut fleet = Fleet::plain();
    let spread = |pod: &mut Pod| {
        pod.labels = app("spread");
        pod.spread = vec![TopologySpread {
            selector: Some(Selector::from_labels(&app("spread"))),
            topology_key: ZONE.to_owned(),
            max_skew,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        }];
    };
    fleet.node_of("full", "general", ("s2", "a", ON_DEMAND));
    fleet.pod_as("a-1", "full", 1900, spread);
    fleet.node_of("leaves", "general", ("s2", "b", ON_DEMAND));
    fleet.pod_as("b-1", "leaves", 900, spread);
    fleet.pod_as("b-2", "leaves", 900, spread);
    fleet.node_of("open", "general", ("s2", "b", ON_DEMAND));
    let claim = fleet.0.claim("leaves");
    (claim.phase, claim.leaving) = (ClaimPhase::Draining, Some(Reason::Expired));
    fleet.waiting_as("a-0", 900, |pod| {
        spread(pod);
        pod.created = before(waited);
    });
    fleet
}

/// The time this number of seconds ago.
fn before(seconds: i64) -> Option<Timestamp> {
    NOW.checked_sub(SignedDuration::from_secs(seconds)).ok()
}

/// The planned location of a pod: the name of a node, or the zone of a new one.
fn place(plan: &Plan, name: &str) -> String {
    let is_it = |pods: &[PodKey]| pods.iter().any(|key| key.name == name);
    let placed = plan.placed.iter().filter(|(_, pods)| is_it(pods));
    let placed = placed.map(|(host, _)| match host {
        NodeRef::Node(node) => node.to_string(),
        NodeRef::Claim(_) => "an in-flight node".to_owned(),
    });
    let made = plan.launches.iter().filter(|launch| is_it(&launch.pods));
    let made = made.map(|launch| format!("zone {}", launch.offerings[0].0.zone));
    let all: Vec<String> = placed.chain(made).collect();
    all.join(" and ")
}

#[test]
fn pod_blocked_by_terminating_pods_is_planned_elsewhere() {
    for (what, waited, max_skew, expect) in [
        ("the pod may still be bound there", 50, 1, "open"),
        ("terminating pods block the pod", 70, 1, "zone a"),
        ("no pod blocks the pod", 70, 2, "open"),
    ] {
        let fleet = fleet(waited, max_skew);
        let state = &fleet.0.state;
        let plan = provision(&state.snapshot(NOW), NOW);
        assert_eq!(place(&plan, "a-0"), expect, "{what}: {plan:?}");
        assert_eq!(plan.findings, [""; 0], "{what}");
        assert_eq!(plan.scheduled_pods().len(), 3, "all pods are placed: {what}");
    }
}

/// A snapshot treats the pods of a node as removed if its drain has just begun.
#[test]
fn briefly_terminating_pods_do_not_cause_a_new_plan() {
    let mut fleet = fleet(70, 1);
    fleet.0.claim("leaves").since = NOW;
    let plan = provision(&fleet.0.state.snapshot(NOW), NOW);
    assert_eq!(place(&plan, "a-0"), "open", "{plan:?}");
}

/// Two pods must not share a node: the replanned pod takes the planned node of the other into
/// account.
#[test]
fn replanned_pod_respects_anti_affinity_to_planned_pods() {
    let mut fleet = fleet(70, 1);
    let mut old = fleet.0.state.objects.pods[&PodKey::new("default", "a-0")].clone();
    old.anti_affinity = vec![PodTerm {
        selector: Some(Selector::from_labels(&kind())),
        namespaces: ["default".to_owned()].into(),
        namespace_selector: None,
        topology_key: HOSTNAME.to_owned(),
    }];
    fleet.0.pod(old);
    // The pod fits only on a new node in zone `a`.
    fleet.waiting_as("young", 900, |pod| {
        pod.created = before(5);
        pod.labels = kind();
        pod.node_selector = [(ZONE.to_owned(), "a".to_owned())].into();
    });
    let plan = provision(&fleet.0.state.snapshot(NOW), NOW);
    assert_eq!(place(&plan, "a-0"), "zone a", "{plan:?}");
    assert_eq!(place(&plan, "young"), "zone a", "{plan:?}");
    let shares = |claim: &NewNodeClaim| {
        let names: Vec<&str> = claim.pods.iter().map(|pod| pod.name.as_str()).collect();
        names.contains(&"a-0") && names.contains(&"young")
    };
    assert!(!plan.launches.iter().any(shares), "{plan:?}");
}

fn kind() -> Labels {
    Labels::from([("kind".to_owned(), "apart".to_owned())])
}
