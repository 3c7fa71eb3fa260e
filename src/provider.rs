//! The contract between the engine and the providers, which launch instances: launch requests,
//! results, refusals, failures and interruptions.
//!
//! ```text
//! engine ─► Launch, Adoption ─► provider ─┬─► CommandResult ─► engine
//!                                         └─► Interruption ──► engine
//! ```
//!
//! `engine/command` has the commands, and `engine/event` the events that carry a result or an
//! interruption.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::coordination::lease_annotations::AnnotatedLease;
use crate::model::claim::{ClaimRecord, TAG_EKS, TAG_NAME, TAG_OWNED};
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::id::InstanceId;
use crate::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use crate::model::labels::Labels;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::taint::Taint;
use crate::model::watched_object::Attachment;

/// A launch of one instance for one claim. A repeated launch of the same claim launches no second
/// instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The claim; its id is the client token.
    pub claim: ClaimRecord,
    /// The offerings to launch, cheapest first.
    pub offerings: Vec<OfferingKey>,
    /// Labels with which the node registers.
    pub labels: Labels,
    /// Taints with which the node registers, including startup taints and the unregistered taint.
    pub taints: Vec<Taint>,
    /// Tags for all resources that the launch creates: those of the claim and those of the user.
    pub tags: Labels,
    /// Resources that its pods request and that a launch template has to provide, such as network
    /// adapters.
    pub devices: BTreeSet<String>,
    /// True if the order of the offerings depends on price overlays, which the provider does not
    /// know.
    pub overlaid: bool,
    /// True if the launch may continue with fewer values than `min_values` of the pool requires.
    pub relaxed: bool,
    /// True if the pool has `min_values`, so that all offerings are part of the launch.
    pub varied: bool,
}

impl Launch {
    /// Returns the offerings for one call, cheapest first: those with the capacity type of the
    /// cheapest one, without spot offerings that cost more than the cheapest on-demand offering.
    /// For a pool with `min_values`, all offerings are returned. Offerings that are not returned
    /// are left to the next plan. Source: spec/aws.md §5.2, 6;
    /// docs/decisions/016-one-call-buys-one-way.md.
    pub fn requested_offerings(&self) -> impl Iterator<Item = &OfferingKey> {
        requested_offerings(&self.offerings, self.varied)
    }

    /// Returns the tags of the instance and its resources: those of the user, those that EKS and
    /// its controllers require, and those of the claim.
    pub fn tags_of(cluster: &Cluster, record: &ClaimRecord) -> Labels {
        let mut tags = cluster.tags_of(record.node_class.as_ref());
        if let Some(eks) = &cluster.eks {
            let name = eks.name.as_deref().unwrap_or(cluster.name.as_str());
            tags.insert(TAG_EKS.to_owned(), name.to_owned());
            tags.insert(format!("{TAG_OWNED}{name}"), "owned".to_owned());
        }
        tags.extend(record.to_tags());
        tags
    }

    /// Returns the tags of a new instance: also `Name`, the cluster and the pool, unless the user
    /// sets it. An adopted instance keeps its name.
    pub fn tags_of_new(cluster: &Cluster, record: &ClaimRecord) -> Labels {
        let mut tags = Self::tags_of(cluster, record);
        let name = || format!("{}/{}", record.cluster, record.pool);
        tags.entry(TAG_NAME.to_owned()).or_insert_with(name);
        tags
    }
}

/// Like [`Launch::requested_offerings`], for a claim without a launch. `varied` is
/// [`Launch::varied`].
pub(crate) fn requested_offerings(
    offerings: &[OfferingKey],
    varied: bool,
) -> impl Iterator<Item = &OfferingKey> {
    let capacity_type = offerings.first().map(|offering| offering.capacity_type);
    // The spot offerings after an on-demand offering cost more.
    let stops_at_on_demand = capacity_type == Some(CapacityType::Spot) && !varied;
    offerings
        .iter()
        .take_while(move |offering| {
            !stops_at_on_demand || offering.capacity_type != CapacityType::OnDemand
        })
        .filter(move |offering| Some(offering.capacity_type) == capacity_type)
}

/// The adoption of an instance that Karpenter launched for a configured pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The claim to record in its tags.
    pub claim: ClaimRecord,
    /// The instance, as its Node describes it.
    pub instance: InstanceId,
    /// Its offering, as its Node describes it.
    pub offering: OfferingKey,
    /// The tags to add.
    pub tags: Labels,
}

impl Adoption {
    /// Returns the instance as its Node describes it, with the added tags.
    pub fn adopted_instance(&self) -> Instance {
        Instance {
            id: self.instance.clone(),
            offering: self.offering.clone(),
            state: InstanceState::Running,
            launched: self.claim.created,
            tags: self.tags.clone().into(),
            node: None,
            facts: None,
        }
    }
}

/// Why an offering was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// The provider has no capacity.
    InsufficientCapacity,
    /// A limit of the account is reached.
    LimitExceeded,
    /// The capacity reservation is used up.
    ReservationExceeded,
    /// The provider does not support this combination.
    Unsupported,
    /// The account may not launch spot instances.
    SpotDenied,
    /// No subnet in the zone has a free IP address, or the zone has no subnet.
    NoAddress,
    /// The placement group has no capacity in the zone.
    PlacementExceeded,
    /// The node class has no image for the instance type.
    NoImage,
}

