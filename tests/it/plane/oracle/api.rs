//! The API of the control plane as JSON, and the events of its watches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use http::Request;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Calls in flight at once.
const AT_ONCE: usize = 16;

/// Namespace and name.
pub(super) type Key = (String, String);

/// Returns the path prefix and the plural of a kind, and whether it is namespaced.
fn home(kind: &str) -> (&'static str, &'static str, bool) {
    match kind {
        "Pod" => ("/api/v1", "pods", true),
        "Node" => ("/api/v1", "nodes", false),
        "Service" => ("/api/v1", "services", true),
        "Namespace" => ("/api/v1", "namespaces", false),
        "PersistentVolumeClaim" => ("/api/v1", "persistentvolumeclaims", true),
        "PersistentVolume" => ("/api/v1", "persistentvolumes", false),
        "DaemonSet" => ("/apis/apps/v1", "daemonsets", true),
        "StorageClass" => ("/apis/storage.k8s.io/v1", "storageclasses", false),
        "CSINode" => ("/apis/storage.k8s.io/v1", "csinodes", false),
        "RuntimeClass" => ("/apis/node.k8s.io/v1", "runtimeclasses", false),
        "PriorityClass" => ("/apis/scheduling.k8s.io/v1", "priorityclasses", false),
        other => panic!("no such kind: {other}"),
    }
}

fn of(kind: &str, namespace: &str) -> String {
    match home(kind) {
        (prefix, plural, true) => format!("{prefix}/namespaces/{namespace}/{plural}"),
        (prefix, plural, false) => format!("{prefix}/{plural}"),
    }
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    let own = value.pointer(pointer).and_then(Value::as_str);
    own.unwrap_or_default()
}

pub(super) fn key_of(object: &Value) -> Key {
    let part = |field: &str| text(object, &format!("/metadata/{field}")).to_owned();
    (part("namespace"), part("name"))
}

/// Returns the path of one object.
pub(super) fn path(object: &Value) -> String {
    let (namespace, name) = key_of(object);
    format!("{}/{name}", of(text(object, "/kind"), &namespace))
}

/// The API with the permissions of an administrator.
#[derive(Clone)]
pub(super) struct Api(pub(super) Client);

impl Api {
    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Value, kube::Error> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", kind)
            .body(body.to_string().into_bytes())
            .expect("a request");
        self.0.request::<Value>(request).await
    }

    /// Creates an object, and returns it as stored.
    pub(super) async fn create(&self, object: &Value) -> Value {
        let path = of(text(object, "/kind"), &key_of(object).0);
        let made = self.call("POST", &path, object).await;
        made.unwrap_or_else(|error| panic!("{error}\n{object:#}"))
    }

    /// Creates objects that do not depend on each other.
    pub(super) async fn create_all(&self, objects: &[Value]) -> Vec<Value> {
        let calls = objects.iter().map(|object| self.create(object));
        stream::iter(calls).buffered(AT_ONCE).collect().await
    }

    pub(super) async fn patch(&self, object: &Value, subresource: &str, patch: &Value) -> Value {
        let path = format!("{}{subresource}", path(object));
        let patched = self.call("PATCH", &path, patch).await;
        patched.unwrap_or_else(|error| panic!("{error}\n{path} {patch:#}"))
    }

    /// Deletes an object with this grace period, and returns it as stored until then.
    pub(super) async fn delete(&self, object: &Value, seconds: u32) -> Value {
        let body = json!({"gracePeriodSeconds": seconds});
        let gone = self.call("DELETE", &path(object), &body).await;
        gone.unwrap_or_else(|error| panic!("{error}\n{}", path(object)))
    }

    pub(super) async fn delete_all(&self, objects: &[Value]) {
        let calls = objects.iter().map(|object| self.delete(object, 0));
        let calls = stream::iter(calls).buffered(AT_ONCE);
        calls.for_each(|_| async {}).await;
    }

    /// Deletes all objects of a kind, in this namespace if the kind is namespaced.
    pub(super) async fn clear(&self, kind: &str, namespace: &str) {
        let body = json!({"gracePeriodSeconds": 0});
        let cleared = self.call("DELETE", &of(kind, namespace), &body).await;
        cleared.unwrap_or_else(|error| panic!("{error}\n{kind} of {namespace}"));
    }
}

/// The objects that a watch has reported, by key.
#[derive(Clone, Default)]
pub(super) struct Seen {
    objects: Arc<Mutex<BTreeMap<Key, Value>>>,
    news: Arc<Notify>,
}

impl Seen {
    /// Watches all objects of a kind, until the runtime ends.
    pub(super) fn watch(client: &Client, kind: &str) -> Self {
        let seen = Self::default();
        let (own, client) = (seen.clone(), client.clone());
        let (prefix, plural, _) = home(kind);
        let path = format!("{prefix}/{plural}?watch=1&timeoutSeconds=36000");
        tokio::spawn(async move {
            let request = Request::get(path).body(Vec::new()).expect("a request");
            let events = client.request_events::<Value>(request).await;
            let mut events = Box::pin(events.expect("a watch"));
            while let Some(event) = events.next().await {
                own.take(event.expect("an event"));
            }
        });
        seen
    }

    fn take(&self, event: WatchEvent<Value>) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                objects.insert(key_of(&object), object);
            }
            WatchEvent::Deleted(object) => {
                objects.remove(&key_of(&object));
            }
            other => panic!("the watch ended: {other:?}"),
        }
        drop(objects);
        self.news.notify_waiters();
    }

    /// Wakes the waiting tasks.
    pub(super) fn nudge(&self) {
        self.news.notify_waiters();
    }

    pub(super) fn get(&self, key: &Key) -> Option<Value> {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.get(key).cloned()
    }

    pub(super) fn all(&self) -> Vec<Value> {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.values().cloned().collect()
    }

    /// Calls `look` after every event until it returns a value.
    pub(super) async fn until<T>(
        &self,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let waiting = async {
            loop {
                let news = self.news.notified();
                tokio::pin!(news);
                // From here on no event is missed, also during the check.
                news.as_mut().enable();
                if let Some(found) = look() {
                    return found;
                }
                news.await;
            }
        };
        timeout(limit, waiting).await.ok()
    }
}
