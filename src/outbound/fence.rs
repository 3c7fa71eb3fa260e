//! Prevents a host from changing a cluster of which it is not the leader. This check is the last
//! layer of each request. Each change carries its term in the header `User-Agent`.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Response};
use kube::Client;
use kube::client::{Body, DynBody};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task_local;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service, service_fn};

use crate::host::clock::Moment;

/// Why a change was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotLeader {
    /// Another host is the leader, or this host is the leader in a newer term than the change.
    #[error(
        "not sent, or cancelled before the response: this host is not the leader, or leads in \
         another term than the one that decided it"
    )]
    Term,
    /// The decision that requested the change is too old.
    #[error("not sent: the decision is too old and is repeated")]
    Late,
    /// The change was requested by a task without a `Fence`.
    #[error("not sent: requested outside of a leadership term")]
    Unasked,
}

/// Program name in the `User-Agent` header of requests to API servers.
const PRODUCT: &str = concat!("outrigger/", env!("CARGO_PKG_VERSION"));

/// Maximum length of the terms in one `User-Agent`. CloudTrail stores 1,000 characters of the
/// header, and one AWS request may be for a hundred clusters.
const MARKS_MAX: usize = 500;
/// Replaces the terms that do not fit.
const MORE: &str = "term/more";

/// Whether and until when changes may be sent.
#[derive(Clone, Copy, Debug, Default)]
enum Gate {
    /// Changes may always be sent, because a user requested them with a CLI command.
    #[default]
    Open,
    Closed,
    /// Changes may be sent until the wall clock or the monotonic clock passes this moment.
    Until(Moment),
}

/// Whether changes of a cluster may be sent, and the current or last term of this host.
#[derive(Clone, Debug, Default)]
struct FenceState {
    term: u64,
    gate: Gate,
    /// The term in `User-Agent`. Empty before the first term.
    mark: Arc<str>,
}

/// The fence of one cluster, used by all clients of the cluster. In the daemon, the fence is open
/// while this host holds the Lease of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fence {
    state: Arc<watch::Sender<FenceState>>,
    /// The term that changes must belong to. `None` allows changes of any term.
    term: Option<u64>,
    /// The time until which changes may be sent. Responses may arrive later.
    not_after: Option<Moment>,
}

impl Fence {
    /// Begins a term, and returns its number. Changes of earlier terms are never sent again. No
    /// change is sent before the fence is opened. `mark` identifies the term in `User-Agent`.
    pub(crate) fn begin_term(&self, mark: &str) -> u64 {
        let mut term = 0;
        self.state.send_modify(|state| {
            state.term += 1;
            state.gate = Gate::Closed;
            state.mark = mark.into();
            term = state.term;
        });
        term
    }

    /// The term in `User-Agent`. `None` before the first term and after the term has ended.
    fn term_mark(&self) -> Option<Arc<str>> {
        let state = self.state.borrow();
        let is_past = self.term.is_some_and(|term| term != state.term);
        (!state.mark.is_empty() && !is_past).then(|| state.mark.clone())
    }

    /// Closes the fence, so that no further changes are sent.
    pub(crate) fn close(&self) {
        self.set_gate(Gate::Closed);
    }

    /// Opens the fence for changes of this term, until `span` has passed since the moment `since`.
    pub(crate) fn open(&self, since: Moment, span: Duration) {
        self.set_gate(Gate::Until(since.plus(span)));
    }

    fn set_gate(&self, gate: Gate) {
        self.state.send_modify(|state| state.gate = gate);
    }

    /// This fence, limited to one term.
    pub(crate) fn of_term(&self, term: u64) -> Self {
        Self { term: Some(term), ..self.clone() }
    }

    /// This fence, limited to the current term.
    pub(crate) fn of_this_term(&self) -> Self {
        self.of_term(self.state.borrow().term)
    }

    /// The required term.
    #[cfg(test)]
    pub(crate) fn required_term(&self) -> Option<u64> {
        self.term
    }

