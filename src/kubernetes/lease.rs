//! Reads and writes a cluster's Lease: its holder and its annotations.
//!
//! Holder and annotations are written independently: a write of annotations compares the
//! annotations that were read, not the resource version, which each renewal changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::{Request, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::coordination::leader_election::{LASTS, LeaseHolder};
use crate::coordination::lease_annotations::AnnotatedLease;
use crate::engine::command::LeasePatch;
use crate::kubernetes::client::Connection;
use crate::model::id::LeaseName;
use crate::model::labels::Labels;
use crate::outbound::fence::NotLeader;

/// The object as it was read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredLease {
    metadata: LeaseMeta,
    spec: LeaseSpecJson,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseMeta {
    resource_version: String,
    annotations: Option<Labels>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpecJson {
    holder_identity: Option<String>,
    renew_time: Option<String>,
    lease_duration_seconds: Option<u32>,
    lease_transitions: Option<u32>,
}

/// The holder of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseState {
    /// The resource version of the Lease. `None` if the Lease does not exist.
    pub(crate) version: Option<String>,
    pub(crate) hold: LeaseHolder,
    /// Number of holder changes.
    pub(crate) transitions: u32,
    /// The last host that requested a handover, and the time of the request by the clock of that
    /// host.
    pub(crate) asked: Option<String>,
}

/// The annotation that requests a handover from the leader: `HOST TIME`. The engine does not get
/// this annotation.
const HANDOVER_REQUEST: &str = "outrigger.dev/handover-requested-by";
/// The name of [`HANDOVER_REQUEST`] in earlier versions: read and removed, never written.
const HANDOVER_REQUEST_FORMER: &str = "outrigger.dev/asked-by";

/// Field manager of the writes.
const FIELD_MANAGER: &str = "outrigger";

/// Number of attempts to write annotations while the holder renews the Lease.
const TRIES: u32 = 5;

/// The parameters of a patch by Outrigger.
pub(super) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

/// The parameters of a creation by Outrigger.
pub(super) fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
}

/// The annotations of the Lease. `None` if the Lease does not exist.
pub(crate) async fn read_annotations(
    connection: &Connection,
) -> Result<Option<AnnotatedLease>, kube::Error> {
    Ok(read_stored(connection).await?.map(annotated_lease))
}

/// The holder of the Lease.
pub(crate) async fn read_holder(connection: &Connection) -> Result<LeaseState, kube::Error> {
    Ok(read_stored(connection).await?.map(lease_state).unwrap_or_default())
}

/// The holder of the Lease of another autoscaler. `None` if the Lease does not exist.
pub(crate) async fn read_other_holder(
    client: &Client,
    name: &LeaseName,
) -> Result<Option<LeaseHolder>, kube::Error> {
    let stored = read_at(client, name).await?;
    Ok(stored.map(|lease| lease_state(lease).hold))
}

async fn read_stored(connection: &Connection) -> Result<Option<StoredLease>, kube::Error> {
    read_at(&connection.client, &connection.lease).await
}

