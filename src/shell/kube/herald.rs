//! Writes events about pods and nodes into the cluster, a few a second, none twice within a while.
//! It must not know what makes an event.
//!
//! An event is a word to whoever looks, and may be lost: nothing waits for it, and what comes too
//! fast is left out. kube's own recorder counts all of one reason as the first of them, whatever
//! they say; here each that says something else is one of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::engine::herald::{About, Notice};
use crate::model::id::ClusterName;
use crate::shell::clock;
use crate::shell::kube::client::Connection;
use crate::shell::limiter::Limiter;
use crate::shell::text;

/// Who writes them.
const CONTROLLER: &str = "outrigger.dev/outrigger";

/// Events that wait to be written; what comes beyond is left out.
const QUEUE: usize = 256;
/// So many a second, and so many at once, as Karpenter's nominations have it.
const RATE: (u32, u32) = (5, 10);
/// The same is said again after this long.
const AGAIN: Duration = Duration::from_secs(120);
/// Time for the API server to take one.
const CALL: Duration = Duration::from_secs(10);
/// Events about nodes, which are in no namespace, stand in this one.
const OF_NODES: &str = "default";

/// Writes the events of one cluster, until it is dropped.
pub(crate) struct Herald {
    queue: mpsc::Sender<Notice>,
    writing: JoinHandle<()>,
}

impl Herald {
    /// Begins to write.
    pub(crate) fn start(cluster: &ClusterName, connection: &Connection) -> Self {
        let (queue, notices) = mpsc::channel(QUEUE);
        let desk = Desk {
            cluster: cluster.clone(),
            client: connection.client.clone(),
            told: BTreeMap::new(),
        };
        Self {
            queue,
            writing: tokio::spawn(desk.write_all(notices)),
        }
    }

    /// Writes it if there is room.
    pub(crate) fn tell(&self, notice: Notice) {
        // Whoever looks finds the same in the log.
        drop(self.queue.try_send(notice));
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

struct Desk {
    cluster: ClusterName,
    client: Client,
    /// What was told, and when.
    told: BTreeMap<Notice, Instant>,
}

impl Desk {
    async fn write_all(mut self, mut notices: mpsc::Receiver<Notice>) {
        let limiter = Limiter::new(RATE.0, RATE.1);
        while let Some(notice) = notices.recv().await {
            let now = clock::monotonic();
            self.told.retain(|_, at| now.duration_since(*at) < AGAIN);
            if self.told.contains_key(&notice) {
                continue;
            }
            limiter.turn().await;
            let written = timeout(CALL, write(&self.client, &notice)).await;
            self.told.insert(notice, now);
            match written {
                Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                    let why = text::bounded(&status.message);
                    tracing::warn!(
                        cluster = %self.cluster,
                        why,
                        "no events are written: grant create of events.events.k8s.io, or set \
                         events = false"
                    );
                    return;
                }
                Ok(Err(error)) => {
                    let why = text::chain(&error);
                    tracing::debug!(cluster = %self.cluster, why, "an event is not written");
                }
                Err(_) => {
                    tracing::debug!(cluster = %self.cluster, "an event is not written in time");
                }
                Ok(Ok(())) => {}
            }
        }
    }
}

async fn write(client: &Client, notice: &Notice) -> kube::Result<()> {
    let (kind, namespace, name) = match &notice.about {
        About::Pod(key) => ("Pod", Some(key.namespace.clone()), key.name.clone()),
        About::Node(name) => ("Node", None, name.to_string()),
    };
    let home = namespace.as_deref().unwrap_or(OF_NODES).to_owned();
    let now: Timestamp = clock::now();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(home.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(CONTROLLER.to_owned()),
        action: Some(notice.action.to_owned()),
        reason: Some(notice.reason.to_owned()),
        note: Some(notice.note.clone()),
        type_: Some(if notice.warns { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name),
            uid: Some(notice.uid.clone()),
            ..ObjectReference::default()
        }),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &home);
    events
        .create(&PostParams::default(), &event)
        .await
        .map(drop)
}
