//! Measures the clock skew between this host and a server, by the `Date` header of responses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::DATE;
use http::{Request, Response};
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use tower::{Layer, Service};

use crate::host::clock;
use crate::model::clock_skew::ClockSkew;

/// Number of consecutive responses that must show the skew. A single response may come from a
/// cache, or the clock may just have been set.
const ANSWERS: usize = 3;

/// The time in a `Date` header, in whole seconds. Source: RFC 9110 §6.6.1.
pub(crate) fn http_date(text: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(text).ok()
}

/// The skews of the last responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct SkewGauge(Arc<Mutex<VecDeque<SignedDuration>>>);

impl SkewGauge {
    /// Records a response. A response without a date is ignored.
    pub(crate) fn record_response(&self, date: Option<&str>, sent: Timestamp) {
        let Some(server_time) = date.and_then(http_date) else {
            return;
        };
        let ahead = ClockSkew::estimate(server_time, sent, clock::now());
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.truncate(ANSWERS - 1);
        last.push_front(ahead);
    }

    /// Returns by how much the clock of this host is ahead: the smallest of the last skews. `None`
    /// after too few responses.
    pub(crate) fn clock_ahead(&self) -> Option<SignedDuration> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let smallest = last.iter().min_by_key(|skew| skew.abs()).copied();
        smallest.filter(|_| last.len() >= ANSWERS)
    }
}

impl<S> Layer<S> for SkewGauge {
    type Service = Gauged<S>;

    fn layer(&self, inner: S) -> Gauged<S> {
        Gauged { inner, gauge: self.clone() }
    }
}

/// A client that reads the date of responses.
#[derive(Clone, Debug)]
pub(crate) struct Gauged<S> {
    inner: S,
    gauge: SkewGauge,
}

impl<S, A, B> Service<Request<A>> for Gauged<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (answer, gauge) = (self.inner.call(request), self.gauge.clone());
        async move {
            // The request is not sent before this future is polled.
            let sent = clock::now();
            let answer = answer.await?;
            let date = answer.headers().get(DATE);
            gauge.record_response(date.and_then(|date| date.to_str().ok()), sent);
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::SkewGauge;
    use crate::host::clock;

    /// The skew estimated from responses whose clocks are this many seconds behind.
    fn ahead(seconds: &[i64]) -> Option<i64> {
        let gauge = SkewGauge::default();
        for behind in seconds {
            let server_time = clock::now() - SignedDuration::from_secs(*behind);
            let date = server_time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            gauge.record_response(Some(&date), clock::now());
        }
        gauge.record_response(Some("yesterday"), clock::now());
        gauge.record_response(None, clock::now());
        gauge.clock_ahead().map(|skew| skew.as_secs().abs() / 10)
    }

    #[test]
    fn skew_needs_three_consecutive_agreeing_responses() {
        for (answers, tens) in [
            (&[][..], None),
            (&[3600, 3600], None),
            (&[3600, 3600, 3600], Some(359)),
            (&[0, 3605, 3605, 3605], Some(360)),
            (&[3600, 0, 3600], Some(0)),
            (&[-125, -125, -125], Some(12)),
            (&[-125, -125, -125, 0], Some(0)),
        ] {
            assert_eq!(ahead(answers), tens, "{answers:?}");
        }
    }
}
