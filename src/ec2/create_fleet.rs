//! The CreateFleet request for one claim: its purchase option, and its templates in order.
//!
//! Source: spec/aws.md §5.2, §5.3 and §5.6; the order of purchase options:
//! docs/decisions/016-one-call-buys-one-way.md.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::bootstrap::BootstrapError;
use crate::catalog::Catalog;
use crate::ec2::launch_template::{
    LaunchTemplate, RenderedUserData, TemplateTarget, Variation, build_template,
};
use crate::ec2::subnet_capacity::{ReservedAddresses, Subnets};
use crate::model::claim::{TAG_BATCH, TAG_CLAIM, TAG_CREATED, TAGS_OF_ONE_CLAIM};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, OfferingKey, Price};
use crate::model::labels::{
    ACCELERATOR_COUNT, EFA, ENCLAVES, GPU_COUNT, INSTANCE_SIZE, Labels, PLACEMENT_GROUP_PARTITION,
    TENANCY,
};
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::{Image, ResolvedNodeClass};
use crate::model::reservation::{Reservation, ReservationKind};
use crate::provider::{CommandResult, FailureKind, Launch, OfferingRefusal, RefusalKind};

/// Maximum number of templates in one request. Source: EC2 API reference, CreateFleet.
pub const TEMPLATES_MAX: usize = 50;

/// Maximum number of alternatives in one request. EC2 refuses larger bodies: in the field, requests
/// with 100 types in three zones failed. Source: karpenter-provider-aws, issue 5776.
pub const OVERRIDES_MAX: usize = 300;

/// Maximum length of a client token.
pub const TOKEN_MAX: usize = 64;

/// Purchase option of a request: CreateFleet's `DefaultTargetCapacityType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetCapacityType {
    /// Spot capacity.
    Spot,
    /// On demand, or from the reservation of the template.
    OnDemand,
    /// A Capacity Block.
    CapacityBlock,
    /// An interruptible capacity reservation.
    Interruptible,
}

impl TargetCapacityType {
    /// EC2's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spot => "spot",
            Self::OnDemand => "on-demand",
            Self::CapacityBlock => "capacity-block",
            Self::Interruptible => "reserved-capacity",
        }
    }
}

/// Allocation strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationStrategy {
    /// Spot: price and capacity optimized.
    PriceCapacityOptimized,
    /// Spot: capacity optimized, then by priority.
    CapacityOptimizedPrioritized,
    /// On demand: the first alternative by priority that has capacity.
    Prioritized,
}

impl AllocationStrategy {
    /// EC2's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PriceCapacityOptimized => "price-capacity-optimized",
            Self::CapacityOptimizedPrioritized => "capacity-optimized-prioritized",
            Self::Prioritized => "prioritized",
        }
    }
}

/// An alternative of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The offering of the alternative.
    pub offering: OfferingKey,
    /// The subnet.
    pub subnet: String,
    /// Image id.
    pub image: String,
    /// Priority, a whole number from zero. EC2 tries lower numbers first.
    pub priority: f64,
}

/// A template and its alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchTemplateConfig {
    /// The template, which must exist before the call.
    pub template: LaunchTemplate,
    /// The alternatives, in order. The request contains the zone as well as the subnet, because
    /// then errors contain the zone (spec §10, 70).
    pub overrides: Vec<Override>,
}

/// A CreateFleet call of type `instant`. A client token belongs to exactly one request, so a
/// repeated call must contain the same request.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetRequest {
    /// Client token. The launcher sets one for each call.
    pub token: String,
    /// Number of instances, at least one.
    pub count: u32,
    /// Purchase option.
    pub target: TargetCapacityType,
    /// Allocation strategy. `None` if EC2 allows none.
    pub strategy: Option<AllocationStrategy>,
    /// Templates with their alternatives, without duplicates, never empty.
    pub configs: Vec<LaunchTemplateConfig>,
    /// The `Context` of the node class. `None` if the launch has fewer instance types than the pool
    /// requires.
    pub context: Option<String>,
    /// Tags of the instance, its volumes and the fleet.
    pub tags: Labels,
    /// Offerings that cannot be requested, and why.
    pub refused: Vec<OfferingRefusal>,
    /// Addresses reserved for one instance. The caller passes them on with the outcome.
    pub taken: ReservedAddresses,
}

