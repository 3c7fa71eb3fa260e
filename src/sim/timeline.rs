//! What anyone watching the world would see, as one line a fact, for a terminal or as JSON.
//! It must not know who caused it, nor where lines are written.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::model::id::{ClaimId, InstanceId, NodeName, PoolName};
use crate::model::instance::{OfferingKey, Price};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineFact {
    /// A workload is asked for in another number; for a job, that many more runs.
    Scaled {
        /// The workload.
        workload: String,
        /// Before.
        from: u32,
        /// After.
        to: u32,
    },
    /// The scheduler found no place for pods that it had not tried before.
    Waiting {
        /// How many.
        pods: usize,
        /// How many wait in all.
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
        /// The price of that.
        price: Price,
        /// How many pods it is for.
        pods: usize,
    },
    /// An instance was launched.
    Launched {
        /// For this claim.
        claim: ClaimId,
        /// The instance.
        instance: InstanceId,
        /// What it is.
        offering: OfferingKey,
        /// Its price.
        price: Price,
    },
    /// The cloud had nothing of what was asked for.
    Refused {
        /// The claim.
        claim: ClaimId,
        /// What was asked for.
        offerings: Vec<OfferingKey>,
    },
    /// A kubelet registered its node.
    Registered {
        /// The node.
        node: NodeName,
        /// Its instance.
        instance: InstanceId,
    },
    /// A node can run pods.
    Ready {
        /// The node.
        node: NodeName,
        /// Time since its instance was launched.
        after: SignedDuration,
    },
    /// The scheduler bound pods.
    Bound {
        /// To this node.
        node: NodeName,
        /// How many.
        pods: usize,
    },
    /// A node was asked to leave.
    Leaving {
        /// The node, or the claim where there is none.
        node: String,
        /// Why.
        reason: &'static str,
        /// What it cost per hour, if that is known.
        price: Option<Price>,
    },
    /// An instance was ended by command.
    Retired {
        /// The instance.
        instance: InstanceId,
        /// What it was.
        offering: OfferingKey,
        /// How long it ran.
        ran: SignedDuration,
    },
    /// A spot instance will be taken back.
    Interrupted {
        /// The instance.
        instance: InstanceId,
        /// When.
        at: Timestamp,
    },
    /// An instance is gone that nobody ended by command.
    Lost {
        /// The instance.
        instance: InstanceId,
    },
    /// An offering ran short, or came back.
    Stock {
        /// How many offerings.
        offerings: usize,
        /// In words: which.
        which: String,
        /// How many are left of each; none means enough.
        left: Option<u32>,
    },
    /// Something was made to go wrong.
    Fault(String),
    /// The daemon has no answer to a pod.
    Unplaced {
        /// The pod.
        pod: String,
        /// Why.
        why: String,
    },
    /// The configuration is another one.
    Reloaded,
    /// The daemon stopped.
    Stopped,
    /// The daemon started.
    Started,
    /// Instances do not end until a user accepts it.
    Held {
        /// How many.
        instances: usize,
        /// Of how many that run.
        total: usize,
    },
    /// A user accepts what is held under an id.
    Accepted(String),
    /// The daemon holds back, and why.
    Frozen(String),
    /// The daemon goes on.
    Thawed,
}

impl TimelineFact {
    /// The kind, as JSON has it.
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

