//! Checks access to AWS for a cluster: identity, list calls, interruption queue and node classes.
//! Results that are the same for all clusters of one account and region are requested only once.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use futures::future::join_all;
use tokio::sync::{Mutex, OnceCell};

use crate::bootstrap::ClusterEndpoint;
use crate::catalog::region::Region;
use crate::doctor::codes::DoctorCode;
use crate::doctor::node_class_checks::{NodeClassCheck, POLICY, RegionFindings};
use crate::doctor::options::DoctorRun;
use crate::doctor::report::Check;
use crate::doctor::{host_checks, instance_checks};
use crate::ec2::errors::ErrorClass;
use crate::ec2::resolve_node_class::RegionResources;
use crate::host::text::{self, quote_argument};
use crate::kubernetes::client::Connection;
use crate::model::cluster::Cluster;
use crate::providers::aws::clients::{
    AccountKey, Accounts, AwsClients, pricing_region, without_retries,
};
use crate::providers::aws::cluster_info::KnownCluster;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::{caller_identity, cluster_info, instance_types, refresh, sqs};

/// The fix of a read of the API server that failed.
const MANIFESTS: &str = "apply the manifests that terraform/modules/render renders for the cluster";

/// Checks of an account and region, with the discovered resources.
type AccountResult = (Vec<Check>, Option<Arc<RegionFindings>>);

/// Accounts and regions that clusters use.
#[derive(Default)]
pub(super) struct AwsAccounts {
    accounts: Accounts,
    known: Mutex<BTreeMap<AccountKey, Arc<OnceCell<AccountResult>>>>,
}

impl AwsAccounts {
    /// Checks the AWS access of a cluster, or returns `None` if it uses no AWS.
    pub(super) async fn check_aws(
        &self,
        cluster: &Cluster,
        connection: Option<&Connection>,
        scope: &DoctorRun,
    ) -> Option<Check> {
        if !host_checks::uses_aws(cluster) {
            return None;
        }
        if let Some(left_out) = scope.skipped_topic("aws") {
            return Some(left_out);
        }
        let key = AccountKey::from_cluster(cluster);
        let cell = self.known.lock().await.entry(key.clone()).or_default().clone();
        let result = cell.get_or_init(|| async {
            let account = self.accounts.get(&key).await;
            check_region(account, cluster.isolated_vpc, scope).await
        });
        let (mut checks, findings) = result.await.clone();
        if let Some(findings) = findings {
            checks.extend(check_queue(&findings.account, cluster, scope).await);
            if let Some(to) = connection {
                let check = scope.check_within_limit(instance_checks::NAME, async {
                    let found =
                        instance_checks::check_instances(&findings.account, cluster, to).await;
                    found.unwrap_or_else(|fault| {
                        call_failure(instance_checks::NAME, "ec2", &fault, &cluster.region)
                    })
                });
                checks.push(check.await);
            }
            let home = match connection {
                None => None,
                Some(to) => {
                    let (home, check) =
                        check_node_data(&findings.account, cluster, to, scope).await;
                    checks.extend(check);
                    home
                }
            };
            let classes = cluster.node_classes.iter().map(|class| {
                let check = NodeClassCheck {
                    findings: &findings,
                    cluster,
                    class,
                    home: home.as_ref(),
                    scope,
                };
                check.run()
            });
            checks.extend(join_all(classes).await);
        }
        Some(Check::from_parts("aws", &cluster.region, checks))
    }
}

/// Reads the cluster data that nodes receive. Returns a check only if data are missing.
async fn check_node_data(
    account: &AwsClients,
    cluster: &Cluster,
    connection: &Connection,
    scope: &DoctorRun,
) -> (Option<ClusterEndpoint>, Option<Check>) {
    let mut known = KnownCluster::default();
    let read = cluster_info::read_cluster_info(cluster, connection, account, &mut known);
    let (home, why) = match scope.within(read).await {
        None => (None, vec!["no response within the time limit".to_owned()]),
        Some(Err(error)) => (None, vec![text::error_chain(&error)]),
        Some(Ok(info)) => (Some(info.home), info.missing),
    };
    let code = ("node data", DoctorCode::AwsCall.code());
    let why = why.join("; ");
    let fix = if why.contains("in EKS") { POLICY } else { MANIFESTS };
    let check = (!why.is_empty()).then(|| Check::warning(code, &why, fix));
    (home, check)
}