impl FleetRequest {
    /// All alternatives.
    pub fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.configs.iter().flat_map(|config| &config.overrides)
    }

    /// Returns whether one call may launch the instances of both requests: they differ at most in
    /// what belongs to their claims alone.
    pub fn is_equal_for_batch(&self, other: &Self) -> bool {
        let is_shared = |(key, _): &(&String, &String)| !TAGS_OF_EACH_CLAIM.contains(&key.as_str());
        let [own, others] = [self, other].map(|it| it.tags.iter().filter(is_shared));
        (self.target, self.strategy, &self.context)
            == (other.target, other.strategy, &other.context)
            && own.eq(others)
            && self.configs == other.configs
            && self.refused == other.refused
    }

    /// Returns the request for the claims of a batch. It has the tags of the first claim, with the
    /// batch in place of the claim.
    pub fn for_batch(&self, batch: &str, count: u32) -> Self {
        let mut request = Self { token: batch.to_owned(), count, ..self.clone() };
        request.tags.remove(TAG_CLAIM);
        request.tags.insert(TAG_BATCH.to_owned(), batch.to_owned());
        request
    }

    /// Returns the request with at most `max` alternatives, and at least one. The cheapest one of
    /// each type has precedence over further zones, because the pool may require a variety of
    /// types. Within both, those that EC2 tries earlier have precedence. `None` if the request has
    /// no more alternatives.
    pub fn with_fewer_overrides(&self, max: usize) -> Option<Self> {
        let all = self.configs.iter().enumerate().flat_map(|(config, it)| {
            let overrides = it.overrides.iter().enumerate();
            overrides.map(move |(index, it)| (it.priority, config, index, it))
        });
        let mut all: Vec<_> = all.collect();
        if all.len() <= max.max(1) {
            return None;
        }
        all.sort_by(|one, other| {
            one.0.total_cmp(&other.0).then((one.1, one.2).cmp(&(other.1, other.2)))
        });
        let mut types = BTreeSet::new();
        let (first, further): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(.., it)| types.insert(it.offering.instance_type.clone()));
        let kept = first.into_iter().chain(further).take(max.max(1));
        let kept: BTreeSet<(usize, usize)> =
            kept.map(|(_, config, index, _)| (config, index)).collect();
        let mut request = self.clone();
        for (config, it) in request.configs.iter_mut().enumerate() {
            let mut indexes = 0..;
            it.overrides.retain(|_| indexes.next().is_some_and(|at| kept.contains(&(config, at))));
        }
        request.configs.retain(|config| !config.overrides.is_empty());
        Some(request)
    }

    /// Returns the alternative of a type in a zone.
    pub fn override_for(&self, instance_type: &str, zone: &str) -> Option<&Override> {
        self.overrides().find(|candidate| {
            candidate.offering.instance_type.as_str() == instance_type
                && candidate.offering.zone.as_str() == zone
        })
    }
}

/// Tags that differ between the claims of a batch. The instances have those of the first claim.
const TAGS_OF_EACH_CLAIM: [&str; 2] = [TAG_CLAIM, TAG_CREATED];

/// Renders user data for an image and a maximum number of pods, or returns an error.
pub type Render<'r> = dyn FnMut(&Image, i64) -> Result<RenderedUserData, BootstrapError> + 'r;

