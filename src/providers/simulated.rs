//! The simulated EC2 in front of a real API server: what boots registers as a Node there.
//! It must not know who launches, nor what the nodes are for.

pub(crate) mod server;
pub(crate) mod registration;
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
use crate::engine::command::{Adoption, Command, CommandResult, FailureKind, Launch};
use crate::host::clock;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClusterName, InstanceId};
use crate::model::instance::Instance;
use crate::providers::{Provider, not_ours};
use crate::sim::cloud::{Cloud, CloudEvent, CloudSettings};

/// Requests that wait for the cloud. Each is answered within microseconds.
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
        of: (String, ClusterName),
        reply: oneshot::Sender<CommandResult>,
    },
    Adopt {
        adoption: Box<Adoption>,
        home: Client,
        reply: oneshot::Sender<CommandResult>,
    },
    List {
        of: Option<(String, ClusterName)>,
        reply: oneshot::Sender<Vec<Instance>>,
    },
}

/// A cloud that runs by the clock. It ends when the last of its handles is dropped.
#[derive(Clone)]
pub(crate) struct CloudHandle {
    asks: mpsc::Sender<CloudRequest>,
}

impl CloudHandle {
    /// Starts an empty cloud.
    pub(crate) fn start(catalog: Arc<Catalog>, boot: SignedDuration) -> Self {
        let settings = CloudSettings {
            seed: clock::seed(),
            boot,
            names_nodes: true,
            ..CloudSettings::default()
        };
        Self::start_with(catalog, settings)
    }

    /// The same, behaving like this.
    pub(crate) fn start_with(catalog: Arc<Catalog>, settings: CloudSettings) -> Self {
        let (asks, inbox) = mpsc::channel(QUEUE);
        let keeper = CloudTask {
            cloud: Cloud::new(catalog.clone(), settings),
            catalog,
            homes: BTreeMap::new(),
            registering: BTreeMap::new(),
        };
        tokio::spawn(keeper.keep(inbox));
        Self { asks }
    }

    /// Launches an instance that will register with the API behind `home`.
    pub(crate) async fn launch(&self, launch: Box<Launch>, home: Client) -> CommandResult {
        self.ask(|reply| CloudRequest::Launch {
            launch,
            home,
            reply,
        })
        .await
        .unwrap_or_else(closed)
    }

    /// Ends an instance, if it is one of this installation and cluster.
    pub(crate) async fn terminate(
        &self,
        instance: InstanceId,
        of: (String, ClusterName),
    ) -> CommandResult {
        self.ask(|reply| CloudRequest::Terminate {
            instance,
            of,
            reply,
        })
        .await
        .unwrap_or_else(closed)
    }

    /// Takes an instance in that somebody else has launched, with its tags.
    pub(crate) async fn adopt(&self, adoption: Box<Adoption>, home: Client) -> CommandResult {
        self.ask(|reply| CloudRequest::Adopt {
            adoption,
            home,
            reply,
        })
        .await
        .unwrap_or_else(closed)
    }

    /// What a listing shows of one installation and cluster, or, for audits, everything there ever
    /// was.
    pub(crate) async fn list(&self, of: Option<(String, ClusterName)>) -> Option<Vec<Instance>> {
        self.ask(|reply| CloudRequest::List { of, reply }).await
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> CloudRequest) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(ask(reply)).await.ok()?;
        answer.await.ok()
    }
}

fn closed() -> CommandResult {
    CommandResult::Failed {
        kind: FailureKind::Unknown,
        text: "the simulated cloud has ended".into(),
    }
}

/// The one holder of the cloud.
struct CloudTask {
    cloud: Cloud,
    catalog: Arc<Catalog>,
    homes: BTreeMap<InstanceId, Client>,
    registering: BTreeMap<InstanceId, AbortHandle>,
}

impl CloudTask {
    async fn keep(mut self, mut inbox: mpsc::Receiver<CloudRequest>) {
        /// Without anything to come the clock is looked at this often.
        const IDLE: Duration = Duration::from_secs(60);
        loop {
            let wait = self.cloud.next_at().map_or(IDLE, clock::until);
            tokio::select! {
                ask = inbox.recv() => match ask {
                    Some(ask) => self.answer(ask),
                    None => return,
                },
                () = tokio::time::sleep(wait) => {}
            }
            for event in self.cloud.advance(clock::now()) {
                self.happened(event);
            }
        }
    }

