//! Checks objects in the cluster that affect the daemon: its Lease, other autoscalers, and the
//! FlowSchema of its requests.

use http::StatusCode;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Deserialize;
use thiserror::Error;

use crate::doctor::api_checks::{ApiResponse, request_path};
use crate::doctor::codes::DoctorCode;
use crate::doctor::options::DoctorRun;
use crate::doctor::report::Check;
use crate::host::{clock, text};
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::id::LeaseName;
use crate::runtime::autoscaler_watch;

/// Leases of other autoscalers.
const OTHERS: [(&str, &str, &str); 3] = [
    ("Karpenter", autoscaler_watch::NAMESPACES[0], autoscaler_watch::LEASE),
    ("Karpenter", autoscaler_watch::NAMESPACES[1], autoscaler_watch::LEASE),
    ("Cluster Autoscaler", "kube-system", "cluster-autoscaler"),
];
/// Labels of the pods of other autoscalers. The check uses the pods if the Leases cannot be read.
/// The daemon needs the permission to read pods anyway.
const PODS: [(&str, &str); 3] = [
    ("Karpenter", "app.kubernetes.io/name=karpenter"),
    (
        "Cluster Autoscaler",
        "app.kubernetes.io/name in (cluster-autoscaler, aws-cluster-autoscaler)",
    ),
    ("Cluster Autoscaler", "app=cluster-autoscaler"),
];
/// A Lease without a renewal for this time counts as abandoned. Source: client-go, whose leaders
/// renew every two seconds and give up after ten.
const RENEWED: SignedDuration = SignedDuration::from_mins(1);

const GRANT: &str = "kubectl apply -f - with the output `rbac` of terraform/modules/render";

/// The response header with the FlowSchema of the request.
const SCHEMA: &str = "x-kubernetes-pf-flowschema-uid";
/// FlowSchemas for requests without a specific FlowSchema.
const OF_ALL: [&str; 2] = ["global-default", "catch-all"];
const FLOW_SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas?limit=200";

/// Runs all checks in parallel.
pub(super) async fn check_objects(
    client: &Client,
    cluster: &Cluster,
    scope: &DoctorRun,
) -> Vec<Check> {
    let (lease, others, priority) = tokio::join!(
        scope.check_within_limit("lease", check_lease(client, &cluster.lease)),
        scope.check_within_limit("autoscalers", check_autoscalers(client, cluster.mode)),
        scope.check_within_limit("priority", check_priority(client, &cluster.lease)),
    );
    vec![lease, others, priority]
}

fn lease_path(namespace: &str, name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
}

