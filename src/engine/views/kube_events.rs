//! Kubernetes Events: converts reports about a pod or a node. Reports that concern neither a pod
//! nor a node are only in the log.

use crate::engine::Engine;
use crate::engine::report::Report;
use crate::engine::report::description::{EventTarget, EventText};
use crate::model::id::{NodeName, PodKey};
use crate::model::pod::Pod;

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

impl Engine {
    /// Returns the events for a report, about existing objects.
    pub fn events_for(&self, report: &Report) -> Vec<KubeEvent> {
        let Some(event) = report.describe(true).event else {
            return Vec::new();
        };
        let pods = match event.target {
            EventTarget::Pods(pods) => pods,
            EventTarget::Pod(pod) => std::slice::from_ref(pod),
            EventTarget::PendingPod(pod) if self.is_pod_waiting(pod) => std::slice::from_ref(pod),
            _ => &[],
        };
        let node = match event.target {
            EventTarget::Node(node) => node,
            EventTarget::NodeOfClaim(claim) => self.claim(claim).and_then(|it| it.node.as_ref()),
            EventTarget::NodeOfPod(pod) => self.known_pod(pod).and_then(|it| it.node.as_ref()),
            _ => None,
        };
        let pods = pods.iter().cloned().map(InvolvedObject::Pod);
        let objects = pods.chain(node.cloned().map(InvolvedObject::Node));
        objects.filter_map(|object| self.event_about(object, &event)).collect()
    }

    fn known_pod(&self, pod: &PodKey) -> Option<&Pod> {
        self.state.objects.pods.get(pod)
    }

    fn is_pod_waiting(&self, pod: &PodKey) -> bool {
        self.known_pod(pod).is_some_and(Pod::is_waiting)
    }

    /// Returns an event about an object, if the watch shows it.
    fn event_about(&self, about: InvolvedObject, event: &EventText<'_>) -> Option<KubeEvent> {
        let uid = match &about {
            InvolvedObject::Pod(key) => self.known_pod(key)?.uid.clone(),
            InvolvedObject::Node(name) => self.state.objects.nodes.get(name)?.uid.clone(),
        };
        let (reason, action) = event.reason;
        Some(KubeEvent {
            about,
            uid,
            warns: event.warns,
            reason,
            action,
            note: one_line(&event.note),
        })
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

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use insta::{assert_snapshot, with_settings};

    use crate::engine::Engine;
    use crate::engine::report::examples::examples;
    use crate::model::claim::ClaimPhase;
    use crate::model::node::Node;
    use crate::model::watched_object::WatchedObject;
    use crate::state::fixtures::{NOW, claim, pod, waiting};

    /// An engine whose state has the node, claim and most pods of the examples.
    fn engine() -> Engine {
        let mut engine = Engine::new(7);
        let state = &mut engine.state;
        let mut pods: Vec<_> = (1..9).map(|it| waiting("default", &format!("p{it}"))).collect();
        pods.push(pod("default", "p0", "node-0"));
        pods.push(pod("default", "p11", "node-0"));
        for mut pod in pods {
            pod.uid = format!("uid of {}", pod.key);
            state.objects.apply(WatchedObject::Pod(Box::new(pod)), NOW);
        }
        let node =
            Node { name: "node-0".into(), uid: "uid of node-0".to_owned(), ..Node::default() };
        state.objects.apply(WatchedObject::Node(Box::new(node)), NOW);
        let claim = claim("claim-0", Some("node-0"), ClaimPhase::Initialized);
        state.ledger.claims.insert("claim-0".into(), claim);
        engine
    }

    #[test]
    fn every_report_has_its_events() {
        let (engine, mut out) = (engine(), String::new());
        for report in examples() {
            let events = engine.events_for(&report);
            let _ = writeln!(out, "# {report:?}");
            events.iter().for_each(|event| out += &format!("{event:?}\n"));
        }
        with_settings!({
            snapshot_path => "../../../tests/it/reports",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!("events", out);
        });
    }
}
