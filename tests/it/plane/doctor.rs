//! `outrigger doctor` against a real API server, which evaluates RBAC and request priority itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use super::Plane;
use super::fixture::{client, is_campaign, now};
use super::rbac::{Right, grant, put, rights, user};
use crate::binary::outrigger;
use crate::end_to_end::doctor::{holds, keep, told};

const USER: &str = "outrigger";
const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";

/// Creates the FlowSchemas of `terraform/modules/render`, reduced to the fields that matter here.
async fn rank(api: &Client) {
    for (name, level, precedence, groups, resources) in [
        ("outrigger", "workload-high", 910, "*", "*"),
        ("outrigger-leases", "leader-election", 210, "coordination.k8s.io", "leases"),
    ] {
        let account = json!({"namespace": "default", "name": "outrigger"});
        let subject = json!({"kind": "ServiceAccount", "serviceAccount": account});
        let schema = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
            "metadata": {"name": name},
            "spec": {
                "matchingPrecedence": precedence,
                "priorityLevelConfiguration": {"name": level},
                "rules": [{"subjects": [subject], "resourceRules": [{
                    "apiGroups": [groups], "resources": [resources], "verbs": ["*"],
                    "clusterScope": true, "namespaces": ["*"],
                }]}],
            },
        });
        put(api, FLOWS, &schema).await;
    }
}

/// A managed cluster with the kubeconfigs of two users.
struct Bench {
    dir: TempDir,
}

impl Bench {
    /// Creates it with all permissions granted.
    async fn new(plane: &Plane, api: &Client) -> Self {
        let own = Self { dir: TempDir::new().expect("a directory") };
        std::fs::create_dir(own.dir.path().join("config")).expect("created");
        let text = std::fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig");
        keep(&own.kubeconfig(None), &text);
        let config = user(plane, api, USER, &[]).await;
        keep(&own.kubeconfig(Some(USER)), &config);
        own
    }

    fn kubeconfig(&self, user: Option<&str>) -> PathBuf {
        self.dir.path().join(user.unwrap_or("admin"))
    }

    /// Returns the exit code and the findings for a user.
    fn examine(&self, user: Option<&str>) -> (Option<i32>, Vec<[String; 4]>) {
        let config = self.dir.path().join("config");
        let text = format!(
            "outrigger {{ installation = \"it\" }}\ncluster \"it\" {{\n  mode = \"manage\"\n  \
             binding = \"early\"\n  kubeconfig {{\n    path = \"{}\"\n    context = \"plane\"\n  \
             }}\n  simulated {{}}\n}}\n\
             pool \"it\" {{ termination_grace_period = \"1h\" }}\nscheduler {{\n  \
             default_spread \"kubernetes.io/hostname\" {{\n    max_skew = 3\n    \
             when_unsatisfiable = \"ScheduleAnyway\"\n  }}\n}}\n",
            self.kubeconfig(user).display()
        );
        std::fs::write(config.join("main.hcl"), text).expect("written");
        doctor(&config)
    }

    /// Waits until the doctor reports this. The API server applies permissions and FlowSchemas with
    /// a delay.
    async fn tells(&self, name: &str, code: i32, expect: &[[&str; 4]]) {
        for _ in 0..50 {
            let (found, told) = self.examine(Some(USER));
            let same = |(told, expect): (&[String; 4], &[&str; 4])| told[..2] == expect[..2];
            let all = told.len() == expect.len() && told.iter().zip(expect).all(same);
            if found == Some(code) && all {
                return holds(name, &told, expect);
            }
            sleep(Duration::from_millis(200)).await;
        }
        let (found, told) = self.examine(Some(USER));
        holds(name, &told, expect);
        panic!("{name}: {found:?}");
    }
}

