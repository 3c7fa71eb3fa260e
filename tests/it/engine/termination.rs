//! Drain and termination of a node: order and time of evictions, timeouts, and reports.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use outrigger::engine::command::{Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{
    DISRUPTION_REASON, DO_NOT_DISRUPT, EXCLUDE_BALANCERS, FINALIZER, TAINT_DISRUPTED,
    TAINT_UNREGISTERED, TERMINATION_AT,
};
use outrigger::model::node::Node;
use outrigger::model::pdb::Pdb;
use outrigger::model::pod::{Owner, Pod, PodPhase};
use outrigger::model::pool::{OnBlocked, Reason};
use outrigger::model::selector::Selector;
use outrigger::model::taint::{Effect, Taint, Toleration, TolerationOperator};
use outrigger::model::watched_object::{
    Attachment, ObjectKind, Volume, VolumeClaim, WatchedObject,
};
use outrigger::provider::{CommandResult, FailureKind, Interruption};

use super::{Stage, bound, pending_pod};

fn seconds(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

/// A pod of a ReplicaSet with a grace period of 30 seconds.
fn web(name: &str) -> Pod {
    owned(name, "ReplicaSet")
}

fn owned(name: &str, kind: &str) -> Pod {
    Pod {
        owner: Some(Owner { kind: kind.into(), name: "owner".into(), uid: "owner".into() }),
        grace_seconds: 30,
        ..pending_pod(name)
    }
}

fn critical(pod: Pod) -> Pod {
    Pod { priority_class: "system-cluster-critical".into(), ..pod }
}

fn tolerating(pod: Pod, key: &str, operator: TolerationOperator) -> Pod {
    let toleration = Toleration {
        key: key.into(),
        operator,
        value: String::new(),
        effect: Some(Effect::NoSchedule),
    };
    Pod { tolerations: vec![toleration], ..pod }
}

fn protected(mut pod: Pod) -> Pod {
    pod.annotations.insert(DO_NOT_DISRUPT.into(), "true".into());
    pod
}

/// A node with these pods on it.
fn node_with(pods: &[Pod], change: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(change);
    stage.sync(vec![], vec![pending_pod("first")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.event(Event::Deleted(ObjectKind::Pod, pending_pod("first").key));
    for pod in pods {
        stage.apply(bound(pod.clone(), "node-0"));
    }
    stage.run(2, &["launch"]);
    stage.commands.clear();
    stage.reports.clear();
    stage
}

/// A node with these pods and a spot interruption.
fn interrupted_node(pods: &[Pod], change: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = node_with(pods, change);
    interrupt(&mut stage, Interruption::Spot);
    stage
}

fn interrupt(stage: &mut Stage, what: Interruption) {
    let at = stage.now + seconds(120);
    stage.event(Event::interrupted("i-0".into(), what, at));
}

fn grace(of: i64) -> impl FnOnce(&mut Cluster) {
    move |cluster| cluster.pools[0].termination_grace_period = Some(seconds(of))
}

fn on_blocked(policy: OnBlocked) -> impl FnOnce(&mut Cluster) {
    move |cluster| {
        cluster.pools[0].disruption.on_blocked = policy;
        cluster.pools[0].disruption.drain_timeout = SignedDuration::from_mins(5);
    }
}

/// The evictions and deletions of pods within `time` seconds, each once, in order; the API server
/// accepts all of them, and no pod disappears.
fn evictions(stage: &mut Stage, time: i64) -> Vec<String> {
    let answer = |_: &Command| CommandResult::Done;
    evictions_answered_by(stage, time, answer)
}

fn evictions_answered_by(
    stage: &mut Stage,
    time: i64,
    answer: impl Fn(&Command) -> CommandResult,
) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for _ in 0..time {
        let held = stage.run(1, &["launch", "evict", "delete_pod"]);
        for IssuedCommand { id, command } in held {
            let text = match &command {
                Command::Evict { pod, .. } => format!("evict {}", pod.name),
                Command::DeletePod { pod, grace_seconds, .. } => {
                    format!("delete {} within {grace_seconds}", pod.name)
                }
                _ => continue,
            };
            if !all.contains(&text) {
                all.push(text);
            }
            let answer = answer(&command);
            stage.event(Event::Answered(id, answer));
        }
    }
    all
}

fn delete_pod(stage: &mut Stage, pod: &str) {
    let key = ObjectKey::new("default", pod);
    stage.event(Event::Deleted(ObjectKind::Pod, key));
}

/// The watch shows that a pod is being deleted and should disappear at `by`.
fn delete_gracefully(stage: &mut Stage, pod: &str, by: Timestamp) {
    let key = ObjectKey::new("default", pod);
    let mut pod = stage.engine.state().objects.pods[&key].clone();
    (pod.deleting, pod.gone_by) = (Some(stage.now), Some(by));
    stage.apply(WatchedObject::Pod(Box::new(pod)));
}

fn is_terminated(stage: &Stage) -> bool {
    stage.count("terminate") > 0
}

fn deadline(stage: &Stage) -> Option<Timestamp> {
    stage.only_node().termination_deadline()
}

fn reported_blockers(stage: &Stage) -> Vec<String> {
    let held = stage.reports.iter().filter_map(|report| match report {
        Report::DrainHeld { held_by, more, .. } => Some((held_by, more)),
        _ => None,
    });
    held.map(|(all, more)| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        format!("{} +{more}", all.join("; "))
    })
    .collect()
}

fn cancellations(stage: &Stage) -> Vec<&str> {
    let cancellations = stage.reports.iter().filter_map(|report| match report {
        Report::Kept { why, .. } => Some(why.as_str()),
        _ => None,
    });
    cancellations.collect()
}

#[test]
fn node_is_tainted_and_excluded_from_load_balancers_before_evictions() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    let held = stage.run(3, &["launch", "patch_node"]);
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
    let patch = held.iter().find_map(|issued| match &issued.command {
        Command::PatchNode(patch) => Some((issued.id, patch.clone())),
        _ => None,
    });
    let (id, patch) = patch.expect("a patch");
    let label = (EXCLUDE_BALANCERS.to_owned(), Some("karpenter".to_owned()));
    assert_eq!(patch.labels, [label]);
    let answer = stage.answer(&Command::PatchNode(patch));
    stage.event(Event::Answered(id, answer));
    assert_eq!(evictions(&mut stage, 2), ["evict a"]);
}

