//! Lists the CapacityBuffers of a cluster periodically, if its API serves them.
//!
//! CapacityBuffers are listed, not watched, and do not affect whether the cluster state is in sync:
//! most clusters have none, and a wrong buffer causes nothing irreversible. The engine writes their
//! status (docs/decisions/011-capacity-buffers-are-listed-not-watched.md).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{GetParams, ListParams};
use kube::core::{Request, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::engine::event::Event;
use crate::host::text;
use crate::kubernetes::client::Connection;
use crate::kubernetes::list::{PAGE, PAGE_TIME};
use crate::kubernetes_convert::buffer::{Declared, StoredPodTemplate, buffer_pod, convert_buffer};
use crate::model::buffer_object::{BufferObject, Unresolved};
use crate::model::id::ObjectKey;
use crate::telemetry::report_metrics;

/// List interval if the API serves CapacityBuffers. Other controllers wait for their status.
const AGAIN: Duration = Duration::from_secs(10);
/// Interval of checks if the API does not serve CapacityBuffers.
const AGAIN_ABSENT: Duration = Duration::from_secs(30);
/// Retry interval after an error.
const RETRY: Duration = Duration::from_secs(5);
/// Number of consecutive checks without the API before the buffers count as deleted, because
/// permissions and CRDs may be replaced.
const ABSENT_MAX: u32 = 10;
/// API group.
pub(super) const GROUP: &str = "autoscaling.x-k8s.io";
/// Plural name in the API.
pub(super) const BUFFERS: &str = "capacitybuffers";
const DENIED: &str = "cannot read them: list capacitybuffers denied";
/// API versions, newest first.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// Errors of single objects, by name.
type BufferFaults = BTreeMap<String, String>;

/// Sends the buffers of the cluster as events until the receiver is dropped.
pub(crate) async fn watch_buffers(
    cluster: String,
    connection: Connection,
    events: mpsc::Sender<Event>,
) {
    let mut last: Option<Vec<BufferObject>> = None;
    let mut logged = BufferFaults::new();
    let mut absences = 0;
    // The last read error.
    let mut mute: Option<String> = None;
    loop {
        let mut denied = None;
        let read = match read_buffers(&connection).await {
            Ok(read) => {
                absences = 0;
                Ok(read)
            }
            Err(ReadError::Lack(lack)) => {
                // Users without CapacityBuffers need not grant the permission.
                denied = (lack == Lack::Forbidden).then(|| DENIED.to_owned());
                absences += 1;
                let had_buffers = last.as_ref().is_some_and(|buffers| !buffers.is_empty());
                match had_buffers && absences < ABSENT_MAX {
                    true => Err("the API no longer serves CapacityBuffers".to_owned()),
                    false => Ok((Vec::new(), BufferFaults::new())),
                }
            }
            Err(error) => Err(error.to_string()),
        };
        let wait = match &read {
            Err(_) => RETRY,
            Ok(_) if absences > 0 => AGAIN_ABSENT,
            Ok(_) => AGAIN,
        };
        match read {
            Ok((buffers, faults)) => {
                for (name, why) in &faults {
                    if logged.get(name) != Some(why) {
                        tracing::warn!(cluster, buffer = name, why, "ignoring CapacityBuffer");
                    }
                }
                report_metrics::set_invalid_buffers(&cluster, faults.len());
                logged = faults;
                if let Some(why) = denied.as_ref().filter(|_| mute != denied) {
                    tracing::warn!(cluster, why, "cannot read CapacityBuffers");
                }
                mute = denied;
                if last.as_ref() != Some(&buffers) {
                    let event = Event::BuffersChanged(buffers.clone());
                    if events.send(event).await.is_err() {
                        return;
                    }
                }
                last = Some(buffers);
            }
            Err(why) => {
                if mute.as_ref() != Some(&why) {
                    tracing::warn!(cluster, why, "cannot read CapacityBuffers");
                }
                mute = Some(why);
            }
        }
        sleep(wait).await;
    }
}

/// Returns the buffers that are for Outrigger, and the errors of invalid objects by name.
async fn read_buffers(
    connection: &Connection,
) -> Result<(Vec<BufferObject>, BufferFaults), ReadError> {
    let (mut buffers, mut faults) = (Vec::new(), BufferFaults::new());
    let mut templates: BTreeMap<ObjectKey, Result<StoredPodTemplate, Unresolved>> = BTreeMap::new();
    let (api, objects) = list_buffers(connection).await?;
    for (at, value) in objects.into_iter().enumerate() {
        let metadata = &value["metadata"];
        let name = match metadata["name"].as_str().unwrap_or_default() {
            "" => format!("(item {at})"),
            object_name => {
                let namespace = metadata["namespace"].as_str().unwrap_or_default();
                format!("{namespace}/{object_name}")
            }
        };
        let Declared { mut object, template } = match serde_json::from_value(value) {
            Ok(object) => match convert_buffer(api, object) {
                Some(declared) => declared,
                None => continue,
            },
            // The name of an invalid object is not reliable, so the engine must not write its
            // status.
            Err(error) => {
                faults.insert(name, error.to_string());
                continue;
            }
        };
        if let (Some(key), Ok(buffer)) = (template, &mut object.buffer) {
            if !templates.contains_key(&key) {
                let stored = read_pod_template(connection, &key).await?;
                templates.insert(key.clone(), stored);
            }
            let stored = templates.get(&key).cloned();
            let shape = stored.map(|template| {
                template.and_then(|template| {
                    buffer_pod(template)
                        .map_err(|error| Unresolved::resolution_failed(error.to_string()))
                })
            });
            match shape {
                Some(Ok((pod, generation))) => {
                    buffer.pod = Some(pod);
                    object.template = Some((key.name, generation));
                }
                Some(Err(why)) => object.buffer = Err(why),
                None => {}
            }
        }
        if let Err(why) = &object.buffer {
            faults.insert(name, why.message.clone());
        }
        buffers.push(object);
    }
    buffers.sort_by(|one, other| one.key.cmp(&other.key));
    Ok((buffers, faults))
}

/// The newest served version, and one page of its objects.
async fn list_buffers(connection: &Connection) -> Result<(&'static str, Vec<Value>), ReadError> {
    #[derive(Deserialize)]
    struct Page {
        items: Vec<Value>,
    }
    for api in VERSIONS {
        let version = format!("/apis/{GROUP}/{api}");
        let path = format!("{version}/{BUFFERS}");
        let request = Request::new(path).list(&ListParams::default().limit(PAGE))?;
        match read_object(connection, request).await {
            Ok(Page { items }) => return Ok((api, items)),
            // RBAC also denies access to resources that do not exist.
            Err(ReadError::Lack(Lack::Forbidden))
                if serves_buffers(connection, &version).await? =>
            {
                return Err(ReadError::Lack(Lack::Forbidden));
            }
            Err(ReadError::Lack(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ReadError::Lack(Lack::Absent))
}

/// Returns whether an API version serves buffers. Discovery needs no permission.
async fn serves_buffers(connection: &Connection, version: &str) -> Result<bool, ReadError> {
    let request = http::Request::get(version).body(Vec::new())?;
    match read_object::<APIResourceList>(connection, request).await {
        Ok(served) => Ok(served.resources.iter().any(|it| it.name == BUFFERS)),
        Err(ReadError::Lack(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A PodTemplate, or why it cannot be read.
async fn read_pod_template(
    connection: &Connection,
    key: &ObjectKey,
) -> Result<Result<StoredPodTemplate, Unresolved>, ReadError> {
    let path = format!("/api/v1/namespaces/{}/podtemplates", key.namespace);
    let request = Request::new(path).get(&key.name, &GetParams::default())?;
    match read_object(connection, request).await {
        Ok(template) => Ok(Ok(template)),
        Err(ReadError::Lack(lack)) => Ok(Err(lack.of_template(key))),
        Err(error) => Err(error),
    }
}

/// Why a read failed.
#[derive(Debug, Error)]
enum ReadError {
    #[error("{0:?}")]
    Lack(Lack),
    #[error(transparent)]
    Request(#[from] request::Error),
    #[error(transparent)]
    Discovery(#[from] http::Error),
    #[error("{}", text::error_chain(.0))]
    Api(kube::Error),
    #[error("no response within {} s", PAGE_TIME.as_secs())]
    Late,
}

/// Why an object is not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// The object does not exist.
    Absent,
    /// Reading is denied.
    Forbidden,
}

impl Lack {
    fn of_template(self, key: &ObjectKey) -> Unresolved {
        let may_not = "cannot be read: get podtemplates denied";
        match self {
            Self::Absent => Unresolved {
                reason: Unresolved::NO_TEMPLATE,
                message: format!("its PodTemplate {key} does not exist"),
            },
            Self::Forbidden => {
                Unresolved::resolution_failed(format!("its PodTemplate {key} {may_not}"))
            }
        }
    }
}

/// Reads an object.
async fn read_object<T: DeserializeOwned>(
    connection: &Connection,
    request: http::Request<Vec<u8>>,
) -> Result<T, ReadError> {
    connection.limiter.wait_for_token().await;
    match timeout(PAGE_TIME, connection.client.request::<T>(request)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(match &error {
            kube::Error::Api(status) if status.code == 403 => ReadError::Lack(Lack::Forbidden),
            kube::Error::Api(status) if status.code == 404 => ReadError::Lack(Lack::Absent),
            _ => ReadError::Api(error),
        }),
        Err(_) => Err(ReadError::Late),
    }
}