/// The inputs of a request.
#[derive(Clone, Copy, Debug)]
pub struct FleetRequestInput<'a> {
    /// The launch.
    pub launch: &'a Launch,
    /// The node class.
    pub class: &'a NodeClass,
    /// The resolved AWS resources of the node class.
    pub resolved: &'a ResolvedNodeClass,
    /// The image of each type.
    pub images: &'a BTreeMap<TypeName, String>,
    /// Instance types of the node class.
    pub catalog: &'a Catalog,
    /// Location.
    pub site: TemplateTarget<'a>,
}

/// The result of a launch that cannot be requested.
fn invalid_launch(text: impl Into<String>) -> Box<CommandResult> {
    Box::new(CommandResult::Failed { kind: FailureKind::Invalid, text: text.into() })
}

/// Key of a template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TemplateGroup {
    image: String,
    pods: i64,
    efas: u32,
    reservation: Option<String>,
}

/// An offering that can be requested.
struct Wanted<'a> {
    key: &'a OfferingKey,
    instance_type: &'a InstanceType,
    image: &'a Image,
    reservation: Option<&'a Reservation>,
    subnet: String,
}

impl Wanted<'_> {
    /// Purchase option.
    fn purchase_option(&self) -> TargetCapacityType {
        match (self.key.capacity_type, self.reservation) {
            (CapacityType::Spot, _) => TargetCapacityType::Spot,
            (_, Some(reservation)) if reservation.kind == ReservationKind::CapacityBlock => {
                TargetCapacityType::CapacityBlock
            }
            (_, Some(reservation)) if reservation.interruptible => {
                TargetCapacityType::Interruptible
            }
            _ => TargetCapacityType::OnDemand,
        }
    }
}

impl<'a> FleetRequestInput<'a> {
    /// Returns the request, or the result of the launch if nothing can be requested.
    pub fn build_request(
        &self,
        subnets: &mut Subnets,
        render: &mut Render<'_>,
        now: Timestamp,
    ) -> Result<FleetRequest, Box<CommandResult>> {
        if let Some(unmet) = self.resolved.first_unmet() {
            let (kind, class) = (unmet.kind.as_str(), &self.class.name);
            let text = format!("node class {class} is not ready: {kind}: {}", unmet.message);
            return Err(invalid_launch(text));
        }
        if self.launch.claim.id.as_str().len() > TOKEN_MAX {
            let text = format!("a claim's id is at most {TOKEN_MAX} long");
            return Err(invalid_launch(text));
        }
        let Some(cheapest) = self.launch.offerings.first() else {
            return Err(invalid_launch("the launch contains no offering"));
        };
        let (mut wanted, refused) = self.requestable_offerings(subnets, now);
        // Bare metal and device types do not replace ordinary types (spec §5.2, 5), unless the pool
        // requires a variety of types (spec §10, 54).
        if !self.launch.varied && !self.is_exotic(&cheapest.instance_type) {
            let (exotic, ordinary): (Vec<_>, Vec<_>) = wanted
                .into_iter()
                .partition(|candidate| self.is_exotic(&candidate.key.instance_type));
            wanted = if ordinary.is_empty() { exotic } else { ordinary };
        }
        let Some(first) = wanted.first() else {
            return Err(Box::new(CommandResult::LaunchRefused(refused)));
        };
        let target = first.purchase_option();
        let configs = self
            .template_configs(&wanted, render)
            .map_err(|error| invalid_launch(error.to_string()))?;
        let taken = reserve_addresses(&wanted, self.resolved, subnets);
        let request = FleetRequest {
            token: self.launch.claim.id.to_string(),
            count: 1,
            target,
            strategy: self.allocation_strategy(target),
            configs,
            // The `Context` describes everything that the pool requires (spec §10, 101).
            context: self.class.context.clone().filter(|_| !self.launch.relaxed),
            tags: self.launch.tags.clone(),
            refused,
            taken,
        };
        Ok(request.with_fewer_overrides(OVERRIDES_MAX).unwrap_or(request))
    }

