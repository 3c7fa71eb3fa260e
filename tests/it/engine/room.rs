//! Buffers: room that is made, kept while it is needed, and made anew when pods have taken it.
//! It must not know which room is chosen.

use jiff::SignedDuration;
use outrigger::engine::Engine;
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::buffer::{Buffer, BufferPod};
use outrigger::model::cluster::{Cluster, Mode};
use outrigger::model::labels::{CAPACITY_TYPE, INSTANCE_TYPE};
use outrigger::model::object::Object;
use outrigger::model::requirement::Requirement;
use outrigger::model::window::Window;
use outrigger::solve::Code;
use outrigger::solve::replicas::Need;

use super::{Stage, bound, owned_pod, waiting_pod};

/// Room for so many pods like those that wait, one on each node.
fn buffer(replicas: u32) -> Buffer {
    Buffer {
        name: "spare".to_owned(),
        replicas: Some(replicas),
        pod: Some(BufferPod {
            requests: waiting_pod("any").requests,
            ..BufferPod::default()
        }),
        ..Buffer::default()
    }
}

/// A cluster without nodes that keeps room like this.
fn stage(mode: Mode, buffer: Buffer) -> Stage {
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
    /// The node of a launch comes and is ready.
    fn arrive(&mut self, launch: usize) {
        let node = self.node(launch);
        self.apply(Object::Node(Box::new(node)));
        self.run(5, &[]);
    }

    fn missing_room(&self) -> Vec<(usize, Code)> {
        let short = self.reports.iter().filter_map(|report| match report {
            Report::Short(own) if own.need == Need::Room("spare".to_owned()) => {
                Some((own.missing, own.reasons[0].code))
            }
            _ => None,
        });
        short.collect()
    }
}

#[test]
fn room_is_made_once_and_kept_as_long_as_it_is_wanted() {
    let mut stage = stage(Mode::Manage, buffer(1));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 1);
    stage.arrive(0);
    stage.run(3600, &[]);
    // No pod is told of anything, and nothing more is made or retired.
    assert_eq!(stage.seen, ["launch", "patch_node"]);
    let told = |report: &&Report| matches!(report, Report::Unplaced(_));
    assert_eq!(stage.reports.iter().filter(told).count(), 0);
    let planned = stage.reports.iter().find_map(|report| match report {
        Report::ClaimPlanned { pods, .. } => Some(pods.len()),
        _ => None,
    });
    assert_eq!(planned, Some(0), "virtual pods are nobody's business");
    stage.change(|cluster| cluster.buffers.clear());
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

/// It would be made anew on another node, and that one's room be used next, and so on for ever.
#[test]
fn no_pod_is_moved_into_the_room_that_a_buffer_needs() {
    let mut stage = stage(Mode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.arrive(0);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(12, &[]);
    stage.arrive(1);
    stage.run(3600, &[]);
    assert_eq!((stage.launches.len(), stage.count("evict")), (2, 0));
}

#[test]
fn pods_take_the_room_and_it_is_made_anew() {
    let mut stage = stage(Mode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.arrive(0);
    // The scheduler needs nobody to bind it.
    stage.apply(bound(waiting_pod("a"), "node-0"));
    stage.run(12, &[]);
    assert_eq!(stage.launches.len(), 2);
    stage.arrive(1);
    // One that waits is given the room that there is, and new room is made in the same breath.
    stage.apply(Object::Pod(Box::new(waiting_pod("b"))));
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
fn room_is_there_when_its_window_is_open() {
    let hour = SignedDuration::from_hours(1);
    let window = Window::new("0 9 * * *", hour, "UTC").ok();
    // It is eight o'clock.
    let mut stage = stage(
        Mode::Manage,
        Buffer {
            during: window,
            ..buffer(1)
        },
    );
    stage.run(3599, &[]);
    assert_eq!(stage.launches.len(), 0);
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1, "woken by the window alone");
    stage.arrive(0);
    stage.run(3580, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

#[test]
fn buffers_that_objects_declare_count_until_they_are_gone() {
    let mut stage = stage(Mode::Manage, buffer(0));
    stage.run(10, &[]);
    assert_eq!(stage.launches.len(), 0);
    let declared = Buffer {
        name: "shop/room".to_owned(),
        ..buffer(1)
    };
    stage.event(Event::BuffersChanged(vec![declared]));
    stage.run(2, &[]);
    assert_eq!(stage.launches.len(), 1);
    stage.arrive(0);
    stage.run(300, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::BuffersChanged(Vec::new()));
    stage.change(|cluster| cluster.buffers.clear());
    stage.run(60, &[]);
    assert_eq!(stage.count("terminate"), 1);
}

/// A cluster with one empty node of an earlier life, of which only the buffers are unknown.
fn restarted() -> Stage {
    let mut stage = stage(Mode::Manage, buffer(1));
    stage.run(10, &[]);
    stage.arrive(0);
    let node = stage.seen_node().clone();
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
fn an_empty_node_stays_until_buffers_are_read() {
    let mut stage = restarted();
    stage.run(120, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.event(Event::BuffersChanged(vec![buffer(1)]));
    stage.run(600, &[]);
    assert_eq!(stage.count("terminate"), 0, "it is kept for the buffer");

    let mut stage = restarted();
    stage.run(120, &[]);
    stage.event(Event::BuffersChanged(Vec::new()));
    stage.run(20, &[]);
    assert_eq!(stage.count("terminate"), 1);

    let mut stage = restarted();
    stage.run(290, &[]);
    assert_eq!(stage.count("terminate"), 0);
    stage.run(40, &[]);
    assert_eq!(stage.count("terminate"), 1, "nobody waits for ever");
}

#[test]
fn what_cannot_be_had_is_told_once() {
    let mut stage = stage(Mode::Manage, buffer(5));
    stage.change(|cluster| cluster.pools[0].limits.nodes = Some(2));
    stage.run(60, &[]);
    assert_eq!(stage.launches.len(), 2);
    assert_eq!(stage.missing_room(), [(3, Code::Limit)]);
}

#[test]
fn a_cutoff_of_priorities_is_not_for_buffers() {
    let mut stage = stage(Mode::Manage, buffer(1));
    stage.change(|cluster| cluster.scheduling.priority_cutoff = Some(100));
    stage.apply(Object::Pod(Box::new(waiting_pod("idler"))));
    stage.run(15, &[]);
    assert_eq!(stage.launches.len(), 1);
    let planned = |report: &&Report| matches!(report, Report::Unplaced(_));
    assert_eq!(stage.reports.iter().filter(planned).count(), 1);
}

#[test]
fn in_observe_mode_it_is_only_told_of() {
    let mut stage = stage(Mode::Observe, buffer(1));
    stage.run(300, &[]);
    assert_eq!(stage.seen, Vec::<String>::new());
    let planned = |report: &&Report| matches!(report, Report::ClaimPlanned { .. });
    assert_eq!(stage.reports.iter().filter(planned).count(), 1);
}
