//! What a node has to know of the cluster it joins: asked of its API, and of EKS where that is
//! silent. It must not know how a node is told.

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
use crate::providers::aws::error::AwsError;

/// Time for one question to the API.
const CALL: Duration = Duration::from_secs(15);
/// Characters of a line of PEM. Source: RFC 7468.
const PEM_LINE: usize = 64;
/// The Service that a cluster's DNS has by convention.
const DNS: (&str, &str) = ("kube-system", "kube-dns");
/// What the API server calls the range that it takes the addresses of Services from by default.
const SERVICES: &str = "kubernetes";

/// Why a cluster is not known well enough.
#[derive(Debug, Error)]
pub(crate) enum HomeError {
    #[error("ask the cluster for its version")]
    Version(#[source] Box<kube::Error>),
    #[error("ask the cluster for its version: no answer within {} s", CALL.as_secs())]
    Late,
    #[error("ask EKS for the cluster")]
    Eks(#[source] AwsError),
}

/// What nodes of a cluster are told.
pub(crate) struct ClusterInfo {
    pub(crate) home: ClusterEndpoint,
    /// What its API should have told and did not, each with the reason.
    pub(crate) missing: Vec<String>,
}

/// What clusters say, each asked beside the others: one whose API does not answer delays none.
#[derive(Default)]
pub(crate) struct ClusterInfoCache {
    asking: JoinSet<ClusterInfoResult>,
    /// Whom the tasks are asking; one that was driven from another seat is another.
    whom: BTreeMap<Id, (ClusterName, u64)>,
}

/// What a cluster says of itself, and from which seat it is driven.
pub(crate) type ClusterInfoResult = (ClusterName, u64, Result<ClusterInfo, HomeError>);

impl ClusterInfoCache {
    /// Asks a cluster, unless that is under way.
    pub(crate) fn ask(
        &mut self,
        (cluster, seat): (Arc<Cluster>, u64),
        connection: Connection,
        account: Arc<AwsClients>,
    ) {
        let whom = (cluster.name.clone(), seat);
        if self.whom.values().any(|own| *own == whom) {
            return;
        }
        let task = self.asking.spawn(async move {
            let known = home(&cluster, &connection, &account).await;
            (cluster.name.clone(), seat, known)
        });
        self.whom.insert(task.id(), whom);
    }

    /// A cluster is another by now: what it is saying does not count.
    pub(crate) fn forget(&mut self, cluster: &ClusterName) {
        self.whom.retain(|_, (own, _)| own != cluster);
    }

    /// What one of them says; waits for ever where none is asked.
    pub(crate) async fn next(&mut self) -> ClusterInfoResult {
        loop {
            match self.asking.join_next_with_id().await {
                Some(Ok((task, said))) if self.whom.remove(&task).is_some() => return said,
                Some(Ok(_)) => {}
                // A panic: it is asked again in its time.
                Some(Err(error)) => drop(self.whom.remove(&error.id())),
                None => std::future::pending().await,
            }
        }
    }
}

/// Asks for what nodes of a cluster are told.
pub(crate) async fn home(
    cluster: &Cluster,
    connection: &Connection,
    account: &AwsClients,
) -> Result<ClusterInfo, HomeError> {
    let version = timeout(CALL, connection.client.apiserver_version()).await;
    let version = version.map_err(|_| HomeError::Late)?;
    let version = version.map_err(|error| HomeError::Version(Box::new(error)))?;
    let minor = version.minor.trim_end_matches('+');
    let (mut missing, mut untold) = (Vec::new(), Vec::new());
    let dns = dns(connection, &mut missing).await;
    let said = cluster
        .eks
        .as_ref()
        .and_then(|own| own.service_cidr.clone());
    let service_cidr = match said {
        Some(said) => Some(said),
        None => services(connection, &mut untold).await,
    };
    let mut home = ClusterEndpoint {
        name: cluster.name.to_string(),
        endpoint: connection.server.clone(),
        ca: authorities(&connection.authorities),
        service_cidr,
        dns,
        ipv6: dns.is_some_and(|own| own.is_ipv6()),
        version: format!("{}.{minor}", version.major),
    };
    if let Some(eks) = &cluster.eks {
        let name = eks.name.clone().unwrap_or(cluster.name.to_string());
        if home.service_cidr.is_none() {
            let listed = describe(account, &name).await.map_err(HomeError::Eks)?;
            home.service_cidr = cidr(&listed);
        }
        home.name = name;
    }
    if home.service_cidr.is_none() {
        missing.append(&mut untold);
    }
    Ok(ClusterInfo { home, missing })
}

/// What EKS knows of a cluster.
pub(crate) async fn describe(account: &AwsClients, name: &str) -> Result<Listed, AwsError> {
    account.buckets.read.turn().await;
    let answer = account.eks.describe_cluster().name(name).send().await;
    let answer = answer.map_err(|error| AwsError::new("DescribeCluster", error))?;
    let named = answer.cluster().cloned();
    named.ok_or_else(|| AwsError::silent("DescribeCluster", "the answer names no cluster"))
}

fn cidr(listed: &Listed) -> Option<String> {
    let own = listed.kubernetes_network_config()?;
    let cidr = own.service_ipv4_cidr().or(own.service_ipv6_cidr());
    cidr.map(str::to_owned)
}

/// The address of the cluster's DNS; none where it is not where it is by convention, or nobody
/// tells us.
async fn dns(connection: &Connection, missing: &mut Vec<String>) -> Option<core::net::IpAddr> {
    let (namespace, name) = DNS;
    let services: Api<Service> = Api::namespaced(connection.client.clone(), namespace);
    let asked = ask(services.get(name), "the address of its DNS", missing);
    asked.await?.spec?.cluster_ip?.parse().ok()
}

/// The addresses of Services, which the API tells from Kubernetes 1.33 on.
async fn services(connection: &Connection, missing: &mut Vec<String>) -> Option<String> {
    let ranges: Api<ServiceCIDR> = Api::all(connection.client.clone());
    let range = ranges.get(SERVICES);
    let range = ask(range, "the addresses of its Services", missing).await?;
    range.spec?.cidrs?.into_iter().next()
}

/// What the API has; none where it has no such thing. What else is in the way of it is noted.
async fn ask<T>(
    call: impl Future<Output = kube::Result<T>>,
    what: &str,
    missing: &mut Vec<String>,
) -> Option<T> {
    let why = match timeout(CALL, call).await {
        Ok(Ok(found)) => return Some(found),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return None,
        Ok(Err(error)) => text::chain(&error),
        Err(_) => format!("no answer within {} s", CALL.as_secs()),
    };
    missing.push(format!("{what}: {why}"));
    None
}

/// Certificates as a kubeconfig holds them: base64 of PEM.
fn authorities(all: &[Vec<u8>]) -> String {
    let mut pem = String::new();
    for own in all {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = base64::encode(own);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
            pem.push_str(line);
            pem.push('\n');
            rest = more;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    if pem.is_empty() {
        String::new()
    } else {
        base64::encode(pem)
    }
}
