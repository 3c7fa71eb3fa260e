//! Reports of a daemon without one RBAC permission, on a real API server: each shipped permission
//! is removed from one of many clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Plane;
use super::fixture::{self, Setup, client, declare_room};
use super::proxy::{Fault, Proxy};
use crate::test_script::{POLL, POLLS};

const CALLS: &str = include_str!("../../terraform/calls.tsv");
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

/// One verb on one resource: the verb, the API group, the resource or path, and the name of a
/// single object.
pub(crate) type Right = [&'static str; 4];

/// Returns the permissions of all API calls, each with its role.
pub(super) fn rights() -> Vec<(&'static str, Right)> {
    let mut rights = Vec::new();
    for line in CALLS.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&'static str> = line.split('\t').collect();
        let [_, _, role, _, group, resources, name, verbs] = cells[..] else {
            panic!("not eight cells: {line}");
        };
        let blank = |own: &'static str| if own == "-" { "" } else { own };
        let role = if role.starts_with("system") { "system" } else { role };
        for resource in resources.split(',') {
            for verb in verbs.split(',') {
                rights.push((role, [verb, blank(group), resource, blank(name)]));
            }
        }
    }
    rights
}

/// Returns the rule that grants it.
fn rule([verb, group, resource, name]: [&str; 4]) -> Value {
    let mut rule = json!({"verbs": [verb]});
    if resource.starts_with('/') {
        rule["nonResourceURLs"] = json!([resource]);
    } else {
        rule["apiGroups"] = json!([group]);
        rule["resources"] = json!([resource]);
    }
    if !name.is_empty() {
        rule["resourceNames"] = json!([name]);
    }
    rule
}

/// Creates or replaces an object.
pub(super) async fn put(api: &Client, path: &str, object: &Value) {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let body = || object.to_string().into_bytes();
    let create = http::Request::post(path).body(body()).expect("a request");
    let Err(kube::Error::Api(status)) = api.request::<Value>(create).await else {
        return;
    };
    assert_eq!(status.code, 409, "{status:?}");
    let replace = http::Request::put(format!("{path}/{name}")).body(body());
    let replaced = api.request::<Value>(replace.expect("a request")).await;
    replaced.expect("it is replaced");
}

/// Returns a kubeconfig of an account with all permissions except these, and with a Lease of its
/// name.
pub(crate) async fn user(plane: &Plane, api: &Client, name: &str, gone: &[Right]) -> String {
    let token = account(api, name).await;
    grant(api, name, gone).await;
    until_granted(api, name, gone).await;
    let text = fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["users"][0]["user"] = json!({"token": token});
    config.to_string()
}

/// Waits until the API server applies both roles of an account.
async fn until_granted(api: &Client, name: &str, gone: &[Right]) {
    for is_system in [false, true] {
        let mut all = rights().into_iter();
        let is_one = |(role, own): &(&str, Right)| {
            (*role == "system") == is_system && !gone.contains(own) && !own[2].starts_with('/')
        };
        let [verb, group, resource, object] = all.find(is_one).expect("a right").1;
        let object = if object == "outrigger" { name } else { object };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:default:{name}"),
                "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
                    "name": object, "namespace": "kube-system"},
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let mut granted = false;
        for _ in 0..POLLS {
            let request = http::Request::post(path).body(review.to_string().into_bytes());
            let made = api.request::<Value>(request.expect("a request")).await;
            granted = made.expect("a review")["status"]["allowed"] == true;
            if granted {
                break;
            }
            sleep(POLL).await;
        }
        assert!(granted, "{name} may not {verb} {resource}");
    }
}

/// Creates a ServiceAccount and returns a token of it, because kube does not support `as` in a
/// kubeconfig.
async fn account(api: &Client, name: &str) -> String {
    let place = "/api/v1/namespaces/default/serviceaccounts";
    put(api, place, &json!({"metadata": {"name": name}})).await;
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {}});
    let request =
        http::Request::post(format!("{place}/{name}/token")).body(request.to_string().into_bytes());
    let made = api.request::<Value>(request.expect("a request")).await;
    let made = made.expect("a token");
    let token = made["status"]["token"].as_str();
    token.expect("a token").to_owned()
}

