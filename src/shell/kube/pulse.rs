//! Counts what arrives on each watch, so that a quiet watch can be told from a dead one: kube's
//! watcher swallows bookmarks. It must not know what arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use kube::client::{Body, DynBody};
use tower::{BoxError, Layer, Service};

use crate::model::object::Kind;

/// How often something arrived on the watch of each kind: its response's head, an event, or a
/// bookmark, which the API server sends about once a minute and just before a watch times out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulses(Arc<[AtomicU64; Kind::ALL.len()]>);

impl Pulses {
    /// How often something arrived so far.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.of(kind).load(Ordering::Relaxed)
    }

    fn beat(&self, kind: Kind) {
        self.of(kind).fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, kind: Kind) -> &AtomicU64 {
        // `Kind::ALL` is in the order of the declaration.
        &self.0[kind as usize]
    }
}

impl<S> Layer<S> for Pulses {
    type Service = Pulsed<S>;

    fn layer(&self, inner: S) -> Pulsed<S> {
        Pulsed {
            inner,
            pulses: self.clone(),
        }
    }
}

/// A client that counts.
#[derive(Debug)]
pub(crate) struct Pulsed<S> {
    inner: S,
    pulses: Pulses,
}

type Answer = Response<Box<DynBody>>;

impl<S> Service<Request<Body>> for Pulsed<S>
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
        let watched = watched(request.uri());
        let answer = self.inner.call(request);
        let Some(kind) = watched else {
            return answer.boxed();
        };
        let pulses = self.pulses.clone();
        async move {
            let answer = answer.await?;
            if answer.status().is_success() {
                pulses.beat(kind);
            }
            Ok(answer.map(|body| {
                let counted = body.map_frame(move |frame| {
                    pulses.beat(kind);
                    frame
                });
                Box::new(counted) as Box<DynBody>
            }))
        }
        .boxed()
    }
}

/// The kind that a request asks to watch.
fn watched(uri: &Uri) -> Option<Kind> {
    let watch = uri.query()?.split('&').any(|pair| pair == "watch=true");
    let plural = uri.path().rsplit('/').next()?;
    Kind::ALL
        .into_iter()
        .find(|kind| watch && kind.plural() == plural)
}

#[cfg(test)]
mod tests {
    use super::watched;
    use crate::model::object::Kind;

    #[test]
    fn watches_are_told_from_lists() {
        let check = |uri: &str, expect| assert_eq!(watched(&uri.parse().expect("uri")), expect);
        check(
            "/api/v1/pods?&watch=true&timeoutSeconds=30",
            Some(Kind::Pod),
        );
        check(
            "/apis/policy/v1/poddisruptionbudgets?watch=true",
            Some(Kind::Pdb),
        );
        check("/api/v1/pods?&limit=500", None);
        check("/api/v1/pods/watch=true", None);
        check("/api/v1/secrets?watch=true", None);
    }

    #[test]
    fn kinds_are_in_the_order_of_their_declaration() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }
}
