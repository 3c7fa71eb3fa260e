//! Checks access to AWS for a cluster: identity, list calls, interruption queue and node classes.
//! Results that clusters of one account and region share are requested only once.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use futures::future::join_all;
use tokio::sync::{Mutex, OnceCell};

use crate::catalog::region::Region;
use crate::doctor::codes::DoctorCode;
use crate::doctor::node_class_checks::{NodeClassCheck, POLICY, RegionFindings};
use crate::doctor::options::DoctorRun;
use crate::doctor::report::Check;
use crate::doctor::{host_checks, instance_checks};
use crate::ec2::errors::ErrorClass;
use crate::ec2::resolve_node_class::RegionResources;
use crate::host::text::quoted;
use crate::kubernetes::client::Connection;
use crate::model::cluster::Cluster;
use crate::providers::aws::clients::{AccountKey, Accounts, AwsClients, once};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::{caller_identity, cluster_info, instance_types, refresh, sqs};

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
    pub(super) async fn examine(
        &self,
        cluster: &Cluster,
        connection: Option<&Connection>,
        scope: &DoctorRun,
    ) -> Option<Check> {
        if !host_checks::uses_aws(cluster) {
            return None;
        }
        if let Some(left_out) = scope.left_out("aws") {
            return Some(left_out);
        }
        let key = AccountKey::of(cluster);
        let cell = self
            .known
            .lock()
            .await
            .entry(key.clone())
            .or_default()
            .clone();
        let result = cell.get_or_init(|| async {
            let account = self.accounts.get(&key).await;
            region(account, scope).await
        });
        let (mut checks, findings) = result.await.clone();
        if let Some(findings) = findings {
            checks.extend(interruptions(&findings.account, cluster, scope).await);
            if let Some(to) = connection {
                let check = scope.check(instance_checks::NAME, async {
                    let found = instance_checks::instances(&findings.account, cluster, to).await;
                    found.unwrap_or_else(|fault| {
                        broken(instance_checks::NAME, "ec2", &fault, &cluster.region)
                    })
                });
                checks.push(check.await);
            }
            let home = match connection {
                None => None,
                Some(to) => {
                    scope
                        .within(cluster_info::home(cluster, to, &findings.account))
                        .await
                }
            };
            let home = home
                .and_then(Result::ok)
                .map(|cluster_info| cluster_info.home);
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
        Some(Check::of("aws", &cluster.region, checks))
    }
}

/// Checks an account and region.
async fn region(account: Arc<AwsClients>, scope: &DoctorRun) -> AccountResult {
    let identity = scope.check("identity", async {
        match caller_identity::arn(&account).await {
            Ok(arn) => Check::ok("identity", &arn),
            Err(fault) => unknown(&fault, &account),
        }
    });
    let identity = identity.await;
    if identity.has_failed() {
        // Every other call would fail, too.
        return (vec![identity], None);
    }
    let (types, network, reads) = tokio::join!(
        scope.within(sold(&account)),
        scope.within(network(&account)),
        reads(&account, scope),
    );
    let (types, region) = types.unwrap_or_else(|| {
        let region = Region::new(&account.key.region, Region::shipped().source);
        (scope.late("types"), region)
    });
    let (network, resources) =
        network.unwrap_or_else(|| (scope.late("network"), RegionResources::default()));
    let findings = RegionFindings {
        base: Arc::new(region.catalog()),
        account,
        region,
        found: resources,
    };
    (
        vec![identity, types, network, reads],
        Some(Arc::new(findings)),
    )
}

