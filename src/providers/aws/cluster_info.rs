//! Cluster data for user data, read from the API server, and from EKS if the API server does not
//! provide it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_eks::types::Cluster as Listed;
use aws_smithy_types::base64;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use thiserror::Error;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout};

use crate::bootstrap::ClusterEndpoint;
use crate::ec2::errors::ErrorClass;
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::model::cluster::{Cluster, Eks};
use crate::model::id::ClusterName;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Timeout of one API call.
const CALL: Duration = Duration::from_secs(15);
/// API servers of different versions return their versions in turn for at most this long.
const UPGRADE: Duration = Duration::from_mins(10);
/// Line length of PEM. Source: RFC 7468.
const PEM_LINE: usize = 64;
/// How long the data of EKS are kept.
const KEPT: Duration = Duration::from_hours(6);
/// Error codes with which EKS refuses a call: the permission is missing, or there is no such
/// cluster. The other errors of credentials and signatures are temporary.
const REFUSALS: [&str; 3] = ["AccessDenied", "AccessDeniedException", "ResourceNotFoundException"];
/// After this many consecutive failed calls of EKS, the data of the API server are used.
const FAILURES: u32 = 3;
/// The conventional Service of the cluster DNS.
const DNS: (&str, &str) = ("kube-system", "kube-dns");
/// Name of the default ServiceCIDR of the API server.
const SERVICES: &str = "kubernetes";

/// Why cluster data is missing.
#[derive(Debug, Error)]
pub(crate) enum HomeError {
    #[error("cannot read the version of the cluster")]
    Version(#[source] Box<kube::Error>),
    #[error("cannot read the version of the cluster: no response within {} s", CALL.as_secs())]
    Late,
    #[error("cannot describe the cluster in EKS")]
    Eks(#[source] AwsError),
}

/// Cluster data for nodes.
pub(crate) struct ClusterInfo {
    pub(crate) home: ClusterEndpoint,
    /// Data that could not be read from the API server or EKS, with reasons.
    pub(crate) missing: Vec<String>,
}

/// What earlier reads have found of a cluster.
///
/// During an upgrade, the API servers of a cluster return different versions, and nodes of a newer
/// version than that of an API server are not supported. Source: Kubernetes, version skew policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownCluster {
    /// The API server and EKS cluster that the data are of.
    source: Source,
    /// The data of EKS, which changes its version at the end of an upgrade.
    eks: Option<EksData>,
    /// Number of consecutive calls of EKS that failed.
    failures: u32,
    /// Versions that API servers have returned recently, and when.
    recent: Vec<(Instant, Version)>,
}

/// An API server and an EKS cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    server: String,
    authorities: Vec<Vec<u8>>,
    eks: Option<Eks>,
}

/// Data of a cluster in EKS.
#[derive(Clone, Debug)]
struct EksData {
    read: Instant,
    version: Option<String>,
    endpoint: Option<String>,
    /// PEM in base64.
    ca: Option<String>,
    service_cidr: Option<String>,
}

/// Major and minor version.
type Version = (u32, u32);

/// Reads the data of clusters concurrently, so that a slow API server delays no other cluster.
#[derive(Default)]
pub(crate) struct ClusterInfoCache {
    reads: JoinSet<ClusterInfoResult>,
    /// Clusters whose data is being read, with the engine of each.
    reading: BTreeMap<Id, (ClusterName, u64)>,
    known: BTreeMap<ClusterName, KnownCluster>,
}

/// Data of a cluster, and its engine.
pub(crate) struct ClusterInfoResult {
    pub(crate) cluster: ClusterName,
    pub(crate) session: u64,
    pub(crate) info: Result<ClusterInfo, HomeError>,
    known: KnownCluster,
}

impl ClusterInfoCache {
    /// Reads the data of a cluster, unless a read is in progress.
    pub(crate) fn start_read(
        &mut self,
        cluster: Arc<Cluster>,
        session: u64,
        connection: Connection,
        account: Arc<AwsClients>,
    ) {
        let key = (cluster.name.clone(), session);
        if self.reading.values().any(|reading| *reading == key) {
            return;
        }
        let mut known = self.known.get(&cluster.name).cloned().unwrap_or_default();
        let task = self.reads.spawn(async move {
            ClusterInfoResult {
                info: read_cluster_info(&cluster, &connection, &account, &mut known).await,
                cluster: cluster.name.clone(),
                session,
                known,
            }
        });
        self.reading.insert(task.id(), key);
    }

    /// Makes the task ignore the result of the read in progress, because the cluster has changed.
    pub(crate) fn cancel_read(&mut self, cluster: &ClusterName) {
        self.reading.retain(|_, (name, _)| name != cluster);
    }

    /// Forgets a cluster that was removed.
    pub(crate) fn forget(&mut self, cluster: &ClusterName) {
        self.cancel_read(cluster);
        self.known.remove(cluster);
    }

