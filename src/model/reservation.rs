//! Capacity reservations: On-Demand Capacity Reservations and Capacity Blocks.

use jiff::{SignedDuration, Timestamp};

use crate::model::id::ReservationId;
use crate::model::labels::{
    Labels, OF_RESERVATIONS, RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE,
};
use crate::model::named_enum::named_enum;

/// No instance is launched into a Capacity Block this long before its end: EC2 terminates its
/// instances half an hour before the end, and ten minutes are reserved for the drain. Source:
/// spec/aws.md §5.11.
pub const BLOCK_CLOSES: SignedDuration = SignedDuration::from_mins(40);

named_enum! {
    /// The kind of a reservation. The names are values of the label
    /// `karpenter.k8s.aws/capacity-reservation-type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ReservationKind {
        /// An On-Demand Capacity Reservation. Its instances continue as on-demand instances after
        /// it ends.
        Default => "default",
        /// A Capacity Block. Its instances are terminated when it ends.
        CapacityBlock => "capacity-block",
    }
}

/// A reservation with its available capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// ID.
    pub id: ReservationId,
    /// Kind.
    pub kind: ReservationKind,
    /// Whether its owner can reclaim its instances.
    pub interruptible: bool,
    /// Total number of instances.
    pub total: u32,
    /// Number of available instances at the time `counted`.
    pub left: u32,
    /// When `left` was counted. Later launches and launches in progress are subtracted from it.
    /// `None` if `left` is the total, from which all running instances are subtracted.
    pub counted: Option<Timestamp>,
    /// When the reservation ends. `None` if it ends only when it is cancelled.
    pub ends: Option<Timestamp>,
}

impl Reservation {
    /// A reservation for `total` instances, none of them used.
    pub fn new(id: &str, total: u32) -> Self {
        Self {
            id: id.into(),
            kind: ReservationKind::Default,
            interruptible: false,
            total,
            left: total,
            counted: None,
            ends: None,
        }
    }

    /// Returns whether instances may still be launched into the reservation at this time.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let notice = match self.kind {
            ReservationKind::Default => SignedDuration::ZERO,
            ReservationKind::CapacityBlock => BLOCK_CLOSES,
        };
        self.ends.is_none_or(|ends| ends.duration_since(now) > notice)
    }

    /// Rank among reservations of the same price: the lowest rank, with the longest-lived
    /// instances, is used first. Source: spec/aws.md §5.2 and §10, 52.
    pub fn rank(&self) -> u8 {
        match self.kind {
            _ if self.interruptible => 2,
            ReservationKind::CapacityBlock => 1,
            ReservationKind::Default => 0,
        }
    }

    /// The value of a node label, if the reservation determines that label.
    pub fn label_value(&self, key: &str) -> Option<&str> {
        match key {
            RESERVATION_ID => Some(self.id.as_str()),
            RESERVATION_TYPE => Some(self.kind.as_str()),
            RESERVATION_INTERRUPTIBLE if self.interruptible => Some("true"),
            RESERVATION_INTERRUPTIBLE => Some("false"),
            _ => None,
        }
    }

    /// The labels of a node in the reservation.
    pub fn node_labels(&self) -> Labels {
        OF_RESERVATIONS
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), self.label_value(key)?.to_owned())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::{OF_RESERVATIONS, Reservation, ReservationKind};

    #[test]
    fn a_capacity_block_closes_forty_minutes_before_its_end() {
        let ends = Timestamp::from_second(1_800_000_000).expect("in range");
        let cases = [
            (ReservationKind::Default, 1, true),
            (ReservationKind::Default, 0, false),
            (ReservationKind::CapacityBlock, 41, true),
            (ReservationKind::CapacityBlock, 40, false),
        ];
        for (kind, minutes_before, open) in cases {
            let reservation = Reservation { kind, ends: Some(ends), ..Reservation::new("cr-1", 1) };
            let now = ends - SignedDuration::from_mins(minutes_before);
            assert_eq!(reservation.is_open(now), open, "{kind:?} {minutes_before}");
        }
        let now = ends;
        assert!(Reservation::new("cr-1", 1).is_open(now));
    }

    #[test]
    fn node_labels_name_the_kind_of_reservation() {
        let cases = [
            (ReservationKind::Default, false, ["cr-1", "default", "false"]),
            (ReservationKind::Default, true, ["cr-1", "default", "true"]),
            (ReservationKind::CapacityBlock, false, ["cr-1", "capacity-block", "false"]),
        ];
        for (kind, interruptible, expect) in cases {
            let reservation = Reservation { kind, interruptible, ..Reservation::new("cr-1", 1) };
            let labels = reservation.node_labels();
            let values = OF_RESERVATIONS.map(|key| labels[key].as_str());
            assert_eq!(values, expect, "{kind:?} {interruptible}");
        }
    }
}
