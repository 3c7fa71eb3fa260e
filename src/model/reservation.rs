//! Capacity that the provider keeps for us: On-Demand Capacity Reservations and Capacity Blocks.
//! It must not know who has an instance of one, nor which types and zones it is for.

use jiff::{SignedDuration, Timestamp};

use crate::model::id::ReservationId;
use crate::model::labels::{
    Labels, OF_RESERVATIONS, RESERVATION_ID, RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE,
};

/// So long before its end nothing more is launched into a Capacity Block: EC2 ends its instances
/// half an hour before the end, and ten minutes are for leaving. Source: spec/aws.md §5.11.
pub const BLOCK_CLOSES: SignedDuration = SignedDuration::from_mins(40);

/// What kind of reservation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReservationKind {
    /// An On-Demand Capacity Reservation: its instances outlive it, on demand.
    Default,
    /// A Capacity Block: its instances end with it.
    CapacityBlock,
}

impl ReservationKind {
    /// All of them, as the label `karpenter.k8s.aws/capacity-reservation-type` spells them.
    pub const NAMES: [&str; 2] = ["default", "capacity-block"];

    /// The spelling of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }

    /// The kind of this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "default" => Some(Self::Default),
            "capacity-block" => Some(Self::CapacityBlock),
            _ => None,
        }
    }
}

/// A reservation as the provider counted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Id.
    pub id: ReservationId,
    /// Kind.
    pub kind: ReservationKind,
    /// Whether its owner may take its instances back.
    pub interruptible: bool,
    /// How many instances it is for.
    pub total: u32,
    /// How many more it took when it was counted.
    pub left: u32,
    /// When that was: what was launched later, or is about to be, has yet to be taken off. None
    /// where `left` is of the reservation as such, and every instance in it has to be taken off.
    pub counted: Option<Timestamp>,
    /// When it ends; none where it ends when someone cancels it.
    pub ends: Option<Timestamp>,
}

impl Reservation {
    /// A reservation for so many instances, of which nobody has any.
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

    /// Whether anything may still be launched into it, as far as time goes.
    pub fn is_open(&self, now: Timestamp) -> bool {
        let notice = match self.kind {
            ReservationKind::Default => SignedDuration::ZERO,
            ReservationKind::CapacityBlock => BLOCK_CLOSES,
        };
        self.ends
            .is_none_or(|ends| ends.duration_since(now) > notice)
    }

    /// Which of several that cost the same is used first: the one whose instances may stay longest.
    /// Source: spec/aws.md §5.2 and §10, 52.
    pub fn rank(&self) -> u8 {
        match self.kind {
            _ if self.interruptible => 2,
            ReservationKind::CapacityBlock => 1,
            ReservationKind::Default => 0,
        }
    }

    /// What a label of a node in it is, if the reservation decides that label.
    pub fn label(&self, key: &str) -> Option<&str> {
        match key {
            RESERVATION_ID => Some(self.id.as_str()),
            RESERVATION_TYPE => Some(self.kind.as_str()),
            RESERVATION_INTERRUPTIBLE if self.interruptible => Some("true"),
            RESERVATION_INTERRUPTIBLE => Some("false"),
            _ => None,
        }
    }

    /// The labels of a node in it.
    pub fn labels(&self) -> Labels {
        let pair = |key: &str| Some((key.to_owned(), self.label(key)?.to_owned()));
        OF_RESERVATIONS.into_iter().filter_map(pair).collect()
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
            let own = Reservation {
                kind,
                ends: Some(ends),
                ..Reservation::new("cr-1", 1)
            };
            let now = ends - SignedDuration::from_mins(minutes_before);
            assert_eq!(own.is_open(now), open, "{kind:?} {minutes_before}");
        }
        let now = ends;
        assert!(Reservation::new("cr-1", 1).is_open(now));
    }

    #[test]
    fn nodes_say_which_kind_of_reservation_they_are_in() {
        let cases = [
            (
                ReservationKind::Default,
                false,
                ["cr-1", "default", "false"],
            ),
            (ReservationKind::Default, true, ["cr-1", "default", "true"]),
            (
                ReservationKind::CapacityBlock,
                false,
                ["cr-1", "capacity-block", "false"],
            ),
        ];
        for (kind, interruptible, expect) in cases {
            let own = Reservation {
                kind,
                interruptible,
                ..Reservation::new("cr-1", 1)
            };
            let labels = own.labels();
            let own = OF_RESERVATIONS.map(|key| labels[key].as_str());
            assert_eq!(own, expect, "{kind:?} {interruptible}");
        }
    }
}
