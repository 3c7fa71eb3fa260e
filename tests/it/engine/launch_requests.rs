//! Launch requests other than their offerings, and the capacity that counts until the node exists.

use jiff::SignedDuration;
use outrigger::engine::command::{Command, CommandResult};
use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::model::cluster::{ManagementMode, MinValuesPolicy};
use outrigger::model::instance::InstanceFacts;
use outrigger::model::labels::{EFA, INSTANCE_TYPE};
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::network::NetworkInterface;
use outrigger::model::pod::Pod;
use outrigger::model::requirement::Requirement;
use outrigger::model::watched_object::WatchedObject;

use super::{Stage, waiting_pod};

/// Each pod is one round of planning, and one node, where the window closes between two answers of
/// a scheduler that is behind.
#[test]
fn pods_that_a_slow_scheduler_answers_one_by_one_are_planned_together() {
    const COUNT: usize = 30;
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![]);
    stage.run(10, &[]);
    let pods: Vec<Pod> = (0..COUNT).map(|number| waiting_pod(&format!("p{number}"))).collect();
    for pod in &pods {
        let untried = Pod { unschedulable: false, ..pod.clone() };
        stage.apply(WatchedObject::Pod(Box::new(untried)));
    }
    for pod in pods {
        stage.apply(WatchedObject::Pod(Box::new(pod)));
        for _ in 0..12 {
            stage.wake(stage.now + SignedDuration::from_millis(100));
            stage.run(0, &[]);
        }
    }
    stage.run(20, &[]);
    let launches = |report: &&Report| matches!(report, Report::Planned { claims: 1.., .. });
    let rounds = stage.reports.iter().filter(launches).count();
    assert!((1..=4).contains(&rounds), "{rounds} rounds");
    // A pod that has had no answer for minutes does not keep others waiting.
    let stuck = Pod { unschedulable: false, ..waiting_pod("stuck") };
    stage.apply(WatchedObject::Pod(Box::new(stuck)));
    stage.run(360, &[]);
    stage.apply(WatchedObject::Pod(Box::new(waiting_pod("late"))));
    stage.run(2, &[]);
    let again = stage.reports.iter().filter(launches).count();
    assert_eq!(again, rounds + 1, "after a second");
}

fn with_adapter(name: &str) -> Pod {
    let mut pod = waiting_pod(name);
    pod.requests.extended.insert(EFA.to_owned(), 1);
    pod
}

/// A stage whose nodes are all of a type with adapters, from a class.
fn of_class(class: NodeClass) -> Stage {
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.change(|cluster| {
        let only = Requirement::is_in(["p5.48xlarge"]);
        cluster.pools[0].requirements.add(INSTANCE_TYPE, only);
        cluster.pools[0].node_class = Some(class.name.clone());
        cluster.node_classes = vec![class];
    });
    stage.sync(vec![], vec![]);
    stage.run(7, &[]);
    stage
}

fn plain() -> NodeClass {
    NodeClass { name: "x".into(), ..NodeClass::default() }
}

fn laid_out() -> NodeClass {
    let adapter = NetworkInterface { card: 1, device: 1, efa_only: true };
    NodeClass { network_interfaces: Some(vec![adapter]), ..plain() }
}

/// The class, the first pod, whether EC2 has said how many adapters there are; how many nodes there
/// are in the end.
type Adapted = (NodeClass, fn(&str) -> Pod, Option<u32>, usize);

/// A node that is launched without adapters has none, whatever its type could have: who asks for
/// one later needs another node.
#[test]
fn adapters_are_counted_on_where_there_will_be_some() {
    let cases: [Adapted; 6] = [
        (plain(), waiting_pod, None, 2),
        (plain(), with_adapter, None, 1),
        (laid_out(), waiting_pod, None, 1),
        (plain(), waiting_pod, Some(0), 2),
        (plain(), waiting_pod, Some(32), 1),
        (plain(), with_adapter, Some(32), 1),
    ];
    for (number, (class, first, adapters, nodes)) in cases.into_iter().enumerate() {
        let mut stage = of_class(class);
        stage.apply(WatchedObject::Pod(Box::new(first("a"))));
        let launch = stage.run(3, &["launch"]).remove(0);
        let Command::Launch(asked) = &launch.command else {
            panic!("{launch:?}");
        };
        assert_eq!(asked.devices.contains(EFA), first("a") == with_adapter("a"));
        // Before the launch is answered, and after.
        let mut answer = stage.answer(&launch.command);
        if let CommandResult::Launched(instance) = &mut answer {
            let facts = InstanceFacts { adapters, ..InstanceFacts::default() };
            instance.facts = adapters.map(|_| Box::new(facts));
            let id = instance.id.to_string();
            stage.instances.insert(id, instance.clone());
        }
        if adapters.is_some() {
            stage.event(Event::Answered(launch.id, answer.clone()));
        }
        stage.apply(WatchedObject::Pod(Box::new(with_adapter("b"))));
        stage.apply(WatchedObject::Pod(Box::new(waiting_pod("c"))));
        stage.run(3, &[]);
        if adapters.is_none() {
            stage.event(Event::Answered(launch.id, answer));
        }
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), nodes, "case {number}");
        assert!(stage.launches.iter().all(|launch| !launch.varied));
        let mut asks = stage.launches.iter().map(|launch| launch.devices.contains(EFA));
        assert_eq!(asks.next_back(), Some(nodes == 2 || first("a") == with_adapter("a")));
    }
}

#[test]
fn a_launch_says_whether_fewer_kinds_have_to_do() {
    // How many of two types there have to be, and whether less will do.
    let cases = [
        (MinValuesPolicy::Strict, 2, Some(false)),
        (MinValuesPolicy::Strict, 3, None),
        (MinValuesPolicy::BestEffort, 2, Some(false)),
        (MinValuesPolicy::BestEffort, 3, Some(true)),
    ];
    for (policy, least, relaxed) in cases {
        let mut stage = Stage::new(ManagementMode::Manage);
        stage.change(|cluster| {
            cluster.scheduling.min_values = policy;
            let mut types = Requirement::is_in(["m5.large", "m6i.large"]);
            types.min_values = Some(least);
            cluster.pools[0].requirements.add(INSTANCE_TYPE, types);
        });
        stage.sync(vec![], vec![waiting_pod("a")]);
        stage.run(10, &[]);
        let told = stage.launches.first().map(|launch| launch.relaxed);
        assert_eq!(told, relaxed, "{policy:?} {least}");
        assert!(stage.launches.iter().all(|launch| launch.varied));
    }
}
