//! Carries the commands that concern the cluster's API out, one call each, and sorts what went
//! wrong. It must not know why a command was given.

use std::time::Duration;

use futures::TryFutureExt;
use http::{HeaderValue, header};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::response::{StatusDetails, reason};
use kube::core::{Request, Status, request};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::coordination::lease_annotations::AnnotatedLease;
use crate::engine::command::{
    BufferPatch, Command, CommandResult, FailureKind, NewNode, NodePatch,
};
use crate::host::text;
use crate::kubernetes::capacity_buffers::{BUFFERS, GROUP};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease::{self, FIELD_MANAGER};
use crate::kubernetes::list::{ListError, list};
use crate::kubernetes::watched_items::{ApiKind, Seen};
use crate::kubernetes_convert::api_types as json_object;
use crate::kubernetes_convert::{self, buffer};
use crate::model::id::{NodeName, ObjectKey, PodKey};
use crate::model::quantity::Resources;
use crate::model::taint::Taint;
use crate::model::watched_object::ObjectKind;
use crate::outbound::fence;

/// Time for one call. Nothing here takes the API server more than a second.
const CALL: Duration = Duration::from_secs(30);

/// An answer without the object. Source: Kubernetes API concepts, alternate representations of
/// resources.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Carries a command out. It is answered whatever happens; what is no matter of the cluster's API
/// is answered as invalid.
pub(crate) async fn execute(connection: &Connection, command: Command) -> CommandResult {
    let client = &connection.client;
    connection.limiter.turn().await;
    let name = command.name();
    if command.changes()
        && let Err(fenced) = fence::pass(true)
    {
        return failed(FailureKind::Unknown, &fenced.to_string());
    }
    let call = async {
        match command {
            Command::CreateNode(node) => create_node(client, &node).await,
            Command::Bind { pod, uid, node } => bind(client, &pod, &uid, &node).await,
            Command::DeletePod {
                pod,
                uid,
                grace_seconds,
            } => delete_pod(client, &pod, uid, grace_seconds).await,
            Command::PatchNode(patch) => patch_node(client, patch).await,
            Command::DeleteNode { node, uid } => delete_node(client, &node, uid).await,
            Command::Evict { pod, uid } => return evict(client, &pod, uid).await,
            Command::Hint { pod, uid, node } => {
                return nominate(client, &pod, &uid, (None, Some(&node))).await;
            }
            Command::Unhint { pod, uid, node } => {
                return nominate(client, &pod, &uid, (Some(&node), None)).await;
            }
            Command::ListPodsOn { node } => return pods_on(client, &node).await,
            Command::ListAttachments { node } => return attachments_of(client, &node).await,
            Command::Probe {
                kind: ObjectKind::Pod,
                objects,
            } => probe::<json_object::Pod>(connection, &objects).await,
            Command::Probe {
                kind: ObjectKind::Node,
                objects,
            } => probe::<json_object::Node>(connection, &objects).await,
            Command::ReadLease => lease::read(connection).await.map(CommandResult::Lease),
            Command::PatchLease(patch) => lease::write(connection, &patch).await.map(lease_now),
            Command::PatchBuffer(patch) => patch_buffer(client, &patch).await,
            // Of no other kind is a listing doubted, and no right to look is asked for.
            Command::Launch(_)
            | Command::Probe { .. }
            | Command::Terminate { .. }
            | Command::Tag { .. }
            | Command::Adopt(_)
            | Command::Learn { .. }
            | Command::ListInstances
            | Command::Rewatch { .. }
            | Command::Ask(_)
            | Command::AskLeave { .. }
            | Command::Muster(_)
            | Command::Account { .. }
            | Command::HoldDown { .. } => return failed(FailureKind::Invalid, "no API call"),
        }
        .unwrap_or_else(|error| sorted(&error))
    };
    let late = || {
        failed(
            FailureKind::Unknown,
            &format!("{name}: no answer within {CALL:?}"),
        )
    };
    timeout(CALL, call).await.unwrap_or_else(|_| late())
}

