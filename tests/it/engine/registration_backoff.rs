//! Pools whose nodes do not register, everywhere or in one zone.

use jiff::SignedDuration;
use outrigger::engine::report::Report;
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::NodeClassName;
use outrigger::model::instance::{Instance, InstanceState};
use outrigger::model::labels::ARCH;
use outrigger::model::node_class::NodeClass;
use outrigger::model::watched_object::WatchedObject;
use outrigger::scheduling::RejectionCode;

use super::{Stage, waiting_pod};

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
    /// Lets minutes pass, in which the nodes of these instances come, each once.
    fn minutes(&mut self, minutes: i64, comes: fn(&Instance) -> bool) {
        for _ in 0..minutes * 6 {
            self.pass(10, comes);
        }
    }

    fn pass(&mut self, seconds: i64, comes: fn(&Instance) -> bool) {
        self.run(seconds, &[]);
        // Nodes are listed once more before an instance ends for want of one.
        self.list_nodes_again();
        for number in 0..self.launches.len() {
            let instance = &self.instances[&format!("i-{number}")];
            let known = &self.engine.state().objects.nodes;
            let name = format!("node-{number}");
            let there = known.keys().any(|other| other.as_str() == name);
            if instance.state.is_live() && comes(instance) && !there {
                let node = self.node(number);
                self.apply(WatchedObject::Node(Box::new(node)));
            }
        }
    }

    fn live(&self) -> usize {
        let all = self.instances.values();
        all.filter(|instance| instance.state == InstanceState::Running).count()
    }

    /// The zones of which launches were said to wait, each time.
    fn waits(&self) -> Vec<(String, u32)> {
        let wait = |report: &Report| match report {
            Report::Unregistered { zone, failures, .. } => Some((zone.to_string(), *failures)),
            _ => None,
        };
        self.reports.iter().filter_map(wait).collect()
    }

    fn said_to_register(&self) -> usize {
        let said = |report: &&Report| matches!(report, Report::Registers { .. });
        self.reports.iter().filter(said).count()
    }
}

fn stage() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].replicas = u32::try_from(COUNT).ok());
    stage.sync(vec![], vec![]);
    stage
}

#[test]
fn of_a_pool_whose_nodes_do_not_register_one_node_is_tried_at_a_time() {
    let mut stage = stage();
    stage.minutes(16, nowhere);
    // The first ones have ended, and one is tried in another zone.
    assert_eq!((stage.launches.len(), stage.live()), (COUNT + 1, 1));
    let mut most = 0;
    for _ in 0..44 {
        stage.minutes(1, nowhere);
        most = most.max(stage.live());
    }
    assert_eq!(most, 1);
    // Without that there would be four times ten in an hour.
    let launches = stage.launches.len();
    assert!(launches <= COUNT + 4, "{launches} in an hour");
    let waits = stage.waits();
    assert!(waits.len() >= 3, "{waits:?}");
    // The image is mended: one node is tried, and then there are all.
    stage.minutes(18, everywhere);
    assert_eq!((stage.live(), stage.open()), (COUNT, COUNT));
    assert!(stage.said_to_register() > 0);
    let made = stage.launches.len();
    stage.minutes(5, everywhere);
    assert_eq!(stage.launches.len(), made);
}

#[test]
fn pods_go_to_zones_where_nodes_register_and_the_bad_one_is_left_alone() {
    let mut stage = stage();
    stage.minutes(15, outside_of_a);
    let bad = stage.live() - stage.open();
    assert!(bad > 0, "all are in good zones: {:?}", stage.instances);
    // One is tried in another zone, and the others follow a moment later.
    stage.minutes(2, outside_of_a);
    assert_eq!((stage.live(), stage.open()), (COUNT, COUNT));
    assert_eq!(stage.launches.len(), COUNT + bad);
    let waits = stage.waits();
    assert!(waits.iter().all(|(zone, _)| zone.ends_with('a')), "{waits:?}");
}