/// Checks an account and region.
async fn check_region(
    account: Arc<AwsClients>,
    is_isolated: bool,
    scope: &DoctorRun,
) -> AccountResult {
    let identity = scope.check_within_limit("identity", async {
        match caller_identity::caller_arn(&account).await {
            Ok(arn) => Check::ok("identity", &arn),
            Err(fault) => identity_failure(&fault, &account),
        }
    });
    let identity = identity.await;
    if identity.has_failed() {
        // If the identity check fails, every other call would fail, too.
        return (vec![identity], None);
    }
    let (types, network, reads) = tokio::join!(
        scope.within(check_instance_types(&account)),
        scope.within(check_network(&account)),
        check_reads(&account, is_isolated, scope),
    );
    let (types, region) = types.unwrap_or_else(|| {
        let region = Region::new(&account.key.region, Region::shipped().source);
        (scope.timed_out("types"), region)
    });
    let (network, resources) =
        network.unwrap_or_else(|| (scope.timed_out("network"), RegionResources::default()));
    let findings =
        RegionFindings { base: Arc::new(region.catalog()), account, region, found: resources };
    (vec![identity, types, network, reads], Some(Arc::new(findings)))
}

/// Reports why AWS rejects the credentials.
fn identity_failure(fault: &AwsError, account: &AwsClients) -> Check {
    let why = fault.to_failure("sts").text;
    let fix = match (&fault.code, &account.key.role) {
        (None, _) => {
            "give this host an instance role (terraform/modules/host), or credentials in \
             /etc/default/outrigger; allow it to reach STS in the region"
        }
        (Some(_), Some(_)) => {
            "allow this host's role to assume role_arn: see the outputs `assume_policy` and \
             `spoke_trust` of terraform/modules/render"
        }
        (Some(_), None) => "aws sts get-caller-identity with the same credentials; renew them",
    };
    Check::failed(("identity", DoctorCode::AwsIdentity.code()), &why, fix)
}

/// Reports a failed call.
fn call_failure(name: &str, service: &str, fault: &AwsError, region: &str) -> Check {
    let failure = fault.to_failure(service);
    let fix = match failure.sort {
        ErrorClass::Denied => POLICY.to_owned(),
        ErrorClass::Throttled => {
            let why = format!("AWS throttles this account: {}", failure.text);
            return Check::skipped(name, &why, None);
        }
        ErrorClass::Fault => format!("allow this host to reach {service} in {region}"),
        _ => format!("check that {region} is the intended region"),
    };
    Check::failed((name, DoctorCode::AwsCall.code()), &failure.text, &fix)
}

/// Checks instance types and their zones, and returns the region.
async fn check_instance_types(account: &AwsClients) -> (Check, Region) {
    let shipped = Region::shipped();
    let mut region = Region::new(&account.key.region, shipped.source);
    let check = match tokio::try_join!(
        instance_types::list_types(account),
        instance_types::list_offerings(account)
    ) {
        Ok((shapes, sold)) => {
            region.set_shapes(shapes, &shipped);
            region.list.clone_from(&shipped.list);
            region.set_zones(sold);
            Check::ok("types", &format!("{} instance types", region.shapes.len()))
        }
        Err(fault) => call_failure("types", "ec2", &fault, &account.key.region),
    };
    (check, region)
}