/// Grants an account exactly all permissions except these.
pub(super) async fn grant(api: &Client, name: &str, gone: &[Right]) {
    let all = rights();
    let is_there = |own: &Right| all.iter().any(|right| right.1 == *own);
    assert!(gone.iter().all(is_there), "no such permission: {gone:?}");
    let meta = json!({"name": name});
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "default", "name": name}]);
    for (kind, place, is_system) in [
        ("ClusterRole", RBAC.to_owned(), false),
        ("Role", format!("{RBAC}/namespaces/kube-system"), true),
    ] {
        let all = rights().into_iter();
        let all = all.filter(|(role, own)| (*role == "system") == is_system && !gone.contains(own));
        let all: BTreeSet<Right> = all.map(|own| own.1).collect();
        let rules = all.into_iter().map(|[verb, group, resource, object]| {
            let own = if object == "outrigger" { name } else { object };
            rule([verb, group, resource, own])
        });
        let rules: Vec<Value> = rules.collect();
        let head = |kind: &str| {
            json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind,
            "metadata": meta})
        };
        let mut role = head(kind);
        role["rules"] = json!(rules);
        let place = format!("{place}/{}", kind.to_lowercase());
        put(api, &format!("{place}s"), &role).await;
        let mut binding = head(&format!("{kind}Binding"));
        binding["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": name});
        binding["subjects"] = subjects.clone();
        put(api, &format!("{place}bindings"), &binding).await;
    }
}

/// One cluster of the daemon. All are in one API server, each with its own user, Lease and label.
struct Lane {
    name: String,
    gone: Option<Right>,
    kubeconfig: PathBuf,
}

/// Clusters with all permissions; the second one binds early.
const WHOLE: [&str; 2] = ["whole", "whole-early"];

/// The update of a CapacityBuffer's status.
const WRITES_BUFFERS: (&str, &str) = ("patch", "capacitybuffers/status");

/// Permissions for the management of nodes and pods.
const MANAGES: [(&str, &str); 10] = [
    ("create", "nodes"),
    ("patch", "nodes"),
    ("delete", "nodes"),
    ("create", "pods/eviction"),
    ("list", "volumeattachments"),
    ("patch", "pods/status"),
    ("create", "events"),
    ("patch", "nodes/status"),
    ("create", "pods/binding"),
    ("delete", "pods"),
];

impl Lane {
    fn new(setup: &Setup, name: &str, gone: Option<Right>) -> Self {
        let (name, kubeconfig) = (name.to_owned(), setup.path().join(name));
        Self { name, gone, kubeconfig }
    }

    fn lacks(&self, wanted: &[(&str, &str)]) -> bool {
        let is = |[verb, _, resource, _]: Right| wanted.contains(&(verb, resource));
        self.gone.is_some_and(is)
    }

    /// Whether its pods are bound before their nodes register.
    fn is_early(&self) -> bool {
        let taken = [("patch", "nodes/status"), ("create", "pods/binding"), ("delete", "pods")];
        self.name == WHOLE[1] || self.lacks(&taken)
    }

