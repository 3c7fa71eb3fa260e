//! The commands that an engine can issue, one API call each, and their results.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::lease_annotations::AnnotatedLease;
use crate::model::buffer_object::BufferStatus;
use crate::model::claim::{ClaimRecord, TAG_EKS, TAG_OWNED};
use crate::model::cluster::Cluster;
use crate::model::fleet::{ClaimUsage, DisruptionUsage, FleetView, GrantRequest};
use crate::model::id::{ClaimId, InstanceId, NodeName, ObjectKey, PodKey, TypeName};
use crate::model::instance::{CapacityType, Instance, InstanceState, OfferingKey, UnavailableKey};
use crate::model::labels::Labels;
use crate::model::node::Node;
use crate::model::pod::Pod;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::model::taint::Taint;
use crate::model::watched_object::{Attachment, ObjectKind};

/// A launch of one instance for one claim. Repeating it with the same claim launches nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The claim; its id is the client token.
    pub claim: ClaimRecord,
    /// The offerings to launch, cheapest first.
    pub offerings: Vec<OfferingKey>,
    /// Labels the node registers with.
    pub labels: Labels,
    /// Taints the node registers with, startup taints and the unregistered taint included.
    pub taints: Vec<Taint>,
    /// Tags for all resources that the launch creates: the claim's and the user's.
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
    /// cheapest one, without spot offerings that cost more than the cheapest on-demand offering. A
    /// pool with `min_values` uses all of them. The next plan uses the rest.
    /// Source: spec/aws.md §5.2, 6; docs/decisions/016-one-call-buys-one-way.md.
    pub fn requested_offerings(&self) -> impl Iterator<Item = &OfferingKey> {
        requested_offerings(&self.offerings, self.varied)
    }

    /// Returns the tags of the instance and its resources: the user's, those that EKS and its
    /// controllers require, and the claim's.
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

/// A change of one Node. It is written only if the object still has the version that the engine
/// decided on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePatch {
    /// The node.
    pub node: NodeName,
    /// Version the object must still have.
    pub version: String,
    /// Labels to set. `None` removes one.
    pub labels: Vec<(String, Option<String>)>,
    /// Annotations to set. `None` removes one.
    pub annotations: Vec<(String, Option<String>)>,
    /// All taints of the Node. `None` keeps the current ones.
    pub taints: Option<Vec<Taint>>,
    /// All finalizers of the Node. `None` keeps the current ones.
    pub finalizers: Option<Vec<String>>,
    /// UID of the owner reference to remove. Nothing else is changed with it.
    pub disowned: Option<String>,
}

impl NodePatch {
    /// Returns a patch of a Node that changes nothing yet.
    pub(super) fn for_node(node: &Node) -> Self {
        Self { node: node.name.clone(), version: node.version.clone(), ..Self::default() }
    }

    /// Returns the changes that set these labels or annotations.
    pub(super) fn set_values(values: Labels) -> Vec<(String, Option<String>)> {
        values.into_iter().map(|(key, value)| (key, Some(value))).collect()
    }
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

/// A Node that is created before its kubelet registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// The name that its kubelet will have.
    pub name: NodeName,
    /// `spec.providerID`, as its kubelet would write it.
    pub provider_id: String,
    /// Labels of the Node.
    pub labels: Labels,
    /// Annotations of the Node.
    pub annotations: Labels,
    /// Taints of the Node.
    pub taints: Vec<Taint>,
    /// Its expected capacity.
    pub capacity: Resources,
    /// Its expected allocatable resources.
    pub allocatable: Resources,
}

/// The whole status of a CapacityBuffer. It is written only if the object still has the version
/// that the engine decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferPatch {
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// The API version to use.
    pub api: &'static str,
    /// Version the object must still have.
    pub version: String,
    /// The new status.
    pub status: BufferStatus,
}

/// A change of the cluster's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePatch {
    /// Version the Lease must still have. `None` creates the Lease and requires that none exists.
    pub version: Option<String>,
    /// Annotations to set. `None` removes one.
    pub annotations: Vec<(String, Option<String>)>,
}

