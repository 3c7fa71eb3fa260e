//! The simulated EC2 with a real API server: booted instances register as Nodes.

// HTTP server of the simulated cloud.
pub(crate) mod server;
// Node registration of simulated instances.
pub(crate) mod registration;
// HTTP client of the simulated cloud.
pub(crate) mod remote;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::catalog::Catalog;
use crate::engine::command::Command;
use crate::host::clock;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClusterName, InstanceId};
use crate::model::instance::Instance;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch};
use crate::providers::interface::{Provider, unsupported_result};
use crate::sim::cloud::{Cloud, CloudEvent, CloudSettings};

/// Capacity of the request queue. Each request takes microseconds.
const QUEUE: usize = 256;

/// One request to the cloud.
enum CloudRequest {
    Launch {
        launch: Box<Launch>,
        home: Client,
        reply: oneshot::Sender<CommandResult>,
    },
    Terminate {
        instance: InstanceId,
        scope: (String, ClusterName),
        reply: oneshot::Sender<CommandResult>,
    },
    Adopt {
        adoption: Box<Adoption>,
        home: Client,
        reply: oneshot::Sender<CommandResult>,
    },
    List {
        scope: Option<(String, ClusterName)>,
        reply: oneshot::Sender<Vec<Instance>>,
    },
}

/// Handle to a simulated cloud in real time. The cloud stops when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct CloudHandle {
    requests: mpsc::Sender<CloudRequest>,
}

impl CloudHandle {
    /// Starts an empty cloud.
    pub(crate) fn start(catalog: Arc<Catalog>, boot: SignedDuration) -> Self {
        let settings = CloudSettings {
            seed: clock::random_seed(),
            boot,
            names_nodes: true,
            ..CloudSettings::default()
        };
        Self::start_with(catalog, settings)
    }

    /// Starts an empty cloud with this behavior.
    pub(crate) fn start_with(catalog: Arc<Catalog>, settings: CloudSettings) -> Self {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let task = CloudTask {
            cloud: Cloud::new(catalog.clone(), settings),
            catalog,
            homes: BTreeMap::new(),
            registering: BTreeMap::new(),
        };
        tokio::spawn(task.run(inbox));
        Self { requests }
    }

    /// Launches an instance that will register with the API server of `home`.
    pub(crate) async fn launch(&self, launch: Box<Launch>, home: Client) -> CommandResult {
        self.send_request(|reply| CloudRequest::Launch { launch, home, reply })
            .await
            .unwrap_or_else(cloud_stopped)
    }

    /// Terminates an instance of this installation and cluster.
    pub(crate) async fn terminate(
        &self,
        instance: InstanceId,
        scope: (String, ClusterName),
    ) -> CommandResult {
        self.send_request(|reply| CloudRequest::Terminate { instance, scope, reply })
            .await
            .unwrap_or_else(cloud_stopped)
    }

    /// Adds an instance of another autoscaler, with its tags.
    pub(crate) async fn adopt(&self, adoption: Box<Adoption>, home: Client) -> CommandResult {
        self.send_request(|reply| CloudRequest::Adopt { adoption, home, reply })
            .await
            .unwrap_or_else(cloud_stopped)
    }

    /// Lists the instances of one installation and cluster. For audits, lists all instances that
    /// ever existed.
    pub(crate) async fn list(&self, scope: Option<(String, ClusterName)>) -> Option<Vec<Instance>> {
        self.send_request(|reply| CloudRequest::List { scope, reply }).await
    }

    async fn send_request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> CloudRequest,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.ok()?;
        answer.await.ok()
    }
}

fn cloud_stopped() -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Unknown, text: "the simulated cloud stopped".into() }
}

/// The task that owns the cloud.
struct CloudTask {
    cloud: Cloud,
    catalog: Arc<Catalog>,
    homes: BTreeMap<InstanceId, Client>,
    registering: BTreeMap<InstanceId, AbortHandle>,
}

