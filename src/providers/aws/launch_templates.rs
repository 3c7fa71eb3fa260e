//! Creates launch templates, once per name, and deletes unused templates.

use std::collections::BTreeMap;
use std::sync::Arc;

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
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::ec2::cleanup_scope::CleanupScope;
use crate::ec2::launch_template::{
    Device, Interface, LaunchTemplate, Metadata, Placement, cluster_in, cluster_in_name,
};
use crate::ec2::launch_template_cache::LaunchTemplateCache;
use crate::host::clock;
use crate::model::claim::TAG_INSTALLATION;
use crate::model::labels::Labels;
use crate::outbound::fence;
use crate::providers::aws::clients::{AwsClients, without_retries};
use crate::providers::aws::error::{AwsError, MapAwsError};
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate;

/// Maximum page size.
const PAGE: i32 = 200;

/// Known templates and their users.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    cache: Mutex<LaunchTemplateCache>,
    /// Templates that are being created or deleted. Their requests wait; others do not.
    changing: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

impl Templates {
    /// Creates a value with this cache.
    #[cfg(test)]
    pub(crate) fn from_cache(cache: LaunchTemplateCache) -> Self {
        Self { cache: Mutex::new(cache), ..Self::default() }
    }

    /// Waits until no other task changes a template.
    async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut changing = self.changing.lock().await;
            // No task waits for these.
            changing.retain(|_, lock| Arc::strong_count(lock) > 1);
            changing.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// Ensures that the template of a request exists. Returns the template's name, which the caller
    /// passes to [`Self::on_request_done`].
    pub(crate) async fn ensure_exists(
        &self,
        account: &AwsClients,
        template: &LaunchTemplate,
    ) -> Result<String, AwsError> {
        let name = template.name();
        // Concurrent launches with the same template wait for one creation.
        let _lock = self.lock(&name).await;
        let is_new = self.cache.lock().await.begin_use(&name, clock::now());
        if is_new && let Err(fault) = create_template(account, &name, template).await {
            self.cache.lock().await.remove_missing(&name);
            return Err(fault);
        }
        Ok(name)
    }

    /// Records that a request is complete.
    pub(crate) async fn on_request_done(&self, names: &[String]) {
        let mut cache = self.cache.lock().await;
        for name in names {
            cache.end_use(name, clock::now());
        }
    }

    /// Removes templates from the cache that no longer exist in EC2.
    pub(crate) async fn forget_missing(&self, names: &[String]) {
        let mut cache = self.cache.lock().await;
        for name in names {
            cache.remove_missing(name);
        }
    }

    /// Returns the templates that are unused at this time.
    #[cfg(test)]
    pub(crate) async fn idle_templates(&self, now: jiff::Timestamp) -> Vec<String> {
        self.cache.lock().await.idle_templates(now)
    }

    /// Deletes unused templates of an installation in the cleanup scope. Returns their number.
    pub(crate) async fn delete_unused(
        &self,
        account: &AwsClients,
        installation: &str,
        scope: &CleanupScope,
    ) -> Result<usize, AwsError> {
        let wanted = filter(&format!("tag:{TAG_INSTALLATION}"), installation);
        let call = account.ec2.describe_launch_templates().filters(wanted);
        let pages = call.into_paginator().page_size(PAGE).send();
        let listed =
            paginate::collect(account, "DescribeLaunchTemplates", pages, |page, listed| {
                let templates = page.launch_templates().iter();
                let names = templates.filter_map(|template| template.launch_template_name());
                let names = names.filter(|name| is_in_scope(name, scope));
                listed.extend(names.map(str::to_owned));
            })
            .await?;
        let idle = {
            let mut cache = self.cache.lock().await;
            cache.apply_listing(listed, clock::now());
            let mut idle = cache.idle_templates(clock::now());
            // This host may have lost leadership of a cluster.
            idle.retain(|name| is_in_scope(name, scope));
            idle
        };
        let mut removed = 0;
        for name in idle {
            // Later requests create the template again.
            let _lock = self.lock(&name).await;
            {
                let mut cache = self.cache.lock().await;
                // A request may use it by now.
                if !cache.idle_templates(clock::now()).contains(&name) {
                    continue;
                }
                cache.remove_missing(&name);
            }
            account.buckets.change.wait_for_token().await;
            let call = account.ec2.delete_launch_template();
            let deleted = call.launch_template_name(name).send().await;
            if let Err(fault) = deleted.map_aws_error("DeleteLaunchTemplate")
                && !fault.has_code(&[
                    "InvalidLaunchTemplateName.NotFoundException",
                    "InvalidLaunchTemplateId.NotFound",
                ])
            {
                return Err(fault);
            }
            removed += 1;
        }
        Ok(removed)
    }
}

