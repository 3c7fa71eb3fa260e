//! Where the instances of a node class are: subnets, security groups, interfaces, reservations,
//! placement groups. It must not know which of them there are.

use jiff::SignedDuration;

use crate::model::labels::Labels;

/// One way to find subnets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubnetTerm {
    /// This one.
    Id(String),
    /// Those with all these tags; the value `*` means that the key is there.
    Tags(Labels),
}

/// One way to find security groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityGroupTerm {
    /// This one.
    Id(String),
    /// Those of this group name, which is not the tag `Name`.
    Name(String),
    /// Those with all these tags; the value `*` means that the key is there.
    Tags(Labels),
}

/// Which launches a capacity reservation takes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchCriteria {
    /// Any that fits.
    Open,
    /// Those that name it.
    Targeted,
}

impl MatchCriteria {
    /// EC2's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Targeted => "targeted",
        }
    }
}

/// One way to find capacity reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationTerm {
    /// This one.
    Id(String),
    /// Those that fit all of these.
    Search {
        /// Account id of the owner.
        owner: Option<String>,
        /// Which launches they take by themselves.
        criteria: Option<MatchCriteria>,
        /// Tags; the value `*` means that the key is there.
        tags: Labels,
    },
}

/// How a placement group is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementGroupTerm {
    /// By id, `pg-…`.
    Id(String),
    /// By name.
    Name(String),
}

/// One network interface of an explicit layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Network card.
    pub card: u32,
    /// Device index on the card.
    pub device: u32,
    /// Whether it is an elastic fabric adapter without an address.
    pub efa_only: bool,
}

/// How long idle connections are remembered. Source: EC2, connection tracking of security groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionTracking {
    /// Of TCP connections, 60 s to 432,000 s.
    pub tcp_established: Option<SignedDuration>,
    /// Of UDP streams, 60 s to 180 s.
    pub udp_stream: Option<SignedDuration>,
    /// Of UDP in one direction or one exchange, 30 s to 60 s.
    pub udp: Option<SignedDuration>,
}