    fn answer(&mut self, ask: CloudRequest) {
        // Whoever asked may have gone meanwhile, and does not need the answer then.
        match ask {
            CloudRequest::Launch {
                launch,
                home,
                reply,
            } => {
                let answer = self.cloud.launch(&launch, clock::now());
                if let CommandResult::Launched(instance) = &answer {
                    self.homes.entry(instance.id.clone()).or_insert(home);
                }
                drop(reply.send(answer));
            }
            CloudRequest::Terminate {
                instance,
                of,
                reply,
            } => {
                let answer = self.terminate(&instance, &of);
                drop(reply.send(answer));
            }
            CloudRequest::Adopt {
                adoption,
                home,
                reply,
            } => {
                let answer = self.cloud.adopt(&adoption, clock::now());
                if answer == CommandResult::Done {
                    self.homes.entry(adoption.instance).or_insert(home);
                }
                drop(reply.send(answer));
            }
            CloudRequest::List {
                of: Some((installation, cluster)),
                reply,
            } => {
                drop(reply.send(self.cloud.list(&installation, &cluster, clock::now())));
            }
            CloudRequest::List { of: None, reply } => {
                drop(reply.send(self.cloud.all().map(|it| it.truth().clone()).collect()));
            }
        }
    }

    fn terminate(&mut self, instance: &InstanceId, of: &(String, ClusterName)) -> CommandResult {
        let tags = self.cloud.get(instance.as_str()).map(|it| &it.truth().tags);
        let is = |tag: &str, value: &str| {
            let own = tags.and_then(|tags| tags.get(tag));
            own.is_none_or(|own| own == value)
        };
        if !is(TAG_INSTALLATION, &of.0) || !is(TAG_CLUSTER, of.1.as_str()) {
            return CommandResult::Failed {
                kind: FailureKind::Denied,
                text: format!("{instance} is another's"),
            };
        }
        self.forget(instance);
        self.cloud.terminate(instance, clock::now())
    }

    fn happened(&mut self, event: CloudEvent) {
        match event {
            CloudEvent::Booted {
                instance,
                labels,
                taints,
            } => {
                let Some(home) = self.homes.get(&instance.id) else {
                    return;
                };
                let shape = self.catalog.get(instance.offering.instance_type.as_str());
                let node = registration::node(&instance, shape, &labels, &taints);
                let id = instance.id;
                let task = tokio::spawn(registration::keep_trying(home.clone(), node, id.clone()));
                self.registering.insert(id, task.abort_handle());
            }
            CloudEvent::Ended { instance } => self.forget(&instance),
            // Nothing here takes spot instances back.
            CloudEvent::Interrupted { .. } => {}
        }
    }

    /// A machine that has ended registers no more.
    fn forget(&mut self, instance: &InstanceId) {
        self.homes.remove(instance);
        if let Some(task) = self.registering.remove(instance) {
            task.abort();
        }
    }
}

/// The simulated cloud as one cluster's provider, in this process.
pub(crate) struct InProcess {
    pub(crate) cloud: CloudHandle,
    pub(crate) installation: String,
    pub(crate) cluster: ClusterName,
    pub(crate) home: Client,
}

impl InProcess {
    fn of(&self) -> (String, ClusterName) {
        (self.installation.clone(), self.cluster.clone())
    }
}

impl Provider for InProcess {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.cloud.launch(launch, self.home.clone()).await,
                Command::Terminate { instance, .. } => {
                    self.cloud.terminate(instance, self.of()).await
                }
                Command::Adopt(own) => self.cloud.adopt(own, self.home.clone()).await,
                Command::ListInstances => {
                    let of = self.of();
                    self.cloud
                        .list(Some(of))
                        .await
                        .map_or_else(closed, CommandResult::Instances)
                }
                other => not_ours(&other),
            }
        }
        .boxed()
    }
}
