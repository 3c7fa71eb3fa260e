//! Disrupted nodes in the API server's audit log: how many simultaneously, change by change.

use std::collections::BTreeMap;
use std::fs;

use jiff::Timestamp;
use outrigger::model::labels::{INITIALIZED, TAINT_DISRUPTED};
use serde_json::Value;

use super::Plane;

/// The limit of nodes that are disrupted at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allowed {
    Nodes(usize),
    Percent(usize),
}

impl Allowed {
    /// Returns the limit as HCL.
    pub(super) fn text(self) -> String {
        match self {
            Self::Nodes(count) => count.to_string(),
            Self::Percent(share) => format!("\"{share}%\""),
        }
    }

    /// Returns the limit for this many nodes. Percentages are rounded up, as in Karpenter.
    fn of(self, nodes: usize) -> usize {
        match self {
            Self::Nodes(count) => count,
            Self::Percent(share) => (nodes * share).div_ceil(100),
        }
    }
}

/// The counts in an audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Audited {
    /// The maximum number of nodes disrupted at once.
    pub(super) most: usize,
    /// Nodes whose disruption started, and those of them whose disruption was cancelled.
    pub(super) began: usize,
    pub(super) stayed: usize,
    /// Removed nodes.
    pub(super) removed: usize,
    /// Changes after which more nodes were disrupted than the limit allows.
    pub(super) above: usize,
}

/// One change of a Node in the audit log.
struct Change {
    at: String,
    node: String,
    removed: bool,
    /// Whether the node is initialized and whether it is disrupted, if the event has this.
    initialized: Option<bool>,
    leaves: Option<bool>,
}

impl Change {
    fn of(event: &Value) -> Option<Self> {
        let code = event["responseStatus"]["code"].as_u64()?;
        let of_node = event["objectRef"]["resource"] == "nodes";
        if !of_node || event["level"] != "RequestResponse" {
            return None;
        }
        let text = |value: &Value| Some(value.as_str()?.to_owned());
        let object = &event["responseObject"];
        // A client that requests only metadata gets no spec in the response.
        let whole = object["spec"].is_object();
        let spec = if whole { object } else { &event["requestObject"] };
        let taints = spec["spec"]["taints"].as_array();
        let leaves = |own: &Vec<Value>| own.iter().any(|own| own["key"] == TAINT_DISRUPTED);
        let meta = &object["metadata"];
        (code < 300).then_some(Self {
            at: text(&event["stageTimestamp"])?,
            node: text(&event["objectRef"]["name"]).or(text(&object["metadata"]["name"]))?,
            removed: event["verb"] == "delete",
            initialized: meta.is_object().then(|| meta["labels"][INITIALIZED] == "true"),
            leaves: taints.map(leaves).or(whole.then_some(false)),
        })
    }
}

/// Returns the audit events of changes by these users. Leases are left out, because all hosts write
/// them for leader election.
pub(super) fn changes(plane: &Plane, users: &[&str]) -> Vec<Value> {
    let log = fs::read_to_string(plane.logs_dir().join("audit.log")).expect("the audit log");
    // The last line may be incomplete.
    let events = log.lines().filter_map(|own| serde_json::from_str(own).ok());
    let reads = ["get", "list", "watch"].map(Value::from);
    let counts = |event: &Value| {
        let user = event["user"]["username"].as_str();
        user.is_some_and(|own| users.contains(&own))
            && !reads.contains(&event["verb"])
            && event["objectRef"]["resource"] != "leases"
    };
    events.filter(counts).collect()
}

/// Returns verb and path of the changes by a user after this time.
pub(crate) fn changes_of(plane: &Plane, user: &str, after: Timestamp) -> Vec<String> {
    let is_after = |event: &Value| {
        let at = event["requestReceivedTimestamp"].as_str();
        let at = at.and_then(|at| at.parse::<Timestamp>().ok());
        at.is_some_and(|at| at > after)
    };
    let text = |event: Value| format!("{} {}", event["verb"], event["requestURI"]);
    let all = changes(plane, &[user]).into_iter();
    all.filter(is_after).map(text).collect()
}

