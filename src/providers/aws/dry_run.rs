//! Tests node classes by EC2 dry runs before nodes are launched from them, once for each content of
//! the class.
//!
//! Calls and intervals: docs/decisions/020-dry-run.md.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_sdk_ec2::types::{
    FleetLaunchTemplateConfigRequest, IamInstanceProfileSpecification,
    InstanceNetworkInterfaceSpecification, InstanceType, LaunchTemplateSpecification, ResourceType,
};
use aws_smithy_types::base64;
use tokio::time::Instant;

use crate::bootstrap::ClusterEndpoint;
use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::dry_run::{self, DryRunResult};
use crate::ec2::subnet_capacity::Subnets;
use crate::host::clock;
use crate::model::cluster::Cluster;
use crate::model::id::{ClusterName, NodeClassName};
use crate::model::node_class::NodeIdentity;
use crate::model::node_class::resolved::{Cause, ConditionKind, NodeClassCondition};
use crate::outbound::fence;
use crate::providers::aws::clients::{AwsClients, without_retries};
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::launch_templates::{Templates, tag_specification};
use crate::providers::aws::launchable_class::{LaunchableClass, STAND_IN};
use crate::providers::aws::{create_fleet, launch_templates};

/// Minimum time before a passed test is repeated. A permission that is revoked later shows in the
/// first failed launch.
const PASSED: Duration = Duration::from_hours(12);
/// Failed tests are repeated when classes are resolved, every five minutes, because the user is
/// probably fixing them.
const AGAIN: Duration = Duration::from_mins(4);

/// Results of dry runs.
#[derive(Default)]
pub(crate) struct DryRuns(BTreeMap<(ClusterName, NodeClassName), Tried>);

struct Tried {
    /// The inputs of the test.
    content: String,
    /// Until when the result is valid.
    until: Instant,
    unmet: Option<NodeClassCondition>,
}

impl DryRuns {
    /// Why EC2 would refuse launches from a class, as far as dry runs show. Throttling does not
    /// block a class.
    pub(crate) async fn unmet_condition(
        &mut self,
        account: &AwsClients,
        templates: &Templates,
        cluster: &Cluster,
        home: &ClusterEndpoint,
        ready: &LaunchableClass,
    ) -> Option<NodeClassCondition> {
        let requests = test_requests(cluster, home, ready);
        let content = fingerprint(requests.first()?, ready);
        let key = (cluster.name.clone(), ready.class.name.clone());
        let now = clock::monotonic_now();
        let known = self.0.get(&key);
        if let Some(known) = known.filter(|it| it.content == content && now < it.until) {
            return known.unmet.clone();
        }
        let mut verdict = test_launches(account, templates, &requests).await;
        // A profile that Outrigger has just created may not be visible everywhere yet.
        if let DryRunResult::Refused(Cause::InstanceProfileNotFound, why) = &verdict
            && !matches!(ready.class.identity, Some(NodeIdentity::Profile(_)))
        {
            verdict = DryRunResult::Open(why.clone());
        }
        let (span, unmet) = match verdict {
            DryRunResult::Passed => (PASSED, None),
            DryRunResult::Refused(cause, why) => {
                let kind = ConditionKind::ValidationSucceeded;
                (AGAIN, Some(NodeClassCondition::unmet(kind, cause, why)))
            }
            DryRunResult::Open(why) => {
                let (cluster, node_class) = (&cluster.name, &ready.class.name);
                tracing::info!(%cluster, %node_class, why, "not tested by a dry run");
                (AGAIN, None)
            }
        };
        // Results of unused classes expire.
        self.0.retain(|_, tried| now < tried.until);
        let tried = Tried { content, until: now + span, unmet: unmet.clone() };
        self.0.insert(key, tried);
        unmet
    }
}

