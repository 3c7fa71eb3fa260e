//! Watches all needed kinds and converts the results to events, with one event per full listing.
//!
//! kube's watcher handles listing, bookmarks, expired versions and normal reconnections. On an
//! error the watcher is dropped and restarted with a full listing, because the engine does not
//! trust a broken watch before its next listing. Liveness: each watch has a short timeout
//! (`watch_seconds`), and the API server sends a bookmark before it ends the watch. `WatchActivity`
//! counts the bookmark on the connection of the watch, and a `WatchAlive` event follows within
//! `TICK`. A watch that is accepted but delivers nothing shows no activity. `WatchActivity` also
//! delays the starts of watches that end without delivering anything.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, watcher};
use kube::{Api, Resource, ResourceExt};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::engine::event::Event;
use crate::model::cluster::{Cluster, WatchList};
use crate::model::watched_object::{ObjectKind, WatchedObject};

use crate::host::text;
use crate::kubernetes::api_error::{ApiErrorCode, explain_error};
use crate::kubernetes::capacity_buffers;
use crate::kubernetes::client::Connection;
use crate::kubernetes::list::{ListError, PAGE, PAGE_TIME, list_all};
use crate::kubernetes::watched_items::{ApiKind, Seen};
use crate::kubernetes_convert::Convert;
use crate::kubernetes_convert::api_types as json;

/// Timeout of a watch, which is also the interval at which a quiet watch shows activity.
const WATCH_SECONDS: u32 = 30;
/// Timeout of the watches of Pods and Nodes. The engine moves no pods if one of these watches has
/// been silent for longer than this timeout plus a `TICK`.
const WATCH_SECONDS_OF_PLACES: u32 = 10;
/// Interval of liveness checks.
const TICK: Duration = Duration::from_secs(2);
/// Maximum retry interval of a broken watch. While the watch is broken, the engine makes no
/// decisions.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Silence after which a kind is listed again: twice `WATCH_SECONDS`. If the listing also fails,
/// the engine soon counts the kind as out of sync.
const SILENCE_TICKS: u32 = 30;
/// Timeout of each page of the first listing. The API server needs less time for a page of 500
/// objects. `plan` waits for twice this time.
const UNANSWERED_TICKS: u32 = 15;

/// The watches of one cluster. Dropping this value stops the watches.
pub(crate) struct ClusterWatches {
    anew: BTreeMap<ObjectKind, Arc<Notify>>,
    broken: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl ClusterWatches {
    /// Restarts the watch of a kind with a full listing.
    pub(crate) fn restart_watch(&self, kind: ObjectKind) {
        if let Some(anew) = self.anew.get(&kind) {
            anew.notify_one();
        }
    }

    /// Waits until a watch has panicked. The kind of this watch is then no longer watched.
    pub(crate) async fn wait_for_panic(&self) {
        self.broken.notified().await;
    }
}

/// Reports a panic of the task that owns this value.
struct Alarm(Arc<Notify>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.notify_one();
        }
    }
}

/// Starts to watch all needed kinds, or to list them periodically.
pub(crate) fn start_watches(
    cluster: &Cluster,
    connection: &Connection,
    events: &mpsc::Sender<Event>,
) -> ClusterWatches {
    let poll = cluster.api.poll.and_then(|every| Duration::try_from(every).ok());
    let mut watches =
        ClusterWatches { anew: BTreeMap::new(), broken: Arc::default(), _tasks: JoinSet::new() };
    let broken = watches.broken.clone();
    let any_kind = WatchSource {
        cluster: cluster.name.to_string(),
        connection: connection.clone(),
        events: events.clone(),
        anew: Arc::default(),
        poll,
        streamed: cluster.api.watch_list == WatchList::On,
    };
    let mut tasks = JoinSet::new();
    let kinds = cluster.watched_kinds();
    macro_rules! spawn {
        ($($name:ident),*) => {$(if kinds.contains(&<json::$name as Convert>::NOUN) {
            let anew = watches.anew.entry(<json::$name as Convert>::NOUN).or_default();
            let source = WatchSource { anew: anew.clone(), ..any_kind.clone() };
            let alarm = Alarm(broken.clone());
            tasks.spawn(async move {
                watch_kind::<json::$name>(source).await;
                drop(alarm);
            });
        })*};
    }
    spawn!(
        Pod,
        Node,
        DaemonSet,
        PodDisruptionBudget,
        PersistentVolumeClaim,
        PersistentVolume,
        StorageClass,
        CSINode,
        Namespace,
        Service,
        ReplicationController,
        ReplicaSet,
        StatefulSet
    );
    tasks.spawn(capacity_buffers::watch_buffers(
        any_kind.cluster,
        any_kind.connection,
        any_kind.events,
    ));
    watches._tasks = tasks;
    watches
}

