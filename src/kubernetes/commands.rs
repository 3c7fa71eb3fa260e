//! Executes commands as API calls, one call each, and classifies errors.

use std::time::Duration;

use futures::TryFutureExt;
use http::{HeaderValue, header};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, Patch, PostParams, Preconditions};
use kube::core::response::reason;
use kube::core::{Request, Status, request};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::coordination::lease_annotations::AnnotatedLease;
use crate::engine::command::{BufferPatch, Command, NewNode, NodePatch};
use crate::host::text;
use crate::kubernetes::capacity_buffers::{BUFFERS, GROUP};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease::{self, patch_params, post_params};
use crate::kubernetes::list::{ListError, list_all};
use crate::kubernetes::watched_items::{ApiKind, Seen};
use crate::kubernetes_convert::api_types as json_object;
use crate::kubernetes_convert::{self, buffer};
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::quantity::Resources;
use crate::model::taint::Taint;
use crate::model::watched_object::ObjectKind;
use crate::outbound::fence;
use crate::provider::{CommandResult, FailureKind};

/// Timeout of one call. The API server needs at most a second for each of these calls.
const CALL: Duration = Duration::from_secs(30);

/// Maximum time that a command waits for the rate limit. A change would be too old later.
const TURN: Duration = Duration::from_secs(20);

/// Requests a response without the object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Executes a command. Always returns a result. A command that is not for the API returns
/// `Invalid`.
pub(crate) async fn execute(connection: &Connection, command: Command) -> CommandResult {
    let client = &connection.client;
    if let Err(busy) = connection.limiter.wait_at_most(TURN).await {
        return failed_result(FailureKind::Throttled, &busy.to_string());
    }
    let name = command.name();
    if command.is_change()
        && let Err(fenced) = fence::check_task(true)
    {
        return failed_result(FailureKind::Unknown, &fenced.to_string());
    }
    let call = async {
        match command {
            Command::CreateNode(node) => create_node(client, &node).await,
            Command::Bind { pod, uid, node } => bind_pod(client, &pod, &uid, &node).await,
            Command::DeletePod { pod, uid, grace_seconds } => {
                delete_pod(client, &pod, uid, grace_seconds).await
            }
            Command::PatchNode(patch) => patch_node(client, patch).await,
            Command::DeleteNode { node, uid } => delete_node(client, &node, uid).await,
            Command::Evict { pod, uid } => return evict(client, &pod, uid).await,
            Command::Nominate { pod, uid, node } => {
                return set_nomination(client, &pod, &uid, None, Some(&node)).await;
            }
            Command::ClearNomination { pod, uid, node } => {
                return set_nomination(client, &pod, &uid, Some(&node), None).await;
            }
            Command::ListPodsOn { node } => return list_pods_on(client, &node).await,
            Command::ListAttachments { node } => return list_attachments(client, &node).await,
            Command::Probe { kind: ObjectKind::Pod, objects } => {
                probe_objects::<json_object::Pod>(connection, &objects).await
            }
            Command::Probe { kind: ObjectKind::Node, objects } => {
                probe_objects::<json_object::Node>(connection, &objects).await
            }
            Command::ReadLease => {
                lease::read_annotations(connection).await.map(CommandResult::Lease)
            }
            Command::PatchLease(patch) => {
                lease::write_annotations(connection, &patch).await.map(lease_result)
            }
            Command::PatchBuffer(patch) => patch_buffer(client, &patch).await,
            // The engine verifies only listings of Pods and Nodes in this way, so the daemon needs
            // no permission to read other objects.
            Command::Launch(_)
            | Command::Probe { .. }
            | Command::Terminate { .. }
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::SaveDiscoveredMemory { .. }
            | Command::ListInstances
            | Command::Rewatch { .. }
            | Command::RequestGrant(_)
            | Command::RequestDisruption { .. }
            | Command::ReportDisruptions(_)
            | Command::ReportUsage { .. }
            | Command::MarkUnavailable { .. } => {
                return failed_result(FailureKind::Invalid, "no API call");
            }
        }
        .unwrap_or_else(|error| result_of_error(&error))
    };
    timeout(CALL, call).await.unwrap_or_else(|_| {
        failed_result(FailureKind::Unknown, &format!("{name}: no response within {CALL:?}"))
    })
}