/// Returns the launches by which a class is tested. They are for the first pool of the class that
/// has offerings.
pub(crate) fn test_requests(
    cluster: &Cluster,
    home: &ClusterEndpoint,
    ready: &LaunchableClass,
) -> Vec<FleetRequest> {
    let Ok(supply) = &ready.supply.supply else {
        return Vec::new();
    };
    for pool in &cluster.pools {
        if pool.node_class.as_ref() != Some(&ready.class.name) {
            continue;
        }
        let offerings = dry_run::dry_run_offerings(pool, &supply.catalog).into_iter();
        let requests = offerings.filter_map(|offering| {
            let launch = dry_run::dry_run_launch(cluster, pool, offering);
            // A test launch reserves no subnet addresses.
            let mut subnets = Subnets::default();
            let request = ready.fleet_request(&launch, cluster, home, Some(STAND_IN), &mut subnets);
            request.ok()
        });
        let requests: Vec<FleetRequest> = requests.collect();
        if !requests.is_empty() {
            return requests;
        }
    }
    Vec::new()
}

/// Returns the inputs of a test as a string. Template names contain a hash of the template's
/// content.
fn fingerprint(request: &FleetRequest, ready: &LaunchableClass) -> String {
    let names = template_names(request);
    let subnets = ready.resolved.subnets.iter();
    let subnets: BTreeSet<&String> = subnets.map(|subnet| &subnet.id).collect();
    format!("{names:?} {subnets:?} {:?}", request.context)
}

/// Returns the names of the templates of a request.
fn template_names(request: &FleetRequest) -> Vec<String> {
    let configs = request.configs.iter();
    configs.map(|config| config.template.name()).collect()
}

/// Tests launches in order until the test of one launch passes or is not conclusive. Stops without
/// a finding if EC2 throttles a test. If EC2 refuses all launches, returns the first refusal.
async fn test_launches(
    account: &AwsClients,
    templates: &Templates,
    requests: &[FleetRequest],
) -> DryRunResult {
    let mut first_refusal = None;
    for request in requests {
        match test_launch(account, templates, request).await {
            refused @ DryRunResult::Refused(..) => first_refusal.get_or_insert(refused),
            other => return other,
        };
    }
    first_refusal.unwrap_or(DryRunResult::Passed)
}

async fn test_launch(
    account: &AwsClients,
    templates: &Templates,
    request: &FleetRequest,
) -> DryRunResult {
    let names = template_names(request);
    let tried = match create_fleet::fleet_configs(account, templates, request).await {
        Err(fault) => Err(fault),
        Ok(configs) => match test_run_instances(account, request, DryRunSource::Template).await {
            Err(fault) if refusal_result(&fault) == DryRunResult::Passed => {
                test_create_fleet(account, request, configs).await
            }
            other => other,
        },
    };
    templates.on_request_done(&names).await;
    match tried {
        // A dry run changes nothing, so it needs no leadership.
        Ok(()) => DryRunResult::Passed,
        Err(fault) => {
            if fault.has_code(&["InvalidLaunchTemplateName.NotFoundException"]) {
                // The template was deleted. The next launch creates it again.
                templates.forget_missing(&names).await;
            }
            refusal_result(&fault)
        }
    }
}

/// Error codes for a template that does not exist, or exists already.
const ABOUT_NAMES: [&str; 2] = [
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateName.AlreadyExistsException",
];

/// Tests each call of a launch without creating anything, including the template. The fleet request
/// may name a missing template.
pub(crate) async fn test_permissions(
    account: &AwsClients,
    request: &FleetRequest,
) -> [(&'static str, DryRunResult); 3] {
    let template = match request.configs.first() {
        Some(config) => launch_templates::test_creation(account, &config.template).await,
        None => Ok(()),
    };
    let run = test_run_instances(account, request, DryRunSource::Nothing).await;
    let configs = request.configs.iter().map(create_fleet::fleet_config).collect();
    let fleet = test_create_fleet(account, request, configs).await;
    [
        ("ec2:CreateLaunchTemplate", permission_result(template)),
        ("ec2:RunInstances", permission_result(run)),
        ("ec2:CreateFleet", permission_result(fleet)),
    ]
}

/// Returns whether a call is permitted, regardless of the template's existence.
fn permission_result(tried: Result<(), AwsError>) -> DryRunResult {
    match tried {
        Ok(()) => DryRunResult::Passed,
        // EC2 resolves names only for permitted callers.
        Err(fault) if fault.has_code(&ABOUT_NAMES) => DryRunResult::Passed,
        Err(fault) => refusal_result(&fault),
    }
}

fn refusal_result(fault: &AwsError) -> DryRunResult {
    let operation = format!("ec2:{}", fault.operation);
    let code = fault.code.as_deref().unwrap_or_default();
    dry_run::dry_run_result(&operation, code, &fault.message, fault.status)
}

/// Source of the launch parameters in a RunInstances test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DryRunSource {
    /// The existing template of the request.
    Template,
    /// Image, profile and user data, if the template does not exist.
    Nothing,
}

