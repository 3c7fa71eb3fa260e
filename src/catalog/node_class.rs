//! What a node class makes of the catalog of a region: amounts, images, zones, and which offerings
//! it cannot use. It must not know which pools use the class, nor what is out of stock now.
//!
//! Source: spec/aws.md §4.2 to §4.7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// Characters of the reason why a class is not ready.
const FAULT_MAX: usize = 800;

/// Why no node can be made of a class at the very start.
const UNASKED: &str = "AWS has not been asked yet";

/// The instance types as nodes of a class have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCatalog {
    /// Every type of the region, those it cannot use without an available offering.
    pub catalog: Arc<Catalog>,
    /// The id of the image that each type gets; empty where images were not looked for.
    pub images: BTreeMap<TypeName, String>,
    /// What instances of the class are held against, of what was found for it: no free addresses,
    /// which are others with each launch. None where nobody has looked.
    pub found: Option<Arc<ResolvedNodeClass>>,
}

/// What a class has for its pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClassSupply {
    /// Instance types and images, or why no node can be made of the class, bounded.
    pub supply: Result<ClassCatalog, String>,
}

impl NodeClassSupply {
    /// Of a class that the provider has not been asked about yet.
    pub fn unasked() -> Self {
        Self {
            supply: Err(UNASKED.to_owned()),
        }
    }

    /// Whether the provider has not been asked about the class yet.
    pub fn is_unasked(&self) -> bool {
        self.supply.as_ref().err().is_some_and(|own| own == UNASKED)
    }

    /// What [`class_catalog`] makes of a class, or which of its conditions is not met.
    pub fn new(
        (region, base): (&Region, &Arc<Catalog>),
        class: &NodeClass,
        resolved: &ResolvedNodeClass,
        with: (&DiscoveredMemory, &BTreeSet<String>),
    ) -> Self {
        let fault = match resolved.unmet() {
            Some(own) => {
                let cause = own.cause.map_or(own.kind.as_str(), |cause| cause.as_str());
                Some(format!("{cause}: {}", own.message))
            }
            None if region.shapes.is_empty() || region.sold.is_empty() => {
                Some("Unavailable: EC2 has not told yet what it sells in the region".to_owned())
            }
            None => None,
        };
        let bounded = |text: String| text.chars().take(FAULT_MAX).collect();
        Self {
            supply: match fault {
                Some(text) => Err(bounded(text)),
                None => Ok(class_catalog((region, base), class, Some(resolved), with)),
            },
        }
    }
}

/// What every class has for its pools, by name.
pub type ClassSupplies = BTreeMap<NodeClassName, NodeClassSupply>;

/// What the node classes of a cluster have for their pools, as the provider last said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// None as long as the provider has not spoken.
    told: Option<Arc<ClassSupplies>>,
    /// What each class had when nodes could last be made of it: what is on its way still has that.
    catalogs: BTreeMap<NodeClassName, Arc<Catalog>>,
}

impl Classes {
    /// Takes in what the provider says of all classes.
    pub fn tell(&mut self, told: Arc<ClassSupplies>) {
        self.catalogs.retain(|name, _| told.contains_key(name));
        for (name, own) in told.iter() {
            if let Ok(own) = &own.supply {
                self.catalogs.insert(name.clone(), Arc::clone(&own.catalog));
            }
        }
        self.told = Some(told);
    }

    /// Whether the provider has yet to be asked about any of them.
    pub fn awaits(&self) -> bool {
        let told = self.told.as_ref();
        told.is_some_and(|all| all.values().any(NodeClassSupply::is_unasked))
    }

    /// The instance types as nodes of a class have them, or had them when nodes could last be made
    /// of it; none where that is not known.
    pub fn catalog(&self, class: &NodeClassName) -> Option<&Arc<Catalog>> {
        self.catalogs.get(class)
    }

    /// What instances of a class are held against; none where nodes cannot be made of it now, or
    /// nobody has looked: then nothing is to be said of them.
    pub fn found(&self, class: &NodeClassName) -> Option<(&ResolvedNodeClass, &ClassCatalog)> {
        let own = self.told.as_ref()?.get(class)?.supply.as_ref().ok()?;
        Some((own.found.as_deref()?, own))
    }

    /// Why no node can be made of a class; none where nodes can, or the provider has no classes.
    pub fn fault(&self, class: &NodeClassName) -> Option<String> {
        match self.told.as_ref()?.get(class).map(|own| &own.supply) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!(
                "node class {:?} is not ready: {why}",
                class.as_str()
            )),
            None => Some(format!(
                "node class {:?} is not ready: nothing is known of it yet",
                class.as_str()
            )),
        }
    }

    /// What is reserved for any of them.
    pub fn reservations(&self) -> Vec<(TypeName, Zone, Reservation)> {
        let all = self.catalogs.values().flat_map(|own| own.reserved());
        let all = all.map(|(name, zone, own)| ((name, zone, own.id.clone()), own));
        let all: BTreeMap<_, Reservation> = all.collect();
        let all = all.into_iter();
        all.map(|((name, zone, _), own)| (name, zone, own))
            .collect()
    }
}

