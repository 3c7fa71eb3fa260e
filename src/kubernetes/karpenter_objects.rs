//! Reads all Karpenter objects of a cluster, in the newest served version.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use crate::config::SourceFile;
use crate::host::text;
use crate::kubernetes::client::{ConnectError, Connection, connect};
use crate::kubernetes::list::PAGE;
use crate::migrate::manifests::BYTES_MAX;
use crate::model::cluster::{ApiSettings, Kubeconfig};

/// Timeout of one response. A cluster has at most hundreds of pools and node classes.
const ANSWER: Duration = Duration::from_secs(30);
/// Timeout of the whole read.
const ALL: Duration = Duration::from_secs(120);
/// Maximum number of pages per kind. No import needs more.
const PAGES: usize = 40;
/// Maximum number of PodTemplates that are read one by one.
const TEMPLATES: usize = 1000;

/// A kind with its supported versions, newest first.
struct ObjectKindVersions {
    group: &'static str,
    plural: &'static str,
    versions: &'static [&'static str],
}

/// All kinds that are read.
const KINDS: [ObjectKindVersions; 6] = [
    kind_versions("karpenter.sh", "nodepools", &["v1", "v1beta1"]),
    kind_versions("karpenter.sh", "nodeoverlays", &["v1alpha1"]),
    kind_versions("karpenter.sh", "provisioners", &["v1alpha5", "v1alpha4", "v1alpha3"]),
    kind_versions("karpenter.k8s.aws", "ec2nodeclasses", &["v1", "v1beta1"]),
    kind_versions("karpenter.k8s.aws", "awsnodetemplates", &["v1alpha1"]),
    kind_versions(BUFFERS, "capacitybuffers", &["v1beta1", "v1alpha1"]),
];

/// API groups of objects that may not belong to Karpenter.
const BUFFERS: &str = "autoscaling.x-k8s.io";

const fn kind_versions(
    group: &'static str,
    plural: &'static str,
    versions: &'static [&'static str],
) -> ObjectKindVersions {
    ObjectKindVersions { group, plural, versions }
}

/// Why objects cannot be read.
#[derive(Debug, Error)]
pub(crate) enum ObjectsError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("cannot reach the API at {server}: {why}; try {kubectl} get --raw /version")]
    Unreached { server: String, why: String, kubectl: String },
    #[error("cannot read {path} of {server}: no response within {} s", ANSWER.as_secs())]
    Late { server: String, path: String },
    #[error("cannot read the Karpenter objects of {server} within {} s", ALL.as_secs())]
    Endless { server: String },
    #[error(
        "cannot use the API at {server}: unauthorized (401); try {kubectl} auth whoami, and set \
         valid credentials"
    )]
    Unknown { server: String, kubectl: String },
    #[error(
        "cannot read {} of {server}: forbidden (403); grant the permission: kubectl create \
         clusterrole outrigger-import --verb=list --resource={}, with a clusterrolebinding",
        all.join(" and "),
        all.join(",")
    )]
    Forbidden { server: String, all: Vec<String> },
    #[error(
        "cannot read {path} of {server}: forbidden (403); grant the permission: kubectl create \
         clusterrole outrigger-import --verb=get {right}, with a clusterrolebinding"
    )]
    Hidden { server: String, path: String, right: &'static str },
    #[error("cannot read {path} of {server}: {why}")]
    Odd { server: String, path: String, why: String },
    #[error("cannot read {path} of {server}: more than {BYTES_MAX} bytes or {PAGES} pages")]
    TooMuch { server: String, path: String },
    #[error(
        "no Karpenter objects at {server}: its API does not serve {}; select a different cluster \
         with --context",
        looked_for.join(", ")
    )]
    NoKinds { server: String, looked_for: Vec<String> },
    #[error(
        "no Karpenter objects at {server}: its API serves {}, but there are no objects",
        kinds.join(", ")
    )]
    Empty { server: String, kinds: Vec<String> },
}

