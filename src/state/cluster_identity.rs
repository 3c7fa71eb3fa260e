//! Checks that the API server, the instance listing and the configuration belong to the same
//! cluster.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;
use thiserror::Error;

use crate::model::claim::ClaimOrigin;
use crate::model::id::{ClaimId, ClusterUid};
use crate::model::labels::{CLAIM, CLUSTER};
use crate::model::node::Node;
use crate::model::template_hash::accept_id;
use crate::state::State;
use crate::state::node_claims::NodeClaim;

/// The Namespace whose UID identifies a cluster. Each API server creates this Namespace at its
/// first start and refuses to delete it.
const IDENTIFYING_NAMESPACE: &str = "kube-system";

/// Minimum number of silent Nodes without a listed instance for a mismatch. Fewer instances may
/// just have been terminated.
const SILENT_MIN: usize = 2;

/// If more than one in this many ready Nodes has no listed instance, it is a mismatch. See
/// docs/decisions/036-cluster-identity.md.
pub const UNLISTED_SHARE_MAX: usize = 5;

/// Why the API server, the instances and the configuration cannot belong to one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The API server has no Namespace `kube-system`.
    #[error("the API server has no Namespace {IDENTIFYING_NAMESPACE}, which identifies it")]
    Unidentified,
    /// Instances were launched for a different API server.
    #[error(
        "{instances} instances were launched for the cluster with UID {launched_for}, and this API \
         server has UID {here}: correct the kubeconfig; if the cluster was rebuilt, run \
         `outrigger reload --accept {id}` to terminate these instances"
    )]
    OtherCluster {
        /// UID of the cluster for which the instances were launched.
        launched_for: ClusterUid,
        /// UID of this cluster.
        here: ClusterUid,
        /// Number of these instances.
        instances: usize,
        /// The ID to approve if the cluster was rebuilt.
        id: String,
    },
    /// Instances were launched under a different Lease: two daemons may lead the cluster.
    #[error(
        "{instances} instances were launched under the Lease {launched_under}, and the \
         configuration names the Lease {here}: two daemons may lead the cluster; if the Lease was \
         renamed, run `outrigger reload --accept {id}`"
    )]
    OtherLease {
        /// Name of the Lease under which the instances were launched.
        launched_under: String,
        /// Name of the configured Lease.
        here: String,
        /// Number of these instances.
        instances: usize,
        /// The ID to approve if the Lease was renamed.
        id: String,
    },
    /// The listing does not contain the instances of ready nodes: the region, account or role is
    /// wrong.
    #[error(
        "{nodes} of {total} nodes of this installation have no listed instance: correct the \
         region, the role or the account; if these instances no longer exist, run `outrigger \
         reload --accept {id}`"
    )]
    OtherInstances {
        /// Number of these nodes.
        nodes: usize,
        /// Number of ready nodes, or of all nodes if none is ready.
        total: usize,
        /// The ID to approve if these instances no longer exist.
        id: String,
    },
    /// Instances are running, but their Nodes are missing.
    #[error(
        "{instances} of {total} running instances have no Node, though they had one or should \
         have: restart their kubelets to restore the Nodes; to terminate these instances, run \
         `outrigger reload --accept {id}`"
    )]
    NoNodes {
        /// Number of these instances.
        instances: usize,
        /// Number of running instances.
        total: usize,
        /// The ID to approve if these instances may be terminated.
        id: String,
    },
}

/// Instances that are terminated only after approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEnds {
    /// The ID to approve.
    pub id: String,
    /// The claims.
    pub claims: BTreeSet<ClaimId>,
    /// Number of running instances.
    pub total: usize,
}

impl Mismatch {
    /// The spelling in logs, metrics and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unidentified => "unidentified",
            Self::OtherCluster { .. } => "other_cluster",
            Self::OtherLease { .. } => "other_lease",
            Self::OtherInstances { .. } => "other_instances",
            Self::NoNodes { .. } => "no_nodes",
        }
    }
}

impl State {
    /// Returns the UID of the cluster, or `None` before its namespaces are synced.
    pub fn cluster_uid(&self) -> Option<ClusterUid> {
        let namespace = self.objects.namespaces.get(IDENTIFYING_NAMESPACE)?;
        (!namespace.uid.is_empty()).then(|| ClusterUid(format!("ns:{}", namespace.uid)))
    }

    /// The cluster UID and Lease that a launch writes into its tags.
    pub fn claim_origin(&self) -> ClaimOrigin {
        ClaimOrigin { cluster_uid: self.cluster_uid(), lease: Some(self.cluster.lease.to_string()) }
    }

    /// Claims of Outrigger whose instance is running, according to listings and call results.
    pub fn running_claims(&self) -> impl Iterator<Item = &NodeClaim> {
        let claims = self.ledger.claims.values();
        claims.filter(|claim| claim.live_instance().is_some() && !claim.foreign)
    }

