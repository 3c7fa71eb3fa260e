//! Runs the engine of one cluster while this host holds the Lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::catalog::Catalog;
use crate::engine::event::Event;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::runtime::cluster_handle::{ClusterHandle, PATIENCE};
use crate::runtime::cluster_health::ClusterHealth;
use crate::runtime::engine_loop::{EngineDeps, EngineThread};
use crate::runtime::fleet_task::FleetHandle;
use crate::runtime::leader_election::{LeaderElector, Leadership};

/// Interval of checks while the state of the Lease is unknown.
const LOOK: Duration = Duration::from_secs(5);

/// Time for a provider to register the engine of the cluster.
const TOLD: Duration = Duration::from_secs(4);

/// Commands to a cluster runner.
enum RunnerCommand {
    /// The cluster or its instance types have changed.
    Change(Arc<Cluster>, Arc<Catalog>, oneshot::Sender<bool>),
    Stop,
}

/// A cluster that this process runs.
pub(crate) struct ClusterRunner {
    pub(crate) front: Arc<ClusterHandle>,
    orders: mpsc::Sender<RunnerCommand>,
    ended: watch::Receiver<()>,
}

impl ClusterRunner {
    /// Starts to run the cluster.
    pub(crate) fn start(parts: EngineDeps, elector: LeaderElector, fleet: FleetHandle) -> Self {
        let handle = Arc::new(ClusterHandle::new(parts.cluster.name.clone()));
        let (orders, inbox) = mpsc::channel(1);
        let (end, ended) = watch::channel(());
        let task = RunnerTask { parts, fleet, front: handle.clone(), inbox, told: true };
        tokio::spawn(async move {
            let _end = end;
            task.run_until_stopped(elector).await;
        });
        Self { front: handle, orders, ended }
    }