fn doctor(config: &Path) -> (Option<i32>, Vec<[String; 4]>) {
    let mut command = Command::new(outrigger());
    command.args(["doctor", "--json", "--config"]).arg(config);
    let output = command.output().expect("it runs");
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), told(&report))
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_permission_denied_by_a_real_api_server() {
    let name = "plane::doctor::doctor_finds_a_permission_denied_by_a_real_api_server";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let bench = Bench::new(&plane, &api).await;
    let unranked = [["cluster it/priority", "skipped", "handles all requests", "kubectl get flow"]];
    bench.tells("all rights, no rank", 3, &unranked).await;
    rank(&api).await;
    bench.tells("all rights and a rank", 0, &[]).await;

    grant(&api, USER, &[["create", "", "pods/eviction", ""]]).await;
    let row = [
        "cluster it/rights/create pods/eviction",
        "failed",
        "the user may not create pods/eviction",
        "add to the ClusterRole outrigger-manage: {apiGroups: [\"\"], resources: \
         [\"pods/eviction\"], verbs: [\"create\"]}",
    ];
    bench.tells("no evictions", 4, &[row]).await;

    grant(&api, USER, &[]).await;
    bench.tells("all again", 0, &[]).await;
    // A default role lets everyone read the version.
    grant(&api, USER, &[["get", "", "/version", ""]]).await;
    bench.tells("no /version of our own", 0, &[]).await;

    let lease = ["get", "coordination.k8s.io", "leases", "outrigger"];
    grant(&api, USER, &[lease]).await;
    let rows = [
        [
            "cluster it/rights/get leases.coordination.k8s.io outrigger",
            "failed",
            "the user may not get leases",
            "Role kube-system/outrigger: {apiGroups: [\"coordination.k8s.io\"], resources: \
             [\"leases\"], resourceNames: [\"outrigger\"], verbs: [\"get\"]}",
        ],
        ["cluster it/lease", "failed", "responds with 403", "terraform/modules/render"],
    ];
    bench.tells("no Lease", 4, &rows).await;
    grant(&api, USER, &[]).await;
    bench.tells("and all once more", 0, &[]).await;

    karpenter(&api).await;
    let (code, told) = bench.examine(None);
    let row = ["cluster it/autoscalers", "warning", "Karpenter is active", "--replicas=0"];
    holds("an administrator sees Karpenter", &told, &[row]);
    assert_eq!(code, Some(2));
}

/// Whether a finding names this permission as missing.
fn names(told: &[[String; 4]], [verb, group, resource, name]: Right) -> bool {
    let group = match group {
        "" => String::new(),
        group => format!(".{group}"),
    };
    let about = format!(" {resource}{group} {name}");
    let words = |own: &[String; 4]| {
        let own = own[0].strip_prefix("cluster it/rights/")?;
        let verbs = own.strip_suffix(about.trim_end())?;
        Some(verbs.split(", ").any(|own| own == verb))
    };
    told.iter().filter_map(words).any(|own| own)
}

/// A campaign removes the permissions one by one, and other runs remove several at once.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_each_missing_permission() {
    let name = "plane::doctor::doctor_names_each_missing_permission";
    let Some(plane) = Plane::start_or_skip(name) else {
        return;
    };
    let api = client(plane.kubeconfig()).await;
    let bench = Bench::new(&plane, &api).await;
    // A default role lets everyone read the version, and no node class of this cluster needs
    // bootstrap tokens.
    let taken = |own: &Right| !own[2].starts_with('/') && own[2] != "secrets";
    let mut all: Vec<Right> = rights().into_iter().map(|own| own.1).collect();
    all.retain(taken);
    all.sort_unstable();
    all.dedup();
    let at_once = if is_campaign() { 1 } else { 12 };
    for gone in all.chunks(at_once) {
        grant(&api, USER, gone).await;
        let mut wrong = Vec::new();
        for _ in 0..50 {
            let told = bench.examine(Some(USER)).1;
            wrong.clone_from(&all);
            wrong.retain(|own| names(&told, *own) != gone.contains(own));
            if wrong.is_empty() {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(wrong, Vec::<Right>::new(), "wrong findings without {gone:?}");
    }
    println!("{} permissions, each one named when it is missing", all.len());
}

/// Creates a Lease that Karpenter has just renewed.
async fn karpenter(api: &Client) {
    let leases: Api<Lease> = Api::namespaced(api.clone(), "kube-system");
    let lease = json!({
        "metadata": {"name": "karpenter-leader-election"},
        "spec": {"holderIdentity": "karpenter-0", "renewTime": renewed()},
    });
    let lease = serde_json::from_value(lease).expect("a Lease");
    let made = leases.create(&PostParams::default(), &lease).await;
    made.expect("it is created");
}

fn renewed() -> String {
    format!("{:.6}", now())
}