    /// Returns whether a type is bare metal or has devices.
    fn is_exotic(&self, name: &TypeName) -> bool {
        let instance_type = self.catalog.get(name.as_str());
        let [size, gpus, accelerators] = [INSTANCE_SIZE, GPU_COUNT, ACCELERATOR_COUNT]
            .map(|key| instance_type?.requirements.get(key)?.any_value());
        let is_metal = size.is_some_and(|size| size.starts_with("metal"));
        is_metal || gpus.is_some() || accelerators.is_some()
    }

    /// Splits the offerings into those that can be requested, in order, and those that cannot.
    fn requestable_offerings(
        &self,
        subnets: &Subnets,
        now: Timestamp,
    ) -> (Vec<Wanted<'a>>, Vec<OfferingRefusal>) {
        let (mut wanted, mut refused) = (Vec::<Wanted<'a>>::new(), Vec::new());
        let mut seen: BTreeSet<(&TypeName, &Zone)> = BTreeSet::new();
        for key in self.launch.requested_offerings() {
            let candidate = match self.requestable_offering(key, subnets, now) {
                Ok(candidate) => candidate,
                Err(kind) => {
                    let offering = key.clone();
                    refused.push(OfferingRefusal { offering, kind });
                    continue;
                }
            };
            // One call uses one kind of reservation.
            let first = wanted.first().map(Wanted::purchase_option);
            let same = first.is_none_or(|first| first == candidate.purchase_option());
            if same && seen.insert((&key.instance_type, &key.zone)) {
                wanted.push(candidate);
            }
        }
        (wanted, refused)
    }

    fn requestable_offering(
        &self,
        key: &'a OfferingKey,
        subnets: &Subnets,
        now: Timestamp,
    ) -> Result<Wanted<'a>, RefusalKind> {
        let instance_type = self.catalog.get(key.instance_type.as_str());
        let image = self.images.get(&key.instance_type);
        let image = image.and_then(|id| self.resolved.images.iter().find(|image| image.id == *id));
        let all = self.catalog.reservations();
        let reservation = key.reservation.as_deref().map(|id| all.get(id));
        let subnet = subnets.choose_subnet(&self.resolved.subnets, &key.zone, now);
        Ok(Wanted {
            key,
            instance_type: instance_type.ok_or(RefusalKind::Unsupported)?,
            image: image.ok_or(RefusalKind::NoImage)?,
            // An instance outside the reservation would cost money in addition to the reservation.
            reservation: reservation
                .map(|reservation| reservation.ok_or(RefusalKind::ReservationExceeded))
                .transpose()?,
            subnet: subnet.ok_or(RefusalKind::NoAddress)?.id.clone(),
        })
    }

