//! Pods that the scheduler does not take to the nodes they are planned for, since pods that are
//! leaving still count where they are. It must not know what holds these.

use jiff::SignedDuration;
use outrigger::model::affinity::Spread;
use outrigger::model::claim::Phase;
use outrigger::model::id::PodKey;
use outrigger::model::labels::ZONE;
use outrigger::model::pod::Pod;
use outrigger::model::pool::Reason;
use outrigger::model::selector::Selector;
use outrigger::plan::{Plan, provision};
use outrigger::state::snapshot::Host;

use super::scene::NOW;
use super::yard::{ON_DEMAND, Yard, app};

/// One pod of a Deployment in zone `a`, where its node is full, two on a node of zone `b` that is
/// leaving, and one that has waited for so long, in seconds. A node of `b` stands open.
fn yard(waited: i64, max_skew: u32) -> Yard {
    let mut yard = Yard::plain();
    let spread = |pod: &mut Pod| {
        pod.labels = app("spread");
        pod.spread = vec![Spread {
            selector: Some(Selector::of_labels(&app("spread"))),
            topology_key: ZONE.to_owned(),
            max_skew,
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_hard: true,
        }];
    };
    yard.node_of("full", "general", ("s2", "a", ON_DEMAND));
    yard.pod_as("a-1", "full", 1900, spread);
    yard.node_of("leaves", "general", ("s2", "b", ON_DEMAND));
    yard.pod_as("b-1", "leaves", 900, spread);
    yard.pod_as("b-2", "leaves", 900, spread);
    yard.node_of("open", "general", ("s2", "b", ON_DEMAND));
    let claim = yard.0.claim("leaves");
    (claim.phase, claim.leaving) = (Phase::Draining, Some(Reason::Expired));
    yard.pod_as("a-0", "", 900, |pod| {
        spread(pod);
        (pod.node, pod.started, pod.ready) = (None, None, None);
        pod.unschedulable = true;
        pod.created = NOW.checked_sub(SignedDuration::from_secs(waited)).ok();
    });
    yard
}

/// Where the pod that waits is planned: the name of a node, or the zone of one to be made.
fn place(plan: &Plan) -> String {
    let is_it = |pods: &[PodKey]| pods.iter().any(|own| own.name == "a-0");
    let placed = plan.placed.iter().filter(|(_, pods)| is_it(pods));
    let placed = placed.map(|(host, _)| match host {
        Host::Node(node) => node.to_string(),
        Host::Claim(_) => "a node to come".to_owned(),
    });
    let made = plan.launches.iter().filter(|own| is_it(&own.pods));
    let made = made.map(|own| format!("zone {}", own.offerings[0].0.zone));
    let all: Vec<String> = placed.chain(made).collect();
    all.join(" and ")
}

#[test]
fn who_is_not_taken_where_others_only_leave_gets_another_place() {
    for (what, waited, max_skew, expect) in [
        ("it may yet be taken", 50, 1, "open"),
        ("those who leave are in its way", 70, 1, "zone a"),
        ("nobody is in its way", 70, 2, "open"),
    ] {
        let yard = yard(waited, max_skew);
        let state = &yard.0.state;
        let plan = provision(&state.snapshot(NOW), NOW);
        assert_eq!(place(&plan), expect, "{what}: {plan:?}");
        assert_eq!(plan.findings, [""; 0], "{what}");
        assert_eq!(plan.pods().len(), 3, "all have a place: {what}");
    }
}
