//! Reads the instance types of a region.

use aws_sdk_ec2::types::{
    ArchitectureType, EbsOptimizedSupport, EnaSupport, EphemeralNvmeSupport, Filter, InstanceType,
    InstanceTypeInfo, LocationType, NetworkInfo, NitroEnclavesSupport,
    SupportedAdditionalProcessorFeature, UsageClassType,
};

use crate::catalog::instance_type_info::{Accelerator, Gpu, InstanceTypeSpec, NetworkCard, Neuron};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::Arch;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::network::filter;
use crate::providers::aws::paginate::{self, PAGE};

/// Maximum page size.
const TYPES: i32 = 100;

/// Returns all types that are usable for nodes.
pub(crate) async fn list_types(account: &AwsClients) -> Result<Vec<InstanceTypeSpec>, AwsError> {
    let architectures = Filter::builder()
        .name("processor-info.supported-architecture")
        .values("x86_64")
        .values("arm64");
    let pages = account
        .ec2
        .describe_instance_types()
        .filters(filter("supported-virtualization-type", "hvm"))
        .filters(architectures.build())
        .into_paginator()
        .page_size(TYPES)
        .send();
    paginate::collect(account, "DescribeInstanceTypes", pages, |page, specs| {
        // A type in an unknown format does not hide the other types.
        specs.extend(page.instance_types().iter().filter_map(type_spec));
    })
    .await
}

/// Returns the zones of each type.
pub(crate) async fn list_offerings(
    account: &AwsClients,
) -> Result<Vec<(TypeName, Zone)>, AwsError> {
    let call = account.ec2.describe_instance_type_offerings();
    let call = call.location_type(LocationType::AvailabilityZone);
    let pages = call.into_paginator().page_size(PAGE).send();
    paginate::collect(account, "DescribeInstanceTypeOfferings", pages, |page, offerings| {
        for offering in page.instance_type_offerings() {
            if let (Some(name), Some(zone)) = (offering.instance_type(), offering.location()) {
                offerings.push((TypeName::from(name.as_str()), Zone::from(zone)));
            }
        }
    })
    .await
}

/// Converts a type. `None` if required fields are missing or the type is not usable for nodes.
fn type_spec(info: &InstanceTypeInfo) -> Option<InstanceTypeSpec> {
    let name = info.instance_type().map(InstanceType::as_str)?;
    let processor = info.processor_info()?;
    let arch = processor.supported_architectures().iter().find_map(convert_arch)?;
    let vcpu = count(info.v_cpu_info()?.default_v_cpus())?;
    let memory_mib = u32::try_from(info.memory_info()?.size_in_mib()?).ok()?;
    let mut shape = InstanceTypeSpec::new(name, arch, vcpu, memory_mib);
    let usage = info.supported_usage_classes();
    shape.on_demand = usage.contains(&UsageClassType::OnDemand);
    shape.spot = usage.contains(&UsageClassType::Spot);
    shape.bare_metal = info.bare_metal().unwrap_or(false);
    shape.cpu_manufacturer = processor.manufacturer().map(str::to_owned);
    shape.clock_mhz = processor.sustained_clock_speed_in_ghz().and_then(mhz);
    shape.nested_virtualization = Some(
        processor
            .supported_features()
            .contains(&SupportedAdditionalProcessorFeature::NestedVirtualization),
    );
    shape.hypervisor = Some(info.hypervisor().map_or("", |it| it.as_str()).to_owned());
    shape.enclaves = Some(info.nitro_enclaves_support() == Some(&NitroEnclavesSupport::Supported));
    if let Some(network) = info.network_info() {
        set_network(&mut shape, network);
    }
    if let Some(ebs) = info.ebs_info()
        && ebs.ebs_optimized_support() == Some(&EbsOptimizedSupport::Default)
    {
        let bandwidth = ebs.ebs_optimized_info();
        shape.ebs_mbps = count(bandwidth.and_then(|it| it.maximum_bandwidth_in_mbps()));
    }
    if let Some(disks) = info.instance_storage_info() {
        shape.disk_gb = disks.total_size_in_gb().and_then(|it| u32::try_from(it).ok());
        shape.nvme =
            disks.nvme_support().is_some_and(|it| *it != EphemeralNvmeSupport::Unsupported);
    }
    let strategies = info.placement_group_info();
    shape.placement = strategies.map(|strategy| {
        let names = strategy.supported_strategies().iter();
        names.map(|name| name.as_str().to_owned()).collect()
    });
    set_accelerators(&mut shape, info);
    Some(shape)
}