/// Tests RunInstances with the image, subnet, security groups, profile and tags of a request.
async fn test_run_instances(
    account: &AwsClients,
    request: &FleetRequest,
    from: DryRunSource,
) -> Result<(), AwsError> {
    let config = request.configs.first();
    let launch_option = config.and_then(|config| config.overrides.first());
    let (Some(config), Some(launch_option)) = (config, launch_option) else {
        return Ok(());
    };
    let interfaces = config.template.interfaces.iter().map(|it| {
        InstanceNetworkInterfaceSpecification::builder()
            .set_network_card_index(it.card)
            .device_index(it.device)
            .set_interface_type(it.kind.map(|kind| kind.as_str().to_owned()))
            .set_associate_public_ip_address(it.public_ip)
            .set_groups(Some(it.groups.clone()))
            .subnet_id(&launch_option.subnet)
            .build()
    });
    account.buckets.fleet.wait_for_token().await;
    let call = account.ec2.run_instances().dry_run(true);
    let call = match from {
        DryRunSource::Template => {
            let template = LaunchTemplateSpecification::builder()
                .launch_template_name(config.template.name())
                .version("$Latest");
            call.launch_template(template.build())
        }
        DryRunSource::Nothing => {
            let profile = config.template.profile.as_ref();
            let profile =
                profile.map(|name| IamInstanceProfileSpecification::builder().name(name).build());
            call.image_id(&launch_option.image)
                .set_iam_instance_profile(profile)
                .user_data(base64::encode(config.template.user_data.bytes()))
        }
    };
    let mut call = call
        .min_count(1)
        .max_count(1)
        .instance_type(InstanceType::from(launch_option.offering.instance_type.as_str()))
        .set_network_interfaces(Some(interfaces.collect()));
    for kind in [ResourceType::Instance, ResourceType::Volume, ResourceType::NetworkInterface] {
        call = call.tag_specifications(tag_specification(kind, &request.tags));
    }
    // No retries on throttling, because the test can wait.
    let call = call.customize().config_override(without_retries());
    let answer = fence::run_unfenced(call.send()).await;
    answer.map_aws_error("RunInstances").map(drop)
}

