//! Runs the checks of a configuration, of this host, and of its clusters.

use futures::{StreamExt, stream};

#[cfg(feature = "aws")]
use crate::doctor::aws_checks;
use crate::doctor::codes::DoctorCode;
use crate::doctor::options::DoctorRun;
use crate::doctor::report::{Check, DoctorReport};
use crate::doctor::{api_checks, cluster_checks, host_checks, rbac_checks};
use crate::host::files::ConfigSources;
use crate::model::cluster::{Cluster, ManagementMode};
use crate::runtime::clusters::ClusterSet;
use crate::runtime::config_source;

/// Number of clusters that are checked in parallel. The checks spend most of the time waiting.
const AT_ONCE: usize = 8;

/// The requested cluster does not exist.
pub(crate) struct NoSuchCluster {
    /// The existing clusters.
    pub(crate) known: Vec<String>,
}

/// Checks a configuration, this host, and all clusters or one.
pub(crate) async fn run_checks(
    wanted: &ConfigSources,
    only: Option<&str>,
    scope: &DoctorRun,
) -> Result<DoctorReport, NoSuchCluster> {
    let config = match config_source::load_config(wanted).await {
        Ok(config) => config,
        Err(problems) => {
            let configuration = host_checks::invalid_config(&problems);
            return Ok(DoctorReport(vec![configuration, host_checks::check_host(&[], scope)]));
        }
    };
    let configuration = host_checks::valid_config(&config);
    let names = config.clusters.iter().map(|it| it.name.to_string());
    let known: Vec<String> = names.collect();
    if only.is_some_and(|name| !known.iter().any(|it| it == name)) {
        return Err(NoSuchCluster { known });
    }
    let mut clusters = config.clusters.clone();
    clusters.retain(|cluster| only.is_none_or(|name| cluster.name.as_str() == name));
    let mut checks = vec![configuration, host_checks::check_host(&clusters, scope)];
    let tools = Tools::new();
    let all = clusters.iter().map(|cluster| tools.check_cluster(cluster, scope));
    let all = stream::iter(all).buffered(AT_ONCE);
    checks.extend(all.collect::<Vec<_>>().await);
    Ok(DoctorReport(checks))
}

/// Clients that the checks share.
struct Tools {
    drivers: ClusterSet,
    #[cfg(feature = "aws")]
    cloud: aws_checks::AwsAccounts,
}

impl Tools {
    fn new() -> Self {
        Self {
            drivers: ClusterSet::start(),
            #[cfg(feature = "aws")]
            cloud: aws_checks::AwsAccounts::default(),
        }
    }

    async fn check_cluster(&self, cluster: &Cluster, scope: &DoctorRun) -> Check {
        let (mut checks, connection) = api_checks::check_api(&self.drivers, cluster, scope).await;
        let client = connection.as_ref().map(|connection| &connection.client);
        let cluster_checks = async {
            match client {
                None => Vec::new(),
                Some(client) => cluster_checks::check_objects(client, cluster, scope).await,
            }
        };
        let granted = async {
            match client {
                None => None,
                Some(client) => Some(rbac_checks::check_permissions(client, cluster, scope).await),
            }
        };
        #[cfg(feature = "aws")]
        let aws = self.cloud.check_aws(cluster, connection.as_ref(), scope);
        #[cfg(not(feature = "aws"))]
        let aws = async {
            let is_ec2 =
                !cluster.region.is_empty() && cluster.simulated.is_none() && cluster.exec.is_none();
            let why = "this build was compiled without the feature \"aws\"";
            let fix = "cargo build --release --features aws";
            is_ec2.then(|| Check::skipped("aws", why, Some(fix)))
        };
        let (granted, cluster_checks, aws): (Option<Check>, Vec<Check>, Option<Check>) =
            tokio::join!(granted, cluster_checks, aws);
        checks.extend(granted);
        checks.extend(cluster_checks);
        checks.push(scope.check_now("pools", || check_pools(cluster)));
        checks.extend(aws);
        let mode = match cluster.mode {
            ManagementMode::Observe => "observed",
            ManagementMode::Manage => "managed",
        };
        Check::from_parts(&format!("cluster {}", cluster.name), mode, checks)
    }
}

/// Lists the pools of a cluster and their node classes.
fn check_pools(cluster: &Cluster) -> Check {
    if cluster.pools.is_empty() {
        let why = "no pool applies to this cluster, so it never gets a node";
        let fix = "add pool \"general\" {}, or list the cluster in the `clusters` of a pool";
        return Check::warning(("pools", DoctorCode::NoPool.code()), why, fix);
    }
    let pools: Vec<&str> = cluster.pools.iter().map(|it| it.name.as_str()).collect();
    let classes = cluster.node_classes.iter().map(|it| it.name.as_str());
    let classes: Vec<&str> = classes.collect();
    let mut finding = pools.join(", ");
    if !classes.is_empty() {
        finding.push_str(&format!("; node classes: {}", classes.join(", ")));
    }
    Check::ok("pools", &finding)
}