#[test]
fn drain_ignores_tolerating_mirror_and_terminal_pods() {
    use TolerationOperator::{Equal, Exists};
    let terminal = |phase| Pod { phase, ..web("a") };
    let cordon = "node.kubernetes.io/unschedulable";
    for (pod, blocks, what) in [
        (web("a"), true, "a plain pod"),
        (pending_pod("a"), true, "a pod without an owner"),
        (owned("a", "DaemonSet"), true, "a daemon pod"),
        (tolerating(web("a"), TAINT_DISRUPTED, Equal), false, "Equal"),
        (tolerating(web("a"), TAINT_DISRUPTED, Exists), false, "Exists"),
        (tolerating(web("a"), cordon, Exists), true, "a toleration of cordons"),
        (owned("a", "Node"), false, "a mirror pod"),
        (terminal(PodPhase::Succeeded), false, "a succeeded pod"),
        (terminal(PodPhase::Failed), false, "a failed pod"),
    ] {
        let mut stage = interrupted_node(&[pod], |_| {});
        let evictions = evictions(&mut stage, 20);
        assert_eq!(!evictions.is_empty(), blocks, "{what}: {evictions:?}");
        assert_eq!(!is_terminated(&stage), blocks, "{what}");
        delete_pod(&mut stage, "a");
        stage.run(20, &["launch"]);
        assert!(is_terminated(&stage), "{what}");
    }
}

#[test]
fn pods_are_evicted_by_tier_each_after_the_previous_tier_is_gone() {
    let pods = [
        critical(owned("critical-daemon", "DaemonSet")),
        critical(web("critical")),
        owned("daemon", "DaemonSet"),
        web("plain"),
        owned("set", "StatefulSet"),
    ];
    let mut stage = interrupted_node(&pods, |_| {});
    assert_eq!(evictions(&mut stage, 5), ["evict plain", "evict set"]);
    delete_pod(&mut stage, "set");
    let by = stage.now + seconds(30);
    delete_gracefully(&mut stage, "plain", by);
    assert_eq!(evictions(&mut stage, 20), [""; 0], "a terminating pod blocks the next tier");
    for (gone_now, next) in [
        ("plain", "evict daemon"),
        ("daemon", "evict critical"),
        ("critical", "evict critical-daemon"),
    ] {
        delete_pod(&mut stage, gone_now);
        assert_eq!(evictions(&mut stage, 5), [next]);
    }
    assert!(!is_terminated(&stage));
    delete_pod(&mut stage, "critical-daemon");
    stage.run(10, &["launch"]);
    assert!(is_terminated(&stage), "{:?}", stage.commands);
}

#[test]
fn drain_waits_for_a_terminating_pod_one_minute_beyond_its_grace_period() {
    let slow = Pod { grace_seconds: 600, ..web("slow") };
    let mut stage = interrupted_node(&[slow], |_| {});
    stage.run(3, &["launch"]);
    let by = stage.now + seconds(600);
    delete_gracefully(&mut stage, "slow", by);
    stage.run(655, &["launch"]);
    assert!(!is_terminated(&stage), "its own grace period and a minute more");
    stage.run(40, &["launch"]);
    assert!(is_terminated(&stage));
}

#[test]
fn refused_eviction_is_reported_once_and_retried_with_back_off() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    let refused = |_: &Command| CommandResult::EvictRefused("the budget web needs 2".into());
    evictions_answered_by(&mut stage, 100, refused);
    let attempts = stage.count("evict");
    assert!((12..=25).contains(&attempts), "{attempts} in 100 s");
    let refusals = |stage: &Stage| {
        let reports = stage.reports.iter();
        reports.filter(|report| matches!(report, Report::EvictRefused { .. })).count()
    };
    assert_eq!(refusals(&stage), 1);
    stage.commands.clear();
    evictions_answered_by(&mut stage, 100, refused);
    let attempts = stage.count("evict");
    assert!((8..=14).contains(&attempts), "{attempts} in the next 100 s");
    assert_eq!((refusals(&stage), is_terminated(&stage)), (1, false));
    // A new pod with the same name gets its own report.
    let recreated = Pod { uid: "anew".into(), ..web("a") };
    stage.apply(bound(recreated, "node-0"));
    stage.run(1, &["launch"]);
    evictions_answered_by(&mut stage, 2, refused);
    assert_eq!(refusals(&stage), 2);
}

#[test]
fn eviction_blocked_by_a_pdb_is_retried_rarely_until_the_pdb_allows_it() {
    let mut labeled = web("a");
    labeled.labels.insert("app".into(), "web".into());
    let pdb = |allowed| {
        let labels = [("app".to_owned(), "web".to_owned())].into();
        WatchedObject::Pdb(Pdb {
            key: ObjectKey::new("default", "web"),
            selector: Some(Selector::from_labels(&labels)),
            disruptions_allowed: allowed,
            ..Pdb::default()
        })
    };
    let mut stage = interrupted_node(&[labeled], |_| {});
    stage.apply(pdb(0));
    let refused = |_: &Command| CommandResult::EvictRefused("the budget web needs 2".into());
    evictions_answered_by(&mut stage, 330, refused);
    let attempts = stage.count("evict");
    assert!((5..=8).contains(&attempts), "{attempts} in 330 s");
    evictions_answered_by(&mut stage, 30, refused);
    stage.commands.clear();
    stage.apply(pdb(1));
    evictions_answered_by(&mut stage, 2, refused);
    assert_eq!(stage.count("evict"), 1);
}

#[test]
fn eviction_names_the_pod_by_uid_and_a_missing_pod_is_no_failure() {
    for kind in [FailureKind::Gone, FailureKind::Conflict] {
        let mut stage = interrupted_node(&[web("a")], |_| {});
        let held = stage.run(3, &["launch", "evict"]);
        let evict = held.iter().find_map(|issued| match &issued.command {
            Command::Evict { uid, .. } => Some((issued.id, uid.clone())),
            _ => None,
        });
        let (id, uid) = evict.expect("an eviction");
        assert_eq!(uid, "uid-a");
        let text = String::new();
        stage.event(Event::Answered(id, CommandResult::Failed { kind, text }));
        delete_pod(&mut stage, "a");
        stage.run(10, &["launch"]);
        assert!(is_terminated(&stage));
        let is_failure =
            |report: &Report| matches!(report, Report::Failed { .. } | Report::EvictRefused { .. });
        assert!(!stage.reports.iter().any(is_failure), "{:?}", stage.reports);
    }
}

