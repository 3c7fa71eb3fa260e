//! What holds a node that is leaving: which pod, and which budget, finalizer or volume of it.
//! It must not know why the node leaves, nor what is done about it.

use std::fmt;

use jiff::Timestamp;

use crate::model::id::{ObjectKey, PodKey};
use crate::model::pdb::Pdb;
use crate::model::pod::Pod;
use crate::model::watched_object::Attachment;
use crate::state::State;

/// Names of budgets and finalizers that are told of one pod, at most.
const NAMES_MAX: usize = 3;

/// What holds a node that is leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainBlocker {
    /// A pod asks never to be disrupted.
    Protected(PodKey),
    /// A pod's disruption budgets do not let it go, or it has several, which the API server never
    /// lets pass.
    Budget {
        /// The pod.
        pod: PodKey,
        /// Its budgets, the first few.
        budgets: Vec<ObjectKey>,
    },
    /// A pod is ending.
    Ending {
        /// The pod.
        pod: PodKey,
        /// By when it should have ended.
        until: Timestamp,
        /// What keeps it then, the first few.
        finalizers: Vec<String>,
    },
    /// A pod has yet to be told to go, or to heed it.
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
                let s = if names.len() == 1 { "" } else { "s" };
                write!(
                    f,
                    "pod {pod} is kept by the disruption budget{s} {}",
                    names.join(", ")
                )
            }
            Self::Ending {
                pod,
                until,
                finalizers,
            } => {
                write!(f, "pod {pod} is to have ended by {until}")?;
                match &finalizers[..] {
                    [] => Ok(()),
                    all => write!(f, " and has the finalizers {}", all.join(", ")),
                }
            }
            Self::Pod(pod) => write!(f, "pod {pod} is on it"),
            Self::Volume(own) => {
                write!(f, "volume {} is attached to it ({})", own.volume, own.name)
            }
        }
    }
}

/// The first few, and how many more there are, in words.
pub fn listed(first: &[DrainBlocker], more: usize) -> String {
    let mut words: Vec<String> = first.iter().map(ToString::to_string).collect();
    words.extend((more > 0).then(|| format!("and {more} more")));
    words.join("; ")
}

impl State {
    /// The pods that hold a node that is leaving, those first whose turn it is.
    pub fn obstacles(&self, node: &str, now: Timestamp) -> Vec<DrainBlocker> {
        let mut pods: Vec<&Pod> = self.objects.pods_on(node).collect();
        pods.retain(|pod| pod.holds_drain(now));
        pods.sort_by_key(|pod| (pod.turn(), &pod.key));
        pods.into_iter()
            .map(|pod| self.obstacle(pod, now))
            .collect()
    }

    fn obstacle(&self, pod: &Pod, now: Timestamp) -> DrainBlocker {
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
        let budgets: Vec<&Pdb> = budgets.filter(|own| own.covers(pod)).collect();
        match &budgets[..] {
            [] => DrainBlocker::Pod(key),
            [one] if one.disruptions_allowed > 0 => DrainBlocker::Pod(key),
            all => DrainBlocker::Budget {
                pod: key,
                budgets: all
                    .iter()
                    .take(NAMES_MAX)
                    .map(|own| own.key.clone())
                    .collect(),
            },
        }
    }
}
