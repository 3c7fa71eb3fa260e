//! Watches every kind that a cluster's plans need and folds what comes into events, whole listings
//! into one each. It must not know what the events lead to.
//!
//! Listing, bookmarks, expired versions and ordinary reconnections are left to kube's watcher. On
//! an error it is dropped and begun anew with a full listing, because the engine does not believe
//! a broken watch before its next listing. Signs of life: each watch is asked to end soon
//! (`watch_seconds`) and the API server sends a bookmark before it does so, which `Pulses` counts
//! on the very connection that is watched; a `WatchAlive` follows within `TICK`. A watch that is
//! answered and then delivers nothing gives no sign of life. `Pulses` also spaces the starts of
//! watches that end without having delivered anything.

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
use crate::kubernetes::api_error::{ApiErrorCode, explained};
use crate::kubernetes::capacity_buffers;
use crate::kubernetes::client::Connection;
use crate::kubernetes::list::{ListError, PAGE, PAGE_TIME, list};
use crate::kubernetes::watched_items::{ApiKind, Seen};
use crate::kubernetes_convert::Convert;
use crate::kubernetes_convert::api_types as json;

/// A watch is renewed this often, which is also how often a quiet one gives a sign of life.
const WATCH_SECONDS: u32 = 30;
/// Those that tell whether pods still have a place: the engine moves none upon a view in which
/// either has been silent for longer than this and a `TICK`.
const WATCH_SECONDS_OF_PLACES: u32 = 10;
/// How often signs of life are looked for.
const TICK: Duration = Duration::from_secs(2);
/// A broken watch is tried again after at most this long: nothing is decided meanwhile.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Without any sign of life for this long a kind is listed anew: twice `WATCH_SECONDS`. Where that
/// has no answer either, the engine believes nothing of it any more soon after.
const SILENCE_TICKS: u32 = 30;
/// Before a first listing is whole, nothing of it for this long is an API that does not answer.
/// Each page counts for itself, and none of 500 objects takes as long; `plan` waits for twice that.
const UNANSWERED_TICKS: u32 = 15;

/// The watches of one cluster. They end when this is dropped.
pub(crate) struct ClusterWatches {
    anew: BTreeMap<ObjectKind, Arc<Notify>>,
    broken: Arc<Notify>,
    _tasks: JoinSet<()>,
}

impl ClusterWatches {
    /// Drops the watch of a kind and begins it anew with a full listing.
    pub(crate) fn rewatch(&self, kind: ObjectKind) {
        if let Some(anew) = self.anew.get(&kind) {
            anew.notify_one();
        }
    }

    /// Returns when one of them has panicked: its kind is watched no more.
    pub(crate) async fn broken(&self) {
        self.broken.notified().await;
    }
}

/// Reports the panic of the task that holds it.
struct Alarm(Arc<Notify>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.notify_one();
        }
    }
}

