//! Everything the engine can ask to be done, one API call each, and the answers it can get.
//! It must not know who carries a command out.

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
    /// What may be launched, cheapest first.
    pub offerings: Vec<OfferingKey>,
    /// Labels the node registers with.
    pub labels: Labels,
    /// Taints the node registers with, startup taints and the unregistered taint included.
    pub taints: Vec<Taint>,
    /// Tags for all that the launch makes: the claim's and the user's.
    pub tags: Labels,
    /// Resources that its pods ask for and that a template has to provide for, such as network
    /// adapters.
    pub devices: BTreeSet<String>,
    /// Whether the order of the offerings follows from prices that the provider does not know.
    pub overlaid: bool,
    /// Whether the offerings are of fewer kinds than the pool asks for (`min_values`), and fewer
    /// will do.
    pub relaxed: bool,
    /// Whether the pool asks for several values of a label (`min_values`), so that whatever is
    /// offered counts.
    pub varied: bool,
}

impl Launch {
    /// What one call is to buy of the offerings, cheapest first: all that is bought as the cheapest
    /// is, but no spot that costs more than the cheapest on demand, unless the pool wants variety.
    /// The rest is for the next plan.
    /// Source: spec/aws.md §5.2, 6; docs/decisions/016-one-call-buys-one-way.md.
    pub fn to_buy(&self) -> impl Iterator<Item = &OfferingKey> {
        to_buy(&self.offerings, self.varied)
    }

    /// The tags of what is launched for a claim: the user's, those by which EKS and its controllers
    /// know their instances, and the claim's.
    pub fn tags_of(cluster: &Cluster, record: &ClaimRecord) -> Labels {
        let mut tags = cluster.tags_of(record.node_class.as_ref());
        if let Some(eks) = &cluster.eks {
            let name = eks.name.as_deref().unwrap_or(cluster.name.as_str());
            tags.insert(TAG_EKS.to_owned(), name.to_owned());
            tags.insert(format!("{TAG_OWNED}{name}"), "owned".to_owned());
        }
        tags.extend(record.tags());
        tags
    }
}

/// Does what [`Launch::to_buy`] does, for offerings of a claim that has no launch yet; `varied` is
/// [`Launch::varied`].
pub(crate) fn to_buy(
    offerings: &[OfferingKey],
    varied: bool,
) -> impl Iterator<Item = &OfferingKey> {
    let way = offerings.first().map(|own| own.capacity_type);
    let is_dearer_spot = move |own: &&OfferingKey| {
        let spot = way == Some(CapacityType::Spot) && !varied;
        spot && own.capacity_type == CapacityType::OnDemand
    };
    let all = offerings.iter();
    all.take_while(move |own| !is_dearer_spot(own))
        .filter(move |own| Some(own.capacity_type) == way)
}

/// A change of one Node, written only if the object still has the version that was decided upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePatch {
    /// The node.
    pub node: NodeName,
    /// Version the object must still have.
    pub version: String,
    /// Labels to set; `None` takes one away.
    pub labels: Vec<(String, Option<String>)>,
    /// Annotations to set; `None` takes one away.
    pub annotations: Vec<(String, Option<String>)>,
    /// All taints it shall have; `None` leaves them as they are.
    pub taints: Option<Vec<Taint>>,
    /// All finalizers it shall have; `None` leaves them as they are.
    pub finalizers: Option<Vec<String>>,
    /// UID of the owner that it shall not have any more. Nothing else is changed with it.
    pub disowned: Option<String>,
}

/// An instance that somebody else has made for a pool of ours, to be taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// What its tags are to say.
    pub claim: ClaimRecord,
    /// The instance, as its Node tells of it.
    pub instance: InstanceId,
    /// What it is, as its Node tells of it.
    pub offering: OfferingKey,
    /// The tags it gets beside those it has.
    pub tags: Labels,
}

impl Adoption {
    /// The instance, as far as its Node tells of it, with our tags.
    pub fn instance(&self) -> Instance {
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

/// A Node that is made before its kubelet has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Its name, as its kubelet will have it.
    pub name: NodeName,
    /// `spec.providerID`, as its kubelet would write it.
    pub provider_id: String,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// What it is expected to have.
    pub capacity: Resources,
    /// What pods are expected to have of it.
    pub allocatable: Resources,
}

/// The whole status of a CapacityBuffer, written only if the object still has the version that was
/// decided upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferPatch {
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// The version of the API to write it by.
    pub api: &'static str,
    /// Version the object must still have.
    pub version: String,
    /// All that its status shall say.
    pub status: BufferStatus,
}

