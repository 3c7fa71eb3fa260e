//! Launches the instances of one cluster: gathers equal launches into one CreateFleet call, and
//! looks up the instances of a call whose response was lost.
//!
//! ```text
//! launch ─► request ─► batch of equal requests ─ rate limit ─► CreateFleet
//!                                       ┌─ response ───────────────┤
//!                                       ▼                          ▼ no response
//!         instance, refusals or failure per claim ◄─ 60 s ─ lookups by tag
//! ```
//!
//! The engine knows nothing of batches: each launch has its own result. An instance of a batch has
//! the tag of the batch, from which the id of its claim follows. See
//! docs/decisions/041-launches-in-batches.md.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::errors::FleetOutcome;
use crate::engine::event::Event;
use crate::host::clock;
use crate::model::claim::{self, TAG_BATCH, TAG_CLAIM};
use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, InstanceId, NodeClassName};
use crate::model::instance::{Instance, InstanceState};
use crate::outbound::fence::{self, Fence, NotLeader};
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::aws::create_fleet::{self, FleetLaunch};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances::{self, LISTED_WITHIN};
use crate::providers::aws::region_task::RegionState;

/// How long the provider remembers a launch. The engine does not repeat a launch after this time
/// (`UNSURE_MAX`).
const REPEATS: Duration = Duration::from_mins(30);
/// How long a batch waits for further launches. The engine sends the launches of a plan together.
const GATHER: Duration = Duration::from_millis(50);
/// Maximum time that a batch waits for the rate limit. Otherwise the engine sends its launches
/// again later. Meanwhile the batch accepts further launches.
const LAUNCH_WAIT: Duration = Duration::from_secs(15);
/// Maximum number of instances per call. EC2 throttles calls for several hundred instances as a
/// whole.
const BATCH_MAX: usize = 100;
/// Maximum time until a launch has a result, below the 90 s after which the engine loop cancels it.
const ANSWER: Duration = Duration::from_secs(80);
/// Interval of lookups after a lost response.
const LOOKUP: Duration = Duration::from_secs(5);
/// Maximum time during which lookups are tried, if they fail.
const LOOKUPS_MAX: Duration = Duration::from_mins(15);

/// A launch that was requested.
struct RequestedLaunch {
    requested_at: Instant,
    launch: Launch,
    state: LaunchRecord,
}

/// The state of a launch.
#[derive(Clone)]
pub(crate) enum LaunchRecord {
    /// The launch is part of a batch.
    Batched(RequestedBatch),
    /// The launch has created this instance.
    Made(Box<Instance>),
    /// The launch has created no instance, although its response was lost.
    Refused,
}

/// The batch of a launch.
#[derive(Clone)]
pub(crate) struct RequestedBatch(watch::Receiver<BatchPhase>);

/// The phase of a batch.
#[derive(Clone, Debug)]
enum BatchPhase {
    /// The batch gathers launches, or its call has no response yet.
    Pending,
    /// The response was lost, with this error. Instances are looked up.
    Lost(String),
    /// Each launch has a result.
    Done(Arc<BTreeMap<ClaimId, CommandResult>>),
}

/// A batch that accepts launches.
struct GatheringBatch {
    number: u64,
    fences: Arc<[Fence]>,
    members: Vec<Member>,
    phase: watch::Receiver<BatchPhase>,
}

/// A launch of a batch.
struct Member {
    claim: ClaimId,
    node_class: Option<NodeClassName>,
    request: FleetRequest,
}

#[derive(Default)]
struct Launches {
    by_claim: BTreeMap<ClaimId, RequestedLaunch>,
    gathering: Vec<GatheringBatch>,
    /// The number of the last batch.
    last: u64,
}

impl Launches {
    fn set_state(&mut self, claim: &ClaimId, state: LaunchRecord) {
        if let Some(requested) = self.by_claim.get_mut(claim) {
            requested.state = state;
        }
    }
}

/// Launches the instances of one cluster.
pub(crate) struct Launcher {
    cluster: Arc<Cluster>,
    shared: Arc<RegionState>,
    /// True if pods are bound early, which requires node names at launch.
    pub(crate) early: AtomicBool,
    /// The engine, which receives refusals of offerings.
    events: Mutex<Option<mpsc::Sender<Event>>>,
    launches: Mutex<Launches>,
}

impl Launcher {
    pub(crate) fn new(cluster: Arc<Cluster>, shared: Arc<RegionState>, early: bool) -> Self {
        Self {
            cluster,
            shared,
            early: AtomicBool::new(early),
            events: Mutex::default(),
            launches: Mutex::default(),
        }
    }