/// Begins to watch every kind that is needed, or to list it again and again.
pub(crate) fn start(
    cluster: &Cluster,
    connection: &Connection,
    events: &mpsc::Sender<Event>,
) -> ClusterWatches {
    let poll = cluster
        .api
        .poll
        .and_then(|every| Duration::try_from(every).ok());
    let mut watches = ClusterWatches {
        anew: BTreeMap::new(),
        broken: Arc::default(),
        _tasks: JoinSet::new(),
    };
    let broken = watches.broken.clone();
    let mut source = |kind| {
        let anew = Arc::new(Notify::new());
        watches.anew.insert(kind, anew.clone());
        WatchSource {
            cluster: cluster.name.to_string(),
            connection: connection.clone(),
            events: events.clone(),
            anew,
            poll,
            streamed: cluster.api.watch_list == WatchList::On,
        }
    };
    let mut tasks = JoinSet::new();
    macro_rules! spawn {
        ($($name:ident),*) => {$(if cluster.kinds().contains(&<json::$name as Convert>::NOUN) {
            let source = source(<json::$name as Convert>::NOUN);
            let alarm = Alarm(broken.clone());
            tasks.spawn(async move {
                keep_watching::<json::$name>(source).await;
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
    let name = cluster.name.to_string();
    tasks.spawn(capacity_buffers::keep_reading(
        name,
        connection.clone(),
        events.clone(),
    ));
    watches._tasks = tasks;
    watches
}

/// How long a watch lasts. A list that is streamed has to come within that.
fn watch_seconds(kind: ObjectKind, streamed: bool) -> u32 {
    match kind {
        ObjectKind::Pod | ObjectKind::Node if !streamed => WATCH_SECONDS_OF_PLACES,
        _ => WATCH_SECONDS,
    }
}

struct WatchSource {
    cluster: String,
    connection: Connection,
    events: mpsc::Sender<Event>,
    anew: Arc<Notify>,
    poll: Option<Duration>,
    /// Whether lists come as a stream: not unless asked for, since a stream that takes longer than
    /// a watch lasts would never end.
    streamed: bool,
}

/// Why a watch is over.
enum Over {
    /// In words, for the log.
    Broke(String),
    /// Nothing was heard for long, in words: API servers send no bookmarks of a kind of which
    /// nothing has changed since they started, unless their store tells them how far it is.
    Silent(String),
    /// Nobody listens any more.
    Unheard,
}

impl From<mpsc::error::SendError<Event>> for Over {
    fn from(_: mpsc::error::SendError<Event>) -> Self {
        Self::Unheard
    }
}

/// How the watch of a kind is doing.
#[derive(Default)]
struct Health {
    /// Whether it has shown that it works since it was last begun.
    well: bool,
    /// Why it was lost, as last told.
    told: Option<String>,
}

impl Health {
    /// It works.
    fn works(&mut self, cluster: &str, kind: &str) {
        self.well = true;
        if self.told.take().is_some() {
            tracing::info!(cluster, kind, "watch is back");
        }
    }

    /// It is lost. The same reason again is told to those who want to know more only.
    fn lost(&mut self, cluster: &str, kind: &str, why: String) {
        // Some reasons have a time or a count in them.
        let plain = |why: &str| why.replace(|c: char| c.is_ascii_digit(), "");
        if self.told.as_deref().map(plain) == Some(plain(&why)) {
            tracing::debug!(cluster, kind, why, "watch lost");
        } else {
            tracing::warn!(cluster, kind, why, "watch lost");
            self.told = Some(why);
        }
    }
}

/// Watches a kind until nobody listens.
async fn keep_watching<T: ApiKind + Convert>(source: WatchSource)
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
                tracing::debug!(cluster = source.cluster, kind = T::PLURAL, "watch begins anew");
                continue;
            }
        };
        let why = match over {
            Over::Broke(why) => why,
            Over::Silent(why) => {
                tracing::debug!(
                    cluster = source.cluster,
                    kind = T::PLURAL,
                    why,
                    "listed anew"
                );
                continue;
            }
            Over::Unheard => return,
        };
        if health.well {
            backoff.reset();
        }
        health.lost(&source.cluster, T::PLURAL, why);
        // As it was last told: whoever says it anew each time it differs is not to for a number.
        let why = text::line(health.told.as_deref().unwrap_or_default());
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
        None => stream::<T>(source, health).await,
        Some(every) => poll::<T>(source, every, health).await,
    };
    over.unwrap_or_else(|over| over)
}

/// Follows one watcher.
async fn stream<T: ApiKind + Convert>(
    source: &WatchSource,
    health: &mut Health,
) -> Result<Over, Over>
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let api = Api::<Seen<T>>::all(source.connection.client.clone());
    let paged = watcher::Config::default()
        .timeout(watch_seconds(T::NOUN, source.streamed))
        .page_size(PAGE);
    let config = if source.streamed {
        paged.streaming_lists()
    } else {
        paged
    };
    let mut watcher = pin!(watcher(api, config));
    let pulses = &source.connection.pulses;
    let mut pulse = pulses.count(T::NOUN);
    let mut silent = 0;
    let mut listed = false;
    let mut listing: Vec<WatchedObject> = Vec::new();
    loop {
        let Ok(next) = timeout(TICK, watcher.next()).await else {
            let count = pulses.count(T::NOUN);
            silent = if count == pulse { silent + 1 } else { 0 };
            let silence = TICK * silent;
            if !listed && silent >= UNANSWERED_TICKS {
                return Ok(Over::Broke(source.unanswered(silence)));
            }
            if silent > SILENCE_TICKS {
                return Ok(Over::Silent(format!("no sign of life for {silence:?}")));
            }
            if count != pulse {
                pulse = count;
                health.works(&source.cluster, T::PLURAL);
                source.events.send(Event::WatchAlive(T::NOUN)).await?;
            }
            continue;
        };
        silent = 0;
        match next {
            None => return Ok(Over::Broke("the watch ended".to_owned())),
            Some(Err(error)) => return Ok(Over::Broke(source.told(&error))),
            Some(Ok(watcher::Event::Init)) => listing.clear(),
            Some(Ok(watcher::Event::InitApply(seen))) => listing.push(seen.object.convert()),
            Some(Ok(watcher::Event::InitDone)) => {
                listed = true;
                let listing = std::mem::take(&mut listing);
                source.events.send(Event::Reset(T::NOUN, listing)).await?;
            }
            Some(Ok(watcher::Event::Apply(seen))) => {
                health.works(&source.cluster, T::PLURAL);
                source
                    .events
                    .send(Event::Applied(seen.object.convert()))
                    .await?;
            }
            Some(Ok(watcher::Event::Delete(seen))) => {
                health.works(&source.cluster, T::PLURAL);
                source
                    .events
                    .send(Event::Deleted(T::NOUN, seen.object.key()))
                    .await?;
            }
        }
    }
}

impl WatchSource {
    /// What went wrong, in words.
    fn told(&self, error: &watcher::Error) -> String {
        use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
        match error {
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => {
                self.explained(error)
            }
            _ => text::chain(error),
        }
    }

    fn explained(&self, error: &kube::Error) -> String {
        explained(error, &self.connection.server, &self.connection.kubeconfig)
    }

    fn unanswered(&self, within: Duration) -> String {
        let what = format!("no answer within {} s", within.as_secs());
        let Connection {
            server, kubeconfig, ..
        } = &self.connection;
        ApiErrorCode::Silent.told(&what, server, kubeconfig)
    }
}

/// Lists a kind again and again, for where a proxy cuts watches.
async fn poll<T: ApiKind + Convert>(
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
        let listed = match list(&api, None).await {
            Ok(listed) => listed,
            Err(ListError::Api(error)) => return Ok(Over::Broke(source.explained(&error))),
            Err(ListError::Late) => return Ok(Over::Broke(source.unanswered(PAGE_TIME))),
            Err(error) => return Ok(Over::Broke(text::chain(&error))),
        };
        health.works(&source.cluster, T::PLURAL);
        let print = Some(fingerprint(&listed));
        let event = if print == last {
            Event::WatchAlive(T::NOUN)
        } else {
            let objects = listed.into_iter().map(|seen| seen.object.convert());
            Event::Reset(T::NOUN, objects.collect())
        };
        last = print;
        source.events.send(event).await?;
        sleep(every).await;
    }
}

