//! Kubernetes Events: converts reports about a pod or a node. Reports that concern neither a pod
//! nor a node are only in the log.

use crate::engine::report::description::{Description, EventTarget, EventText};
use crate::model::id::{NodeName, PodKey};
use crate::model::pod::Pod;
use crate::state::State;

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

/// Returns the events for a report, about existing objects.
pub fn events_for(state: &State, described: &Description<'_>) -> Vec<KubeEvent> {
    let Some(event) = &described.event else {
        return Vec::new();
    };
    let known_pod = |pod: &PodKey| state.objects.pods.get(pod);
    let pods = match event.target {
        EventTarget::Pods(pods) => pods,
        EventTarget::Pod(pod) => std::slice::from_ref(pod),
        // A running pod that is rescheduled already has a node.
        EventTarget::PendingPod(pod) if known_pod(pod).is_some_and(Pod::is_waiting) => {
            std::slice::from_ref(pod)
        }
        _ => &[],
    };
    let node = match event.target {
        EventTarget::Node(node) => node,
        EventTarget::NodeOfClaim(claim) => {
            state.ledger.claims.get(claim).and_then(|claim| claim.node.as_ref())
        }
        EventTarget::NodeOfPod(pod) => known_pod(pod).and_then(|pod| pod.node.as_ref()),
        _ => None,
    };
    let pods = pods.iter().cloned().map(InvolvedObject::Pod);
    let objects = pods.chain(node.cloned().map(InvolvedObject::Node));
    objects.filter_map(|object| event_about(state, object, event)).collect()
}

/// Returns an event about an object, if the watch shows it.
fn event_about(state: &State, about: InvolvedObject, event: &EventText<'_>) -> Option<KubeEvent> {
    let uid = match &about {
        InvolvedObject::Pod(key) => state.objects.pods.get(key)?.uid.clone(),
        InvolvedObject::Node(name) => state.objects.nodes.get(name)?.uid.clone(),
    };
    let (reason, action) = event.reason;
    let note = one_line(&event.note);
    Some(KubeEvent { about, uid, warns: event.warns, reason, action, note })
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

    use super::events_for;
    use crate::engine::report::examples::examples;
    use crate::model::claim::ClaimPhase;
    use crate::model::node::Node;
    use crate::model::watched_object::WatchedObject;
    use crate::state::State;
    use crate::state::fixtures::{NOW, claim, pod, waiting};

    /// A state with the node, claim and most pods of the examples.
    fn state() -> State {
        let mut state = State::default();
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
        state
    }

    #[test]
    fn each_report_has_its_kubernetes_events() {
        let (state, mut out) = (state(), String::new());
        for report in examples() {
            let events = events_for(&state, &report.describe(true));
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
