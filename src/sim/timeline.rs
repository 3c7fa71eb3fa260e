//! Events of a simulation, one line each, for a terminal or as JSON.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::model::id::{ClaimId, InstanceId, NodeName, PoolName};
use crate::model::instance::{OfferingKey, Price};

/// An event of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineFact {
    /// A workload was scaled. For a job, `to` runs were added.
    Scaled {
        /// The workload.
        workload: String,
        /// Replicas before the change.
        from: u32,
        /// Replicas after the change.
        to: u32,
    },
    /// New pods are pending: the scheduler found no node for them.
    Waiting {
        /// New pending pods.
        pods: usize,
        /// All pending pods.
        pending: usize,
    },
    /// A claim was planned.
    Planned {
        /// The claim.
        claim: ClaimId,
        /// Its pool.
        pool: PoolName,
        /// Its cheapest offering.
        offering: OfferingKey,
        /// Price of this offering.
        price: Price,
        /// Number of pods planned for the claim.
        pods: usize,
    },
    /// An instance was launched.
    Launched {
        /// The claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// Its offering.
        offering: OfferingKey,
        /// Its price.
        price: Price,
    },
    /// The cloud had no capacity for a launch.
    Refused {
        /// The claim.
        claim: ClaimId,
        /// The requested offerings.
        offerings: Vec<OfferingKey>,
    },
    /// A kubelet registered its node.
    Registered {
        /// The node.
        node: NodeName,
        /// Its instance.
        instance: InstanceId,
    },
    /// A node became ready.
    Ready {
        /// The node.
        node: NodeName,
        /// Time since its instance was launched.
        after: SignedDuration,
    },
    /// The scheduler bound pods.
    Bound {
        /// The node.
        node: NodeName,
        /// Number of pods.
        pods: usize,
    },
    /// A node is disrupted.
    Leaving {
        /// The node, or the claim if it has no node.
        node: String,
        /// The disruption reason.
        reason: &'static str,
        /// Its price per hour, if known.
        price: Option<Price>,
    },
    /// An instance was terminated by Outrigger.
    Retired {
        /// The instance.
        instance: InstanceId,
        /// Its offering.
        offering: OfferingKey,
        /// Time since its launch.
        ran: SignedDuration,
    },
    /// A spot instance received an interruption notice.
    Interrupted {
        /// The instance.
        instance: InstanceId,
        /// Time of the interruption.
        at: Timestamp,
    },
    /// An instance ended without a command of Outrigger.
    Lost {
        /// The instance.
        instance: InstanceId,
    },
    /// The capacity of offerings changed.
    Stock {
        /// Number of offerings.
        offerings: usize,
        /// Description of the offerings.
        which: String,
        /// Instances left of each offering. `None` if there is no limit.
        left: Option<u32>,
    },
    /// A fault was injected.
    Fault(String),
    /// The daemon cannot schedule a pod.
    Unplaced {
        /// The pod.
        pod: String,
        /// The reason.
        why: String,
    },
    /// The configuration changed.
    Reloaded,
    /// The daemon stopped.
    Stopped,
    /// The daemon started.
    Started,
    /// Terminations without a drain wait for approval by a user.
    Held {
        /// Held instances.
        instances: usize,
        /// Running instances.
        total: usize,
    },
    /// A user approved the held terminations with this ID.
    Accepted(String),
    /// The cluster state is out of sync, and the reason.
    Frozen(String),
    /// The cluster state is in sync again.
    Thawed,
}

impl TimelineFact {
    /// The `kind` of the event in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Scaled { .. } => "scaled",
            Self::Waiting { .. } => "pods_pending",
            Self::Planned { .. } => "claim_planned",
            Self::Launched { .. } => "instance_launched",
            Self::Refused { .. } => "launch_refused",
            Self::Registered { .. } => "node_registered",
            Self::Ready { .. } => "node_ready",
            Self::Bound { .. } => "pods_bound",
            Self::Leaving { .. } => "node_leaving",
            Self::Retired { .. } => "instance_retired",
            Self::Interrupted { .. } => "interruption",
            Self::Lost { .. } => "instance_lost",
            Self::Stock { .. } => "capacity",
            Self::Fault(_) => "fault",
            Self::Unplaced { .. } => "pod_unplaced",
            Self::Reloaded => "configuration_changed",
            Self::Stopped => "daemon_stopped",
            Self::Started => "daemon_started",
            Self::Held { .. } => "ends_held",
            Self::Accepted(_) => "accepted",
            Self::Frozen(_) => "frozen",
            Self::Thawed => "thawed",
        }
    }

    fn json_fields(&self) -> Value {
        match self {
            Self::Scaled { workload, from, to } => {
                json!({ "workload": workload, "from": from, "to": to })
            }
            Self::Waiting { pods, pending } => json!({ "pods": pods, "pending": pending }),
            Self::Planned { claim, pool, offering, price, pods } => json!({
                "claim": claim.0, "pool": pool.0, "instance_type": offering.instance_type.0,
                "zone": offering.zone.0, "capacity_type": offering.capacity_type.as_str(),
                "usd_per_h": price.usd_per_h(), "pods": pods,
            }),
            Self::Launched { claim, instance, offering, price } => json!({
                "claim": claim.0, "instance": instance.0,
                "instance_type": offering.instance_type.0, "zone": offering.zone.0,
                "capacity_type": offering.capacity_type.as_str(),
                "usd_per_h": price.usd_per_h(),
            }),
            Self::Refused { claim, offerings } => {
                let offerings: Vec<String> = offerings.iter().map(ToString::to_string).collect();
                json!({ "claim": claim.0, "offerings": offerings })
            }
            Self::Registered { node, instance } => {
                json!({ "node": node.0, "instance": instance.0 })
            }
            Self::Ready { node, after } => {
                json!({ "node": node.0, "after_seconds": after.as_secs_f64() })
            }
            Self::Bound { node, pods } => json!({ "node": node.0, "pods": pods }),
            Self::Leaving { node, reason, price } => {
                let price = price.map(Price::usd_per_h);
                json!({ "node": node, "reason": reason, "usd_per_h": price })
            }
            Self::Retired { instance, offering, ran } => json!({
                "instance": instance.0, "instance_type": offering.instance_type.0,
                "zone": offering.zone.0, "capacity_type": offering.capacity_type.as_str(),
                "ran_seconds": ran.as_secs(),
            }),
            Self::Interrupted { instance, at } => {
                json!({ "instance": instance.0, "at": at.to_string() })
            }
            Self::Lost { instance } => json!({ "instance": instance.0 }),
            Self::Stock { offerings, which, left } => {
                json!({ "offerings": offerings, "which": which, "left": left })
            }
            Self::Unplaced { pod, why } => json!({ "pod": pod, "why": why }),
            Self::Held { instances, total } => json!({ "instances": instances, "total": total }),
            Self::Accepted(id) => json!({ "id": id }),
            Self::Fault(text) | Self::Frozen(text) => json!({ "text": text }),
            Self::Reloaded | Self::Stopped | Self::Started | Self::Thawed => json!({}),
        }
    }
}

