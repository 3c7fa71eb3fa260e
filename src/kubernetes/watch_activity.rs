//! Counts data on each watch, to distinguish a quiet watch from a broken watch. kube's watcher
//! hides the bookmarks that would show this. Delays the starts of watches that deliver nothing,
//! because kube's watcher restarts immediately.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use kube::client::{Body, DynBody};
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Layer, Service};

use crate::host::clock;
use crate::model::watched_object::ObjectKind;

/// Minimum and maximum interval between starts of watches of a kind. The interval doubles after
/// each watch that delivered nothing.
const APART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Number of events and bookmarks on the watch of each kind. The API server sends a bookmark about
/// once a minute and just before a watch times out. A response header is not counted, because a
/// proxy may send it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchActivity(Arc<[KindActivity; ObjectKind::ALL.len()]>);

#[derive(Debug, Default)]
struct KindActivity {
    count: AtomicU64,
    starts: Mutex<Starts>,
}

/// Start times of watches of a kind.
#[derive(Debug, Default)]
struct Starts {
    /// The last start, and the count at that time.
    last: Option<(Instant, u64)>,
    apart: Duration,
}

impl Starts {
    /// Returns and records the start of the next watch.
    fn next_start(&mut self, now: Instant, count: u64) -> Instant {
        let start = match self.last {
            None => now,
            Some((last, before)) => {
                self.apart = if count == before {
                    (self.apart * 2).clamp(APART.0, APART.1)
                } else {
                    APART.0
                };
                now.max(last + self.apart)
            }
        };
        self.last = Some((start, count));
        start
    }
}

impl WatchActivity {
    /// The current count.
    pub(crate) fn activity_count(&self, kind: ObjectKind) -> u64 {
        self.kind_activity(kind).count.load(Ordering::Relaxed)
    }

    fn record_activity(&self, kind: ObjectKind) {
        self.kind_activity(kind).count.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until a watch may start.
    async fn wait_for_start(&self, kind: ObjectKind) {
        let starts = &self.kind_activity(kind).starts;
        let start = starts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next_start(clock::monotonic_now(), self.activity_count(kind));
        sleep_until(start).await;
    }

    fn kind_activity(&self, kind: ObjectKind) -> &KindActivity {
        // `Kind::ALL` is in the order of the declaration.
        &self.0[kind as usize]
    }
}

impl<S> Layer<S> for WatchActivity {
    type Service = Pulsed<S>;

    fn layer(&self, inner: S) -> Pulsed<S> {
        Pulsed { inner, activity: self.clone() }
    }
}

/// A client that counts data on watches.
#[derive(Debug)]
pub(crate) struct Pulsed<S> {
    inner: S,
    activity: WatchActivity,
}

type WatchResponse = Response<Box<DynBody>>;

impl<S> Service<Request<Body>> for Pulsed<S>
where
    S: Service<Request<Body>, Response = WatchResponse, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = WatchResponse;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<WatchResponse, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watched = watched_kind(request.uri());
        let answer = self.inner.call(request);
        let Some(kind) = watched else {
            return answer.boxed();
        };
        let activity = self.activity.clone();
        async move {
            activity.wait_for_start(kind).await;
            // The request is not sent before this future is polled.
            let answer = answer.await?;
            if !answer.status().is_success() {
                return Ok(answer);
            }
            Ok(answer.map(|body| {
                let counted = body.map_frame(move |frame| {
                    if frame.data_ref().is_some_and(|data| !data.is_empty()) {
                        activity.record_activity(kind);
                    }
                    frame
                });
                Box::new(counted) as Box<DynBody>
            }))
        }
        .boxed()
    }
}

/// The kind that a request asks to watch.
fn watched_kind(uri: &Uri) -> Option<ObjectKind> {
    let watch = uri.query()?.split('&').any(|pair| pair == "watch=true");
    let plural = uri.path().rsplit('/').next()?;
    ObjectKind::ALL.into_iter().find(|kind| watch && kind.as_str() == plural)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Starts, watched_kind};
    use crate::host::clock;
    use crate::model::watched_object::ObjectKind;

    #[test]
    fn idle_watches_restart_with_increasing_delay() {
        let mut starts = Starts::default();
        let begin = clock::monotonic_now();
        let mut start = |now: u64, count| {
            let now = begin + Duration::from_secs(now);
            starts.next_start(now, count).duration_since(begin).as_secs()
        };
        let empty: Vec<u64> = [0, 0, 1, 3, 7, 11].map(|now| start(now, 0)).to_vec();
        assert_eq!(empty, [0, 1, 3, 7, 11, 15]);
        assert_eq!(start(15, 5), 16, "something arrived");
        assert_eq!(start(16, 5), 18, "and then nothing");
        assert_eq!(start(18, 5), 22);
        assert_eq!(start(200, 5), 200, "long enough after the last one");
    }

    #[test]
    fn watch_requests_are_distinguished_from_lists() {
        let check =
            |uri: &str, expect| assert_eq!(watched_kind(&uri.parse().expect("uri")), expect);
        check("/api/v1/pods?&watch=true&timeoutSeconds=30", Some(ObjectKind::Pod));
        check("/apis/policy/v1/poddisruptionbudgets?watch=true", Some(ObjectKind::Pdb));
        check("/api/v1/pods?&limit=500", None);
        check("/api/v1/pods/watch=true", None);
        check("/api/v1/secrets?watch=true", None);
    }

    #[test]
    fn object_kinds_are_listed_in_declaration_order() {
        for (place, kind) in ObjectKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }
}
