//! What else there is in a cluster that concerns the daemon: its Lease, other autoscalers, and how
//! the API server ranks its requests. It must not know what the daemon does there.

use http::StatusCode;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Deserialize;

use crate::doctor::api_checks::{ApiResponse, ask};
use crate::doctor::codes::DoctorCode;
use crate::doctor::options::DoctorRun;
use crate::doctor::report::Check;
use crate::host::{clock, text};
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::LeaseName;
use crate::runtime::autoscaler_watch;

/// Leases by which other autoscalers say that they are at work.
const OTHERS: [(&str, &str, &str); 3] = [
    (
        "Karpenter",
        autoscaler_watch::NAMESPACES[0],
        autoscaler_watch::LEASE,
    ),
    (
        "Karpenter",
        autoscaler_watch::NAMESPACES[1],
        autoscaler_watch::LEASE,
    ),
    ("Cluster Autoscaler", "kube-system", "cluster-autoscaler"),
];
/// Labels of their pods, for whoever may not read these Leases: the daemon reads pods anyway.
const PODS: [(&str, &str); 3] = [
    ("Karpenter", "app.kubernetes.io/name=karpenter"),
    (
        "Cluster Autoscaler",
        "app.kubernetes.io/name in (cluster-autoscaler, aws-cluster-autoscaler)",
    ),
    ("Cluster Autoscaler", "app=cluster-autoscaler"),
];
/// A Lease that was not renewed for longer is nobody's. Source: client-go, whose leaders renew
/// every two seconds and give up after ten.
const RENEWED: SignedDuration = SignedDuration::from_mins(1);

const GRANT: &str = "kubectl apply -f - with what terraform/modules/render has for `rbac`";

/// What an answer says of the FlowSchema that took the request.
const SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";
/// Those that take what no other does: everybody's requests.
const OF_ALL: [&str; 2] = ["global-default", "catch-all"];
const FLOW_SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas?limit=200";

/// Looks at all of it at once.
pub(super) async fn examine(client: &Client, own: &Cluster, scope: &DoctorRun) -> Vec<Check> {
    let (lease, others, priority) = tokio::join!(
        scope.check("lease", lease(client, &own.lease)),
        scope.check("autoscalers", others(client, own.mode)),
        scope.check("priority", priority(client, &own.lease)),
    );
    vec![lease, others, priority]
}

fn lease_path(namespace: &str, name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
}

/// What was asked for; none where it is not there, an error where we may not know.
fn read<T: serde::de::DeserializeOwned>(
    answer: Result<ApiResponse, kube::Error>,
) -> Result<Option<T>, String> {
    let answer = answer.map_err(|error| text::chain(&error))?;
    match answer.status {
        StatusCode::OK => serde_json::from_slice(&answer.body)
            .map(Some)
            .map_err(|error| error.to_string()),
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(format!("the API server answers {status}")),
    }
}

/// Our Lease.
async fn lease(client: &Client, place: &LeaseName) -> Check {
    let path = lease_path(&place.namespace, &place.name);
    match read::<Lease>(ask(client, &path).await) {
        Ok(Some(_)) => Check::ok("lease", &format!("{place} is there")),
        Ok(None) => Check::ok("lease", &format!("{place} is not there yet")),
        Err(why) => {
            let why = format!("{place} cannot be read: {why}");
            Check::failed(("lease", DoctorCode::LeaseUnreadable.code()), &why, GRANT)
        }
    }
}

/// Whether somebody else makes nodes for the same pods.
async fn others(client: &Client, mode: ManagementMode) -> Check {
    let mut unread = None;
    for (who, namespace, name) in OTHERS {
        match read::<Lease>(ask(client, &lease_path(namespace, name)).await) {
            Ok(Some(own)) if is_live(&own) => {
                let sign = format!("the Lease {namespace}/{name} was renewed a moment ago");
                return at_work(who, &sign, namespace, mode);
            }
            Ok(_) => {}
            Err(why) => unread = unread.or(Some((who, why))),
        }
    }
    // Where a Lease says nothing, as without leader election, its pods do.
    for (who, labels) in PODS {
        let pods: Api<Pod> = Api::all(client.clone());
        let wanted = ListParams::default().labels(labels);
        let wanted = wanted.fields("status.phase=Running").limit(1);
        match pods.list(&wanted).await {
            Ok(list) => {
                if let Some(pod) = list.items.first() {
                    let meta = &pod.metadata;
                    let namespace = meta.namespace.as_deref().unwrap_or_default();
                    let name = meta.name.as_deref().unwrap_or_default();
                    let sign = format!("its pod {namespace}/{name} runs");
                    return at_work(who, &sign, namespace, mode);
                }
            }
            Err(error) => {
                let why = format!(
                    "not all of their Leases and pods can be read: {}",
                    text::chain(&error)
                );
                return Check::skipped("autoscalers", &why, None);
            }
        }
    }
    match unread {
        None => Check::ok("autoscalers", "no other one is at work"),
        Some(("Karpenter", why)) if mode == ManagementMode::Manage => {
            let why =
                format!("Karpenter's Lease cannot be read, and nothing is done without: {why}");
            Check::failed(
                ("autoscalers", DoctorCode::KarpenterUnseen.code()),
                &why,
                GRANT,
            )
        }
        Some(_) => Check::ok("autoscalers", "no pod of another one runs"),
    }
}

