//! Adds bearer tokens to requests. Refreshes the token before it expires, and when the API rejects
//! it.

use std::fmt::Display;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use jiff::Timestamp;
use kube::client::Body;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tower::{BoxError, Layer, Service};

use crate::host::clock;

/// A token is refreshed when its remaining lifetime is this long, or a quarter of its whole
/// lifetime if that is shorter.
const RENEW: Duration = Duration::from_mins(4);
/// Retry interval after a failure. If an API rejects every token, new tokens are not requested more
/// often than this.
const RETRY: Duration = Duration::from_secs(15);
/// Minimum interval between refreshes.
const REST: Duration = Duration::from_secs(5);

/// A token and its expiry, if known.
#[derive(Clone)]
pub(crate) struct BearerToken {
    pub(crate) text: String,
    pub(crate) until: Option<Timestamp>,
}

impl BearerToken {
    /// How long the token is used.
    fn refresh_delay(&self) -> Duration {
        let Some(until) = self.until else {
            return Duration::MAX;
        };
        let life = clock::time_until(until);
        (life - RENEW.min(life / 4)).max(REST)
    }

    fn authorization_header(&self) -> TokenHeader {
        let value = HeaderValue::from_str(&format!("Bearer {}", self.text));
        let mut value = value.map_err(|_| TokenError::InvalidCharacters)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Why there is no header for requests.
#[derive(Clone, Debug, Error)]
enum TokenError {
    #[error("the token contains invalid characters")]
    InvalidCharacters,
    #[error("{why}")]
    Refresh { why: String },
}

/// The header for requests, or the error.
type TokenHeader = Result<HeaderValue, TokenError>;

/// Adds a valid token to each request.
#[derive(Clone)]
pub(crate) struct TokenLayer {
    shown: watch::Receiver<TokenHeader>,
    /// Notified when the API rejects the token of a request.
    refused: Arc<Notify>,
}

impl TokenLayer {
    /// Creates a layer with this token, and refreshes the token while a client uses the layer. One
    /// refresh runs at a time. The source has its own timeout.
    pub(crate) fn start<E: Display + 'static>(
        server: &str,
        first: BearerToken,
        make: impl FnMut() -> BoxFuture<'static, Result<BearerToken, E>> + Send + 'static,
    ) -> Self {
        let (headers, shown) = watch::channel(first.authorization_header());
        let refused = Arc::new(Notify::new());
        let (server, again) = (server.to_owned(), refused.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = refresh_token(&server, first, make, &again, &headers) => {}
                () = headers.closed() => {}
            }
        });
        Self { shown, refused }
    }
}

#[cfg(test)]
impl TokenLayer {
    /// The header for the next request.
    pub(crate) fn current_header(&self) -> String {
        let header = self.shown.borrow();
        let value = header.as_ref().expect("there is a token");
        value.to_str().expect("a header").to_owned()
    }
}

/// Refreshes the token.
async fn refresh_token<E: Display>(
    server: &str,
    mut token: BearerToken,
    mut make: impl FnMut() -> BoxFuture<'static, Result<BearerToken, E>>,
    refused: &Notify,
    headers: &watch::Sender<TokenHeader>,
) {
    let mut wait = token.refresh_delay();
    loop {
        let refused = async {
            sleep(RETRY).await;
            refused.notified().await;
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = refused => {}
        }
        match make().await {
            Ok(renewed) => {
                wait = renewed.refresh_delay();
                drop(headers.send_replace(renewed.authorization_header()));
                token = renewed;
            }
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(server, why, "cannot refresh token for the API");
                wait = RETRY;
                if token.until.is_some_and(|until| until <= clock::now()) {
                    drop(headers.send_replace(Err(TokenError::Refresh { why })));
                }
            }
        }
    }
}

impl<S> Layer<S> for TokenLayer {
    type Service = Bearing<S>;

    fn layer(&self, inner: S) -> Bearing<S> {
        Bearing { inner, bearer: self.clone() }
    }
}

/// A client with tokens.
pub(crate) struct Bearing<S> {
    inner: S,
    bearer: TokenLayer,
}