/// Timeout of a watch. A streamed list must complete within this timeout.
fn watch_seconds(kind: ObjectKind, streamed: bool) -> u32 {
    match kind {
        ObjectKind::Pod | ObjectKind::Node if !streamed => WATCH_SECONDS_OF_PLACES,
        _ => WATCH_SECONDS,
    }
}

#[derive(Clone)]
struct WatchSource {
    cluster: String,
    connection: Connection,
    events: mpsc::Sender<Event>,
    anew: Arc<Notify>,
    poll: Option<Duration>,
    /// True if lists are streamed. Off by default, because a stream that exceeds the watch timeout
    /// would never complete.
    streamed: bool,
}

/// Why a watch ended.
enum Over {
    /// An error, for the log.
    Broke(String),
    /// No activity for a long time. An API server sends no bookmarks for a kind whose objects have
    /// not changed since the server started, unless its storage reports progress.
    Silent(String),
    /// The receiver is dropped.
    Unheard,
}

impl From<mpsc::error::SendError<Event>> for Over {
    fn from(_: mpsc::error::SendError<Event>) -> Self {
        Self::Unheard
    }
}

/// State of the watch of a kind.
#[derive(Default)]
struct Health {
    /// True if the watch has worked since its last start.
    well: bool,
    /// The last logged reason why the watch was lost.
    told: Option<String>,
}

impl Health {
    /// Records that the watch works.
    fn record_activity(&mut self, cluster: &str, kind: &str) {
        self.well = true;
        if self.told.take().is_some() {
            tracing::info!(cluster, kind, "restored watch");
        }
    }

    /// Records that the watch was lost. A repeated reason is logged at debug level.
    fn record_loss(&mut self, cluster: &str, kind: &str, why: String) {
        // Some reasons contain a time or a count.
        let logged = self.told.as_deref().map(without_digits);
        if logged == Some(without_digits(&why)) {
            tracing::debug!(cluster, kind, why, "lost watch");
        } else {
            tracing::warn!(cluster, kind, why, "lost watch");
            self.told = Some(why);
        }
    }
}

fn without_digits(text: &str) -> String {
    text.replace(|c: char| c.is_ascii_digit(), "")
}

/// Watches a kind until the receiver is dropped.
async fn watch_kind<T: ApiKind + Convert>(source: WatchSource)
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut backoff = DefaultBackoff::default();
    let mut health = Health::default();
    loop {
        health.well = false;
        let over = tokio::select! {
            over = watch_once::<T>(&source, &mut health) => over,
            () = source.anew.notified() => {
                tracing::debug!(cluster = source.cluster, kind = T::PLURAL, "restarting watch");
                continue;
            }
        };
        let why = match over {
            Over::Broke(why) => why,
            Over::Silent(why) => {
                tracing::debug!(cluster = source.cluster, kind = T::PLURAL, why, "relisting");
                continue;
            }
            Over::Unheard => return,
        };
        if health.well {
            backoff.reset();
        }
        health.record_loss(&source.cluster, T::PLURAL, why);
        // Keep the last logged text, so that a reason that differs only in a number is not logged
        // again.
        let why = text::single_line(health.told.as_deref().unwrap_or_default());
        let lost = Event::WatchLost(T::NOUN, why);
        if source.events.send(lost).await.is_err() {
            return;
        }
        sleep(backoff.next().unwrap_or(TICK).min(RETRY_MAX)).await;
    }
}

async fn watch_once<T: ApiKind + Convert>(source: &WatchSource, health: &mut Health) -> Over
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let over = match source.poll {
        None => stream_kind::<T>(source, health).await,
        Some(every) => poll_kind::<T>(source, every, health).await,
    };
    over.unwrap_or_else(|over| over)
}