fn lease_now(lease: AnnotatedLease) -> CommandResult {
    CommandResult::Lease(Some(lease))
}

fn failed(kind: FailureKind, text: &str) -> CommandResult {
    CommandResult::Failed {
        kind,
        text: text::bounded(text),
    }
}

/// An error as an answer. This is the one place where they are sorted.
fn sorted(error: &kube::Error) -> CommandResult {
    failed(kind_of(error), &text::chain(error))
}

pub(crate) fn kind_of(error: &kube::Error) -> FailureKind {
    match error {
        kube::Error::Api(status) => match status.code {
            // A proxy that knows no way to the API says so with the same codes.
            404 if status.reason == reason::NOT_FOUND => FailureKind::Gone,
            410 if matches!(status.reason.as_str(), reason::GONE | reason::EXPIRED) => {
                FailureKind::Gone
            }
            // The object of this name is another one by now.
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

/// A merge patch with the version in it, so that the API server refuses it when the node has
/// changed. Taints are one list to it: all are written.
async fn patch_node(client: &Client, patch: NodePatch) -> Result<CommandResult, kube::Error> {
    let url = Request::new(Node::url_path(&(), None));
    let body = node_patch(&patch);
    // Of a list of owners one can be taken away by its key alone: who the others are is not known.
    let body = match &patch.disowned {
        Some(_) => Patch::Strategic(body),
        None => Patch::Merge(body),
    };
    let request = url.patch(patch.node.as_str(), &by_us(), &body);
    send(client, request).await
}

fn by_us() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

/// Sends a patch. Nobody reads what the object looks like then: the watch shows it.
async fn send(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<CommandResult, kube::Error> {
    client.request::<IgnoredAny>(bare(request)?).await?;
    Ok(CommandResult::Done)
}

/// A request that is answered without the object.
fn bare(
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let accept = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(header::ACCEPT, accept);
    Ok(request)
}

/// What is read of an answer without the object.
#[derive(Deserialize)]
struct WrittenMeta {
    metadata: json_object::Meta,
}

fn node_patch(patch: &NodePatch) -> Value {
    let mut meta = Map::new();
    if !patch.version.is_empty() {
        meta.insert("resourceVersion".into(), json!(patch.version));
    }
    for (field, changes) in [
        ("labels", &patch.labels),
        ("annotations", &patch.annotations),
    ] {
        if !changes.is_empty() {
            let changes = changes
                .iter()
                .map(|(key, value)| (key.clone(), json!(value)));
            meta.insert(field.into(), Value::Object(changes.collect()));
        }
    }
    if let Some(finalizers) = &patch.finalizers {
        meta.insert("finalizers".into(), json!(finalizers));
    }
    if let Some(owner) = &patch.disowned {
        meta.insert(
            "ownerReferences".into(),
            json!([{"$patch": "delete", "uid": owner}]),
        );
    }
    let mut body = json!({ "metadata": meta });
    if let Some(taints) = &patch.taints {
        body["spec"] = json!({ "taints": taints.iter().map(taint).collect::<Vec<_>>() });
    }
    body
}

/// A merge patch with the version in it. Conditions are one list to it: all are written.
async fn patch_buffer(client: &Client, patch: &BufferPatch) -> Result<CommandResult, kube::Error> {
    let (api, key) = (patch.api, &patch.key);
    let path = format!("/apis/{GROUP}/{api}/namespaces/{}/{BUFFERS}", key.namespace);
    let body = json!({
        "metadata": { "resourceVersion": patch.version },
        "status": buffer::status(&patch.status),
    });
    let body = Patch::Merge(body);
    let request = Request::new(path).patch_subresource("status", &key.name, &by_us(), &body);
    let written: WrittenMeta = client.request(bare(request)?).await?;
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
            "taints": node.taints.iter().map(taint).collect::<Vec<_>>(),
        },
        "status": {
            "capacity": quantities(&node.capacity),
            "allocatable": quantities(&node.allocatable),
        },
    });
    let url = Request::new(Node::url_path(&(), None));
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    send(client, url.create(&params, body.to_string().into_bytes())).await
}

/// Binds a pod as kube-scheduler does; the API server refuses it where the pod has another UID, is
/// bound, gated or about to go. It does not look whether there is such a node.
async fn bind(
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

/// Deletes a pod, which is given this many seconds by its kubelet. Without any, it is gone at once.
async fn delete_pod(
    client: &Client,
    pod: &PodKey,
    uid: String,
    grace_seconds: u32,
) -> Result<CommandResult, kube::Error> {
    let api = Api::<Seen<json_object::Pod>>::namespaced_with(client.clone(), &pod.namespace, &());
    let params = DeleteParams {
        grace_period_seconds: Some(grace_seconds),
        ..if_uid(uid)
    };
    api.delete(&pod.name, &params).await?;
    Ok(CommandResult::Done)
}

/// Amounts as the API has them.
pub(crate) fn quantities(resources: &Resources) -> Map<String, Value> {
    resources
        .iter()
        .map(|(name, amount)| {
            let unit = if name == "cpu" { "m" } else { "" };
            (name.to_owned(), json!(format!("{amount}{unit}")))
        })
        .collect()
}

/// A taint as the API has it.
pub(crate) fn taint(taint: &Taint) -> Value {
    let mut json = json!({ "key": taint.key, "effect": taint.effect.as_str() });
    if !taint.value.is_empty() {
        json["value"] = json!(taint.value);
    }
    json
}

fn if_uid(uid: String) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid),
            ..Preconditions::default()
        }),
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

