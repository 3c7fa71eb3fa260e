//! Launch templates in the SDK's shapes: made once for each name, removed when nobody uses them.
//! It must not know what a template is for.

use aws_sdk_ec2::operation::create_launch_template::builders::CreateLaunchTemplateFluentBuilder;
use aws_sdk_ec2::types::{
    CapacityReservationPreference, CapacityReservationTarget,
    ConnectionTrackingSpecificationRequest as TrackingRequest,
    LaunchTemplateBlockDeviceMappingRequest as DeviceRequest,
    LaunchTemplateCapacityReservationSpecificationRequest as ReservationRequest,
    LaunchTemplateCpuOptionsRequest as CpuRequest,
    LaunchTemplateEbsBlockDeviceRequest as EbsRequest,
    LaunchTemplateEnclaveOptionsRequest as EnclaveRequest, LaunchTemplateHttpTokensState,
    LaunchTemplateIamInstanceProfileSpecificationRequest as ProfileRequest,
    LaunchTemplateInstanceMarketOptionsRequest as MarketRequest,
    LaunchTemplateInstanceMetadataEndpointState, LaunchTemplateInstanceMetadataOptionsRequest,
    LaunchTemplateInstanceMetadataProtocolIpv6, LaunchTemplateInstanceMetadataTagsState,
    LaunchTemplateInstanceNetworkInterfaceSpecificationRequest as InterfaceRequest,
    LaunchTemplatePlacementRequest, LaunchTemplateTagSpecificationRequest,
    LaunchTemplatesMonitoringRequest, MarketType, NestedVirtualizationSpecification,
    RequestLaunchTemplateData, ResourceType, Tag, TagSpecification, Tenancy, VolumeType,
};
use aws_smithy_types::base64;
use tokio::sync::Mutex;

use crate::ec2::launch_template::{
    Device, Interface, LaunchTemplate, Metadata, Placement, cluster_in, spelt,
};
use crate::ec2::launch_template_cache::LaunchTemplateCache;
use crate::host::clock;
use crate::model::claim::TAG_INSTALLATION;
use crate::model::labels::Labels;
use crate::outbound::fence;
use crate::providers::aws::cleanup_scope::CleanupScope;
use crate::providers::aws::clients::{AwsClients, once};
use crate::providers::aws::error::AwsError;
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate;

/// Templates of a page, the most that EC2 gives.
const PAGE: i32 = 200;

/// The templates that are known to be there, and who needs them.
#[derive(Debug, Default)]
pub(crate) struct Templates(Mutex<LaunchTemplateCache>);

impl Templates {
    /// Those of a shelf.
    #[cfg(test)]
    pub(crate) fn of(shelf: LaunchTemplateCache) -> Self {
        Self(Mutex::new(shelf))
    }

    /// A request needs a template: it is made, unless it is known to be there. Returns its name,
    /// for [`done`](Self::done).
    pub(crate) async fn ensure(
        &self,
        account: &AwsClients,
        template: &LaunchTemplate,
    ) -> Result<String, AwsError> {
        let name = template.name();
        // Launches that need the same one wait for each other: it is made once.
        let mut shelf = self.0.lock().await;
        if shelf.begin(&name, clock::now())
            && let Err(fault) = create(account, &name, template).await
        {
            shelf.gone(&name);
            return Err(fault);
        }
        Ok(name)
    }

    /// A request has its answer.
    pub(crate) async fn done(&self, names: &[String]) {
        let mut shelf = self.0.lock().await;
        for name in names {
            shelf.end(name, clock::now());
        }
    }

    /// EC2 does not know these after all: somebody has removed them.
    pub(crate) async fn forget(&self, names: &[String]) {
        let mut shelf = self.0.lock().await;
        for name in names {
            shelf.gone(name);
        }
    }

