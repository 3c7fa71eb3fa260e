//! Whose launch templates and instance profiles this host may remove.
//! It must not know how either is found, nor which of them nobody uses.
//!
//! Both are named after their cluster. Those of a cluster that another host leads, or another role
//! of this one looks after, are left to it: whoever does not know what others need removes nothing
//! of theirs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;

/// The clusters of an account and region as one of its keepers sees them.
#[derive(Debug, Default)]
pub(crate) struct CleanupScope {
    /// Those that it manages and that this host leads now.
    pub(crate) led: Vec<Arc<Cluster>>,
    /// Whether they are all that it manages: what is of no cluster that is configured here is
    /// left from one that was.
    pub(crate) is_whole: bool,
    /// All that are configured on this host, wherever they are, and whether or not each can be
    /// driven.
    pub(crate) configured: BTreeSet<ClusterName>,
}

impl CleanupScope {
    /// These are all that there are, and all are led here.
    #[cfg(test)]
    pub(crate) fn of_all(led: &[Arc<Cluster>]) -> Self {
        Self {
            led: led.to_vec(),
            is_whole: true,
            configured: led.iter().map(|own| own.name.clone()).collect(),
        }
    }

    /// Whether something is looked after here whose name says its cluster so. Several clusters may
    /// be spelt alike in names that are short of room.
    pub(crate) fn is_for(&self, part: &str, spelt: impl Fn(&str) -> String) -> bool {
        let is_named = |own: &&ClusterName| spelt(own.as_str()) == part;
        let mut named = self.configured.iter().filter(is_named).peekable();
        match named.peek() {
            None => self.is_whole,
            Some(_) => named.all(|name| self.led.iter().any(|own| own.name == *name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::CleanupScope;
    use crate::model::cluster::Cluster;

    #[test]
    fn what_is_of_another_host_or_role_is_left_to_it() {
        let mut care = CleanupScope {
            led: vec![Arc::new(Cluster {
                name: "here".into(),
                ..Cluster::default()
            })],
            is_whole: false,
            configured: ["here", "there"].map(Into::into).into(),
        };
        let is_for = |care: &CleanupScope, part: &str| care.is_for(part, str::to_owned);
        assert!(is_for(&care, "here"));
        assert!(!is_for(&care, "there"), "another host leads it");
        assert!(!is_for(&care, "gone"), "another host may know it");
        care.is_whole = true;
        assert!(is_for(&care, "gone"), "nobody knows it any more");
        assert!(!is_for(&care, "there"), "another role has it");
        assert!(
            !care.is_for("here", |_| "here".to_owned()),
            "they are spelt alike"
        );
    }
}
