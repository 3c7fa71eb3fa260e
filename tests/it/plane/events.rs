//! Events about pods and nodes, on a real control plane.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};

use super::fixture::{Setup, client, deploy, free_port, plane, scale, until, until_ready};

/// An event of Outrigger: kind of the object, reason and note.
type Told = (String, String, String);

async fn ours(api: &Client) -> BTreeSet<Told> {
    let events: Api<Event> = Api::all(api.clone());
    let all = events.list(&ListParams::default()).await;
    let all = all.expect("a listing").into_iter();
    let own =
        |event: &Event| event.reporting_controller.as_deref() == Some("outrigger.dev/outrigger");
    let told = all.filter(own).map(|event| {
        let about = event.regarding.expect("an object");
        assert!(about.uid.is_some_and(|uid| !uid.is_empty()), "{:?}", about.name);
        let kind = about.kind.unwrap_or_default();
        (kind, event.reason.unwrap_or_default(), event.note.unwrap_or_default())
    });
    told.collect()
}

/// Waits until all of these events exist. A few are written per second.
async fn told(api: &Client, setup: &Setup, wanted: &[(&str, &str, &str)]) -> BTreeSet<Told> {
    let mut all = BTreeSet::new();
    for _ in 0..60 {
        all = ours(api).await;
        let has = |(kind, reason, note): &(&str, &str, &str)| {
            let is_it = |own: &Told| own.0 == *kind && own.1 == *reason && own.2.contains(note);
            all.iter().any(is_it)
        };
        if wanted.iter().all(has) {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("missing events after half a minute: {all:#?}\n{}", setup.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_nodes_get_events_unless_disabled() {
    let Some(plane) = plane("plane::events::pods_and_nodes_get_events_unless_disabled") else {
        return;
    };
    let port = free_port();
    let setup = Setup::new(&[("bench", plane.daemons().as_path())], Some(port));
    let _cloud = setup.cloud(port);
    let daemon = setup.daemon();
    let api = client(plane.kubeconfig()).await;
    until_ready(&setup, 1).await;
    deploy(&api, "small", 3, "900m", "3100Mi").await;
    deploy(&api, "huge", 1, "4000", "3100Mi").await;
    until(&api, &setup, 90, "all small pods bound", |world| world.bound() == 3).await;
    scale(&api, "small", 0).await;
    until(&api, &setup, 120, "every node gone", |world| world.nodes.is_empty()).await;
    let wanted = [
        ("Pod", "Nominated", "for pool general"),
        ("Pod", "FailedScheduling", "cannot schedule pod: "),
        ("Node", "DisruptionTerminating", "disrupting node: empty"),
    ];
    let all = told(&api, &setup, &wanted).await;
    let nominated = all.iter().filter(|own| own.1 == "Nominated").count();
    assert!(nominated <= 3, "at most one event per pod: {all:#?}");
    // Without `events` there are no new events.
    drop(daemon);
    let file = setup.path().join("outrigger.hcl");
    let text = fs::read_to_string(&file).expect("it was written");
    let text = text.replace("mode = \"manage\"\n", "mode = \"manage\"\n  events = false\n");
    fs::write(&file, text).expect("the configuration is written");
    let _daemon = setup.daemon();
    let before = ours(&api).await.len();
    deploy(&api, "more", 2, "900m", "3100Mi").await;
    until(&api, &setup, 90, "more pods bound", |world| world.bound() == 2).await;
    assert_eq!(ours(&api).await.len(), before);
}