/// Returns whether the name of a template contains a cluster in the cleanup scope.
fn is_in_scope(name: &str, scope: &CleanupScope) -> bool {
    cluster_in(name).is_some_and(|cluster| scope.may_delete(cluster, cluster_in_name))
}

fn create_call(
    account: &AwsClients,
    name: &str,
    template: &LaunchTemplate,
) -> CreateLaunchTemplateFluentBuilder {
    account
        .ec2
        .create_launch_template()
        .launch_template_name(name)
        .launch_template_data(template_data(template))
        .tag_specifications(tag_specification(ResourceType::LaunchTemplate, &template.tags))
}

/// Tests whether a template could be created, by dry run.
pub(crate) async fn test_creation(
    account: &AwsClients,
    template: &LaunchTemplate,
) -> Result<(), AwsError> {
    account.buckets.change.wait_for_token().await;
    let call = create_call(account, &template.name(), template).dry_run(true);
    let call = call.customize().config_override(without_retries());
    let answer = fence::run_unfenced(call.send()).await;
    answer.map_aws_error("CreateLaunchTemplate").map(drop)
}

async fn create_template(
    account: &AwsClients,
    name: &str,
    template: &LaunchTemplate,
) -> Result<(), AwsError> {
    account.buckets.change.wait_for_token().await;
    let created = create_call(account, name, template).send().await;
    match created.map_aws_error("CreateLaunchTemplate") {
        // Templates with equal names have equal content, so an existing template is not an error.
        Err(fault) if fault.has_code(&["InvalidLaunchTemplateName.AlreadyExistsException"]) => {
            Ok(())
        }
        created => created.map(drop),
    }
}

/// Converts tags to SDK types.
pub(crate) fn to_tags(labels: &Labels) -> Vec<Tag> {
    labels.iter().map(|(key, value)| Tag::builder().key(key).value(value).build()).collect()
}

/// Tag specification for one resource type.
pub(crate) fn tag_specification(kind: ResourceType, labels: &Labels) -> TagSpecification {
    TagSpecification::builder().resource_type(kind).set_tags(Some(to_tags(labels))).build()
}

fn template_data(template: &LaunchTemplate) -> RequestLaunchTemplateData {
    let mut kinds = vec![ResourceType::NetworkInterface];
    if template.spot {
        kinds.push(ResourceType::SpotInstancesRequest);
    }
    let specifications = kinds.into_iter().map(|kind| {
        LaunchTemplateTagSpecificationRequest::builder()
            .resource_type(kind)
            .set_tags(Some(to_tags(&template.tags)))
            .build()
    });
    let devices: Vec<DeviceRequest> = template.devices.iter().map(device_request).collect();
    let profile = template.profile.as_ref();
    let nested = template.nested_virtualization.map(|on| match on {
        true => NestedVirtualizationSpecification::Enabled,
        false => NestedVirtualizationSpecification::Disabled,
    });
    RequestLaunchTemplateData::builder()
        .image_id(&template.image)
        .set_iam_instance_profile(profile.map(|name| ProfileRequest::builder().name(name).build()))
        .user_data(base64::encode(template.user_data.bytes()))
        .set_network_interfaces(Some(template.interfaces.iter().map(interface_request).collect()))
        // EC2 rejects an empty list.
        .set_block_device_mappings(Some(devices).filter(|all| !all.is_empty()))
        .metadata_options(metadata_request(template.metadata))
        .monitoring(
            LaunchTemplatesMonitoringRequest::builder().enabled(template.monitoring).build(),
        )
        .set_cpu_options(nested.map(|on| CpuRequest::builder().nested_virtualization(on).build()))
        .placement(placement_request(&template.placement))
        .enclave_options(EnclaveRequest::builder().enabled(template.enclave).build())
        .capacity_reservation_specification(reservation_request(template.reservation.as_deref()))
        .set_instance_market_options(template.market.map(|market| {
            let market = MarketType::from(market.as_str());
            MarketRequest::builder().market_type(market).build()
        }))
        .set_tag_specifications(Some(specifications.collect()))
        .build()
}

