//! Buffers: capacity is launched, kept while needed, and launched again after pods have used it.

use jiff::SignedDuration;
use outrigger::engine::Engine;
use outrigger::engine::command::{BufferPatch, Command, IssuedCommand};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::buffer::{Buffer, BufferPod, Scalable, ScalableKind};
use outrigger::model::buffer_object::{BufferObject, BufferStatus, Unresolved};
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::id::ObjectKey;
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use outrigger::model::node::Node;
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;
use outrigger::model::window::Window;
use outrigger::provider::{CommandResult, FailureKind};
use outrigger::scheduling::RejectionCode;
use outrigger::scheduling::static_pools::StaticDemand;

use super::{Stage, bound, owned_pod, pending_pod};

/// A buffer of this many pods like `pending_pod`, each of which needs its own node.
fn buffer(replicas: u32) -> Buffer {
    Buffer {
        name: "spare".to_owned(),
        replicas: Some(replicas),
        pod: Some(BufferPod { requests: pending_pod("any").requests, ..BufferPod::default() }),
        ..Buffer::default()
    }
}

/// A CapacityBuffer object with the same content, in this version.
fn object(replicas: u32, version: &str) -> BufferObject {
    BufferObject {
        key: ObjectKey::new("shop", "room"),
        api: "v1beta1",
        version: version.to_owned(),
        generation: 1,
        strategy: None,
        template: Some(("web".to_owned(), 1)),
        buffer: Ok(Buffer { name: "shop/room".to_owned(), ..buffer(replicas) }),
        status: Some(BufferStatus::default()),
    }
}

/// A cluster without nodes that has this buffer.
fn stage(mode: ManagementMode, buffer: Buffer) -> Stage {
    let mut stage = Stage::new(mode);
    stage.change(|cluster| {
        let pool = &mut cluster.pools[0];
        let on_demand = Requirement::is_in(["on-demand"]);
        pool.requirements.add(CAPACITY_TYPE, on_demand);
        let types = Requirement::is_in(["m6i.large"]);
        pool.requirements.add(INSTANCE_TYPE, types);
        cluster.buffers.push(buffer);
    });
    stage.sync(vec![], vec![]);
    stage
}

impl Stage {
    /// Registers the node of a launch as ready.
    fn register(&mut self, launch: usize) {
        let node = self.node(launch);
        self.apply(WatchedObject::Node(Box::new(node)));
        self.run(5, &[]);
    }

    fn reported_shortfalls(&self) -> Vec<(usize, RejectionCode)> {
        let short = self.reports.iter().filter_map(|report| match report {
            Report::Short(shortfall)
                if shortfall.need == StaticDemand::Room("spare".to_owned()) =>
            {
                Some((shortfall.missing, shortfall.reasons[0].code))
            }
            _ => None,
        });
        short.collect()
    }
}

#[test]
fn buffer_capacity_is_launched_once_and_kept_until_the_buffer_is_removed() {
    let mut stage = stage(ManagementMode::Manage, buffer(1));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1);
    stage.register(0);
    stage.run(3600, &[]);
    // No pod is nominated, and no further node is launched or disrupted.
    assert_eq!(stage.commands, ["launch", "patch_node"]);
    let unplaced = |report: &&Report| matches!(report, Report::Unplaced(_));
    assert_eq!(stage.reports.iter().filter(unplaced).count(), 0);
    let planned = stage.reports.iter().find_map(|report| match report {
        Report::ClaimPlanned { pods, .. } => Some(pods.len()),
        _ => None,
    });
    assert_eq!(planned, Some(0), "the report does not count virtual pods");
    stage.change(|cluster| cluster.buffers.clear());
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

/// The buffer capacity would be launched again, the pod moved there next, and so on without end.
#[test]
fn pods_are_not_consolidated_into_the_capacity_of_a_buffer() {
    let mut stage = stage(ManagementMode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.register(0);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(12, &[]);
    stage.register(1);
    stage.run(3600, &[]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (2, 0));
}

#[test]
fn buffer_capacity_used_by_pods_is_launched_again() {
    let mut stage = stage(ManagementMode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.register(0);
    // The scheduler binds the pod without a nomination.
    stage.apply(bound(pending_pod("a"), "node-0"));
    stage.run(12, &[]);
    assert_eq!(stage.launches.len(), 2);
    stage.register(1);
    // A pending pod gets the existing capacity, and new capacity is launched in the same pass.
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("b"))));
    stage.run(3, &[]);
    assert_eq!(stage.launches.len(), 3);
    let pods: Vec<usize> = stage
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::ClaimPlanned { pods, .. } => Some(pods.len()),
            _ => None,
        })
        .collect();
    assert_eq!(pods, [0, 0, 0]);
}

