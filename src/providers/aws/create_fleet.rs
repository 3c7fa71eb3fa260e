//! Executes one CreateFleet call and returns its outcome.

use std::borrow::Cow;
use std::sync::Arc;

use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    CreateFleetError as Listed, DefaultTargetCapacityType, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest,
    FleetOnDemandAllocationStrategy, FleetReservationType, FleetType, InstanceLifecycle,
    InstanceType, OnDemandOptionsRequest, ReservedCapacityOptionsRequest, ResourceType,
    SpotAllocationStrategy, SpotOptionsRequest, TargetCapacitySpecificationRequest,
};

use futures::future::join_all;

use crate::ec2::create_fleet::{
    FleetRequest, LaunchTemplateConfig, Override, TOKEN_MAX, TargetCapacityType,
};
use crate::ec2::errors::{ErrorClass, FleetError, FleetOutcome, TEMPLATE_GONE};
use crate::host::clock;
use crate::model::claim::TAG_FLEET;
use crate::model::id::InstanceId;
use crate::model::instance::{CapacityType, Instance, InstanceState, OfferingKey};
use crate::model::labels::Labels;
use crate::providers::aws::clients::{AwsClients, for_launches};
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::launch_templates::{Templates, tag_specification};

/// The outcome of a request.
pub(crate) struct FleetLaunch {
    /// The instances, each with its subnet.
    pub(crate) launched: Vec<(Instance, Option<String>)>,
    /// The errors in the response.
    pub(crate) errors: FleetOutcome,
}

/// How often a request that is too large is repeated with half of its alternatives.
const HALVINGS_MAX: usize = 3;

/// Creates missing templates of a request, then requests the instances. The caller has waited for
/// the rate limit.
///
/// If EC2 reports a template as missing, it is created again and the request is repeated once. A
/// request that is too large is repeated with fewer alternatives. Both were without effect. A
/// repeated request has its own token if it differs, or if EC2 has returned a fleet without
/// instances, which EC2 would return again for the same token.
pub(crate) async fn launch_instances(
    account: &AwsClients,
    templates: &Templates,
    request: &FleetRequest,
) -> Result<FleetLaunch, AwsError> {
    let mut request = Cow::Borrowed(request);
    let (mut is_template_checked, mut halvings) = (false, 0);
    loop {
        let outcome = request_fleet(account, templates, &request).await;
        let names: Vec<String> = request.configs.iter().map(|it| it.template.name()).collect();
        templates.on_request_done(&names).await;
        let (is_gone, has_instances) = match &outcome {
            Ok(launch) => (launch.errors.template_gone, !launch.launched.is_empty()),
            Err(fault) => (fault.has_code(&[TEMPLATE_GONE]), false),
        };
        if is_gone && !is_template_checked {
            templates.forget_missing(&names).await;
        }
        let fault = outcome.as_ref().err().map(|fault| fault.to_failure("ec2").sort);
        let token = next_token(&request.token);
        if is_gone && !has_instances && !is_template_checked {
            is_template_checked = true;
            if outcome.is_ok() {
                request.to_mut().token = token;
            }
        } else if fault == Some(ErrorClass::RequestTooLarge)
            && halvings < HALVINGS_MAX
            && let Some(smaller) = request.with_fewer_overrides(request.overrides().count() / 2)
        {
            halvings += 1;
            request = Cow::Owned(FleetRequest { token, ..smaller });
        } else {
            return outcome;
        }
    }
}

/// Returns the token of a repeated request, within the limit of EC2.
fn next_token(token: &str) -> String {
    let kept: String = token.chars().take(TOKEN_MAX - 1).collect();
    format!("{kept}r")
}

async fn request_fleet(
    account: &AwsClients,
    templates: &Templates,
    request: &FleetRequest,
) -> Result<FleetLaunch, AwsError> {
    let configs = fleet_configs(account, templates, request).await?;
    let call = fleet_call(account, request, configs).client_token(&request.token);
    // The SDK does not retry here, because it would return only the result of the last attempt. EC2
    // may refuse that attempt although the first attempt, whose response was lost, has created an
    // instance. The engine retries, and considers this case.
    let answer = call.customize().config_override(for_launches()).send().await;
    let answer = answer.map_aws_error("CreateFleet")?;
    let errors: Vec<FleetError> = answer.errors().iter().map(to_fleet_error).collect();
    Ok(FleetLaunch {
        launched: launched_instances(&answer, request),
        errors: FleetOutcome::from_errors(request, &errors),
    })
}

/// The templates of a request with their alternatives. Creates missing templates.
pub(crate) async fn fleet_configs(
    account: &AwsClients,
    templates: &Templates,
    request: &FleetRequest,
) -> Result<Vec<FleetLaunchTemplateConfigRequest>, AwsError> {
    let wanted = request.configs.iter();
    // No creation is cancelled because of the error of another one.
    let created = wanted.clone().map(|it| templates.ensure_exists(account, &it.template));
    for outcome in join_all(created).await {
        outcome?;
    }
    Ok(wanted.map(fleet_config).collect())
}