/// One command: one API call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Launch an instance.
    Launch(Box<Launch>),
    /// Terminate an instance.
    Terminate {
        /// Its claim, for the log.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
    },
    /// Add these tags to instances, or overwrite existing values.
    Tag {
        /// The instances, all of claims of this cluster.
        instances: Vec<InstanceId>,
        /// The tags.
        tags: Labels,
    },
    /// Tag an instance that has Karpenter's tags for its cluster and pool, and no other owner's.
    Adopt(Box<Adoption>),
    /// Record the memory that nodes of an instance type and image report, if it is the first report
    /// or less than recorded.
    SaveDiscoveredMemory {
        /// The instance type.
        instance_type: TypeName,
        /// ID of the image.
        image: String,
        /// Memory in bytes.
        memory: i64,
    },
    /// List all instances of the installation and cluster, including terminated ones while the
    /// provider lists them.
    ListInstances,
    /// Create a Node before its kubelet registers. Returns a conflict if a Node of this name
    /// exists.
    CreateNode(Box<NewNode>),
    /// Bind a pending pod to a node, if it still has this UID. Returns a conflict if a different
    /// client has bound it.
    Bind {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The node.
        node: NodeName,
    },
    /// Delete a pod, if it still has this UID, regardless of its PodDisruptionBudgets. A pod that
    /// is already terminating gets the shorter grace period.
    DeletePod {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// Grace period in seconds. Zero is only for pods that were bound to a node that never
        /// registered: nothing of them runs. For others, two pods of one name could run.
        grace_seconds: u32,
    },
    /// Change a Node.
    PatchNode(NodePatch),
    /// Delete a Node object, if it still has this UID.
    DeleteNode {
        /// The node.
        node: NodeName,
        /// UID it must have.
        uid: String,
    },
    /// Evict a pod, if it still has this UID.
    Evict {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
    },
    /// Nominate a node for a pending pod, if it still has this UID and no other nomination. The
    /// scheduler tries this node first and reserves its capacity. Source: Kubernetes, KEP-1923 and
    /// KEP-5278.
    Nominate {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The node.
        node: NodeName,
    },
    /// Remove the nomination of a pending pod, if it still has this UID and this nomination.
    ClearNomination {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The nominated node.
        node: NodeName,
    },
    /// List the pods bound to a node, directly from the API server without a cache.
    ListPodsOn {
        /// The node.
        node: NodeName,
    },
    /// List the VolumeAttachments of a node, directly from the API server.
    ListAttachments {
        /// The node.
        node: NodeName,
    },
    /// Get single objects by name, to find which ones still exist with this UID.
    Probe {
        /// Their kind.
        kind: ObjectKind,
        /// Key and UID of each.
        objects: Vec<(ObjectKey, String)>,
    },
    /// Drop the watch of a kind and restart it with a full listing.
    Rewatch {
        /// The kind.
        kind: ObjectKind,
    },
    /// Read the cluster's Lease: pauses and recorded disruptions.
    ReadLease,
    /// Change or create the cluster's Lease.
    PatchLease(LeasePatch),
    /// Write the status of a CapacityBuffer.
    PatchBuffer(Box<BufferPatch>),
    /// Request the usage of a claim from the fleet, before its launch.
    RequestGrant(Box<GrantRequest>),
    /// Request the fleet's permission to disrupt a node, before its taint.
    RequestDisruption {
        /// Its claim.
        claim: ClaimId,
        /// The disruption reason.
        reason: Reason,
    },
    /// Report to the fleet what its disruption budgets count.
    ReportDisruptions(Box<DisruptionUsage>),
    /// Report to the fleet what claims use. Reported usage counts even if it was not granted.
    ReportUsage {
        /// True if the report is complete, so that claims missing from it use nothing.
        whole: bool,
        /// The usage of each claim. `None` releases it.
        claims: Vec<(ClaimId, Option<ClaimUsage>)>,
    },
    /// Report unavailable offerings to all clusters that launch in the same place.
    MarkUnavailable {
        /// The unavailable offerings.
        what: Vec<UnavailableKey>,
        /// End of the back-off.
        until: Timestamp,
    },
}