impl CloudTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<CloudRequest>) {
        /// Interval of updates without scheduled events.
        const IDLE: Duration = Duration::from_secs(60);
        loop {
            let wait = self.cloud.next_at().map_or(IDLE, clock::time_until);
            tokio::select! {
                ask = inbox.recv() => match ask {
                    Some(ask) => self.handle_request(ask),
                    None => return,
                },
                () = tokio::time::sleep(wait) => {}
            }
            for event in self.cloud.run_due(clock::now()) {
                self.on_event(event);
            }
        }
    }

    fn handle_request(&mut self, request: CloudRequest) {
        // The caller may have disconnected.
        match request {
            CloudRequest::Launch { launch, home, reply } => {
                let answer = self.cloud.launch(&launch, clock::now());
                if let CommandResult::Launched(instance) = &answer {
                    self.homes.entry(instance.id.clone()).or_insert(home);
                }
                drop(reply.send(answer));
            }
            CloudRequest::Terminate { instance, scope, reply } => {
                let answer = self.terminate(&instance, &scope);
                drop(reply.send(answer));
            }
            CloudRequest::Adopt { adoption, home, reply } => {
                let answer = self.cloud.adopt_instance(&adoption, clock::now());
                if answer == CommandResult::Done {
                    self.homes.entry(adoption.instance).or_insert(home);
                }
                drop(reply.send(answer));
            }
            CloudRequest::List { scope: Some((installation, cluster)), reply } => {
                drop(reply.send(self.cloud.list_instances(&installation, &cluster, clock::now())));
            }
            CloudRequest::List { scope: None, reply } => {
                drop(reply.send(self.cloud.all_instances().map(|it| it.truth().clone()).collect()));
            }
        }
    }

    fn terminate(&mut self, instance: &InstanceId, scope: &(String, ClusterName)) -> CommandResult {
        let tags = self.cloud.get(instance.as_str()).map(|it| &it.truth().tags);
        let (installation, cluster) = scope;
        let is_foreign =
            [(TAG_INSTALLATION, installation.as_str()), (TAG_CLUSTER, cluster.as_str())]
                .iter()
                .any(|(tag, value)| {
                    let known = tags.and_then(|tags| tags.get(*tag));
                    known.is_some_and(|known| known != value)
                });
        if is_foreign {
            return CommandResult::Failed {
                kind: FailureKind::Denied,
                text: format!("{instance} belongs to a different cluster"),
            };
        }
        self.stop_registration(instance);
        self.cloud.terminate(instance, clock::now())
    }

    fn on_event(&mut self, event: CloudEvent) {
        match event {
            CloudEvent::Booted { instance, labels, taints } => {
                let Some(home) = self.homes.get(&instance.id) else {
                    return;
                };
                let shape = self.catalog.get(instance.offering.instance_type.as_str());
                let node = registration::node_object(&instance, shape, &labels, &taints);
                let id = instance.id;
                let task = tokio::spawn(registration::register_with_retries(
                    home.clone(),
                    node,
                    id.clone(),
                ));
                self.registering.insert(id, task.abort_handle());
            }
            CloudEvent::Ended { instance } => self.stop_registration(&instance),
            // Spot instances are not interrupted here.
            CloudEvent::Interrupted { .. } => {}
        }
    }

    /// A terminated instance does not register.
    fn stop_registration(&mut self, instance: &InstanceId) {
        self.homes.remove(instance);
        if let Some(task) = self.registering.remove(instance) {
            task.abort();
        }
    }
}

/// The simulated cloud in this process as the provider of one cluster.
pub(crate) struct InProcess {
    pub(crate) cloud: CloudHandle,
    pub(crate) installation: String,
    pub(crate) cluster: ClusterName,
    pub(crate) home: Client,
}

impl InProcess {
    fn cluster_scope(&self) -> (String, ClusterName) {
        (self.installation.clone(), self.cluster.clone())
    }
}

impl Provider for InProcess {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.cloud.launch(launch, self.home.clone()).await,
                Command::Terminate { instance, .. } => {
                    self.cloud.terminate(instance, self.cluster_scope()).await
                }
                Command::Adopt(adoption) => self.cloud.adopt(adoption, self.home.clone()).await,
                Command::ListInstances => {
                    let listed = self.cloud.list(Some(self.cluster_scope())).await;
                    listed.map_or_else(cloud_stopped, CommandResult::Instances)
                }
                other => unsupported_result(&other),
            }
        }
        .boxed()
    }
}