/// A template by name, with its alternatives.
pub(crate) fn fleet_config(config: &LaunchTemplateConfig) -> FleetLaunchTemplateConfigRequest {
    let template = FleetLaunchTemplateSpecificationRequest::builder()
        .launch_template_name(config.template.name())
        // Each template has one version, because its name contains the content hash.
        .version("$Latest")
        .build();
    FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(template)
        .set_overrides(Some(config.overrides.iter().map(override_request).collect()))
        .build()
}

/// Builds the call of a request, without the client token.
pub(crate) fn fleet_call(
    account: &AwsClients,
    request: &FleetRequest,
    configs: Vec<FleetLaunchTemplateConfigRequest>,
) -> CreateFleetFluentBuilder {
    let call = account
        .ec2
        .create_fleet()
        .r#type(FleetType::Instant)
        .set_launch_template_configs(Some(configs))
        .set_context(request.context.clone())
        .tag_specifications(tag_specification(ResourceType::Instance, &request.tags))
        .tag_specifications(tag_specification(ResourceType::Volume, &request.tags))
        .tag_specifications(tag_specification(ResourceType::Fleet, &request.tags))
        .target_capacity_specification(
            TargetCapacitySpecificationRequest::builder()
                .total_target_capacity(i32::try_from(request.count).unwrap_or(1))
                .default_target_capacity_type(DefaultTargetCapacityType::from(
                    request.target.as_str(),
                ))
                .build(),
        );
    let strategy = request.strategy.map(|strategy| strategy.as_str());
    match (request.target, strategy) {
        (TargetCapacityType::Spot, Some(strategy)) => call.spot_options(
            SpotOptionsRequest::builder()
                .allocation_strategy(SpotAllocationStrategy::from(strategy))
                .build(),
        ),
        (TargetCapacityType::OnDemand, Some(strategy)) => call.on_demand_options(
            OnDemandOptionsRequest::builder()
                .allocation_strategy(FleetOnDemandAllocationStrategy::from(strategy))
                .build(),
        ),
        (TargetCapacityType::Interruptible, _) => call.reserved_capacity_options(
            ReservedCapacityOptionsRequest::builder()
                .reservation_types(FleetReservationType::InterruptibleCapacityReservation)
                .build(),
        ),
        _ => call,
    }
}

fn override_request(launch_option: &Override) -> FleetLaunchTemplateOverridesRequest {
    FleetLaunchTemplateOverridesRequest::builder()
        .instance_type(InstanceType::from(launch_option.offering.instance_type.as_str()))
        .subnet_id(&launch_option.subnet)
        .availability_zone(launch_option.offering.zone.as_str())
        .image_id(&launch_option.image)
        .priority(launch_option.priority)
        .build()
}

/// The instances in a response. Missing fields are taken from the request: the response to a
/// repeated token may omit fields.
fn launched_instances(
    answer: &CreateFleetOutput,
    request: &FleetRequest,
) -> Vec<(Instance, Option<String>)> {
    let mut tags = request.tags.clone();
    if let Some(fleet) = answer.fleet_id() {
        tags.insert(TAG_FLEET.to_owned(), fleet.to_owned());
    }
    let tags: Arc<Labels> = tags.into();
    let mut launched = Vec::new();
    for group in answer.instances() {
        let overrides = group.launch_template_and_overrides();
        let overrides = overrides.and_then(|it| it.overrides());
        let kind = group.instance_type().or(overrides.and_then(|it| it.instance_type()));
        let zone = overrides.and_then(|it| it.availability_zone());
        let subnet = overrides.and_then(|it| it.subnet_id()).or(group.subnet_id());
        let chosen = request
            .overrides()
            .find(|it| {
                kind.is_none_or(|kind| kind.as_str() == it.offering.instance_type.as_str())
                    && zone.is_none_or(|zone| zone == it.offering.zone.as_str())
                    && subnet.is_none_or(|subnet| subnet == it.subnet)
            })
            .or(request.overrides().next());
        let Some(chosen) = chosen else {
            continue;
        };
        let capacity_type = match group.lifecycle() {
            Some(InstanceLifecycle::Spot) => CapacityType::Spot,
            _ => chosen.offering.capacity_type,
        };
        launched.extend(group.instance_ids().iter().map(|id| {
            let instance = Instance {
                id: InstanceId::from(id.as_str()),
                offering: OfferingKey { capacity_type, ..chosen.offering.clone() },
                state: InstanceState::Pending,
                launched: clock::now(),
                tags: tags.clone(),
                node: None,
                facts: None,
            };
            (instance, subnet.map(str::to_owned))
        }));
    }
    launched
}

fn to_fleet_error(fleet_error: &Listed) -> FleetError {
    let overrides = fleet_error.launch_template_and_overrides();
    let overrides = overrides.and_then(|it| it.overrides());
    FleetError {
        code: fleet_error.error_code().unwrap_or_default().to_owned(),
        message: fleet_error.error_message().unwrap_or_default().to_owned(),
        instance_type: overrides.and_then(|it| it.instance_type()).map(|it| it.as_str().to_owned()),
        zone: overrides.and_then(|it| it.availability_zone()).map(str::to_owned),
        subnet: overrides.and_then(|it| it.subnet_id()).map(str::to_owned),
    }
}
