//! Decides which launch templates and instance profiles this host may delete.
//!
//! Their names contain the cluster. Resources of a cluster that another host leads, or that uses a
//! different role, are not deleted, because this host does not know whether they are in use.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;

/// The clusters of an account and region, as one region task sees them.
#[derive(Debug, Default)]
pub struct CleanupScope {
    /// Managed clusters that this host leads now.
    pub led: Vec<Arc<Cluster>>,
    /// True if these are all managed clusters. Resources of clusters that are no longer configured
    /// may then be deleted.
    pub is_whole: bool,
    /// All clusters that are configured on this host, in any region, running or not.
    pub configured: BTreeSet<ClusterName>,
}

impl CleanupScope {
    /// Creates a scope in which all clusters are led by this host.
    #[cfg(test)]
    pub fn of_all(led: &[Arc<Cluster>]) -> Self {
        Self {
            led: led.to_vec(),
            is_whole: true,
            configured: led.iter().map(|cluster| cluster.name.clone()).collect(),
        }
    }

    /// Returns whether resources with this cluster name in their name may be deleted. Shortened
    /// names may match several clusters.
    pub fn may_delete(&self, part: &str, spelt: impl Fn(&str) -> String) -> bool {
        let mut named =
            self.configured.iter().filter(|cluster| spelt(cluster.as_str()) == part).peekable();
        match named.peek() {
            None => self.is_whole,
            Some(_) => named.all(|name| self.led.iter().any(|cluster| cluster.name == *name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::CleanupScope;
    use crate::model::cluster::Cluster;

    #[test]
    fn cleanup_spares_clusters_of_other_hosts_and_roles() {
        let mut scope = CleanupScope {
            led: vec![Arc::new(Cluster { name: "here".into(), ..Cluster::default() })],
            is_whole: false,
            configured: ["here", "there"].map(Into::into).into(),
        };
        for (is_whole, part, expect) in [
            (false, "here", true),
            // Another host leads it.
            (false, "there", false),
            // Another host may know it.
            (false, "gone", false),
            (true, "here", true),
            // It is no longer configured.
            (true, "gone", true),
            // Another role has it.
            (true, "there", false),
        ] {
            scope.is_whole = is_whole;
            let may_delete = scope.may_delete(part, str::to_owned);
            assert_eq!(may_delete, expect, "{is_whole} {part}");
        }
        assert!(
            !scope.may_delete("here", |_| "here".to_owned()),
            "the two names have the same short form"
        );
    }
}