    fn fields(&self) -> Value {
        match self {
            Self::Scaled { workload, from, to } => {
                json!({ "workload": workload, "from": from, "to": to })
            }
            Self::Waiting { pods, pending } => json!({ "pods": pods, "pending": pending }),
            Self::Planned {
                claim,
                pool,
                offering,
                price,
                pods,
            } => json!({
                "claim": claim.0, "pool": pool.0, "instance_type": offering.instance_type.0,
                "zone": offering.zone.0, "capacity_type": offering.capacity_type.as_str(),
                "usd_per_h": price.usd_per_h(), "pods": pods,
            }),
            Self::Launched {
                claim,
                instance,
                offering,
                price,
            } => json!({
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
            Self::Leaving {
                node,
                reason,
                price,
            } => {
                let price = price.map(Price::usd_per_h);
                json!({ "node": node, "reason": reason, "usd_per_h": price })
            }
            Self::Retired {
                instance,
                offering,
                ran,
            } => json!({
                "instance": instance.0, "instance_type": offering.instance_type.0,
                "zone": offering.zone.0, "capacity_type": offering.capacity_type.as_str(),
                "ran_seconds": ran.as_secs(),
            }),
            Self::Interrupted { instance, at } => {
                json!({ "instance": instance.0, "at": at.to_string() })
            }
            Self::Lost { instance } => json!({ "instance": instance.0 }),
            Self::Stock {
                offerings,
                which,
                left,
            } => json!({ "offerings": offerings, "which": which, "left": left }),
            Self::Unplaced { pod, why } => json!({ "pod": pod, "why": why }),
            Self::Held { instances, total } => json!({ "instances": instances, "total": total }),
            Self::Accepted(id) => json!({ "id": id }),
            Self::Fault(text) | Self::Frozen(text) => json!({ "text": text }),
            Self::Reloaded | Self::Stopped | Self::Started | Self::Thawed => json!({}),
        }
    }
}

fn plural(count: usize) -> String {
    if count == 1 {
        "1 pod".to_owned()
    } else {
        format!("{count} pods")
    }
}

fn short(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

impl fmt::Display for TimelineFact {
    #[expect(clippy::too_many_lines, reason = "a table: one arm a kind")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scaled { workload, from, to } if from == to => {
                write!(f, "{workload} runs {to}")
            }
            Self::Scaled { workload, from, to } => write!(f, "{workload} {from} -> {to}"),
            Self::Waiting { pods, pending } if pods == pending => {
                write!(f, "{} pending", plural(*pods))
            }
            Self::Waiting { pods, pending } => {
                write!(f, "{} pending, {pending} in all", plural(*pods))
            }
            Self::Planned {
                pool,
                offering,
                price,
                pods,
                ..
            } => write!(
                f,
                "plan {offering} at {:.4} $/h in {pool} for {}",
                price.usd_per_h(),
                plural(*pods)
            ),
            Self::Launched {
                instance,
                offering,
                price,
                ..
            } => {
                write!(
                    f,
                    "launched {instance} {offering} at {:.4} $/h",
                    price.usd_per_h()
                )
            }
            Self::Refused { offerings, .. } => match offerings.as_slice() {
                [] => f.write_str("launch refused"),
                [one] => write!(f, "launch refused: no capacity for {one}"),
                [one, rest @ ..] => {
                    write!(
                        f,
                        "launch refused: no capacity for {one} and {} others",
                        rest.len()
                    )
                }
            },
            Self::Registered { node, instance } => write!(f, "{node} registered ({instance})"),
            Self::Ready { node, after } => {
                write!(f, "{node} ready, {} after its launch", short(*after))
            }
            Self::Bound { node, pods } => write!(f, "{} bound to {node}", plural(*pods)),
            Self::Leaving {
                node,
                reason,
                price: Some(price),
            } => {
                write!(
                    f,
                    "{node} leaves ({reason}), {:.4} $/h less",
                    price.usd_per_h()
                )
            }
            Self::Leaving {
                node,
                reason,
                price: None,
            } => write!(f, "{node} leaves ({reason})"),
            Self::Retired {
                instance,
                offering,
                ran,
            } => {
                write!(f, "retired {instance} {offering} after {}", short(*ran))
            }
            Self::Interrupted { instance, at } => {
                write!(f, "{instance} will be taken back at {at:.0}")
            }
            Self::Lost { instance } => write!(f, "{instance} is gone"),
            Self::Stock {
                which, left: None, ..
            } => write!(f, "{which} available again"),
            Self::Stock {
                which,
                left: Some(0),
                ..
            } => write!(f, "{which} sold out"),
            Self::Stock {
                which,
                left: Some(left),
                ..
            } => write!(f, "{which}: {left} left"),
            Self::Fault(text) => write!(f, "fault: {text}"),
            Self::Unplaced { pod, why } => write!(f, "no place for {pod}: {why}"),
            Self::Reloaded => f.write_str("configuration changed"),
            Self::Stopped => f.write_str("daemon stopped"),
            Self::Started => f.write_str("daemon started"),
            Self::Held { instances, total } => write!(
                f,
                "{instances} of {total} instances would end without a drain: held until a user \
                 accepts it"
            ),
            Self::Accepted(id) => write!(f, "a user accepts {id}"),
            Self::Frozen(why) => write!(f, "holding back: {why}"),
            Self::Thawed => f.write_str("going on"),
        }
    }
}

/// A fact with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// When.
    pub at: Timestamp,
    /// What.
    pub fact: TimelineFact,
}

impl TimelineEntry {
    /// The line as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("at".to_owned(), json!(self.at.to_string()));
        object.insert("kind".to_owned(), json!(self.fact.kind()));
        if let Value::Object(fields) = self.fact.fields() {
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