#[test]
fn blocked_drain_is_reported_by_pod_and_pdb_at_growing_intervals() {
    let mut labeled = web("kept");
    labeled.labels.insert("app".into(), "web".into());
    let ending =
        Pod { finalizers: vec!["example.com/wait".into()], grace_seconds: 7200, ..web("ending") };
    let mut stage = interrupted_node(&[labeled, protected(web("shy")), ending], |_| {});
    let mut labels = outrigger::model::labels::Labels::new();
    labels.insert("app".into(), "web".into());
    stage.apply(WatchedObject::Pdb(Pdb {
        key: ObjectKey::new("default", "web"),
        selector: Some(Selector::from_labels(&labels)),
        ..Pdb::default()
    }));
    let by = stage.now + seconds(7200);
    delete_gracefully(&mut stage, "ending", by);
    stage.run(100, &["launch"]);
    assert_eq!(reported_blockers(&stage), [""; 0]);
    stage.run(40, &["launch"]);
    let expect = format!(
        "pod default/ending should terminate by {by} and has the finalizers example.com/wait; \
         pod default/kept is protected by PodDisruptionBudget default/web; \
         pod default/shy must not be disrupted +0"
    );
    assert_eq!(reported_blockers(&stage), [expect.as_str()]);
    stage.run(3600, &["launch"]);
    assert_eq!(reported_blockers(&stage).len(), 5, "after 2, 6, 14, 30 and 62 minutes");
    assert!(!is_terminated(&stage), "the drain has no timeout by default");
}

#[test]
fn pod_with_a_do_not_disrupt_duration_is_evicted_when_it_ends() {
    let mut stage = interrupted_node(&[web("shy")], |_| {});
    let key = ObjectKey::new("default", "shy");
    let mut shy = stage.engine.state().objects.pods[&key].clone();
    shy.annotations.insert(DO_NOT_DISRUPT.into(), "10m".into());
    shy.started = Some(stage.now);
    stage.apply(WatchedObject::Pod(Box::new(shy)));
    assert_eq!(evictions(&mut stage, 599), [""; 0]);
    assert_eq!(evictions(&mut stage, 2), ["evict shy"]);
}

/// The kubelet recreates a Node that a user deleted, and its pods keep running.
#[test]
fn deleted_and_recreated_node_is_drained_before_termination() {
    let mut stage = node_with(&[web("stays")], |_| {});
    stage.event(Event::Deleted(ObjectKind::Node, ObjectKey::new("", "node-0")));
    stage.run(2, &["launch"]);
    let mut recreated = stage.node(0);
    (recreated.uid, recreated.version) = ("anew".into(), "100".into());
    let taint = Taint::new(TAINT_UNREGISTERED, Effect::NoExecute);
    recreated.taints = vec![taint];
    recreated.labels.clear();
    stage.apply(WatchedObject::Node(Box::new(recreated)));
    // The interruption arrives before the Node is registered again.
    let held = stage.run(2, &["launch", "patch_node"]);
    interrupt(&mut stage, Interruption::Spot);
    for IssuedCommand { id, .. } in held {
        let (kind, text) = (FailureKind::Conflict, String::new());
        stage.event(Event::Answered(id, CommandResult::Failed { kind, text }));
    }
    assert_eq!(evictions(&mut stage, 10), ["evict stays"]);
    assert!(!is_terminated(&stage), "before the pod is gone");
}

/// The scheduler may still bind a pod that it assigned before the taint.
#[test]
fn drain_of_an_empty_node_lasts_at_least_five_seconds() {
    let mut stage = interrupted_node(&[], |_| {});
    let mut tainted = 0;
    while !is_terminated(&stage) && tainted < 60 {
        stage.run(1, &["launch"]);
        tainted += u32::from(stage.count("patch_node") > 0);
    }
    assert!((5..=10).contains(&tainted), "{tainted} s");
}

#[test]
fn unmanaged_pod_is_evicted_before_the_node_is_terminated() {
    let mut stage = interrupted_node(&[pending_pod("bare")], |_| {});
    assert_eq!(evictions(&mut stage, 10), ["evict bare"]);
    assert!(!is_terminated(&stage));
    delete_pod(&mut stage, "bare");
    stage.run(10, &["launch"]);
    assert!(is_terminated(&stage));
}

#[test]
fn drained_node_without_a_termination_grace_period_has_no_deadline() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    stage.run(60, &["launch", "evict"]);
    assert!(stage.only_node().has_disrupted_taint());
    assert_eq!(deadline(&stage), None);
}

#[test]
fn termination_deadline_is_written_with_the_taint() {
    let mut stage = interrupted_node(&[web("a")], grace(300));
    let held = stage.run(3, &["launch", "patch_node"]);
    let patch = held.iter().find_map(|issued| match &issued.command {
        Command::PatchNode(patch) => Some(patch),
        _ => None,
    });
    let patch = patch.expect("a patch");
    assert!(patch.taints.is_some(), "{patch:?}");
    let written = patch.annotations.iter().find(|(key, _)| key == TERMINATION_AT);
    let written = written.and_then(|(_, value)| value.as_deref()).expect("a time");
    let at: Timestamp = written.parse().expect("RFC 3339");
    let left = at.duration_since(stage.now).as_secs();
    assert!((290..=300).contains(&left), "{written} is {left} s away");
}