/// All objects, as input for an import.
pub(crate) async fn read_all_objects(
    kubeconfig: &Kubeconfig,
) -> Result<Vec<SourceFile>, ObjectsError> {
    let connection = connect(kubeconfig, &ApiSettings::default()).await?;
    let server = connection.server.clone();
    let mut visit = ClusterReading { kubectl: kubectl_command(kubeconfig), connection, bytes: 0 };
    match timeout(ALL, visit.read_all()).await {
        Ok(read) => read,
        Err(_) => Err(ObjectsError::Endless { server }),
    }
}

/// The kubectl command for a kubeconfig.
pub(crate) fn kubectl_command(kubeconfig: &Kubeconfig) -> String {
    let path = text::quote_argument(&kubeconfig.path.to_string_lossy());
    let context = kubeconfig.context.iter();
    let context: String =
        context.map(|context| format!(" --context {}", text::quote_argument(context))).collect();
    format!("kubectl --kubeconfig {path}{context}")
}

/// A response or an error.
enum ListOutcome {
    There(String),
    Absent,
    Forbidden,
}

/// One read of a cluster.
struct ClusterReading {
    connection: Connection,
    kubectl: String,
    /// Bytes received so far.
    bytes: usize,
}

impl ClusterReading {
    async fn read_all(&mut self) -> Result<Vec<SourceFile>, ObjectsError> {
        let server = self.connection.server.clone();
        let (mut served, mut forbidden) = (Vec::new(), Vec::new());
        let (mut files, mut count) = (Vec::new(), 0);
        for kind in &KINDS {
            let Some(version) = self.newest_version(kind).await? else {
                continue;
            };
            let name = format!("{}.{}", kind.plural, kind.group);
            let path = format!("/apis/{}/{version}/{}", kind.group, kind.plural);
            served.push(name.clone());
            match self.list_pages(&path).await? {
                None => forbidden.push(name),
                Some(pages) => {
                    count += pages.iter().map(|page| page.objects).sum::<usize>();
                    files.extend(pages);
                }
            }
        }
        if !forbidden.is_empty() {
            let all = forbidden;
            return Err(ObjectsError::Forbidden { server, all });
        }
        if served.is_empty() {
            let looked_for = KINDS.iter();
            let looked_for = looked_for.map(|kind| {
                let versions = kind.versions.join(" or ");
                format!("{}.{} ({versions})", kind.plural, kind.group)
            });
            let looked_for = looked_for.collect();
            return Err(ObjectsError::NoKinds { server, looked_for });
        }
        if count == 0 {
            let kinds = served;
            return Err(ObjectsError::Empty { server, kinds });
        }
        let templates = self.read_templates(&files).await?;
        let mut sources: Vec<SourceFile> = files.into_iter().map(|page| page.file).collect();
        sources.extend(templates);
        Ok(sources)
    }