/// Checks the discovery of subnets, security groups, reservations and placement groups.
async fn check_network(account: &AwsClients) -> (Check, RegionResources) {
    let mut resources = RegionResources::default();
    let (_, outcome) = refresh::refresh_resources(account, &mut resources, true, true).await;
    let check = match outcome {
        Ok(()) => {
            let subnets = resources.subnets.as_ref().map_or(0, Vec::len);
            let groups = resources.security_groups.as_ref().map_or(0, Vec::len);
            Check::ok("network", &format!("{subnets} subnets, {groups} security groups"))
        }
        Err(fault) => call_failure("network", "ec2", &fault, &account.key.region),
    };
    (check, resources)
}

/// Checks the other periodic list calls with dry runs.
async fn check_reads(account: &AwsClients, is_isolated: bool, scope: &DoctorRun) -> Check {
    let all = async {
        let ec2 = &account.ec2;
        let instances = ec2.describe_instances().dry_run(true).customize();
        let status = ec2.describe_instance_status().dry_run(true).customize();
        let templates = ec2.describe_launch_templates().dry_run(true).customize();
        let spot = ec2.describe_spot_price_history().dry_run(true).customize();
        let products = async {
            let has_list = pricing_region(&account.key.region).is_some() && !is_isolated;
            let products = account.pricing.get_products().service_code("AmazonEC2").max_results(1);
            match has_list {
                true => call_error("GetProducts", products.send().await),
                false => None,
            }
        };
        let (instances, status, templates, spot, products) = tokio::join!(
            instances.config_override(without_retries()).send(),
            status.config_override(without_retries()).send(),
            templates.config_override(without_retries()).send(),
            spot.config_override(without_retries()).send(),
            products,
        );
        [
            ("ec2", call_error("DescribeInstances", instances)),
            ("ec2", call_error("DescribeInstanceStatus", status)),
            ("ec2", call_error("DescribeLaunchTemplates", templates)),
            ("ec2", call_error("DescribeSpotPriceHistory", spot)),
            ("pricing", products),
        ]
    };
    let Some(all) = scope.within(all).await else {
        return scope.timed_out("reads");
    };
    let count = all.len();
    let faults = all.into_iter().filter_map(|(service, fault)| {
        let fault = fault?;
        Some(call_failure(fault.operation, service, &fault, &account.key.region))
    });
    Check::from_parts("reads", &format!("tested {count} read calls"), faults.collect())
}

/// Returns the error of a call, or `None` if it succeeded or its dry run passed.
fn call_error<T, E>(
    operation: &'static str,
    answer: Result<T, SdkError<E, HttpResponse>>,
) -> Option<AwsError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    let fault = AwsError::new(operation, answer.err()?);
    let passed = fault.to_failure("ec2").sort == ErrorClass::DryRun;
    Some(fault).filter(|_| !passed)
}

/// Checks the interruption queue, if the cluster has one. Only its URL is requested, because
/// receiving would take messages from the daemon.
async fn check_queue(account: &AwsClients, cluster: &Cluster, scope: &DoctorRun) -> Option<Check> {
    let name = cluster.interruption.as_ref()?.queue.as_str();
    let bare = name.rsplit('/').next().unwrap_or(name);
    Some(
        scope
            .check_within_limit("queue", async {
                match sqs::queue_url(account, bare).await {
                    Ok(url) => Check::ok("queue", &url),
                    Err(fault) if fault.has_code(&["QueueDoesNotExist", ABSENT]) => {
                        let why = format!("queue {bare} does not exist in {}", cluster.region);
                        let fix = format!(
                            "aws sqs list-queues --region {}; terraform/modules/region creates one",
                            quote_argument(&cluster.region)
                        );
                        Check::failed(("queue", DoctorCode::QueueMissing.code()), &why, &fix)
                    }
                    Err(fault) => call_failure("queue", "sqs", &fault, &cluster.region),
                }
            })
            .await,
    )
}

/// The error code of SQS for a missing queue in the protocol before JSON.
const ABSENT: &str = "AWS.SimpleQueueService.NonExistentQueue";