    pub(crate) fn set_events(&self, events: Option<mpsc::Sender<Event>>) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = events;
    }

    fn launches(&self) -> MutexGuard<'_, Launches> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of a launch that was requested before. Fails if its claim was used for a
    /// different launch.
    pub(crate) fn known_launch(
        &self,
        launch: &Launch,
    ) -> Result<Option<LaunchRecord>, Box<CommandResult>> {
        let mut launches = self.launches();
        let now = clock::monotonic_now();
        launches.by_claim.retain(|_, it| now.duration_since(it.requested_at) < REPEATS);
        match launches.by_claim.get(&launch.claim.id) {
            Some(requested) if requested.launch != *launch => {
                let why = "the client token was used for a different launch";
                Err(Box::new(invalid_result(why)))
            }
            requested => Ok(requested.map(|requested| requested.state.clone())),
        }
    }

    /// Adds a launch to a batch of equal requests, or begins one. The batch is sent with the fences
    /// of this task, so that only launches of the same term share a call.
    pub(crate) fn join_batch(
        self: &Arc<Self>,
        launch: Launch,
        request: FleetRequest,
    ) -> Result<RequestedBatch, Box<CommandResult>> {
        let Some(fences) = fence::task_fences() else {
            self.release_addresses(&request, None);
            let unasked = AwsError::not_sent("CreateFleet", NotLeader::Unasked);
            return Err(Box::new(unasked.to_failure("ec2").command_result()));
        };
        let mut launches = self.launches();
        let claim = launch.claim.id.clone();
        if let Some(RequestedLaunch { state: LaunchRecord::Batched(batch), .. }) =
            launches.by_claim.get(&claim)
        {
            // A concurrent command of the same claim was faster.
            self.release_addresses(&request, None);
            return Ok(batch.clone());
        }
        let node_class = launch.claim.node_class.clone();
        let member = Member { claim: claim.clone(), node_class, request };
        let open = launches.gathering.iter_mut().find(|batch| {
            let is_same_term = batch.fences.len() == fences.len()
                && batch.fences.iter().zip(&*fences).all(|(one, other)| one.is_of_same_term(other));
            let first = batch.members.first();
            is_same_term
                && batch.members.len() < BATCH_MAX
                && first.is_some_and(|first| first.request.is_equal_for_batch(&member.request))
        });
        let phase = match open {
            Some(batch) => {
                batch.members.push(member);
                batch.phase.clone()
            }
            None => {
                let (sender, phase) = watch::channel(BatchPhase::Pending);
                launches.last += 1;
                let number = launches.last;
                launches.gathering.push(GatheringBatch {
                    number,
                    fences,
                    members: vec![member],
                    phase: phase.clone(),
                });
                tokio::spawn(self.clone().run_batch(number, sender));
                phase
            }
        };
        let (requested_at, batch) = (clock::monotonic_now(), RequestedBatch(phase));
        let state = LaunchRecord::Batched(batch.clone());
        launches.by_claim.insert(claim, RequestedLaunch { requested_at, launch, state });
        Ok(batch)
    }

    /// Waits for the result of a launch. The first command returns that the response was lost. A
    /// repeated command waits until the instances were looked up.
    pub(crate) async fn wait_for_result(
        &self,
        claim: &ClaimId,
        RequestedBatch(mut phase): RequestedBatch,
        is_repeat: bool,
    ) -> CommandResult {
        let waited = phase.wait_for(|phase| match phase {
            BatchPhase::Pending => false,
            BatchPhase::Lost(_) => !is_repeat,
            BatchPhase::Done(_) => true,
        });
        let text = match timeout(ANSWER, waited).await {
            Ok(Ok(phase)) => match &*phase {
                BatchPhase::Done(results) => match results.get(claim) {
                    Some(result) => return result.clone(),
                    None => "the batch has no result for the claim".to_owned(),
                },
                BatchPhase::Lost(why) => why.clone(),
                BatchPhase::Pending => "no response yet".to_owned(),
            },
            Ok(Err(_)) => "the launch was interrupted".to_owned(),
            Err(_) => format!("no response within {ANSWER:?}"),
        };
        CommandResult::Failed { kind: FailureKind::Unknown, text }
    }

    /// Records that an instance was terminated: its claim never gets a second one.
    pub(crate) fn record_termination(&self, instance: &InstanceId, state: InstanceState) {
        for requested in self.launches().by_claim.values_mut() {
            if let LaunchRecord::Made(launched) = &mut requested.state
                && launched.id == *instance
            {
                launched.state = state;
            }
        }
    }

    /// Gathers a batch, sends its call, and distributes the outcome.
    async fn run_batch(self: Arc<Self>, number: u64, phase: watch::Sender<BatchPhase>) {
        sleep(GATHER).await;
        let limiter = &self.shared.account.buckets.fleet;
        let turn = limiter.wait_at_most(LAUNCH_WAIT).await;
        // From here on the batch accepts no launches.
        let Some(batch) = self.close_batch(number) else {
            return;
        };
        if let Err(busy) = turn {
            return self.fail(&batch, &phase, FailureKind::Busy, &busy.to_string());
        }
        if !fence::are_open(&batch.fences) {
            return self.fail(&batch, &phase, FailureKind::Busy, "not sent: too late");
        }
        let Some(request) = batch_request(&batch.members) else {
            return;
        };
        match self.call(&batch, &request).await {
            Ok(launch) => self.settle(&batch, launch, false, &phase).await,
            Err(fault) if fault.is_unsent => {
                self.fail(&batch, &phase, FailureKind::Busy, &fault.to_string());
            }
            Err(fault) => match fault.to_failure("ec2").command_result() {
                CommandResult::Failed { kind: FailureKind::Unknown, text } => {
                    tracing::warn!(
                        cluster = %self.cluster.name, batch = request.token,
                        claims = batch.members.len(), why = text, "lost response of a launch"
                    );
                    phase.send_replace(BatchPhase::Lost(text));
                    match self.look_up(&batch, &request).await {
                        Some(launch) => self.settle(&batch, launch, true, &phase).await,
                        // The claims stay in doubt, so that no second instance is launched.
                        None => batch
                            .members
                            .iter()
                            .for_each(|member| self.release_addresses(&member.request, None)),
                    }
                }
                CommandResult::Failed { kind, text } => self.fail(&batch, &phase, kind, &text),
                _ => {}
            },
        }
    }

    fn close_batch(&self, number: u64) -> Option<GatheringBatch> {
        let gathering = &mut self.launches().gathering;
        let index = gathering.iter().position(|batch| batch.number == number)?;
        Some(gathering.swap_remove(index))
    }

    /// Sends the call of a batch, while this host leads the cluster.
    async fn call(
        &self,
        batch: &GatheringBatch,
        request: &FleetRequest,
    ) -> Result<FleetLaunch, AwsError> {
        let (account, templates) = (&self.shared.account, &self.shared.templates);
        let sent = clock::monotonic_now();
        let call = create_fleet::launch_instances(account, templates, request);
        let outcome = fence::run_fenced(batch.fences.clone(), call).await;
        self.shared.lister.mark_outdated(&self.cluster.name);
        // The call may have been sent before a fence was closed.
        let launch = outcome.unwrap_or_else(|fenced| {
            Err(AwsError::without_response("CreateFleet", &fenced.to_string()))
        })?;
        if launch.errors.throttled {
            let region = &account.key.region;
            account.buckets.record_response(region, "CreateFleet", true, sent);
        }
        Ok(launch)
    }

    /// Finds the instances of a call without response by their tag. Once, and only if none is
    /// found, the same call is repeated. `None` if lookups fail for too long.
    async fn look_up(&self, batch: &GatheringBatch, request: &FleetRequest) -> Option<FleetLaunch> {
        let began = clock::monotonic_now();
        // EC2 may carry out a call until its timeout.
        let mut ended = began;
        let mut found: BTreeMap<InstanceId, (Instance, Option<String>)> = BTreeMap::new();
        let mut errors = FleetOutcome::default();
        let mut is_repeated = false;
        let tag = if request.count > 1 { TAG_BATCH } else { TAG_CLAIM };
        let value = request.tags.get(tag)?;
        while began.elapsed() < LOOKUPS_MAX {
            sleep(LOOKUP).await;
            // By then EC2 lists every instance that the call has launched.
            let is_final = ended.elapsed() >= LISTED_WITHIN;
            let account = &self.shared.account;
            let Ok(listed) = instances::instances_with_tag(account, tag, value).await else {
                continue;
            };
            found.extend(listed.into_iter().filter(|it| self.is_own(it)).map(|instance| {
                let subnet = instance.facts.as_ref().and_then(|facts| facts.subnet.clone());
                (instance.id.clone(), (instance, subnet))
            }));
            let is_complete = found.len() >= request.count as usize;
            if is_complete || is_final {
                return Some(FleetLaunch { launched: found.into_values().collect(), errors });
            }
            if found.is_empty() && !is_repeated && fence::are_open(&batch.fences) {
                is_repeated = true;
                if let Ok(launch) = self.call(batch, request).await {
                    errors = launch.errors;
                    found.extend(launch.launched.into_iter().map(|it| (it.0.id.clone(), it)));
                }
                ended = clock::monotonic_now();
            }
        }
        None
    }

    /// Returns whether an instance is of this cluster, by its tags.
    fn is_own(&self, instance: &Instance) -> bool {
        let Cluster { installation, name, .. } = &*self.cluster;
        claim::is_owned_by(&instance.tags, installation, name)
    }

    /// Gives the instances of a call to its launches, in order. The others were refused or have
    /// failed. After lookups it is certain that the call has launched no instance for them, so that
    /// the engine need not repeat their launches.
    async fn settle(
        &self,
        batch: &GatheringBatch,
        launch: FleetLaunch,
        was_lost: bool,
        phase: &watch::Sender<BatchPhase>,
    ) {
        let FleetLaunch { mut launched, errors } = launch;
        launched.truncate(batch.members.len());
        self.record_errors(batch, &errors, !launched.is_empty()).await;
        if self.early.load(Ordering::Relaxed) && !launched.is_empty() {
            let ids = launched.iter().map(|(instance, _)| instance.id.clone()).collect();
            let mut nodes = instances::expected_nodes(&self.shared.account, ids).await;
            for (instance, _) in &mut launched {
                instance.node = nodes.remove(&instance.id).or(instance.node.take());
            }
        }
        let mut instances = launched.into_iter();
        let mut results = BTreeMap::new();
        for member in &batch.members {
            let instance = instances.next();
            let subnet = instance.as_ref().and_then(|(_, subnet)| subnet.as_deref());
            self.release_addresses(&member.request, subnet);
            let result = match instance {
                Some((instance, _)) => CommandResult::Launched(instance),
                None if was_lost => CommandResult::LaunchRefused(errors.refusals.clone()),
                None => errors.command_result(),
            };
            results.insert(member.claim.clone(), result);
        }
        self.finish(results, was_lost, phase);
    }

    /// Sends refusals to the engine, even if instances were launched, and logs other errors.
    async fn record_errors(&self, batch: &GatheringBatch, errors: &FleetOutcome, launched: bool) {
        if let Ok(mut subnets) = self.shared.subnets.lock() {
            for subnet in &errors.exhausted {
                subnets.mark_exhausted(subnet, clock::now());
            }
        }
        if launched && !errors.refusals.is_empty() {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(events) = events {
                // All launches of a batch have the same node class.
                let class = batch.members.first().and_then(|first| first.node_class.clone());
                drop(events.send(Event::Refused(class, errors.refusals.clone())).await);
            }
        }
        for why in &errors.notes {
            let claims = batch.members.len();
            tracing::warn!(cluster = %self.cluster.name, claims, why, "launch");
        }
    }

    /// Gives all launches of a batch the same failure.
    fn fail(
        &self,
        batch: &GatheringBatch,
        phase: &watch::Sender<BatchPhase>,
        kind: FailureKind,
        text: &str,
    ) {
        if kind == FailureKind::Throttled {
            let claims = batch.members.len();
            tracing::info!(cluster = %self.cluster.name, claims, why = text, "throttled launch");
        }
        let mut results = BTreeMap::new();
        for member in &batch.members {
            self.release_addresses(&member.request, None);
            let result = CommandResult::Failed { kind, text: text.to_owned() };
            results.insert(member.claim.clone(), result);
        }
        self.finish(results, false, phase);
    }

    /// Publishes the results. A launch without an instance is forgotten: a further launch of the
    /// same claim is a new one. After a lost response the engine must not launch the same claim
    /// again, because an instance that EC2 lists very late would be a second one of the claim.
    fn finish(
        &self,
        results: BTreeMap<ClaimId, CommandResult>,
        was_lost: bool,
        phase: &watch::Sender<BatchPhase>,
    ) {
        let mut launches = self.launches();
        for (claim, result) in &results {
            match result {
                CommandResult::Launched(instance) => {
                    let made = LaunchRecord::Made(Box::new(instance.clone()));
                    launches.set_state(claim, made);
                }
                _ if was_lost => launches.set_state(claim, LaunchRecord::Refused),
                _ => drop(launches.by_claim.remove(claim)),
            }
        }
        phase.send_replace(BatchPhase::Done(Arc::new(results)));
    }

    fn release_addresses(&self, request: &FleetRequest, used: Option<&str>) {
        if let Ok(mut subnets) = self.shared.subnets.lock() {
            subnets.release_addresses(&request.taken, used);
        }
    }
}

/// Returns the request of a batch. The instance of a single launch has the tag of its claim. Each
/// call has its own token: EC2 would answer a used one with the old outcome.
fn batch_request(members: &[Member]) -> Option<FleetRequest> {
    let first = &members.first()?.request;
    let token = format!("{:016x}", clock::random_seed());
    Some(match u32::try_from(members.len()).ok()? {
        1 => FleetRequest { token, ..first.clone() },
        count => first.for_batch(&token, count),
    })
}

pub(crate) fn invalid_result(why: &str) -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Invalid, text: why.to_owned() }
}