    /// The newest served version of a kind, if any.
    async fn newest_version(
        &mut self,
        kind: &ObjectKindVersions,
    ) -> Result<Option<&'static str>, ObjectsError> {
        for version in kind.versions {
            let path = format!("/apis/{}/{version}", kind.group);
            let api_group = match self.read_path(&path).await? {
                ListOutcome::There(text) => self.parse_body(&path, &text)?,
                ListOutcome::Absent => continue,
                ListOutcome::Forbidden => {
                    return Err(self.hidden_error(path, "--non-resource-url=/apis/*"));
                }
            };
            let resources = api_group["resources"].as_array();
            let mut names = resources.into_iter().flatten().map(|it| &it["name"]);
            if names.any(|name| name == kind.plural) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// All objects of a kind, page by page. `None` if listing is denied.
    async fn list_pages(&mut self, path: &str) -> Result<Option<Vec<Page>>, ObjectsError> {
        let (mut pages, mut next) = (Vec::new(), String::new());
        for number in 0..PAGES {
            let wanted = match next.is_empty() {
                true => format!("{path}?limit={PAGE}"),
                false => format!("{path}?limit={PAGE}&continue={next}"),
            };
            let text = match self.read_path(&wanted).await? {
                ListOutcome::There(text) => text,
                ListOutcome::Forbidden => return Ok(None),
                // The kind was deleted meanwhile.
                ListOutcome::Absent => return Ok(Some(pages)),
            };
            let page = self.parse_body(path, &text)?;
            let name = match number {
                0 => format!("{}{path}", self.connection.server),
                _ => format!("{}{path} (page {})", self.connection.server, number + 1),
            };
            pages.push(Page {
                file: SourceFile::new(name, text),
                objects: page["items"].as_array().map_or(0, Vec::len),
                templates: template_references(&page),
            });
            match page["metadata"]["continue"].as_str() {
                None | Some("") => return Ok(Some(pages)),
                // The token is usually URL-safe base64, which this encoding does not change.
                Some(token) => next = encode_for_url(token),
            }
        }
        Err(self.too_much_error(path))
    }

    /// Returns the PodTemplates that buffers reference. The caller reports missing PodTemplates.
    async fn read_templates(&mut self, pages: &[Page]) -> Result<Vec<SourceFile>, ObjectsError> {
        let mut named: Vec<&(String, String)> =
            pages.iter().flat_map(|page| &page.templates).collect();
        named.sort();
        named.dedup();
        let mut files = Vec::new();
        for (namespace, name) in named.into_iter().take(TEMPLATES) {
            let path = format!(
                "/api/v1/namespaces/{}/podtemplates/{}",
                encode_for_url(namespace),
                encode_for_url(name)
            );
            match self.read_path(&path).await? {
                ListOutcome::There(text) => {
                    let name = format!("{}{path}", self.connection.server);
                    files.push(SourceFile::new(name, text));
                }
                ListOutcome::Absent => {}
                ListOutcome::Forbidden => {
                    return Err(self.hidden_error(path, "--resource=podtemplates"));
                }
            }
        }
        Ok(files)
    }

    /// Reads a path.
    async fn read_path(&mut self, path: &str) -> Result<ListOutcome, ObjectsError> {
        let server = self.connection.server.clone();
        let request = Request::get(path).body(Body::empty());
        let request =
            request.map_err(|error| self.unexpected_response_error(path, error.to_string()))?;
        self.connection.limiter.wait_for_token().await;
        let left = BYTES_MAX.saturating_sub(self.bytes);
        let client = self.connection.client.clone();
        let answer = timeout(ANSWER, async {
            let (head, body) = client.send(request).await?.into_parts();
            let body = Limited::new(body, left).collect().await;
            let body = body.map(|body| body.to_bytes());
            Ok::<_, kube::Error>((head.status, body))
        });
        let (status, body) = match answer.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                return Err(ObjectsError::Unreached {
                    why: text::error_chain(&error),
                    kubectl: self.kubectl.clone(),
                    server,
                });
            }
            Err(_) => {
                let path = path.to_owned();
                return Err(ObjectsError::Late { server, path });
            }
        };
        match status {
            StatusCode::NOT_FOUND => return Ok(ListOutcome::Absent),
            StatusCode::FORBIDDEN => return Ok(ListOutcome::Forbidden),
            StatusCode::UNAUTHORIZED => {
                let kubectl = self.kubectl.clone();
                return Err(ObjectsError::Unknown { server, kubectl });
            }
            status if !status.is_success() => {
                return Err(
                    self.unexpected_response_error(path, format!("it responds with {status}"))
                );
            }
            _ => {}
        }
        let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
            true => self.too_much_error(path),
            false => self.unexpected_response_error(path, error.to_string()),
        })?;
        self.bytes += body.len();
        let text = String::from_utf8(body.to_vec());
        text.map(ListOutcome::There)
            .map_err(|_| self.unexpected_response_error(path, "not valid UTF-8".to_owned()))
    }

    fn parse_body(&self, path: &str, text: &str) -> Result<Value, ObjectsError> {
        serde_json::from_str(text)
            .map_err(|error| self.unexpected_response_error(path, error.to_string()))
    }

    fn unexpected_response_error(&self, path: &str, why: String) -> ObjectsError {
        ObjectsError::Odd { server: self.connection.server.clone(), path: path.to_owned(), why }
    }

    fn hidden_error(&self, path: String, right: &'static str) -> ObjectsError {
        let server = self.connection.server.clone();
        ObjectsError::Hidden { server, path, right }
    }

    fn too_much_error(&self, path: &str) -> ObjectsError {
        ObjectsError::TooMuch { server: self.connection.server.clone(), path: path.to_owned() }
    }
}

