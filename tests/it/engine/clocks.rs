//! Changes of the host clock and skew against the API server, while a node boots, while one is
//! drained, while instances are listed, and while a pod is being deleted.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use outrigger::engine::event::Event;
use outrigger::model::clock_skew::{ClockPeer, ClockSkew};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::DO_NOT_DISRUPT;
use outrigger::model::pod::Pod;
use outrigger::model::watched_object::{ObjectKind, WatchedObject};
use outrigger::provider::Interruption;

use super::{Stage, bound, owned_pod, pending_pod};

const HOUR: i64 = 3_600;
/// The grace period of pods, and of the node, in seconds.
const GRACE: i64 = 600;
/// Seconds after which the drain ignores a pod beyond its grace period. Source:
/// spec/disruption.md §1.3.
const STUCK_AFTER: i64 = 60;

fn seconds(of: i64) -> SignedDuration {
    SignedDuration::from_secs(of)
}

impl Stage {
    /// The host's clock is measured to be this far ahead of the API server's, in seconds.
    fn report_skew(&mut self, ahead: i64) {
        let skew = ClockSkew { peer: ClockPeer::ApiServer, ahead: seconds(ahead) };
        self.event(Event::ClockSkewed(Some(skew).filter(ClockSkew::is_fault)));
    }

    /// Restarts the engine after a change of the host clock `by` these seconds.
    fn set_clock(&mut self, by: i64, ahead: i64) {
        self.restart_after(seconds(by));
        self.report_skew(ahead);
    }
}

/// An interrupted node with a do-not-disrupt pod that has this grace period.
fn draining(node_grace: Option<i64>, pod_grace: i64) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].termination_grace_period = node_grace.map(seconds));
    stage.sync(vec![], vec![pending_pod("first")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    let first = pending_pod("first").key;
    stage.event(Event::Deleted(ObjectKind::Pod, first));
    let mut pod = Pod { grace_seconds: pod_grace, ..owned_pod("p") };
    let do_not_disrupt = (DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    pod.annotations.extend([do_not_disrupt]);
    stage.apply(bound(pod, "node-0"));
    let at = stage.now + seconds(120);
    let spot = Interruption::Spot;
    stage.event(Event::interrupted("i-0".into(), spot, at));
    stage.run(60, &["launch"]);
    stage.commands.clear();
    stage
}

/// The pod of that node is being deleted, by an API server whose clock is `behind` these seconds.
fn deleting(behind: i64) -> Stage {
    let mut stage = draining(None, GRACE);
    let key = ObjectKey::new("default", "p");
    let mut pod = stage.engine.state().objects.pods[&key].clone();
    let deleted_at = stage.now - seconds(behind);
    pod.deleting = Some(deleted_at);
    pod.gone_by = Some(deleted_at + seconds(GRACE));
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    stage
}

/// Five launched nodes, three of which have registered.
fn booting() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].replicas = Some(5));
    stage.sync(vec![], vec![]);
    stage.run(10, &[]);
    for number in 0..3 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
        let pod = owned_pod(&format!("p{number}"));
        stage.apply(bound(pod, &format!("node-{number}")));
    }
    stage.run(300, &[]);
    stage
}

/// Five registered nodes, two of which are empty.
fn half_empty() -> Stage {
    let mut stage = booting();
    for number in 3..5 {
        stage.apply(WatchedObject::Node(Box::new(stage.node(number))));
    }
    stage.run(20, &[]);
    stage
}

/// The nodes of `half_empty`, with a listing of instances in flight.
fn listing() -> Stage {
    let mut stage = half_empty();
    stage.run(70, &["list_instances"]);
    stage
}

/// The state of the cluster when the clock changes.
type Situation = fn() -> Stage;

