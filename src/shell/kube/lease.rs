//! Reads and writes the cluster's Lease, of which only the annotations count here.
//! It must not know what they say.

use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::command::LeasePatch;
use crate::model::labels::Labels;
use crate::model::notes::{LEASE_NAME, LEASE_NAMESPACE, Lease};

/// What is read of the object.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    metadata: Meta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    resource_version: String,
    annotations: Option<Labels>,
}

/// Who we are to the API server, in the fields we write.
pub(crate) const FIELD_MANAGER: &str = "outrigger";

/// The Lease; none where there is none.
pub(crate) async fn read(client: &Client) -> Result<Option<Lease>, kube::Error> {
    let request = requests().get(LEASE_NAME, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<Stored>(request).await {
        Ok(stored) => Ok(Some(lease(stored))),
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Changes the Lease if it still has the version, or makes it if there is none: a conflict
/// otherwise. Returns how it is then. Who holds it is left as it is.
pub(crate) async fn write(client: &Client, patch: &LeasePatch) -> Result<Lease, kube::Error> {
    let body = body(patch);
    let request = if patch.version.is_some() {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        requests().patch(LEASE_NAME, &params, &Patch::Merge(body))
    } else {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        requests().create(&params, body.to_string().into_bytes())
    };
    let request = request.map_err(kube::Error::BuildRequest)?;
    Ok(lease(client.request::<Stored>(request).await?))
}

fn requests() -> Request {
    Request::new(format!(
        "/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
    ))
}

fn body(patch: &LeasePatch) -> Value {
    let new = patch.version.is_none();
    // A null takes an annotation away where there is one; a new Lease has none.
    let set = patch.annotations.iter();
    let set = set.filter(|(_, value)| !new || value.is_some());
    let set: Map<String, Value> = set
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
    let mut meta = json!({ "annotations": set });
    match &patch.version {
        Some(version) => meta["resourceVersion"] = json!(version),
        None => meta["name"] = json!(LEASE_NAME),
    }
    let mut body = json!({ "metadata": meta });
    if new {
        body["apiVersion"] = json!("coordination.k8s.io/v1");
        body["kind"] = json!("Lease");
    }
    body
}

fn lease(stored: Stored) -> Lease {
    Lease {
        version: stored.metadata.resource_version,
        annotations: stored.metadata.annotations.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::body;
    use crate::engine::command::LeasePatch;

    #[test]
    fn a_lease_is_changed_at_its_version_and_made_without_one() {
        let annotations = vec![
            ("a".to_owned(), Some("b".to_owned())),
            ("c".to_owned(), None),
        ];
        let mut patch = LeasePatch {
            version: Some("7".into()),
            annotations,
        };
        let expect = json!({"annotations": {"a": "b", "c": null}, "resourceVersion": "7"});
        assert_eq!(body(&patch), json!({ "metadata": expect }));
        patch.version = None;
        let expect = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"annotations": {"a": "b"}, "name": "outrigger"},
        });
        assert_eq!(body(&patch), expect);
    }
}
