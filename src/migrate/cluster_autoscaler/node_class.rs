//! Converts the launch template of a group, or its EKS node group, to a node class.

use serde_json::{Map, Value};

use super::launch_source::{LaunchSource, TELL, convert_image, user_data};
use super::node_groups::NodeGroup;
use super::unsupported_fields;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::FieldKind::{ByHand, Flag, Text, Whole};
use crate::migrate::field_mapping::{
    self, FieldMapping, field_mappings, list_texts, scalar_text, take_field, take_object, take_text,
};
use crate::migrate::hcl::HclBody;
use crate::migrate::karpenter::import::{ConvertedBlock, ItemNoun};

/// A volume of a launch template.
const DISK: &[FieldMapping] = field_mappings! {
    "Ebs.VolumeSize" => "volume_size", Text;
    "Ebs.VolumeType" => "volume_type", Text;
    "Ebs.Iops" => "iops", Whole;
    "Ebs.Throughput" => "throughput", Whole;
    "Ebs.Encrypted" => "encrypted", Flag;
    "Ebs.KmsKeyId" => "kms_key_id", Text;
    "Ebs.SnapshotId" => "snapshot_id", Text;
    "Ebs.VolumeInitializationRate" => "volume_initialization_rate", Whole;
    "Ebs.DeleteOnTermination" => "delete_on_termination", Flag;
};

/// The metadata options of a launch template.
const METADATA: &[FieldMapping] = field_mappings! {
    "HttpEndpoint" => "http_endpoint", Text;
    "HttpProtocolIpv6" => "http_protocol_ipv6", Text;
    "HttpPutResponseHopLimit" => "http_put_response_hop_limit", Whole;
    "HttpTokens" => "http_tokens", Text;
    "State" => "", ByHand;
};

/// Metadata options whose defaults in Outrigger can be stricter than the defaults of the image and
/// the account in EC2.
const UNTOLD: [(&str, &str, &str); 2] = [
    (
        "HttpPutResponseHopLimit",
        "http_put_response_hop_limit",
        "not set in the group; the default here is 1, but pods that use the metadata service need \
         2",
    ),
    (
        "HttpTokens",
        "http_tokens",
        "not set in the group; the default here is \"required\", but programs that use the \
         metadata service without a token need \"optional\"",
    ),
];

/// Tags that Outrigger sets itself, or that belong to AWS or the autoscaler.
const NOT_OURS: [&str; 7] = [
    "aws:",
    "eks:",
    "k8s.io/cluster-autoscaler/",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "kubernetes.io/cluster",
    "outrigger.dev/",
];

/// The comment on user data that seems to contain a secret.
pub const SECRET_NOTE: &str = "The user data seems to contain a token: restrict who can read this \
                               file.";

/// Strings that indicate a secret in user data.
const SECRETS: [&str; 3] = ["--token", "K3S_TOKEN", "RKE2_TOKEN"];

/// Converts a group to a node class.
pub(super) fn build_node_class(
    group: &mut NodeGroup,
    launched: &LaunchSource,
    source: &str,
    name: &str,
    clusters: &[String],
) -> ConvertedBlock {
    let (mut body, mut losses) = (HclBody::default(), DroppedFields::for_object(source));
    let mut data = launched.data.clone().unwrap_or_default();
    // The launch template of the user has more data than the one that EKS created.
    for (name, value) in launched.given.iter().flatten() {
        data.insert(name.clone(), value.clone());
    }
    for version in &launched.latest {
        body.add_comment(format!(
            "Version {version} is assumed to be the latest: the input has no other version."
        ));
    }
    let user_data = user_data(group, launched, &mut data, &mut losses);
    body.set_unless_empty("clusters", clusters.to_vec());
    let image = convert_image(group, &mut data, &mut losses);
    let is_own = image.as_ref().is_some_and(|(_, is_own)| *is_own);
    if is_own {
        body.add_comment("The group's user data joins the cluster, so it is used unchanged.");
        body.set("ami_family", "custom");
    }
    convert_identity(group, &mut data, &mut body, &mut losses);
    convert_arguments(group, &mut data, &mut body, &mut losses);
    if let Some((terms, _)) = image {
        body.add_block("ami", None, terms);
    }
    convert_network(group, &mut data, &mut body, &mut losses);
    convert_volumes(group, &mut data, &mut body, &mut losses);
    convert_metadata(&mut data, &mut body, &mut losses);
    if let Some(text) = user_data {
        if SECRETS.iter().any(|word| text.contains(word)) {
            body.add_comment(SECRET_NOTE);
        }
        body.set("user_data", text);
    }
    unsupported_fields::report_unsupported(
        &data,
        unsupported_fields::TEMPLATE,
        "LaunchTemplateData",
        &mut losses,
    );
    let label = Some(name.to_owned());
    ConvertedBlock::new("node_class", label, body, losses, ItemNoun::Ours)
}

