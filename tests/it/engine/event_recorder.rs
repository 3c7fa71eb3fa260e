//! Kubernetes events for reports, and the objects they are about.

use outrigger::engine::event::Event;
use outrigger::engine::report::Report;
use outrigger::engine::views::kube_events::{InvolvedObject, KubeEvent, events_for};
use outrigger::model::cluster::ManagementMode;
use outrigger::model::id::{NodeName, ObjectKey};
use outrigger::model::watched_object::{ObjectKind, WatchedObject};

use super::{Stage, bound, owned_pod};

fn event_texts(stage: &Stage) -> Vec<String> {
    let notices = stage
        .reports
        .iter()
        .flat_map(|report| events_for(stage.engine.state(), &report.describe(true)));
    let show = |event: KubeEvent| {
        let about = match &event.about {
            InvolvedObject::Pod(key) => format!("pod {key}"),
            InvolvedObject::Node(name) => format!("node {name}"),
        };
        assert!(!event.uid.is_empty() && event.note.len() <= 1_000, "{event:?}");
        let mark = if event.warns { "!" } else { "" };
        format!("{about} {mark}{}: {}", event.reason, event.note)
    };
    notices.map(show).collect()
}

#[test]
fn events_are_recorded_for_pods_and_nodes() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let mut large = owned_pod("large");
    large.requests.cpu_milli = 10_000_000;
    stage.sync(vec![], vec![owned_pod("a"), large]);
    stage.run(10, &[]);
    let events = event_texts(&stage);
    let has = |events: &[String], start: &str| events.iter().any(|text| text.starts_with(start));
    assert!(has(&events, "pod default/a Nominated: planned for claim "), "{events:#?}");
    assert!(
        has(&events, "pod default/large !FailedScheduling: cannot schedule pod: "),
        "{events:#?}"
    );
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.run(2, &[]);
    stage.apply(bound(owned_pod("a"), "node-0"));
    stage.run(2, &[]);
    stage.event(Event::Deleted(ObjectKind::Pod, ObjectKey::new("default", "a")));
    stage.reports.clear();
    stage.run(35, &[]);
    let events = event_texts(&stage);
    assert!(
        has(&events, "node node-0 DisruptionTerminating: disrupting node: empty"),
        "{events:#?}"
    );
}

#[test]
fn long_event_notes_are_truncated_and_unknown_nodes_get_no_event() {
    let mut stage = Stage::new(ManagementMode::Manage);
    let mut pod = bound(owned_pod("a"), "node-0");
    if let WatchedObject::Pod(pod) = &mut pod {
        pod.uid = "uid".to_owned();
    }
    stage.apply(pod);
    let evict = |text: &str| Report::EvictRefused {
        pod: ObjectKey::new("default", "a"),
        text: text.to_owned(),
    };
    assert_eq!(
        events_for(stage.engine.state(), &evict("its node is not known").describe(true)),
        []
    );
    stage.sync(vec![], vec![owned_pod("b")]);
    stage.run(10, &[]);
    stage.apply(WatchedObject::Node(Box::new(stage.node(0))));
    stage.apply(bound(owned_pod("a"), "node-0"));
    let notices = events_for(stage.engine.state(), &evict(&"ä\n".repeat(2_000)).describe(true));
    let [event] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!(event.about, InvolvedObject::Node(NodeName::from("node-0")));
    assert!(event.warns && event.note.len() > 990 && event.note.len() <= 1_000);
    assert!(!event.note.contains('\n'));
    assert_eq!(events_for(stage.engine.state(), &Report::Ready.describe(true)), []);
}