#[test]
fn pods_are_deleted_in_time_for_their_own_grace_before_the_deadline() {
    let short = Pod { grace_seconds: 30, ..web("short") };
    let long = Pod { grace_seconds: 200, ..critical(web("long")) };
    let endless = Pod { grace_seconds: 900, ..protected(web("endless")) };
    let mut stage = interrupted_node(&[short, long, endless], grace(300));
    // A pod whose grace period does not fit is deleted at once, in any tier, with the whole time.
    let first = evictions(&mut stage, 4);
    assert!(first.contains(&"evict short".to_owned()), "{first:?}");
    let deleted = |all: &[String], pod: &str| {
        let prefix = format!("delete {pod} within ");
        all.iter().find_map(|text| text.strip_prefix(&prefix)?.parse::<i64>().ok())
    };
    let given = deleted(&first, "endless").expect("deleted at once");
    assert!((290..=300).contains(&given), "{first:?}");
    let by = deadline(&stage).expect("written");
    delete_gracefully(&mut stage, "endless", by);
    assert_eq!(deleted(&evictions(&mut stage, 90), "long"), None, "enough time remains");
    let given = deleted(&evictions(&mut stage, 12), "long");
    assert!(given.is_some_and(|seconds| (195..=200).contains(&seconds)), "{given:?}");
    delete_gracefully(&mut stage, "long", by);
    let late = evictions(&mut stage, 150);
    assert_eq!(deleted(&late, "short"), None, "{late:?}");
    let late = evictions(&mut stage, 25);
    assert!(
        deleted(&late, "short").is_some_and(|seconds| (28..=30).contains(&seconds)),
        "{late:?}"
    );
    assert!(!is_terminated(&stage), "{} remaining", by.duration_since(stage.now));
    stage.run(30, &["launch"]);
    assert!(is_terminated(&stage), "the deadline has passed");
    let forced = |report: &Report| match report {
        Report::DrainForced { held_by, .. } => held_by.len() == 2,
        _ => false,
    };
    assert!(stage.reports.iter().any(forced), "{:?}", stage.reports);
}

#[test]
fn grace_of_a_terminating_pod_is_cut_to_the_deadline_of_the_node() {
    let pod = Pod { grace_seconds: 3600, ..web("a") };
    let mut stage = node_with(&[pod], grace(100));
    let by = stage.now + seconds(3600);
    delete_gracefully(&mut stage, "a", by);
    interrupt(&mut stage, Interruption::Spot);
    let all = evictions(&mut stage, 5);
    let given = all.iter().find_map(|text| text.strip_prefix("delete a within "));
    let given: Option<i64> = given.and_then(|text| text.parse().ok());
    assert!(given.is_some_and(|seconds| (90..=100).contains(&seconds)), "{all:?}");
    let by = deadline(&stage).expect("written");
    delete_gracefully(&mut stage, "a", by);
    assert_eq!(evictions(&mut stage, 50), [""; 0], "the pod now terminates in time");
}

#[test]
fn pod_is_deleted_with_at_least_one_second_of_grace() {
    let mut stage = interrupted_node(&[web("a")], grace(0));
    // The held commands get no result, so that the drain continues after its deadline.
    let held = stage.run(1, &["launch", "evict", "delete_pod", "terminate"]);
    for issued in held {
        if let Command::DeletePod { grace_seconds, .. } = issued.command {
            assert_eq!(grace_seconds, 1);
        }
    }
    assert!(is_terminated(&stage), "the grace period is zero: {:?}", stage.commands);
}

#[test]
fn termination_deadline_only_moves_earlier_and_is_restored_after_removal() {
    let mut stage = interrupted_node(&[web("a")], grace(3000));
    evictions(&mut stage, 5);
    let first = deadline(&stage).expect("written");
    let rewrite = |stage: &mut Stage, at: Option<Timestamp>| {
        let mut node = stage.only_node().clone();
        node.version.push('m');
        match at {
            Some(at) => node.annotations.insert(TERMINATION_AT.into(), at.to_string()),
            None => node.annotations.remove(TERMINATION_AT),
        };
        stage.apply(WatchedObject::Node(Box::new(node)));
        evictions(stage, 3);
    };
    rewrite(&mut stage, None);
    assert_eq!(deadline(&stage), Some(first));
    rewrite(&mut stage, Some(first + seconds(600)));
    assert_eq!(deadline(&stage), Some(first), "the deadline never moves later");
    let nearer = stage.now + seconds(60);
    rewrite(&mut stage, Some(nearer));
    assert_eq!(deadline(&stage), Some(nearer));
    interrupt(&mut stage, Interruption::Failed);
    evictions(&mut stage, 3);
    assert!(is_terminated(&stage), "a failed instance has no grace period");
}

#[test]
fn removed_disruption_marks_are_restored_with_back_off() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    evictions(&mut stage, 5);
    let marks = |stage: &Stage| {
        let node = stage.only_node();
        [&node.labels, &node.annotations].map(BTreeMap::len)
    };
    let all = marks(&stage);
    let remove_mark = |stage: &mut Stage, key: &str| {
        let mut node = stage.only_node().clone();
        node.labels.remove(key);
        node.annotations.remove(key);
        node.version.push('m');
        stage.apply(WatchedObject::Node(Box::new(node)));
    };
    for (at, key) in [EXCLUDE_BALANCERS, DISRUPTION_REASON].iter().enumerate() {
        remove_mark(&mut stage, key);
        assert_ne!(marks(&stage), all);
        evictions(&mut stage, if at == 0 { 2 } else { 20 });
        let patches = stage.count("patch_node");
        assert_eq!(marks(&stage) == all, at == 0, "{key}: {patches}");
        evictions(&mut stage, 5);
        assert_eq!(marks(&stage), all, "{key}");
    }
    delete_pod(&mut stage, "a");
    evictions(&mut stage, 10);
    assert!(is_terminated(&stage));
}

#[test]
fn invalid_termination_deadline_is_overwritten() {
    let mut stage = node_with(&[web("a")], grace(300));
    let mut node = stage.only_node().clone();
    node.annotations.insert(TERMINATION_AT.into(), "soon".into());
    node.version.push('m');
    stage.apply(WatchedObject::Node(Box::new(node)));
    interrupt(&mut stage, Interruption::Spot);
    evictions(&mut stage, 3);
    let left = deadline(&stage).expect("written").duration_since(stage.now);
    assert!(left > seconds(290), "{left}");
}

/// An expired node whose replacement is being launched.
fn expired_without_replacement(pod: Pod, change: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = node_with(&[pod], |cluster| {
        cluster.pools[0].expire_after = Some(SignedDuration::from_hours(1));
        change(cluster);
    });
    for _ in 0..80 {
        stage.run(60, &[]);
        if stage.launches.len() > 1 {
            break;
        }
    }
    assert_eq!(stage.count("evict"), 0, "not before a replacement is ready");
    assert_eq!(deadline(&stage), None, "the grace period has not started");
    stage
}