#[test]
fn buffer_capacity_is_kept_only_while_its_window_is_open() {
    let hour = SignedDuration::from_hours(1);
    let window = Window::new("0 9 * * *", hour, "UTC").ok();
    // The stage starts at eight o'clock.
    let mut stage = stage(ManagementMode::Manage, Buffer { during: window, ..buffer(1) });
    stage.run(3599, &[]);
    assert_eq!(stage.launches.len(), 0);
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1, "the start of the window alone wakes the engine");
    stage.register(0);
    stage.run(3580, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn capacity_buffer_objects_count_until_they_are_deleted() {
    let mut stage = stage(ManagementMode::Manage, buffer(0));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 0);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1);
    stage.register(0);
    stage.run(300, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::BuffersChanged(Vec::new()));
    stage.change(|cluster| cluster.buffers.clear());
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

/// A restarted engine with one empty node that has synced everything except the buffers.
fn restarted() -> Stage {
    let mut stage = stage(ManagementMode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.register(0);
    let node = stage.only_node().clone();
    let catalog = stage.engine.state().catalog.clone();
    let mut cluster = Cluster::clone(&stage.engine.state().cluster);
    cluster.buffers.clear();
    stage.engine = Engine::new(8);
    stage.set(cluster);
    stage.event(Event::CatalogChanged(catalog));
    stage.list(vec![node], vec![]);
    stage
}

#[test]
fn empty_node_is_kept_until_buffers_are_read_or_for_five_minutes() {
    let mut stage = restarted();
    stage.run(120, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    stage.run(600, &[]);
    assert_eq!(stage.count("terminate"), 0, "the node is kept for the buffer");

    let mut stage = restarted();
    stage.run(120, &[]);
    stage.event(Event::BuffersChanged(Vec::new()));
    stage.run(20, &[]);
    assert_eq!(stage.count("terminate"), 1);

    let mut stage = restarted();
    stage.run(290, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.run(40, &[]);
    assert_eq!(stage.count("terminate"), 1, "the engine waits at most five minutes");
}

#[test]
fn missing_buffer_capacity_is_reported_once() {
    let mut stage = stage(ManagementMode::Manage, buffer(5));
    stage.change(|cluster| cluster.pools[0].limits.nodes = Some(2));
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 2);
    assert_eq!(stage.reported_shortfalls(), [(3, RejectionCode::Limit)]);
}

#[test]
fn priority_cutoff_does_not_apply_to_buffers() {
    let mut stage = stage(ManagementMode::Manage, buffer(1));
    stage.change(|cluster| cluster.scheduling.priority_cutoff = Some(100));
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("idler"))));
    stage.run(15, &[]);
    assert_eq!(stage.launches.len(), 1);
    let planned = |report: &&Report| matches!(report, Report::Unplaced(_));
    assert_eq!(stage.reports.iter().filter(planned).count(), 1);
}

#[test]
fn observe_mode_only_reports_planned_buffer_capacity() {
    let mut stage = stage(ManagementMode::Observe, buffer(1));
    stage.run(300, &[]);
    assert_eq!(stage.commands, Vec::<String>::new());
    let planned = |report: &&Report| matches!(report, Report::ClaimPlanned { .. });
    assert_eq!(stage.reports.iter().filter(planned).count(), 1);
}

/// The reason and the status of each condition that is written to a CapacityBuffer.
fn conditions(patch: &BufferPatch) -> Vec<String> {
    let written = patch.status.conditions.iter();
    written.map(|condition| format!("{}={}", condition.reason, condition.status)).collect()
}

/// A synced cluster without nodes and with a buffer of zero replicas.
fn settled(mode: ManagementMode) -> Stage {
    let mut stage = stage(mode, buffer(0));
    stage.run(10, &[]);
    stage
}

impl Stage {
    /// The only status that is written within `seconds`; the write gets this result.
    fn written(&mut self, seconds: i64, answer: CommandResult) -> BufferPatch {
        let held = self.run(seconds, &["patch_buffer"]);
        let [IssuedCommand { id, command }] = &held[..] else {
            panic!("not one status: {held:?}");
        };
        let Command::PatchBuffer(patch) = command else {
            panic!("no status: {command:?}");
        };
        let patch = BufferPatch::clone(patch);
        self.event(Event::Answered(*id, answer));
        patch
    }
}