impl RefusalKind {
    /// All kinds, with their names in logs and metrics.
    pub const ALL: [(Self, &str); 8] = [
        (Self::InsufficientCapacity, "insufficient-capacity"),
        (Self::LimitExceeded, "limit-exceeded"),
        (Self::ReservationExceeded, "reservation-capacity-exceeded"),
        (Self::Unsupported, "unsupported"),
        (Self::SpotDenied, "spot-denied"),
        (Self::NoAddress, "no-address"),
        (Self::PlacementExceeded, "placement-exceeded"),
        (Self::NoImage, "no-image"),
    ];

    /// Returns the name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.iter().find(|(kind, _)| *kind == self);
        found.map_or("", |(_, name)| name)
    }

    /// Returns whether other launches of the offering would be refused as well. Refusals that
    /// depend on a launch template, subnet or image concern one node class.
    pub fn is_general(self) -> bool {
        use RefusalKind::{InsufficientCapacity, LimitExceeded, ReservationExceeded, SpotDenied};
        matches!(self, InsufficientCapacity | LimitExceeded | ReservationExceeded | SpotDenied)
    }
}

/// An offering that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferingRefusal {
    /// The offering.
    pub offering: OfferingKey,
    /// The cause.
    pub kind: RefusalKind,
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The object has changed: decide again.
    Conflict,
    /// The object no longer exists.
    Gone,
    /// The provider refused the request because of too many requests: retry later.
    Throttled,
    /// The request was not sent, because too many requests wait for a rate limit: retry later.
    Busy,
    /// Permission denied: a retry fails until a permission is granted.
    Denied,
    /// The request is invalid.
    Invalid,
    /// No answer: the command may or may not have taken effect.
    Unknown,
    /// The engine cancelled the command before it was sent.
    Withdrawn,
}

impl FailureKind {
    /// Returns the name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Gone => "gone",
            Self::Throttled => "throttled",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// The result of a command. Each command has exactly one result. The API server and the fleet
/// execute commands too, so their results are included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// `Launch`: the instance, even if an earlier launch of the claim created it.
    Launched(Instance),
    /// `Launch`: no instance was launched, and these offerings were refused.
    LaunchRefused(Vec<OfferingRefusal>),
    /// `Terminate`: the current state of the instance.
    Terminating(InstanceState),
    /// `ListInstances`: all instances.
    Instances(Vec<Instance>),
    /// `Evict`: a PodDisruptionBudget refused it. The value is the truncated message of the API
    /// server.
    EvictRefused(String),
    /// `ListPodsOn`: all pods bound to the node.
    Pods(Vec<Pod>),
    /// `ListAttachments`: all volumes that are attached to the node or being attached.
    Attachments(Vec<Attachment>),
    /// `Probe`: how many of the objects still exist.
    Probed {
        /// Number of existing objects.
        alive: usize,
    },
    /// `ReadLease`, `PatchLease`: the current Lease. `None` if there is none.
    Lease(Option<AnnotatedLease>),
    /// `PatchBuffer`: the new version of the object.
    Version(String),
    /// `RequestGrant`, `RequestDisruption`: granted, until the claim releases it.
    Granted,
    /// `RequestGrant`, `RequestDisruption`: denied by a limit or budget.
    Denied {
        /// The limit or budget, with its numbers.
        why: String,
        /// True if the capacity reservation of the claim is used up.
        used_up: bool,
        /// The remaining capacity of this cluster.
        view: Arc<FleetView>,
    },
    /// All other commands: done.
    Done,
    /// The command failed.
    Failed {
        /// Kind of failure.
        kind: FailureKind,
        /// Error message, truncated and without secrets.
        text: String,
    },
}

impl CommandResult {
    /// Returns the kind of failure, if the command failed.
    pub fn failure(&self) -> Option<FailureKind> {
        match self {
            Self::Failed { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

/// Shows the sender of an interruption notice that the engine has handled it: the message may then
/// be deleted from its queue. Clones share the state. An engine that stops acknowledges nothing.
#[derive(Clone, Debug, Default)]
pub struct NoticeReceipt(Arc<AtomicBool>);

impl NoticeReceipt {
    /// Records that the notice is handled.
    pub fn acknowledge(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the notice is handled.
    pub fn is_acknowledged(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A provider notice about an instance. The variants are ordered: later ones leave less time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interruption {
    /// The instance may be interrupted soon.
    Rebalance,
    /// The machine that hosts the instance is scheduled for maintenance.
    Maintenance,
    /// The capacity reservation of the instance reclaims it.
    Reservation,
    /// The instance is a spot instance that is interrupted in two minutes.
    Spot,
    /// The instance is being stopped or terminated.
    Stopping,
    /// The status checks of the instance fail. The instance is terminated without waiting for its
    /// pods.
    Failed,
}

impl Interruption {
    /// Returns the name in logs and metrics. Source: spec/aws.md §6.1.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rebalance => "rebalance_recommendation",
            Self::Maintenance => "scheduled_change",
            Self::Reservation => "capacity_reservation_interrupted",
            Self::Spot => "spot_interrupted",
            Self::Stopping => "instance_stopping",
            Self::Failed => "instance_status_failed",
        }
    }

    /// Returns the disruption reason.
    pub fn disruption_reason(self) -> Reason {
        match self {
            Self::Failed => Reason::Unhealthy,
            _ => Reason::Interrupted,
        }
    }
}
