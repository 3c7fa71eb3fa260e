//! EC2 as the provider of one cluster: launches, terminates and lists instances.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::catalog::node_class::{ClassSupplies, NodeClassSupply};
use crate::ec2::adoption::check_adoptable;
use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::iam_policy::{ADOPTION, TAGGING};
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::host::clock;
use crate::kubernetes::client::Connection;
use crate::model::claim::{TAG_CLAIM, TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::cluster::{Binding, Cluster};
use crate::model::id::{ClaimId, InstanceId};
use crate::model::instance::Instance;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::join_secrets::JoinSecrets;
use crate::providers::aws::launchable_class::retry_result;
use crate::providers::aws::region::RegionHandle;
use crate::providers::aws::region_task::{ClusterView, RegionCluster};
use crate::providers::aws::{create_fleet, instances};
use crate::providers::interface::{Provider, unsupported_result};

/// How long the provider remembers a launch. The engine does not repeat a launch after this time
/// (`UNSURE_MAX`).
const REPEATS: Duration = Duration::from_mins(30);

/// A requested launch. A repeated launch must use the same request, because EC2 compares it with
/// the client token.
struct RequestedLaunch {
    requested_at: Instant,
    launch: Launch,
    state: LaunchRecord,
    /// True if a response was lost. A later failure does not prove that no instance was created.
    unsure: bool,
}

/// The state of the launch.
#[derive(Clone)]
enum LaunchRecord {
    /// The request may have created an instance. A repeated launch sends the same request.
    Open(Arc<FleetRequest>),
    /// The request has created this instance.
    Made(Box<Instance>),
}

/// Source of numbers that distinguish successive providers of one cluster.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// The EC2 provider of one cluster.
pub(crate) struct Ec2 {
    session: u64,
    cluster: Arc<Cluster>,
    /// True if pods are bound early, which requires node names at launch.
    early: AtomicBool,
    connection: Connection,
    region_handle: RegionHandle,
    view: watch::Sender<Arc<ClusterView>>,
    secrets: JoinSecrets,
    events: Mutex<Option<mpsc::Sender<Event>>>,
    launches: Mutex<BTreeMap<ClaimId, RequestedLaunch>>,
}

impl Ec2 {
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        connection: Connection,
        region_handle: RegionHandle,
    ) -> Self {
        Self {
            session: SESSIONS.fetch_add(1, Ordering::Relaxed),
            early: AtomicBool::new(cluster.binding == Binding::Early),
            cluster,
            connection,
            region_handle,
            view: watch::Sender::default(),
            secrets: JoinSecrets::default(),
            events: Mutex::default(),
            launches: Mutex::default(),
        }
    }

    async fn launch(&self, launch: Launch) -> CommandResult {
        let request = match self.launch_record(&launch).await {
            Err(answer) => return *answer,
            Ok(Some(LaunchRecord::Made(instance))) => {
                return self.completed_launch(*instance).await;
            }
            Ok(Some(LaunchRecord::Open(request))) => request,
            Ok(None) => match self.build_request(&launch).await {
                Ok(request) => request,
                Err(answer) => return *answer,
            },
        };
        let claim = launch.claim.id.clone();
        let answer = self.request_instance(&launch, &request).await;
        let mut launches = self.launches.lock().await;
        match &answer {
            CommandResult::Launched(instance) => {
                if let Some(requested) = launches.get_mut(&claim) {
                    // Drop the large request, which is no longer needed.
                    requested.state = LaunchRecord::Made(Box::new(instance.clone()));
                }
            }
            CommandResult::Failed { kind, .. } => {
                let requested = launches.get_mut(&claim);
                let unsure = requested.is_some_and(|requested| {
                    requested.unsure |= *kind == FailureKind::Unknown;
                    requested.unsure
                });
                if !unsure && *kind != FailureKind::Throttled {
                    launches.remove(&claim);
                }
            }
            _ => drop(launches.remove(&claim)),
        }
        answer
    }

    /// Calls EC2 and distributes the outcome.
    async fn request_instance(&self, launch: &Launch, request: &FleetRequest) -> CommandResult {
        let shared = &self.region_handle.shared;
        let outcome =
            create_fleet::launch_instance(&shared.account, &shared.templates, request).await;
        shared.lister.mark_outdated(&self.cluster.name).await;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(fault) => return failed_result(&fault),
        };
        let launched = outcome.launched.as_ref();
        let used_subnet = launched.and_then(|(_, subnet)| subnet.as_deref());
        if let Ok(mut subnets) = shared.subnets.lock() {
            subnets.release_addresses(&request.taken, used_subnet);
            for subnet in &outcome.errors.exhausted {
                subnets.mark_exhausted(subnet, clock::now());
            }
        }
        if outcome.launched.is_some() && !outcome.errors.refusals.is_empty() {
            // Report the refused offerings even if an instance was launched.
            let class = launch.claim.node_class.clone();
            let event = Event::Refused(class, outcome.errors.refusals.clone());
            if let Some(events) = &*self.events.lock().await {
                drop(events.send(event).await);
            }
        }
        for why in &outcome.errors.notes {
            tracing::warn!(cluster = %self.cluster.name, claim = %launch.claim.id, why, "launch");
        }
        match outcome.launched {
            Some((mut instance, _)) => {
                if self.early.load(Ordering::Relaxed) {
                    let (cluster, lister) = (&*self.cluster, &shared.lister);
                    let (installation, name) = (&cluster.installation, &cluster.name);
                    let node = lister.node_of(&shared.account, installation, name, &instance.id);
                    instance.node = node.await;
                }
                CommandResult::Launched(instance)
            }
            None => outcome.errors.command_result(),
        }
    }

    /// Returns the state of a launch, or a result if its token was used for a different launch.
    async fn launch_record(
        &self,
        launch: &Launch,
    ) -> Result<Option<LaunchRecord>, Box<CommandResult>> {
        let mut launches = self.launches.lock().await;
        let now = clock::monotonic_now();
        launches.retain(|_, requested| now.duration_since(requested.requested_at) < REPEATS);
        match launches.get(&launch.claim.id) {
            Some(requested) if requested.launch != *launch => {
                Err(Box::new(invalid_result("the client token was used for a different launch")))
            }
            requested => Ok(requested.map(|requested| requested.state.clone())),
        }
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
    async fn build_request(
        &self,
        launch: &Launch,
    ) -> Result<Arc<FleetRequest>, Box<CommandResult>> {
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
        let request = {
            let mut subnets = self.region_handle.shared.subnets.lock();
            let subnets = subnets.as_mut().map_err(|_| Box::new(retry_result("a panic")))?;
            Arc::new(ready.fleet_request(launch, &self.cluster, home, secret, subnets)?)
        };
        let requested = RequestedLaunch {
            requested_at: clock::monotonic_now(),
            launch: launch.clone(),
            state: LaunchRecord::Open(request.clone()),
            unsure: false,
        };
        let mut launches = self.launches.lock().await;
        launches.insert(launch.claim.id.clone(), requested);
        Ok(request)
    }

    async fn terminate(&self, instance: &InstanceId) -> CommandResult {
        let shared = &self.region_handle.shared;
        let state = shared.terminate_batcher.terminate_instance(&shared.account, instance).await;
        shared.lister.mark_outdated(&self.cluster.name).await;
        match state {
            Ok(state) => {
                for requested in self.launches.lock().await.values_mut() {
                    if let LaunchRecord::Made(launched) = &mut requested.state
                        && launched.id == *instance
                    {
                        launched.state = state;
                    }
                }
                CommandResult::Terminating(state)
            }
            Err(fault) => failed_result(&fault),
        }
    }

    /// Adopts an instance if its tags name Karpenter, this cluster and the pool of the adoption.
    /// The check is needed because a user who can write Nodes could name any instance.
    async fn adopt(&self, adoption: &Adoption) -> CommandResult {
        let shared = &self.region_handle.shared;
        let known = instances::describe_instance(&shared.account, &adoption.instance).await;
        let tags = match known {
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
            shared.lister.mark_outdated(&self.cluster.name).await;
            return CommandResult::Done;
        }
        if let Err(why) = check_adoptable(&tags, &adoption.tags) {
            let text = format!("cannot adopt {}: {why}", adoption.instance);
            return CommandResult::Failed { kind: FailureKind::Denied, text };
        }
        let ids = [adoption.instance.clone()];
        let tagged = instances::tag_instances(&shared.account, &ids, &adoption.tags).await;
        shared.lister.mark_outdated(&self.cluster.name).await;
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

fn invalid_result(why: &str) -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Invalid, text: why.to_owned() }
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
            self.events.lock().await.clone_from(&events);
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
            self.early.store(early, Ordering::Relaxed);
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
}

impl Drop for Ec2 {
    fn drop(&mut self) {
        self.region_handle.remove_cluster(self.cluster.name.clone(), self.session);
    }
}
