//! Simulated EC2: capacity, allocation, client tokens, delays, delayed listings, spot interruption
//! notices.
//!
//! The simulation uses this cloud. `outrigger run` uses it as a simulated cloud with a real API
//! server.

// Instances and their visibility in listings.
pub mod instance;
// Capacity pools of offerings.
pub mod capacity;

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::catalog::Catalog;
use crate::model::claim::{TAG_BATCH, TAG_CLAIM, TAG_CLUSTER, TAG_FLEET, TAG_INSTALLATION};
use crate::model::id::{ClaimId, ClusterName, InstanceId, ReservationId};
use crate::model::instance::{
    CapacityType, ExpectedNode, Instance, InstanceState, OfferingKey, Price,
};
use crate::model::labels::Labels;
use crate::model::taint::Taint;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch, OfferingRefusal, RefusalKind};
use crate::sim::cloud::capacity::CapacityPools;
use crate::sim::cloud::instance::SimInstance;
use crate::sim::event_queue::{Timers, time_after};
use crate::sim::rng::{duration_up_to, random_stream};

/// Time between the interruption notice and the end of a spot instance. Source: EC2 user guide,
/// spot interruptions.
pub const SPOT_NOTICE: SignedDuration = SignedDuration::from_mins(2);

/// Time during which a terminated instance is listed: about an hour in EC2.
pub const TERMINATED_VISIBLE: SignedDuration = SignedDuration::from_hours(1);

/// Settings of the simulated EC2. The default settings have no delays and no limits.
#[derive(Clone, Debug, Default)]
pub struct CloudSettings {
    /// Seed of IDs and delays.
    pub seed: u64,
    /// Time from launch until the instance's kubelet registers.
    pub boot: SignedDuration,
    /// Time until a new instance is running.
    pub launch_delay: SignedDuration,
    /// Time between the request and the termination of an instance.
    pub terminate_delay: SignedDuration,
    /// Maximum delay until a listing shows a new instance or a state change.
    pub listing_lag: SignedDuration,
    /// Number of instances that can still be launched, by offering. A missing offering has no
    /// limit.
    pub capacity: BTreeMap<OfferingKey, u32>,
    /// Whether nodes have the names of their instances, so that the names are known in advance.
    pub names_nodes: bool,
    /// Whether instances have the tag of a batch, as if each was launched together with those of
    /// the same minute.
    pub batches: bool,
}

