//! Checks access to the API server of a cluster: kubeconfig, network, certificate and credentials,
//! then latency, clock and version.

use std::time::Duration;

use http::header::{DATE, HeaderMap};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use kube::config::{AuthInfo, Kubeconfig as File, KubeconfigError};
use serde::Deserialize;

use crate::doctor::codes::DoctorCode;
use crate::doctor::host_checks;
use crate::doctor::options::{DoctorRun, LIMIT};
use crate::doctor::report::Check;
use crate::host::clock::{self, Stopwatch};
use crate::host::text::{self, quote_argument};
use crate::kubernetes::api_error::ApiErrorCode;
use crate::kubernetes::client::{ConnectError, Connection};
use crate::kubernetes::exec_credential::PluginError;
use crate::kubernetes::karpenter_objects::kubectl_command;
use crate::kubernetes_convert::{OLDEST, TESTED, tested_versions};
use crate::model::clock_skew::{ClockPeer, ClockSkew, SKEW_TOLD};
use crate::model::cluster::{Cluster, Kubeconfig};
use crate::outbound::clock_skew::http_date;
use crate::runtime::clusters::{ClusterSet, PrepareError};

/// If responses to a trivial request take longer than this, watches and passes are delayed.
const SLOW: Duration = Duration::from_secs(1);

/// Maximum response size in bytes: the maximum size of a Kubernetes object.
const BODY: usize = 2 << 20;

/// A response of the API server.
pub(super) struct ApiResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Requests a path of the API.
pub(super) async fn request_path(client: &Client, path: &str) -> Result<ApiResponse, kube::Error> {
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|error| kube::Error::Service(error.into()))?;
    let (head, body) = client.send(request).await?.into_parts();
    let body = Limited::new(body, BODY).collect().await;
    let body = body.map_err(kube::Error::Service)?;
    Ok(ApiResponse { status: head.status, headers: head.headers, body: body.to_bytes().to_vec() })
}

/// Runs all API checks, and returns the connection if the API server accepts the credentials.
pub(super) async fn check_api(
    cluster_set: &ClusterSet,
    cluster: &Cluster,
    scope: &DoctorRun,
) -> (Vec<Check>, Option<Connection>) {
    if let Some(left_out) = scope.skipped_topic("api") {
        return (vec![left_out], None);
    }
    let mut checks = match (&cluster.kubeconfig, scope.skipped_topic("kubeconfig")) {
        (None, _) => Vec::new(),
        (Some(_), Some(left_out)) => vec![left_out],
        (Some(file), None) => check_kubeconfig(file),
    };
    if checks.iter().any(Check::has_failed) {
        return (checks, None);
    }
    let connection = match scope.within(cluster_set.connect(cluster)).await {
        Some(Ok(connection)) => connection,
        Some(Err(error)) => {
            checks.push(connection_failure(cluster, &error));
            return (checks, None);
        }
        None => {
            checks.push(connection_timeout(cluster, scope));
            return (checks, None);
        }
    };
    let client = &connection.client;
    let endpoint = ApiEndpoint::from_connection(cluster, &connection);
    // The first response includes the time for name resolution and handshakes.
    let first = match scope.within(request_path(client, "/version")).await {
        Some(Ok(first)) => first,
        Some(Err(error)) => {
            checks.push(endpoint.request_failure(&text::error_chain(&error)));
            return (checks, None);
        }
        None => {
            checks.push(endpoint.response_timeout());
            return (checks, None);
        }
    };
    if let Some(refused) = endpoint.unusable_response(&first) {
        checks.push(refused);
        return (checks, None);
    }
    let (began, before) = (Stopwatch::start(), clock::now());
    let second = scope.within(request_path(client, "/version")).await;
    let took = began.elapsed();
    checks.push(endpoint.check_latency(took));
    if let Some(Ok(answer)) = second {
        let after = clock::now();
        checks.push(scope.check_now("clock", || check_clock(&answer.headers, before, after)));
        checks.push(scope.check_now("version", || check_version(&answer)));
    }
    (checks, Some(connection))
}

