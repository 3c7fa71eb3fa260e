//! Disruption blockers for every reason: spec/disruption.md §8.3, row by row, and the annotations
//! of Cluster Autoscaler.

use jiff::SignedDuration;
use outrigger::model::claim::ClaimPhase;
use outrigger::model::labels::{
    CAPACITY_TYPE, DELETION_COST, DO_NOT_DISRUPT, DO_NOT_DISRUPT_ALIAS, INITIALIZED, INSTANCE_TYPE,
    POOL, SAFE_LOCAL_VOLUMES, SAFE_TO_EVICT, SCALE_DOWN_DISABLED, ZONE,
};
use outrigger::model::pdb::{Bound, Pdb};
use outrigger::model::pod::{Pod, PodPhase};
use outrigger::model::pool::{Reason, Safety};
use outrigger::model::taint::{Toleration, TolerationOperator};
use outrigger::model::watched_object::WatchedObject;

use super::fixture::{NOW, Scene, annotated, earlier, pdb, pod};

fn web() -> Pod {
    pod("web", "n", "ReplicaSet")
}

fn protected(kind: &str) -> Pod {
    annotated(pod("web", "n", kind), DO_NOT_DISRUPT, "true")
}

fn terminating(mut pod: Pod) -> Pod {
    pod.deleting = Some(NOW);
    pod
}

fn terminated(mut pod: Pod) -> Pod {
    pod.phase = PodPhase::Succeeded;
    pod
}

/// One node with a pod that these PodDisruptionBudgets cover.
fn covered(pod: Pod, budgets: Vec<Pdb>) -> Scene {
    let mut scene = Scene::with([pod]);
    for pdb in budgets {
        scene.apply(WatchedObject::Pdb(pdb));
    }
    scene
}

fn never_allowing(min: Option<Bound>, max: Option<Bound>) -> Vec<Pdb> {
    vec![Pdb { min_available: min, max_unavailable: max, ..pdb("b", "web", 1) }]
}

/// A budget that allows no disruption, except of pods that are not ready.
fn allowing_unready() -> Vec<Pdb> {
    vec![Pdb { unready_may_go: true, ..pdb("b", "web", 0) }]
}

/// A description, the scene, and the codes of the verdict of its node: without a termination grace
/// period for any reason; with one, for a graceful reason and for an eventual one.
type Row = (&'static str, fn() -> Scene, [&'static str; 3]);

const PODS: &[Row] = &[
    ("no annotation", || Scene::with([web()]), ["-"; 3]),
    (
        "a pod is annotated with do-not-disrupt",
        || Scene::with([protected("ReplicaSet")]),
        ["pod_do_not_disrupt", "pod_do_not_disrupt", "-"],
    ),
    (
        "a mirror pod is annotated with do-not-disrupt",
        || Scene::with([protected("Node")]),
        ["pod_do_not_disrupt", "pod_do_not_disrupt", "-"],
    ),
    (
        "a daemon pod is annotated with do-not-disrupt",
        || Scene::with([protected("DaemonSet")]),
        ["pod_do_not_disrupt", "pod_do_not_disrupt", "-"],
    ),
    (
        "the annotation of a terminating pod is ignored",
        || Scene::with([terminating(protected("ReplicaSet"))]),
        ["-"; 3],
    ),
    (
        "the annotation of a terminated pod is ignored",
        || Scene::with([terminated(protected("Job"))]),
        ["-"; 3],
    ),
    (
        "a pod has the alias of do-not-disrupt",
        || Scene::with([annotated(web(), DO_NOT_DISRUPT_ALIAS, "true")]),
        ["pod_do_not_disrupt", "pod_do_not_disrupt", "-"],
    ),
    (
        "the do-not-disrupt duration of a pod has not passed",
        || Scene::with([annotated(web(), DO_NOT_DISRUPT, "2h")]),
        ["pod_do_not_disrupt_until", "pod_do_not_disrupt_until", "-"],
    ),
    (
        "the do-not-disrupt duration of a pod has passed",
        || Scene::with([annotated(web(), DO_NOT_DISRUPT, "30m")]),
        ["-"; 3],
    ),
    (
        "a pod with a do-not-disrupt duration has not started",
        || {
            let mut pod = annotated(web(), DO_NOT_DISRUPT, "30m");
            pod.started = None;
            Scene::with([pod])
        },
        ["pod_do_not_disrupt_until", "pod_do_not_disrupt_until", "-"],
    ),
    (
        "the annotation of a pod is unreadable",
        || Scene::with([annotated(web(), DO_NOT_DISRUPT, "soon")]),
        ["-"; 3],
    ),
    (
        "a pod is not safe to evict",
        || Scene::with([annotated(web(), SAFE_TO_EVICT, "false")]),
        ["pod_not_safe_to_evict", "pod_not_safe_to_evict", "-"],
    ),
    (
        "the safe-to-evict annotation of a daemon pod is ignored",
        || {
            let daemon = pod("agent", "n", "DaemonSet");
            Scene::with([annotated(daemon, SAFE_TO_EVICT, "false")])
        },
        ["-"; 3],
    ),
];