/// Tests CreateFleet with one instance.
async fn test_create_fleet(
    account: &AwsClients,
    request: &FleetRequest,
    configs: Vec<FleetLaunchTemplateConfigRequest>,
) -> Result<(), AwsError> {
    account.buckets.fleet.wait_for_token().await;
    let call = create_fleet::fleet_call(account, request, configs).dry_run(true);
    let call = call.customize().config_override(without_retries());
    let answer = fence::run_unfenced(call.send()).await;
    answer.map_aws_error("CreateFleet").map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use crate::engine::event::Event;
    use crate::host::clock;
    use crate::providers::aws::tests::idle_calls::{self, Counts, OperationErrors, start_provider};

    const NO_PASS_ROLE: &str = "You are not authorized to perform this operation. User: u is not \
                         authorized to perform: iam:PassRole on resource: \
                         arn:aws:iam::1:role/node because no identity-based policy allows it.";
    const OTHER_NETWORK: &str =
        "Security group sg-1 and subnet subnet-1 belong to different networks.";
    const UNKNOWN_PROFILE: &str = "Invalid IAM Instance Profile name";

    /// The condition of a cluster's node class after each resolution within `minutes`, with the
    /// errors `refused` during the first one, and the number of dry runs.
    async fn resolve_class(
        refused: &[(&'static str, &'static str, &'static str)],
        minutes: u64,
        disable: bool,
    ) -> (Vec<Option<String>>, u64) {
        let (counts, errors) = (Counts::default(), OperationErrors::default());
        for (operation, code, message) in refused {
            errors.lock().expect("no panic").insert(operation, (code, message));
        }
        let regions = idle_calls::regions(&counts, &errors);
        let mut cluster = idle_calls::cluster(0);
        cluster.disable_dry_run = disable;
        let (_provider, mut inbox) = start_provider(&regions, cluster, idle_calls::api()).await;
        let began = clock::monotonic_now();
        let span = Duration::from_secs(60 * minutes);
        let mut all: Vec<Option<String>> = Vec::new();
        while clock::monotonic_now().duration_since(began) < span {
            sleep(Duration::from_secs(60)).await;
            regions.trigger_reads().await;
            errors.lock().expect("no panic").clear();
            while let Ok(event) = inbox.try_recv() {
                if let Event::ClassesChanged(classes) = event {
                    let condition =
                        classes["default"].supply.as_ref().err().map(ToString::to_string);
                    all.push(condition);
                }
            }
        }
        // Nothing is known before the first response of AWS.
        let first = all.remove(0).unwrap_or_default();
        assert!(first.contains("not read from AWS yet"), "{first}");
        let counts = counts.lock().expect("no panic");
        (all, counts.get("RunInstances").copied().unwrap_or(0))
    }

    #[tokio::test(start_paused = true)]
    async fn node_class_reports_dry_run_errors_until_they_are_fixed() {
        for (operation, code, message, words) in [
            (
                "RunInstances",
                "UnauthorizedOperation",
                NO_PASS_ROLE,
                "Denied: not allowed: iam:PassRole on arn:aws:iam::1:role/node; granted by \
                 statement AllowPassingInstanceRole of the shipped policy",
            ),
            (
                "CreateLaunchTemplate",
                "UnauthorizedOperation",
                "You are not authorized.",
                "Denied: not allowed: ec2:CreateLaunchTemplate; granted by statement \
                 AllowScopedEC2InstanceActionsWithTags",
            ),
            (
                "RunInstances",
                "InvalidParameter",
                OTHER_NETWORK,
                "LaunchInvalid: ec2:RunInstances: InvalidParameter",
            ),
            (
                "RunInstances",
                "InvalidUserData.Malformed",
                "User data is limited to 16384 bytes",
                "UserDataTooLarge: ",
            ),
        ] {
            let (conditions, tried) = resolve_class(&[(operation, code, message)], 8, false).await;
            let first = conditions[0].clone().unwrap_or_default();
            assert!(first.starts_with(words), "{operation} {code}: {first}");
            assert_eq!(conditions.last(), Some(&None), "{operation} {code}: {conditions:?}");
            // The template cannot be created, so no dry run is sent.
            let runs = if operation == "RunInstances" { 2 } else { 1 };
            assert_eq!(tried, runs, "{operation} {code}: {conditions:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn inconclusive_dry_run_errors_do_not_block_a_node_class() {
        for (code, message, tried) in [
            ("DryRunOperation", "Request would have succeeded.", 1),
            ("RequestLimitExceeded", "slow down", 2),
            ("Unsupported", "not in this zone", 2),
            // The instance profile of the class is new.
            ("InvalidParameterValue", UNKNOWN_PROFILE, 2),
        ] {
            let (conditions, count) =
                resolve_class(&[("RunInstances", code, message)], 8, false).await;
            assert!(conditions.iter().all(Option::is_none), "{code}: {conditions:?}");
            assert_eq!(count, tried, "{code}");
        }
        let refused = [("RunInstances", "UnauthorizedOperation", NO_PASS_ROLE)];
        let (conditions, count) = resolve_class(&refused, 8, true).await;
        assert!(conditions.iter().all(Option::is_none), "{conditions:?}");
        assert_eq!(count, 0, "dry runs are disabled");
    }
}
