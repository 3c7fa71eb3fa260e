//! What a node has to know of the cluster it joins: asked of its API, and of EKS where that is
//! silent. It must not know how a node is told.

use std::time::Duration;

use aws_sdk_eks::types::Cluster as Listed;
use aws_smithy_types::base64;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use thiserror::Error;
use tokio::time::timeout;

use crate::bootstrap::Home;
use crate::model::cluster::Cluster;
use crate::shell::aws::account::Account;
use crate::shell::aws::fault::Fault;
use crate::shell::kube::client::Connection;
use crate::shell::text;

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
    Eks(#[source] Fault),
}

/// What nodes of a cluster are told.
pub(crate) struct Known {
    pub(crate) home: Home,
    /// What its API should have told and did not, each with the reason.
    pub(crate) missing: Vec<String>,
}

/// Asks for what nodes of a cluster are told.
pub(crate) async fn home(
    cluster: &Cluster,
    connection: &Connection,
    account: &Account,
) -> Result<Known, HomeError> {
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
    let mut home = Home {
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
    Ok(Known { home, missing })
}

/// What EKS knows of a cluster.
pub(crate) async fn describe(account: &Account, name: &str) -> Result<Listed, Fault> {
    account.buckets.read.turn().await;
    let answer = account.eks.describe_cluster().name(name).send().await;
    let answer = answer.map_err(|error| Fault::new("DescribeCluster", error))?;
    let named = answer.cluster().cloned();
    named.ok_or_else(|| Fault::silent("DescribeCluster", "the answer names no cluster"))
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