fn lease_result(lease: AnnotatedLease) -> CommandResult {
    CommandResult::Lease(Some(lease))
}

fn failed_result(kind: FailureKind, text: &str) -> CommandResult {
    CommandResult::Failed { kind, text: text::bounded_line(text) }
}

/// Converts an error to a result. All API errors are classified here.
fn result_of_error(error: &kube::Error) -> CommandResult {
    failed_result(kind_of(error), &text::error_chain(error))
}

pub(crate) fn kind_of(error: &kube::Error) -> FailureKind {
    match error {
        kube::Error::Api(status) => match status.code {
            // A proxy returns the same codes if it cannot reach the API.
            404 if status.reason == reason::NOT_FOUND => FailureKind::Gone,
            410 if matches!(status.reason.as_str(), reason::GONE | reason::EXPIRED) => {
                FailureKind::Gone
            }
            // A different object with the same name has replaced the object.
            409 if is_other_uid(status) => FailureKind::Gone,
            409 => FailureKind::Conflict,
            429 => FailureKind::Throttled,
            401 | 403 => FailureKind::Denied,
            400 | 405 | 406 | 413 | 415 | 422 => FailureKind::Invalid,
            _ => FailureKind::Unknown,
        },
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => FailureKind::Invalid,
        kube::Error::Auth(_) => FailureKind::Denied,
        _ => FailureKind::Unknown,
    }
}

fn is_other_uid(status: &Status) -> bool {
    status.message.contains("UID in precondition")
}

/// Sends a merge patch with the resource version, so that the API server rejects the patch if the
/// node has changed. The patch replaces the whole list of taints.
async fn patch_node(client: &Client, patch: NodePatch) -> Result<CommandResult, kube::Error> {
    let url = Request::new(Node::url_path(&(), None));
    let body = node_patch(&patch);
    // A strategic merge removes one owner reference by its key, without reading the other
    // references.
    let body = match &patch.disowned {
        Some(_) => Patch::Strategic(body),
        None => Patch::Merge(body),
    };
    let request = url.patch(patch.node.as_str(), &patch_params(), &body);
    send_patch(client, request).await
}

/// Sends a patch. The response is not needed, because the watch returns the changed object.
async fn send_patch(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<CommandResult, kube::Error> {
    client.request::<IgnoredAny>(metadata_only_request(request)?).await?;
    Ok(CommandResult::Done)
}

/// A request whose response omits the object.
fn metadata_only_request(
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let accept = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(header::ACCEPT, accept);
    Ok(request)
}

/// The metadata in such a response.
#[derive(Deserialize)]
struct WrittenMeta {
    metadata: json_object::Meta,
}

fn node_patch(patch: &NodePatch) -> Value {
    let mut meta = Map::new();
    if !patch.version.is_empty() {
        meta.insert("resourceVersion".into(), json!(patch.version));
    }
    for (field, changes) in [("labels", &patch.labels), ("annotations", &patch.annotations)] {
        if !changes.is_empty() {
            let changes = changes.iter().map(|(key, value)| (key.clone(), json!(value)));
            meta.insert(field.into(), Value::Object(changes.collect()));
        }
    }
    if let Some(finalizers) = &patch.finalizers {
        meta.insert("finalizers".into(), json!(finalizers));
    }
    if let Some(owner) = &patch.disowned {
        meta.insert("ownerReferences".into(), json!([{"$patch": "delete", "uid": owner}]));
    }
    let mut body = json!({ "metadata": meta });
    if let Some(taints) = &patch.taints {
        body["spec"] = json!({ "taints": taints.iter().map(taint_to_json).collect::<Vec<_>>() });
    }
    body
}

/// Sends a merge patch with the resource version. The patch replaces the whole list of conditions.
async fn patch_buffer(client: &Client, patch: &BufferPatch) -> Result<CommandResult, kube::Error> {
    let (api, key) = (patch.api, &patch.key);
    let path = format!("/apis/{GROUP}/{api}/namespaces/{}/{BUFFERS}", key.namespace);
    let body = json!({
        "metadata": { "resourceVersion": patch.version },
        "status": buffer::status_json(&patch.status),
    });
    let body = Patch::Merge(body);
    let request = Request::new(path).patch_subresource("status", &key.name, &patch_params(), &body);
    let written: WrittenMeta = client.request(metadata_only_request(request)?).await?;
    Ok(CommandResult::Version(written.metadata.resource_version))
}

async fn create_node(client: &Client, node: &NewNode) -> Result<CommandResult, kube::Error> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name.as_str(),
            "labels": node.labels,
            "annotations": node.annotations,
        },
        "spec": {
            "providerID": node.provider_id,
            "taints": node.taints.iter().map(taint_to_json).collect::<Vec<_>>(),
        },
        "status": {
            "capacity": quantities_to_json(&node.capacity),
            "allocatable": quantities_to_json(&node.allocatable),
        },
    });
    let url = Request::new(Node::url_path(&(), None));
    let body = body.to_string().into_bytes();
    send_patch(client, url.create(&post_params(), body)).await
}

