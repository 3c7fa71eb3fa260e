//! Applies a node class to the catalog of a region: resources, images, zones, and unavailable
//! offerings.
//!
//! Source: spec/aws.md §4.2 to §4.7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use crate::catalog::discovered_memory::DiscoveredMemory;
use crate::catalog::instance_type_info::InstanceTypeSpec;
use crate::catalog::region::Region;
use crate::catalog::{
    Catalog, capacity, image_selection, instance_type, reservations, type_labels,
};
use crate::model::id::{NodeClassName, TypeName, Zone};
use crate::model::instance::{Arch, InstanceType};
use crate::model::node_class::NodeClass;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::resolved::{
    Image, PlacementGroup, PlacementGroupStrategy, ResolvedNodeClass,
};
use crate::model::reservation::Reservation;

/// Maximum number of characters in the reason why a class is not ready.
const FAULT_MAX: usize = 800;

/// Reason why a class cannot launch nodes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotReady {
    /// The provider has not resolved the class yet.
    #[error("not read from AWS yet")]
    Unresolved,
    /// The instance types of the region are unknown.
    #[error("Unavailable: the instance types of the region have not been read yet")]
    NoInstanceTypes,
    /// A condition of the class is not met: its cause and message, up to a maximum length.
    #[error("{0}")]
    Condition(String),
}

/// The instance types with a node class applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCatalog {
    /// Every type of the region. A type that the class cannot use has no available offerings.
    pub catalog: Arc<Catalog>,
    /// Image ID for each type. Empty if images have not been resolved.
    pub images: BTreeMap<TypeName, String>,
    /// Resolved resources with which drift detection compares instances. Free addresses are zero,
    /// because they change with each launch. `None` if the class has not been resolved.
    pub found: Option<Arc<ResolvedNodeClass>>,
}

/// Data about a region in addition to its offerings.
#[derive(Clone, Copy, Debug)]
pub struct RegionObservations<'a> {
    /// Memory that nodes have reported.
    pub memory: &'a DiscoveredMemory,
    /// IDs of zones with an active zonal shift. No node is launched in these zones.
    pub shifted_zones: &'a BTreeSet<String>,
}

/// The instance types that a node class supplies to its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClassSupply {
    /// Instance types and images, or the reason why the class cannot launch nodes.
    pub supply: Result<ClassCatalog, NotReady>,
}

impl NodeClassSupply {
    /// The supply of a class that the provider has not resolved yet.
    pub fn unresolved() -> Self {
        Self { supply: Err(NotReady::Unresolved) }
    }

    /// Returns true if the provider has not resolved the class yet.
    pub fn is_unresolved(&self) -> bool {
        self.supply == Err(NotReady::Unresolved)
    }

    /// Returns the result of [`class_catalog`], or the condition of the class that is not met.
    pub fn new(
        region: &Region,
        base: &Arc<Catalog>,
        class: &NodeClass,
        resolved: &ResolvedNodeClass,
        observations: RegionObservations<'_>,
    ) -> Self {
        let supply = match resolved.first_unmet() {
            Some(condition) => {
                let kind = condition.kind.as_str();
                let cause = condition.cause.map_or(kind, |cause| cause.as_str());
                let text = format!("{cause}: {}", condition.message);
                Err(NotReady::Condition(text.chars().take(FAULT_MAX).collect()))
            }
            None if region.shapes.is_empty() || region.sold.is_empty() => {
                Err(NotReady::NoInstanceTypes)
            }
            None => {
                let resolved = Some(resolved);
                Ok(class_catalog(region, base, class, resolved, observations))
            }
        };
        Self { supply }
    }
}

/// Supply of every class, by name.
pub type ClassSupplies = BTreeMap<NodeClassName, NodeClassSupply>;

/// Supplies of the node classes of a cluster, as last reported by the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// `None` until the first report of the provider.
    supplies: Option<Arc<ClassSupplies>>,
    /// The last catalog of each class from a time when the class was ready. In-flight nodes still
    /// use it.
    catalogs: BTreeMap<NodeClassName, Arc<Catalog>>,
}

impl Classes {
    /// Stores the provider's report about all classes.
    pub fn set_supplies(&mut self, supplies: Arc<ClassSupplies>) {
        self.catalogs.retain(|name, _| supplies.contains_key(name));
        for (name, class) in supplies.iter() {
            if let Ok(ClassCatalog { catalog, .. }) = &class.supply {
                self.catalogs.insert(name.clone(), Arc::clone(catalog));
            }
        }
        self.supplies = Some(supplies);
    }