    /// Returns whether both are the fence of one cluster, limited to the same term.
    pub(crate) fn is_of_same_term(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state) && self.term == other.term
    }

    /// This fence, limited to requests before a moment.
    pub(crate) fn with_deadline(&self, not_after: Moment) -> Self {
        Self { not_after: Some(not_after), ..self.clone() }
    }

    /// Returns whether changes may be sent, or may continue, now.
    pub(crate) fn is_open(&self) -> bool {
        self.time_left().is_none_or(|left| !left.is_zero())
    }

    /// Checks that a change may be sent now. Changes past their deadline may not.
    fn check_open(&self) -> Result<(), NotLeader> {
        let late = self.not_after.is_some_and(|deadline| deadline.time_left().is_zero());
        match self.is_open() {
            false => Err(NotLeader::Term),
            true if late => Err(NotLeader::Late),
            true => Ok(()),
        }
    }

    /// Returns whether the time of the fence has run out although the fence was not closed: this
    /// host did not renew the Lease in time.
    pub(crate) fn has_run_out(&self) -> bool {
        matches!(self.state.borrow().gate, Gate::Until(..)) && !self.is_open()
    }

    /// Remaining time for changes. `None` means unlimited.
    fn time_left(&self) -> Option<Duration> {
        let state = self.state.borrow();
        let is_past = self.term.is_some_and(|term| term != state.term);
        match state.gate {
            _ if is_past => Some(Duration::ZERO),
            Gate::Open => None,
            Gate::Closed => Some(Duration::ZERO),
            Gate::Until(until) => Some(until.time_left()),
        }
    }

    /// Runs a change of the cluster while the fence is open. A change that has no response when the
    /// fence closes is cancelled, whether or not it was sent.
    pub(crate) async fn run_guarded<T>(
        &self,
        doing: impl Future<Output = T>,
    ) -> Result<T, NotLeader> {
        let mut state = self.state.subscribe();
        let closed = async {
            loop {
                state.borrow_and_update();
                match self.time_left() {
                    Some(Duration::ZERO) => return,
                    Some(left) => drop(timeout(left, state.changed()).await),
                    None => drop(state.changed().await),
                }
            }
        };
        tokio::select! {
            biased;
            () = closed => Err(NotLeader::Term),
            done = run_while_open([self.clone()].into(), doing) => done,
        }
    }
}

/// Runs a future while all these fences are open. Checks them before each poll, because timers have
/// not fired yet after a suspension of the host.
async fn run_while_open<T>(
    fences: Arc<[Fence]>,
    doing: impl Future<Output = T>,
) -> Result<T, NotLeader> {
    let mut doing = pin!(doing);
    poll_fn(|context| match fences.iter().all(Fence::is_open) {
        true => doing.as_mut().poll(context).map(Ok),
        false => Poll::Ready(Err(NotLeader::Term)),
    })
    .await
}

/// The fences of a task that sends requests to AWS.
#[derive(Clone, Debug)]
enum FenceScope {
    /// The requests of the task need all these fences to be open.
    Behind(Arc<[Fence]>),
    /// No fences: the requests of the task change nothing in a cluster, or a user requested them.
    Free,
}

task_local! {
    static SCOPE: FenceScope;
}

/// Runs a future whose AWS requests are sent only while all these fences are open. Requests without
/// a response when a fence closes are cancelled.
pub(crate) async fn run_fenced<T>(
    fences: impl Into<Arc<[Fence]>>,
    doing: impl Future<Output = T>,
) -> Result<T, NotLeader> {
    let fences = fences.into();
    let doing = SCOPE.scope(FenceScope::Behind(fences.clone()), doing);
    run_while_open(fences, doing).await
}

/// Runs a future whose AWS requests need no leadership: a dry run, or an action that a user
/// requested.
pub(crate) async fn run_unfenced<T>(doing: impl Future<Output = T>) -> T {
    SCOPE.scope(FenceScope::Free, doing).await
}

/// The fences of this task, which it passes on to tasks that make its calls. `None` means that no
/// changes are allowed.
pub(crate) fn task_fences() -> Option<Arc<[Fence]>> {
    match SCOPE.try_with(Clone::clone) {
        Ok(FenceScope::Behind(fences)) => Some(fences),
        Ok(FenceScope::Free) => Some([].into()),
        Err(_) => None,
    }
}

/// Checks that this task may send a request, given whether the request changes anything.
pub(crate) fn check_task(changes: bool) -> Result<(), NotLeader> {
    match task_fences() {
        Some(fences) if changes => fences.iter().try_for_each(Fence::check_open),
        // Reads have no deadline, because they may have to verify the result of a delayed change.
        Some(fences) => match fences.iter().all(Fence::is_open) {
            true => Ok(()),
            false => Err(NotLeader::Term),
        },
        None if changes => Err(NotLeader::Unasked),
        None => Ok(()),
    }
}