/// Returns when each node was first tainted for a disruption, by name.
pub(super) fn first_disruptions(plane: &Plane) -> BTreeMap<String, Timestamp> {
    let log = fs::read_to_string(plane.logs_dir().join("audit.log")).expect("the audit log");
    // The last line may be incomplete.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let changes = events.filter_map(|event| Change::of(&event));
    let mut first = BTreeMap::new();
    for change in changes.filter(|change| change.leaves == Some(true)) {
        let at: Timestamp = change.at.parse().expect("a time");
        let known = first.entry(change.node).or_insert(at);
        *known = at.min(*known);
    }
    first
}

/// Counts the changes in the log of a plane that was started with `--audit`.
pub(super) fn audited(plane: &Plane, allowed: Allowed) -> Audited {
    let log = plane.logs_dir().join("audit.log");
    replayed(&fs::read_to_string(log).expect("the audit log"), allowed)
}

fn replayed(log: &str, allowed: Allowed) -> Audited {
    let events = log.lines().map(serde_json::from_str::<Value>);
    let mut changes: Vec<Change> = events
        // The last line may be incomplete.
        .filter_map(|event| Change::of(&event.ok()?))
        .collect();
    changes.sort_by(|one, other| one.at.cmp(&other.at));
    let mut all = Audited::default();
    let mut nodes: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for change in changes {
        if change.removed {
            all.removed += usize::from(nodes.remove(&change.node).is_some());
        } else {
            let own = nodes.entry(change.node).or_default();
            let was = own.1;
            own.0 = change.initialized.unwrap_or(own.0);
            own.1 = change.leaves.unwrap_or(own.1);
            all.began += usize::from(own.1 && !was);
            all.stayed += usize::from(was && !own.1);
        }
        let count = nodes.values().filter(|own| own.0 || own.1).count();
        let leaving = nodes.values().filter(|own| own.1).count();
        all.most = all.most.max(leaving);
        all.above += usize::from(leaving > allowed.of(count));
    }
    all
}

#[test]
fn audit_log_check_detects_exceeded_budgets() {
    let event = |second: u32, verb: &str, node: &str, leaves: bool| {
        let taints = match leaves {
            true => serde_json::json!([{"key": TAINT_DISRUPTED, "effect": "NoSchedule"}]),
            false => serde_json::json!([]),
        };
        let labels = serde_json::json!({INITIALIZED: "true"});
        let own = serde_json::json!({"metadata": {"labels": labels}, "spec": {"taints": taints}});
        // The response to a client that requests only metadata.
        let short = serde_json::json!({"metadata": {"labels": labels}});
        let event = serde_json::json!({
            "stageTimestamp": format!("2026-01-01T00:00:{second:02}.000000Z"),
            "verb": verb,
            "level": "RequestResponse",
            "objectRef": {"resource": "nodes", "name": node},
            "responseStatus": {"code": 200},
            "requestObject": own,
            "responseObject": if verb == "patch" { &short } else { &own },
        });
        event.to_string() + "\n"
    };
    let log = [
        event(0, "create", "a", false),
        event(1, "create", "b", false),
        event(2, "create", "c", false),
        event(3, "patch", "a", true),
        // The log is not in the order of the changes.
        event(5, "patch", "b", true),
        event(4, "delete", "a", false),
        event(6, "patch", "c", true),
        event(7, "patch", "c", false),
    ]
    .concat();
    let expect = |above| Audited { most: 2, began: 3, stayed: 1, removed: 1, above };
    let of = |allowed| replayed(&(log.clone() + "{\"half"), allowed);
    assert_eq!(of(Allowed::Nodes(1)), expect(1));
    assert_eq!(of(Allowed::Nodes(2)), expect(0));
    assert_eq!(of(Allowed::Percent(50)), expect(1));
    assert_eq!(of(Allowed::Percent(51)), expect(0));
}
