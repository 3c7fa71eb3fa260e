//! Converts node classes.

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::report_exclusive;
use crate::config::report::error_at;
use crate::model::id::NodeClassName;
use crate::model::node_class::{MetadataOptions, NodeClass, NodeIdentity, VM_OVERHEAD_PER_MILLE};

// Selector terms: images, subnets, groups, reservations.
mod terms;
// Block devices and network interfaces.
mod devices;
// Kubelet settings, checked against the image family.
mod kubelet;
// Bootstrap settings.
mod bootstrap;

/// A node class and its clusters.
pub(super) struct NodeClassSpec {
    pub(super) class: NodeClass,
    /// Names of clusters, or patterns.
    pub(super) clusters: Vec<String>,
    pub(super) section: DecodedBlock,
}

pub(super) fn lower_node_classes(reader: &Decoder<'_>) -> Vec<NodeClassSpec> {
    let (instances, _) = reader.decode_instances("node_class");
    let drafts = instances.into_iter().map(|instance| {
        let section = instance.section;
        NodeClassSpec {
            class: lower_node_class(reader, &section),
            clusters: section
                .texts("clusters")
                .map_or_else(|| vec!["*".to_owned()], <[String]>::to_vec),
            section,
        }
    });
    drafts.collect()
}

fn lower_node_class(reader: &Decoder<'_>, section: &DecodedBlock) -> NodeClass {
    report_exclusive(section, "role", "instance_profile");
    let images = terms::image_terms(section);
    let family = terms::ami_family(section, &images);
    let bootstrap = bootstrap::lower_bootstrap(reader, section, family);
    NodeClass {
        name: NodeClassName::from(section.label()),
        family,
        images,
        subnets: terms::subnet_terms(section),
        security_groups: terms::security_groups(section),
        reservations: terms::reservation_terms(section),
        placement_group: terms::placement_group(section),
        identity: section
            .owned_text("role")
            .map(NodeIdentity::Role)
            .or_else(|| section.owned_text("instance_profile").map(NodeIdentity::Profile)),
        public_ip: section.flag("associate_public_ip"),
        ip_prefix_count: section.count("ip_prefix_count"),
        user_data: section.owned_text("user_data").unwrap_or_default(),
        bootstrap,
        tags: section.string_map("tags"),
        kubelet: kubelet::lower_kubelet(section, family),
        block_devices: devices::block_devices(section),
        raid0: section.text("instance_store_policy") == Some("raid0"),
        network_interfaces: devices::network_interfaces(section),
        detailed_monitoring: section.flag("detailed_monitoring") == Some(true),
        metadata: metadata_options(section),
        connection_tracking: devices::connection_tracking(section),
        context: section.owned_text("context"),
        nested_virtualization: section
            .block("cpu_options")
            .and_then(|inner| inner.text("nested_virtualization"))
            .map(|text| text == "enabled"),
        reserved_enis: section.count("reserved_enis").unwrap_or_default(),
        vm_overhead_per_mille: memory_overhead(section),
    }
}

fn metadata_options(section: &DecodedBlock) -> MetadataOptions {
    let default = MetadataOptions::default();
    let Some(inner) = section.block("metadata_options") else {
        return default;
    };
    let endpoint = inner.text("http_endpoint");
    let ipv6 = inner.text("http_protocol_ipv6");
    let tokens = inner.text("http_tokens");
    MetadataOptions {
        endpoint: endpoint.map_or(default.endpoint, |value| value == "enabled"),
        ipv6: ipv6.map_or(default.ipv6, |value| value == "enabled"),
        hop_limit: inner.small_count("http_put_response_hop_limit").unwrap_or(default.hop_limit),
        tokens_required: tokens.map_or(default.tokens_required, |value| value == "required"),
    }
}

/// The memory overhead of virtual machines in thousandths of the memory. `None` if it is the
/// default.
fn memory_overhead(section: &DecodedBlock) -> Option<u32> {
    const NAME: &str = "vm_memory_overhead_percent";
    let tenths = section.number(NAME)? * 10.0;
    let whole = (0..=1000).find(|whole| (tenths - f64::from(*whole)).abs() < 1e-6);
    if whole.is_none() {
        let detail = format!("{NAME} must have at most one decimal.");
        error_at(ProblemCode::InvalidValue, section.value_span(NAME), detail)
            .help("write 7.5 for Karpenter's 0.075")
            .report(section);
    }
    whole.filter(|whole| *whole != VM_OVERHEAD_PER_MILLE)
}

/// Reports an error if there are too many blocks of a type. Source: spec/aws.md §1.1.
fn at_most(section: &DecodedBlock, kind: &str, max: usize) {
    if let Some(beyond) = section.blocks(kind).nth(max) {
        let detail = format!("A node class must have at most {max} {kind} blocks.");
        section.error(ProblemCode::LimitExceeded, beyond.header, detail);
    }
}

/// Reports an error at an argument, or at its block if the argument is missing.
fn report_argument(
    section: &DecodedBlock,
    argument: &str,
    code: ProblemCode,
    detail: impl Into<String>,
    help: Option<&str>,
) {
    error_at(code, section.value_span(argument), detail)
        .maybe_help(help.map(str::to_owned))
        .report(section);
}