/// Differs between listings of which any object has come, gone or changed.
fn fingerprint<T: ApiKind>(listed: &[Seen<T>]) -> u64
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut hasher = DefaultHasher::new();
    for seen in listed {
        seen.object.key().hash(&mut hasher);
        seen.resource_version().hash(&mut hasher);
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

    use super::{WatchSource, json, keep_watching};
    use crate::engine::event::Event;
    use crate::kubernetes::client::Connection;
    use crate::model::watched_object::ObjectKind;

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_nobody_answers_is_told_with_its_cause() {
        let never = |_: Request<Body>| pending::<Result<Response<Body>, BoxError>>();
        for (poll, within) in [
            (None, "no answer within 30 s ("),
            (Some(Duration::from_secs(5)), "no answer within 60 s ("),
        ] {
            let (events, mut told) = mpsc::channel(8);
            let watch = tokio::spawn(keep_watching::<json::Pod>(WatchSource {
                cluster: "demo".to_owned(),
                connection: Connection::over(Client::new(service_fn(never), "default")),
                events,
                anew: Arc::new(Notify::new()),
                poll,
                streamed: false,
            }));
            let Some(Event::WatchLost(ObjectKind::Pod, why)) = told.recv().await else {
                panic!("the watch is not lost")
            };
            assert!(why.starts_with(within), "{why}");
            assert!(why.ends_with("[api-silent]"), "{why}");
            watch.abort();
        }
    }
}
