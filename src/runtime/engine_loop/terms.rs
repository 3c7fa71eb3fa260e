//! Tests of engines that outlive their term.

use std::sync::mpsc as threads;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;
use tower::{BoxError, service_fn};

use super::{EngineDeps, EngineThread};
use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::host::clock::Moment;
use crate::kubernetes::client::Connection;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::pool::Pool;
use crate::model::watched_object::{Namespace, ObjectKind, WatchedObject};
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind, OfferingRefusal};
use crate::providers::interface::{Provider, unsupported_result};
use crate::runtime::cluster_handle::ClusterHandle;
use crate::runtime::fleet_task::FleetHandle;

/// Nodes of the static pool, launched simultaneously.
const NODES: u32 = 5;
const HOUR: Duration = Duration::from_hours(1);

/// A provider whose calls wait before they are sent, as AWS calls wait for the rate limit.
struct SlowProvider {
    /// Whether calls may be sent.
    turn: watch::Sender<bool>,
    /// Number of started calls, and the terms of the sent calls.
    calls: Mutex<(usize, Vec<Option<u64>>)>,
}

impl SlowProvider {
    fn sent(&self) -> Vec<Option<u64>> {
        self.calls.lock().expect("no panic").1.clone()
    }

    fn started(&self) -> usize {
        self.calls.lock().expect("no panic").0
    }

    async fn launch(&self) -> CommandResult {
        self.calls.lock().expect("no panic").0 += 1;
        let mut turn = self.turn.subscribe();
        drop(turn.wait_for(|may_send| *may_send).await);
        if let Err(fenced) = fence::check_task(true) {
            let (kind, text) = (FailureKind::Unknown, fenced.to_string());
            return CommandResult::Failed { kind, text };
        }
        let fences = fence::task_fences().unwrap_or_default();
        let term = fences.first().and_then(|fence| fence.required_term());
        self.calls.lock().expect("no panic").1.push(term);
        CommandResult::LaunchRefused(Vec::<OfferingRefusal>::new())
    }
}

impl Provider for SlowProvider {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(_) => self.launch().await,
                Command::ListInstances => CommandResult::Instances(Vec::new()),
                other => unsupported_result(&other),
            }
        }
        .boxed()
    }
}

/// An API server without a Lease and without listings. The tests send the events themselves.
fn api() -> Connection {
    Connection::from_client(Client::new(
        service_fn(|request: Request<Body>| async move {
            if !request.uri().path().contains("/leases/") {
                return std::future::pending().await;
            }
            let text = json!({"status": "Failure", "reason": "NotFound", "code": 404}).to_string();
            let answer = Response::builder().status(StatusCode::NOT_FOUND);
            Ok::<_, BoxError>(answer.body(Body::from(text.into_bytes()))?)
        }),
        "default",
    ))
}

struct Stage {
    parts: EngineDeps,
    provider: Arc<SlowProvider>,
    front: Arc<ClusterHandle>,
}

impl Stage {
    fn new() -> Self {
        let mut pool = Pool::new("general");
        pool.replicas = Some(NODES);
        let mut cluster = Cluster {
            installation: "tests".into(),
            name: "one".into(),
            mode: ManagementMode::Manage,
            pools: vec![pool],
            ..Cluster::default()
        };
        // One concurrent call. The other commands wait in the engine.
        cluster.api.concurrency = 1;
        let provider =
            Arc::new(SlowProvider { turn: watch::channel(false).0, calls: Mutex::default() });
        Self {
            front: Arc::new(ClusterHandle::new(cluster.name.clone())),
            parts: EngineDeps {
                read_clocks: Moment::now,
                cluster: Arc::new(cluster),
                catalog: Arc::new(Catalog::shipped()),
                connection: api(),
                provider: provider.clone(),
            },
            provider,
        }
    }

    /// Begins a term, starts an engine for the term, and brings the engine's state in sync.
    async fn lead(&self) -> (u64, EngineThread) {
        let fence = &self.parts.connection.fence;
        let term = fence.begin_term("term/one.1.1");
        fence.open(Moment::now(), HOUR);
        let fleet_client = FleetHandle::start().join_cluster(&self.parts.cluster.name).await;
        let engine =
            EngineThread::start(self.parts.clone(), term, fleet_client, self.front.clone());
        let engine = engine.expect("a thread");
        for kind in ObjectKind::ALL {
            let objects = match kind {
                ObjectKind::Namespace => vec![WatchedObject::Namespace(Namespace {
                    name: "kube-system".to_owned(),
                    uid: "here".to_owned(),
                    ..Namespace::default()
                })],
                _ => Vec::new(),
            };
            assert!(engine.send_event(Event::Reset(kind, objects)).await);
        }
        assert!(engine.send_event(Event::BuffersChanged(Vec::new())).await);
        (term, engine)
    }

    /// Blocks the engine until the returned sender is dropped.
    async fn block(&self) -> threads::Sender<()> {
        let (release, blocked) = threads::channel::<()>();
        let (started, begins) = threads::channel();
        let handle = self.front.clone();
        tokio::spawn(async move {
            let blocking = handle.query_engine(move |_: &Engine, _| {
                started.send(()).expect("the test waits");
                blocked.recv().unwrap_or_default();
            });
            blocking.await.unwrap_or_default();
        });
        until(|| begins.try_recv().is_ok()).await;
        release
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..300 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("the condition does not hold after 30 s");
}

#[tokio::test]
async fn hung_engine_sends_nothing_in_a_later_term_of_its_host() {
    let stage = Stage::new();
    let (_, first) = stage.lead().await;
    // One command waits in the provider, and four commands wait until this command completes.
    until(|| stage.provider.started() == 1).await;
    let blocked = stage.block().await;
    let (second, other) = stage.lead().await;
    // The first engine continues, because no other part has stopped it.
    drop(blocked);
    sleep(Duration::from_secs(2)).await;
    stage.provider.turn.send_replace(true);
    until(|| stage.provider.sent().len() >= NODES as usize).await;
    first.stop().await;
    other.stop().await;
    let sent = stage.provider.sent();
    assert!(sent.iter().all(|it| *it == Some(second)), "{sent:?}");
}

#[tokio::test]
async fn engine_stopped_during_a_long_pass_sends_no_more_commands() {
    let stage = Stage::new();
    let (term, engine) = stage.lead().await;
    until(|| stage.provider.started() == 1).await;
    let blocked = stage.block().await;
    let stopped = tokio::spawn(engine.stop());
    sleep(Duration::from_millis(500)).await;
    stage.provider.turn.send_replace(true);
    drop(blocked);
    stopped.await.expect("no panic");
    assert_eq!(stage.provider.started(), 1);
    // The call in progress is completed.
    assert_eq!(stage.provider.sent(), [Some(term)]);
}