    /// Groups alternatives by template. Equal templates are merged, because EC2 rejects duplicates
    /// (spec §10, 61).
    fn template_configs(
        &self,
        wanted: &[Wanted<'_>],
        render: &mut Render<'_>,
    ) -> Result<Vec<LaunchTemplateConfig>, BootstrapError> {
        let mut names: BTreeMap<TemplateGroup, String> = BTreeMap::new();
        let mut configs: Vec<(String, LaunchTemplateConfig)> = Vec::new();
        let priorities = self.offering_priorities(wanted);
        for (candidate, priority) in wanted.iter().zip(priorities) {
            let group = self.template_group(candidate);
            let name = match names.get(&group) {
                Some(name) => name.clone(),
                None => {
                    let template = self.launch_template(candidate, &group, render)?;
                    let name = template.name();
                    let exists = configs.iter().any(|(other, _)| *other == name);
                    if !exists && configs.len() < TEMPLATES_MAX {
                        let overrides = Vec::new();
                        let config = LaunchTemplateConfig { template, overrides };
                        configs.push((name.clone(), config));
                    }
                    names.insert(group, name.clone());
                    name
                }
            };
            let config = configs.iter_mut().find(|(other, _)| *other == name);
            if let Some((_, config)) = config {
                config.overrides.push(Override {
                    offering: candidate.key.clone(),
                    subnet: candidate.subnet.clone(),
                    image: candidate.image.id.clone(),
                    priority,
                });
            }
        }
        Ok(configs.into_iter().map(|(_, config)| config).collect())
    }

    fn template_group(&self, candidate: &Wanted<'_>) -> TemplateGroup {
        let efas = candidate.instance_type.capacity.get(EFA);
        let requested = self.launch.devices.contains(EFA);
        let reserved = candidate.key.reservation.as_ref();
        TemplateGroup {
            image: candidate.image.id.clone(),
            pods: candidate.instance_type.capacity.pods,
            efas: u32::try_from(efas).ok().filter(|_| requested).unwrap_or(0),
            reservation: reserved.map(|id| id.to_string()),
        }
    }

    fn launch_template(
        &self,
        candidate: &Wanted<'_>,
        group: &TemplateGroup,
        render: &mut Render<'_>,
    ) -> Result<LaunchTemplate, BootstrapError> {
        let labels = &self.launch.labels;
        let partition = labels.get(PLACEMENT_GROUP_PARTITION).and_then(|label| label.parse().ok());
        let mut tags = self.launch.tags.clone();
        tags.retain(|key, _| !TAGS_OF_ONE_CLAIM.contains(&key.as_str()));
        let variation = Variation {
            image: &candidate.image.id,
            user_data: render(candidate.image, group.pods)?,
            bought: Some(candidate.key.capacity_type),
            reservation: candidate.reservation,
            efas: group.efas,
            enclave: self.launch.devices.contains(ENCLAVES),
            dedicated: labels.get(TENANCY).is_some_and(|label| label == "dedicated"),
            partition,
            tags,
        };
        Ok(build_template(self.class, self.resolved, self.site, variation))
    }

    /// Priorities from zero in the order of the launch. Zones with the same price of a type have
    /// equal priority, so that a burst is spread.
    fn offering_priorities(&self, wanted: &[Wanted<'_>]) -> Vec<f64> {
        let mut rank = 0_u32;
        let mut before: Option<(&TypeName, Option<Price>)> = None;
        let mut all = Vec::with_capacity(wanted.len());
        for candidate in wanted {
            let offering = self.catalog.offering(candidate.key);
            let this = (&candidate.key.instance_type, offering.map(|it| it.price));
            if before.is_some_and(|before| before != this) {
                rank += 1;
            }
            before = Some(this);
            all.push(f64::from(rank));
        }
        all
    }

    fn allocation_strategy(&self, target: TargetCapacityType) -> Option<AllocationStrategy> {
        match target {
            TargetCapacityType::Spot if self.launch.overlaid => {
                Some(AllocationStrategy::CapacityOptimizedPrioritized)
            }
            TargetCapacityType::Spot => Some(AllocationStrategy::PriceCapacityOptimized),
            TargetCapacityType::OnDemand => Some(AllocationStrategy::Prioritized),
            TargetCapacityType::CapacityBlock | TargetCapacityType::Interruptible => None,
        }
    }
}

/// Reserves addresses in every offered subnet: the smallest number that one of the types in this
/// subnet may use.
fn reserve_addresses(
    wanted: &[Wanted<'_>],
    resolved: &ResolvedNodeClass,
    subnets: &mut Subnets,
) -> ReservedAddresses {
    let mut pods_per_subnet: BTreeMap<&str, i64> = BTreeMap::new();
    for candidate in wanted {
        let pods = candidate.instance_type.capacity.pods;
        let least = pods_per_subnet.entry(&candidate.subnet).or_insert(pods);
        *least = (*least).min(pods);
    }
    let mut taken = ReservedAddresses::default();
    for subnet in &resolved.subnets {
        if let Some(pods) = pods_per_subnet.get(subnet.id.as_str()) {
            let addresses = u32::try_from(*pods).unwrap_or(0);
            subnets.reserve_addresses(subnet, addresses, &mut taken);
        }
    }
    taken
}