#[test]
fn a_node_that_alone_does_not_register_keeps_nobody_waiting() {
    let mut stage = stage();
    fn all_but_one(instance: &Instance) -> bool {
        instance.id.as_str() != "i-3"
    }
    stage.minutes(17, all_but_one);
    assert_eq!((stage.live(), stage.open()), (COUNT, COUNT));
    assert_eq!(stage.launches.len(), COUNT + 1);
    assert_eq!(stage.waits(), []);
}

#[test]
fn one_at_a_time_is_tried_for_as_long_as_none_registers() {
    let mut stage = three_nodes();
    stage.minutes(3, nowhere);
    let (mut most, before) = (0, stage.launches.len());
    for _ in 0..5 * 60 {
        stage.pass(60, nowhere);
        most = most.max(stage.live());
    }
    assert_eq!(most, 1);
    // The wait grows to an hour.
    let tries = stage.launches.len() - before;
    assert!((6..=13).contains(&tries), "{tries} in five hours");
}

/// Three pods that each need a node of their own, which has a minute to register.
fn three_nodes() -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| cluster.pools[0].registration_timeout = SignedDuration::from_mins(1));
    let pod = |name| {
        let mut pod = waiting_pod(name);
        pod.host_ports.insert(("TCP".to_owned(), String::new(), 80));
        pod
    };
    stage.sync(vec![], vec![pod("a"), pod("b"), pod("c")]);
    stage
}

#[test]
fn a_kind_of_node_that_registers_gets_its_turn_beside_one_that_does_not() {
    fn of_amd64(instance: &Instance) -> bool {
        let family = instance.offering.instance_type.as_str().split('.').next();
        !family.is_some_and(|family| family[1..].contains('g'))
    }
    let mut stage = Stage::new(ManagementMode::Manage);
    let pod = |name: String, arch: &str, cpu_milli| {
        let mut pod = waiting_pod(&name);
        pod.node_selector.insert(ARCH.to_owned(), arch.to_owned());
        pod.requests.cpu_milli = cpu_milli;
        pod.host_ports.insert(("TCP".to_owned(), String::new(), 80));
        pod
    };
    stage.sync(vec![], vec![pod("large".to_owned(), "arm64", 30_000)]);
    stage.minutes(14, of_amd64);
    let small = (0..5).map(|at| pod(format!("small-{at}"), "amd64", 500));
    for pod in small {
        stage.apply(WatchedObject::Pod(Box::new(pod)));
    }
    stage.minutes(40, of_amd64);
    assert_eq!(stage.open(), 5);
}

#[test]
fn pods_are_told_why_they_wait() {
    let mut stage = three_nodes();
    stage.minutes(12, nowhere);
    let told = stage.reports.iter().filter_map(|report| match report {
        Report::Unplaced(unplaced) => {
            Some((unplaced.reasons[0].code, unplaced.reasons[0].rejection_text()))
        }
        _ => None,
    });
    let told: Vec<(RejectionCode, String)> = told.collect();
    let (code, text) = told.first().expect("two have no place");
    assert_eq!(*code, RejectionCode::OfferingsUnavailable, "{text}");
    let words = "nodes of the pool do not register";
    assert!(text.contains(words), "{text}");
    let launches = stage.launches.len();
    // After the first three: at once, and after one, two and four minutes.
    assert!((5..=8).contains(&launches), "{launches} in twelve minutes");
    // They have their nodes once these register.
    stage.minutes(10, everywhere);
    assert_eq!(stage.open(), 3);
}

#[test]
fn another_node_class_is_tried_without_a_wait() {
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
        stage.class(Ok(()));
    };
    configure(&mut stage, "bad");
    stage.minutes(31, nowhere);
    let before = stage.launches.len();
    assert!(stage.live() <= 1);
    configure(&mut stage, "good");
    stage.minutes(1, everywhere);
    assert_eq!(stage.open(), COUNT, "of {before} before");
}
