//! Pools whose nodes do not register, everywhere or in one zone.

use jiff::SignedDuration;
use outrigger::engine::Engine;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{Cluster, ManagementMode};
use outrigger::model::id::NodeClassName;
use outrigger::model::instance::{Instance, InstanceFacts, InstanceState, StateReason};
use outrigger::model::labels::ARCH;
use outrigger::model::node_class::NodeClass;
use outrigger::model::watched_object::WatchedObject;
use outrigger::scheduling::RejectionCode;

use super::{Stage, pending_pod};

/// Nodes of the static pool.
const COUNT: usize = 10;

fn everywhere(_: &Instance) -> bool {
    true
}

fn nowhere(_: &Instance) -> bool {
    false
}

fn outside_of_a(instance: &Instance) -> bool {
    !instance.offering.zone.as_str().ends_with('a')
}

impl Stage {
    /// Advances the clock by minutes; each node of an instance that `registers` selects registers.
    fn run_minutes(&mut self, minutes: i64, registers: fn(&Instance) -> bool) {
        for _ in 0..minutes * 6 {
            self.run_and_register(10, registers);
        }
    }

    fn run_and_register(&mut self, seconds: i64, registers: fn(&Instance) -> bool) {
        self.run(seconds, &[]);
        // The nodes are listed once more before an instance without a node is terminated.
        self.list_nodes_again();
        for number in 0..self.launches.len() {
            let instance = &self.instances[&format!("i-{number}")];
            let known = &self.engine.state().objects.nodes;
            let name = format!("node-{number}");
            let exists = known.keys().any(|other| other.as_str() == name);
            if instance.state.is_live() && registers(instance) && !exists {
                let node = self.node(number);
                self.apply(WatchedObject::Node(Box::new(node)));
            }
        }
    }

    fn live(&self) -> usize {
        let all = self.instances.values();
        all.filter(|instance| instance.state == InstanceState::Running).count()
    }

    /// The zone and the number of failures of each reported registration back-off.
    fn back_offs(&self) -> Vec<(String, u32)> {
        let back_off = |report: &Report| match report {
            Report::Unregistered { zone, failures, .. } => Some((zone.to_string(), *failures)),
            _ => None,
        };
        self.reports.iter().filter_map(back_off).collect()
    }

    fn reported_recoveries(&self) -> usize {
        let recovered = |report: &&Report| matches!(report, Report::Registers { .. });
        self.reports.iter().filter(recovered).count()
    }
}

fn stage() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(COUNT).ok());
    stage.sync(vec![], vec![]);
    stage
}

#[test]
fn static_pool_whose_nodes_do_not_register_launches_one_at_a_time() {
    let mut stage = stage();
    stage.run_minutes(16, nowhere);
    // The first instances were terminated, and one launch is tried in another zone.
    assert_eq!((stage.launches.len(), stage.live()), (COUNT + 1, 1));
    let mut max_live = 0;
    for _ in 0..44 {
        stage.run_minutes(1, nowhere);
        max_live = max_live.max(stage.live());
    }
    assert_eq!(max_live, 1);
    // Without a back-off there would be four times ten launches in an hour.
    let launches = stage.launches.len();
    assert!(launches <= COUNT + 4, "{launches} in an hour");
    let back_offs = stage.back_offs();
    assert!(back_offs.len() >= 3, "{back_offs:?}");
    // The image is repaired: one launch is tried, and then all nodes are launched.
    stage.run_minutes(18, everywhere);
    assert_eq!((stage.live(), stage.untainted()), (COUNT, COUNT));
    assert!(stage.reported_recoveries() > 0);
    let launches_before = stage.launches.len();
    stage.run_minutes(5, everywhere);
    assert_eq!(stage.launches.len(), launches_before);
}

#[test]
fn nodes_are_launched_in_zones_where_they_register() {
    let mut stage = stage();
    stage.run_minutes(15, outside_of_a);
    let bad = stage.live() - stage.untainted();
    assert!(bad > 0, "no instance is in zone a: {:?}", stage.instances);
    // One launch is tried in another zone, and the others follow a moment later.
    stage.run_minutes(2, outside_of_a);
    assert_eq!((stage.live(), stage.untainted()), (COUNT, COUNT));
    assert_eq!(stage.launches.len(), COUNT + bad);
    let back_offs = stage.back_offs();
    assert!(back_offs.iter().all(|(zone, _)| zone.ends_with('a')), "{back_offs:?}");
}