/// Converts the metadata options. In EC2, the image and the account determine unset options.
fn convert_metadata(data: &mut Map<String, Value>, body: &mut HclBody, losses: &mut DroppedFields) {
    let mut options = take_object(data, "MetadataOptions");
    let path = "LaunchTemplateData.MetadataOptions";
    if take_field(&mut options, "InstanceMetadataTags").is_some_and(|tags| tags == "enabled") {
        let why = "instance tags in the metadata service are not supported";
        losses.add(format!("{path}.InstanceMetadataTags"), why);
    }
    let is_off = options.get("HttpEndpoint").is_some_and(|endpoint| endpoint == "disabled");
    for (field, argument, why) in UNTOLD {
        if !is_off && options.get(field).is_none_or(Value::is_null) {
            losses.add_missing(format!("metadata_options.{argument}"), why);
        }
    }
    let mut inner = HclBody::default();
    field_mapping::import_fields(METADATA, &mut options, path, &mut inner, losses);
    body.add_block_unless_empty("metadata_options", inner);
}

/// Converts the role or instance profile. IAM names are unique without their paths.
fn convert_identity(
    group: &NodeGroup,
    data: &mut Map<String, Value>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let profile = take_field(data, "IamInstanceProfile")
        .and_then(|profile| profile.get("Name").or(profile.get("Arn")).and_then(scalar_text));
    let role = group.managed_field("nodeRole").and_then(scalar_text);
    let (argument, name) = match (role, profile) {
        (Some(role), _) => ("role", role),
        (None, Some(profile)) => ("instance_profile", profile),
        (None, None) => return losses.add_missing("role or instance_profile", TELL),
    };
    body.set(argument, name.rsplit('/').next().unwrap_or_default());
}

/// Converts the arguments that are not blocks.
fn convert_arguments(
    group: &NodeGroup,
    data: &mut Map<String, Value>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let first = data.get("NetworkInterfaces").and_then(|data| data.get(0));
    let public = first.and_then(|interface| interface.get("AssociatePublicIpAddress"));
    body.set_some("associate_public_ip", public.and_then(Value::as_bool));
    let mut tags = Map::new();
    let specifications = take_field(data, "TagSpecifications");
    let of_template = specifications
        .iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter(|tags| tags.get("ResourceType").is_some_and(|it| it == "instance"))
        .filter_map(|tags| tags.get("Tags")?.as_array())
        .flatten()
        .filter_map(|tag| Some((scalar_text(tag.get("Key")?)?, scalar_text(tag.get("Value")?)?)));
    let of_group = group.tags.iter().filter(|tag| tag.is_launched);
    let of_group = of_group.map(|tag| (tag.key.clone(), tag.value.clone()));
    for (key, value) in of_template.chain(of_group) {
        if !key.is_empty() && !NOT_OURS.iter().any(|start| key.starts_with(start)) {
            tags.insert(key, Value::from(value));
        }
    }
    body.set_unless_empty("tags", Value::Object(tags));
    let monitoring = take_field(data, "Monitoring");
    if monitoring.is_some_and(|options| options.get("Enabled") == Some(&Value::Bool(true))) {
        body.set("detailed_monitoring", true);
    }
    let market = take_field(data, "InstanceMarketOptions");
    if market.is_some_and(|options| {
        let spot = options.get("SpotOptions");
        spot.is_some_and(|options| options.get("MaxPrice").is_some())
    }) {
        let why = "no maximum spot price is supported; spot never costs more than on-demand";
        losses.add("LaunchTemplateData.InstanceMarketOptions.SpotOptions.MaxPrice", why);
    }
}