/// Has a waiting pod say which node is meant for it, in place of what it says now. The patch is
/// refused where it is another pod or says something else by then.
async fn nominate(
    client: &Client,
    pod: &PodKey,
    uid: &str,
    (from, to): (Option<&NodeName>, Option<&NodeName>),
) -> CommandResult {
    let path = "/status/nominatedNodeName";
    let change = match to {
        Some(node) => json!({ "op": "add", "path": path, "value": node.as_str() }),
        None => json!({ "op": "remove", "path": path }),
    };
    // To a test, what is missing is null.
    let body = serde_json::from_value(json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": path, "value": from.map(NodeName::as_str) },
        change,
    ]));
    let Ok(body) = body else {
        return failed(FailureKind::Invalid, "no patch");
    };
    let url = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let body = Patch::<()>::Json(body);
    let request = url.patch_subresource("status", &pod.name, &by_us(), &body);
    match send(client, request).await {
        Ok(answer) => answer,
        Err(kube::Error::Api(status)) if status.code == 422 => {
            failed(FailureKind::Conflict, &status.message)
        }
        Err(error) => sorted(&error),
    }
}

async fn evict(client: &Client, pod: &PodKey, uid: String) -> CommandResult {
    let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let params = EvictParams {
        delete_options: Some(if_uid(uid)),
        ..EvictParams::default()
    };
    match api.evict(&pod.name, &params).await {
        Ok(_) => CommandResult::Done,
        Err(kube::Error::Api(status)) if is_budget(&status) => {
            CommandResult::EvictRefused(text::bounded(&refusal(&status)))
        }
        Err(error) => sorted(&error),
    }
}

/// Why a disruption budget refuses an eviction. Which one it is stands in the cause.
fn refusal(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes = causes.map(|own| own.message.as_str());
    let words = [status.message.as_str()].into_iter().chain(causes);
    let words: Vec<&str> = words.filter(|own| !own.is_empty()).collect();
    words.join(" ")
}

/// Whether a disruption budget refused an eviction. Throttling has the same code, but no cause;
/// two budgets for one pod are an error of the server's.
fn is_budget(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    (status.code == 429
        && causes
            .into_iter()
            .any(|cause| cause.reason == "DisruptionBudget"))
        || (status.code == 500 && status.message.contains("more than one PodDisruptionBudget"))
}