const BUDGETS: &[Row] = &[
    ("a budget allows one", || covered(web(), vec![pdb("b", "web", 1)]), ["-"; 3]),
    (
        "a budget allows none",
        || covered(web(), vec![pdb("b", "web", 0)]),
        ["pod_disruption_budget", "pod_disruption_budget", "-"],
    ),
    ("a budget of other pods allows none", || covered(web(), vec![pdb("b", "other", 0)]), ["-"; 3]),
    (
        "two budgets allow one each",
        || covered(web(), vec![pdb("b", "web", 1), pdb("c", "web", 1)]),
        ["pod_disruption_budgets", "pod_disruption_budgets", "-"],
    ),
    (
        "a budget allows one of five pods: each pod is checked separately",
        || {
            let mut scene = covered(web(), vec![pdb("b", "web", 1)]);
            for at in 0..4 {
                let mut pod = web();
                pod.key.name = format!("web-{at}");
                scene.pod(pod);
            }
            scene
        },
        ["-"; 3],
    ),
    (
        "a budget never allows any disruption",
        || covered(web(), never_allowing(None, Some(Bound::Count(0)))),
        ["pod_disruption_budget_for_ever", "pod_disruption_budget_for_ever", "-"],
    ),
    (
        "a budget allows a share of zero percent",
        || covered(web(), never_allowing(None, Some(Bound::Percent(0)))),
        ["pod_disruption_budget_for_ever", "pod_disruption_budget_for_ever", "-"],
    ),
    (
        "a budget requires all pods to be available",
        || covered(web(), never_allowing(Some(Bound::Percent(100)), None)),
        ["pod_disruption_budget_for_ever", "pod_disruption_budget_for_ever", "-"],
    ),
    (
        "a budget allows a share that rounds up to one",
        || covered(web(), never_allowing(None, Some(Bound::Percent(1)))),
        ["-"; 3],
    ),
    (
        "the budget of a daemon pod allows no disruption",
        || {
            let daemon = pod("web", "n", "DaemonSet");
            covered(daemon, never_allowing(None, Some(Bound::Count(0))))
        },
        ["pod_disruption_budget_for_ever", "pod_disruption_budget_for_ever", "-"],
    ),
    (
        "the budget of a mirror pod allows no disruption, but it is not evicted",
        || {
            let mirror = pod("web", "n", "Node");
            covered(mirror, never_allowing(None, Some(Bound::Count(0))))
        },
        ["-"; 3],
    ),
    (
        "the budget of a terminated pod allows no disruption",
        || covered(terminated(web()), never_allowing(None, Some(Bound::Count(0)))),
        ["-"; 3],
    ),
    (
        "the budget of a terminating pod allows no disruption",
        || covered(terminating(web()), never_allowing(None, Some(Bound::Count(0)))),
        ["-"; 3],
    ),
    (
        "the budget of a pod that tolerates the disruption taint allows no disruption",
        || {
            let mut pod = web();
            pod.tolerations.push(Toleration {
                key: String::new(),
                operator: TolerationOperator::Exists,
                value: String::new(),
                effect: None,
            });
            covered(pod, never_allowing(None, Some(Bound::Count(0))))
        },
        ["-"; 3],
    ),
    (
        "the budget always allows pods that are not ready",
        || {
            let mut pod = web();
            pod.ready = Some(false);
            covered(pod, allowing_unready())
        },
        ["-"; 3],
    ),
    (
        "the budget always allows pods that are not ready, and readiness is unknown",
        || {
            let mut pod = web();
            pod.ready = None;
            covered(pod, allowing_unready())
        },
        ["pod_disruption_budget", "pod_disruption_budget", "-"],
    ),
];