/// An expired node whose replacement has registered.
fn expired(pod: Pod, change: impl FnOnce(&mut Cluster)) -> Stage {
    let mut stage = expired_without_replacement(pod, change);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(1, &["evict"]);
    stage
}

fn old_node(stage: &Stage) -> &Node {
    &stage.engine.state().objects.nodes["node-0"]
}

#[test]
fn grace_period_of_a_node_starts_once_its_pods_have_a_replacement() {
    let mut stage = expired(web("a"), grace(300));
    evictions(&mut stage, 3);
    let left = old_node(&stage).termination_deadline().map(|at| at.duration_since(stage.now));
    assert!(left.is_some_and(|left| left > seconds(290)), "{left:?}");
}

#[test]
fn drain_timeout_with_on_blocked_abort_cancels_the_disruption() {
    let mut stage = expired(web("a"), on_blocked(OnBlocked::Abort));
    let refused = |_: &Command| CommandResult::EvictRefused("no".into());
    evictions_answered_by(&mut stage, 290, refused);
    assert_eq!(cancellations(&stage), [""; 0]);
    evictions_answered_by(&mut stage, 30, refused);
    let why = "it was not drained within 5m: pod default/a is not evicted yet";
    assert_eq!(cancellations(&stage), [why]);
    assert!(!old_node(&stage).has_disrupted_taint(), "the taint is removed");
    assert!(!old_node(&stage).labels.contains_key(EXCLUDE_BALANCERS));
    assert!(stage.instances["i-0"].state.is_live(), "the instance continues to run");
}

/// The grace period would remove the pod, but the drain timeout cancels the disruption before it
/// has passed: each attempt would fail like the one before.
#[test]
fn do_not_disrupt_pod_keeps_an_expired_node_with_on_blocked_abort() {
    for (policy, disrupted) in [(OnBlocked::Abort, false), (OnBlocked::Wait, true)] {
        let mut stage = node_with(&[protected(web("a"))], |cluster| {
            cluster.pools[0].expire_after = Some(SignedDuration::from_hours(1));
            grace(3600)(cluster);
            on_blocked(policy)(cluster);
        });
        stage.run(4 * 3600, &["evict"]);
        assert_eq!(is_terminated(&stage), disrupted, "{policy:?}");
        assert_eq!(stage.count("patch_node") > 0, disrupted, "the node is not tainted either");
        assert!(disrupted || stage.launches.len() == 1, "no replacement is launched either");
    }
}

/// The deadline of a cancelled drain does not apply to pods of a Node that vanishes later.
#[test]
fn pods_of_a_vanished_node_are_evicted_and_not_deleted_after_a_cancelled_drain() {
    let mut stage = expired(web("a"), |cluster| {
        grace(600)(cluster);
        on_blocked(OnBlocked::Abort)(cluster);
    });
    let refused = |_: &Command| CommandResult::EvictRefused("no".into());
    evictions_answered_by(&mut stage, 320, refused);
    assert_eq!(cancellations(&stage).len(), 1);
    stage.delete_node(0);
    let mut removals = Vec::new();
    // The deadline of the drain, had it not been cancelled, is five minutes away.
    for _ in 0..80 {
        removals.extend(evictions_answered_by(&mut stage, 5, refused));
        stage.list_nodes_again();
    }
    assert!(removals.iter().any(|removal| removal == "evict a"), "{removals:?}");
    assert!(removals.iter().all(|removal| removal == "evict a"), "{removals:?}");
}

/// A reload, an interruption or the maximum age may rule out a cancellation that waits for the
/// result of an eviction.
#[test]
fn evictions_continue_when_a_pending_cancellation_is_ruled_out() {
    let later = SignedDuration::from_hours(1);
    let rulings: [fn(&mut Cluster, SignedDuration); 3] = [
        |cluster, _| on_blocked(OnBlocked::Wait)(cluster),
        |cluster, _| on_blocked(OnBlocked::Force)(cluster),
        |cluster, later| cluster.pools[0].disruption.drain_timeout = later,
    ];
    for rule_out in rulings {
        let mut stage = expired(web("a"), on_blocked(OnBlocked::Abort));
        let refused = |_: &Command| CommandResult::EvictRefused("no".into());
        evictions_answered_by(&mut stage, 280, refused);
        let held = stage.run(60, &["evict"]);
        assert_eq!(held.len(), 1, "the cancellation waits for its result");
        stage.change(|cluster| rule_out(cluster, later));
        let no = CommandResult::EvictRefused("no".into());
        stage.event(Event::Answered(held[0].id, no));
        // Without an event, the next full pass would be minutes later.
        let removals = evictions(&mut stage, 20);
        assert_eq!(cancellations(&stage), [""; 0]);
        assert!(!removals.is_empty(), "{:?}", stage.commands);
    }
}

/// An eviction in flight may reach the API server after the node was untainted.
#[test]
fn cancelled_node_is_untainted_only_after_the_last_eviction_is_answered() {
    let mut stage = expired(web("a"), on_blocked(OnBlocked::Abort));
    let refused = |_: &Command| CommandResult::EvictRefused("no".into());
    evictions_answered_by(&mut stage, 280, refused);
    let held = stage.run(60, &["evict"]);
    assert_eq!(held.len(), 1, "one more eviction, and no further one");
    assert!(old_node(&stage).has_disrupted_taint());
    assert_eq!(cancellations(&stage), [""; 0]);
    let no = CommandResult::EvictRefused("no".into());
    stage.event(Event::Answered(held[0].id, no));
    stage.run(5, &["evict"]);
    assert_eq!(cancellations(&stage).len(), 1);
    assert!(!old_node(&stage).has_disrupted_taint());
}

/// A PodDisruptionBudget with this desired health of this many pods.
fn budget(name: &str, desired: i64, expected: i64) -> WatchedObject {
    WatchedObject::Pdb(Pdb {
        key: ObjectKey::new("default", name),
        selector: Some(Selector::default()),
        desired_healthy: desired,
        expected_pods: expected,
        ..Pdb::default()
    })
}

