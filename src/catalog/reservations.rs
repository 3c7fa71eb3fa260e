//! Capacity reservations as offerings of their types.

use std::collections::BTreeMap;

use crate::catalog::{Catalog, instance_type, type_labels};
use crate::model::id::{ReservationId, TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, Offering, Price, RESERVED_SHARE};
use crate::model::labels::OF_OFFERINGS;
use crate::model::requirement::Requirements;
use crate::model::reservation::Reservation;

impl Catalog {
    /// All reservations, with their type and zone.
    pub fn reserved_offerings(&self) -> Vec<(TypeName, Zone, Reservation)> {
        if self.reservations().is_empty() {
            return Vec::new();
        }
        self.types()
            .flat_map(|it| {
                let name = it.name.clone();
                let reserved = it.offerings.iter().filter_map(move |offering| {
                    let reservation = offering.reservation.as_deref()?;
                    Some((name.clone(), offering.zone.clone(), reservation.clone()))
                });
                reserved.collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the catalog with these reservations, each for a type in a zone. They replace its
    /// current reservations. Reservations of unknown types are ignored.
    #[must_use]
    pub fn with_reservations(
        &self,
        reservations: impl IntoIterator<Item = (TypeName, Zone, Reservation)>,
    ) -> Self {
        let mut by_type: BTreeMap<TypeName, Vec<(Zone, Reservation)>> = BTreeMap::new();
        for (type_name, zone, reservation) in reservations {
            let of_type = by_type.entry(type_name).or_default();
            of_type.push((zone, reservation));
        }
        let changed = self.types().filter_map(|it| {
            let reservations = by_type.remove(&it.name).unwrap_or_default();
            let has = it.offerings.iter().any(|it| it.reservation.is_some());
            (has || !reservations.is_empty()).then(|| with_reserved_offerings(it, reservations))
        });
        self.with(changed)
    }
}

/// Returns the type with its current reservations replaced by these.
pub(super) fn with_reserved_offerings(
    plain: &InstanceType,
    reservations: Vec<(Zone, Reservation)>,
) -> InstanceType {
    let mut instance_type = plain.clone();
    instance_type.offerings.retain(|offering| offering.reservation.is_none());
    let offered = reservations.into_iter().map(|(zone, reservation)| {
        let list = instance_type.offerings.iter().find(|offering| {
            offering.zone == zone && offering.capacity_type == CapacityType::OnDemand
        });
        let list = list.map_or(0.0, |offering| offering.price.usd_per_h());
        Offering {
            zone,
            capacity_type: CapacityType::Reserved,
            price: Price::new(list / RESERVED_SHARE).unwrap_or_default(),
            available: true,
            reservation: Some(Box::new(reservation)),
        }
    });
    let offered: Vec<Offering> = offered.collect();
    instance_type.offerings.extend(offered);
    instance_type::sort_offerings(&mut instance_type.offerings);
    let requirements = instance_type.requirements.iter();
    let kept = requirements.filter(|(key, _)| !OF_OFFERINGS.contains(key));
    let mut requirements: Requirements = kept.map(|(key, it)| (key, it.clone())).collect();
    type_labels::complete_labels(&mut requirements, &instance_type.offerings);
    instance_type.requirements = requirements;
    instance_type
}

/// Returns all reservations of a catalog.
pub(super) fn reservations_of(catalog: &Catalog) -> BTreeMap<ReservationId, Reservation> {
    let mut all: BTreeMap<ReservationId, Reservation> = BTreeMap::new();
    let offerings = catalog.types().flat_map(|it| &it.offerings);
    for reservation in offerings.filter_map(|offering| offering.reservation.as_deref()) {
        match all.get_mut(&reservation.id) {
            Some(known) if known.left <= reservation.left => {}
            Some(known) => known.clone_from(reservation),
            None => drop(all.insert(reservation.id.clone(), reservation.clone())),
        }
    }
    all
}
