//! EC2 as the provider of one cluster: launches, terminates and lists instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::{mpsc, watch};

use crate::catalog::node_class::{ClassSupplies, NodeClassSupply};
use crate::ec2::adoption::check_adoptable;
use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::iam_policy::{ADOPTION, TAGGING};
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::kubernetes::client::Connection;
use crate::model::claim::{TAG_CLAIM, TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::cluster::{Binding, Cluster};
use crate::model::id::InstanceId;
use crate::model::instance::Instance;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances;
use crate::providers::aws::join_secrets::JoinSecrets;
use crate::providers::aws::launchable_class::retry_result;
use crate::providers::aws::launcher::{LaunchRecord, Launcher, invalid_result};
use crate::providers::aws::region::RegionHandle;
use crate::providers::aws::region_task::{ClusterView, RegionCluster};
use crate::providers::interface::{Provider, unsupported_result};

/// Launches that may wait for their calls together, as a multiple of the concurrent calls. Many of
/// them are gathered into one call.
const LAUNCHES_PER_CALL: usize = 32;

/// Source of numbers that distinguish successive providers of one cluster.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// The EC2 provider of one cluster.
pub(crate) struct Ec2 {
    session: u64,
    cluster: Arc<Cluster>,
    connection: Connection,
    region_handle: RegionHandle,
    view: watch::Sender<Arc<ClusterView>>,
    secrets: JoinSecrets,
    launcher: Arc<Launcher>,
}

impl Ec2 {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        connection: Connection,
        region_handle: RegionHandle,
    ) -> Self {
        let early = cluster.binding == Binding::Early;
        let shared = region_handle.shared.clone();
        Self {
            session: SESSIONS.fetch_add(1, Ordering::Relaxed),
            launcher: Arc::new(Launcher::new(cluster.clone(), shared, early)),
            cluster,
            connection,
            region_handle,
            view: watch::Sender::default(),
            secrets: JoinSecrets::default(),
        }
    }

    async fn launch(&self, launch: Launch) -> CommandResult {
        let claim = launch.claim.id.clone();
        let (batch, is_repeat) = match self.launcher.known_launch(&launch) {
            Err(answer) => return *answer,
            Ok(Some(LaunchRecord::Made(instance))) => {
                return self.completed_launch(*instance).await;
            }
            Ok(Some(LaunchRecord::Refused)) => return CommandResult::LaunchRefused(Vec::new()),
            Ok(Some(LaunchRecord::Batched(batch))) => (batch, true),
            Ok(None) => match self.build_request(&launch).await {
                Ok(request) => match self.launcher.join_batch(launch, request) {
                    Ok(batch) => (batch, false),
                    Err(answer) => return *answer,
                },
                Err(answer) => return *answer,
            },
        };
        self.launcher.wait_for_result(&claim, batch, is_repeat).await
    }

    /// Returns the instance of a completed launch.
    async fn completed_launch(&self, instance: Instance) -> CommandResult {
        let listed = match self.list_instances().await {
            Ok(listed) => listed.into_iter().find(|listed| listed.id == instance.id),
            Err(fault) => return failed_result(&fault),
        };
        // A listing may not yet show that this provider terminated the instance.
        let listed = listed.filter(|_| instance.state.is_live());
        match listed.unwrap_or(instance) {
            instance if instance.state.is_live() => CommandResult::Launched(instance),
            _ => invalid_result("the client token was used for a terminated instance"),
        }
    }

    /// Builds the request of a launch.
    async fn build_request(&self, launch: &Launch) -> Result<FleetRequest, Box<CommandResult>> {
        let view = self.view.borrow().clone();
        let class = launch.claim.node_class.as_ref();
        let ready = class.and_then(|name| view.classes.get(name));
        let (Some(ready), Some(home)) = (ready, &view.home) else {
            return Err(Box::new(retry_result("the node class is not resolved yet")));
        };
        if ready.hash != launch.claim.node_class_hash {
            return Err(Box::new(retry_result("the node class has changed")));
        }
        let bootstrap = &ready.class.bootstrap;
        let (account, client) = (&self.region_handle.shared.account, &self.connection.client);
        let secret = self.secrets.secret_for(bootstrap, account, client).await;
        let secret = secret.map_err(|error| Box::new(error.launch_result()))?;
        let secret = secret.as_ref().map(|secret| secret.0.as_str());
        let mut subnets = self.region_handle.shared.subnets.lock();
        let subnets = subnets.as_mut().map_err(|_| Box::new(retry_result("a panic")))?;
        ready.fleet_request(launch, &self.cluster, home, secret, subnets)
    }

    async fn terminate(&self, instance: &InstanceId) -> CommandResult {
        let shared = &self.region_handle.shared;
        let state = shared.terminate_batcher.terminate_instance(&shared.account, instance).await;
        shared.lister.mark_outdated(&self.cluster.name);
        match state {
            Ok(state) => {
                self.launcher.record_termination(instance, state);
                CommandResult::Terminating(state)
            }
            Err(fault) => failed_result(&fault),
        }
    }

    /// Adopts an instance if its tags name Karpenter, this cluster and the pool of the adoption.
    /// The check is needed because a user who can write Nodes could name any instance.
    async fn adopt(&self, adoption: &Adoption) -> CommandResult {
        let shared = &self.region_handle.shared;
        let ids = [adoption.instance.clone()];
        let known = instances::describe_instances(&shared.account, &ids).await;
        let tags = match known.map(|mut known| known.pop()) {
            Ok(Some(known)) if known.state.is_live() => known.tags,
            Ok(_) => {
                return CommandResult::Failed {
                    kind: FailureKind::Gone,
                    text: format!("{} no longer exists", adoption.instance),
                };
            }
            Err(fault) => return failed_result(&fault),
        };
        // The instance is already adopted, because a response was lost. The permission to adopt
        // covers only instances that are not adopted yet.
        if [TAG_INSTALLATION, TAG_CLUSTER, TAG_CLAIM]
            .into_iter()
            .all(|key| tags.get(key) == adoption.tags.get(key))
        {
            shared.lister.mark_outdated(&self.cluster.name);
            return CommandResult::Done;
        }
        if let Err(why) = check_adoptable(&tags, &adoption.tags) {
            let text = format!("cannot adopt {}: {why}", adoption.instance);
            return CommandResult::Failed { kind: FailureKind::Denied, text };
        }
        let tagged = instances::tag_instances(&shared.account, &ids, &adoption.tags).await;
        shared.lister.mark_outdated(&self.cluster.name);
        match tagged.map_err(|fault| failed_result(&fault)) {
            Ok(()) => CommandResult::Done,
            // A different policy statement covers instances that are not adopted yet.
            Err(CommandResult::Failed { kind, text }) => {
                CommandResult::Failed { kind, text: text.replace(TAGGING, ADOPTION) }
            }
            Err(other) => other,
        }
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, AwsError> {
        let shared = &self.region_handle.shared;
        let (installation, name) = (&self.cluster.installation, &self.cluster.name);
        let lister = &shared.lister;
        lister.list(&shared.account, installation, name).await
    }
}

fn failed_result(fault: &AwsError) -> CommandResult {
    fault.to_failure("ec2").command_result()
}

impl Ec2 {
    /// Sends the resolved node classes to an engine. The engine does not plan with unresolved
    /// classes.
    async fn send_known_classes(&self, cluster: &Cluster, events: &mpsc::Sender<Event>) {
        let view = self.view.borrow().clone();
        let mut supplies = ClassSupplies::new();
        for class in &cluster.node_classes {
            let supply = match view.classes.get(&class.name) {
                Some(ready) if ready.class == *class => ready.supply.clone(),
                _ => NodeClassSupply::unresolved(),
            };
            supplies.insert(class.name.clone(), supply);
        }
        if !supplies.is_empty() {
            drop(events.send(Event::ClassesChanged(Arc::new(supplies))).await);
        }
    }
}

impl Provider for Ec2 {
    fn clock_ahead(&self) -> Option<SignedDuration> {
        self.region_handle.shared.account.skew.clock_ahead()
    }

    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.launch(*launch).await,
                Command::Terminate { instance, .. } => self.terminate(&instance).await,
                Command::Tag { instances, tags } => {
                    let account = &self.region_handle.shared.account;
                    let tagged = instances::tag_instances(account, &instances, &tags).await;
                    tagged.map_or_else(|fault| failed_result(&fault), |()| CommandResult::Done)
                }
                Command::Adopt(adoption) => self.adopt(&adoption).await,
                Command::SaveDiscoveredMemory { instance_type, image, memory } => {
                    self.region_handle.report_memory(instance_type, image, memory).await;
                    CommandResult::Done
                }
                Command::ListInstances => {
                    let listed = self.list_instances().await;
                    listed.map_or_else(|fault| failed_result(&fault), CommandResult::Instances)
                }
                other => unsupported_result(&other),
            }
        }
        .boxed()
    }

    fn register_cluster(
        &self,
        cluster: Arc<Cluster>,
        events: Option<mpsc::Sender<Event>>,
    ) -> BoxFuture<'_, ()> {
        async move {
            self.launcher.set_events(events.clone());
            if let Ok(mut engines) = self.region_handle.shared.engines.lock() {
                // A stopping engine receives no messages.
                match &events {
                    Some(events) => {
                        let engine = (events.clone(), self.connection.fence.of_this_term());
                        engines.insert(cluster.name.clone(), engine);
                    }
                    None => drop(engines.remove(&cluster.name)),
                }
            }
            if let Some(events) = &events {
                self.send_known_classes(&cluster, events).await;
            }
            let early = cluster.binding == Binding::Early;
            self.launcher.early.store(early, Ordering::Relaxed);
            let member = RegionCluster {
                session: self.session,
                cluster,
                connection: self.connection.clone(),
                events,
                view: self.view.clone(),
                last_sent: None,
                missing: Vec::new(),
            };
            self.region_handle.register_cluster(member).await;
        }
        .boxed()
    }

    fn is_healthy(&self) -> bool {
        self.region_handle.is_healthy()
    }

    fn launches_per_call(&self) -> usize {
        LAUNCHES_PER_CALL
    }
}

impl Drop for Ec2 {
    fn drop(&mut self) {
        self.region_handle.remove_cluster(self.cluster.name.clone(), self.session);
    }
}