/// Runs one watcher until it ends, and returns the reason.
async fn stream_kind<T: ApiKind + Convert>(
    source: &WatchSource,
    health: &mut Health,
) -> Result<Over, Over>
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let api = Api::<Seen<T>>::all(source.connection.client.clone());
    let paged =
        watcher::Config::default().timeout(watch_seconds(T::NOUN, source.streamed)).page_size(PAGE);
    let config = if source.streamed { paged.streaming_lists() } else { paged };
    let mut watcher = pin!(watcher(api, config));
    let activity = &source.connection.activity;
    let mut activity_count = activity.activity_count(T::NOUN);
    let mut silent = 0;
    let mut listed = false;
    let mut listing: Vec<WatchedObject> = Vec::new();
    loop {
        let Ok(next) = timeout(TICK, watcher.next()).await else {
            let count = activity.activity_count(T::NOUN);
            silent = if count == activity_count { silent + 1 } else { 0 };
            let silence = TICK * silent;
            if !listed && silent >= UNANSWERED_TICKS {
                return Ok(Over::Broke(source.describe_timeout(silence)));
            }
            if silent > SILENCE_TICKS {
                return Ok(Over::Silent(format!("no activity for {silence:?}")));
            }
            if count != activity_count {
                activity_count = count;
                health.record_activity(&source.cluster, T::PLURAL);
                source.events.send(Event::WatchAlive(T::NOUN)).await?;
            }
            continue;
        };
        silent = 0;
        match next {
            None => return Ok(Over::Broke("the watch ended".to_owned())),
            Some(Err(error)) => return Ok(Over::Broke(source.describe_error(&error))),
            Some(Ok(watcher::Event::Init)) => listing.clear(),
            Some(Ok(watcher::Event::InitApply(item))) => listing.push(item.object.convert()),
            Some(Ok(watcher::Event::InitDone)) => {
                listed = true;
                let listing = std::mem::take(&mut listing);
                source.events.send(Event::Reset(T::NOUN, listing)).await?;
            }
            Some(Ok(watcher::Event::Apply(item))) => {
                health.record_activity(&source.cluster, T::PLURAL);
                source.events.send(Event::Applied(item.object.convert())).await?;
            }
            Some(Ok(watcher::Event::Delete(item))) => {
                health.record_activity(&source.cluster, T::PLURAL);
                source.events.send(Event::Deleted(T::NOUN, item.object.key())).await?;
            }
        }
    }
}

impl WatchSource {
    /// Formats the error.
    fn describe_error(&self, error: &watcher::Error) -> String {
        use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
        match error {
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
                self.explain_api_error(error)
            }
            _ => text::error_chain(error),
        }
    }

    fn explain_api_error(&self, error: &kube::Error) -> String {
        explain_error(error, &self.connection.server, &self.connection.kubeconfig)
    }

    fn describe_timeout(&self, within: Duration) -> String {
        let message = format!("no response within {} s", within.as_secs());
        let Connection { server, kubeconfig, .. } = &self.connection;
        ApiErrorCode::Silent.describe_error(&message, server, kubeconfig)
    }
}

/// Lists a kind periodically, for clusters behind a proxy that interrupts watches.
async fn poll_kind<T: ApiKind + Convert>(
    source: &WatchSource,
    every: Duration,
    health: &mut Health,
) -> Result<Over, Over>
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut last = None;
    loop {
        let api = Api::<Seen<T>>::all(source.connection.client.clone());
        let listed = match list_all(&api, None).await {
            Ok(listed) => listed,
            Err(ListError::Api(error)) => return Ok(Over::Broke(source.explain_api_error(&error))),
            Err(ListError::Late) => return Ok(Over::Broke(source.describe_timeout(PAGE_TIME))),
            Err(error) => return Ok(Over::Broke(text::error_chain(&error))),
        };
        health.record_activity(&source.cluster, T::PLURAL);
        let print = Some(fingerprint(&listed));
        let event = if print == last {
            Event::WatchAlive(T::NOUN)
        } else {
            let objects = listed.into_iter().map(|item| item.object.convert());
            Event::Reset(T::NOUN, objects.collect())
        };
        last = print;
        source.events.send(event).await?;
        sleep(every).await;
    }
}

/// Hash of a listing that changes with any added, deleted or changed object.
fn fingerprint<T: ApiKind>(listed: &[Seen<T>]) -> u64
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut hasher = DefaultHasher::new();
    for item in listed {
        item.object.key().hash(&mut hasher);
        item.resource_version().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tokio::sync::{Notify, mpsc};
    use tower::{BoxError, service_fn};

    use super::{WatchSource, json, watch_kind};
    use crate::engine::event::Event;
    use crate::kubernetes::client::Connection;
    use crate::model::watched_object::ObjectKind;

    #[tokio::test(start_paused = true)]
    async fn unanswered_list_request_is_reported_with_its_timeout() {
        let never = |_: Request<Body>| pending::<Result<Response<Body>, BoxError>>();
        for (poll, within) in [
            (None, "no response within 30 s ("),
            (Some(Duration::from_secs(5)), "no response within 60 s ("),
        ] {
            let (events, mut inbox) = mpsc::channel(8);
            let watch = tokio::spawn(watch_kind::<json::Pod>(WatchSource {
                cluster: "demo".to_owned(),
                connection: Connection::from_client(Client::new(service_fn(never), "default")),
                events,
                anew: Arc::new(Notify::new()),
                poll,
                streamed: false,
            }));
            let Some(Event::WatchLost(ObjectKind::Pod, why)) = inbox.recv().await else {
                panic!("the watch is not lost")
            };
            assert!(why.starts_with(within), "{why}");
            assert!(why.ends_with("[api-timeout]"), "{why}");
            watch.abort();
        }
    }
}
