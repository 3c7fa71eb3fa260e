//! The commands that an engine can issue, one API call each. The module `provider` defines their
//! results.

use jiff::Timestamp;

use crate::model::buffer_object::BufferStatus;
use crate::model::fleet::{ClaimUsage, DisruptionUsage, GrantRequest};
use crate::model::id::{ClaimId, InstanceId, NodeName, ObjectKey, PodKey, TypeName};
use crate::model::instance::UnavailableKey;
use crate::model::labels::Labels;
use crate::model::node::Node;
use crate::model::pool::Reason;
use crate::model::quantity::Resources;
use crate::model::taint::Taint;
use crate::model::watched_object::ObjectKind;
use crate::provider::{Adoption, Launch};

/// Commands that wait for each other. The runtime limits the concurrent commands of each lane, so
/// that slow or throttled calls of EC2 delay no evictions and no taints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandLane {
    /// Launches.
    Launch,
    /// Terminations.
    Terminate,
    /// Listings of instances.
    List,
    /// Changes of tags, and other requests to the provider.
    Provider,
    /// All other commands, most of them for the API server.
    Cluster,
}

/// A change of one Node. It is written only if the Node still has the version on which the engine
/// based its decision.
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
    /// UID of the owner reference to remove. A patch with this field changes nothing else.
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

/// The whole status of a CapacityBuffer. It is written only if the object still has the version on
/// which the engine based its decision.
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
    /// Tag an instance that has Karpenter's tags for its cluster and pool, and no tags of another
    /// owner.
    Adopt(Box<Adoption>),
    /// Record the memory that nodes of an instance type and image report. A later report is
    /// recorded only if its value is lower than the recorded one.
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
        /// Grace period in seconds. Zero is only for pods bound to a node that never registered,
        /// because no container of them runs. With zero for other pods, two pods of one name could
        /// run.
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
    /// Request a grant from the fleet for the usage of a claim, before the claim is launched.
    RequestGrant(Box<GrantRequest>),
    /// Request the fleet's permission to disrupt a node, before the node is tainted.
    RequestDisruption {
        /// Its claim.
        claim: ClaimId,
        /// The disruption reason.
        reason: Reason,
    },
    /// Report to the fleet the nodes that its disruption budgets count.
    ReportDisruptions(Box<DisruptionUsage>),
    /// Report the usage of claims to the fleet. Reported usage counts even if it was not granted.
    ReportUsage {
        /// True if the report is complete, so that claims missing from it use nothing.
        whole: bool,
        /// The usage of each claim. `None` releases it.
        claims: Vec<(ClaimId, Option<ClaimUsage>)>,
    },
    /// Report unavailable offerings to all clusters that use the same provider account.
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

    /// Returns whether the command binds pods early. These commands are sent first, because the
    /// node may register at any moment.
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

    /// Returns the commands that it waits for.
    pub fn lane(&self) -> CommandLane {
        match self {
            Self::Launch(_) => CommandLane::Launch,
            Self::Terminate { .. } => CommandLane::Terminate,
            Self::ListInstances => CommandLane::List,
            Self::Tag { .. } | Self::Adopt(_) | Self::SaveDiscoveredMemory { .. } => {
                CommandLane::Provider
            }
            _ => CommandLane::Cluster,
        }
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

/// A command to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCommand {
    /// Its number.
    pub id: CommandId,
    /// The command.
    pub command: Command,
}