/// Binds a pod as kube-scheduler does. The API server rejects the binding if the pod has a
/// different UID, or is bound, gated or terminating. The API server does not check whether the node
/// exists.
async fn bind_pod(
    client: &Client,
    pod: &PodKey,
    uid: &str,
    node: &NodeName,
) -> Result<CommandResult, kube::Error> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "uid": uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node.as_str() },
    });
    let url = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let body = body.to_string().into_bytes();
    let request = url.create_subresource("binding", &pod.name, &PostParams::default(), body);
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request::<IgnoredAny>(request).await?;
    Ok(CommandResult::Done)
}

/// Deletes a pod with this grace period in seconds. With 0, the pod is removed immediately.
async fn delete_pod(
    client: &Client,
    pod: &PodKey,
    uid: String,
    grace_seconds: u32,
) -> Result<CommandResult, kube::Error> {
    let api = Api::<Seen<json_object::Pod>>::namespaced_with(client.clone(), &pod.namespace, &());
    let params = DeleteParams { grace_period_seconds: Some(grace_seconds), ..if_uid(uid) };
    api.delete(&pod.name, &params).await?;
    Ok(CommandResult::Done)
}

/// Quantities in API format.
pub(crate) fn quantities_to_json(resources: &Resources) -> Map<String, Value> {
    resources
        .iter()
        .map(|(name, amount)| {
            let unit = if name == "cpu" { "m" } else { "" };
            (name.to_owned(), json!(format!("{amount}{unit}")))
        })
        .collect()
}

/// A taint in API format.
pub(crate) fn taint_to_json(taint: &Taint) -> Value {
    let mut json = json!({ "key": taint.key, "effect": taint.effect.as_str() });
    if !taint.value.is_empty() {
        json["value"] = json!(taint.value);
    }
    json
}

fn if_uid(uid: String) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), ..Preconditions::default() }),
        ..DeleteParams::default()
    }
}

async fn delete_node(
    client: &Client,
    node: &NodeName,
    uid: String,
) -> Result<CommandResult, kube::Error> {
    let api = Api::<Seen<json_object::Node>>::all(client.clone());
    api.delete(node.as_str(), &if_uid(uid)).await?;
    Ok(CommandResult::Done)
}