    /// Returns a mismatch between the API server and the instances, if the view is complete.
    pub fn identity_mismatch(&self) -> Option<Mismatch> {
        let Some(here) = self.cluster_uid() else {
            return Some(Mismatch::Unidentified);
        };
        let lease = self.cluster.lease.to_string();
        let uid_of = |origin: &ClaimOrigin| Some(origin.cluster_uid.as_ref()?.0.clone());
        if let Some((launched_for, instances)) = self.first_foreign_value(uid_of, here.as_str()) {
            return Some(Mismatch::OtherCluster {
                id: self.identity_id(&launched_for)?,
                launched_for: launched_for.into(),
                here,
                instances,
            });
        }
        if let Some((launched_under, instances)) =
            self.first_foreign_value(|origin| origin.lease.clone(), &lease)
        {
            return Some(Mismatch::OtherLease {
                id: self.identity_id(&launched_under)?,
                launched_under,
                here: lease,
                instances,
            });
        }
        self.unlisted_nodes()
    }

    /// Returns the ID to approve so that instances with this value belong to this cluster. A
    /// different UID or Lease has a different ID.
    fn identity_id(&self, value: &str) -> Option<String> {
        let here = self.cluster_uid()?;
        let lease = self.cluster.lease.to_string();
        let parts = [value, here.as_str(), &lease];
        Some(accept_id(&self.cluster.name, "identity", parts))
    }

    fn is_identity_accepted(&self, value: &str) -> bool {
        let id = self.identity_id(value);
        id.is_some_and(|id| self.notes.accepted.contains(&id))
    }

    /// Returns whether a claim was launched for a different cluster and a user approved that this
    /// API server replaces it.
    pub fn is_of_accepted_cluster(&self, claim: &NodeClaim) -> bool {
        let launched_for = claim.record.origin.cluster_uid.as_ref();
        let here = self.cluster_uid();
        launched_for.is_some_and(|uid| {
            Some(uid) != here.as_ref() && self.is_identity_accepted(uid.as_str())
        })
    }

    /// Returns the first foreign value that no user has approved, and how many running claims have
    /// a foreign value. A value is foreign if it differs from `actual`.
    fn first_foreign_value(
        &self,
        value: impl Fn(&ClaimOrigin) -> Option<String>,
        actual: &str,
    ) -> Option<(String, usize)> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for claim in self.running_claims() {
            if let Some(value) = value(&claim.record.origin).filter(|value| value != actual) {
                *counts.entry(value).or_default() += 1;
            }
        }
        let instances = counts.values().sum();
        let first = counts.into_keys().find(|value| !self.is_identity_accepted(value))?;
        Some((first, instances))
    }

    /// Returns `other_instances` if no listing contains the instances of more than a fifth of the
    /// ready Nodes of this installation. If no Node is ready, all Nodes are compared.
    fn unlisted_nodes(&self) -> Option<Mismatch> {
        let (mut ready, mut unlisted): (usize, Vec<&Node>) = (0, Vec::new());
        let mut listed = 0;
        for node in self.objects.nodes.values() {
            // Several configured clusters may share one API server.
            let cluster = node.annotations.get(CLUSTER);
            let of_other = cluster.is_some_and(|cluster| cluster != self.cluster.name.as_str());
            let is_ours =
                self.is_of_this_installation(node) && node.annotations.contains_key(CLAIM);
            if of_other || !is_ours {
                continue;
            }
            ready += usize::from(node.ready);
            let ledger = &self.ledger;
            let is_listed = node.instance_id().is_some_and(|instance_id| {
                ledger.by_instance(instance_id).is_some()
                    || ledger.has_ended(instance_id)
                    || ledger.is_listed_live(instance_id)
            });
            if is_listed {
                listed += 1;
            } else {
                unlisted.push(node);
            }
        }
        let silent = ready == 0 && listed == 0 && unlisted.len() >= SILENT_MIN;
        let total = if silent { unlisted.len() } else { ready };
        unlisted.retain(|node| silent || node.ready);
        let parts = unlisted.iter().map(|node| node.uid.as_str());
        let id = accept_id(&self.cluster.name, "nodes", parts);
        let nodes = unlisted.len();
        let wrong = nodes * UNLISTED_SHARE_MAX > total && !self.notes.accepted.contains(&id);
        wrong.then_some(Mismatch::OtherInstances { nodes, total, id })
    }

    /// Instance IDs in `providerID` of Nodes; only of ready Nodes if `ready`.
    pub fn instances_of_nodes(&self, ready: bool) -> HashSet<&str> {
        let nodes = self.objects.nodes.values();
        nodes.filter(|node| !ready || node.ready).filter_map(|node| node.instance_id()).collect()
    }

    /// Returns whether claims of version 0.1, which lack a cluster UID, belong to this API server:
    /// a ready Node belongs to one of these claims.
    pub fn knows_unmarked_claims(&self) -> bool {
        let ready = self.instances_of_nodes(true);
        self.running_claims().any(|claim| {
            let instance = claim.instance.as_ref();
            claim.record.origin.cluster_uid.is_none()
                && instance.is_some_and(|instance| ready.contains(instance.id.as_str()))
        })
    }
}
