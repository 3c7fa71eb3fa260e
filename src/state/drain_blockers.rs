//! Explains what delays the drain of a node: a pod, a PodDisruptionBudget, a finalizer or a volume.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{ObjectKey, PodKey};
use crate::model::pdb::Pdb;
use crate::model::pod::Pod;
use crate::model::watched_object::Attachment;
use crate::state::State;

/// Maximum number of PodDisruptionBudgets and finalizers listed per pod.
const NAMES_MAX: usize = 3;

/// The reason for which the drain of a node is delayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainBlocker {
    /// A pod must not be disrupted.
    Protected(PodKey),
    /// PodDisruptionBudgets block the eviction of a pod. The API server never evicts a pod that has
    /// several PodDisruptionBudgets.
    Budget {
        /// The pod.
        pod: PodKey,
        /// Its first PodDisruptionBudgets.
        budgets: Vec<ObjectKey>,
    },
    /// A pod is terminating.
    Ending {
        /// The pod.
        pod: PodKey,
        /// When the pod should have terminated.
        until: Timestamp,
        /// Its first finalizers.
        finalizers: Vec<String>,
    },
    /// A pod is not evicted yet, because it has no place on another node.
    Unplaced(PodKey),
    /// A pod is not evicted yet, or has not reacted to its eviction.
    Pod(PodKey),
    /// A volume is still attached.
    Volume(Attachment),
}

impl DrainBlocker {
    /// The spelling in JSON, logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Protected(_) => "protected",
            Self::Budget { .. } => "budget",
            Self::Ending { .. } => "ending",
            Self::Unplaced(_) => "unplaced",
            Self::Pod(_) => "pod",
            Self::Volume(_) => "volume",
        }
    }
}

impl fmt::Display for DrainBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected(pod) => write!(f, "pod {pod} must not be disrupted"),
            Self::Budget { pod, budgets } => {
                let names: Vec<String> = budgets.iter().map(ToString::to_string).collect();
                let plural = if names.len() == 1 { "" } else { "s" };
                write!(
                    f,
                    "pod {pod} is protected by PodDisruptionBudget{plural} {}",
                    names.join(", ")
                )
            }
            Self::Ending { pod, until, finalizers } => {
                write!(f, "pod {pod} should terminate by {until}")?;
                match &finalizers[..] {
                    [] => Ok(()),
                    names => write!(f, " and has the finalizers {}", names.join(", ")),
                }
            }
            Self::Unplaced(pod) => write!(f, "pod {pod} has no place on another node yet"),
            Self::Pod(pod) => write!(f, "pod {pod} is not evicted yet"),
            Self::Volume(attachment) => {
                write!(f, "volume {} is still attached ({})", attachment.volume, attachment.name)
            }
        }
    }
}

/// Lists the first blockers and the number of others.
pub fn format_blockers(first: &[DrainBlocker], more: usize) -> String {
    let mut words: Vec<String> = first.iter().map(ToString::to_string).collect();
    words.extend((more > 0).then(|| format!("and {more} more")));
    words.join("; ")
}

impl State {
    /// Returns the pods that delay the drain of a node, in eviction order.
    pub fn drain_blockers(&self, node: &str, now: Timestamp) -> Vec<DrainBlocker> {
        let mut pods: Vec<&Pod> = self.objects.pods_on(node).collect();
        pods.retain(|pod| pod.holds_drain(now));
        pods.sort_by_key(|pod| (pod.drain_order(), &pod.key));
        pods.into_iter().map(|pod| self.drain_blocker(pod, now)).collect()
    }

    fn drain_blocker(&self, pod: &Pod, now: Timestamp) -> DrainBlocker {
        let key = pod.key.clone();
        if let Some(until) = pod.ends_by() {
            return DrainBlocker::Ending {
                pod: key,
                until,
                finalizers: pod.finalizers.iter().take(NAMES_MAX).cloned().collect(),
            };
        }
        if pod.is_protected(now) {
            return DrainBlocker::Protected(key);
        }
        let budgets = self.objects.pdbs.values();
        let budgets: Vec<&Pdb> = budgets.filter(|budget| budget.covers_pod(pod)).collect();
        match &budgets[..] {
            [] => DrainBlocker::Pod(key),
            [pdb] if pdb.disruptions_allowed > 0 => DrainBlocker::Pod(key),
            pdbs => DrainBlocker::Budget {
                pod: key,
                budgets: pdbs.iter().take(NAMES_MAX).map(|pdb| pdb.key.clone()).collect(),
            },
        }
    }
}