/// The drain does not wait for pods that can never be evicted, unless the node has a deadline.
#[test]
fn permanently_blocked_drain_is_cancelled_unless_the_node_has_a_deadline() {
    let all = || vec![budget("all", 3, 3)];
    let protected_pod = || bound(protected(web("a")), "node-0");
    let cases = [
        (all(), None, 1),
        (vec![budget("none", 0, 3), budget("other", 0, 3)], None, 1),
        (vec![protected_pod()], None, 1),
        (vec![budget("most", 2, 3)], None, 0),
        (vec![budget("new", 0, 0)], None, 0),
        (all(), Some(3000), 0),
    ];
    for (at, (objects, time, expect)) in cases.into_iter().enumerate() {
        let mut stage = expired(web("a"), |cluster| {
            on_blocked(OnBlocked::Wait)(cluster);
            cluster.pools[0].termination_grace_period = time.map(seconds);
        });
        for object in objects {
            stage.apply(object);
        }
        let refused = |_: &Command| CommandResult::EvictRefused("no".into());
        evictions_answered_by(&mut stage, 290, refused);
        assert_eq!(cancellations(&stage), [""; 0], "case {at}");
        evictions_answered_by(&mut stage, 30, refused);
        assert_eq!(cancellations(&stage).len(), expect, "case {at}");
    }
}

/// The kubelet runs no pods, so a PodDisruptionBudget would block their eviction without end.
#[test]
fn uninitialized_node_that_is_not_ready_is_terminated_despite_a_pdb() {
    for (ready, expect) in [(false, true), (true, false)] {
        let mut stage = Stage::new(ManagementMode::Manage);
        let startup_taint = Taint::new("example.com/agent", Effect::NoSchedule);
        stage.change(|cluster| cluster.pools[0].startup_taints.push(startup_taint.clone()));
        stage.sync(vec![], vec![web("a")]);
        stage.run(10, &[]);
        let mut node = stage.node(0);
        node.ready = ready;
        node.taints.push(startup_taint);
        stage.apply(WatchedObject::Node(Box::new(node)));
        stage.run(2, &[]);
        stage.apply(bound(web("a"), "node-0"));
        stage.apply(budget("all", 3, 3));
        let refused = |_: &Command| CommandResult::EvictRefused("no".into());
        evictions_answered_by(&mut stage, 20 * 60, refused);
        assert_eq!(is_terminated(&stage), expect, "ready: {ready}");
        assert!(expect || old_node(&stage).has_disrupted_taint());
    }
}

/// The API server lists a pod that the watch lacks; only a new listing proves that the watch has
/// restarted.
#[test]
fn pod_watch_that_lacks_pods_is_restarted_until_a_listing_arrives() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    stage.run(3, &["launch", "evict"]);
    delete_pod(&mut stage, "a");
    let held = stage.run(15, &["launch", "list_pods_on"]);
    let lists = |issued: &&IssuedCommand| matches!(issued.command, Command::ListPodsOn { .. });
    let list = held.iter().find(lists).expect("the engine confirms the drain");
    let hidden = Pod {
        node: Some("node-0".into()),
        created: Some(stage.now - seconds(60)),
        ..web("hidden")
    };
    stage.event(Event::Answered(list.id, CommandResult::Pods(vec![hidden])));
    for time in 0..3 {
        let held = stage.run(30, &["launch", "rewatch"]);
        assert!(!stage.engine.is_ready(), "{time}");
        let is_rewatch =
            |issued: &&IssuedCommand| matches!(issued.command, Command::Rewatch { .. });
        let rewatch = held.iter().find(is_rewatch).expect("the engine restarts the watch");
        let (kind, text) = (FailureKind::Unknown, "no answer".to_owned());
        stage.event(Event::Answered(rewatch.id, CommandResult::Failed { kind, text }));
    }
    stage.event(Event::Reset(ObjectKind::Pod, Vec::new()));
    stage.run(10, &["launch"]);
    assert!(stage.engine.is_ready());
}

/// The objects of a silent watch may be outdated: no pod is evicted because of them, long before
/// the watch counts as lost.
#[test]
fn no_pod_is_evicted_for_a_replacement_while_the_pod_watch_is_silent() {
    let mut stage = expired_without_replacement(web("a"), |_| {});
    stage.silent_watch = Some(ObjectKind::Pod);
    stage.run(20, &["launch"]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(1))));
    stage.run(30, &["launch"]);
    assert_eq!(stage.count("evict"), 0);
    assert!(stage.engine.is_ready());
    stage.silent_watch = None;
    stage.event(Event::WatchAlive(ObjectKind::Pod));
    assert_eq!(evictions(&mut stage, 3), ["evict a"]);
}

#[test]
fn failed_untaint_of_a_cancelled_node_is_retried() {
    let mut stage = expired(web("a"), |cluster| {
        grace(3000)(cluster);
        on_blocked(OnBlocked::Abort)(cluster);
    });
    let refused = |_: &Command| CommandResult::EvictRefused("no".into());
    evictions_answered_by(&mut stage, 290, refused);
    assert!(old_node(&stage).termination_deadline().is_some());
    let mut held = Vec::new();
    for _ in 0..30 {
        for issued in stage.run(1, &["launch", "evict", "patch_node"]) {
            if matches!(issued.command, Command::Evict { .. }) {
                let answer = refused(&issued.command);
                stage.event(Event::Answered(issued.id, answer));
            } else {
                held.push(issued);
            }
        }
    }
    assert_eq!(cancellations(&stage).len(), 1);
    let patch = held.iter().find(|issued| issued.command.name() == "patch_node");
    let (kind, text) = (FailureKind::Conflict, "it has changed".to_owned());
    let id = patch.expect("the engine untaints the node").id;
    stage.event(Event::Answered(id, CommandResult::Failed { kind, text }));
    stage.commands.clear();
    stage.run(20, &["launch"]);
    assert_eq!(stage.commands[0], "patch_node");
    let node = old_node(&stage);
    assert!(!node.has_disrupted_taint() && node.termination_deadline().is_none());
    assert_eq!(stage.count("evict"), 0, "{:?}", stage.commands);
}

#[test]
fn drain_is_not_cancelled_if_all_pods_terminate_or_the_node_is_interrupted() {
    let mut stage = expired(web("a"), on_blocked(OnBlocked::Abort));
    evictions(&mut stage, 5);
    let by = stage.now + seconds(900);
    delete_gracefully(&mut stage, "a", by);
    stage.run(600, &["launch"]);
    assert_eq!(cancellations(&stage), [""; 0]);
    let mut stage = interrupted_node(&[web("a")], on_blocked(OnBlocked::Abort));
    evictions_answered_by(&mut stage, 600, |_| CommandResult::EvictRefused("no".into()));
    assert_eq!(cancellations(&stage), [""; 0]);
}