    /// Returns the next result. Waits forever if no read is in progress.
    pub(crate) async fn next_result(&mut self) -> ClusterInfoResult {
        loop {
            match self.reads.join_next_with_id().await {
                Some(Ok((task, result))) if self.reading.remove(&task).is_some() => {
                    self.known.insert(result.cluster.clone(), result.known.clone());
                    return result;
                }
                Some(Ok(_)) => {}
                // The read panicked, and is repeated later.
                Some(Err(error)) => drop(self.reading.remove(&error.id())),
                None => std::future::pending().await,
            }
        }
    }
}

/// Reads the data for nodes of a cluster.
///
/// The version, the endpoint and its CA are those of EKS: this host may reach the API server at an
/// address that nodes do not. EKS is asked every few hours, and while an API server returns a
/// different version.
///
/// If EKS refuses the call or repeatedly fails, the data of the API server are used. After one
/// failure they are not: they could be those of another endpoint, or of a newer version that only
/// some API servers have, and node classes would be resolved with them for minutes.
pub(crate) async fn read_cluster_info(
    cluster: &Cluster,
    connection: &Connection,
    account: &AwsClients,
    known: &mut KnownCluster,
) -> Result<ClusterInfo, HomeError> {
    let version = timeout(CALL, connection.client.apiserver_version()).await;
    let version = version.map_err(|_| HomeError::Late)?;
    let version = version.map_err(|error| HomeError::Version(Box::new(error)))?;
    let minor = version.minor.trim_end_matches('+');
    let returned = format!("{}.{minor}", version.major);
    known.forget_other_source(cluster, connection);
    let (mut missing, mut missing_cidr) = (Vec::new(), Vec::new());
    let dns = dns_address(connection, &mut missing).await;
    let eks = cluster.eks.as_ref();
    let service_cidr = match eks.and_then(|eks| eks.service_cidr.clone()) {
        Some(configured) => Some(configured),
        None => read_service_cidr(connection, &mut missing_cidr).await,
    };
    let mut home = ClusterEndpoint {
        name: cluster.name.to_string(),
        endpoint: connection.server.clone(),
        ca: encode_certificates(&connection.authorities),
        service_cidr,
        dns,
        ipv6: dns.is_some_and(|address| address.is_ipv6()),
        version: known.lowest_recent(&returned),
    };
    if let Some(eks) = eks {
        home.name = eks.name.clone().unwrap_or(cluster.name.to_string());
        if known.must_ask_eks(&returned) {
            let is_enough = known.eks.is_some() || home.service_cidr.is_some();
            missing.extend(known.ask_eks(account, &home.name, is_enough).await?);
        }
        use_eks_data(&mut home, eks, known.eks.as_ref());
    }
    if let Some(configured) = &cluster.node_endpoint {
        home.endpoint.clone_from(configured);
    }
    if home.service_cidr.is_none() {
        missing.append(&mut missing_cidr);
    }
    Ok(ClusterInfo { home, missing })
}

/// Completes cluster data with those of EKS. The endpoint and its CA have the same source: the
/// `eks` block, EKS, or the connection of this host if the CA of the others is not known.
fn use_eks_data(home: &mut ClusterEndpoint, eks: &Eks, data: Option<&EksData>) {
    let listed = data.and_then(|data| data.endpoint.as_ref());
    let listed_ca = data.and_then(|data| data.ca.as_ref());
    let endpoint = eks.endpoint.as_ref().or(listed);
    if let (Some(endpoint), Some(ca)) = (endpoint, eks.ca_data.as_ref().or(listed_ca)) {
        home.endpoint.clone_from(endpoint);
        home.ca.clone_from(ca);
    }
    let Some(data) = data else { return };
    home.version = data.version.clone().unwrap_or(home.version.clone());
    home.service_cidr = home.service_cidr.take().or(data.service_cidr.clone());
}

impl KnownCluster {
    /// Forgets the data of a different API server or EKS cluster.
    fn forget_other_source(&mut self, cluster: &Cluster, connection: &Connection) {
        let source = Source {
            server: connection.server.clone(),
            authorities: connection.authorities.clone(),
            eks: cluster.eks.clone(),
        };
        if self.source != source {
            *self = Self { source, ..Self::default() };
        }
    }

    /// Returns whether EKS has to be asked, if an API server returned this version.
    fn must_ask_eks(&self, returned: &str) -> bool {
        let now = clock::monotonic_now();
        self.eks.as_ref().is_none_or(|data| {
            data.version.as_deref() != Some(returned) || now.duration_since(data.read) >= KEPT
        })
    }

