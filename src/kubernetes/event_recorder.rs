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
use tokio::time::{Instant, sleep, timeout};

use crate::engine::views::kube_events::{InvolvedObject, KubeEvent};
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::model::id::ClusterName;
use crate::outbound::rate_limiter::Limiter;

/// Who writes them.
const CONTROLLER: &str = "outrigger.dev/outrigger";

/// Events that wait to be written; what comes beyond is left out.
const QUEUE: usize = 256;
/// So many a second, and so many at once, as Karpenter's nominations have it.
const RATE: (u32, u32) = (5, 10);
/// The same is said again after this long, and what is refused is tried again.
const AGAIN: Duration = Duration::from_secs(120);
/// After so many refusals in a row none is tried for a while: one may be of a namespace that ends.
const REFUSED_MAX: u32 = 3;
/// Time for the API server to take one.
const CALL: Duration = Duration::from_secs(10);
/// Events about nodes, which are in no namespace, stand in this one.
const OF_NODES: &str = "default";
/// Of the 253 bytes that a name may have, a dot and the time take 17.
const NAME_CHARS: usize = 236;

/// Writes the events of one cluster, until it is dropped.
pub(crate) struct EventRecorder {
    queue: mpsc::Sender<(Timestamp, KubeEvent)>,
    writing: JoinHandle<()>,
}

impl EventRecorder {
    /// Begins to write.
    pub(crate) fn start(cluster: &ClusterName, connection: &Connection) -> Self {
        let (queue, notices) = mpsc::channel(QUEUE);
        let desk = EventWriter {
            cluster: cluster.clone(),
            connection: connection.clone(),
            told: BTreeMap::new(),
            refused: 0,
        };
        Self {
            queue,
            writing: tokio::spawn(desk.write_all(notices)),
        }
    }

    /// Writes it if there is room.
    pub(crate) fn tell(&self, notice: KubeEvent) {
        // Whoever looks finds the same in the log.
        drop(self.queue.try_send((clock::now(), notice)));
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

struct EventWriter {
    cluster: ClusterName,
    connection: Connection,
    /// What was told, and when.
    told: BTreeMap<KubeEvent, Instant>,
    /// How many were refused in a row.
    refused: u32,
}

impl EventWriter {
    async fn write_all(mut self, mut notices: mpsc::Receiver<(Timestamp, KubeEvent)>) {
        let limiter = Limiter::new(RATE.0, RATE.1);
        while let Some((at, notice)) = notices.recv().await {
            let now = clock::monotonic();
            self.told.retain(|_, at| now.duration_since(*at) < AGAIN);
            if self.told.contains_key(&notice) {
                continue;
            }
            limiter.turn().await;
            self.connection.limiter.turn().await;
            self.write(at, &notice).await;
            self.told.insert(notice, now);
            if self.refused >= REFUSED_MAX {
                sleep(AGAIN).await;
                while notices.try_recv().is_ok() {}
                self.refused = 0;
            }
        }
    }

    async fn write(&mut self, at: Timestamp, notice: &KubeEvent) {
        let writing = timeout(CALL, write(&self.connection.client, at, notice));
        let cluster = &self.cluster;
        match self.connection.fence.guard(writing).await {
            Ok(Ok(Ok(()))) => self.refused = 0,
            Ok(Ok(Err(error))) => {
                let why = text::chain(&error);
                let forbidden = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
                self.refused = if forbidden { self.refused + 1 } else { 0 };
                if self.refused == REFUSED_MAX {
                    tracing::warn!(
                        %cluster,
                        why,
                        "events are refused: grant create of events.events.k8s.io, or set \
                         events = false"
                    );
                } else {
                    tracing::debug!(%cluster, why, "an event is not written");
                }
            }
            Ok(Err(_)) => tracing::debug!(%cluster, "an event is not written in time"),
            Err(fenced) => tracing::debug!(%cluster, %fenced, "an event is not written"),
        }
    }
}

async fn write(client: &Client, at: Timestamp, notice: &KubeEvent) -> kube::Result<()> {
    let (kind, namespace, name) = match &notice.about {
        InvolvedObject::Pod(key) => ("Pod", Some(key.namespace.clone()), key.name.clone()),
        InvolvedObject::Node(name) => ("Node", None, name.to_string()),
    };
    let home = namespace.as_deref().unwrap_or(OF_NODES).to_owned();
    let start: String = name.chars().take(NAME_CHARS).collect();
    let start = start.trim_end_matches(['.', '-']);
    // Two of one moment about one object must not be one.
    let written = clock::now().as_nanosecond();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(format!("{start}.{written:x}")),
            namespace: Some(home.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(at)),
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
    let made = events.create(&PostParams::default(), &event).await;
    made.map(drop)
}