#[test]
fn single_node_that_does_not_register_causes_no_back_off() {
    let mut stage = stage();
    fn all_but_one(instance: &Instance) -> bool {
        instance.id.as_str() != "i-3"
    }
    stage.run_minutes(17, all_but_one);
    assert_eq!((stage.live(), stage.untainted()), (COUNT, COUNT));
    assert_eq!(stage.launches.len(), COUNT + 1);
    assert_eq!(stage.back_offs(), []);
}

#[test]
fn back_off_allows_one_launch_at_a_time_while_no_node_registers() {
    let mut stage = three_nodes();
    stage.run_minutes(3, nowhere);
    let (mut max_live, before) = (0, stage.launches.len());
    for _ in 0..5 * 60 {
        stage.run_and_register(60, nowhere);
        max_live = max_live.max(stage.live());
    }
    assert_eq!(max_live, 1);
    // The back-off grows to an hour.
    let tries = stage.launches.len() - before;
    assert!((6..=13).contains(&tries), "{tries} in five hours");
}

/// Three pods that each need a node of their own; the registration timeout is a minute.
fn three_nodes() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].registration_timeout = SignedDuration::from_mins(1));
    let pod = |name| {
        let mut pod = pending_pod(name);
        pod.host_ports.insert(("TCP".to_owned(), String::new(), 80));
        pod
    };
    stage.sync(vec![], vec![pod("a"), pod("b"), pod("c")]);
    stage
}

/// An hour in which EC2 ends each instance ten seconds after its launch, for a reason; returns the
/// stage and the number of launches.
fn hour_of_early_ends(code: &str) -> (Stage, usize) {
    let mut stage = three_nodes();
    for _ in 0..360 {
        stage.run(10, &[]);
        let new = stage.instances.values_mut().filter(|instance| instance.state.is_live());
        for instance in new {
            instance.state = InstanceState::Terminated;
            let state_reason =
                Some(StateReason { code: code.to_owned(), message: format!("{code}: a message") });
            instance.facts =
                Some(Box::new(InstanceFacts { state_reason, ..InstanceFacts::default() }));
        }
    }
    let launches = stage.launches.len();
    (stage, launches)
}

#[test]
fn instances_that_end_at_launch_are_not_launched_over_and_over() {
    let ends = |stage: &Stage| {
        let ends = stage.reports.iter().filter_map(|report| match report {
            Report::EndedEarly { why, pods, .. } => Some((why.clone(), pods.len())),
            _ => None,
        });
        ends.collect::<Vec<_>>()
    };
    // The launch is wrong, for example because EC2 may not use the key of the volumes.
    for code in
        ["Client.InternalError", "Client.VolumeLimitExceeded", "Client.UserInitiatedShutdown"]
    {
        let (stage, launches) = hour_of_early_ends(code);
        println!("{code}: {launches} launches in an hour");
        assert!((4..=12).contains(&launches), "{code}: {launches} in an hour");
        assert!(!stage.back_offs().is_empty());
        let ends = ends(&stage);
        // The last instances may not be listed as terminated yet.
        assert!(ends.len() + 3 >= launches && ends.len() <= launches, "{ends:?}");
        assert!(ends.iter().all(|end| *end == (format!("{code}: a message"), 1)), "{ends:?}");
        assert_eq!(stage.count("terminate"), 0);
    }
    // The fault is on the side of EC2: other offerings are tried first.
    for code in ["Server.InsufficientInstanceCapacity", "Server.InternalError"] {
        let (stage, launches) = hour_of_early_ends(code);
        println!("{code}: {launches} launches in an hour");
        assert!((12..=80).contains(&launches), "{code}: {launches} in an hour");
        let first = &stage.instances["i-0"].offering;
        let again = (1..launches)
            .filter(|number| stage.instances[&format!("i-{number}")].offering == *first);
        let again = again.count();
        // It is launched for each of the three pods, until launches in its zone are delayed.
        assert!(again <= 20, "{code}: {first} was launched {again} times more");
        assert!(ends(&stage).len() + 3 >= launches);
    }
}

