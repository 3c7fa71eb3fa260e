//! A node class as it can be launched from, and whether user data can be made of it.
//! It must not know who launches.

use crate::bootstrap::{self, Home, Seed};
use crate::catalog::class::ClassSupply;
use crate::model::node_class::NodeClass;
use crate::model::node_class::resolved::{Cause, Condition, ConditionKind, Resolved};

/// How a cluster's nodes are launched from one of its node classes.
pub(crate) struct Ready {
    pub(crate) class: NodeClass,
    /// Its hash, as claims carry it.
    pub(crate) hash: String,
    pub(crate) resolved: Resolved,
    pub(crate) supply: ClassSupply,
}

impl Ready {
    /// Whether AWS and the cluster answered all that was asked for it.
    pub(crate) fn is_sure(&self) -> bool {
        let silent = |own: &Condition| {
            let cause = own.cause;
            matches!(cause, Some(Cause::Denied | Cause::Unavailable))
        };
        !self.resolved.conditions.iter().any(silent)
    }
}

/// Whether user data can be made of a class for each of its images, and fits.
pub(crate) fn validated(class: &NodeClass, resolved: &Resolved, home: Option<&Home>) -> Condition {
    let kind = ConditionKind::ValidationSucceeded;
    let Some(home) = home else {
        let text = "the cluster's API has not answered yet";
        return Condition::unmet(kind, Cause::Unavailable, text);
    };
    for image in &resolved.images {
        let seed = Seed {
            labels: &Default::default(),
            taints: &[],
            max_pods: 110,
            image_name: Some(&image.name),
            secret: Some("a stand-in of about the length of a token"),
        };
        if let Err(error) = bootstrap::render(class, home, &seed) {
            return Condition::unmet(kind, error.cause(), error.to_string());
        }
    }
    Condition::met(kind)
}