/// Why an object cannot be read.
#[derive(Debug, Error)]
enum ReadError {
    #[error("{}", text::error_chain(.0))]
    Api(kube::Error),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Parse(#[from] serde_json::Error),
    #[error("the API server responds with {0}")]
    Status(StatusCode),
}

/// Parses the response. `None` if the object does not exist, an error if it cannot be read.
fn parse_object<T: serde::de::DeserializeOwned>(
    answer: Result<ApiResponse, kube::Error>,
) -> Result<Option<T>, ReadError> {
    let answer = answer.map_err(ReadError::Api)?;
    match answer.status {
        StatusCode::OK => Ok(Some(serde_json::from_slice(&answer.body)?)),
        StatusCode::NOT_FOUND => Ok(None),
        status => Err(ReadError::Status(status)),
    }
}

/// Checks the Lease of Outrigger.
async fn check_lease(client: &Client, lease: &LeaseName) -> Check {
    let path = lease_path(&lease.namespace, &lease.name);
    match parse_object::<Lease>(request_path(client, &path).await) {
        Ok(Some(_)) => Check::ok("lease", &format!("{lease} exists")),
        Ok(None) => Check::ok("lease", &format!("{lease} does not exist yet")),
        Err(why) => {
            let why = format!("{lease} cannot be read: {why}");
            Check::failed(("lease", DoctorCode::LeaseUnreadable.code()), &why, GRANT)
        }
    }
}

/// Checks for other autoscalers.
async fn check_autoscalers(client: &Client, mode: ManagementMode) -> Check {
    let mut unread = None;
    for (autoscaler, namespace, name) in OTHERS {
        match parse_object::<Lease>(request_path(client, &lease_path(namespace, name)).await) {
            Ok(Some(lease)) if is_live(&lease) => {
                let sign = format!("the Lease {namespace}/{name} was renewed recently");
                return active_autoscaler(autoscaler, &sign, namespace, mode);
            }
            Ok(_) => {}
            Err(why) => unread = unread.or(Some((autoscaler, why))),
        }
    }
    // An autoscaler without leader election has no Lease, so its pods are checked.
    for (autoscaler, labels) in PODS {
        let pods: Api<Pod> = Api::all(client.clone());
        let wanted = ListParams::default().labels(labels);
        let wanted = wanted.fields("status.phase=Running").limit(1);
        match pods.list(&wanted).await {
            Ok(list) => {
                if let Some(pod) = list.items.first() {
                    let meta = &pod.metadata;
                    let namespace = meta.namespace.as_deref().unwrap_or_default();
                    let name = meta.name.as_deref().unwrap_or_default();
                    let sign = format!("its pod {namespace}/{name} is running");
                    return active_autoscaler(autoscaler, &sign, namespace, mode);
                }
            }
            Err(error) => {
                let why = format!(
                    "cannot read the Leases and pods of other autoscalers: {}",
                    text::error_chain(&error)
                );
                return Check::skipped("autoscalers", &why, None);
            }
        }
    }
    match unread {
        None => Check::ok("autoscalers", "no other autoscaler is active"),
        Some(("Karpenter", why)) if mode == ManagementMode::Manage => {
            let why = format!(
                "Karpenter's Lease cannot be read, and Outrigger takes no action without it: {why}"
            );
            Check::failed(("autoscalers", DoctorCode::KarpenterUnseen.code()), &why, GRANT)
        }
        Some(_) => Check::ok("autoscalers", "no pod of another autoscaler is running"),
    }
}

fn is_live(lease: &Lease) -> bool {
    let spec = lease.spec.as_ref();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    renewed.is_some_and(|at| clock::now().duration_since(at.0) < RENEWED)
}

fn active_autoscaler(autoscaler: &str, sign: &str, namespace: &str, mode: ManagementMode) -> Check {
    if mode == ManagementMode::Observe {
        let finding =
            format!("{autoscaler} is active: {sign}; Outrigger takes no action in mode observe");
        return Check::ok("autoscalers", &finding);
    }
    let why =
        format!("{autoscaler} is active, and both would launch nodes for the same pods: {sign}");
    let name = match autoscaler {
        "Karpenter" => "karpenter",
        _ => "cluster-autoscaler",
    };
    let fix =
        format!("kubectl -n {} scale deploy/{name} --replicas=0", text::quote_argument(namespace));
    Check::warning(("autoscalers", DoctorCode::AutoscalerAtWork.code()), &why, &fix)
}

/// Checks which FlowSchemas match the Lease requests and the other requests of the daemon.
async fn check_priority(client: &Client, lease: &LeaseName) -> Check {
    let name = "priority";
    let lease = lease_path(&lease.namespace, &lease.name);
    let (one, other) = tokio::join!(request_path(client, "/version"), request_path(client, &lease));
    let (Some(one), Some(other)) = (schema_uid(one), schema_uid(other)) else {
        return Check::ok(
            name,
            "the API server does not report which FlowSchema handles a request",
        );
    };
    match list_flow_schemas(client).await {
        Ok(Some(all)) => {
            let schema = all.items.iter().find(|item| item.metadata.uid == one);
            priority_finding(schema.map_or("(deleted)", |schema| schema.metadata.name.as_str()))
        }
        // The two rendered FlowSchemas separate these requests. The default FlowSchemas do not.
        _ if one != other => Check::ok(name, "FlowSchemas separate Lease requests from all others"),
        _ => {
            let why = format!("FlowSchema {one} handles all requests, and its name cannot be read");
            let fix = format!(
                "kubectl get flowschemas -o custom-columns=NAME:.metadata.name,UID:.metadata.uid \
                 | grep {}",
                text::quote_argument(&one)
            );
            Check::skipped(name, &why, Some(&fix))
        }
    }
}

/// The UID of the FlowSchema that handled a request.
fn schema_uid(answer: Result<ApiResponse, kube::Error>) -> Option<String> {
    let answer = answer.ok()?;
    let uid = answer.headers.get(SCHEMA)?.to_str().ok()?;
    Some(text::bounded_line(uid))
}

fn priority_finding(schema: &str) -> Check {
    if !OF_ALL.contains(&schema) {
        return Check::ok("priority", &format!("requests are handled by FlowSchema {schema}"));
    }
    let why = format!(
        "FlowSchema {schema} handles the daemon's requests: they share it with all other clients"
    );
    let fix = "kubectl apply -f - with the output `flow_schemas` of terraform/modules/render";
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

/// Lists all FlowSchemas, or returns `None` if the API does not support them.
async fn list_flow_schemas(client: &Client) -> Result<Option<Schemas>, ReadError> {
    let request = http::Request::get(FLOW_SCHEMAS).body(Vec::new())?;
    match client.request::<Schemas>(request).await {
        Ok(all) => Ok(Some(all)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(ReadError::Api(error)),
    }
}