#[test]
fn nothing_is_changed_while_the_host_clock_is_an_hour_off() {
    let situations: [(&str, Situation); 4] = [
        ("boot", booting),
        ("drain", || draining(Some(GRACE), 30)),
        ("listing", listing),
        ("pod deletion", || deleting(0)),
    ];
    for (situation, stage) in situations {
        for by in [HOUR, -HOUR] {
            let mut stage = stage();
            stage.set_clock(by, by);
            stage.run(GRACE - 120, &[]);
            assert_eq!(stage.changes(), BTreeMap::new(), "{situation} {by}");
            let status = stage.engine.status(stage.now);
            let why = status.held_by.unwrap_or_default();
            assert!(why.contains("the clock of this host is 3600 s"), "{why}");
            // A user corrects the clock: the operations in flight continue.
            stage.set_clock(-by, 0);
            stage.run(30, &[]);
            assert!(stage.engine.is_ready(), "{situation} {by}");
            let early = (stage.count("terminate"), stage.count("delete_pod"));
            assert_eq!(early, (0, 0), "{situation} {by}");
        }
    }
}

/// Without a restart: only the clock of the API server is wrong, within the tolerance or beyond it.
#[test]
fn pod_keeps_its_full_grace_period_despite_api_server_clock_skew() {
    for ahead in [-120, -9, 0, 9, 120] {
        let mut stage = deleting(ahead);
        stage.report_skew(ahead);
        stage.run(GRACE + STUCK_AFTER - 65, &["launch"]);
        assert_eq!(stage.count("terminate"), 0, "{ahead}");
    }
}

/// The clock of the host counts, because the engine wrote the deadline of the node by it.
#[test]
fn drain_keeps_its_full_grace_period_despite_clock_skew() {
    for ahead in [-120, 120] {
        let mut stage = draining(Some(GRACE), 30);
        stage.report_skew(ahead);
        // A minute of it has passed; the pod is deleted in time for its own grace period.
        stage.run(GRACE - 60 - 35, &["launch"]);
        let early = (stage.count("terminate"), stage.count("delete_pod"));
        assert_eq!(early, (0, 0), "{ahead}");
        stage.run(35, &["launch"]);
        assert_eq!(stage.count("delete_pod"), 1, "{ahead}");
    }
}

/// The kubelet counts a second deletion from its observation; the time that the API server writes
/// may have passed.
#[test]
fn shortened_pod_grace_period_counts_from_its_observation() {
    let mut stage = deleting(0);
    stage.run(GRACE - 100, &["launch"]);
    let key = ObjectKey::new("default", "p");
    let mut pod = stage.engine.state().objects.pods[&key].clone();
    pod.gone_by = pod.deleting.map(|deleted_at| deleted_at + seconds(60));
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    stage.run(60 + STUCK_AFTER - 5, &["launch"]);
    assert_eq!(stage.count("terminate"), 0);
    stage.run(15, &["launch"]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn booting_node_keeps_its_full_registration_timeout_despite_clock_skew() {
    for ahead in [-120, -9, 9, 120] {
        let mut stage = booting();
        for instance in stage.instances.values_mut() {
            instance.launched -= seconds(ahead);
        }
        // The restarted engine reads the launch times from the listing.
        stage.set_clock(0, ahead);
        stage.run(500, &[]);
        assert_eq!(stage.count("terminate"), 0, "{ahead}");
        for number in 3..5 {
            let mut node = stage.node(number);
            node.created = Some(stage.now - seconds(ahead));
            stage.apply(WatchedObject::Node(Box::new(node)));
        }
        stage.report_skew(0);
        stage.run(60, &[]);
        assert_eq!((stage.untainted(), stage.count("terminate")), (5, 0), "{ahead}");
    }
}

#[test]
fn empty_node_is_kept_while_clock_skew_exceeds_the_tolerance() {
    for (ahead, terminated) in [(120, 0), (-120, 0), (9, 2), (-9, 2)] {
        let mut stage = half_empty();
        stage.report_skew(ahead);
        stage.change(|cluster| cluster.pools[0].replicas = Some(3));
        stage.run(300, &[]);
        assert_eq!(stage.count("terminate"), terminated, "{ahead}");
        stage.report_skew(0);
        stage.run(300, &[]);
        assert_eq!(stage.count("terminate"), 2, "{ahead}: it continues without a restart");
    }
}
