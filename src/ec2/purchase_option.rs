//! Purchase option of a listed instance.
//!
//! Source: spec/aws.md §5.11 and §10, 69.

use crate::model::id::{ReservationId, TypeName, Zone};
use crate::model::instance::{CapacityType, OfferingKey};

/// The purchase fields of a listed instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bought<'a> {
    /// Id of the spot request of the instance.
    pub spot_request: Option<&'a str>,
    /// Id of the capacity reservation of the instance.
    pub reservation: Option<&'a str>,
    /// Capacity reservation preference, such as `capacity-reservations-only`: the instance may run
    /// only in its reservation.
    pub preference: Option<&'a str>,
}

/// The offering of an instance. An instance in an open reservation is treated as on demand: it was
/// not planned for the reservation and continues to run when the reservation ends.
pub fn offering_key(instance_type: &str, zone: &str, bought: Bought<'_>) -> OfferingKey {
    let only = bought.preference == Some("capacity-reservations-only");
    let reservation = bought.reservation.filter(|_| only);
    let capacity_type = match (bought.spot_request, reservation) {
        (Some(_), _) => CapacityType::Spot,
        (None, Some(_)) => CapacityType::Reserved,
        (None, None) => CapacityType::OnDemand,
    };
    let reservation = reservation.filter(|_| capacity_type == CapacityType::Reserved);
    OfferingKey {
        instance_type: TypeName::from(instance_type),
        zone: Zone::from(zone),
        capacity_type,
        reservation: reservation.map(|id| Box::new(ReservationId::from(id))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Bought, offering_key};

    #[test]
    fn capacity_type_follows_the_purchase_option() {
        let only = Some("capacity-reservations-only");
        let (spot, id) = (Some("sir-1"), Some("cr-1"));
        let rows = [
            (None, None, None, "t z on-demand"),
            (spot, None, None, "t z spot"),
            (spot, id, only, "t z spot"),
            (None, id, only, "t z reserved cr-1"),
            (None, id, Some("open"), "t z on-demand"),
            (None, id, None, "t z on-demand"),
            // Its reservation has ended, and the instance continues on demand.
            (None, None, only, "t z on-demand"),
        ];
        for (spot_request, reservation, preference, expect) in rows {
            let bought = Bought { spot_request, reservation, preference };
            assert_eq!(offering_key("t", "z", bought).to_string(), expect, "{bought:?}");
        }
    }
}