    /// Returns true if at least one class has not been resolved yet.
    pub fn has_unresolved(&self) -> bool {
        let supplies = self.supplies.as_ref();
        supplies.is_some_and(|all| all.values().any(NodeClassSupply::is_unresolved))
    }

    /// The current catalog of a class, or its last catalog from a time when it was ready. `None` if
    /// it was never ready.
    pub fn catalog_of(&self, class: &NodeClassName) -> Option<&Arc<Catalog>> {
        self.catalogs.get(class)
    }

    /// Resolved resources with which instances of a class are compared. `None` if the class is not
    /// ready or not resolved. Drift is then unknown.
    pub fn resolved_class(
        &self,
        class: &NodeClassName,
    ) -> Option<(&ResolvedNodeClass, &ClassCatalog)> {
        let class_catalog = self.supplies.as_ref()?.get(class)?.supply.as_ref().ok()?;
        Some((class_catalog.found.as_deref()?, class_catalog))
    }

    /// Reason why a class cannot launch nodes. `None` if the class can launch nodes, or if the
    /// provider has no classes.
    pub fn launch_fault(&self, class: &NodeClassName) -> Option<String> {
        let class_supply = self.supplies.as_ref()?.get(class);
        let why = match class_supply.map(|class| &class.supply) {
            Some(Ok(_)) => return None,
            Some(Err(why)) => why.to_string(),
            None => "nothing is known of it yet".to_owned(),
        };
        let name = class.as_str();
        Some(format!("node class {name:?} is not ready: {why}"))
    }

    /// Reservations of all classes.
    pub fn all_reservations(&self) -> Vec<(TypeName, Zone, Reservation)> {
        let catalogs = self.catalogs.values();
        let all = catalogs.flat_map(|catalog| catalog.reserved_offerings());
        let keyed = all.map(|it| ((it.0.clone(), it.1.clone(), it.2.id.clone()), it));
        keyed.collect::<BTreeMap<_, _>>().into_values().collect()
    }
}

/// Applies a node class to a region. `base` is the result of [`Region::catalog`]. Types that the
/// class does not change are shared with it.
///
/// If `resolved` is `None`, AWS has not been queried, as in an offline plan. The class then has
/// subnets in all zones and an image for every type.
pub fn class_catalog(
    region: &Region,
    base: &Arc<Catalog>,
    class: &NodeClass,
    resolved: Option<&ResolvedNodeClass>,
    observations: RegionObservations<'_>,
) -> ClassCatalog {
    let mut zone_ids = region.zone_ids.clone();
    let mut reservations: BTreeMap<&TypeName, Vec<(Zone, Reservation)>> = BTreeMap::new();
    let subnets = resolved.map(|resolved| &resolved.subnets);
    for subnet in subnets.into_iter().flatten() {
        zone_ids.insert(subnet.zone.clone(), subnet.zone_id.clone());
    }
    let found = resolved.iter().flat_map(|resolved| &resolved.reservations);
    for reservation in found.filter(|found| found.is_usable) {
        let all = reservations.entry(&reservation.instance_type).or_default();
        all.push((reservation.zone.clone(), reservation.reservation.clone()));
    }
    let group = resolved.and_then(|resolved| resolved.placement_group.as_ref());
    let terms = Terms {
        region,
        class,
        zones: subnets.map(|subnets| subnets.iter().map(|subnet| &subnet.zone).collect()),
        images: resolved.map(|resolved| &resolved.images[..]),
        zone_ids: &zone_ids,
        group,
        observations,
    };
    let mut own_images = BTreeMap::new();
    let mut changed = Vec::new();
    for (name, shape) in &region.shapes {
        let image = terms.images.map(|all| image_selection::image_for(all, shape));
        if let Some(image) = image.flatten() {
            own_images.insert(name.clone(), image.id.clone());
        }
        let reserved = reservations.remove(name).unwrap_or_default();
        let instance_type = terms.instance_type(shape, image, reserved);
        if base.get(name.as_str()) != Some(&instance_type) {
            changed.push(instance_type);
        }
    }
    let catalog = if changed.is_empty() && zone_ids == region.zone_ids {
        Arc::clone(base)
    } else {
        Arc::new(base.with(changed).with_zone_ids(zone_ids))
    };
    ClassCatalog {
        catalog,
        images: own_images,
        found: resolved.map(|resolved| Arc::new(without_volatile_values(resolved))),
    }
}

/// Returns the resolved resources without values that change often.
fn without_volatile_values(resolved: &ResolvedNodeClass) -> ResolvedNodeClass {
    let mut subnets = resolved.subnets.clone();
    subnets.iter_mut().for_each(|subnet| subnet.free = 0);
    subnets.sort_by(|one, other| one.id.cmp(&other.id));
    ResolvedNodeClass { images: Vec::new(), subnets, ..resolved.clone() }
}