    /// Removes those of an installation that are looked after here and that nobody needs any more;
    /// how many.
    pub(crate) async fn collect(
        &self,
        account: &AwsClients,
        installation: &str,
        care: &CleanupScope,
    ) -> Result<usize, AwsError> {
        let pages = account
            .ec2
            .describe_launch_templates()
            .filters(filter(&format!("tag:{TAG_INSTALLATION}"), installation))
            .into_paginator()
            .page_size(PAGE)
            .send();
        let mut listed = Vec::new();
        paginate::each(account, "DescribeLaunchTemplates", pages, |page| {
            let names = page.launch_templates().iter();
            let names = names.filter_map(|own| own.launch_template_name());
            listed.extend(names.map(str::to_owned));
        })
        .await?;
        let is_ours = |name: &String| {
            let cluster = cluster_in(name);
            cluster.is_some_and(|own| care.is_for(own, spelt))
        };
        listed.retain(is_ours);
        let idle = {
            let mut shelf = self.0.lock().await;
            shelf.listed(listed, clock::now());
            let mut idle = shelf.idle(clock::now());
            // This host may have led a cluster before that it leads no more.
            idle.retain(is_ours);
            idle
        };
        let removed = idle.len();
        for name in idle {
            // Whoever needs it from here on makes it again.
            self.0.lock().await.gone(&name);
            account.buckets.change.turn().await;
            let call = account.ec2.delete_launch_template();
            if let Err(error) = call.launch_template_name(name).send().await {
                let fault = AwsError::new("DeleteLaunchTemplate", error);
                if !fault.is(&[
                    "InvalidLaunchTemplateName.NotFoundException",
                    "InvalidLaunchTemplateId.NotFound",
                ]) {
                    return Err(fault);
                }
            }
        }
        Ok(removed)
    }
}

fn call(
    account: &AwsClients,
    name: &str,
    template: &LaunchTemplate,
) -> CreateLaunchTemplateFluentBuilder {
    account
        .ec2
        .create_launch_template()
        .launch_template_name(name)
        .launch_template_data(data(template))
        .tag_specifications(specification(ResourceType::LaunchTemplate, &template.tags))
}

/// Whether a template might be made; it is not, and nobody is asked not to answer.
pub(crate) async fn rehearse(
    account: &AwsClients,
    template: &LaunchTemplate,
) -> Result<(), AwsError> {
    account.buckets.change.turn().await;
    let call = call(account, &template.name(), template).dry_run(true);
    let call = call.customize().config_override(once());
    let answer = fence::without(call.send()).await;
    answer.map_err(|error| AwsError::new("CreateLaunchTemplate", error))?;
    Ok(())
}

async fn create(
    account: &AwsClients,
    name: &str,
    template: &LaunchTemplate,
) -> Result<(), AwsError> {
    account.buckets.change.turn().await;
    match call(account, name, template).send().await {
        Ok(_) => Ok(()),
        Err(error) => {
            let fault = AwsError::new("CreateLaunchTemplate", error);
            // Named by content: whoever made it made the same.
            if fault.is(&["InvalidLaunchTemplateName.AlreadyExistsException"]) {
                return Ok(());
            }
            Err(fault)
        }
    }
}

/// Tags in the SDK's shape.
pub(crate) fn tags(labels: &Labels) -> Vec<Tag> {
    let pair = |(key, value): (&String, &String)| Tag::builder().key(key).value(value).build();
    labels.iter().map(pair).collect()
}

/// Tags of what a call makes of one kind.
pub(crate) fn specification(kind: ResourceType, labels: &Labels) -> TagSpecification {
    TagSpecification::builder()
        .resource_type(kind)
        .set_tags(Some(tags(labels)))
        .build()
}

fn data(template: &LaunchTemplate) -> RequestLaunchTemplateData {
    let mut kinds = vec![ResourceType::NetworkInterface];
    if template.spot {
        kinds.push(ResourceType::SpotInstancesRequest);
    }
    let specification = |kind| {
        LaunchTemplateTagSpecificationRequest::builder()
            .resource_type(kind)
            .set_tags(Some(tags(&template.tags)))
            .build()
    };
    let devices: Vec<DeviceRequest> = template.devices.iter().map(device).collect();
    let profile = template.profile.as_ref();
    let nested = template.nested_virtualization.map(|on| match on {
        true => NestedVirtualizationSpecification::Enabled,
        false => NestedVirtualizationSpecification::Disabled,
    });
    RequestLaunchTemplateData::builder()
        .image_id(&template.image)
        .set_iam_instance_profile(profile.map(|name| ProfileRequest::builder().name(name).build()))
        .user_data(base64::encode(template.user_data.bytes()))
        .set_network_interfaces(Some(template.interfaces.iter().map(interface).collect()))
        // EC2 takes no empty list.
        .set_block_device_mappings(Some(devices).filter(|all| !all.is_empty()))
        .metadata_options(metadata(template.metadata))
        .monitoring(
            LaunchTemplatesMonitoringRequest::builder()
                .enabled(template.monitoring)
                .build(),
        )
        .set_cpu_options(nested.map(|on| CpuRequest::builder().nested_virtualization(on).build()))
        .placement(placement(&template.placement))
        .enclave_options(EnclaveRequest::builder().enabled(template.enclave).build())
        .capacity_reservation_specification(reservation(template.reservation.as_deref()))
        .set_instance_market_options(template.market.map(|own| {
            let market = MarketType::from(own.as_str());
            MarketRequest::builder().market_type(market).build()
        }))
        .set_tag_specifications(Some(kinds.into_iter().map(specification).collect()))
        .build()
}

