//! Writes Kubernetes Events about pods and nodes, rate limited and deduplicated.
//!
//! Events are informational and may be lost: nothing waits for them, and events above the rate are
//! dropped. kube's recorder merges all events of one reason into the first. This recorder keeps
//! events with different notes separate.

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

/// The reporting controller.
const CONTROLLER: &str = "outrigger.dev/outrigger";

/// Capacity of the queue. Further events are dropped.
const QUEUE: usize = 256;
/// Rate per second and burst, equal to those of Karpenter's nomination events.
const RATE: (u32, u32) = (5, 10);
/// Minimum time between two writes of the same event, and the time for which writing is suspended
/// after refusals.
const AGAIN: Duration = Duration::from_secs(120);
/// Number of consecutive refusals after which the recorder suspends writing for a while. A single
/// refusal may come from a terminating namespace.
const REFUSED_MAX: u32 = 3;
/// Timeout for writing one event.
const CALL: Duration = Duration::from_secs(10);
/// Namespace of events about nodes.
const OF_NODES: &str = "default";
/// Maximum length of an object's name in the name of an event, which has at most 253 bytes. A dot
/// and the time use 17 bytes.
const NAME_CHARS: usize = 236;

/// Writes the events of one cluster until dropped.
pub(crate) struct EventRecorder {
    queue: mpsc::Sender<(Timestamp, KubeEvent)>,
    writing: JoinHandle<()>,
}

impl EventRecorder {
    /// Starts to write.
    pub(crate) fn start(cluster: &ClusterName, connection: &Connection) -> Self {
        let (queue, notices) = mpsc::channel(QUEUE);
        let writer = EventWriter {
            cluster: cluster.clone(),
            connection: connection.clone(),
            told: BTreeMap::new(),
            refused: 0,
        };
        Self { queue, writing: tokio::spawn(writer.write_all(notices)) }
    }

    /// Queues an event if there is capacity.
    pub(crate) fn queue_event(&self, notice: KubeEvent) {
        // The log contains the same information.
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
    /// The events that were written recently, each with the time of the write.
    told: BTreeMap<KubeEvent, Instant>,
    /// Number of consecutive refusals.
    refused: u32,
}

impl EventWriter {
    async fn write_all(mut self, mut notices: mpsc::Receiver<(Timestamp, KubeEvent)>) {
        let limiter = Limiter::new(RATE.0, RATE.1);
        while let Some((at, notice)) = notices.recv().await {
            let now = clock::monotonic_now();
            self.told.retain(|_, at| now.duration_since(*at) < AGAIN);
            if self.told.contains_key(&notice) {
                continue;
            }
            limiter.wait_for_token().await;
            self.connection.limiter.wait_for_token().await;
            self.write_guarded(at, &notice).await;
            self.told.insert(notice, now);
            if self.refused >= REFUSED_MAX {
                sleep(AGAIN).await;
                while notices.try_recv().is_ok() {}
                self.refused = 0;
            }
        }
    }

    async fn write_guarded(&mut self, at: Timestamp, notice: &KubeEvent) {
        let writing = timeout(CALL, create_event(&self.connection.client, at, notice));
        let cluster = &self.cluster;
        match self.connection.fence.run_guarded(writing).await {
            Ok(Ok(Ok(()))) => self.refused = 0,
            Ok(Ok(Err(error))) => {
                let why = text::error_chain(&error);
                let forbidden = matches!(&error, kube::Error::Api(status) if status.is_forbidden());
                self.refused = if forbidden { self.refused + 1 } else { 0 };
                if self.refused == REFUSED_MAX {
                    tracing::warn!(
                        %cluster,
                        why,
                        "cannot write events; grant create of events.events.k8s.io, or set events \
                         = false"
                    );
                } else {
                    tracing::debug!(%cluster, why, "cannot write event");
                }
            }
            Ok(Err(_)) => tracing::debug!(%cluster, "cannot write event in time"),
            Err(fenced) => tracing::debug!(%cluster, %fenced, "cannot write event"),
        }
    }
}

async fn create_event(client: &Client, at: Timestamp, notice: &KubeEvent) -> kube::Result<()> {
    let (kind, namespace, name) = match &notice.about {
        InvolvedObject::Pod(key) => ("Pod", Some(key.namespace.clone()), key.name.clone()),
        InvolvedObject::Node(name) => ("Node", None, name.to_string()),
    };
    let home = namespace.as_deref().unwrap_or(OF_NODES).to_owned();
    let start: String = name.chars().take(NAME_CHARS).collect();
    let start = start.trim_end_matches(['.', '-']);
    // Two events about one object at the same time need different names.
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
    let created = events.create(&PostParams::default(), &event).await;
    created.map(drop)
}