fn pod_count(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

fn short_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

impl fmt::Display for TimelineFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scaled { workload, from, to } if from == to => {
                write!(f, "started {to} runs of {workload}")
            }
            Self::Scaled { workload, from, to } => {
                write!(f, "scaled {workload} from {from} to {to}")
            }
            Self::Waiting { pods, pending } if pods == pending => {
                write!(f, "{} pending", pod_count(*pods))
            }
            Self::Waiting { pods, pending } => {
                write!(f, "{} pending, {pending} in total", pod_count(*pods))
            }
            Self::Planned { pool, offering, price, pods, .. } => write!(
                f,
                "planned {offering} at {:.4} $/h in {pool} for {}",
                price.usd_per_h(),
                pod_count(*pods)
            ),
            Self::Launched { instance, offering, price, .. } => {
                write!(f, "launched {instance} {offering} at {:.4} $/h", price.usd_per_h())
            }
            Self::Refused { offerings, .. } => match offerings.as_slice() {
                [] => f.write_str("launch refused"),
                [offering] => write!(f, "launch refused: no capacity for {offering}"),
                [first, others @ ..] => {
                    write!(
                        f,
                        "launch refused: no capacity for {first} and {} more offerings",
                        others.len()
                    )
                }
            },
            Self::Registered { node, instance } => write!(f, "registered {node} ({instance})"),
            Self::Ready { node, after } => {
                write!(f, "{node} ready {} after launch", short_duration(*after))
            }
            Self::Bound { node, pods } => write!(f, "bound {} to {node}", pod_count(*pods)),
            Self::Leaving { node, reason, price: Some(price) } => {
                write!(f, "disrupting {node} ({reason}), saves {:.4} $/h", price.usd_per_h())
            }
            Self::Leaving { node, reason, price: None } => {
                write!(f, "disrupting {node} ({reason})")
            }
            Self::Retired { instance, offering, ran } => {
                write!(f, "terminated {instance} {offering} after {}", short_duration(*ran))
            }
            Self::Interrupted { instance, at } => {
                write!(f, "{instance} will be interrupted at {at:.0}")
            }
            Self::Lost { instance } => write!(f, "lost {instance}"),
            Self::Stock { which, left: None, .. } => write!(f, "{which} available again"),
            Self::Stock { which, left: Some(0), .. } => write!(f, "{which} sold out"),
            Self::Stock { which, left: Some(left), .. } => write!(f, "{which}: {left} left"),
            Self::Fault(text) => write!(f, "fault: {text}"),
            Self::Unplaced { pod, why } => write!(f, "cannot schedule {pod}: {why}"),
            Self::Reloaded => f.write_str("configuration changed"),
            Self::Stopped => f.write_str("daemon stopped"),
            Self::Started => f.write_str("daemon started"),
            Self::Held { instances, total } => write!(
                f,
                "{instances} of {total} instances would be terminated without a drain, waiting for \
                 approval"
            ),
            Self::Accepted(id) => write!(f, "user approved {id}"),
            Self::Frozen(why) => {
                write!(f, "cluster state out of sync, suspending decisions: {why}")
            }
            Self::Thawed => f.write_str("cluster state in sync, resuming decisions"),
        }
    }
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// The time.
    pub at: Timestamp,
    /// The event.
    pub fact: TimelineFact,
}

impl TimelineEntry {
    /// Returns the line as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("at".to_owned(), json!(self.at.to_string()));
        object.insert("kind".to_owned(), json!(self.fact.kind()));
        if let Value::Object(fields) = self.fact.json_fields() {
            object.extend(fields);
        }
        Value::Object(object)
    }
}

impl fmt::Display for TimelineEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at.strftime("%H:%M:%S"), self.fact)
    }
}