/// Converts subnets, security groups and placement.
fn convert_network(
    group: &mut NodeGroup,
    data: &mut Map<String, Value>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let written = take_text(&mut group.fields, "VPCZoneIdentifier").unwrap_or_default();
    let parts = written.split(',').map(|subnet| subnet.trim().to_owned());
    let mut subnets: Vec<String> = parts.filter(|subnet| !subnet.is_empty()).collect();
    if subnets.is_empty() {
        subnets = list_texts(group.managed_field("subnets"));
    }
    if subnets.is_empty() {
        losses.add_missing("subnet", "the input has no subnets; add them");
    }
    add_terms(body, "subnet", "id", &subnets);
    let interfaces = take_field(data, "NetworkInterfaces");
    let interfaces = interfaces.as_ref().and_then(Value::as_array);
    let interfaces = interfaces.map_or(&[][..], Vec::as_slice);
    let first = interfaces.first();
    let mut ids = list_texts(take_field(data, "SecurityGroupIds").as_ref());
    ids.extend(list_texts(first.and_then(|interface| interface.get("Groups"))));
    ids.dedup();
    let names = list_texts(take_field(data, "SecurityGroups").as_ref());
    if ids.is_empty() && names.is_empty() {
        losses.add_missing("security_group", TELL);
    }
    add_terms(body, "security_group", "id", &ids);
    add_terms(body, "security_group", "name", &names);
    if interfaces.len() > 1
        || interfaces
            .iter()
            .any(|interface| interface.get("InterfaceType").is_some_and(|kind| kind != "interface"))
    {
        let why = "nodes have one standard interface; use network_interface blocks for more";
        losses.add("LaunchTemplateData.NetworkInterfaces", why);
    }
    let reserved =
        "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";
    if let Some(id) = take_text(data, reserved) {
        // The requirements of the pool allow launches outside the reservation.
        take_field(data, "CapacityReservationSpecification.CapacityReservationPreference");
        add_terms(body, "capacity_reservation", "id", &[id]);
    }
    let mut placement = take_object(data, "Placement");
    let by_group = take_text(&mut group.fields, "PlacementGroup");
    let id = take_text(&mut placement, "GroupId");
    let name = take_text(&mut placement, "GroupName");
    match (id, name.or(by_group).filter(|name| !name.is_empty())) {
        (Some(id), _) => add_terms(body, "placement_group", "id", &[id]),
        (None, Some(name)) => add_terms(body, "placement_group", "name", &[name]),
        (None, None) => {}
    }
    report_placement(&placement, losses);
}

/// Adds a block with one argument for each value.
fn add_terms(body: &mut HclBody, kind: &'static str, argument: &'static str, values: &[String]) {
    for value in values {
        let mut inner = HclBody::default();
        inner.set(argument, value.as_str());
        body.add_block(kind, None, inner);
    }
}

fn report_placement(placement: &Map<String, Value>, losses: &mut DroppedFields) {
    for (name, value) in placement {
        let why = match (name.as_str(), value.as_str()) {
            (_, None | Some("" | "default")) => continue,
            ("Tenancy", Some("dedicated")) => {
                "use require \"karpenter.k8s.aws/instance-tenancy\" { in = [\"dedicated\"] } in \
                 the pool"
            }
            _ => "Outrigger has no equivalent",
        };
        losses.add(format!("LaunchTemplateData.Placement.{name}"), why);
    }
}

/// Converts volumes.
fn convert_volumes(
    group: &NodeGroup,
    data: &mut Map<String, Value>,
    body: &mut HclBody,
    losses: &mut DroppedFields,
) {
    let mappings = take_field(data, "BlockDeviceMappings");
    let mappings = mappings.iter().filter_map(Value::as_array).flatten();
    let mut has_devices = false;
    for (index, mapping) in mappings.enumerate() {
        let path = format!("LaunchTemplateData.BlockDeviceMappings[{index}]");
        let Value::Object(mut mapping) = mapping.clone() else {
            losses.add(path, "the value is not an object");
            continue;
        };
        let device = take_text(&mut mapping, "DeviceName");
        let Some(device) = device.filter(|_| mapping.contains_key("Ebs")) else {
            losses.add(path, "only EBS volumes are supported");
            continue;
        };
        if let Some(size) = mapping.get_mut("Ebs").and_then(|ebs| ebs.get_mut("VolumeSize"))
            && let Some(gib) = size.as_i64()
        {
            *size = Value::from(format!("{gib}Gi"));
        }
        let mut inner = HclBody::default();
        field_mapping::import_fields(DISK, &mut mapping, &path, &mut inner, losses);
        body.add_block("block_device", Some(&device), inner);
        has_devices = true;
    }
    let size = group.managed_field("diskSize").and_then(Value::as_i64);
    let kind = group.managed_field("amiType").and_then(Value::as_str).unwrap_or_default();
    if let Some(gib) = size.filter(|_| !has_devices) {
        // Bottlerocket stores pod data on its second volume.
        let device = match kind {
            _ if kind.starts_with("BOTTLEROCKET_") => "/dev/xvdb",
            _ if kind.starts_with("WINDOWS_") => "/dev/sda1",
            _ => "/dev/xvda",
        };
        let mut inner = HclBody::default();
        inner.set("volume_size", format!("{gib}Gi"));
        body.add_block("block_device", Some(device), inner);
    }
}
