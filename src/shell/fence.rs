//! Keeps who does not lead a cluster from changing anything of it: what is sent passes here last.
//! It must not know who leads, nor what is sent.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use jiff::Timestamp;
use kube::client::{Body, DynBody};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task_local;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service};

use crate::host::clock;

/// What is said of a change that was not sent.
#[derive(Clone, Copy, Debug, Error)]
#[error("not sent: this host does not lead the cluster")]
pub(crate) struct Fenced;

/// Whether changes may be sent.
#[derive(Clone, Copy, Debug, Default)]
enum Gate {
    /// Always: by whoever does one thing that somebody asked for.
    #[default]
    Open,
    Closed,
    /// Until both clocks have passed these: one of them stands still while a host is suspended,
    /// the other may be set.
    Until(Instant, Timestamp),
}

/// The gate of one cluster, for all who send something to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fence(Arc<watch::Sender<Gate>>);

impl Fence {
    /// Nothing may be sent from here on.
    pub(crate) fn close(&self) {
        self.set(Gate::Closed);
    }

    /// Changes may be sent for so long since a moment.
    pub(crate) fn open(&self, since: (Instant, Timestamp), span: Duration) {
        self.set(Gate::Until(since.0 + span, since.1 + span));
    }

    fn set(&self, gate: Gate) {
        self.0.send_replace(gate);
    }

    /// Whether changes may be sent now.
    pub(crate) fn is_open(&self) -> bool {
        self.left().is_none_or(|left| !left.is_zero())
    }

    /// Whether changes might be sent until some time that has passed: nobody has closed it.
    pub(crate) fn has_run_out(&self) -> bool {
        matches!(*self.0.borrow(), Gate::Until(..)) && !self.is_open()
    }

    /// For how long changes may be sent; none means for ever.
    fn left(&self) -> Option<Duration> {
        match *self.0.borrow() {
            Gate::Open => None,
            Gate::Closed => Some(Duration::ZERO),
            Gate::Until(until, by) => {
                let left = until.saturating_duration_since(clock::monotonic());
                Some(left.min(clock::until(by)))
            }
        }
    }

    /// Does something that changes the cluster for as long as that may be done: what is not
    /// answered by then is given up, sent or not.
    pub(crate) async fn guard<T>(&self, doing: impl Future<Output = T>) -> Result<T, Fenced> {
        let mut gate = self.0.subscribe();
        let closed = async {
            loop {
                gate.borrow_and_update();
                match self.left() {
                    Some(Duration::ZERO) => return,
                    Some(left) => drop(timeout(left, gate.changed()).await),
                    None => drop(gate.changed().await),
                }
            }
        };
        tokio::select! {
            biased;
            () = closed => Err(Fenced),
            done = doing => Ok(done),
        }
    }
}

task_local! {
    /// The fences that what this task sends has to pass.
    static FENCES: Arc<[Fence]>;
}

/// Has all that is sent meanwhile to AWS pass these.
pub(crate) async fn within<T>(
    fences: impl Into<Arc<[Fence]>>,
    doing: impl Future<Output = T>,
) -> T {
    FENCES.scope(fences.into(), doing).await
}

/// Whether this task may send what it is about to.
pub(crate) fn pass() -> Result<(), Fenced> {
    let open = FENCES.try_with(|all| all.iter().all(Fence::is_open));
    match open {
        Ok(false) => Err(Fenced),
        // Who stands behind no fence changes nothing for a cluster.
        Ok(true) | Err(_) => Ok(()),
    }
}

impl<S> Layer<S> for Fence {
    type Service = Behind<S>;

    fn layer(&self, inner: S) -> Behind<S> {
        Behind {
            inner,
            fence: self.clone(),
        }
    }
}

/// A client behind a fence.
#[derive(Debug)]
pub(crate) struct Behind<S> {
    inner: S,
    fence: Fence,
}

type Answer = Response<Box<DynBody>>;

impl<S> Service<Request<Body>> for Behind<S>
where
    S: Service<Request<Body>, Response = Answer, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_free(request.method(), request.uri().path()) && !self.fence.is_open() {
            return std::future::ready(Err(BoxError::from(Fenced))).boxed();
        }
        self.inner.call(request).boxed()
    }
}