fn version(text: &str) -> CommandResult {
    CommandResult::Version(text.to_owned())
}

fn failed(kind: FailureKind) -> CommandResult {
    let text = "no".to_owned();
    CommandResult::Failed { kind, text }
}

#[test]
fn capacity_buffer_status_follows_its_capacity() {
    let mut stage = settled(ManagementMode::Manage);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    let patch = stage.written(2, version("8"));
    assert_eq!((patch.version.as_str(), patch.api), ("7", "v1beta1"));
    assert_eq!(conditions(&patch), ["Resolved=True", "RequiresNewCapacity=False"]);
    assert_eq!(patch.status.replicas, Some(1));
    assert_eq!(patch.status.template.as_deref(), Some("web"));
    // The node registers as ready. The next write uses the version that the last write returned.
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    let patch = stage.written(30, version("9"));
    assert_eq!(patch.version, "8");
    assert_eq!(conditions(&patch), ["Resolved=True", "FitsExistingCapacity=True"]);
    let held = stage.run(600, &["patch_buffer"]);
    assert!(held.is_empty(), "the status is current already: {held:?}");
    // The engine keeps a condition that another client has written since.
    let mut other = object(1, "12");
    let mut status = patch.status.clone();
    status.conditions[1].status = "False".to_owned();
    let quotas = "LimitedByQuotas".to_owned();
    status.conditions[0].kind.clone_from(&quotas);
    other.status = Some(status);
    stage.event(Event::BuffersChanged(vec![other]));
    let patch = stage.written(30, version("13"));
    assert_eq!(patch.version, "12");
    assert_eq!(patch.status.conditions[0].kind, quotas);
    assert_eq!(patch.status.conditions.len(), 3);
}

/// Of two empty nodes the ready one has the capacity, whatever their names are.
#[test]
fn capacity_on_a_ready_node_counts_before_capacity_on_a_starting_node() {
    let mut stage = settled(ManagementMode::Manage);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    let patch = stage.written(2, version("8"));
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    let ready = stage.written(30, version("9"));
    assert_eq!(conditions(&ready)[1], "FitsExistingCapacity=True");
    let zone = stage.instances["i-0"].offering.zone.as_str();
    let other_zone = match zone {
        "us-east-1a" => "us-east-1b",
        _ => "us-east-1a",
    };
    let mut pod = pending_pod("b");
    pod.requests.cpu_milli = 100;
    pod.node_selector.insert(ZONE.to_owned(), other_zone.to_owned());
    stage.apply(WatchedObject::Pod(Box::new(pod)));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 2, "the pod may not run in the zone of the buffer capacity");
    let starts = Node { name: "a".into(), ready: false, ..stage.node(1) };
    stage.apply(WatchedObject::Node(Box::new(starts)));
    let held = stage.run(60, &["patch_buffer"]);
    assert!(held.is_empty(), "after {:?}: {held:?}", conditions(&patch));
}

#[test]
fn unresolved_capacity_buffer_shows_the_reason_in_its_status() {
    let mut stage = settled(ManagementMode::Manage);
    let why = Unresolved {
        reason: Unresolved::NO_TEMPLATE,
        message: "its PodTemplate shop/web is not there".to_owned(),
    };
    let unresolved = BufferObject { buffer: Err(why), ..object(1, "7") };
    stage.event(Event::BuffersChanged(vec![unresolved]));
    let patch = stage.written(2, version("8"));
    let expect = ["PodTemplateNotFound=False", "NotReadyForProvisioning=False"];
    assert_eq!(conditions(&patch), expect);
    assert_eq!(patch.status.replicas, None);
    // A buffer of a workload without pods has no capacity either.
    let scalable = Scalable {
        kind: ScalableKind::Deployment,
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    };
    let mut idle = object(1, "9");
    idle.template = None;
    idle.buffer =
        Ok(Buffer { pod: None, scalable: Some(scalable), ..idle.buffer.expect("a buffer") });
    stage.event(Event::BuffersChanged(vec![idle]));
    let patch = stage.written(10, version("10"));
    let expect = ["ResolutionFailed=False", "NotReadyForProvisioning=False"];
    assert_eq!(conditions(&patch), expect);
    assert_eq!(stage.launches.len(), 0);
}