/// Checks the file and the files it references.
fn check_kubeconfig(kubeconfig: &Kubeconfig) -> Vec<Check> {
    let mut checks = vec![host_checks::check_secret("kubeconfig", &kubeconfig.path)];
    checks.extend(host_checks::check_hidden(&kubeconfig.path));
    if !checks.iter().any(Check::has_failed)
        && let Ok(file) = File::read_from(&kubeconfig.path)
    {
        let users = file.auth_infos.iter().filter_map(|auth_info| auth_info.auth_info.as_ref());
        let clusters = file.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
        let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.clone());
        let named = users.flat_map(referenced_files).chain(authorities);
        checks.extend(named.filter_map(|path| host_checks::check_hidden(path.as_ref())));
    }
    checks
}

/// Returns the files that a kubeconfig user references.
fn referenced_files(user: &AuthInfo) -> Vec<String> {
    let all = [&user.client_certificate, &user.client_key, &user.token_file];
    all.into_iter().flatten().cloned().collect()
}

/// Reports why no connection was created. No request has been sent yet.
fn connection_failure(cluster: &Cluster, error: &PrepareError) -> Check {
    let why = text::error_causes(error).join(": ");
    let (name, fix) = match &cluster.kubeconfig {
        Some(file) => ("kubeconfig", kubeconfig_fix(file, error)),
        None => ("api", error.help().to_owned()),
    };
    Check::failed((name, error.code()), &why, &fix)
}

/// Reports that connecting timed out. With a kubeconfig, only its exec plugin can cause this.
fn connection_timeout(cluster: &Cluster, scope: &DoctorRun) -> Check {
    let late = scope.timed_out("api");
    let Some(file) = cluster.kubeconfig.as_ref().filter(|_| late.has_failed()) else {
        return late;
    };
    let (error, seconds) = (PrepareError::connect_timeout(cluster), LIMIT.as_secs());
    let path = file.path.display();
    let why = format!("the exec plugin of {path} returned no credentials within {seconds} s");
    Check::failed(("kubeconfig", error.code()), &why, &kubeconfig_fix(file, &error))
}

/// Returns the fix for a kubeconfig that yields no connection.
fn kubeconfig_fix(file: &Kubeconfig, error: &PrepareError) -> String {
    let (kubectl, path) = (kubectl_command(file), quote_argument(&file.path.to_string_lossy()));
    let contexts = format!(
        "kubectl --kubeconfig {path} config view, and set `context` to one of its contexts"
    );
    let PrepareError::Connect(_, why) = error else {
        return contexts;
    };
    match why {
        ConnectError::Plugin(_, PluginError::Late) => format!(
            "run the plugin manually as the user outrigger: \
             sudo -u outrigger {kubectl} get --raw /version"
        ),
        ConnectError::Plugin(..) | ConnectError::Client { .. } => format!(
            "fix the plugin, token file, certificate or key in {path} until this works: \
             sudo -u outrigger {kubectl} get --raw /version"
        ),
        ConnectError::Gone { .. } => format!(
            "replace the auth provider in {path} with an exec plugin such as \
             gke-gcloud-auth-plugin or kubelogin, until this works: \
             sudo -u outrigger {kubectl} get --raw /version"
        ),
        ConnectError::Late(_) => format!("check why files that {path} references are slow to read"),
        ConnectError::Panicked(..) => "report this as a bug, without attaching the file".to_owned(),
        ConnectError::Context { source, .. } => match **source {
            KubeconfigError::CurrentContextNotSet
            | KubeconfigError::LoadContext(_)
            | KubeconfigError::LoadClusterOfContext(_) => contexts,
            _ => format!(
                "fix the reported error in {path} until this works: \
                 {kubectl} get --raw /version"
            ),
        },
        _ => contexts,
    }
}

/// The address of an API server and its source.
struct ApiEndpoint {
    server: String,
    /// Host and port.
    host: String,
    /// The setting to correct if the address is wrong.
    source: String,
    /// The kubectl command.
    kubectl: String,
}

