//! An API server with a defect that the test selects: certificate, clock, latency, authentication
//! or RBAC.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::end_to_end::kube_api::{date, now};

/// Where certificates are: `ca` has signed `good`, `expired` and `elsewhere`, whose key is `key`.
pub(super) const CERTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/end_to_end/doctor/certs");

/// FlowSchemas and their ids.
const SCHEMAS: [(&str, &str); 2] = [("outrigger", "uid-1"), ("global-default", "uid-2")];

/// The first byte of a TLS handshake.
const HELLO: u8 = 0x16;

/// The defects of the server.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    /// Its certificate; `None` for a server without TLS.
    pub(super) certificate: Option<&'static str>,
    /// How far its clock is ahead, in seconds.
    pub(super) ahead: i64,
    /// The delay of each response.
    pub(super) pace: Duration,
    /// Its minor version.
    pub(super) minor: &'static str,
    /// The status of every response, if it is fixed.
    pub(super) status: Option<&'static str>,
    /// Denied permissions: verb and resource.
    pub(super) denied: &'static [&'static str],
    /// Leases, by namespace and name, and how many seconds ago they were renewed.
    pub(super) leases: &'static [(&'static str, i64)],
    /// Whether it denies access to Cluster Autoscaler's Lease and to FlowSchemas.
    pub(super) private: bool,
    /// Whether it denies access to Karpenter's Lease.
    pub(super) unseen: bool,
    /// The id of the FlowSchema in every response; `None` for no header.
    pub(super) schema: Option<&'static str>,
    /// The namespace and name of a pod of Cluster Autoscaler that runs.
    pub(super) pod: Option<(&'static str, &'static str)>,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            certificate: Some("good"),
            ahead: 0,
            pace: Duration::ZERO,
            minor: "34",
            status: None,
            denied: &[],
            leases: &[],
            private: false,
            unseen: false,
            schema: Some("uid-1"),
            pod: None,
        }
    }
}

/// Serves on a free port for as long as the process runs.
pub(super) fn serve(manner: Manner) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let tls = manner.certificate.map(tls);
    let manner = Arc::new(manner);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (tls, manner) = (tls.clone(), manner.clone());
            thread::spawn(move || {
                // A client that rejects the certificate closes the connection.
                drop(match tls {
                    None => answer(stream, &manner),
                    Some(config) => ServerConnection::new(config)
                        .map_err(std::io::Error::other)
                        .and_then(|own| answer(StreamOwned::new(own, stream), &manner)),
                });
            });
        }
    });
    port
}

fn tls(certificate: &str) -> Arc<ServerConfig> {
    let path = |name: &str| format!("{CERTS}/{name}.pem");
    let chain = CertificateDer::pem_file_iter(path(certificate)).expect("a certificate");
    let chain = chain.map(|own| own.expect("a certificate")).collect();
    let key = PrivateKeyDer::from_pem_file(path("key")).expect("a key");
    let config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(chain, key);
    Arc::new(config.expect("they belong together"))
}

/// Responds to one request of a connection.
fn answer(stream: impl Read + Write, manner: &Manner) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    if stream.fill_buf()?.first() == Some(&HELLO) {
        return stream.get_mut().write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    }
    stream.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().map_err(std::io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    thread::sleep(manner.pace);
    let path = line.split(' ').nth(1).unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let (status, body) = match manner.status {
        Some(status) => (status, failure(status)),
        None => match object(path, &body, manner) {
            Ok(object) => ("200 OK", object),
            Err(status) => (status, failure(status)),
        },
    };
    let body = body.to_string();
    let date = date(manner.ahead);
    let schema = manner
        .schema
        .map_or(String::new(), |uid| format!("X-Kubernetes-Pf-Flowschema-Uid: {uid}\r\n"));
    let out = stream.get_mut();
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Date: {date}\r\n{schema}Connection: close\r\n\r\n{body}",
        body.len(),
    )?;
    out.flush()
}

const FORBIDDEN: &str = "403 Forbidden";
const NOT_FOUND: &str = "404 Not Found";

fn failure(status: &str) -> Value {
    let (code, reason) = status.split_once(' ').expect("code and reason");
    let code: u16 = code.parse().expect("a code");
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason.replace(' ', ""), "message": "no"})
}

fn object(path: &str, body: &Value, manner: &Manner) -> Result<Value, &'static str> {
    let (path, _) = path.split_once('?').unwrap_or((path, ""));
    let last = path.rsplit('/').next().unwrap_or_default();
    match last {
        "version" => Ok(json!({"major": "1", "minor": manner.minor,
            "gitVersion": format!("v1.{}.2", manner.minor)})),
        "selfsubjectaccessreviews" => Ok(review(body, manner)),
        "flowschemas" if manner.private => Err(FORBIDDEN),
        "flowschemas" => {
            let one = |(name, uid): (&str, &str)| json!({"metadata": {"name": name, "uid": uid}});
            Ok(json!({"kind": "FlowSchemaList", "items": SCHEMAS.map(one)}))
        }
        "pods" => {
            let one =
                |(namespace, name)| json!({"metadata": {"namespace": namespace, "name": name}});
            let items: Vec<Value> = manner.pod.into_iter().map(one).collect();
            Ok(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
        }
        _ if path.contains("/leases/") => lease(path, manner),
        _ => Err(NOT_FOUND),
    }
}

fn review(body: &Value, manner: &Manner) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let own = &body["spec"]["resourceAttributes"];
    let part = match text(&own["subresource"]).as_str() {
        "" => String::new(),
        part => format!("/{part}"),
    };
    let what = format!("{} {}{part}", text(&own["verb"]), text(&own["resource"]));
    let mut answer = body.clone();
    answer["status"] = json!({"allowed": !manner.denied.contains(&what.as_str())});
    answer
}

fn lease(path: &str, manner: &Manner) -> Result<Value, &'static str> {
    let leases: BTreeMap<&str, i64> = manner.leases.iter().copied().collect();
    let parts: Vec<&str> = path.split('/').collect();
    let [.., namespace, _, name] = parts[..] else {
        return Err(NOT_FOUND);
    };
    let karpenters = name == "karpenter-leader-election";
    if (manner.unseen && karpenters) || (manner.private && name == "cluster-autoscaler") {
        return Err(FORBIDDEN);
    }
    let ago = leases.get(format!("{namespace}/{name}").as_str());
    let at = now(-*ago.ok_or(NOT_FOUND)?);
    Ok(json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"renewTime": format!("{at:.6}")}}))
}