#[test]
fn buffer_status_is_not_written_in_observe_mode_or_without_permission() {
    let mut stage = settled(ManagementMode::Observe);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    stage.run(60, &[]);
    assert_eq!(stage.count("patch_buffer"), 0, "the cluster is observed");

    let mut stage = settled(ManagementMode::Manage);
    let more = (0..40).map(|index| BufferObject {
        key: ObjectKey::new("shop", format!("room-{index:02}")),
        ..object(0, "7")
    });
    stage.event(Event::BuffersChanged(more.collect()));
    let held = stage.run(2, &["patch_buffer"]);
    assert_eq!(held.len(), 16, "at most 16 writes at once");
    stage.event(Event::Answered(held[0].id, failed(FailureKind::Denied)));
    assert_eq!(stage.engine.disabled_features().len(), 1);
    let rest = held.iter().skip(1);
    rest.for_each(|issued| stage.event(Event::Answered(issued.id, failed(FailureKind::Denied))));
    stage.run(280, &[]);
    assert_eq!(stage.count("patch_buffer"), 16, "the engine does not retry");
    let disabled = stage.engine.status(stage.now).undone;
    assert!(disabled[0].contains("capacitybuffers/status"), "{disabled:?}");
    // After a new configuration the engine tries again.
    stage.change(|cluster| cluster.buffers.clear());
    stage.run(30, &[]);
    assert!(stage.count("patch_buffer") > 16);
    assert_eq!(stage.engine.disabled_features(), [""; 0]);
    // Without a new configuration the engine tries again after five minutes.
    let mut later = settled(ManagementMode::Manage);
    later.event(Event::BuffersChanged(vec![object(0, "7")]));
    later.written(2, failed(FailureKind::Denied));
    later.written(320, failed(FailureKind::Denied));
    assert_eq!(later.engine.disabled_features().len(), 1);
    later.written(320, version("8"));
    assert_eq!(later.engine.disabled_features(), [""; 0]);
}

/// A CRD that lacks a field drops it: the object and its version do not change.
#[test]
fn buffer_status_follows_its_capacity_although_the_crd_drops_a_field() {
    let mut stage = settled(ManagementMode::Manage);
    stage.event(Event::BuffersChanged(vec![object(1, "7")]));
    let patch = stage.written(2, version("8"));
    let mut echo = object(1, "8");
    echo.status = Some(patch.status.clone());
    echo.status.as_mut().expect("a status").template = None;
    stage.event(Event::BuffersChanged(vec![echo.clone()]));
    stage.written(10, version("8"));
    for _ in 0..20 {
        stage.event(Event::BuffersChanged(vec![echo.clone()]));
        let held = stage.run(10, &["patch_buffer"]);
        assert!(held.is_empty(), "another write would change nothing: {held:?}");
    }
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    let patch = stage.written(30, version("9"));
    assert_eq!(conditions(&patch), ["Resolved=True", "FitsExistingCapacity=True"]);
    // The engine does not overwrite a status that it cannot parse.
    let unread = BufferObject { status: None, ..object(2, "20") };
    stage.event(Event::BuffersChanged(vec![unread]));
    let held = stage.run(600, &["patch_buffer"]);
    assert!(held.is_empty(), "{held:?}");
}

#[test]
fn failed_buffer_status_write_is_retried_unless_the_subresource_is_missing() {
    let mut stage = settled(ManagementMode::Manage);
    stage.event(Event::BuffersChanged(vec![object(0, "7")]));
    stage.written(2, failed(FailureKind::Conflict));
    let held = stage.run(60, &["patch_buffer"]);
    assert!(held.is_empty(), "the object has changed since: {held:?}");
    stage.event(Event::BuffersChanged(vec![object(0, "8")]));
    stage.written(10, failed(FailureKind::Unknown));
    let patch = stage.written(10, version("9"));
    assert_eq!(
        (patch.version.as_str(), conditions(&patch)[1].as_str()),
        ("8", "BufferEmpty=False")
    );
    // A CRD without the status subresource accepts no write, so the engine does not retry.
    stage.event(Event::BuffersChanged(vec![object(0, "20")]));
    stage.written(10, failed(FailureKind::Gone));
    let held = stage.run(600, &["patch_buffer"]);
    assert!(held.is_empty(), "{held:?}");
}