/// Sets the nominated node of a pending pod, replacing the current value. The patch fails if the
/// pod was recreated or its nomination changed.
async fn set_nomination(
    client: &Client,
    pod: &PodKey,
    uid: &str,
    from: Option<&NodeName>,
    to: Option<&NodeName>,
) -> CommandResult {
    let path = "/status/nominatedNodeName";
    let change = match to {
        Some(node) => json!({ "op": "add", "path": path, "value": node.as_str() }),
        None => json!({ "op": "remove", "path": path }),
    };
    // In a JSON patch test, a missing field is null.
    let body = serde_json::from_value(json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": path, "value": from.map(NodeName::as_str) },
        change,
    ]));
    let Ok(body) = body else {
        return failed_result(FailureKind::Invalid, "no patch");
    };
    let url = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let body = Patch::<()>::Json(body);
    let request = url.patch_subresource("status", &pod.name, &patch_params(), &body);
    match send_patch(client, request).await {
        Ok(answer) => answer,
        Err(kube::Error::Api(status)) if status.code == 422 => {
            failed_result(FailureKind::Conflict, &status.message)
        }
        Err(error) => result_of_error(&error),
    }
}

async fn evict(client: &Client, pod: &PodKey, uid: String) -> CommandResult {
    let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let params = EvictParams { delete_options: Some(if_uid(uid)), ..EvictParams::default() };
    match api.evict(&pod.name, &params).await {
        Ok(_) => CommandResult::Done,
        Err(kube::Error::Api(status)) if is_pdb_refusal(&status) => {
            CommandResult::EvictRefused(text::bounded_line(&refusal_message(&status)))
        }
        Err(error) => result_of_error(&error),
    }
}

