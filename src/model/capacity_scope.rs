//! Where the instances of a cluster are bought, and so are. It must not know what is there.

use crate::model::cluster::{Cluster, account_of};
use crate::model::id::ClusterName;

/// Who sells capacity: what one cluster is refused there, all that buy there are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CapacityScope {
    /// A region of an account: that of the role that is assumed, by its id, or the daemon's own.
    Region(String, Option<String>),
    /// A simulated cloud at an address.
    Cloud(String),
    /// A cloud that no other cluster has.
    Own(ClusterName),
}

impl CapacityScope {
    /// That of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        match &cluster.simulated {
            Some(own) => match own.address.clone() {
                Some(address) => Self::Cloud(address),
                None => Self::Own(cluster.name.clone()),
            },
            None => Self::region(&cluster.region, cluster.role_arn.as_deref()),
        }
    }

    /// That of a region and a role.
    pub fn region(region: &str, role_arn: Option<&str>) -> Self {
        let account = role_arn.and_then(account_of).map(str::to_owned);
        Self::Region(region.to_owned(), account)
    }
}