/// Events that EC2 causes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloudEvent {
    /// The kubelet of an instance is running and registers its node.
    Booted {
        /// The instance.
        instance: Instance,
        /// Labels from the launch.
        labels: Labels,
        /// Taints from the launch.
        taints: Vec<Taint>,
    },
    /// A spot instance will be interrupted.
    Interrupted {
        /// The instance.
        instance: InstanceId,
        /// Time of the interruption.
        at: Timestamp,
    },
    /// An instance is terminated, with everything on it.
    Ended {
        /// The instance.
        instance: InstanceId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloudTimer {
    Run,
    Boot,
    Tell,
    Reclaim,
    End,
}

/// Instances of an account in one region.
#[derive(Clone, Debug)]
pub struct Cloud {
    catalog: Arc<Catalog>,
    settings: CloudSettings,
    stock: CapacityPools,
    machines: BTreeMap<InstanceId, SimInstance>,
    tokens: BTreeMap<ClaimId, (InstanceId, Launch)>,
    timers: Timers<(InstanceId, CloudTimer)>,
    ids: Rng,
    lags: Rng,
}

impl Cloud {
    /// Creates an empty account.
    pub fn new(catalog: Arc<Catalog>, settings: CloudSettings) -> Self {
        Self {
            catalog,
            stock: CapacityPools::new(settings.capacity.clone()),
            machines: BTreeMap::new(),
            tokens: BTreeMap::new(),
            timers: Timers::default(),
            ids: random_stream(settings.seed, "cloud/ids"),
            lags: random_stream(settings.seed, "cloud/lags"),
            settings,
        }
    }

    /// Launches one instance. The client token is the claim's ID. A repeated launch returns the
    /// same instance, or an error if this instance has ended.
    ///
    /// A call uses only the capacity type of the cheapest offering, as CreateFleet does. On-demand
    /// selects the lowest price, spot the best combination of price and depth.
    pub fn launch(&mut self, launch: &Launch, now: Timestamp) -> CommandResult {
        if let Some((id, known_launch)) = self.tokens.get(&launch.claim.id)
            && let Some(machine) = self.machines.get(id)
        {
            if known_launch != launch {
                return failed_result(FailureKind::Invalid, "IdempotentParameterMismatch");
            }
            return repeated_launch(machine);
        }
        let Some(first) = launch.offerings.first() else {
            return failed_result(FailureKind::Invalid, "the launch contains no offering");
        };
        let mut refused = Vec::new();
        let mut available: Vec<(OfferingKey, Price)> = Vec::new();
        for key in launch.requested_offerings() {
            let kind = match self.price_of(key) {
                None => RefusalKind::Unsupported,
                Some(_) if self.reserved_left(key, now) == Some(0) => {
                    RefusalKind::ReservationExceeded
                }
                Some(_) if self.stock.left_of(key) == Some(0) => RefusalKind::InsufficientCapacity,
                Some(price) => {
                    available.push((key.clone(), price));
                    continue;
                }
            };
            refused.push(OfferingRefusal { offering: key.clone(), kind });
        }
        let chosen = match first.capacity_type {
            CapacityType::Spot => self.stock.price_capacity_optimized(&available),
            CapacityType::OnDemand | CapacityType::Reserved => capacity::lowest_price(&available),
        };
        let Some(offering) = chosen else {
            return CommandResult::LaunchRefused(refused);
        };
        CommandResult::Launched(self.start_instance(launch, offering, now))
    }

    fn price_of(&self, key: &OfferingKey) -> Option<Price> {
        self.catalog
            .offering(key)
            .filter(|offering| offering.available)
            .map(|offering| offering.price)
    }

    /// Remaining instances in the reservation of an offering. `None` if it has no reservation.
    fn reserved_left(&self, key: &OfferingKey, now: Timestamp) -> Option<usize> {
        let id = key.reservation.as_deref()?;
        let reservation = self.catalog.reservations().get(id);
        let left = reservation.map_or(0, |reservation| match reservation.is_open(now) {
            true => usize::try_from(reservation.left).unwrap_or(usize::MAX),
            false => 0,
        });
        Some(left.saturating_sub(self.instances_in_reservation(id)))
    }

    /// Number of instances in a reservation. An instance is included until it is terminated.
    pub fn instances_in_reservation(&self, id: &ReservationId) -> usize {
        let machines = self.machines.values().map(SimInstance::truth);
        machines
            .filter(|machine| {
                machine.state != InstanceState::Terminated
                    && machine.offering.reservation.as_deref() == Some(id)
            })
            .count()
    }

    fn start_instance(
        &mut self,
        launch: &Launch,
        offering: OfferingKey,
        now: Timestamp,
    ) -> Instance {
        self.stock.record_launch(&offering);
        let id = self.new_id();
        let node = ExpectedNode::of_ec2(id.as_str(), &offering.zone, &id);
        let mut tags = launch.tags.clone();
        tags.insert(TAG_FLEET.to_owned(), format!("fleet-{id}"));
        if self.settings.batches {
            let minute = now.as_second() / 60;
            tags.remove(TAG_CLAIM);
            tags.insert(TAG_BATCH.to_owned(), format!("batch-{minute}"));
        }
        let instance = Instance {
            id,
            offering,
            state: InstanceState::Pending,
            launched: now,
            tags: tags.into(),
            node: self.settings.names_nodes.then(|| Box::new(node)),
            facts: None,
        };
        let id = instance.id.clone();
        let seen = time_after(now, self.draw_lag());
        let machine =
            SimInstance::new(instance.clone(), launch.labels.clone(), launch.taints.clone(), seen);
        self.machines.insert(id.clone(), machine);
        let token = (id.clone(), launch.clone());
        self.tokens.insert(launch.claim.id.clone(), token);
        self.timers.add_after(now, self.settings.launch_delay, (id.clone(), CloudTimer::Run));
        let boot = self.settings.boot.max(self.settings.launch_delay);
        self.timers.add_after(now, boot, (id, CloudTimer::Boot));
        instance
    }

    fn new_id(&mut self) -> InstanceId {
        loop {
            let id = InstanceId(format!("i-{:016x}", self.ids.u64(..)));
            if !self.machines.contains_key(&id) {
                return id;
            }
        }
    }

    fn draw_lag(&mut self) -> SignedDuration {
        duration_up_to(&mut self.lags, self.settings.listing_lag)
    }

    /// Terminates an instance. Repeated calls have no effect.
    pub fn terminate(&mut self, instance: &InstanceId, now: Timestamp) -> CommandResult {
        let Some(machine) = self.machines.get(instance) else {
            return failed_result(FailureKind::Gone, "InvalidInstanceID.NotFound");
        };
        if machine.is_live() {
            self.shut_down(instance, now);
        }
        let state = self.machines.get(instance).map(|machine| machine.truth().state);
        CommandResult::Terminating(state.unwrap_or(InstanceState::Terminated))
    }

    fn shut_down(&mut self, instance: &InstanceId, now: Timestamp) {
        self.change_state(instance, InstanceState::ShuttingDown, now);
        self.timers.add_after(
            now,
            self.settings.terminate_delay,
            (instance.clone(), CloudTimer::End),
        );
    }

    fn change_state(&mut self, instance: &InstanceId, state: InstanceState, now: Timestamp) {
        let seen = time_after(now, self.draw_lag());
        if let Some(machine) = self.machines.get_mut(instance) {
            machine.change_state(state, now, seen);
        }
    }

    /// Lists the instances of an installation and cluster. As in EC2, the result can be outdated.
    pub fn list_instances(
        &mut self,
        installation: &str,
        cluster: &ClusterName,
        now: Timestamp,
    ) -> Vec<Instance> {
        self.machines
            .values()
            .filter(|machine| {
                let tags = &machine.truth().tags;
                [(TAG_INSTALLATION, installation), (TAG_CLUSTER, cluster.as_str())]
                    .iter()
                    .all(|(tag, value)| tags.get(*tag).is_some_and(|tagged| tagged == value))
            })
            .filter_map(|machine| machine.listed_at(now))
            .collect()
    }

    /// Adds tags to instances.
    pub fn tag(&mut self, instances: &[InstanceId], tags: &Labels) {
        for id in instances {
            if let Some(machine) = self.machines.get_mut(id) {
                machine.add_tags(tags);
            }
        }
    }

    /// Adds these tags to an instance launched by a different program. An instance that was not
    /// launched here is assumed to exist, because its Node exists.
    pub fn adopt_instance(&mut self, adoption: &Adoption, now: Timestamp) -> CommandResult {
        let tags = &adoption.tags;
        let Some(machine) = self.machines.get_mut(&adoption.instance) else {
            let machine =
                SimInstance::new(adoption.adopted_instance(), Labels::new(), Vec::new(), now);
            self.machines.insert(adoption.instance.clone(), machine);
            return CommandResult::Done;
        };
        let truth = machine.truth();
        let owner = truth.tags.get(TAG_INSTALLATION);
        if owner.is_some() && owner != tags.get(TAG_INSTALLATION) {
            return failed_result(FailureKind::Denied, "the instance is another's");
        }
        if !truth.state.is_live() {
            return failed_result(FailureKind::Gone, "the instance has ended");
        }
        machine.add_tags(tags);
        CommandResult::Done
    }

    /// The actual state of every instance ever launched.
    pub fn all_instances(&self) -> impl Iterator<Item = &SimInstance> {
        self.machines.values()
    }

    /// The actual state of one instance.
    pub fn get(&self, instance: &str) -> Option<&SimInstance> {
        self.machines.get(instance)
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.timers.next_at()
    }

    /// Executes all events due at `now`, in order.
    pub fn run_due(&mut self, now: Timestamp) -> Vec<CloudEvent> {
        let mut events = Vec::new();
        while let Some((at, (id, todo))) = self.timers.pop_due(now) {
            events.extend(self.handle_timer(id, todo, at));
        }
        events
    }

    fn handle_timer(
        &mut self,
        id: InstanceId,
        todo: CloudTimer,
        at: Timestamp,
    ) -> Option<CloudEvent> {
        let machine = self.machines.get(&id)?;
        let state = machine.truth().state;
        match todo {
            CloudTimer::Run if state == InstanceState::Pending => {
                self.change_state(&id, InstanceState::Running, at);
                None
            }
            CloudTimer::Boot if state.is_live() => Some(CloudEvent::Booted {
                instance: machine.truth().clone(),
                labels: machine.labels.clone(),
                taints: machine.taints.clone(),
            }),
            CloudTimer::Tell if state.is_live() => {
                Some(CloudEvent::Interrupted { instance: id, at: machine.reclaimed? })
            }
            CloudTimer::Reclaim if state.is_live() => {
                self.shut_down(&id, at);
                None
            }
            CloudTimer::End if state != InstanceState::Terminated => {
                self.stock.record_end(&machine.truth().offering);
                self.change_state(&id, InstanceState::Terminated, at);
                Some(CloudEvent::Ended { instance: id })
            }
            _ => None,
        }
    }

    /// Interrupts a spot instance: the notice is sent at `now`, and the instance ends two minutes
    /// later. Returns false if it is not a live spot instance, or already has a notice.
    pub fn interrupt(&mut self, instance: &InstanceId, now: Timestamp) -> bool {
        let Some(machine) = self.machines.get_mut(instance) else {
            return false;
        };
        let truth = machine.truth();
        if !truth.state.is_live()
            || truth.offering.capacity_type != CapacityType::Spot
            || machine.reclaimed.is_some()
        {
            return false;
        }
        let end = time_after(now, SPOT_NOTICE);
        machine.reclaimed = Some(end);
        self.timers.add_at(now, (instance.clone(), CloudTimer::Tell));
        self.timers.add_at(end, (instance.clone(), CloudTimer::Reclaim));
        true
    }

    /// An instance fails: its machine stops immediately and without notice. Returns false if it was
    /// not live.
    pub fn fail(&mut self, instance: &InstanceId, now: Timestamp) -> bool {
        let is_live = self.get(instance.as_str()).is_some_and(SimInstance::is_live);
        if is_live {
            self.shut_down(instance, now);
        }
        is_live
    }

    /// Sets the number of instances that can still be launched. `None` means no limit.
    pub fn set_capacity(&mut self, offering: OfferingKey, left: Option<u32>) {
        self.stock.set_left(offering, left);
    }
}

fn repeated_launch(machine: &SimInstance) -> CommandResult {
    let instance = machine.truth();
    if instance.state.is_live() {
        return CommandResult::Launched(instance.clone());
    }
    let text = format!("the client token was used for {}, which has ended", instance.id);
    failed_result(FailureKind::Invalid, &text)
}

/// The result of a failed command.
pub fn failed_result(kind: FailureKind, text: &str) -> CommandResult {
    CommandResult::Failed { kind, text: text.to_owned() }
}