const NODES: &[Row] = &[
    (
        "the node is annotated with do-not-disrupt",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| {
                node.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
            });
            scene
        },
        ["do_not_disrupt"; 3],
    ),
    (
        "a do-not-disrupt duration of a node is ignored",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| {
                node.annotations.insert(DO_NOT_DISRUPT.into(), "24h".into());
            });
            scene
        },
        ["-"; 3],
    ),
    (
        "scale-down is disabled for the node",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| {
                node.annotations.insert(SCALE_DOWN_DISABLED.into(), "true".into());
            });
            scene
        },
        ["scale_down_disabled"; 3],
    ),
    (
        "a disruption of the node was withdrawn recently",
        || {
            let mut scene = Scene::with([]);
            let until = NOW + SignedDuration::from_mins(1);
            scene.claim("n").withdrawn = Some((until, 1));
            scene
        },
        ["withdrawn"; 3],
    ),
    (
        "a disruption of the node was withdrawn some time ago",
        || {
            let mut scene = Scene::with([]);
            scene.claim("n").withdrawn = Some((NOW, 1));
            scene
        },
        ["-"; 3],
    ),
    (
        "a Node without a claim is not a candidate",
        || {
            let mut scene = Scene::with([]);
            let id = scene.claim("n").record.id.clone();
            scene.state.ledger.claims.remove(&id);
            scene
        },
        ["gone"; 3],
    ),
    (
        "a claim without a Node is not a candidate",
        || {
            let mut scene = Scene::with([]);
            scene.claim("n").node = None;
            scene
        },
        ["gone"; 3],
    ),
    (
        "nominated for pending pods",
        || {
            let mut scene = Scene::with([]);
            let until = NOW + SignedDuration::from_secs(1);
            scene.state.nominate("n".into(), until);
            scene
        },
        ["nominated"; 3],
    ),
    (
        "the nomination has expired",
        || {
            let mut scene = Scene::with([]);
            scene.state.nominate("n".into(), NOW);
            scene
        },
        ["-"; 3],
    ),
    (
        "a user deletes the Node",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| node.deleting = Some(NOW));
            scene
        },
        ["deleted"; 3],
    ),
    (
        "the node is already being disrupted",
        || {
            let mut scene = Scene::with([]);
            scene.claim("n").leaving = Some(Reason::Drifted);
            scene
        },
        ["gone"; 3],
    ),
    (
        "the instance is being terminated",
        || {
            let mut scene = Scene::with([]);
            scene.claim("n").phase = ClaimPhase::Terminating;
            scene
        },
        ["gone"; 3],
    ),
    (
        "the node is being replaced",
        || {
            let mut scene = Scene::with([]);
            scene.claim("n").replaced_since = Some(earlier());
            scene
        },
        ["gone"; 3],
    ),
    (
        "the node is not initialized",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| drop(node.labels.remove(INITIALIZED)));
            scene
        },
        ["not_initialized"; 3],
    ),
    (
        "the node has no pool",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| drop(node.labels.remove(POOL)));
            scene
        },
        ["no_pool"; 3],
    ),
    (
        "the pool of the node does not exist",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| {
                node.labels.insert(POOL.into(), "gone".into());
            });
            scene
        },
        ["no_pool"; 3],
    ),
    (
        "the instance type is unknown",
        || {
            let mut scene = Scene::with([]);
            scene.edit("n", |node| {
                let known = [CAPACITY_TYPE, ZONE, INSTANCE_TYPE];
                node.labels.retain(|key, _| !known.contains(&key.as_str()));
            });
            let instance = scene.claim("n").instance.as_mut();
            instance.expect("it has one").offering.instance_type = "unknown".into();
            scene
        },
        ["-"; 3],
    ),
];