impl ApiEndpoint {
    fn from_connection(cluster: &Cluster, connection: &Connection) -> Self {
        let server = connection.server.clone();
        let uri: Option<http::Uri> = server.parse().ok();
        let authority = uri.as_ref().and_then(|uri| uri.authority());
        let host = authority.map_or(server.clone(), |it| match it.port() {
            Some(_) => it.to_string(),
            None => format!("{it}:443"),
        });
        let (source, kubectl) = match &cluster.kubeconfig {
            Some(file) => (format!("`server:` in {}", file.path.display()), kubectl_command(file)),
            None => ("`endpoint` in the eks block".to_owned(), "kubectl".to_owned()),
        };
        Self { server, host, source, kubectl }
    }

    fn host_name(&self) -> &str {
        self.host.rsplit_once(':').map_or(&self.host, |(host, _)| host)
    }

    /// Reports why the request failed.
    fn request_failure(&self, what: &str) -> Check {
        let unknown = (ApiErrorCode::Odd, "the request failed", "KUBECTL get --raw /version");
        let (cause, why, fix) = ApiErrorCode::classify_text(what).unwrap_or(unknown);
        let host = quote_argument(&self.host);
        let fix = fix
            .replace("CERTIFICATE", "openssl s_client -connect HOST -showcerts </dev/null")
            .replace("NAME", &quote_argument(self.host_name()))
            .replace("HOST", &host)
            .replace("KUBECTL", &self.kubectl)
            .replace("SOURCE", &self.source);
        Check::failed(("api", cause.code()), &format!("{}: {why}: {what}", self.server), &fix)
    }

    fn response_timeout(&self) -> Check {
        let why = format!("{}: no response within {} s", self.server, LIMIT.as_secs());
        let fix = format!(
            "allow this host to reach {} (firewalls, security groups, routes), or check why the \
             API server hangs",
            quote_argument(&self.host)
        );
        Check::failed(("api", ApiErrorCode::Silent.code()), &why, &fix)
    }

    /// Reports an unusable response. A missing permission for `/version` is reported by the RBAC
    /// check.
    fn unusable_response(&self, answer: &ApiResponse) -> Option<Check> {
        let (server, status) = (&self.server, answer.status);
        if status == StatusCode::UNAUTHORIZED {
            let why = format!("{server}: it rejects the credentials: 401");
            let fix = format!(
                "{} auth whoami; configure credentials that this API accepts (in EKS: create an \
                 access entry for the role of this host)",
                self.kubectl
            );
            return Some(Check::failed(("api", ApiErrorCode::Unauthorized.code()), &why, &fix));
        }
        let is_well = status.is_success();
        if status == StatusCode::FORBIDDEN
            || (is_well && ApiVersion::from_response(answer).is_some())
        {
            return None;
        }
        let why = match is_well {
            true => format!("{server}: its response is not a Kubernetes version"),
            false => format!("{server}: it responds with {status}"),
        };
        let fix = match status.is_server_error() {
            true => format!("{} get --raw '/readyz?verbose'", self.kubectl),
            false => format!("correct {}: this is not a Kubernetes API", self.source),
        };
        Some(Check::failed(("api", ApiErrorCode::Odd.code()), &why, &fix))
    }

    fn check_latency(&self, took: Duration) -> Check {
        let finding = format!("{}: responds within {} ms", self.server, took.as_millis());
        if took <= SLOW {
            return Check::ok("api", &finding);
        }
        let why = format!("{finding}, which is more than {} s", SLOW.as_secs());
        let fix = format!(
            "{} get --raw '/readyz?verbose'; run the daemon closer to the cluster",
            self.kubectl
        );
        Check::warning(("api", ApiErrorCode::Slow.code()), &why, &fix)
    }
}