fn is_live(lease: &Lease) -> bool {
    let spec = lease.spec.as_ref();
    let renewed = spec.and_then(|own| own.renew_time.as_ref());
    renewed.is_some_and(|at| clock::now().duration_since(at.0) < RENEWED)
}

fn at_work(who: &str, sign: &str, namespace: &str, mode: ManagementMode) -> Check {
    if mode == ManagementMode::Observe {
        let said = format!("{who} is at work: {sign}; nothing is done beside it in mode observe");
        return Check::ok("autoscalers", &said);
    }
    let why = format!("{who} is at work, and both would make nodes for the same pods: {sign}");
    let name = match who {
        "Karpenter" => "karpenter",
        _ => "cluster-autoscaler",
    };
    let fix = format!(
        "kubectl -n {} scale deploy/{name} --replicas=0",
        text::quoted(namespace)
    );
    Check::warning(
        ("autoscalers", DoctorCode::AutoscalerAtWork.code()),
        &why,
        &fix,
    )
}

/// How the API server ranks what the daemon asks: requests of Leases, and all others.
async fn priority(client: &Client, lease: &LeaseName) -> Check {
    let name = "priority";
    let lease = lease_path(&lease.namespace, &lease.name);
    let (one, other) = tokio::join!(ask(client, "/version"), ask(client, &lease));
    let schema = |answer: Result<ApiResponse, kube::Error>| {
        let answer = answer.ok()?;
        let uid = answer.headers.get(SCHEMA)?.to_str().ok()?;
        Some(text::bounded(uid))
    };
    let (Some(one), Some(other)) = (schema(one), schema(other)) else {
        return Check::ok(name, "the API server ranks no requests, or does not say so");
    };
    match schemas(client).await {
        Ok(Some(all)) => {
            let find = |uid: &str| {
                let found = all.items.iter().find(|own| own.metadata.uid == uid);
                found.map_or("one that is gone", |own| own.metadata.name.as_str())
            };
            ranked(find(&one))
        }
        // The two that are rendered tell these requests apart; those of everybody do not.
        _ if one != other => Check::ok(name, "FlowSchemas rank Leases apart from the rest"),
        _ => {
            let why =
                format!("the FlowSchema {one} takes all requests, and its name may not be read");
            let fix = format!(
                "kubectl get flowschemas -o custom-columns=NAME:.metadata.name,UID:.metadata.uid \
                 | grep {}",
                text::quoted(&one)
            );
            Check::skipped(name, &why, Some(&fix))
        }
    }
}

fn ranked(schema: &str) -> Check {
    if !OF_ALL.contains(&schema) {
        return Check::ok("priority", &format!("by the FlowSchema {schema}"));
    }
    let why = format!(
        "the FlowSchema {schema} takes the daemon's requests: they wait among those of everybody"
    );
    let fix = "kubectl apply -f - with what terraform/modules/render has for `flow_schemas`";
    Check::warning(("priority", DoctorCode::RequestsUnranked.code()), &why, fix)
}

#[derive(Deserialize)]
struct Schemas {
    items: Vec<Schema>,
}

#[derive(Deserialize)]
struct Schema {
    metadata: ListMeta,
}

#[derive(Deserialize)]
struct ListMeta {
    name: String,
    uid: String,
}

/// All FlowSchemas; none where the API has no such thing.
async fn schemas(client: &Client) -> Result<Option<Schemas>, String> {
    let request = http::Request::get(FLOW_SCHEMAS).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    match client.request::<Schemas>(request).await {
        Ok(all) => Ok(Some(all)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(text::chain(&error)),
    }
}
