//! Watches every kind of a cluster and folds what comes into events, whole listings into one each.
//! It must not know what the events lead to.
//!
//! Listing, bookmarks, expired versions and ordinary reconnections are left to kube's watcher. On
//! an error it is dropped and begun anew with a full listing, because the engine does not believe
//! a broken watch before its next listing. Signs of life: each watch is asked to end after
//! `WATCH_SECONDS` and the API server sends a bookmark before it does so, which `Pulses` counts on
//! the very connection that is watched; a `WatchAlive` follows within `TICK`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
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
use crate::model::object::{Kind, Object};
use crate::shell::kube::client::Connection;
use crate::shell::kube::convert::Convert;
use crate::shell::kube::list::{ListError, PAGE, list};
use crate::shell::kube::object::{self as json, Seen};
use crate::shell::text;

/// A watch is renewed this often, which is also how often a quiet one gives a sign of life.
const WATCH_SECONDS: u32 = 30;
/// How often signs of life are looked for.
const TICK: Duration = Duration::from_secs(5);
/// Without any sign of life for this long the connection is given up: twice `WATCH_SECONDS`.
const SILENCE_TICKS: u32 = 12;

/// The watches of one cluster. They end when this is dropped.
pub(crate) struct Watches {
    anew: BTreeMap<Kind, Arc<Notify>>,
    _tasks: JoinSet<()>,
}

impl Watches {
    /// Drops the watch of a kind and begins it anew with a full listing.
    pub(crate) fn rewatch(&self, kind: Kind) {
        if let Some(anew) = self.anew.get(&kind) {
            anew.notify_one();
        }
    }
}

/// Begins to watch every kind, or to list it again and again.
pub(crate) fn start(
    cluster: &Cluster,
    connection: &Connection,
    events: &mpsc::Sender<Event>,
) -> Watches {
    let poll = cluster
        .api
        .poll
        .and_then(|every| Duration::try_from(every).ok());
    let mut watches = Watches {
        anew: BTreeMap::new(),
        _tasks: JoinSet::new(),
    };
    let mut source = |kind| {
        let anew = Arc::new(Notify::new());
        watches.anew.insert(kind, anew.clone());
        Source {
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
        ($($name:ident),*) => {$({
            let source = source(<json::$name as Convert>::NOUN);
            tasks.spawn(keep_watching::<json::$name>(source));
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
        Namespace
    );
    watches._tasks = tasks;
    watches
}

struct Source {
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
    /// Nobody listens any more.
    Unheard,
}

impl From<mpsc::error::SendError<Event>> for Over {
    fn from(_: mpsc::error::SendError<Event>) -> Self {
        Self::Unheard
    }
}

impl From<ListError> for Over {
    fn from(error: ListError) -> Self {
        Self::Broke(text::chain(&error))
    }
}

/// Watches a kind until nobody listens. The waits between attempts grow to half a minute.
async fn keep_watching<T: Convert>(source: Source)
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut backoff = DefaultBackoff::default();
    let mut told = false;
    loop {
        let mut well = false;
        let over = tokio::select! {
            over = watch_once::<T>(&source, &mut well) => over,
            () = source.anew.notified() => {
                tracing::debug!(cluster = source.cluster, kind = T::PLURAL, "watch begins anew");
                continue;
            }
        };
        let Over::Broke(why) = over else { return };
        if well {
            backoff.reset();
            told = false;
        }
        if told {
            tracing::debug!(
                cluster = source.cluster,
                kind = T::PLURAL,
                why,
                "watch lost"
            );
        } else {
            tracing::warn!(
                cluster = source.cluster,
                kind = T::PLURAL,
                why,
                "watch lost"
            );
            told = true;
        }
        if source.events.send(Event::WatchLost(T::NOUN)).await.is_err() {
            return;
        }
        sleep(backoff.next().unwrap_or(TICK)).await;
    }
}

async fn watch_once<T: Convert>(source: &Source, well: &mut bool) -> Over
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let over = match source.poll {
        None => stream::<T>(source, well).await,
        Some(every) => poll::<T>(source, every, well).await,
    };
    over.unwrap_or_else(|over| over)
}

/// Follows one watcher. `well` turns true when it has shown that it works.
async fn stream<T: Convert>(source: &Source, well: &mut bool) -> Result<Over, Over>
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let api = Api::<Seen<T>>::all(source.connection.client.clone());
    let paged = watcher::Config::default()
        .timeout(WATCH_SECONDS)
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
    let mut listing: Vec<Object> = Vec::new();
    loop {
        let Ok(next) = timeout(TICK, watcher.next()).await else {
            let count = pulses.count(T::NOUN);
            silent = if count == pulse { silent + 1 } else { 0 };
            if silent > SILENCE_TICKS {
                return Ok(Over::Broke(format!(
                    "no sign of life for {:?}",
                    TICK * silent
                )));
            }
            if count != pulse {
                pulse = count;
                *well = true;
                source.events.send(Event::WatchAlive(T::NOUN)).await?;
            }
            continue;
        };
        silent = 0;
        match next {
            None => return Ok(Over::Broke("the watch ended".to_owned())),
            Some(Err(error)) => return Ok(Over::Broke(text::chain(&error) + advice(&error))),
            Some(Ok(watcher::Event::Init)) => listing.clear(),
            Some(Ok(watcher::Event::InitApply(seen))) => listing.push(seen.object.convert()),
            Some(Ok(watcher::Event::InitDone)) => {
                let listing = std::mem::take(&mut listing);
                source.events.send(Event::Reset(T::NOUN, listing)).await?;
            }
            Some(Ok(watcher::Event::Apply(seen))) => {
                *well = true;
                source
                    .events
                    .send(Event::Applied(seen.object.convert()))
                    .await?;
            }
            Some(Ok(watcher::Event::Delete(seen))) => {
                *well = true;
                source
                    .events
                    .send(Event::Deleted(T::NOUN, seen.object.key()))
                    .await?;
            }
        }
    }
}

/// What to do about an error, where that is known.
fn advice(error: &watcher::Error) -> &'static str {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) = error else {
        return "";
    };
    match error {
        kube::Error::Api(status) if status.is_forbidden() => {
            "; grant the user of the kubeconfig get, list and watch on this kind"
        }
        kube::Error::Api(status) if status.code == 401 => {
            "; give the kubeconfig credentials that this API accepts"
        }
        _ => "",
    }
}

/// Lists a kind again and again, for where a proxy cuts watches.
async fn poll<T: Convert>(source: &Source, every: Duration, well: &mut bool) -> Result<Over, Over>
where
    Seen<T>: Resource<DynamicType = ()>,
{
    let mut last = None;
    loop {
        let api = Api::<Seen<T>>::all(source.connection.client.clone());
        let listed = list(&api, None).await?;
        *well = true;
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
fn fingerprint<T: Convert>(listed: &[Seen<T>]) -> u64
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