#[test]
fn on_blocked_force_deletes_each_pod_with_its_own_grace_period() {
    let long = Pod { grace_seconds: 120, ..protected(web("long")) };
    let mut stage = interrupted_node(&[web("a"), long], on_blocked(OnBlocked::Force));
    let answer = |command: &Command| match command {
        Command::Evict { .. } => CommandResult::EvictRefused("no".into()),
        _ => CommandResult::Done,
    };
    assert_eq!(evictions_answered_by(&mut stage, 295, answer), ["evict a"]);
    assert_eq!(deadline(&stage), None);
    let all = evictions_answered_by(&mut stage, 10, answer);
    assert!(all.contains(&"delete a within 30".to_owned()), "{all:?}");
    let longer = all.iter().find_map(|text| text.strip_prefix("delete long within "));
    let longer: Option<i64> = longer.and_then(|text| text.parse().ok());
    assert!(longer.is_some_and(|seconds| (110..=120).contains(&seconds)), "{all:?}");
    assert!(deadline(&stage).is_some(), "the deadline is written before any deletion");
    stage.run(130, &["launch"]);
    assert!(is_terminated(&stage));
}

/// Attaches a volume to the node.
fn attach(stage: &mut Stage, volume: &str) {
    if !volume.is_empty() {
        stage.apply(WatchedObject::Volume(Volume { name: volume.into(), ..Volume::default() }));
    }
    stage.attachments.push(Attachment { name: format!("csi-{volume}"), volume: volume.into() });
}

#[test]
fn instance_is_terminated_once_the_volumes_of_its_pods_are_detached() {
    let mut stage = interrupted_node(&[web("a")], |_| {});
    attach(&mut stage, "data");
    stage.run(5, &["launch"]);
    assert_eq!(stage.count("list_attachments"), 0, "not while pods are on the node");
    delete_pod(&mut stage, "a");
    stage.run(200, &["launch"]);
    assert!(!is_terminated(&stage) && stage.count("list_attachments") > 10);
    let expect = ["volume data is still attached (csi-data) +0"];
    assert_eq!(reported_blockers(&stage), expect);
    stage.attachments.clear();
    stage.run(10, &["launch"]);
    assert!(is_terminated(&stage));
}

#[test]
fn drain_ignores_volumes_of_remaining_pods_and_unknown_attachments() {
    let stays = tolerating(web("stays"), TAINT_DISRUPTED, TolerationOperator::Exists);
    let stays = Pod { volume_claims: vec!["cache".into()], ..stays };
    let mut stage = interrupted_node(&[stays], |_| {});
    stage.apply(WatchedObject::VolumeClaim(VolumeClaim {
        key: ObjectKey::new("default", "cache"),
        volume: "cache".into(),
        ..VolumeClaim::default()
    }));
    attach(&mut stage, "cache");
    attach(&mut stage, "");
    stage.run(10, &["launch"]);
    assert_eq!(stage.count("list_attachments"), 1);
    assert!(is_terminated(&stage));
}

#[test]
fn drain_waits_for_a_volume_for_six_minutes_or_until_the_deadline() {
    for (given, least) in [(None, 350), (Some(100), 90), (Some(1000), 990)] {
        let mut stage = interrupted_node(&[], |cluster| {
            cluster.pools[0].termination_grace_period = given.map(seconds);
        });
        attach(&mut stage, "data");
        stage.run(least, &["launch"]);
        assert!(!is_terminated(&stage), "{given:?}");
        stage.run(25, &["launch"]);
        assert!(is_terminated(&stage), "{given:?}: {:?}", stage.commands);
        let is_forced = |report: &Report| matches!(report, Report::DrainForced { .. });
        assert_eq!(stage.reports.iter().filter(|report| is_forced(report)).count(), 1, "{given:?}");
    }
}

#[test]
fn drain_does_not_wait_without_volumes_or_permission_to_list_attachments() {
    let mut stage = interrupted_node(&[], |_| {});
    stage.run(10, &["launch"]);
    assert!(is_terminated(&stage) && stage.count("list_attachments") == 0);
    let mut stage = interrupted_node(&[], |_| {});
    attach(&mut stage, "data");
    let held = stage.run(8, &["launch", "list_attachments"]);
    let list = held.iter().find(|issued| issued.command.name() == "list_attachments");
    let (kind, text) = (FailureKind::Denied, "volumeattachments".to_owned());
    let denied = CommandResult::Failed { kind, text };
    stage.event(Event::Answered(list.expect("a list").id, denied));
    stage.run(5, &["launch"]);
    assert!(is_terminated(&stage), "{:?}", stage.commands);
    let list_failed =
        |report: &Report| matches!(report, Report::Failed { command: "list_attachments", .. });
    assert!(stage.reports.iter().any(list_failed));
}

/// Restarts the daemon with the same configuration, nodes and pods.
pub(super) fn restart(stage: &mut Stage) {
    let objects = &stage.engine.state().objects;
    let (nodes, pods) = (&objects.nodes, &objects.pods);
    let (nodes, pods) = (nodes.values().cloned(), pods.values().cloned());
    let (nodes, pods): (Vec<Node>, Vec<Pod>) = (nodes.collect(), pods.collect());
    let cluster = stage.engine.state().cluster.clone();
    stage.engine = outrigger::engine::Engine::new(8);
    stage.start(ManagementMode::Manage);
    stage.event(Event::ConfigChanged(cluster));
    stage.sync(nodes, pods);
    stage.commands.clear();
}