async fn read_at(client: &Client, name: &LeaseName) -> Result<Option<StoredLease>, kube::Error> {
    let request = lease_collection(name).get(&name.name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<StoredLease>(request).await {
        Ok(stored) => Ok(Some(stored)),
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Changes the annotations of the Lease if they are unchanged since the read version, or creates
/// the Lease. Otherwise returns a conflict. Returns the new annotations. The holder is not changed.
pub(crate) async fn write_annotations(
    connection: &Connection,
    patch: &LeasePatch,
) -> Result<AnnotatedLease, kube::Error> {
    let annotations = annotation_changes(patch);
    let Some(version) = &patch.version else {
        return create_lease(connection, annotations, None).await.map(annotated_lease);
    };
    let mut tries = 1;
    loop {
        let current = read_stored(connection).await?.unwrap_or_default();
        let at = current.metadata.resource_version.clone();
        if annotated_lease(current).version != *version {
            return Err(conflict_error());
        }
        // Check the fence here. The client does not check it for requests of the Lease, because
        // these requests renew the leadership.
        if !connection.fence.is_open() {
            return Err(kube::Error::Service(Box::new(NotLeader::Term)));
        }
        let body = json!({"metadata": {"annotations": &annotations, "resourceVersion": at}});
        match patch_lease(connection, &body).await {
            // The holder has renewed the Lease meanwhile.
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => tries += 1,
            other => return other.map(annotated_lease),
        }
    }
}

/// Sets or renews the holder of the Lease if its version is unchanged, or creates the Lease. An
/// empty name releases the Lease. A change of holder removes the handover request, unless the Lease
/// is released for the requesting host.
pub(crate) async fn write_holder(
    connection: &Connection,
    lease: &LeaseState,
    holder: &str,
    now: Timestamp,
) -> Result<LeaseState, kube::Error> {
    let spec = spec_patch(lease, holder, now);
    let stored = match &lease.version {
        None => create_lease(connection, Map::new(), Some(spec)).await?,
        Some(version) => {
            let mut body = json!({"metadata": {"resourceVersion": version}, "spec": spec});
            if lease.asked.is_some() && lease.hold.holder != holder {
                body["metadata"]["annotations"] =
                    json!({HANDOVER_REQUEST: null, HANDOVER_REQUEST_FORMER: null});
            }
            patch_lease(connection, &body).await?
        }
    };
    Ok(lease_state(stored))
}

/// Writes a handover request. The holder of the Lease reads the request at its next renewal.
pub(crate) async fn write_handover_request(
    connection: &Connection,
    host: &str,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let body = json!({"metadata": {"annotations": {HANDOVER_REQUEST: format!("{host} {now}")}}});
    patch_lease(connection, &body).await.map(drop)
}

/// Releases the Lease for the requesting host.
pub(crate) async fn release_for_request(
    connection: &Connection,
    lease: &LeaseState,
    now: Timestamp,
) -> Result<LeaseState, kube::Error> {
    let without_request = LeaseState { asked: None, ..lease.clone() };
    write_holder(connection, &without_request, "", now).await
}

/// The changed fields of a Lease with a new holder. Source: Kubernetes API, LeaseSpec.
fn spec_patch(lease: &LeaseState, holder: &str, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let mut spec = json!({
        "holderIdentity": holder,
        "leaseDurationSeconds": LASTS.as_secs(),
        "renewTime": &time,
    });
    if !holder.is_empty() && lease.hold.holder != holder {
        spec["acquireTime"] = json!(time);
        spec["leaseTransitions"] = json!(lease.transitions.saturating_add(1));
    }
    spec
}

/// Creates the Lease. Returns a conflict if it exists.
async fn create_lease(
    connection: &Connection,
    annotations: Map<String, Value>,
    spec: Option<Value>,
) -> Result<StoredLease, kube::Error> {
    let body = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": &connection.lease.name, "annotations": annotations},
        "spec": spec.unwrap_or_else(|| json!({})),
    });
    let request =
        lease_collection(&connection.lease).create(&post_params(), body.to_string().into_bytes());
    let request = request.map_err(kube::Error::BuildRequest)?;
    connection.client.request::<StoredLease>(request).await
}

async fn patch_lease(connection: &Connection, body: &Value) -> Result<StoredLease, kube::Error> {
    let name = &connection.lease;
    let request = lease_collection(name).patch(&name.name, &patch_params(), &Patch::Merge(body));
    let request = request.map_err(kube::Error::BuildRequest)?;
    connection.client.request::<StoredLease>(request).await
}

fn lease_collection(name: &LeaseName) -> Request {
    Request::new(format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", name.namespace))
}

/// The conflict error of the API server.
fn conflict_error() -> kube::Error {
    let status = Status::failure("the annotations of the Lease have changed", "Conflict");
    kube::Error::Api(Box::new(status.with_code(409)))
}

/// The annotations of a patch. A null removes an existing annotation. A new Lease has none.
fn annotation_changes(patch: &LeasePatch) -> Map<String, Value> {
    let set = patch.annotations.iter();
    let set = set.filter(|(_, value)| patch.version.is_some() || value.is_some());
    set.map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn annotated_lease(stored: StoredLease) -> AnnotatedLease {
    let mut annotations = stored.metadata.annotations.unwrap_or_default();
    annotations.retain(|key, _| key != HANDOVER_REQUEST && key != HANDOVER_REQUEST_FORMER);
    let mut print = DefaultHasher::new();
    for pair in &annotations {
        pair.hash(&mut print);
    }
    AnnotatedLease { version: format!("{:016x}", print.finish()), annotations }
}

fn lease_state(stored: StoredLease) -> LeaseState {
    let spec = stored.spec;
    let annotations = stored.metadata.annotations.as_ref();
    let request = annotations.and_then(|annotation| {
        // Hosts of both versions may have requested a handover. The later request applies.
        let names = [HANDOVER_REQUEST_FORMER, HANDOVER_REQUEST];
        let requests = names.iter().filter_map(|name| annotation.get(*name));
        requests
            .max_by_key(|request| request.split_once(' ').map(|parts| parts.1.to_owned()))
            .cloned()
    });
    LeaseState {
        version: Some(stored.metadata.resource_version),
        hold: LeaseHolder {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.unwrap_or_default(),
            lasts: Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into()),
        },
        transitions: spec.lease_transitions.unwrap_or(0),
        asked: request,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::{LeaseState, annotated_lease, annotation_changes, lease_state, spec_patch};
    use crate::engine::command::LeasePatch;

    fn stored(version: &str, spec: Value) -> super::StoredLease {
        let metadata = json!({"resourceVersion": version, "annotations": {"a": "b"}});
        from_value(json!({"metadata": metadata, "spec": spec})).expect("a Lease")
    }

    #[test]
    fn annotations_are_removed_only_from_an_existing_lease() {
        let set = vec![("a".to_owned(), Some("b".to_owned())), ("c".to_owned(), None)];
        let mut patch = LeasePatch { version: Some("7".into()), annotations: set };
        assert_eq!(Value::from(annotation_changes(&patch)), json!({"a": "b", "c": null}));
        patch.version = None;
        assert_eq!(Value::from(annotation_changes(&patch)), json!({"a": "b"}));
    }

    #[test]
    fn lease_renewal_does_not_change_the_annotation_version() {
        let old = annotated_lease(stored("7", json!({"holderIdentity": "a"})));
        assert_eq!(annotated_lease(stored("8", json!({"holderIdentity": "b"}))), old);
        let mut other = stored("8", json!({}));
        other.metadata.annotations = Some([("a".into(), "c".into())].into_iter().collect());
        assert_ne!(annotated_lease(other).version, old.version);
    }

    #[test]
    fn lease_transitions_increase_only_with_a_new_holder() {
        let now = "2026-01-02T03:04:05.6789Z".parse().expect("a time");
        let known = lease_state(stored("7", json!({"holderIdentity": "a", "leaseTransitions": 4})));
        let time = "2026-01-02T03:04:05.678900Z";
        let same = json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": time});
        assert_eq!(spec_patch(&known, "a", now), same);
        let mut other = same.clone();
        other["holderIdentity"] = json!("b");
        other["acquireTime"] = json!(time);
        other["leaseTransitions"] = json!(5);
        assert_eq!(spec_patch(&known, "b", now), other);
        assert_eq!(spec_patch(&known, "", now)["leaseTransitions"], Value::Null);
        let first = spec_patch(&LeaseState::default(), "a", now);
        assert_eq!(first["leaseTransitions"], 1);
    }
}