fn interface(own: &Interface) -> InterfaceRequest {
    let tracking = own.tracking.map(|own| {
        TrackingRequest::builder()
            .set_tcp_established_timeout(own.tcp_established)
            .set_udp_stream_timeout(own.udp_stream)
            .set_udp_timeout(own.udp)
            .build()
    });
    InterfaceRequest::builder()
        .set_network_card_index(own.card)
        .device_index(own.device)
        .set_interface_type(own.kind.map(|kind| kind.as_str().to_owned()))
        .set_groups(Some(own.groups.clone()))
        .set_associate_public_ip_address(own.public_ip)
        .set_ipv4_prefix_count(own.ipv4_prefixes)
        .set_ipv6_prefix_count(own.ipv6_prefixes)
        .set_primary_ipv6(own.ipv6.map(|(primary, _)| primary))
        .set_ipv6_address_count(own.ipv6.map(|(_, count)| count))
        .set_connection_tracking_specification(tracking)
        .build()
}

fn device(own: &Device) -> DeviceRequest {
    let ebs = EbsRequest::builder()
        .set_volume_size(own.gib)
        .set_volume_type(own.volume_type.as_deref().map(VolumeType::from))
        .set_iops(own.iops)
        .set_throughput(own.throughput)
        .set_encrypted(own.encrypted)
        .set_kms_key_id(own.kms_key_id.clone())
        .set_snapshot_id(own.snapshot_id.clone())
        .set_volume_initialization_rate(own.initialization_rate)
        .set_delete_on_termination(own.delete_on_termination)
        .build();
    DeviceRequest::builder()
        .device_name(&own.name)
        .ebs(ebs)
        .build()
}

fn metadata(own: Metadata) -> LaunchTemplateInstanceMetadataOptionsRequest {
    use LaunchTemplateInstanceMetadataEndpointState as Endpoint;
    use LaunchTemplateInstanceMetadataProtocolIpv6 as Ipv6;
    LaunchTemplateInstanceMetadataOptionsRequest::builder()
        .http_endpoint(if own.endpoint {
            Endpoint::Enabled
        } else {
            Endpoint::Disabled
        })
        .set_http_protocol_ipv6(own.ipv6.map(|on| match on {
            true => Ipv6::Enabled,
            false => Ipv6::Disabled,
        }))
        .http_put_response_hop_limit(own.hop_limit)
        .http_tokens(if own.tokens_required {
            LaunchTemplateHttpTokensState::Required
        } else {
            LaunchTemplateHttpTokensState::Optional
        })
        .instance_metadata_tags(LaunchTemplateInstanceMetadataTagsState::Disabled)
        .build()
}

fn placement(own: &Placement) -> LaunchTemplatePlacementRequest {
    let tenancy = own.dedicated.then_some(Tenancy::Dedicated);
    LaunchTemplatePlacementRequest::builder()
        .tenancy(tenancy.unwrap_or(Tenancy::Default))
        .set_group_id(own.group.clone())
        .set_partition_number(own.partition)
        .build()
}

fn reservation(id: Option<&str>) -> ReservationRequest {
    let request = ReservationRequest::builder();
    match id {
        Some(id) => request
            .capacity_reservation_preference(
                CapacityReservationPreference::CapacityReservationsOnly,
            )
            .capacity_reservation_target(
                CapacityReservationTarget::builder()
                    .capacity_reservation_id(id)
                    .build(),
            ),
        None => request.capacity_reservation_preference(CapacityReservationPreference::None),
    }
    .build()
}
