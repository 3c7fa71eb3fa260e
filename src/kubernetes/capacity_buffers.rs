//! Reads the CapacityBuffers of a cluster where its API has them, again and again.
//! It must not know what is kept free for them.
//!
//! They are listed rather than watched, and belong to no view: most clusters have none, and what
//! they declare is no ground for anything that cannot be undone. The engine has their status
//! written (docs/decisions/011-capacity-buffers-are-listed-not-watched.md).

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::engine::event::Event;
use crate::host::text;
use crate::kubernetes::client::Connection;
use crate::kubernetes::list::{PAGE, PAGE_TIME};
use crate::kubernetes_convert::buffer::{Declared, StoredPodTemplate, declared, shape};
use crate::model::buffer_object::{BufferObject, Unresolved};
use crate::model::id::ObjectKey;
use crate::telemetry::report_metrics;

/// They are read this often where the API has them: others wait for their status.
const AGAIN: Duration = Duration::from_secs(10);
/// Where it has none, it is asked this often.
const AGAIN_ABSENT: Duration = Duration::from_secs(30);
/// After an error they are read again sooner.
const RETRY: Duration = Duration::from_secs(5);
/// An API that had buffers has to lack them so often before it is believed: rights are taken away
/// and given again, and definitions replaced.
const ABSENT_MAX: u32 = 10;
/// Their group of the API.
pub(super) const GROUP: &str = "autoscaling.x-k8s.io";
/// What they are called in the API.
pub(super) const BUFFERS: &str = "capacitybuffers";
const DENIED: &str = "they may not be read: list capacitybuffers";
/// Versions of the API, the newest first.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// What is wrong with single objects, by their names.
type BufferFaults = BTreeMap<String, String>;

/// Tells of the buffers that the cluster's objects declare, until nobody listens.
pub(crate) async fn keep_reading(
    cluster: String,
    connection: Connection,
    events: mpsc::Sender<Event>,
) {
    let mut last: Option<Vec<BufferObject>> = None;
    let mut told = BufferFaults::new();
    let mut absences = 0;
    // Why they could not be read the last time.
    let mut mute: Option<String> = None;
    loop {
        let mut denied = None;
        let read = match read(&connection).await {
            Ok(Ok(read)) => {
                absences = 0;
                Ok(read)
            }
            Ok(Err(lack)) => {
                // Who has no use for them goes without the right.
                denied = (lack == Lack::Forbidden).then(|| DENIED.to_owned());
                absences += 1;
                let had = last.as_ref().is_some_and(|own| !own.is_empty());
                match had && absences < ABSENT_MAX {
                    true => Err("they were there a moment ago".to_owned()),
                    false => Ok((Vec::new(), BufferFaults::new())),
                }
            }
            Err(why) => Err(why),
        };
        let wait = match &read {
            Err(_) => RETRY,
            Ok(_) if absences > 0 => AGAIN_ABSENT,
            Ok(_) => AGAIN,
        };
        match read {
            Ok((buffers, faults)) => {
                for (name, why) in &faults {
                    if told.get(name) != Some(why) {
                        tracing::warn!(cluster, buffer = name, why, "CapacityBuffer left out");
                    }
                }
                report_metrics::buffers_left_out(&cluster, faults.len());
                told = faults;
                if let Some(why) = denied.as_ref().filter(|_| mute != denied) {
                    tracing::warn!(cluster, why, "CapacityBuffers cannot be read");
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
                    tracing::warn!(cluster, why, "CapacityBuffers cannot be read");
                }
                mute = Some(why);
            }
        }
        sleep(wait).await;
    }
}

