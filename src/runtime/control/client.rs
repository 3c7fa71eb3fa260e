//! Asks the daemon of this host something over its socket.
//! It must not know what the answer means.

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

/// The longest answer that is read, in bytes: a fleet of 100 clusters has a tenth of it.
const ANSWER_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum ControlError {
    #[error("open the socket {}: {}", .0.display(), help(.1))]
    Open(PathBuf, #[source] io::Error),
    #[error("speak with the daemon")]
    Talk(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("wait for the daemon: no answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// What would put it right.
fn help(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "be root, or the user that the daemon runs as",
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "start the daemon with systemctl start outrigger, or name its socket with --socket"
        }
        _ => "name the socket of a daemon with --socket",
    }
}

/// Sends a request without a body. The status of the answer, and all of it.
pub(crate) async fn ask(
    socket: &Path,
    method: Method,
    path: &'static str,
    patience: Duration,
) -> Result<(StatusCode, Bytes), ControlError> {
    send(socket, (method, path), Bytes::new(), patience).await
}

/// Sends a request with a body in JSON.
pub(crate) async fn send(
    socket: &Path,
    (method, path): (Method, &'static str),
    body: Bytes,
    patience: Duration,
) -> Result<(StatusCode, Bytes), ControlError> {
    let asking = async {
        let stream = UnixStream::connect(socket).await;
        let stream = stream.map_err(|error| ControlError::Open(socket.to_owned(), error))?;
        let talked = talk(stream, method, path, body).await;
        talked.map_err(ControlError::Talk)
    };
    let late = |_| ControlError::Late(patience);
    timeout(patience, asking).await.map_err(late)?
}

async fn talk(
    stream: UnixStream,
    method: Method,
    path: &'static str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender; what goes wrong is seen there.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "outrigger")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX)
        .collect()
        .await?;
    Ok((status, body.to_bytes()))
}