    /// Reads the data of EKS. Returns what is missing if the call failed and the remaining data
    /// are enough.
    async fn ask_eks(
        &mut self,
        account: &AwsClients,
        name: &str,
        is_enough: bool,
    ) -> Result<Option<String>, HomeError> {
        let fault = match describe_cluster(account, name).await {
            Ok(listed) => {
                self.eks = Some(EksData::from_listed(&listed));
                self.failures = 0;
                return Ok(None);
            }
            Err(fault) => fault,
        };
        self.failures = self.failures.saturating_add(1);
        let is_refused = fault.has_code(&REFUSALS);
        let is_final = is_refused || self.failures >= FAILURES || self.eks.is_some();
        if !is_enough || !is_final {
            return Err(HomeError::Eks(fault));
        }
        let failure = fault.to_failure("eks");
        // The message of another failure has the id of the request: each would be logged.
        let why = match failure.sort {
            ErrorClass::Denied => failure.text,
            _ => format!("DescribeCluster: {}", fault.code.as_deref().unwrap_or("no response")),
        };
        Ok(Some(format!("the version of the cluster in EKS: {why}")))
    }

    /// Records a version that an API server has returned. Returns the lowest recent one.
    fn lowest_recent(&mut self, returned: &str) -> String {
        let now = clock::monotonic_now();
        self.recent.retain(|(at, _)| now.duration_since(*at) < UPGRADE);
        let version = returned
            .split_once('.')
            .and_then(|(major, minor)| Some((now, (major.parse().ok()?, minor.parse().ok()?))));
        self.recent.extend(version);
        let lowest = self.recent.iter().map(|(_, version)| version).min();
        lowest.map_or(returned.to_owned(), |(major, minor)| format!("{major}.{minor}"))
    }
}

impl EksData {
    fn from_listed(listed: &Listed) -> Self {
        Self {
            read: clock::monotonic_now(),
            version: listed.version().map(str::to_owned),
            endpoint: listed.endpoint().map(str::to_owned),
            ca: listed
                .certificate_authority()
                .and_then(|authority| authority.data())
                .filter(|data| base64::decode(data).is_ok())
                .map(str::to_owned),
            service_cidr: listed_cidr(listed),
        }
    }
}

/// Data of a cluster from EKS.
pub(crate) async fn describe_cluster(account: &AwsClients, name: &str) -> Result<Listed, AwsError> {
    account.buckets.read.wait_for_token().await;
    let answer = account.eks.describe_cluster().name(name).send().await;
    let cluster = answer.map_aws_error("DescribeCluster")?.cluster;
    cluster.ok_or_else(|| {
        AwsError::without_response("DescribeCluster", "the response contains no cluster")
    })
}

fn listed_cidr(listed: &Listed) -> Option<String> {
    let network = listed.kubernetes_network_config()?;
    let cidr = network.service_ipv4_cidr().or(network.service_ipv6_cidr());
    cidr.map(str::to_owned)
}

/// The address of the cluster DNS. `None` if the conventional Service does not exist or cannot be
/// read.
async fn dns_address(
    connection: &Connection,
    missing: &mut Vec<String>,
) -> Option<core::net::IpAddr> {
    let (namespace, name) = DNS;
    let services: Api<Service> = Api::namespaced(connection.client.clone(), namespace);
    let service = services.get(name);
    let service = read_object(service, "the DNS address of the cluster", missing).await?;
    service.spec?.cluster_ip?.parse().ok()
}

/// The Service CIDRs, available from the API since Kubernetes 1.33.
async fn read_service_cidr(connection: &Connection, missing: &mut Vec<String>) -> Option<String> {
    let ranges: Api<ServiceCIDR> = Api::all(connection.client.clone());
    let range = ranges.get(SERVICES);
    let range = read_object(range, "the Service addresses of the cluster", missing).await?;
    range.spec?.cidrs?.into_iter().next()
}

/// Reads an object. `None` if it does not exist. Other errors are recorded.
async fn read_object<T>(
    call: impl Future<Output = kube::Result<T>>,
    what: &str,
    missing: &mut Vec<String>,
) -> Option<T> {
    let why = match timeout(CALL, call).await {
        Ok(Ok(found)) => return Some(found),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return None,
        Ok(Err(error)) => text::error_chain(&error),
        Err(_) => format!("no response within {} s", CALL.as_secs()),
    };
    missing.push(format!("{what}: {why}"));
    None
}

/// Certificates in kubeconfig format: base64 of PEM.
fn encode_certificates(certificates: &[Vec<u8>]) -> String {
    let mut pem = String::new();
    for certificate in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::encode(certificate);
        let mut unwritten = text.as_str();
        while !unwritten.is_empty() {
            let (line, next) = unwritten.split_at(unwritten.len().min(PEM_LINE));
            pem.push_str(line);
            pem.push('\n');
            unwritten = next;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    if pem.is_empty() { String::new() } else { base64::encode(pem) }
}
