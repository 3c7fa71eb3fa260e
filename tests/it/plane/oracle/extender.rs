//! A scheduler extender on loopback: of the nodes that passed every filter, it keeps the planned
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::api::{Key, Seen, key_of};

/// The nodes that a pod may be bound to.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Only to this node.
    Only(String),
    /// To any of these.
    Any(BTreeSet<String>),
}

#[derive(Default)]
struct Books {
    orders: BTreeMap<Key, Order>,
    /// Nodes that passed the filters for a pod at the last request.
    passed: BTreeMap<Key, BTreeSet<String>>,
}

/// A running extender.
#[derive(Clone)]
pub(super) struct Extender {
    books: Arc<Mutex<Books>>,
    /// Wakes the waiting tasks at every request.
    news: Seen,
}

impl Extender {
    /// Serves on this listener for as long as the runtime lives.
    pub(super) fn serve(listener: std::net::TcpListener, news: Seen) -> Self {
        let extender = Self { books: Arc::default(), news };
        let app = Router::new().route("/filter", post(filter)).with_state(extender.clone());
        listener.set_nonblocking(true).expect("a listener");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        tokio::spawn(async move { axum::serve(listener, app).await });
        extender
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self, pod: &Key, order: Order) {
        let mut books = self.books();
        books.passed.remove(pod);
        books.orders.insert(pod.clone(), order);
    }

    /// Returns the nodes that passed the filters for a pod. Returns `None` before its first
    /// request.
    pub(super) fn passed(&self, pod: &Key) -> Option<BTreeSet<String>> {
        self.books().passed.get(pod).cloned()
    }

    pub(super) fn forget(&self) {
        *self.books() = Books::default();
    }
}

async fn filter(State(extender): State<Extender>, Json(asked): Json<Value>) -> Json<Value> {
    let named = |field: &str| {
        let own = asked.as_object().and_then(|all| {
            let mut all = all.iter();
            all.find(|(key, _)| key.eq_ignore_ascii_case(field))
        });
        own.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let key = key_of(&named("pod"));
    let nodes: BTreeSet<String> = serde_json::from_value(named("nodenames")).unwrap_or_default();
    let (mut kept, mut failed) = (Vec::new(), BTreeMap::new());
    {
        let mut books = extender.books();
        let order = books.orders.get(&key).cloned();
        for node in &nodes {
            let stays = match &order {
                Some(Order::Only(promised)) => promised == node,
                Some(Order::Any(allowed)) => allowed.contains(node),
                None => false,
            };
            if stays {
                kept.push(node.clone());
            } else {
                failed.insert(node.clone(), "promised elsewhere");
            }
        }
        books.passed.insert(key, nodes);
    }
    extender.news.nudge();
    Json(json!({"NodeNames": kept, "FailedNodes": failed}))
}