#[test]
fn node_and_pod_blockers_prevent_disruption_per_reason() {
    let graceful = [Reason::Empty, Reason::Underutilized];
    let eventual = [Reason::Drifted, Reason::Expired];
    for (what, scene, [anyhow, at_once, in_time]) in PODS.iter().chain(BUDGETS).chain(NODES) {
        let mut scene = scene();
        for reason in graceful.into_iter().chain(eventual) {
            assert_eq!(scene.verdict_code(reason), *anyhow, "{what}: {}", reason.as_str());
        }
        if let Some(claim) = scene.state.ledger.claims.get_mut("n") {
            claim.record.termination_grace_period = Some(SignedDuration::from_hours(1));
        }
        for reason in graceful {
            assert_eq!(scene.verdict_code(reason), *at_once, "{what}: {}", reason.as_str());
        }
        for reason in eventual {
            assert_eq!(scene.verdict_code(reason), *in_time, "{what}: {}", reason.as_str());
        }
    }
}

#[test]
fn candidate_has_the_first_of_all_its_blockers() {
    let rows = PODS.iter().chain(BUDGETS).chain(NODES);
    for (what, scene, _) in rows {
        for safety in [Safety::Standard, Safety::Conservative] {
            let mut scene = scene();
            scene.configure(|pool| pool.disruption.safety = safety);
            scene.pod(annotated(pod("zz", "n", ""), SAFE_TO_EVICT, "false"));
            let disruption_view = scene.state.disruption_view(NOW);
            for candidate in &disruption_view.candidates {
                let all = scene.state.disruption_blockers(candidate.node, candidate.claim, NOW);
                let all: Vec<_> = all.collect();
                assert_eq!(candidate.blocker.as_ref(), all.first(), "{what}: {all:?}");
                let pods: Vec<_> =
                    all.iter().filter_map(|blocker| blocker.blocking_pod()).collect();
                assert!(pods.is_sorted() && !pods.is_empty(), "{what}: {all:?}");
            }
        }
    }
}

#[test]
fn conservative_safety_applies_the_cluster_autoscaler_rules() {
    let local = |mut pod: Pod| {
        pod.local_volumes = vec!["cache".to_owned()];
        pod
    };
    let system = || {
        let mut pod = web();
        pod.key.namespace = "kube-system".to_owned();
        pod
    };
    let cases = [
        (web(), "-"),
        (pod("bare", "n", ""), "pod_not_replicated"),
        (pod("custom", "n", "CloneSet"), "pod_not_replicated"),
        (pod("agent", "n", "DaemonSet"), "-"),
        (local(web()), "pod_local_volume"),
        (local(pod("agent", "n", "DaemonSet")), "-"),
        (annotated(local(web()), SAFE_LOCAL_VOLUMES, "logs,cache"), "-"),
        (annotated(local(web()), SAFE_TO_EVICT, "true"), "-"),
        (terminated(local(web())), "-"),
        (system(), "pod_of_system"),
        (annotated(system(), SAFE_TO_EVICT, "true"), "-"),
    ];
    for (pod, expect) in cases {
        let pod_text = format!("{:?} of {:?}", pod.key, pod.owner);
        let mut scene = Scene::with([pod]);
        assert_eq!(scene.verdict_code(Reason::Underutilized), "-", "{pod_text}: standard");
        scene.configure(|pool| pool.disruption.safety = Safety::Conservative);
        assert_eq!(scene.verdict_code(Reason::Underutilized), expect, "{pod_text}");
    }
    let mut scene = Scene::with([system()]);
    scene.configure(|pool| pool.disruption.safety = Safety::Conservative);
    let mut budget = pdb("b", "web", 1);
    budget.key.namespace = "kube-system".to_owned();
    scene.apply(WatchedObject::Pdb(budget));
    assert_eq!(scene.verdict_code(Reason::Underutilized), "-", "a budget covers the system pod");
}

#[test]
fn min_age_blocks_all_reasons_except_expiry() {
    let mut scene = Scene::with([]);
    scene.configure(|pool| pool.disruption.min_age = SignedDuration::from_mins(61));
    for reason in [Reason::Empty, Reason::Underutilized, Reason::Drifted] {
        assert_eq!(scene.verdict_code(reason), "too_young", "{}", reason.as_str());
    }
    assert_eq!(scene.verdict_code(Reason::Expired), "-");
    scene.configure(|pool| pool.disruption.min_age = SignedDuration::from_mins(60));
    assert_eq!(scene.verdict_code(Reason::Empty), "-");
}