fn interface_request(interface: &Interface) -> InterfaceRequest {
    let tracking = interface.tracking.map(|tracking| {
        TrackingRequest::builder()
            .set_tcp_established_timeout(tracking.tcp_established)
            .set_udp_stream_timeout(tracking.udp_stream)
            .set_udp_timeout(tracking.udp)
            .build()
    });
    InterfaceRequest::builder()
        .set_network_card_index(interface.card)
        .device_index(interface.device)
        .set_interface_type(interface.kind.map(|kind| kind.as_str().to_owned()))
        .set_groups(Some(interface.groups.clone()))
        .set_associate_public_ip_address(interface.public_ip)
        .set_ipv4_prefix_count(interface.ipv4_prefixes)
        .set_ipv6_prefix_count(interface.ipv6_prefixes)
        .set_primary_ipv6(interface.ipv6.map(|(primary, _)| primary))
        .set_ipv6_address_count(interface.ipv6.map(|(_, count)| count))
        .set_connection_tracking_specification(tracking)
        .build()
}

fn device_request(device: &Device) -> DeviceRequest {
    let ebs = EbsRequest::builder()
        .set_volume_size(device.gib)
        .set_volume_type(device.volume_type.as_deref().map(VolumeType::from))
        .set_iops(device.iops)
        .set_throughput(device.throughput)
        .set_encrypted(device.encrypted)
        .set_kms_key_id(device.kms_key_id.clone())
        .set_snapshot_id(device.snapshot_id.clone())
        .set_volume_initialization_rate(device.initialization_rate)
        .set_delete_on_termination(device.delete_on_termination)
        .build();
    DeviceRequest::builder().device_name(&device.name).ebs(ebs).build()
}

fn metadata_request(metadata: Metadata) -> LaunchTemplateInstanceMetadataOptionsRequest {
    use LaunchTemplateInstanceMetadataEndpointState as Endpoint;
    use LaunchTemplateInstanceMetadataProtocolIpv6 as Ipv6;
    LaunchTemplateInstanceMetadataOptionsRequest::builder()
        .http_endpoint(if metadata.endpoint { Endpoint::Enabled } else { Endpoint::Disabled })
        .set_http_protocol_ipv6(metadata.ipv6.map(|on| match on {
            true => Ipv6::Enabled,
            false => Ipv6::Disabled,
        }))
        .http_put_response_hop_limit(metadata.hop_limit)
        .http_tokens(if metadata.tokens_required {
            LaunchTemplateHttpTokensState::Required
        } else {
            LaunchTemplateHttpTokensState::Optional
        })
        .instance_metadata_tags(LaunchTemplateInstanceMetadataTagsState::Disabled)
        .build()
}

fn placement_request(placement: &Placement) -> LaunchTemplatePlacementRequest {
    let tenancy = placement.dedicated.then_some(Tenancy::Dedicated);
    LaunchTemplatePlacementRequest::builder()
        .tenancy(tenancy.unwrap_or(Tenancy::Default))
        .set_group_id(placement.group.clone())
        .set_partition_number(placement.partition)
        .build()
}

fn reservation_request(id: Option<&str>) -> ReservationRequest {
    let request = ReservationRequest::builder();
    match id {
        Some(id) => request
            .capacity_reservation_preference(
                CapacityReservationPreference::CapacityReservationsOnly,
            )
            .capacity_reservation_target(
                CapacityReservationTarget::builder().capacity_reservation_id(id).build(),
            ),
        None => request.capacity_reservation_preference(CapacityReservationPreference::None),
    }
    .build()
}