/// A page of a listing.
struct Page {
    file: SourceFile,
    objects: usize,
    /// Namespaces and names of the referenced PodTemplates.
    templates: Vec<(String, String)>,
}

fn template_references(page: &Value) -> Vec<(String, String)> {
    let items = page["items"].as_array().into_iter().flatten();
    let references = items.filter_map(|item| {
        let name = item["spec"]["podTemplateRef"]["name"].as_str()?;
        let namespace = item["metadata"]["namespace"].as_str()?;
        Some((namespace.to_owned(), name.to_owned()))
    });
    references.collect()
}

/// Encodes a string for a URL.
fn encode_for_url(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::{Request, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use tower::service_fn;

    use super::{BYTES_MAX, ClusterReading, Connection, ObjectsError, encode_for_url};

    fn reading(client: Client) -> ClusterReading {
        ClusterReading {
            connection: Connection::from_client(client),
            kubectl: "kubectl".to_owned(),
            bytes: 0,
        }
    }

    /// The number of objects read from an API that returns this response to every request.
    async fn read_from(status: StatusCode, body: &'static str) -> Result<usize, ObjectsError> {
        let service = service_fn(move |_: Request<Body>| async move {
            let answer = Response::builder().status(status);
            Ok::<_, Infallible>(
                answer.body(Body::from(body.as_bytes().to_vec())).expect("a response"),
            )
        });
        let mut reading = reading(Client::new(service, "default"));
        reading.read_all().await.map(|files| files.len())
    }

    #[tokio::test(start_paused = true)]
    async fn read_times_out_when_the_api_never_responds() {
        let service =
            service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let mut reading = reading(Client::new(service, "default"));
        let late = reading.read_all().await.expect_err("no response");
        assert!(matches!(late, ObjectsError::Late { .. }), "{late}");
    }

    #[tokio::test]
    async fn unusable_api_responses_are_reported() {
        let rows = [
            (StatusCode::UNAUTHORIZED, "", "unauthorized (401)"),
            (StatusCode::BAD_GATEWAY, "", "it responds with 502 Bad Gateway"),
            (StatusCode::OK, "<html>", "expected value"),
            (StatusCode::OK, "[]", "does not serve nodepools.karpenter.sh"),
            (StatusCode::NOT_FOUND, "", "does not serve nodepools.karpenter.sh"),
        ];
        for (status, body, expect) in rows {
            let error = read_from(status, body).await.expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[tokio::test]
    async fn endless_listing_is_aborted() {
        let endless = r#"{"resources": [{"name": "nodepools"}], "metadata": {"continue": "a"}}"#;
        let error = read_from(StatusCode::OK, endless).await.expect_err("an endless listing");
        assert!(matches!(error, ObjectsError::TooMuch { .. }), "{error}");
    }

    #[tokio::test]
    async fn read_stops_at_the_maximum_import_size() {
        let service = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::from(vec![b' '; 64])))
        });
        let mut reading = reading(Client::new(service, "default"));
        reading.bytes = BYTES_MAX - 10;
        let error = reading.read_all().await.expect_err("too much");
        assert!(matches!(error, ObjectsError::TooMuch { .. }), "{error}");
    }

    #[test]
    fn reserved_characters_are_encoded_for_urls() {
        assert_eq!(encode_for_url("a-B_0.~"), "a-B_0.~");
        assert_eq!(encode_for_url("a/b=?ü"), "a%2Fb%3D%3F%C3%BC");
    }
}