#[test]
fn restart_continues_irrevocable_drains_and_decides_others_again() {
    // The interruption message does not arrive again; the drift is detected again.
    let (interrupted, drifted) = (Reason::Interrupted, Reason::Drifted);
    // A pod of a drifted node has no place here, and waits for half the time before its deletion.
    for (given, reason, continues, evicts) in [
        (Some(300), interrupted, true, true),
        (Some(300), drifted, true, false),
        (None, interrupted, true, true),
        (None, drifted, false, false),
    ] {
        let mut stage = interrupted_node(&[web("a")], |cluster| {
            cluster.pools[0].termination_grace_period = given.map(seconds);
        });
        evictions(&mut stage, 10);
        let before = deadline(&stage);
        let mut node = stage.only_node().clone();
        let text = reason.as_str().to_owned();
        node.annotations.insert(DISRUPTION_REASON.to_owned(), text);
        stage.apply(WatchedObject::Node(Box::new(node)));
        restart(&mut stage);
        let all = evictions(&mut stage, 20);
        assert_eq!(all.contains(&"evict a".to_owned()), evicts, "{all:?}");
        assert_eq!(stage.only_node().has_disrupted_taint(), continues);
        assert_eq!(deadline(&stage), before, "the deadline does not change");
        let all = evictions(&mut stage, 140);
        assert_eq!(all.contains(&"evict a".to_owned()), continues, "{all:?}");
        stage.run(300, &["launch"]);
        assert_eq!(is_terminated(&stage), given.is_some());
    }
}

#[test]
fn instance_that_keeps_running_is_terminated_again_and_reported_rarely() {
    let mut stage = interrupted_node(&[], |_| {});
    for _ in 0..60 {
        let held = stage.run(60, &["launch", "terminate"]);
        for issued in held.iter().filter(|issued| issued.command.name() == "terminate") {
            let running = outrigger::model::instance::InstanceState::Running;
            stage.event(Event::Answered(issued.id, CommandResult::Terminating(running)));
        }
    }
    let attempts = stage.count("terminate");
    assert!((20..=80).contains(&attempts), "{attempts} times in an hour");
    let is_report = |report: &&Report| matches!(report, Report::Lingers { .. });
    assert_eq!(stage.reports.iter().filter(is_report).count(), 2, "after 10 and 30 minutes");
    assert_eq!(stage.count("delete_node"), 0, "the Node stays as long as its instance");
}

fn with_finalizer(cluster: &mut Cluster) {
    cluster.finalizer = true;
}

/// A user deletes the Node, which waits for its finalizers.
fn delete_node(stage: &mut Stage) {
    let mut node = stage.only_node().clone();
    node.deleting = Some(stage.now);
    node.version.push('d');
    stage.apply(WatchedObject::Node(Box::new(node)));
}

#[test]
fn node_has_our_finalizer_only_if_configured() {
    let mut stage = node_with(&[web("a")], |_| {});
    assert!(!stage.only_node().has_finalizer());
    stage.change(with_finalizer);
    stage.run(5, &[]);
    assert_eq!(stage.only_node().finalizers, [FINALIZER]);
    let mut node = stage.only_node().clone();
    node.finalizers.insert(0, "example.com/other".into());
    node.version.push('m');
    stage.apply(WatchedObject::Node(Box::new(node)));
    stage.change(|cluster| cluster.finalizer = false);
    stage.run(5, &[]);
    assert_eq!(stage.only_node().finalizers, ["example.com/other"]);
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(with_finalizer);
    stage.sync(vec![], vec![pending_pod("a")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    let held = stage.run(2, &["patch_node"]);
    let Some(Command::PatchNode(patch)) = held.first().map(|issued| &issued.command) else {
        panic!("{held:?}")
    };
    let has_unregistered = |taints: &Vec<outrigger::model::taint::Taint>| {
        taints.iter().any(|taint| taint.key == TAINT_UNREGISTERED)
    };
    assert_eq!(patch.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
    assert!(
        patch.taints.is_some(),
        "with the registration: {}",
        patch.taints.iter().any(has_unregistered)
    );
}

#[test]
fn deleted_node_with_our_finalizer_is_drained_and_terminated_first() {
    let mut stage = node_with(&[web("a")], with_finalizer);
    delete_node(&mut stage);
    assert_eq!(evictions(&mut stage, 5), ["evict a"]);
    let why = |report: &Report| matches!(report, Report::Retire { reason: Reason::Deleted, .. });
    assert!(stage.reports.iter().any(why), "{:?}", stage.reports);
    delete_pod(&mut stage, "a");
    let held = stage.run(6, &["launch", "terminate"]);
    assert!(stage.only_node().has_finalizer(), "as long as the instance runs");
    let termination = held.iter().find(|issued| issued.command.name() == "terminate");
    let termination = termination.expect("the drain is complete").clone();
    stage.commands.clear();
    let answer = stage.answer(&termination.command);
    stage.event(Event::Answered(termination.id, answer));
    stage.run(40, &["launch"]);
    let expect = ["patch_node", "delete_node"];
    assert_eq!(stage.commands[..2], expect, "then the API server deletes the Node");
}

#[test]
fn our_finalizer_is_removed_after_the_instance_is_terminated() {
    let mut stage = interrupted_node(&[], with_finalizer);
    stage.run(60, &["launch"]);
    let expect = ["patch_node", "list_pods_on", "terminate", "patch_node", "delete_node"];
    assert_eq!(stage.commands[..5], expect, "{:?}", stage.commands);
    assert!(stage.engine.state().ledger.claims.is_empty());
}

#[test]
fn node_being_deleted_without_our_finalizer_is_ignored() {
    let mut stage = node_with(&[web("a")], |_| {});
    delete_node(&mut stage);
    stage.run(120, &["launch"]);
    assert_eq!(stage.commands, [""; 0]);
}

#[test]
fn termination_expires_with_its_confirmation_unless_the_node_is_gone() {
    let mut stage = interrupted_node(&[], |_| {});
    let held = stage.run(20, &["terminate"]);
    let termination = held.iter().map(|issued| &issued.command);
    let termination = termination.clone().find(|command| command.name() == "terminate");
    let termination = termination.expect("the node is empty").clone();
    let confirmed = stage.now;
    let send_until = |stage: &Stage, now| stage.engine.latest_send_time(&termination, now);
    assert!(send_until(&stage, confirmed) <= confirmed + seconds(15));
    let late = confirmed + seconds(20);
    assert!(send_until(&stage, late) < late, "the pods may have changed");
    // Without its Node the termination needs no confirmation.
    let key = ObjectKey::new("", "node-0");
    stage.event(Event::Deleted(ObjectKind::Node, key));
    assert_eq!(send_until(&stage, late), late + seconds(15));
    let listing = Command::ListInstances;
    assert!(stage.engine.latest_send_time(&listing, late) > late + seconds(20));
}