/// The terms in `User-Agent` of AWS changes of this task: the terms of its fences, separated by
/// spaces.
pub(crate) fn task_marks() -> String {
    let fences = task_fences().unwrap_or_default();
    let marks: BTreeSet<Arc<str>> = fences.iter().filter_map(Fence::term_mark).collect();
    let (mut fields, mut left) = (Vec::<&str>::new(), MARKS_MAX);
    for mark in &marks {
        let Some(rest) = left.checked_sub(mark.len() + 1) else {
            fields.push(MORE);
            break;
        };
        left = rest;
        fields.push(mark);
    }
    fields.join(" ")
}

/// Returns whether all of these fences are open now.
pub(crate) fn are_open(fences: &[Fence]) -> bool {
    fences.iter().all(|fence| fence.check_open().is_ok())
}

/// Returns a client that sends changes only while this fence is open. It replaces the fence of the
/// inner client.
pub(crate) fn fenced_client(client: Client, fence: &Fence) -> Client {
    let (fence, namespace) = (fence.clone(), client.default_namespace().to_owned());
    let service = service_fn(move |mut request: Request<Body>| {
        // Attach the fence to the request, because a client may queue the request.
        request.extensions_mut().insert(fence.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

impl<S> Layer<S> for Fence {
    type Service = FencedClient<S>;

    fn layer(&self, inner: S) -> FencedClient<S> {
        FencedClient { inner, fence: self.clone() }
    }
}

/// A client with a fence.
#[derive(Debug)]
pub(crate) struct FencedClient<S> {
    inner: S,
    fence: Fence,
}

type FencedResponse = Response<Box<DynBody>>;

impl<S> Service<Request<Body>> for FencedClient<S>
where
    S: Service<Request<Body>, Response = FencedResponse, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = FencedResponse;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<FencedResponse, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let product = HeaderValue::from_static(PRODUCT);
        request.headers_mut().insert(USER_AGENT, product);
        if needs_no_leadership(request.method(), request.uri().path()) {
            return self.inner.call(request).boxed();
        }
        let carried = request.extensions().get::<Fence>();
        let fence = carried.unwrap_or(&self.fence).clone();
        if let Err(fenced) = fence.check_open() {
            return std::future::ready(Err(BoxError::from(fenced))).boxed();
        }
        let agent = fence.term_mark().map(|mark| format!("{PRODUCT} {mark}"));
        if let Some(agent) = agent.and_then(|agent| HeaderValue::try_from(agent).ok()) {
            request.headers_mut().insert(USER_AGENT, agent);
        }
        // Connecting may take seconds, so check the fence again before each step.
        let answer = run_while_open([fence].into(), self.inner.call(request));
        async move { answer.await.map_err(BoxError::from)? }.boxed()
    }
}

/// Returns whether the request needs no leadership: it changes nothing, or it is part of the leader
/// election.
fn needs_no_leadership(method: &Method, path: &str) -> bool {
    let groups = ["/apis/coordination.k8s.io/", "/apis/authorization.k8s.io/"];
    *method == Method::GET || groups.iter().any(|group| path.starts_with(group))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::{Arc, Mutex};
    use std::task::Poll;
    use std::time::Duration;

    use futures::FutureExt;
    use http::header::USER_AGENT;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::Client;
    use kube::client::{Body, DynBody};
    use tower::{BoxError, Layer, service_fn};

    use super::{
        Fence, FenceScope, NotLeader, PRODUCT, check_task, fenced_client, run_fenced, run_unfenced,
        task_marks,
    };
    use crate::host::clock::Moment;

    const SPAN: Duration = Duration::from_secs(10);

    fn ago(seconds: u64) -> Moment {
        let (now, span) = (Moment::now(), Duration::from_secs(seconds));
        Moment {
            steady: now.steady.checked_sub(span).expect("a time"),
            wall: now.wall - span,
            boot: now.boot.checked_sub(span).expect("the host is up for longer"),
        }
    }

    #[test]
    fn fence_expires_by_each_of_three_clocks() {
        let fence = Fence::default();
        assert!(fence.is_open(), "a new fence is open, for single requests");
        fence.close();
        assert!(!fence.is_open());
        assert!(!fence.has_run_out(), "it was closed");
        fence.open(ago(5), SPAN);
        assert!(fence.is_open());
        fence.open(ago(10), SPAN);
        assert!(!fence.is_open());
        assert!(fence.has_run_out());
        let (now, then) = (ago(0), ago(10));
        let steady = then.steady;
        fence.open(Moment { steady, ..now }, SPAN);
        assert!(!fence.is_open(), "the time of day was set back, and the host suspended");
        let wall = then.wall;
        fence.open(Moment { wall, ..now }, SPAN);
        assert!(!fence.is_open(), "the time of day was set forward, or the host suspended");
        let boot = then.boot;
        fence.open(Moment { boot, ..now }, SPAN);
        assert!(!fence.is_open(), "the host was suspended, and the time of day set back");
    }

    #[test]
    fn fence_of_an_earlier_term_stays_closed() {
        let fence = Fence::default();
        let first = fence.of_term(fence.begin_term("term/one.1.1"));
        assert_eq!(first.check_open(), Err(NotLeader::Term), "the fence is not open yet");
        fence.open(ago(0), SPAN);
        assert!(first.is_open() && fence.is_open());
        fence.close();
        assert!(!first.is_open());
        let second = fence.of_term(fence.begin_term("term/one.1.1"));
        fence.open(ago(0), SPAN);
        assert!(second.is_open() && fence.of_this_term().is_open());
        assert_eq!(first.check_open(), Err(NotLeader::Term));
        assert_eq!(first.with_deadline(ago(0).plus(SPAN)).check_open(), Err(NotLeader::Term));
    }

    #[test]
    fn late_change_is_not_sent_but_may_complete() {
        let late = Fence::default().with_deadline(ago(1));
        assert_eq!(late.check_open(), Err(NotLeader::Late));
        assert!(late.is_open(), "a running change may continue");
        assert_eq!(late.with_deadline(ago(0).plus(SPAN)).check_open(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn running_change_is_cancelled_when_the_fence_closes() {
        let fence = Fence::default();
        assert!(fence.run_guarded(async {}).await.is_ok());
        fence.open(Moment::now(), SPAN);
        let nap = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        assert!(fence.run_guarded(nap(4)).await.is_ok());
        assert!(fence.run_guarded(nap(7)).await.is_err(), "the fence expires first");
        fence.open(Moment::now(), SPAN);
        let renewed = async {
            nap(5).await;
            fence.open(Moment::now(), SPAN);
        };
        let (done, ()) = tokio::join!(fence.run_guarded(nap(12)), renewed);
        assert!(done.is_ok(), "the fence was opened again");
        let closed = async {
            nap(1).await;
            fence.close();
        };
        let (done, ()) = tokio::join!(fence.run_guarded(nap(2)), closed);
        assert!(done.is_err());
        // Closed and opened again before the guard observes that it was closed.
        let term = fence.of_term(fence.begin_term("term/one.1.1"));
        fence.open(Moment::now(), SPAN);
        let won_again = async {
            nap(1).await;
            fence.begin_term("term/one.1.1");
            fence.open(Moment::now(), SPAN);
        };
        let (done, ()) = tokio::join!(term.run_guarded(nap(2)), won_again);
        assert_eq!(done, Err(NotLeader::Term));
    }

    #[tokio::test]
    async fn change_stops_after_a_host_suspension() {
        let fence = Fence::default();
        let mut steps = 0;
        fence.open(Moment::now(), SPAN);
        // The call connects, the host is suspended for a minute, and the call would write next.
        let sending = std::future::poll_fn(|context| {
            steps += 1;
            assert!(steps < 10, "the change continues");
            fence.open(Moment { boot: ago(60).boot, ..Moment::now() }, SPAN);
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert_eq!(run_fenced([fence.clone()], sending).await, Err(NotLeader::Term));
        assert_eq!(steps, 1);
    }

    #[tokio::test]
    async fn task_requests_must_pass_all_fences() {
        let (open, closed) = (Fence::default(), Fence::default());
        closed.close();
        assert_eq!(check_task(false), Ok(()), "a read");
        assert_eq!(check_task(true), Err(NotLeader::Unasked));
        run_unfenced(async { assert_eq!(check_task(true), Ok(())) }).await;
        let passes = |fences: &[Fence]| run_fenced(fences.to_vec(), ready(())).now_or_never();
        assert_eq!(passes(std::slice::from_ref(&open)), Some(Ok(())));
        assert_eq!(passes(&[open.clone(), closed]), Some(Err(NotLeader::Term)));
        let late = open.with_deadline(ago(1));
        let sent = run_fenced([open, late], async { check_task(true) }).await;
        assert_eq!(sent, Ok(Err(NotLeader::Late)));
        let spawned = run_fenced([Fence::default()], async {
            tokio::spawn(async { check_task(true) }).await
        });
        let spawned = spawned.await.expect("open").expect("no panic");
        assert_eq!(spawned, Err(NotLeader::Unasked), "a spawned task has no fences");
    }

    #[tokio::test]
    async fn requests_name_their_leadership_term() {
        let fence = Fence::default();
        let (plain, reached) = client(&fence, true);
        assert!(send(&plain, "PATCH", "/api/v1/nodes/a").await, "without a term");
        let engine = fenced_client(plain, &fence.of_term(fence.begin_term("term/one.7.3")));
        fence.open(Moment::now(), SPAN);
        assert!(send(&engine, "PATCH", "/api/v1/nodes/a").await);
        assert!(send(&engine, "GET", "/api/v1/nodes/a").await);
        let expected = [PRODUCT, &format!("{PRODUCT} term/one.7.3"), PRODUCT];
        assert_eq!(*reached.lock().expect("no panic"), expected);
        let other = Fence::default();
        other.begin_term("term/other.0.1");
        let early = fence.of_this_term();
        fence.begin_term("term/one.7.4");
        let named = |fences: &[Fence]| {
            super::SCOPE.sync_scope(FenceScope::Behind(fences.into()), task_marks)
        };
        let both = [fence.clone(), early, other, fence.of_this_term()];
        assert_eq!(named(&both), "term/one.7.4 term/other.0.1");
        assert_eq!(run_unfenced(async { task_marks() }).await, "");
        let many: Vec<Fence> = (0..100).map(|_| Fence::default()).collect();
        for (number, fence) in many.iter().enumerate() {
            fence.begin_term(&format!("term/production-{number}.1.1"));
        }
        let named = named(&many);
        assert!(named.len() < 600 && named.ends_with(" term/more"), "{named}");
    }

    /// A client behind a fence, and the `User-Agent` of all its requests.
    fn client(fence: &Fence, answers: bool) -> (Client, Arc<Mutex<Vec<String>>>) {
        let reached = Arc::<Mutex<Vec<String>>>::default();
        let known = reached.clone();
        let answer = move |request: Request<Body>| {
            let agent = request.headers()[USER_AGENT].to_str().expect("text");
            known.lock().expect("no panic").push(agent.to_owned());
            async move {
                if !answers {
                    return pending().await;
                }
                let body = Body::from(b"{}".to_vec()).map_err(BoxError::from);
                Ok::<_, BoxError>(Response::new(Box::new(body) as Box<DynBody>))
            }
        };
        let client = Client::new(fence.layer(service_fn(answer)), "default");
        (client, reached)
    }

    async fn send(client: &Client, method: &str, path: &str) -> bool {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Vec::new()).expect("a request");
        client.request_text(request).await.is_ok()
    }

    #[tokio::test]
    async fn closed_fence_passes_only_reads_and_lease_requests() {
        let fence = Fence::default();
        let (plain, _) = client(&fence, true);
        let engine = fenced_client(plain.clone(), &fence.of_term(fence.begin_term("term/one.1.1")));
        fence.open(Moment::now(), SPAN);
        assert!(send(&plain, "PATCH", "/api/v1/nodes/a").await);
        assert!(send(&engine, "PATCH", "/api/v1/nodes/a").await);
        fence.close();
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/outrigger";
        for client in [&plain, &engine] {
            assert!(send(client, "GET", "/api/v1/nodes/a").await);
            assert!(send(client, "PATCH", lease).await);
            for (method, path) in [
                ("PATCH", "/api/v1/nodes/a"),
                ("POST", "/api/v1/namespaces/a/pods/b/eviction"),
                ("DELETE", "/api/v1/nodes/a"),
                ("PUT", "/api/v1/nodes/a"),
            ] {
                assert!(!send(client, method, path).await, "{method} {path}");
            }
        }
        fence.begin_term("term/one.1.1");
        fence.open(Moment::now(), SPAN);
        assert!(send(&plain, "DELETE", "/api/v1/nodes/a").await);
        assert!(!send(&engine, "DELETE", "/api/v1/nodes/a").await, "its term is over");
    }

    #[tokio::test]
    async fn request_is_cancelled_when_its_term_ends() {
        let fence = Fence::default();
        let (plain, reached) = client(&fence, false);
        let term = fence.of_term(fence.begin_term("term/one.1.1"));
        fence.open(Moment::now(), SPAN);
        let engine = fenced_client(plain, &term);
        let sending = tokio::spawn(async move {
            let sending = send(&engine, "DELETE", "/api/v1/nodes/a");
            term.run_guarded(sending).await
        });
        while reached.lock().expect("no panic").is_empty() {
            tokio::task::yield_now().await;
        }
        fence.begin_term("term/one.1.1");
        fence.open(Moment::now(), SPAN);
        let sent = sending.await.expect("no panic");
        assert_eq!(sent, Err(NotLeader::Term));
    }
}