/// Whether anybody may send it: it changes nothing, or is how it becomes known who leads.
fn is_free(method: &Method, path: &str) -> bool {
    let groups = ["/apis/coordination.k8s.io/", "/apis/authorization.k8s.io/"];
    *method == Method::GET || groups.iter().any(|group| path.starts_with(group))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::Client;
    use kube::client::{Body, DynBody};
    use tower::{BoxError, Layer, service_fn};

    use super::{Fence, pass, within};
    use crate::host::clock;

    fn ago(seconds: i64) -> (tokio::time::Instant, jiff::Timestamp) {
        let span = Duration::from_secs(seconds.unsigned_abs());
        let now = clock::monotonic();
        (now.checked_sub(span).expect("a time"), clock::now() - span)
    }

    #[test]
    fn a_fence_is_open_for_a_span_by_either_clock() {
        let fence = Fence::default();
        assert!(fence.is_open(), "for whoever was asked to do one thing");
        fence.close();
        assert!(!fence.is_open());
        assert!(!fence.has_run_out(), "it was closed");
        let span = Duration::from_secs(10);
        fence.open(ago(5), span);
        assert!(fence.is_open());
        fence.open(ago(10), span);
        assert!(!fence.is_open());
        assert!(fence.has_run_out());
        fence.open((ago(10).0, ago(0).1), span);
        assert!(!fence.is_open(), "the time of day was set back");
        fence.open((ago(0).0, ago(10).1), span);
        assert!(!fence.is_open(), "the host was suspended");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_done_when_the_fence_closes_is_given_up() {
        let fence = Fence::default();
        assert!(fence.guard(async {}).await.is_ok());
        let now = (clock::monotonic(), clock::now());
        fence.open(now, Duration::from_secs(10));
        let nap = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        assert!(fence.guard(nap(4)).await.is_ok());
        assert!(fence.guard(nap(7)).await.is_err(), "it is over first");
        let now = (clock::monotonic(), clock::now());
        fence.open(now, Duration::from_secs(10));
        let renewed = async {
            nap(5).await;
            fence.open((clock::monotonic(), clock::now()), Duration::from_secs(10));
        };
        let (done, ()) = tokio::join!(fence.guard(nap(12)), renewed);
        assert!(done.is_ok(), "it was renewed");
        let closed = async {
            nap(1).await;
            fence.close();
        };
        let (done, ()) = tokio::join!(fence.guard(nap(2)), closed);
        assert!(done.is_err());
    }

    #[tokio::test]
    async fn what_a_task_sends_passes_all_its_fences() {
        let (open, closed) = (Fence::default(), Fence::default());
        closed.close();
        assert!(pass().is_ok(), "no cluster is concerned");
        within([open.clone()], async { assert!(pass().is_ok()) }).await;
        within([open, closed], async { assert!(pass().is_err()) }).await;
    }

    #[tokio::test]
    async fn a_closed_fence_lets_only_readers_and_the_lease_through() {
        let fence = Fence::default();
        let answer = |_: Request<Body>| async {
            let body = Body::from(b"{}".to_vec()).map_err(BoxError::from);
            Ok::<_, BoxError>(Response::new(Box::new(body) as Box<DynBody>))
        };
        let client = Client::new(fence.layer(service_fn(answer)), "default");
        let send = async |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Vec::new()).expect("a request");
            client.request_text(request).await.is_ok()
        };
        assert!(send("PATCH", "/api/v1/nodes/a").await);
        fence.close();
        assert!(send("GET", "/api/v1/nodes/a").await);
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/outrigger";
        assert!(send("PATCH", lease).await);
        for (method, path) in [
            ("PATCH", "/api/v1/nodes/a"),
            ("POST", "/api/v1/namespaces/a/pods/b/eviction"),
            ("DELETE", "/api/v1/nodes/a"),
            ("PUT", "/api/v1/nodes/a"),
        ] {
            assert!(!send(method, path).await, "{method} {path}");
        }
    }
}