/// After a restart, the engine knows nothing of the Nodes that ended instances had.
#[test]
fn instances_of_earlier_processes_do_not_end_early() {
    for restarts in [false, true] {
        let mut stage = three_nodes();
        stage.run(20, &[]);
        assert_eq!(stage.launches.len(), 3);
        let pods = stage.engine.state().objects.pods.values().cloned().collect();
        if restarts {
            let cluster = Cluster::clone(&stage.engine.state().cluster);
            stage.engine = Engine::new(8);
            stage.start(ManagementMode::Manage);
            stage.set(cluster);
            stage.sync(vec![], pods);
            stage.run(1, &[]);
        }
        for instance in stage.instances.values_mut() {
            instance.state = InstanceState::Terminated;
        }
        stage.run(60, &[]);
        let is_end = |report: &&Report| matches!(report, Report::EndedEarly { .. });
        let ends = stage.reports.iter().filter(is_end).count();
        assert_eq!(ends, if restarts { 0 } else { 3 });
    }
}

#[test]
fn architecture_that_registers_is_launched_beside_one_that_does_not() {
    fn of_amd64(instance: &Instance) -> bool {
        let family = instance.offering.instance_type.as_str().split('.').next();
        !family.is_some_and(|family| family[1..].contains('g'))
    }
    let mut stage = Stage::new(ManagementMode::Manage);
    let pod = |name: String, arch: &str, cpu_milli| {
        let mut pod = pending_pod(&name);
        pod.node_selector.insert(ARCH.to_owned(), arch.to_owned());
        pod.requests.cpu_milli = cpu_milli;
        pod.host_ports.insert(("TCP".to_owned(), String::new(), 80));
        pod
    };
    stage.sync(vec![], vec![pod("large".to_owned(), "arm64", 30_000)]);
    stage.run_minutes(14, of_amd64);
    let small = (0..5).map(|at| pod(format!("small-{at}"), "amd64", 500));
    for pod in small {
        stage.apply(WatchedObject::Pod(Box::new(pod)));
    }
    stage.run_minutes(40, of_amd64);
    assert_eq!(stage.untainted(), 5);
}

#[test]
fn unschedulable_pods_report_the_registration_back_off() {
    let mut stage = three_nodes();
    stage.run_minutes(12, nowhere);
    let texts = stage.reports.iter().filter_map(|report| match report {
        Report::Unplaced(unplaced) => {
            Some((unplaced.reasons[0].code, unplaced.reasons[0].rejection_text()))
        }
        _ => None,
    });
    let texts: Vec<(RejectionCode, String)> = texts.collect();
    let (code, text) = texts.first().expect("two pods are unschedulable");
    assert_eq!(*code, RejectionCode::OfferingsUnavailable, "{text}");
    let words = "nodes of the pool do not register";
    assert!(text.contains(words), "{text}");
    let launches = stage.launches.len();
    // After the first three launches: at once, and after one, two and four minutes.
    assert!((5..=8).contains(&launches), "{launches} in twelve minutes");
    // All pods get a node once the nodes register.
    stage.run_minutes(10, everywhere);
    assert_eq!(stage.untainted(), 3);
}

#[test]
fn changed_node_class_ends_the_registration_back_off() {
    let mut stage = stage();
    let class = |tag: &str| NodeClass {
        name: NodeClassName::from("x"),
        tags: [("tests".to_owned(), tag.to_owned())].into(),
        ..NodeClass::default()
    };
    let configure = |stage: &mut Stage, tag: &str| {
        stage.change(|cluster| {
            cluster.node_classes = vec![class(tag)];
            cluster.pools[0].node_class = Some("x".into());
        });
        stage.report_class(Ok(()));
    };
    configure(&mut stage, "bad");
    stage.run_minutes(31, nowhere);
    let before = stage.launches.len();
    assert!(stage.live() <= 1);
    configure(&mut stage, "good");
    stage.run_minutes(1, everywhere);
    assert_eq!(stage.untainted(), COUNT, "of {before} before");
}
