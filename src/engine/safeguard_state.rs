//! State of the safeguards. Every pass and every termination uses them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::cluster::Cluster;
use crate::model::id::{ClaimId, PoolName, TypeName, Zone};
use crate::state::cluster_identity::HeldEnds;

/// Limits on changes and on terminations without a drain.
#[derive(Debug, Default)]
pub(super) struct Safeguards {
    pub(super) changes: ChangeSafeguard,
    pub(super) undrained: UndrainedTerminations,
    pub(super) registration_backoff: RegistrationBackoff,
}

/// Whether the disruptions of a changed configuration have been checked.
#[derive(Debug, Default)]
pub(super) struct ChangeSafeguard {
    /// True if the suspension because of unready nodes was reported.
    pub(super) ailing: bool,
    /// True if the disruptions of the configuration still have to be checked.
    pub(super) changed: bool,
    /// True if the disruptions of any configuration were ever checked.
    pub(super) weighed: bool,
    /// The last checked configuration, if it was replaced.
    pub(super) before: Option<Arc<Cluster>>,
}

/// Terminations without a drain: the recent ones, and the claims that may be next.
#[derive(Clone, Debug, Default)]
pub(super) struct UndrainedTerminations {
    /// Times of recent terminations without a drain.
    pub(super) ended: VecDeque<Timestamp>,
    /// Claims without a Node although they had one or should have one, and since when.
    pub(super) missing: BTreeMap<ClaimId, Timestamp>,
    /// The claims of `missing` that were within the limit at the last comparison.
    pub(super) tolerated: BTreeSet<ClaimId>,
    /// Claims whose Node this process has seen ready or with user pods.
    pub(super) used: BTreeSet<ClaimId>,
    /// Claims that were older than the registration timeout when this process first saw the
    /// cluster.
    pub(super) old: BTreeSet<ClaimId>,
    /// Claims whose termination was blocked in the current pass.
    pub(super) refused: BTreeSet<ClaimId>,
    /// Claims of version 0.1 that were blocked in this pass because none of them has a ready Node.
    pub(super) unmarked: BTreeSet<ClaimId>,
    /// Claims that the safeguard blocks, as last reported.
    pub(super) braked: BTreeSet<ClaimId>,
    /// All claims that wait for approval, as last reported.
    pub(super) held: Option<HeldEnds>,
    /// The approvals that a user can give.
    pub(super) offers: VecDeque<HeldEnds>,
    /// Claims that may be terminated, because a user has approved it and no Node has registered
    /// since.
    pub(super) accepted: BTreeSet<ClaimId>,
}

/// Launch back-off of pools whose nodes do not register.
#[derive(Clone, Debug, Default)]
pub(super) struct RegistrationBackoff {
    pub(super) failing: BTreeMap<PoolName, Failing>,
    /// Launch time of the youngest registered node, by pool and zone.
    pub(super) registered: BTreeMap<(PoolName, Zone), Timestamp>,
    /// Instances that the provider has ended before their nodes registered, by pool and zone, since
    /// a node registered there.
    pub(super) ended: BTreeMap<(PoolName, Zone), Wait>,
}

/// A pool whose nodes do not register.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    /// The hashes of the pool and its node class. The back-off ends if a hash changes.
    pub(super) hashes: (String, String),
    /// When the first node that did not register was launched.
    pub(super) launched: Timestamp,
    /// The wait before a test node in any zone, until a node has registered.
    pub(super) all: Wait,
    pub(super) zones: BTreeMap<Zone, Wait>,
    /// Zones in which a node launched after `launched` has registered.
    pub(super) proven: BTreeSet<Zone>,
    /// Number of failures by instance type.
    pub(super) types: BTreeMap<TypeName, u32>,
}

/// A wait before the next test node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// Number of failures.
    pub(super) failures: u32,
    /// When the last failure was.
    pub(super) since: Timestamp,
    /// When the next test node is launched.
    pub(super) until: Timestamp,
}