async fn pods_on(client: &Client, node: &NodeName) -> CommandResult {
    let api = Api::<Seen<json_object::Pod>>::all(client.clone());
    match list(&api, Some(&format!("spec.nodeName={node}"))).await {
        Ok(pods) => CommandResult::Pods(
            pods.into_iter()
                .map(|seen| kubernetes_convert::pod(seen.object))
                .collect(),
        ),
        Err(ListError::Api(error)) => sorted(&error),
        Err(error) => failed(FailureKind::Unknown, &text::chain(&error)),
    }
}

/// The API server can pick attachments by their own names only, so all are read.
async fn attachments_of(client: &Client, node: &NodeName) -> CommandResult {
    let api = Api::<Seen<json_object::VolumeAttachment>>::all(client.clone());
    match list(&api, None).await {
        Ok(all) => {
            let all = all.into_iter().map(|seen| seen.object);
            CommandResult::Attachments(kubernetes_convert::attachments(all, node.as_str()))
        }
        Err(ListError::Api(error)) => sorted(&error),
        Err(error) => failed(FailureKind::Unknown, &text::chain(&error)),
    }
}

/// Looks each object up by its name.
async fn probe<T: ApiKind>(
    connection: &Connection,
    objects: &[(ObjectKey, String)],
) -> Result<CommandResult, kube::Error> {
    let mut alive = 0;
    for (at, (key, uid)) in objects.iter().enumerate() {
        // The first has had its turn as the command.
        if at > 0 {
            connection.limiter.turn().await;
        }
        let found = uid_of::<T>(&connection.client, key).await?;
        alive += usize::from(found.is_some_and(|found| uid.is_empty() || found == *uid));
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
    let found = client
        .request::<T>(request)
        .map_ok(|it| Some(it.meta().uid.clone()))
        .await;
    match found {
        Err(kube::Error::Api(status)) if is_missing(&status, &key.name) => Ok(None),
        other => other,
    }
}

/// Whether the API server itself says that there is no object of this name.
fn is_missing(status: &Status, name: &str) -> bool {
    let other = |details: &StatusDetails| !details.name.is_empty() && details.name != name;
    status.code == 404
        && status.reason == reason::NOT_FOUND
        && !status.details.as_ref().is_some_and(other)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::{is_budget, is_missing, kind_of, node_patch, refusal};
    use crate::engine::command::{FailureKind, NodePatch};
    use crate::model::taint::{Effect, Taint};

    #[test]
    fn a_patch_names_the_version_and_all_taints() {
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
    fn errors_are_sorted_by_code() {
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
    fn only_the_api_server_is_believed_that_an_object_is_gone() {
        let check = |json: serde_json::Value, expect| {
            let status: Status = serde_json::from_value(json).expect("a status");
            assert_eq!(is_missing(&status, "a"), expect, "{status:?}");
        };
        check(json!({"code": 404, "reason": "NotFound"}), true);
        check(
            json!({"code": 404, "reason": "NotFound", "details": {"name": "a"}}),
            true,
        );
        check(
            json!({"code": 404, "reason": "NotFound", "details": {"name": "b"}}),
            false,
        );
        check(json!({"code": 404}), false);
        check(json!({"code": 403, "reason": "Forbidden"}), false);
        assert!(!is_missing(&status(404, "404 page not found"), "a"));
    }

    #[test]
    fn a_budget_is_told_from_throttling() {
        let refused = json!({
            "status": "Failure", "message": "Cannot evict", "reason": "TooManyRequests",
            "code": 429, "details": {"causes": [
                {"reason": "DisruptionBudget", "message": "The disruption budget web needs 2"},
            ]},
        });
        let refused: Status = serde_json::from_value(refused).expect("a status");
        assert!(is_budget(&refused));
        let words = "Cannot evict The disruption budget web needs 2";
        assert_eq!(refusal(&refused), words, "which budget is said");
        let several = "This pod has more than one PodDisruptionBudget, which the eviction \
                       subresource does not support.";
        assert!(is_budget(&status(500, several)));
        assert!(!is_budget(&status(429, "too many requests")));
    }
}
