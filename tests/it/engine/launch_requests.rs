//! Launch requests other than their offerings, and the capacity that counts until the node exists.

use jiff::SignedDuration;
use outrigger::engine::command::Command;
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
use outrigger::provider::{CommandResult, FailureKind, Launch, OfferingRefusal, RefusalKind};

use super::{Stage, fleet_view, pending_pod};

/// If the batch window closed between two verdicts of a slow scheduler, each pod would cause a
/// planning round and a node of its own.
#[test]
fn pods_that_a_slow_scheduler_rejects_one_by_one_are_planned_together() {
    const COUNT: usize = 30;
    let mut stage = Stage::new(ManagementMode::Manage);
    stage.sync(vec![], vec![]);
    stage.run(10, &[]);
    let pods: Vec<Pod> = (0..COUNT).map(|number| pending_pod(&format!("p{number}"))).collect();
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
    // A pod without a verdict for minutes does not delay other pods.
    let stuck = Pod { unschedulable: false, ..pending_pod("stuck") };
    stage.apply(WatchedObject::Pod(Box::new(stuck)));
    stage.run(360, &[]);
    stage.apply(WatchedObject::Pod(Box::new(pending_pod("late"))));
    stage.run(2, &[]);
    let rounds_later = stage.reports.iter().filter(launches).count();
    assert_eq!(rounds_later, rounds + 1, "after a second");
}

fn efa_pod(name: &str) -> Pod {
    let mut pod = pending_pod(name);
    pod.requests.extended.insert(EFA.to_owned(), 1);
    pod
}

/// A stage whose nodes all have a type with EFA adapters and this node class.
fn stage_with_class(class: NodeClass) -> Stage {
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

fn default_class() -> NodeClass {
    NodeClass { name: "x".into(), ..NodeClass::default() }
}

fn class_with_adapter() -> NodeClass {
    let adapter = NetworkInterface { card: 1, device: 1, efa_only: true };
    NodeClass { network_interfaces: Some(vec![adapter]), ..default_class() }
}

/// The node class, the first pod, the number of adapters that EC2 reports, if it does, and the
/// expected number of nodes.
type AdapterCase = (NodeClass, fn(&str) -> Pod, Option<u32>, usize);

/// A node that is launched without adapters has none, whatever its type supports: a later pod that
/// requests one needs another node.
#[test]
fn efa_adapters_count_only_on_nodes_launched_with_them() {
    let cases: [AdapterCase; 6] = [
        (default_class(), pending_pod, None, 2),
        (default_class(), efa_pod, None, 1),
        (class_with_adapter(), pending_pod, None, 1),
        (default_class(), pending_pod, Some(0), 2),
        (default_class(), pending_pod, Some(32), 1),
        (default_class(), efa_pod, Some(32), 1),
    ];
    for (number, (class, first, adapters, nodes)) in cases.into_iter().enumerate() {
        let mut stage = stage_with_class(class);
        stage.apply(WatchedObject::Pod(Box::new(first("a"))));
        let launch = stage.run(3, &["launch"]).remove(0);
        let Command::Launch(first_launch) = &launch.command else {
            panic!("{launch:?}");
        };
        assert_eq!(first_launch.devices.contains(EFA), first("a") == efa_pod("a"));
        // The later pods arrive before or after the result of the launch.
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
        stage.apply(WatchedObject::Pod(Box::new(efa_pod("b"))));
        stage.apply(WatchedObject::Pod(Box::new(pending_pod("c"))));
        stage.run(3, &[]);
        if adapters.is_none() {
            stage.event(Event::Answered(launch.id, answer));
        }
        stage.run(10, &[]);
        assert_eq!(stage.launches.len(), nodes, "case {number}");
        assert!(stage.launches.iter().all(|launch| !launch.varied));
        let mut with_adapters = stage.launches.iter().map(|launch| launch.devices.contains(EFA));
        assert_eq!(with_adapters.next_back(), Some(nodes == 2 || first("a") == efa_pod("a")));
    }
}

#[test]
fn launch_records_whether_min_values_are_relaxed() {
    // The required number of types, of two available ones, and whether the launch is relaxed.
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
        stage.sync(vec![], vec![pending_pod("a")]);
        stage.run(10, &[]);
        let first = stage.launches.first().map(|launch| launch.relaxed);
        assert_eq!(first, relaxed, "{policy:?} {least}");
        assert!(stage.launches.iter().all(|launch| launch.varied));
    }
}

/// Returns how many launches for one pod are sent in an hour, if each has this result, in a cluster
/// alone or of a fleet with limits.
fn launches_in_an_hour(of_fleet: bool, result: impl Fn(&Launch) -> CommandResult) -> usize {
    let mut stage = Stage::new(ManagementMode::Manage);
    if of_fleet {
        stage.event(Event::FleetChanged(Some(fleet_view(20))));
    }
    stage.sync(vec![], vec![pending_pod("a")]);
    let mut sent = 0;
    for _ in 0..3600 {
        for issued in stage.run(1, &["launch"]) {
            let Command::Launch(launch) = &issued.command else {
                panic!("{issued:?}");
            };
            sent += 1;
            let answer = result(launch);
            stage.event(Event::Answered(issued.id, answer));
        }
    }
    sent
}

/// The number of launches per hour, by the result of all of them, and its maximum.
#[test]
fn failing_launches_are_repeated_at_growing_intervals() {
    use FailureKind::{Busy, Conflict, Denied, Gone, Invalid, Throttled, Unknown};
    let mut counts = Vec::new();
    for kind in [Denied, Invalid, Gone, Conflict, Throttled, Busy, Unknown] {
        let result = |_: &Launch| CommandResult::Failed { kind, text: "no".to_owned() };
        // The rate limit of the provider spaces the launches that it delays.
        let max = if matches!(kind, Throttled | Busy) { 720 } else { 70 };
        counts.push((kind.as_str(), launches_in_an_hour(false, result), max));
        counts.push((kind.as_str(), launches_in_an_hour(true, result), max));
    }
    for (kind, name) in RefusalKind::ALL {
        let refused = |launch: &Launch| {
            let offerings = launch.offerings.iter().cloned();
            let refused = offerings.map(|offering| OfferingRefusal { offering, kind });
            CommandResult::LaunchRefused(refused.collect())
        };
        counts.push((name, launches_in_an_hour(false, refused), 120));
    }
    let none = |_: &Launch| CommandResult::LaunchRefused(Vec::new());
    counts.push(("nothing launched", launches_in_an_hour(false, none), 75));
    counts.push(("nothing launched", launches_in_an_hour(true, none), 75));
    println!("result, launches in an hour, at most: {counts:#?}");
    assert!(counts.iter().all(|(_, count, max)| (1..=*max).contains(count)), "{counts:?}");
}