/// Reports why AWS rejects the credentials.
fn unknown(fault: &AwsError, account: &AwsClients) -> Check {
    let why = fault.sorted("sts").text;
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
fn broken(name: &str, service: &str, fault: &AwsError, region: &str) -> Check {
    let failure = fault.sorted(service);
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
async fn sold(account: &AwsClients) -> (Check, Region) {
    let shipped = Region::shipped();
    let mut region = Region::new(&account.key.region, shipped.source);
    let check = match tokio::try_join!(
        instance_types::shapes(account),
        instance_types::sold(account)
    ) {
        Ok((shapes, sold)) => {
            region.set_shapes(shapes, &shipped);
            region.list.clone_from(&shipped.list);
            region.set_sold(sold);
            Check::ok("types", &format!("{} instance types", region.shapes.len()))
        }
        Err(fault) => broken("types", "ec2", &fault, &account.key.region),
    };
    (check, region)
}

/// Checks the discovery of subnets, security groups, reservations and placement groups.
async fn network(account: &AwsClients) -> (Check, RegionResources) {
    let mut resources = RegionResources::default();
    let (_, outcome) = refresh::refresh(account, &mut resources, true, true).await;
    let check = match outcome {
        Ok(()) => {
            let subnets = resources.subnets.as_ref().map_or(0, Vec::len);
            let groups = resources.security_groups.as_ref().map_or(0, Vec::len);
            Check::ok(
                "network",
                &format!("{subnets} subnets, {groups} security groups"),
            )
        }
        Err(fault) => broken("network", "ec2", &fault, &account.key.region),
    };
    (check, resources)
}

/// Checks the other periodic list calls with dry runs.
async fn reads(account: &AwsClients, scope: &DoctorRun) -> Check {
    let all = async {
        let ec2 = &account.ec2;
        let instances = ec2.describe_instances().dry_run(true).customize();
        let status = ec2.describe_instance_status().dry_run(true).customize();
        let templates = ec2.describe_launch_templates().dry_run(true).customize();
        let spot = ec2.describe_spot_price_history().dry_run(true).customize();
        let products = account.pricing.get_products().service_code("AmazonEC2");
        let (instances, status, templates, spot, products) = tokio::join!(
            instances.config_override(once()).send(),
            status.config_override(once()).send(),
            templates.config_override(once()).send(),
            spot.config_override(once()).send(),
            products.max_results(1).send(),
        );
        [
            ("ec2", fault("DescribeInstances", instances)),
            ("ec2", fault("DescribeInstanceStatus", status)),
            ("ec2", fault("DescribeLaunchTemplates", templates)),
            ("ec2", fault("DescribeSpotPriceHistory", spot)),
            ("pricing", fault("GetProducts", products)),
        ]
    };
    let Some(all) = scope.within(all).await else {
        return scope.late("reads");
    };
    let count = all.len();
    let faults = all.into_iter().filter_map(|(service, fault)| {
        let fault = fault?;
        Some(broken(
            fault.operation,
            service,
            &fault,
            &account.key.region,
        ))
    });
    Check::of(
        "reads",
        &format!("tested {count} read calls"),
        faults.collect(),
    )
}

/// Returns the error of a call, or `None` if it succeeded or its dry run passed.
fn fault<T, E>(
    operation: &'static str,
    answer: Result<T, SdkError<E, HttpResponse>>,
) -> Option<AwsError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    SdkError<E, HttpResponse>: RequestId,
{
    let fault = AwsError::new(operation, answer.err()?);
    let passed = fault.sorted("ec2").sort == ErrorClass::DryRun;
    Some(fault).filter(|_| !passed)
}

/// Checks the interruption queue, if the cluster has one. Only its URL is requested, because
/// receiving would take messages from the daemon.
async fn interruptions(
    account: &AwsClients,
    cluster: &Cluster,
    scope: &DoctorRun,
) -> Option<Check> {
    let name = cluster.interruption.as_ref()?.queue.as_str();
    let bare = name.rsplit('/').next().unwrap_or(name);
    Some(
        scope
            .check("queue", async {
                match sqs::url(account, bare).await {
                    Ok(url) => Check::ok("queue", &url),
                    Err(fault) if fault.is(&["QueueDoesNotExist", ABSENT]) => {
                        let why = format!("queue {bare} does not exist in {}", cluster.region);
                        let fix = format!(
                            "aws sqs list-queues --region {}; terraform/modules/region creates one",
                            quoted(&cluster.region)
                        );
                        Check::failed(("queue", DoctorCode::QueueMissing.code()), &why, &fix)
                    }
                    Err(fault) => broken("queue", "sqs", &fault, &cluster.region),
                }
            })
            .await,
    )
}

/// The error code of SQS for a missing queue in the protocol before JSON.
const ABSENT: &str = "AWS.SimpleQueueService.NonExistentQueue";
