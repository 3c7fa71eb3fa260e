//! Kubernetes Events: converts reports about a pod or a node.
//!
//! The reasons are Karpenter's if they mean the same (spec/disruption.md §5.2). Reports that
//! concern neither a pod nor a node are only in the log.

use crate::engine::Engine;
use crate::engine::event::Interruption;
use crate::engine::report::Report;
use crate::model::id::{NodeName, PodKey};
use crate::model::pod::Pod;
use crate::scheduling::UnschedulablePod;
use crate::state::drain_blockers::format_blockers;

/// The API accepts notes of at most 1,024 bytes.
const NOTE_BYTES: usize = 1_000;

/// The object of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InvolvedObject {
    /// A pod.
    Pod(PodKey),
    /// A node.
    Node(NodeName),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeEvent {
    /// The object.
    pub about: InvolvedObject,
    /// Its UID.
    pub uid: String,
    /// True if the event has the type Warning.
    pub warns: bool,
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The action, in CamelCase.
    pub action: &'static str,
    /// The message: one line of at most 1,000 bytes.
    pub note: String,
}

const PROVISION: &str = "Provision";
const DISRUPT: &str = "Disrupt";
const DRAIN: &str = "Drain";
const REGISTER: &str = "Register";

/// The reason and the action of an event.
type EventReason = (&'static str, &'static str);

impl Engine {
    /// Returns the events for a report, about existing objects.
    pub fn events_for(&self, report: &Report) -> Vec<KubeEvent> {
        if let Report::ClaimPlanned { claim, pool, offering, pods, .. } = report {
            let (instance_type, zone) = (&offering.instance_type, &offering.zone);
            let note =
                format!("planned for claim {claim}: {instance_type} in {zone} for pool {pool}");
            let pods = pods.iter().map(|pod| InvolvedObject::Pod(pod.clone()));
            return pods
                .filter_map(|pod| self.event_about(pod, false, ("Nominated", PROVISION), &note))
                .collect();
        }
        let event = self.pod_event(report).or_else(|| self.node_event(report));
        event.into_iter().collect()
    }

    /// Returns the event of a report about one pod.
    fn pod_event(&self, report: &Report) -> Option<KubeEvent> {
        let (pod, warns, why, note) = match report {
            // A running pod that is rescheduled already has a node.
            Report::Unplaced(UnschedulablePod { pod, reasons }) if self.is_pod_waiting(pod) => {
                let reasons: Vec<String> =
                    reasons.iter().map(|reason| reason.rejection_text()).collect();
                let note = format!("cannot schedule pod: {}", reasons.join("; "));
                (pod, true, ("FailedScheduling", PROVISION), note)
            }
            Report::Evicted { pod, reason } => {
                let note = format!("evicted pod, node disrupted: {}", reason.as_str());
                (pod, false, ("Evicted", DRAIN), note)
            }
            _ => return None,
        };
        self.event_about(InvolvedObject::Pod(pod.clone()), warns, why, &note)
    }

    /// Returns the event of a report about one node.
    fn node_event(&self, report: &Report) -> Option<KubeEvent> {
        let (node, warns, why, note) = match report {
            Report::Retire { node, reason, pods, .. } => {
                let note =
                    format!("disrupting node: {}, {pods} pods to reschedule", reason.as_str());
                (node.as_ref()?, false, ("DisruptionTerminating", DISRUPT), note)
            }
            Report::Kept { claim, reason, why } => {
                let node = self.claim(claim)?.node.as_ref()?;
                let note = format!("cancelled disruption ({}): {why}", reason.as_str());
                (node, false, ("DisruptionBlocked", DISRUPT), note)
            }
            Report::EvictRefused { pod, text } => {
                let node = self.state.objects.pods.get(pod)?.node.as_ref()?;
                let note = format!("eviction of pod {pod} refused, retrying: {text}");
                (node, true, ("FailedDraining", DRAIN), note)
            }
            Report::DrainHeld { node, held_by, more, .. } => {
                let note = format!("drain blocked: {}", format_blockers(held_by, *more));
                (node, true, ("FailedDraining", DRAIN), note)
            }
            Report::DrainForced { node, held_by, more, .. } => {
                let held_by = format_blockers(held_by, *more);
                let note = format!("terminating node, drain timed out: {held_by}");
                (node, true, ("TerminationGracePeriodExpiring", DRAIN), note)
            }
            _ => return self.instance_event(report),
        };
        self.event_about(InvolvedObject::Node(node.clone()), warns, why, &note)
    }

    /// Returns the Kubernetes Event for a report about the instance of a node.
    fn instance_event(&self, report: &Report) -> Option<KubeEvent> {
        let (node, warns, why, note) = match report {
            Report::Interrupted { node, what: notice, ignored, .. } => {
                let (reason, warns) = interruption_reason(*notice);
                let then = if *ignored { "ignored" } else { "disrupting node" };
                let note = format!("received interruption notice {}: {then}", notice.as_str());
                (node.as_ref()?, warns, (reason, DISRUPT), note)
            }
            Report::Lacking { node, instance_type, resource, promised, found } => {
                let note =
                    format!("{resource} is {found}, instance type {instance_type} has {promised}");
                (node, true, ("FailedConsistencyCheck", REGISTER), note)
            }
            Report::Unguarded { node } => {
                let note = "node registered without taint karpenter.sh/unregistered".to_owned();
                (node, true, ("UnregisteredTaintMissing", REGISTER), note)
            }
            _ => return None,
        };
        self.event_about(InvolvedObject::Node(node.clone()), warns, why, &note)
    }

    fn is_pod_waiting(&self, pod: &PodKey) -> bool {
        let known = self.state.objects.pods.get(pod);
        known.is_some_and(Pod::is_waiting)
    }

    /// Returns an event about an object, if the watch shows it.
    fn event_about(
        &self,
        about: InvolvedObject,
        warns: bool,
        why: EventReason,
        note: &str,
    ) -> Option<KubeEvent> {
        let (reason, action) = why;
        let objects = &self.state.objects;
        let uid = match &about {
            InvolvedObject::Pod(key) => objects.pods.get(key)?.uid.clone(),
            InvolvedObject::Node(name) => objects.nodes.get(name)?.uid.clone(),
        };
        Some(KubeEvent { about, uid, warns, reason, action, note: one_line(note) })
    }
}

/// Returns Karpenter's reason, and whether the event is a warning.
fn interruption_reason(notice: Interruption) -> (&'static str, bool) {
    match notice {
        Interruption::Rebalance => ("SpotRebalanceRecommendation", false),
        Interruption::Maintenance => ("InstanceUnhealthy", true),
        Interruption::Reservation => ("CapacityReservationInstanceInterrupted", true),
        Interruption::Spot => ("SpotInterrupted", true),
        Interruption::Stopping => ("InstanceTerminating", true),
        Interruption::Failed => ("InstanceUnhealthy", true),
    }
}

/// Returns a note without control characters, limited to the length that the API accepts.
fn one_line(note: &str) -> String {
    let mut line = String::with_capacity(note.len().min(NOTE_BYTES));
    for letter in note.chars() {
        let letter = if letter.is_control() { ' ' } else { letter };
        if line.len() + letter.len_utf8() > NOTE_BYTES {
            break;
        }
        line.push(letter);
    }
    line
}