fn set_network(shape: &mut InstanceTypeSpec, network: &NetworkInfo) {
    let cards = network.network_cards().iter().filter_map(|card| {
        let index = count(card.network_card_index())?;
        let enis = count(card.maximum_network_interfaces())?;
        Some(NetworkCard { index, enis })
    });
    let default = count(network.default_network_card_index()).unwrap_or(0);
    shape.set_cards(default, cards.collect());
    shape.ips_per_eni = count(network.ipv4_addresses_per_interface()).unwrap_or(0);
    shape.ena = network.ena_support().map(|it| *it != EnaSupport::Unsupported);
    let efa = network.efa_info();
    shape.efa_max = count(efa.and_then(|efa| efa.maximum_efa_interfaces())).unwrap_or(0);
    shape.encryption_in_transit = network.encryption_in_transit_supported();
}

fn set_accelerators(shape: &mut InstanceTypeSpec, info: &InstanceTypeInfo) {
    let gpus = info.gpu_info().map(|it| it.gpus()).unwrap_or_default();
    shape.gpus = gpus
        .iter()
        .map(|gpu| Gpu {
            name: gpu.name().unwrap_or_default().to_owned(),
            manufacturer: gpu.manufacturer().unwrap_or_default().to_owned(),
            count: count(gpu.count()).unwrap_or(0),
            memory_mib: count(gpu.memory_info().and_then(|it| it.size_in_mib())).unwrap_or(0),
        })
        .collect();
    let neurons = info.neuron_info().map(|it| it.neuron_devices());
    shape.neurons = neurons
        .unwrap_or_default()
        .iter()
        .map(|neuron| {
            let devices = count(neuron.count()).unwrap_or(0);
            let cores_per_device = neuron.core_info().and_then(|it| it.count());
            Neuron {
                name: neuron.name().map(str::to_owned),
                devices,
                cores: devices.saturating_mul(count(cores_per_device).unwrap_or(0)),
            }
        })
        .collect();
    let accelerators = info.inference_accelerator_info();
    let accelerators = accelerators.map(|it| it.accelerators());
    shape.accelerators = accelerators
        .unwrap_or_default()
        .iter()
        .map(|accelerator| Accelerator {
            name: accelerator.name().unwrap_or_default().to_owned(),
            manufacturer: accelerator.manufacturer().unwrap_or_default().to_owned(),
            count: count(accelerator.count()).unwrap_or(0),
        })
        .collect();
}

fn convert_arch(architecture: &ArchitectureType) -> Option<Arch> {
    match architecture {
        ArchitectureType::X8664 => Some(Arch::Amd64),
        ArchitectureType::Arm64 => Some(Arch::Arm64),
        _ => None,
    }
}

fn count(number: Option<i32>) -> Option<u32> {
    u32::try_from(number?).ok()
}

/// GHz in MHz, rounded.
fn mhz(ghz: f64) -> Option<u32> {
    let mhz = (ghz * 1000.0).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between zero and a million"
    )]
    (mhz > 0.0 && mhz < 1e6).then_some(mhz as u32)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{
        ArchitectureType, EbsInfo, EbsOptimizedInfo, EbsOptimizedSupport, InstanceType,
        InstanceTypeInfo, MemoryInfo, ProcessorInfo, VCpuInfo,
    };

    use super::type_spec;

    fn described(ebs: Option<EbsOptimizedSupport>) -> InstanceTypeInfo {
        let bandwidth = EbsOptimizedInfo::builder().maximum_bandwidth_in_mbps(4750);
        let ebs =
            EbsInfo::builder().set_ebs_optimized_support(ebs).ebs_optimized_info(bandwidth.build());
        let processor = ProcessorInfo::builder().supported_architectures(ArchitectureType::X8664);
        InstanceTypeInfo::builder()
            .instance_type(InstanceType::M5Large)
            .processor_info(processor.build())
            .v_cpu_info(VCpuInfo::builder().default_v_cpus(2).build())
            .memory_info(MemoryInfo::builder().size_in_mib(8192).build())
            .ebs_info(ebs.build())
            .build()
    }

    #[test]
    fn ebs_bandwidth_is_used_only_when_optimization_is_default() {
        for (support, expect) in [
            (Some(EbsOptimizedSupport::Default), Some(4750)),
            (Some(EbsOptimizedSupport::Supported), None),
            (Some(EbsOptimizedSupport::Unsupported), None),
            (None, None),
        ] {
            let spec = type_spec(&described(support.clone())).expect("a type");
            assert_eq!(spec.ebs_mbps, expect, "{support:?}");
        }
    }
}