/// Compares both clocks by the Date header of a response.
fn check_clock(headers: &HeaderMap, before: Timestamp, after: Timestamp) -> Check {
    let date = headers.get(DATE).and_then(|header| header.to_str().ok());
    let Some(at) = date.and_then(http_date) else {
        return Check::skipped("clock", "the API server does not report its time", None);
    };
    let skew =
        ClockSkew { peer: ClockPeer::ApiServer, ahead: ClockSkew::estimate(at, before, after) };
    let why = skew.to_string();
    let fix = "timedatectl set-ntp true, on the host whose clock is wrong";
    match skew.ahead.abs() {
        _ if skew.is_fault() => Check::failed(("clock", ApiErrorCode::Clock.code()), &why, fix),
        far if far > SKEW_TOLD => Check::warning(("clock", ApiErrorCode::Clock.code()), &why, fix),
        _ => Check::ok("clock", "in sync with the API server"),
    }
}

/// The response of `/version`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiVersion {
    major: String,
    minor: String,
    git_version: String,
}

impl ApiVersion {
    fn from_response(answer: &ApiResponse) -> Option<Self> {
        serde_json::from_slice(&answer.body).ok()
    }
}

/// Checks the version of the API server.
fn check_version(answer: &ApiResponse) -> Check {
    let Some(version_info) = ApiVersion::from_response(answer) else {
        let why = "the API server does not report its version";
        return Check::skipped("version", why, None);
    };
    let digits: String = version_info.minor.chars().take_while(char::is_ascii_digit).collect();
    let version = format!("Kubernetes {}", version_info.git_version);
    match (version_info.major.as_str(), digits.parse::<u32>()) {
        ("1", Ok(minor)) if minor < OLDEST => {
            let why = format!("{version} is older than 1.{OLDEST}, the oldest supported version");
            let fix = format!("upgrade the control plane to Kubernetes 1.{OLDEST} or later");
            Check::failed(("version", DoctorCode::VersionOld.code()), &why, &fix)
        }
        ("1", Ok(minor)) if !TESTED.contains(&minor) => {
            let outside = format!("{version}; tested versions: {}", tested_versions());
            Check::ok("version", &outside)
        }
        ("1", Ok(_)) => Check::ok("version", &version),
        _ => Check::skipped("version", &format!("{version} is not a 1.x version"), None),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use jiff::{SignedDuration, Timestamp};

    use super::{ApiResponse, check_clock, check_version};
    use crate::doctor::report::DoctorReport;

    #[test]
    fn clock_skew_beyond_date_header_precision_is_reported() {
        let date = "Thu, 01 Jan 1970 01:00:00 GMT";
        let headers: HeaderMap =
            [(http::header::DATE, date.parse().expect("a value"))].into_iter().collect();
        for (seconds, code) in
            [(0, 0), (3, 0), (4, 2), (11, 2), (12, 4), (-2, 0), (-3, 2), (-11, 4)]
        {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(3600 + seconds);
            let check = check_clock(&headers, now, now);
            assert_eq!(DoctorReport(vec![check]).exit_code(), code, "{seconds} s");
        }
    }

    #[test]
    fn untested_and_unsupported_kubernetes_versions_are_reported() {
        let outside = "; tested versions: 1.35 to 1.37";
        for (minor, code, suffix) in [
            ("28", 4, " is older than 1.29, the oldest supported version"),
            ("29", 0, outside),
            ("34+", 0, outside),
            ("35", 0, ""),
            ("37+", 0, ""),
            ("38", 0, outside),
        ] {
            let body = format!(r#"{{"major":"1","minor":"{minor}","gitVersion":"v1.{minor}"}}"#);
            let check = check_version(&ApiResponse {
                status: http::StatusCode::OK,
                headers: HeaderMap::new(),
                body: body.into_bytes(),
            });
            let expected = format!("Kubernetes v1.{minor}{suffix}");
            let shown = format!("{check:?}");
            assert!(shown.contains(&format!("{expected:?}")), "{expected}: {shown}");
            assert_eq!(DoctorReport(vec![check]).exit_code(), code, "{minor}");
        }
    }
}