/// A change of the cluster's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePatch {
    /// Version it must still have; none where it is to be made, and must not be there.
    pub version: Option<String>,
    /// Annotations to set; `None` takes one away.
    pub annotations: Vec<(String, Option<String>)>,
}

/// One thing to be done, one API call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Launch an instance.
    Launch(Box<Launch>),
    /// End an instance.
    Terminate {
        /// The claim it fulfils, for the log.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
    },
    /// Put these tags on instances, or change them where they have others of these names.
    Tag {
        /// The instances, all of our own claims.
        instances: Vec<InstanceId>,
        /// The tags.
        tags: Labels,
    },
    /// Put our tags on an instance that bears those of its cluster and pool by Karpenter, and
    /// nobody else's.
    Adopt(Box<Adoption>),
    /// Take note of what nodes of an instance type and image have reported of their memory: less
    /// than was known, or the first of it.
    SaveDiscoveredMemory {
        /// The instance type.
        instance_type: TypeName,
        /// Id of the image.
        image: String,
        /// Bytes.
        memory: i64,
    },
    /// List all instances of the installation and cluster, ended ones as long as they are known.
    ListInstances,
    /// Make a Node whose kubelet has yet to come; a conflict where there is one of its name.
    CreateNode(Box<NewNode>),
    /// Bind a waiting pod to a node, if it still has this UID; a conflict where somebody has bound
    /// it already.
    Bind {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The node.
        node: NodeName,
    },
    /// Delete a pod, if it still has this UID, whatever its disruption budgets say. One that is on
    /// its way out is given less time by it.
    DeletePod {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// Seconds it is given to end. None at all is for pods that nothing runs of, being bound
        /// to a node that never came: else two of one name might run.
        grace_seconds: u32,
    },
    /// Change a Node.
    PatchNode(NodePatch),
    /// Remove a Node object, if it still has this UID.
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
    /// Name the node a waiting pod is planned for, if it still has this UID and no other is named:
    /// the scheduler looks there first, and keeps the room for it. Source: Kubernetes, KEP-1923 and
    /// KEP-5278.
    Nominate {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The node.
        node: NodeName,
    },
    /// Take back what a waiting pod was told, if it still has this UID and nobody has told it
    /// anything else.
    ClearNomination {
        /// The pod.
        pod: PodKey,
        /// UID it must have.
        uid: String,
        /// The node it was told of.
        node: NodeName,
    },
    /// List the pods bound to a node, straight from the API server, past every cache.
    ListPodsOn {
        /// The node.
        node: NodeName,
    },
    /// List the volumes that are attached to a node, straight from the API server.
    ListAttachments {
        /// The node.
        node: NodeName,
    },
    /// Ask for single objects by name: which of them still exist with this UID?
    Probe {
        /// Their kind.
        kind: ObjectKind,
        /// Key and UID of each.
        objects: Vec<(ObjectKey, String)>,
    },
    /// Drop the watch of a kind and start it anew with a full listing.
    Rewatch {
        /// The kind.
        kind: ObjectKind,
    },
    /// Read the cluster's Lease: what is paused, and who was let go.
    ReadLease,
    /// Change the cluster's Lease, or make it.
    PatchLease(LeasePatch),
    /// Write the status of a CapacityBuffer.
    PatchBuffer(Box<BufferPatch>),
    /// Ask the fleet for what a claim will take, before it is launched.
    RequestGrant(Box<GrantRequest>),
    /// Ask the fleet whether a node may leave, before anything is done about it.
    RequestDisruption {
        /// Its claim.
        claim: ClaimId,
        /// Why it is to leave.
        reason: Reason,
    },
    /// Tell the fleet what there is that its budgets count.
    ReportDisruptions(Box<DisruptionUsage>),
    /// Tell the fleet what claims take; whoever has what is told here counts, granted or not.
    ReportUsage {
        /// Whether these are all: what is not among them takes nothing.
        whole: bool,
        /// What each takes; none gives back what it took.
        claims: Vec<(ClaimId, Option<ClaimUsage>)>,
    },
    /// Tell all clusters that launch where this one does what is held down.
    MarkUnavailable {
        /// What.
        what: Vec<UnavailableKey>,
        /// Until when.
        until: Timestamp,
    },
}