#[test]
fn pod_blocker_retains_an_expired_node_without_grace_period() {
    let expire = |scene: &mut Scene, grace: Option<SignedDuration>| {
        let record = &mut scene.claim("n").record;
        record.expire_after = Some(SignedDuration::from_mins(1));
        record.termination_grace_period = grace;
    };
    let mut scene = Scene::with([protected("ReplicaSet")]);
    expire(&mut scene, None);
    let kept = scene.plan().kept;
    let texts: Vec<String> = kept.iter().map(|retained| retained.verdict.to_string()).collect();
    let why = format!("pod default/web is annotated {DO_NOT_DISRUPT}=true");
    assert!(texts.contains(&why), "{texts:?}");
    assert_eq!(scene.disruptions(), []);
    expire(&mut scene, Some(SignedDuration::from_hours(1)));
    assert_eq!(scene.disruptions(), [("n".to_owned(), Reason::Expired)]);
    scene.edit("n", |node| {
        node.labels.insert(POOL.into(), "gone".into());
    });
    let kept = scene.plan().kept;
    assert!(kept.iter().all(|retained| retained.verdict.code() == "no_pool"), "{kept:?}");
}

#[test]
fn disruption_cost_and_utilization_are_summed_over_pods() {
    let dear = annotated(pod("dear", "n", "ReplicaSet"), DELETION_COST, "134217728");
    let cheap = annotated(pod("cheap", "n", "ReplicaSet"), DELETION_COST, "-2147483647");
    let mut large = web();
    large.requests.cpu_milli = 1_790;
    let daemon = pod("agent", "n", "DaemonSet");
    let removed = terminating(pod("gone", "n", "ReplicaSet"));
    let scene = Scene::with([dear, cheap, large, daemon, removed]);
    let disruption_view = scene.state.disruption_view(NOW);
    let candidate = &disruption_view.candidates[0];
    // One for the node, two for `dear`, one for `web`, and nothing for the others.
    assert_eq!((candidate.cost, candidate.pods), (4.0, 2));
    assert_eq!(candidate.utilization, Some(104), "daemon pods do not count");
    let mut empty = Scene::with([pod("agent", "n", "DaemonSet")]);
    empty.edit("n", |node| node.allocatable.cpu_milli = 0);
    let disruption_view = empty.state.disruption_view(NOW);
    let candidate = &disruption_view.candidates[0];
    assert_eq!((candidate.cost, candidate.pods, candidate.utilization), (1.0, 0, Some(0)));
}

#[test]
fn unreadable_annotations_are_reported_with_their_object() {
    let unreadable = annotated(web(), DO_NOT_DISRUPT, "soon");
    let mut scene = Scene::with([unreadable, annotated(pod("b", "n", "Job"), DELETION_COST, "x")]);
    scene.edit("n", |node| {
        node.annotations.insert(DO_NOT_DISRUPT.into(), "24h".into());
    });
    scene.apply(WatchedObject::Pdb(Pdb {
        defects: vec!["its selector: a fault".to_owned()],
        ..pdb("b", "web", 1)
    }));
    let objects: Vec<String> = scene
        .state
        .disruption_view(NOW)
        .misreads
        .iter()
        .map(|misread| misread.of.clone())
        .collect();
    let expect = ["PodDisruptionBudget default/b", "node n", "pod default/b", "pod default/web"];
    assert_eq!(objects, expect);
    for at in 0..300 {
        let mut pod = annotated(web(), DO_NOT_DISRUPT, "soon");
        pod.key.name = format!("web-{at}");
        scene.pod(pod);
    }
    let misreads = scene.state.disruption_view(NOW).misreads;
    assert_eq!(misreads.len(), 101, "a hundred, and one that says that there are more");
    assert!(misreads.iter().any(|misread| misread.of == "the cluster"));
}

#[test]
fn longest_do_not_disrupt_duration_of_the_pods_counts() {
    for (values, expect) in [
        (["10m", "30m"], "-"),
        (["10m", "2h"], "pod_do_not_disrupt_until"),
        (["2h", "10m"], "pod_do_not_disrupt_until"),
        (["2h", "true"], "pod_do_not_disrupt_until"),
    ] {
        let pods = ["a", "b"].into_iter().zip(values);
        let pods = pods
            .map(|(name, value)| annotated(pod(name, "n", "ReplicaSet"), DO_NOT_DISRUPT, value));
        let scene = Scene::with(pods);
        for reason in Reason::BUDGETED {
            assert_eq!(scene.verdict_code(reason), expect, "{values:?} {reason:?}");
        }
    }
}
