//! The scope in which capacity is shared and unavailable offerings are recorded.

use crate::model::cluster::{Cluster, account_of};
use crate::model::id::ClusterName;

/// A capacity provider. An offering that is unavailable to one cluster is unavailable to every
/// cluster of the same scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapacityScope {
    /// A region and the account ID of the assumed role. `None` means the account of the daemon's
    /// credentials.
    Region(String, Option<String>),
    /// A simulated cloud at an address.
    Cloud(String),
    /// A cloud that only this cluster uses.
    Own(ClusterName),
}

impl CapacityScope {
    /// The scope of a cluster.
    pub fn from_cluster(cluster: &Cluster) -> Self {
        match &cluster.simulated {
            Some(simulated) => match simulated.address.clone() {
                Some(address) => Self::Cloud(address),
                None => Self::Own(cluster.name.clone()),
            },
            None => Self::from_region(&cluster.region, cluster.role_arn.as_deref()),
        }
    }

    /// The scope of a region and a role.
    pub fn from_region(region: &str, role_arn: Option<&str>) -> Self {
        let account = role_arn.and_then(account_of).map(str::to_owned);
        Self::Region(region.to_owned(), account)
    }
}