impl Command {
    /// Whether it changes nothing, in the cluster or at the provider, nor is the first step to it.
    pub fn is_look(&self) -> bool {
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

    /// Whether it gives pods their place before the node is there: these go first, since the node
    /// may come at any moment.
    pub fn binds_early(&self) -> bool {
        matches!(self, Self::CreateNode(_) | Self::Bind { .. })
    }

    /// Whether anything is another than before once it is carried out, in the cluster or outside:
    /// only who leads the cluster may do so.
    pub fn changes(&self) -> bool {
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

    /// Whether the fleet is who answers it.
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

    /// The spelling in logs and metrics.
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

/// Number of a command within one engine, to match its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// Why an offering was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalKind {
    /// The provider has none left.
    InsufficientCapacity,
    /// The account may not have more.
    LimitExceeded,
    /// Its reservation has none left.
    ReservationExceeded,
    /// The provider does not sell it like this.
    Unsupported,
    /// Spot capacity may not be bought at all.
    SpotDenied,
    /// No subnet of its zone has an address left, or there is none.
    NoAddress,
    /// The placement group takes no more in its zone.
    PlacementExceeded,
    /// No image of the node class is for it.
    NoImage,
}

impl RefusalKind {
    /// All of them, as logs and metrics spell them.
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

    /// The spelling in logs and metrics.
    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.iter().find(|(own, _)| *own == self);
        found.map_or("", |(_, name)| name)
    }

    /// Whether all that buy there would have been refused as well. What follows from a template,
    /// subnets or an image concerns one node class.
    pub fn is_general(self) -> bool {
        use RefusalKind::{InsufficientCapacity, LimitExceeded, ReservationExceeded, SpotDenied};
        matches!(
            self,
            InsufficientCapacity | LimitExceeded | ReservationExceeded | SpotDenied
        )
    }
}

/// An offering that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferingRefusal {
    /// The offering.
    pub offering: OfferingKey,
    /// Why.
    pub kind: RefusalKind,
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The object has changed since: decide anew.
    Conflict,
    /// The object does not exist any more.
    Gone,
    /// Too many requests: try later.
    Throttled,
    /// Not allowed: trying again will not help until someone changes that.
    Denied,
    /// The request itself is wrong.
    Invalid,
    /// No answer: it may or may not have happened.
    Unknown,
    /// It was taken back before anyone had taken it.
    Withdrawn,
}

impl FailureKind {
    /// The spelling in logs and metrics.
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

/// What became of a command. Every command is answered once, by whoever carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandResult {
    /// `Launch`: the instance, also when an earlier launch of the claim had made it.
    Launched(Instance),
    /// `Launch`: nothing was made; these offerings were refused.
    LaunchRefused(Vec<OfferingRefusal>),
    /// `Terminate`: the state the instance is in now.
    Terminating(InstanceState),
    /// `ListInstances`: all of them.
    Instances(Vec<Instance>),
    /// `Evict`: a disruption budget says not now; in the API server's words, bounded.
    EvictRefused(String),
    /// `ListPodsOn`: all pods bound to the node.
    Pods(Vec<Pod>),
    /// `ListAttachments`: all volumes attached to the node, or about to be.
    Attachments(Vec<Attachment>),
    /// `Probe`: how many of the objects still exist.
    Probed {
        /// Existing ones.
        alive: usize,
    },
    /// `ReadLease`, `PatchLease`: the Lease as it is then; none where there is none.
    Lease(Option<AnnotatedLease>),
    /// `PatchBuffer`: the version of the object then.
    Version(String),
    /// `Ask`, `AskLeave`: what was asked for is the claim's until it is given back.
    Granted,
    /// `Ask`, `AskLeave`: it is not, since a limit or budget leaves too little.
    Denied {
        /// Which, with its numbers.
        why: String,
        /// Whether it is the claim's reservation that has nothing left.
        used_up: bool,
        /// What is left to this cluster.
        view: Arc<FleetView>,
    },
    /// Everything else: done.
    Done,
    /// It failed.
    Failed {
        /// How.
        kind: FailureKind,
        /// In words, bounded, without secrets.
        text: String,
    },
}

/// A command on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCommand {
    /// Its number.
    pub id: CommandId,
    /// What is to be done.
    pub command: Command,
}