    /// Returns its part of the configuration. Nodes expire early if the permission concerns
    /// disruption.
    fn block(&self, types: &str) -> String {
        let Self { name, .. } = self;
        let binding = if self.is_early() { "early" } else { "scheduler" };
        // Where pods are bound early, the daemon creates the Node before the instance registers it,
        // also on a machine that is slow to run all these clusters at once.
        let (boot, registration) = match self.is_early() {
            _ if self.lacks(&[("delete", "pods")]) => ("1h", "10s"),
            _ if self.lacks(&[WRITES_BUFFERS]) => ("1h", "1h"),
            true => ("20s", "2m"),
            false => ("0s", "10s"),
        };
        let leaving =
            [("delete", "nodes"), ("create", "pods/eviction"), ("list", "volumeattachments")];
        let age = match self.gone.is_none() || self.lacks(&leaving) {
            true => "20s",
            false => "never",
        };
        format!(
            r#"
cluster "{name}" {{
  mode    = "manage"
  binding = "{binding}"
  kubeconfig {{ path = "{kubeconfig}" }}
  leader_election {{ lease = "kube-system/{name}" }}
  simulated {{
    catalog = "{types}"
    boot    = "{boot}"
  }}
}}
pool "{name}" {{
  clusters             = ["{name}"]
  expire_after         = "{age}"
  registration_timeout = "{registration}"
  require "tests.dev/lane" {{ in = ["{name}"] }}
  disruption {{
    budget {{ nodes = "100%" }}
  }}
}}
"#,
            kubeconfig = self.kubeconfig.display(),
        )
    }

    /// Whether the log reports the denied permission, in the API server's words or in Outrigger's
    /// about optional kinds. A cluster with all permissions must have done its work.
    fn is_told(&self, log: &str, denied: &BTreeMap<String, BTreeSet<[String; 3]>>) -> bool {
        let Some([verb, group, resource, _]) = self.gone else {
            // kwok may miss a Node that was created before its instance.
            let done = match self.is_early() {
                true => "bound pods early",
                false => "disrupting node",
            };
            return log.contains(&format!("{done} cluster={} ", self.name));
        };
        if ["capacitybuffers", "podtemplates"].contains(&resource) {
            let words = format!("{verb} {resource} denied");
            let cluster = format!("cluster=\"{}\"", self.name);
            let mut lines = log.lines();
            return lines.any(|line| line.contains(&cluster) && line.contains(&words));
        }
        let own = [verb, group, resource].map(str::to_owned);
        denied.get(&self.name).is_some_and(|all| all.contains(&own))
    }
}

/// Returns the permissions that the API server denied according to the log, by user.
pub(crate) fn denied(log: &str) -> BTreeMap<String, BTreeSet<[String; 3]>> {
    let mut all: BTreeMap<String, BTreeSet<[String; 3]>> = BTreeMap::new();
    let log = log.replace('\\', "");
    for part in log.split("User \"system:serviceaccount:default:").skip(1) {
        let words: Vec<&str> = part.split('"').take(6).collect();
        let [name, cannot, resource, _, group, _] = words[..] else {
            continue;
        };
        let verb = cannot.trim_start_matches(" cannot ");
        let verb = verb.trim_end_matches(" resource ");
        let right = [verb, group, resource].map(str::to_owned);
        all.entry(name.to_owned()).or_default().insert(right);
    }
    all
}

/// Creates pods that only nodes of this cluster accept.
async fn deploy(api: &Client, name: &str) {
    let rules = json!({"nodeSelector": {"tests.dev/lane": name}});
    fixture::create(api, name, 2, ("900m", "1Gi"), rules).await;
}