impl<S, B> Service<Request<Body>> for Bearing<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let header = self.bearer.shown.borrow().clone();
        let value = match header {
            Ok(value) => value,
            Err(why) => return ready(Err(why.into())).boxed(),
        };
        request.headers_mut().insert(header::AUTHORIZATION, value);
        let answer = self.inner.call(request);
        let refused = self.bearer.refused.clone();
        async move {
            let answer = answer.await?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                refused.notify_one();
            }
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use kube::Client;
    use kube::client::{Body, ClientBuilder};
    use tokio::time::advance;
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// A fake API that accepts one token and rejects all others, and the number of tokens created.
    struct Api {
        client: Client,
        accepted: Arc<Mutex<&'static str>>,
        made: Arc<Mutex<usize>>,
    }

    impl Api {
        /// Starts with a token of this lifetime. The refreshed tokens are `then`, in order.
        fn start(life: Option<i64>, then: Vec<Result<&'static str, &'static str>>) -> Self {
            let until =
                move || life.map(|seconds| clock::now() + jiff::SignedDuration::from_secs(seconds));
            let token = move |text: &str| BearerToken { text: text.to_owned(), until: until() };
            let made = Arc::new(Mutex::new(0));
            let count = made.clone();
            let bearer = TokenLayer::start("https://api.test", token("t0"), move || {
                let mut made = count.lock().expect("whole");
                let result = then.get(*made).copied().unwrap_or(Err("no more"));
                *made += 1;
                ready(result.map(token).map_err(str::to_owned)).boxed()
            });
            let accepted = Arc::new(Mutex::new("t0"));
            let expected = accepted.clone();
            let api = service_fn(move |request: Request<Body>| {
                let expect = format!("Bearer {}", expected.lock().expect("whole"));
                let is_known = request.headers()[header::AUTHORIZATION] == *expect;
                let status = if is_known { 200 } else { 401 };
                let answer = Response::builder().status(status).body(Body::empty());
                ready(Ok::<_, Infallible>(answer.expect("a response")))
            });
            let api = api.map_err(BoxError::from);
            let client = ClientBuilder::new(api, "default").with_layer(&bearer).build();
            Self { client, accepted, made }
        }

        async fn status(&self) -> String {
            let request = Request::get("/version").body(Body::empty());
            match self.client.send(request.expect("a request")).await {
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(error) => crate::host::text::error_chain(&error),
            }
        }

        fn made(&self) -> usize {
            *self.made.lock().expect("whole")
        }
    }

    /// Advances the clock and runs the tasks that wait for it.
    async fn advance_by(seconds: u64) {
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn token_is_refreshed_before_it_expires() {
        let api = Api::start(Some(900), vec![Ok("t1")]);
        assert_eq!(api.status().await, "200");
        advance_by(670).await;
        assert_eq!((api.made(), &*api.status().await), (0, "200"));
        advance_by(10).await;
        assert_eq!((api.made(), &*api.status().await), (1, "401"));
        *api.accepted.lock().expect("whole") = "t1";
        assert_eq!(api.status().await, "200");
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_token_is_refreshed_but_not_on_every_call() {
        let api = Api::start(None, vec![Ok("t1"), Ok("t2")]);
        *api.accepted.lock().expect("whole") = "t2";
        for expect in [0, 1, 2] {
            for _ in 0..5 {
                api.status().await;
            }
            assert_eq!(api.made(), expect);
            advance_by(16).await;
        }
        assert_eq!(api.status().await, "200");
        advance_by(10_000).await;
        assert_eq!(api.made(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn token_is_used_until_expiry_when_refresh_fails() {
        let failing = vec![Err("not now"), Err("not now"), Ok("t1")];
        let api = Api::start(Some(40), failing);
        advance_by(31).await;
        assert_eq!((api.made(), &*api.status().await), (1, "200"));
        advance_by(15).await;
        // The host's wall clock has not advanced, so the token has not expired.
        assert_eq!((api.made(), &*api.status().await), (2, "200"));
        let api = Api::start(Some(-1), vec![Err("not now"), Ok("t0")]);
        advance_by(6).await;
        let shown = api.status().await;
        assert!(shown.contains("not now"), "{shown}");
        advance_by(16).await;
        assert_eq!((api.made(), &*api.status().await), (2, "200"));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_client_requests_no_tokens() {
        let api = Api::start(Some(60), vec![Ok("t1")]);
        let made = api.made.clone();
        drop(api);
        advance_by(100).await;
        assert_eq!(*made.lock().expect("whole"), 0);
    }
}
