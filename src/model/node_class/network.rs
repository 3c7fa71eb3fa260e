//! Subnets, security groups, network interfaces, capacity reservations and placement groups of a
//! node class.

use jiff::SignedDuration;

use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;

/// A subnet term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubnetTerm {
    /// The subnet with this ID.
    Id(String),
    /// The subnets with all these tags. The value `*` matches any value.
    Tags(Labels),
}

/// A security group term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityGroupTerm {
    /// The security group with this ID.
    Id(String),
    /// The security groups with this group name, which is not the tag `Name`.
    Name(String),
    /// The security groups with all these tags. The value `*` matches any value.
    Tags(Labels),
}

named_enum! {
    /// Which launches a capacity reservation accepts. The names are those of EC2.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MatchCriteria {
        /// Any matching launch.
        Open => "open",
        /// Only launches that target the reservation.
        Targeted => "targeted",
    }
}

/// A capacity reservation term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationTerm {
    /// The capacity reservation with this ID.
    Id(String),
    /// The capacity reservations that match all fields.
    Search {
        /// Account ID of the owner.
        owner: Option<String>,
        /// Which launches the reservations accept.
        criteria: Option<MatchCriteria>,
        /// Tags. The value `*` matches any value.
        tags: Labels,
    },
}

/// A placement group term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementGroupTerm {
    /// The placement group with this ID, `pg-…`.
    Id(String),
    /// The placement group with this name.
    Name(String),
}

/// A network interface of an explicit layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Network card.
    pub card: u32,
    /// Device index on the card.
    pub device: u32,
    /// Whether the interface is an elastic fabric adapter without an IP address.
    pub efa_only: bool,
}

/// Timeouts of idle connections. Source: EC2, connection tracking of security groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionTracking {
    /// TCP connections, 60 s to 432,000 s.
    pub tcp_established: Option<SignedDuration>,
    /// UDP streams, 60 s to 180 s.
    pub udp_stream: Option<SignedDuration>,
    /// UDP with traffic in one direction or a single request and response, 30 s to 60 s.
    pub udp: Option<SignedDuration>,
}
