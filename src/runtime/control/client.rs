//! Client of the control socket of the local daemon.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Maximum size of a response in bytes. The response for a fleet of 100 clusters has a tenth of
/// this size.
const ANSWER_MAX: usize = 16 << 20;

/// Why a request failed.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    #[error("cannot open the socket {}: {}", .0.display(), open_help(.1))]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot communicate with the daemon")]
    Talk(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no response from the daemon within {} s", .0.as_secs())]
    Late(Duration),
}

/// The fix.
fn open_help(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "run as root, or as the user of the daemon",
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start the daemon with systemctl start outrigger, or set its socket with --socket"
        }
        _ => "set the socket of a daemon with --socket",
    }
}

/// Sends a request without a body. Returns the status and the body of the response.
pub(crate) async fn send_without_body(
    socket: &Path,
    method: Method,
    path: &'static str,
    patience: Duration,
) -> Result<(StatusCode, Bytes), ControlError> {
    send_request(socket, method, path, Bytes::new(), patience).await
}

/// Sends a request with a JSON body.
pub(crate) async fn send_request(
    socket: &Path,
    method: Method,
    path: &'static str,
    body: Bytes,
    patience: Duration,
) -> Result<(StatusCode, Bytes), ControlError> {
    let exchange = async {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.map_err(|error| ControlError::Open(socket.to_owned(), error))?;
        let response = exchange_request(stream, method, path, body).await;
        response.map_err(ControlError::Talk)
    };
    timeout(patience, exchange).await.map_err(|_| ControlError::Late(patience))?
}

async fn exchange_request(
    stream: UnixStream,
    method: Method,
    path: &'static str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when the sender is dropped. The sender returns the errors of the connection.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "outrigger")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await?;
    Ok((status, body.to_bytes()))
}