/// The message of a PodDisruptionBudget that refuses an eviction. The cause names the budget.
fn refusal_message(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes = causes.map(|cause| cause.message.as_str());
    let words = [status.message.as_str()].into_iter().chain(causes);
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Returns whether a PodDisruptionBudget refused an eviction. Throttling has the same code but no
/// cause. If two budgets select one pod, the API server returns a server error.
fn is_pdb_refusal(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    (status.code == 429 && causes.into_iter().any(|cause| cause.reason == "DisruptionBudget"))
        || (status.code == 500 && status.message.contains("more than one PodDisruptionBudget"))
}

async fn list_pods_on(client: &Client, node: &NodeName) -> CommandResult {
    let api = Api::<Seen<json_object::Pod>>::all(client.clone());
    match list_all(&api, Some(&format!("spec.nodeName={node}"))).await {
        Ok(pods) => CommandResult::Pods(
            pods.into_iter().map(|item| kubernetes_convert::convert_pod(item.object)).collect(),
        ),
        Err(ListError::Api(error)) => result_of_error(&error),
        Err(error) => failed_result(FailureKind::Unknown, &text::error_chain(&error)),
    }
}

/// The API server can filter attachments only by name, so all are read.
async fn list_attachments(client: &Client, node: &NodeName) -> CommandResult {
    let api = Api::<Seen<json_object::VolumeAttachment>>::all(client.clone());
    match list_all(&api, None).await {
        Ok(all) => {
            let all = all.into_iter().map(|item| item.object);
            CommandResult::Attachments(kubernetes_convert::attachments_of_node(all, node.as_str()))
        }
        Err(ListError::Api(error)) => result_of_error(&error),
        Err(error) => failed_result(FailureKind::Unknown, &text::error_chain(&error)),
    }
}

/// Reads each object by name.
async fn probe_objects<T: ApiKind>(
    connection: &Connection,
    objects: &[(ObjectKey, String)],
) -> Result<CommandResult, kube::Error> {
    let mut alive = 0;
    for (at, (key, uid)) in objects.iter().enumerate() {
        // The command has already waited for the rate limit of the first read.
        if at > 0 {
            connection.limiter.wait_for_token().await;
        }
        let found_uid = uid_of::<T>(&connection.client, key).await?;
        alive +=
            usize::from(found_uid.is_some_and(|found_uid| uid.is_empty() || found_uid == *uid));
    }
    Ok(CommandResult::Probed { alive })
}

/// The UID of the object of this name, if there is one.
async fn uid_of<T: ApiKind>(
    client: &Client,
    key: &ObjectKey,
) -> Result<Option<String>, kube::Error> {
    let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
    let path = Seen::<T>::url_path(&(), namespace);
    let request = kube::core::Request::new(path)
        .get(&key.name, &kube::api::GetParams::default())
        .map_err(kube::Error::BuildRequest)?;
    let found = client.request::<T>(request).map_ok(|it| Some(it.meta().uid.clone())).await;
    match found {
        Err(kube::Error::Api(status)) if is_missing(&status, &key.name) => Ok(None),
        other => other,
    }
}

/// Returns whether the API server reports that no object of this name exists.
fn is_missing(status: &Status, name: &str) -> bool {
    status.code == 404
        && status.reason == reason::NOT_FOUND
        && !status
            .details
            .as_ref()
            .is_some_and(|details| !details.name.is_empty() && details.name != name)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::{is_missing, is_pdb_refusal, kind_of, node_patch, refusal_message};
    use crate::engine::command::NodePatch;
    use crate::model::taint::{Effect, Taint};
    use crate::provider::FailureKind;

    #[test]
    fn node_patch_has_the_version_and_all_taints() {
        let patch = NodePatch {
            node: "n".into(),
            version: "7".into(),
            labels: vec![("a".into(), Some("b".into())), ("c".into(), None)],
            annotations: Vec::new(),
            taints: Some(vec![Taint::new("t", Effect::NoSchedule)]),
            finalizers: Some(vec!["x/y".into()]),
            disowned: None,
        };
        assert_eq!(
            node_patch(&patch),
            json!({
                "metadata": {
                    "resourceVersion": "7", "labels": {"a": "b", "c": null},
                    "finalizers": ["x/y"],
                },
                "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
            })
        );
    }

    fn status(code: u16, message: &str) -> Status {
        Status::failure(message, "").with_code(code)
    }

    #[test]
    fn errors_are_classified_by_status_code() {
        let check = |code, message: &str, expect| {
            let error = kube::Error::Api(status(code, message).boxed());
            assert_eq!(kind_of(&error), expect, "{code} {message}");
        };
        check(404, "404 page not found", FailureKind::Unknown);
        let gone = Status::failure("", "NotFound").with_code(404);
        assert_eq!(kind_of(&kube::Error::Api(gone.boxed())), FailureKind::Gone);
        check(
            409,
            "Precondition failed: UID in precondition: a, UID in object meta: b",
            FailureKind::Gone,
        );
        check(409, "the object has been modified", FailureKind::Conflict);
        check(429, "too many requests", FailureKind::Throttled);
        check(403, "", FailureKind::Denied);
        check(422, "", FailureKind::Invalid);
        check(500, "", FailureKind::Unknown);
        check(503, "", FailureKind::Unknown);
    }

    #[test]
    fn only_an_api_server_not_found_means_missing() {
        let check = |json: serde_json::Value, expect| {
            let status: Status = serde_json::from_value(json).expect("a status");
            assert_eq!(is_missing(&status, "a"), expect, "{status:?}");
        };
        check(json!({"code": 404, "reason": "NotFound"}), true);
        check(json!({"code": 404, "reason": "NotFound", "details": {"name": "a"}}), true);
        check(json!({"code": 404, "reason": "NotFound", "details": {"name": "b"}}), false);
        check(json!({"code": 404}), false);
        check(json!({"code": 403, "reason": "Forbidden"}), false);
        assert!(!is_missing(&status(404, "404 page not found"), "a"));
    }

    #[test]
    fn pdb_refusal_is_distinguished_from_throttling() {
        let refused = json!({
            "status": "Failure", "message": "Cannot evict", "reason": "TooManyRequests",
            "code": 429, "details": {"causes": [
                {"reason": "DisruptionBudget", "message": "The disruption budget web needs 2"},
            ]},
        });
        let refused: Status = serde_json::from_value(refused).expect("a status");
        assert!(is_pdb_refusal(&refused));
        let words = "Cannot evict The disruption budget web needs 2";
        assert_eq!(refusal_message(&refused), words, "the message names the budget");
        let several = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        assert!(is_pdb_refusal(&status(500, several)));
        assert!(!is_pdb_refusal(&status(429, "too many requests")));
    }
}
