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
use tokio::time::timeout;

use crate::bootstrap::ClusterEndpoint;
use crate::host::text;
use crate::kubernetes::client::Connection;
use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::{AwsError, MapAwsError};

/// Timeout of one API call.
const CALL: Duration = Duration::from_secs(15);
/// Line length of PEM. Source: RFC 7468.
const PEM_LINE: usize = 64;
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
    /// Data that could not be read from the API server, with reasons.
    pub(crate) missing: Vec<String>,
}

/// Reads the data of clusters concurrently, so that a slow API server delays no other cluster.
#[derive(Default)]
pub(crate) struct ClusterInfoCache {
    reads: JoinSet<ClusterInfoResult>,
    /// Clusters whose data is being read, with the engine of each.
    reading: BTreeMap<Id, (ClusterName, u64)>,
}

/// Data of a cluster, and its engine.
pub(crate) struct ClusterInfoResult {
    pub(crate) cluster: ClusterName,
    pub(crate) session: u64,
    pub(crate) info: Result<ClusterInfo, HomeError>,
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
        let task = self.reads.spawn(async move {
            ClusterInfoResult {
                info: read_cluster_info(&cluster, &connection, &account).await,
                cluster: cluster.name.clone(),
                session,
            }
        });
        self.reading.insert(task.id(), key);
    }

    /// Makes the task ignore the result of the read in progress, because the cluster has changed.
    pub(crate) fn cancel_read(&mut self, cluster: &ClusterName) {
        self.reading.retain(|_, (name, _)| name != cluster);
    }

    /// Returns the next result. Waits forever if no read is in progress.
    pub(crate) async fn next_result(&mut self) -> ClusterInfoResult {
        loop {
            match self.reads.join_next_with_id().await {
                Some(Ok((task, result))) if self.reading.remove(&task).is_some() => return result,
                Some(Ok(_)) => {}
                // The read panicked, and is repeated later.
                Some(Err(error)) => drop(self.reading.remove(&error.id())),
                None => std::future::pending().await,
            }
        }
    }
}

/// Reads the data for nodes of a cluster.
pub(crate) async fn read_cluster_info(
    cluster: &Cluster,
    connection: &Connection,
    account: &AwsClients,
) -> Result<ClusterInfo, HomeError> {
    let version = timeout(CALL, connection.client.apiserver_version()).await;
    let version = version.map_err(|_| HomeError::Late)?;
    let version = version.map_err(|error| HomeError::Version(Box::new(error)))?;
    let minor = version.minor.trim_end_matches('+');
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
        version: format!("{}.{minor}", version.major),
    };
    if let Some(eks) = eks {
        let name = eks.name.clone().unwrap_or(cluster.name.to_string());
        if home.service_cidr.is_none() {
            let listed = describe_cluster(account, &name).await.map_err(HomeError::Eks)?;
            home.service_cidr = listed_cidr(&listed);
        }
        home.name = name;
    }
    if home.service_cidr.is_none() {
        missing.append(&mut missing_cidr);
    }
    Ok(ClusterInfo { home, missing })
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