/// Inputs for the offerings of a type.
struct Terms<'a> {
    region: &'a Region,
    class: &'a NodeClass,
    /// Zones with subnets of the class. `None` means all zones.
    zones: Option<BTreeSet<&'a Zone>>,
    /// Images of the class. `None` if they have not been resolved.
    images: Option<&'a [Image]>,
    zone_ids: &'a BTreeMap<Zone, String>,
    group: Option<&'a PlacementGroup>,
    observations: RegionObservations<'a>,
}

impl Terms<'_> {
    /// Returns the type with this image, if images were resolved, and these reservations.
    fn instance_type(
        &self,
        shape: &InstanceTypeSpec,
        image: Option<Option<&Image>>,
        mut reservations: Vec<(Zone, Reservation)>,
    ) -> InstanceType {
        let offerings = self.region.offerings_of(shape, |zone| self.has_zone(zone));
        let observed_memory = image.flatten().and_then(|image| self.observed_memory(shape, image));
        let region = self.region.name.as_str();
        let mut instance_type =
            instance_type::instance_type(shape, region, self.class, observed_memory, offerings);
        reservations.retain(|(zone, _)| self.has_zone(zone));
        if !reservations.is_empty() {
            instance_type = reservations::with_reserved_offerings(&instance_type, reservations);
        }
        type_labels::add_placement(&mut instance_type, self.zone_ids, self.group);
        let usable = image.is_none_or(|image| image.is_some())
            && is_compatible(shape, self.class, self.group);
        for offering in &mut instance_type.offerings {
            let id = self.zone_ids.get(&offering.zone);
            let is_shifted = id.is_some_and(|id| self.observations.shifted_zones.contains(id));
            offering.available = usable && !is_shifted;
        }
        instance_type
    }

    /// Returns true if the class has subnets in a zone.
    fn has_zone(&self, zone: &Zone) -> bool {
        self.zones.as_ref().is_none_or(|zones| zones.contains(zone))
    }

    /// Memory that nodes of this type and image have reported. A report below half of the estimate,
    /// or above the type's memory, is treated as an error of the node and ignored.
    fn observed_memory(&self, shape: &InstanceTypeSpec, image: &Image) -> Option<i64> {
        let estimate = capacity::usable_memory(shape, self.class);
        let sold = i64::from(shape.memory_mib) << 20;
        let memory = self.observations.memory;
        let reported = memory.get(&shape.name.as_str().into(), &image.id);
        reported.filter(|bytes| (estimate / 2..=sold).contains(bytes))
    }
}

/// Returns true if instances of a type can be launched with these settings. Unknown values of a
/// type are assumed to be compatible. EC2 then decides at launch. Source: spec/aws.md §4.5.
pub fn is_compatible(
    shape: &InstanceTypeSpec,
    class: &NodeClass,
    group: Option<&PlacementGroup>,
) -> bool {
    let runs = match class.family {
        AmiFamily::Al2023 => !shape.name.starts_with("a1."),
        family => family.windows_build().is_none() || shape.arch == Arch::Amd64,
    };
    let nests =
        class.nested_virtualization != Some(true) || shape.nested_virtualization.unwrap_or(true);
    let tracks = class.connection_tracking.is_none()
        || shape.hypervisor.as_deref().is_none_or(|it| it == "nitro");
    let joins = group.is_none_or(|group| {
        let strategy = match group.strategy {
            PlacementGroupStrategy::Cluster => "cluster",
            PlacementGroupStrategy::Partition(_) => "partition",
            PlacementGroupStrategy::Spread => "spread",
        };
        let supported = shape.placement.as_ref();
        supported.is_none_or(|strategies| strategies.iter().any(|name| name == strategy))
    });
    runs && nests && tracks && joins && has_interfaces(shape, class)
}

/// Returns true if a type supports the layout of network interfaces.
fn has_interfaces(shape: &InstanceTypeSpec, class: &NodeClass) -> bool {
    let Some(layout) = &class.network_interfaces else {
        return true;
    };
    let fits = shape.cards.is_empty()
        || layout.iter().all(|interface| {
            let mut cards = shape.cards.iter();
            let card = cards.find(|card| card.index == interface.card);
            interface.device < card.map_or(0, |card| card.enis)
        });
    let adapters = layout.iter().filter(|interface| interface.efa_only).count();
    let adapters = u32::try_from(adapters).unwrap_or(u32::MAX);
    shape.ena != Some(false) && fits && adapters <= shape.efa_max
}