    /// Passes a change to the engine. Returns false if the engine does not accept it.
    pub(crate) async fn apply_change(&self, cluster: Arc<Cluster>, catalog: Arc<Catalog>) -> bool {
        let (reply, answer) = oneshot::channel();
        let order = RunnerCommand::Change(cluster, catalog, reply);
        self.orders.send(order).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Waits until the engine has stopped, which happens only on request or because of an error.
    pub(crate) async fn wait_until_ended(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// Stops the engine and releases the Lease.
    pub(crate) async fn stop(self) {
        drop(self.orders.send(RunnerCommand::Stop).await);
        self.wait_until_ended().await;
    }
}

/// Why an engine stopped.
enum EngineEnd {
    /// The engine was stopped on request.
    Stopped,
    /// The engine failed, or could not start.
    Failed,
    /// This host lost leadership.
    Lost,
    /// The clock of the host was set.
    ClockSet,
}

struct RunnerTask {
    parts: EngineDeps,
    fleet: FleetHandle,
    front: Arc<ClusterHandle>,
    inbox: mpsc::Receiver<RunnerCommand>,
    /// True if the provider has registered the engine of the cluster.
    told: bool,
}

impl RunnerTask {
    async fn run_until_stopped(mut self, mut elector: LeaderElector) {
        while let Some(term) = self.wait_for_leadership(&mut elector).await {
            match self.run_engine(&mut elector, term).await {
                EngineEnd::Lost => elector.mark_term_finished(term),
                EngineEnd::ClockSet => {
                    self.front.set_health(ClusterHealth::Unready, Vec::new());
                    elector.begin_new_term(term).await;
                    // Wait before the next engine starts: each new engine lists all objects, and
                    // the clock may be set repeatedly.
                    sleep(LOOK).await;
                }
                EngineEnd::Stopped => break,
                EngineEnd::Failed => {
                    self.front.set_health(ClusterHealth::Ended, Vec::new());
                    break;
                }
            }
        }
        elector.release_lease().await;
    }

    /// Waits until this host is the leader, and returns the term. `None` if the runner is stopped,
    /// or if the Lease cannot be used.
    async fn wait_for_leadership(&mut self, elector: &mut LeaderElector) -> Option<u64> {
        let since = clock::now();
        self.register_engine(None).await;
        loop {
            if !self.parts.provider.is_healthy() {
                self.front.set_health(ClusterHealth::Ended, Vec::new());
                return None;
            }
            let leadership = elector.current_leadership();
            self.front.set_follower_reason(match &leadership {
                Leadership::Follows(reason) => Some(reason.clone()),
                _ => None,
            });
            let standing = match leadership {
                Leadership::Leads(term) => return Some(term),
                Leadership::Follows(_) => ClusterHealth::Standby,
                Leadership::Unknown | Leadership::Fails(_) => {
                    let waited = clock::now().duration_since(since);
                    if waited > PATIENCE { ClusterHealth::Degraded } else { ClusterHealth::Unready }
                }
            };
            self.front.set_health(standing, Vec::new());
            tokio::select! {
                order = self.inbox.recv() => match order {
                    Some(RunnerCommand::Change(cluster, catalog, reply)) => {
                        (self.parts.cluster, self.parts.catalog) = (cluster, catalog);
                        self.register_engine(None).await;
                        let _ = reply.send(true);
                    }
                    Some(RunnerCommand::Stop) | None => return None,
                },
                () = elector.wait_for_change(&leadership) => {}
                () = sleep(LOOK) => self.register_if_failed(None).await,
            }
        }
    }

    /// Runs an engine for this term.
    async fn run_engine(&mut self, elector: &mut LeaderElector, term: u64) -> EngineEnd {
        let cluster = self.parts.cluster.clone();
        self.front.set_health(ClusterHealth::Unready, Vec::new());
        elector.report_health(false);
        let fleet_client = self.fleet.join_cluster(&cluster.name).await;
        let parts = self.parts.clone();
        let engine = match EngineThread::start(parts, term, fleet_client, self.front.clone()) {
            Ok(engine) => engine,
            Err(error) => {
                tracing::error!(cluster = %cluster.name, %error, "cannot start engine thread");
                elector.report_health(true);
                return EngineEnd::Failed;
            }
        };
        self.register_engine(Some(&engine)).await;
        let leadership = Leadership::Leads(term);
        let end = loop {
            tokio::select! {
                biased;
                // An engine that stops because the clock was set has not failed, and accepts no
                // further commands.
                () = engine.clock_set() => break EngineEnd::ClockSet,
                () = engine.wait_until_ended() => break EngineEnd::Failed,
                () = elector.wait_for_change(&leadership) => break EngineEnd::Lost,
                order = self.inbox.recv() => match order {
                    Some(RunnerCommand::Change(cluster, catalog, reply)) => {
                        let _ = reply.send(self.apply_change(&engine, cluster, catalog).await);
                    }
                    Some(RunnerCommand::Stop) | None => break EngineEnd::Stopped,
                },
                () = sleep(LOOK) => self.register_if_failed(Some(&engine)).await,
            }
            if !self.parts.provider.is_healthy() {
                tracing::error!(cluster = %cluster.name, "provider task panicked");
                break EngineEnd::Failed;
            }
            elector.report_health(self.front.health() == ClusterHealth::Ready);
        };
        elector.report_health(true);
        // From here on, the provider no longer sends events to this engine. The next leader
        // receives the messages about the instances.
        self.register_engine(None).await;
        engine.stop().await;
        self.front.set_engine(None);
        end
    }

    /// Registers the cluster with the provider, and the engine if one runs.
    async fn register_engine(&mut self, engine: Option<&EngineThread>) {
        let cluster = self.parts.cluster.clone();
        let events = engine.map(EngineThread::event_channel);
        let registered = timeout(TOLD, self.parts.provider.register_cluster(cluster, events)).await;
        if std::mem::replace(&mut self.told, registered.is_ok()) && !self.told {
            let cluster = &self.parts.cluster.name;
            tracing::warn!(%cluster, "AWS region task is slow, continuing without its data");
        }
    }

    /// Repeats the registration with the provider if the last registration timed out.
    async fn register_if_failed(&mut self, engine: Option<&EngineThread>) {
        if !self.told {
            self.register_engine(engine).await;
        }
    }

    async fn apply_change(
        &mut self,
        engine: &EngineThread,
        cluster: Arc<Cluster>,
        catalog: Arc<Catalog>,
    ) -> bool {
        if self.parts.catalog != catalog {
            if !engine.send_event(Event::CatalogChanged(catalog.clone())).await {
                return false;
            }
            self.parts.catalog = catalog;
        }
        if self.parts.cluster != cluster {
            if !engine.send_event(Event::ConfigChanged(cluster.clone())).await {
                return false;
            }
            self.parts.cluster = cluster;
            self.register_engine(Some(engine)).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use http::{Request, Response};
    use jiff::SignedDuration;
    use kube::Client;
    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::engine::command::Command;
    use crate::host::clock::Moment;
    use crate::kubernetes::client::Connection;
    use crate::provider::CommandResult;
    use crate::providers::interface::{NoProvider, Provider};

    /// A runner of a cluster in observe mode whose API never responds.
    fn observed(provider: Arc<dyn Provider>, read_clocks: fn() -> Moment) -> ClusterRunner {
        let never = |_: Request<Body>| pending::<Result<Response<Body>, BoxError>>();
        let connection = Connection::from_client(Client::new(service_fn(never), "default"));
        let elector = LeaderElector::without_election(&connection);
        let parts = EngineDeps {
            cluster: Arc::default(),
            catalog: Arc::default(),
            connection,
            provider,
            read_clocks,
        };
        ClusterRunner::start(parts, elector, FleetHandle::start())
    }

    /// A provider that does not respond to the first `register_cluster` call and panics soon after
    /// the second.
    #[derive(Default)]
    struct FailingProvider {
        registrations: AtomicUsize,
    }

    impl Provider for FailingProvider {
        fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
            async { NoProvider.execute(command).await }.boxed()
        }

        fn register_cluster(
            &self,
            _: Arc<Cluster>,
            events: Option<mpsc::Sender<Event>>,
        ) -> BoxFuture<'_, ()> {
            if events.is_none() {
                return ready(()).boxed();
            }
            match self.registrations.fetch_add(1, Ordering::Relaxed) {
                0 => pending().boxed(),
                _ => ready(()).boxed(),
            }
        }

        fn is_healthy(&self) -> bool {
            self.registrations.load(Ordering::Relaxed) < 2
        }
    }

    #[tokio::test]
    async fn registration_is_retried_and_runner_ends_with_its_provider() {
        let provider = Arc::new(FailingProvider::default());
        let runner = observed(provider.clone(), Moment::now);
        let ended = timeout(Duration::from_mins(1), runner.wait_until_ended()).await;
        ended.expect("the runner ends");
        assert_eq!(provider.registrations.load(Ordering::Relaxed), 2);
        assert_eq!(runner.front.health(), ClusterHealth::Ended);
    }

    /// Number of hours by which the wall clock has been set.
    static HOURS: AtomicI64 = AtomicI64::new(0);

    fn set_clocks() -> Moment {
        let now = Moment::now();
        let hours = SignedDuration::from_hours(HOURS.load(Ordering::Relaxed));
        Moment { wall: now.wall + hours, ..now }
    }

    /// Counts how often an engine was started.
    #[derive(Default)]
    struct CountingProvider {
        started: AtomicUsize,
    }

    impl Provider for CountingProvider {
        fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
            async { NoProvider.execute(command).await }.boxed()
        }

        fn register_cluster(
            &self,
            _: Arc<Cluster>,
            events: Option<mpsc::Sender<Event>>,
        ) -> BoxFuture<'_, ()> {
            let started = usize::from(events.is_some());
            self.started.fetch_add(started, Ordering::Relaxed);
            ready(()).boxed()
        }
    }

    #[tokio::test]
    async fn engine_is_restarted_when_the_wall_clock_is_set() {
        let provider = Arc::new(CountingProvider::default());
        let runner = observed(provider.clone(), set_clocks);
        for (engines, hours) in [(1, 0), (2, 1), (3, 0), (4, -1)] {
            HOURS.store(hours, Ordering::Relaxed);
            let started = async {
                while provider.started.load(Ordering::Relaxed) < engines {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            let started = timeout(Duration::from_mins(1), started).await;
            started.expect("a new engine starts");
        }
        let ended = timeout(Duration::from_secs(6), runner.wait_until_ended()).await;
        assert!(ended.is_err(), "the runner did not end");
        assert_eq!(provider.started.load(Ordering::Relaxed), 4, "one engine for each clock change");
        runner.stop().await;
    }
}