/// Creates a volume, so that nodes may have attachments, and a pod on a missing node.
async fn misplace(api: &Client) {
    let volume = json!({"metadata": {"name": "somewhere"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/somewhere"}}});
    put(api, "/api/v1/persistentvolumes", &volume).await;
    let pod = json!({"metadata": {"name": "misplaced"}, "spec": {
        "nodeName": "nowhere", "containers": [{"name": "main", "image": "main"}]}});
    put(api, "/api/v1/namespaces/default/pods", &pod).await;
}

/// Returns one cluster for each permission that a daemon uses without AWS, and those with all
/// permissions. A default role lets everyone read the version. The other permissions are used only
/// on EC2 (`aws::cases::missing_permissions`).
fn lanes(setup: &Setup) -> Vec<Lane> {
    let mut gone: Vec<Right> = rights().into_iter().map(|own| own.1).collect();
    gone.sort_unstable();
    gone.dedup();
    let elsewhere = ["/version", "secrets", "servicecidrs"];
    gone.retain(|own| !elsewhere.contains(&own[2]) && own[3] != "kube-dns");
    let whole = WHOLE.map(|name| Lane::new(setup, name, None));
    let lane = |own: Right| {
        let words = own.into_iter();
        let words = words.filter(|word| !word.is_empty() && !word.contains('.'));
        let name = words.collect::<Vec<_>>().join("-").replace('/', "-");
        Lane::new(setup, &name, Some(own))
    };
    whole.into_iter().chain(gone.into_iter().map(lane)).collect()
}

/// Writes the configuration of all clusters.
fn configure(setup: &Setup, lanes: &[Lane]) {
    let mut text = String::from(concat!(
        "outrigger { installation = \"tests\" }\n",
        "telemetry {\n  listen = \"127.0.0.1:0\"\n  log { format = \"text\" }\n}\n",
        "scheduler {\n  default_spread \"kubernetes.io/hostname\" {\n    max_skew = 3\n",
        "    when_unsatisfiable = \"ScheduleAnyway\"\n  }\n}\n",
    ));
    let types = setup.path().join("types.json").display().to_string();
    for lane in lanes {
        let _ = writeln!(text, "{}", lane.block(&types));
    }
    fs::write(setup.path().join("outrigger.hcl"), text).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_missing_rbac_permission_is_logged() {
    let test = "plane::rbac::every_missing_rbac_permission_is_logged";
    let Some(plane) = Plane::start_or_skip(test) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let setup = Setup::new(&[], None);
    let mut lanes = lanes(&setup);
    for lane in &lanes {
        let config = user(&plane, &api, &lane.name, lane.gone.as_slice()).await;
        fs::write(&lane.kubeconfig, config).expect("written");
    }
    // The proxy later truncates the pod lists of this cluster.
    let blind = lanes.iter_mut().find(|own| own.lacks(&[("get", "pods")]));
    let blind = blind.expect("a lane");
    let proxy = Proxy::start(client(&blind.kubeconfig).await).await;
    blind.kubeconfig = proxy.kubeconfig().to_owned();
    // Only the cluster that may not write the status has pending room. The room fits no node of the
    // other clusters, so they never write this status.
    let name = lanes.iter().find(|own| own.lacks(&[WRITES_BUFFERS]));
    let name = &name.expect("a lane").name;
    declare_room(&api, "room", json!({"tests.dev/lane": name})).await;
    configure(&setup, &lanes);
    let _daemon = setup.daemon();
    sleep(Duration::from_secs(8)).await;
    for lane in lanes.iter().filter(|own| own.gone.is_none() || own.lacks(&MANAGES)) {
        deploy(&api, &lane.name).await;
    }
    sleep(Duration::from_secs(15)).await;
    misplace(&api).await;
    proxy.set(Fault::TruncateLists);
    let log = || setup.told("").join("\n");
    let untold = |log: &str| {
        let denied = denied(log);
        let left = lanes.iter().filter(|own| !own.is_told(log, &denied));
        let left = left.map(|own| (own.name.clone(), own.gone));
        left.collect::<Vec<_>>()
    };
    for _ in 0..300 {
        if untold(&log()).is_empty() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
    }
    let log = log();
    let left = untold(&log);
    assert!(left.is_empty(), "not logged: {left:#?}\n{}", setup.tail());
    // No other permission is denied.
    for (name, all) in denied(&log) {
        let lane = lanes.iter().find(|own| own.name == name).expect("a lane");
        let own = lane.gone.map(|[verb, group, resource, _]| [verb, group, resource]);
        for right in all {
            assert_eq!(Some(right.each_ref().map(String::as_str)), own, "{name}");
        }
    }
    let count = lanes.len() - WHOLE.len();
    println!("{count} permissions, each one logged by the cluster without it");
}