/// All objects that are ours, by name, and what is wrong with those that declare no room.
async fn read(
    connection: &Connection,
) -> Result<Result<(Vec<BufferObject>, BufferFaults), Lack>, String> {
    let (mut buffers, mut faults) = (Vec::new(), BufferFaults::new());
    let mut templates: BTreeMap<ObjectKey, Result<StoredPodTemplate, Unresolved>> = BTreeMap::new();
    let (api, objects) = match list(connection).await? {
        Ok(found) => found,
        Err(lack) => return Ok(Err(lack)),
    };
    for (at, value) in objects.into_iter().enumerate() {
        let field = |name: &str| value["metadata"][name].as_str().unwrap_or_default();
        let name = match field("name") {
            "" => format!("(item {at})"),
            own => format!("{}/{own}", field("namespace")),
        };
        let Declared {
            mut object,
            template,
        } = match serde_json::from_value(value) {
            Ok(object) => match declared(api, object) {
                Some(declared) => declared,
                None => continue,
            },
            // What it is called is not known for sure, and so its status is left alone.
            Err(error) => {
                faults.insert(name, error.to_string());
                continue;
            }
        };
        if let (Some(key), Ok(buffer)) = (template, &mut object.buffer) {
            if !templates.contains_key(&key) {
                let stored = stored(connection, &key).await?;
                templates.insert(key.clone(), stored);
            }
            let stored = templates.get(&key).cloned();
            let shape =
                stored.map(|own| own.and_then(|own| shape(own).map_err(Unresolved::failed)));
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
    Ok(Ok((buffers, faults)))
}

/// The newest version that is there, and the objects of it, a page of them at most.
async fn list(connection: &Connection) -> Result<Result<(&'static str, Vec<Value>), Lack>, String> {
    #[derive(Deserialize)]
    struct Page {
        items: Vec<Value>,
    }
    for api in VERSIONS {
        let version = format!("/apis/{GROUP}/{api}");
        let path = format!("{version}/{BUFFERS}");
        let request = Request::new(path).list(&ListParams::default().limit(PAGE));
        let request = request.map_err(|error| error.to_string())?;
        match call(connection, request).await? {
            Ok(Page { items }) => return Ok(Ok((api, items))),
            // Nobody may read what is not there, either.
            Err(Lack::Forbidden) if has(connection, &version).await? => {
                return Ok(Err(Lack::Forbidden));
            }
            Err(_) => {}
        }
    }
    Ok(Err(Lack::Absent))
}

/// Whether a version of the API has buffers, which everybody may ask.
async fn has(connection: &Connection, version: &str) -> Result<bool, String> {
    let request = http::Request::get(version).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let found = call::<APIResourceList>(connection, request).await?;
    Ok(found.is_ok_and(|own| own.resources.iter().any(|own| own.name == BUFFERS)))
}

/// A PodTemplate, or why there is none for us.
async fn stored(
    connection: &Connection,
    key: &ObjectKey,
) -> Result<Result<StoredPodTemplate, Unresolved>, String> {
    let path = format!("/api/v1/namespaces/{}/podtemplates", key.namespace);
    let request = Request::new(path).get(&key.name, &GetParams::default());
    let found = call(connection, request.map_err(|error| error.to_string())?).await?;
    Ok(found.map_err(|lack| lack.of_template(key)))
}

/// Why the API gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It has no such thing.
    Absent,
    /// It does not let us read it.
    Forbidden,
}

impl Lack {
    fn of_template(self, key: &ObjectKey) -> Unresolved {
        let may_not = "may not be read: get podtemplates";
        match self {
            Self::Absent => Unresolved {
                reason: Unresolved::NO_TEMPLATE,
                message: format!("its PodTemplate {key} is not there"),
            },
            Self::Forbidden => Unresolved::failed(format!("its PodTemplate {key} {may_not}")),
        }
    }
}

/// What the API has.
async fn call<T: DeserializeOwned>(
    connection: &Connection,
    request: http::Request<Vec<u8>>,
) -> Result<Result<T, Lack>, String> {
    connection.limiter.turn().await;
    match timeout(PAGE_TIME, connection.client.request::<T>(request)).await {
        Ok(Ok(found)) => Ok(Ok(found)),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Ok(Err(Lack::Forbidden)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(Err(Lack::Absent)),
        Ok(Err(error)) => Err(text::chain(&error)),
        Err(_) => Err(format!("no answer within {} s", PAGE_TIME.as_secs())),
    }
}
