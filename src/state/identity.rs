//! Whether the API server, the listing of instances and the configuration are of one cluster.
//! It must not know what is done where they are not.

use std::collections::BTreeSet;
use std::fmt;

use foldhash::HashSet;

use crate::model::claim::Origin;
use crate::model::hash::accept_id;
use crate::model::id::{ClaimId, ClusterUid};
use crate::model::labels::CLAIM;
use crate::state::State;
use crate::state::ledger::Claim;

/// The Namespace whose UID identifies a cluster: each API server makes it at its first start, and
/// refuses to delete it.
const IDENTIFYING_NAMESPACE: &str = "kube-system";

/// At most one of so many ready Nodes of ours may have no listed instance.
pub const UNLISTED_SHARE_MAX: usize = 5;

/// Why the API server, the instances and the configuration cannot be of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The API server has no Namespace `kube-system`.
    Unidentified,
    /// Instances were launched for another API server.
    OtherCluster {
        /// For which.
        launched_for: ClusterUid,
        /// Which it is.
        here: ClusterUid,
        /// How many instances.
        instances: usize,
        /// What a person accepts where the cluster was built anew.
        id: String,
    },
    /// Instances were launched under another Lease: two daemons may lead the cluster.
    OtherLease {
        /// Under which.
        launched_under: String,
        /// Which it is.
        here: String,
        /// How many instances.
        instances: usize,
        /// What a person accepts where the Lease was renamed.
        id: String,
    },
    /// Nodes are ready whose instances no listing shows: the region, the account or the role is
    /// another.
    OtherInstances {
        /// How many Nodes.
        nodes: usize,
        /// Of how many that are ready.
        total: usize,
    },
    /// Instances run whose Nodes are gone.
    NoNodes {
        /// How many instances.
        instances: usize,
        /// Of how many.
        total: usize,
        /// What a person accepts where these instances may end.
        id: String,
    },
}

/// Instances that a person is to accept before they end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEnds {
    /// What to accept.
    pub id: String,
    /// The claims.
    pub claims: BTreeSet<ClaimId>,
    /// How many instances run.
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

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unidentified => write!(
                f,
                "the API server has no Namespace {IDENTIFYING_NAMESPACE}, which identifies it"
            ),
            Self::OtherCluster {
                launched_for,
                here,
                instances,
                id,
            } => write!(
                f,
                "{instances} instances were launched for the cluster with UID {launched_for}, and \
                 this API server has UID {here}: correct the kubeconfig; if the cluster was built \
                 anew, run `outrigger reload --accept {id}`, and these instances end"
            ),
            Self::OtherLease {
                launched_under,
                here,
                instances,
                id,
            } => write!(
                f,
                "{instances} instances were launched under the Lease {launched_under}, and the \
                 configuration names the Lease {here}: two daemons may lead the cluster; if the \
                 Lease was renamed, run `outrigger reload --accept {id}`"
            ),
            Self::OtherInstances { nodes, total } => write!(
                f,
                "{nodes} of {total} ready nodes of this installation have no listed instance: \
                 correct the region, the role or the account"
            ),
            Self::NoNodes {
                instances,
                total,
                id,
            } => write!(
                f,
                "{instances} of {total} instances run and have no Node, though they had one: \
                 bring the Nodes back by a restart of their kubelets; if these instances may end, \
                 run `outrigger reload --accept {id}`"
            ),
        }
    }
}

impl State {
    /// Which cluster the API server is of; none before its namespaces are known.
    pub fn cluster_uid(&self) -> Option<ClusterUid> {
        let namespace = self.objects.namespaces.get(IDENTIFYING_NAMESPACE)?;
        (!namespace.uid.is_empty()).then(|| ClusterUid(format!("ns:{}", namespace.uid)))
    }

    /// What a launch is to say of where it comes from.
    pub fn origin(&self) -> Origin {
        Origin {
            cluster_uid: self.cluster_uid(),
            lease: Some(self.cluster.lease.to_string()),
        }
    }

    /// Claims of ours whose instance runs, as far as listings and answers say.
    pub fn running_claims(&self) -> impl Iterator<Item = &Claim> {
        let claims = self.ledger.claims.values();
        claims.filter(|own| {
            let live = own.instance.as_ref().is_some_and(|own| own.state.is_live());
            live && !own.foreign
        })
    }

    /// Why the API server and the instances cannot be of one cluster, as far as a view says that is
    /// whole.
    pub fn mismatch(&self) -> Option<Mismatch> {
        let Some(here) = self.cluster_uid() else {
            return Some(Mismatch::Unidentified);
        };
        let lease = self.cluster.lease.to_string();
        let name = &self.cluster.name;
        let id = accept_id(name, "identity", [here.as_str(), &lease]);
        if !self.notes.accepted.contains(&id) {
            if let Some((launched_for, instances)) =
                self.foreign(|own| own.cluster_uid.as_ref().filter(|uid| **uid != here))
            {
                return Some(Mismatch::OtherCluster {
                    launched_for: launched_for.clone(),
                    here,
                    instances,
                    id,
                });
            }
            if let Some((under, instances)) =
                self.foreign(|own| own.lease.as_ref().filter(|own| **own != lease))
            {
                return Some(Mismatch::OtherLease {
                    launched_under: under.clone(),
                    here: lease,
                    instances,
                    id,
                });
            }
        }
        let (nodes, total) = self.unlisted_nodes();
        (nodes * UNLISTED_SHARE_MAX > total).then_some(Mismatch::OtherInstances { nodes, total })
    }

    /// The first foreign value of running claims, and how many claims have any.
    fn foreign<'a, T>(
        &'a self,
        value: impl Fn(&'a Origin) -> Option<&'a T>,
    ) -> Option<(&'a T, usize)> {
        let mut all = self
            .running_claims()
            .filter_map(|own| value(&own.record.origin));
        let first = all.next()?;
        Some((first, 1 + all.count()))
    }

    /// How many ready Nodes of this installation have no instance that was listed, running or
    /// ended, and how many ready Nodes it has.
    fn unlisted_nodes(&self) -> (usize, usize) {
        let (mut unlisted, mut total) = (0, 0);
        for node in self.objects.nodes.values() {
            let is_ours = self.is_made_here(node) && node.annotations.contains_key(CLAIM);
            if !is_ours || !node.ready {
                continue;
            }
            total += 1;
            let instance = node.instance_id();
            let is_listed = instance.is_some_and(|own| {
                let ledger = &self.ledger;
                ledger.by_instance(own).is_some()
                    || ledger.has_ended(own)
                    || ledger.is_listed_live(own)
            });
            unlisted += usize::from(!is_listed);
        }
        (unlisted, total)
    }

    /// Ids of the instances that Nodes say they are; of ready Nodes alone if `ready`.
    pub fn instances_of_nodes(&self, ready: bool) -> HashSet<&str> {
        let nodes = self.objects.nodes.values();
        let nodes = nodes.filter(|own| !ready || own.ready);
        nodes.filter_map(|own| own.instance_id()).collect()
    }

    /// Whether claims of 0.1, which do not say of which API server they are, are of this one: a
    /// ready Node is one of them.
    pub fn knows_unmarked_claims(&self) -> bool {
        let ready = self.instances_of_nodes(true);
        let mut unmarked = self
            .running_claims()
            .filter(|own| own.record.origin.cluster_uid.is_none());
        unmarked.any(|own| {
            let instance = own.instance.as_ref();
            instance.is_some_and(|own| ready.contains(own.id.as_str()))
        })
    }
}