impl Command {
    /// Returns whether the command changes nothing in the cluster or at the provider, and prepares
    /// no change.
    pub fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::ListInstances
                | Self::ListPodsOn { .. }
                | Self::ListAttachments { .. }
                | Self::Probe { .. }
                | Self::Rewatch { .. }
                | Self::SaveDiscoveredMemory { .. }
                | Self::ReadLease
                | Self::ReportDisruptions(_)
                | Self::ReportUsage { .. }
                | Self::MarkUnavailable { .. }
        )
    }

    /// Returns whether the command binds pods early. These commands go first, because the node may
    /// register at any moment.
    pub fn binds_early(&self) -> bool {
        matches!(self, Self::CreateNode(_) | Self::Bind { .. })
    }

    /// Returns whether the command changes anything in the cluster or outside it. Only the leader
    /// may send it.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Launch(_)
            | Self::Terminate { .. }
            | Self::Tag { .. }
            | Self::Adopt(_)
            | Self::CreateNode(_)
            | Self::Bind { .. }
            | Self::DeletePod { .. }
            | Self::PatchNode(_)
            | Self::DeleteNode { .. }
            | Self::Evict { .. }
            | Self::Nominate { .. }
            | Self::ClearNomination { .. }
            | Self::PatchLease(_)
            | Self::PatchBuffer(_) => true,
            Self::SaveDiscoveredMemory { .. }
            | Self::ListInstances
            | Self::Rewatch { .. }
            | Self::ListPodsOn { .. }
            | Self::ListAttachments { .. }
            | Self::Probe { .. }
            | Self::ReadLease
            | Self::RequestGrant(_)
            | Self::RequestDisruption { .. }
            | Self::ReportDisruptions(_)
            | Self::ReportUsage { .. }
            | Self::MarkUnavailable { .. } => false,
        }
    }

    /// Returns whether the fleet executes the command.
    pub fn is_for_fleet(&self) -> bool {
        matches!(
            self,
            Self::RequestGrant(_)
                | Self::RequestDisruption { .. }
                | Self::ReportDisruptions(_)
                | Self::ReportUsage { .. }
                | Self::MarkUnavailable { .. }
        )
    }

    /// Returns the name in logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Launch(_) => "launch",
            Self::Terminate { .. } => "terminate",
            Self::Tag { .. } => "tag",
            Self::Adopt(_) => "adopt",
            Self::SaveDiscoveredMemory { .. } => "save_discovered_memory",
            Self::ListInstances => "list_instances",
            Self::CreateNode(_) => "create_node",
            Self::Bind { .. } => "bind",
            Self::DeletePod { .. } => "delete_pod",
            Self::PatchNode(_) => "patch_node",
            Self::DeleteNode { .. } => "delete_node",
            Self::Evict { .. } => "evict",
            Self::Nominate { .. } => "nominate",
            Self::ClearNomination { .. } => "clear_nomination",
            Self::ListPodsOn { .. } => "list_pods_on",
            Self::ListAttachments { .. } => "list_attachments",
            Self::Probe { .. } => "probe",
            Self::Rewatch { .. } => "rewatch",
            Self::ReadLease => "read_lease",
            Self::PatchLease(_) => "patch_lease",
            Self::PatchBuffer(_) => "patch_buffer",
            Self::RequestGrant(_) => "request_grant",
            Self::RequestDisruption { .. } => "request_disruption",
            Self::ReportDisruptions(_) => "report_disruptions",
            Self::ReportUsage { .. } => "report_usage",
            Self::MarkUnavailable { .. } => "mark_unavailable",
        }
    }
}

/// Number of a command within one engine. It matches a result to its command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

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
    /// Too many requests: retry later.
    Throttled,
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
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// The result of a command. Each command has exactly one result.
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
    /// `Evict`: a PodDisruptionBudget refused it. The message is the API server's, truncated.
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
    pub(super) fn failure(&self) -> Option<FailureKind> {
        match self {
            Self::Failed { kind, .. } => Some(*kind),
            _ => None,
        }
    }
}

/// A command to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCommand {
    /// Its number.
    pub id: CommandId,
    /// The command.
    pub command: Command,
}