/// What a node class makes of what a region sells; `base` is [`Region::catalog`] of it, with which
/// is shared whatever the class leaves as it is.
///
/// Without `resolved` nobody has asked AWS, as in an offline plan: then the class has subnets in
/// all zones and an image for every type. `shifted` are ids of zones that nothing is launched in
/// for now.
pub fn class_catalog(
    (region, base): (&Region, &Arc<Catalog>),
    class: &NodeClass,
    resolved: Option<&ResolvedNodeClass>,
    (memory, shifted): (&DiscoveredMemory, &BTreeSet<String>),
) -> ClassCatalog {
    let mut zone_ids = region.zone_ids.clone();
    let mut reservations: BTreeMap<&TypeName, Vec<(Zone, Reservation)>> = BTreeMap::new();
    for own in resolved.iter().flat_map(|own| &own.subnets) {
        zone_ids.insert(own.zone.clone(), own.zone_id.clone());
    }
    for own in resolved.iter().flat_map(|own| &own.reservations) {
        let all = reservations.entry(&own.instance_type).or_default();
        all.push((own.zone.clone(), own.reservation.clone()));
    }
    let group = resolved.and_then(|own| own.placement_group.as_ref());
    let terms = Terms {
        region,
        class,
        zones: resolved.map(|own| own.subnets.iter().map(|own| &own.zone).collect()),
        images: resolved.map(|own| &own.images[..]),
        zone_ids: &zone_ids,
        group,
        memory,
        shifted,
    };
    let mut own_images = BTreeMap::new();
    let mut changed = Vec::new();
    for (name, shape) in &region.shapes {
        let image = terms
            .images
            .map(|all| image_selection::image_of(all, shape));
        if let Some(image) = image.flatten() {
            own_images.insert(name.clone(), image.id.clone());
        }
        let reserved = reservations.remove(name).unwrap_or_default();
        let own = terms.instance_type(shape, image, reserved);
        if base.get(name.as_str()) != Some(&own) {
            changed.push(own);
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
        found: resolved.map(|own| Arc::new(lasting(own))),
    }
}

/// What was found for a class, without what changes though nothing of it does.
fn lasting(resolved: &ResolvedNodeClass) -> ResolvedNodeClass {
    let mut subnets = resolved.subnets.clone();
    subnets.iter_mut().for_each(|own| own.free = 0);
    subnets.sort_by(|one, other| one.id.cmp(&other.id));
    ResolvedNodeClass {
        images: Vec::new(),
        subnets,
        ..resolved.clone()
    }
}

/// What decides how a type is to be had.
struct Terms<'a> {
    region: &'a Region,
    class: &'a NodeClass,
    /// The zones that the class has subnets in; none means all.
    zones: Option<BTreeSet<&'a Zone>>,
    /// Its images; none where nobody has looked for them.
    images: Option<&'a [Image]>,
    zone_ids: &'a BTreeMap<Zone, String>,
    group: Option<&'a PlacementGroup>,
    memory: &'a DiscoveredMemory,
    shifted: &'a BTreeSet<String>,
}

impl Terms<'_> {
    /// The type with this image, if images were looked for, and these reservations.
    fn instance_type(
        &self,
        shape: &InstanceTypeSpec,
        image: Option<Option<&Image>>,
        mut reservations: Vec<(Zone, Reservation)>,
    ) -> InstanceType {
        let has_zone = |zone: &Zone| self.zones.as_ref().is_none_or(|own| own.contains(zone));
        let offerings = self.region.offerings(shape, has_zone);
        let learned = image.flatten().and_then(|image| self.learned(shape, image));
        let place = (self.region.name.as_str(), self.class);
        let mut own = instance_type::instance_type(shape, place, learned, offerings);
        reservations.retain(|(zone, _)| has_zone(zone));
        if !reservations.is_empty() {
            own = reservations::reserved(&own, reservations);
        }
        type_labels::place(&mut own, self.zone_ids, self.group);
        let usable = image.is_none_or(|image| image.is_some())
            && is_compatible(shape, self.class, self.group);
        for offering in &mut own.offerings {
            let id = self.zone_ids.get(&offering.zone);
            let is_shifted = id.is_some_and(|id| self.shifted.contains(id));
            offering.available = usable && !is_shifted;
        }
        own
    }

    /// What nodes of this type and image have reported of their memory. No kernel keeps half of it,
    /// and none has more than is sold: such a report is a fault of the node.
    fn learned(&self, shape: &InstanceTypeSpec, image: &Image) -> Option<i64> {
        let estimate = capacity::memory(shape, self.class);
        let sold = i64::from(shape.memory_mib) << 20;
        let own = self.memory.get(&shape.name.as_str().into(), &image.id);
        own.filter(|own| (estimate / 2..=sold).contains(own))
    }
}

/// Whether instances of a type can be launched with these settings. What is not known of a type is
/// not held against it: EC2 decides then. Source: spec/aws.md §4.5.
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
        || shape.hypervisor.as_deref().is_none_or(|own| own == "nitro");
    let strategy = |group: &PlacementGroup| match group.strategy {
        PlacementGroupStrategy::Cluster => "cluster",
        PlacementGroupStrategy::Partition(_) => "partition",
        PlacementGroupStrategy::Spread => "spread",
    };
    let joins = group.is_none_or(|group| {
        let supported = shape.placement.as_ref();
        supported.is_none_or(|own| own.iter().any(|own| own == strategy(group)))
    });
    runs && nests && tracks && joins && has_interfaces(shape, class)
}

/// Whether a type takes the layout of network interfaces.
fn has_interfaces(shape: &InstanceTypeSpec, class: &NodeClass) -> bool {
    let Some(layout) = &class.network_interfaces else {
        return true;
    };
    let card_of = |index: u32| shape.cards.iter().find(|card| card.index == index);
    let enis = |index: u32| card_of(index).map_or(0, |card| card.enis);
    let fits = shape.cards.is_empty() || layout.iter().all(|own| own.device < enis(own.card));
    let adapters = layout.iter().filter(|own| own.efa_only).count();
    let adapters = u32::try_from(adapters).unwrap_or(u32::MAX);
    shape.ena != Some(false) && fits && adapters <= shape.efa_max
}
