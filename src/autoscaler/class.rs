//! How EC2 makes the nodes of a group: a node class of its launch template, or of what EKS says.
//! It must not know which pods the nodes are for.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::fields;
use super::groups::{Group, Template, meant};
use crate::karpenter::carry::Shape::{ByHand, Flag, Text, Whole};
use crate::karpenter::carry::{self, Row, row, take, text};
use crate::karpenter::import::{Built, Words};
use crate::karpenter::loss::Losses;
use crate::karpenter::tree::{Block, Body};

/// What is asked for where nothing tells.
const TELL: &str = "nothing tells: give the answer of aws ec2 describe-launch-template-versions \
                    with --asg, too, or write it";

/// A disk of a launch template.
const DISK: &[Row] = &[
    row("Ebs.VolumeSize", "volume_size", Text),
    row("Ebs.VolumeType", "volume_type", Text),
    row("Ebs.Iops", "iops", Whole),
    row("Ebs.Throughput", "throughput", Whole),
    row("Ebs.Encrypted", "encrypted", Flag),
    row("Ebs.KmsKeyId", "kms_key_id", Text),
    row("Ebs.SnapshotId", "snapshot_id", Text),
    row(
        "Ebs.VolumeInitializationRate",
        "volume_initialization_rate",
        Whole,
    ),
    row("Ebs.DeleteOnTermination", "delete_on_termination", Flag),
];

/// The metadata service, as a launch template has it.
const METADATA: &[Row] = &[
    row("HttpEndpoint", "http_endpoint", Text),
    row("HttpProtocolIpv6", "http_protocol_ipv6", Text),
    row(
        "HttpPutResponseHopLimit",
        "http_put_response_hop_limit",
        Whole,
    ),
    row("HttpTokens", "http_tokens", Text),
    row("State", "", ByHand),
];

/// Images of EKS' groups, by how their types begin, with the family that we have for them.
const IMAGES: [(&str, &str); 7] = [
    ("AL2023_", "al2023"),
    ("AL2_", "al2"),
    ("BOTTLEROCKET_", "bottlerocket"),
    ("WINDOWS_CORE_2019", "windows2019"),
    ("WINDOWS_FULL_2019", "windows2019"),
    ("WINDOWS_CORE_2022", "windows2022"),
    ("WINDOWS_FULL_2022", "windows2022"),
];

/// Tags that launches write themselves, or that are nobody's but AWS' or the autoscaler's.
const NOT_OURS: [&str; 7] = [
    "aws:",
    "eks:",
    "k8s.io/cluster-autoscaler/",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "kubernetes.io/cluster",
    "outrigger.dev/",
];

/// What a user data may hold that is a secret.
const SECRETS: [&str; 3] = ["--token", "K3S_TOKEN", "RKE2_TOKEN"];

/// What a group launches, as far as it was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Launched {
    /// Its launch template; of a group of EKS the one that EKS has made.
    pub(super) data: Option<Map<String, Value>>,
    /// What the user has given EKS for it.
    given: Option<Map<String, Value>>,
}

impl Launched {
    /// Looks for it among the launch templates.
    pub(super) fn of(group: &Group, templates: &[Template]) -> Self {
        let mixed = group.fields.get("MixedInstancesPolicy");
        let mixed = mixed.and_then(|own| own.get("LaunchTemplate"));
        let mixed = mixed.and_then(|own| own.get("LaunchTemplateSpecification"));
        let found = |reference: Option<&Value>| {
            let template = meant(reference?.as_object()?, templates)?;
            Some(template.data.clone())
        };
        Self {
            data: found(mixed.or_else(|| group.fields.get("LaunchTemplate"))),
            given: found(group.managed("launchTemplate")),
        }
    }
}

/// The node class of a group.
pub(super) fn build(
    group: &mut Group,
    launched: &Launched,
    (of, name): (&str, &str),
    clusters: &[String],
) -> Built {
    let (mut body, mut losses) = (Body::default(), Losses::of(of));
    let mut data = launched.data.clone().unwrap_or_default();
    // What the user has given EKS is more than what EKS has made of it.
    for (name, value) in launched.given.iter().flatten() {
        data.insert(name.clone(), value.clone());
    }
    let is_managed = group.managed.is_some();
    let user_data = user_data(is_managed, launched, &mut data, &mut losses);
    if !clusters.is_empty() {
        body.set("clusters", clusters.to_vec());
    }
    let image = image(group, &mut data, &mut losses);
    let is_own = image.as_ref().is_some_and(|(_, is_own)| *is_own);
    if is_own {
        body.comment(
            "What the group launches joins the cluster by itself: it is launched to the letter.",
        );
        body.set("ami_family", "custom");
    }
    identity(group, &mut data, &mut body, &mut losses);
    arguments(group, &mut data, &mut body, &mut losses);
    if let Some((terms, _)) = image {
        body.block("ami", None, terms);
    }
    network(group, &mut data, &mut body, &mut losses);
    disks(group, &mut data, &mut body, &mut losses);
    if let Some(Value::Object(mut own)) = take(&mut data, "MetadataOptions") {
        if take(&mut own, "InstanceMetadataTags").is_some_and(|own| own == "enabled") {
            let why = "the metadata service of nodes does not tell their tags";
            let path = "LaunchTemplateData.MetadataOptions.InstanceMetadataTags";
            losses.add(path, why);
        }
        let mut inner = Body::default();
        let path = "LaunchTemplateData.MetadataOptions";
        carry::import(METADATA, &mut own, path, &mut inner, &mut losses);
        if !inner.is_empty() {
            body.block("metadata_options", None, inner);
        }
    }
    if let Some(text) = user_data {
        if SECRETS.iter().any(|word| text.contains(word)) {
            body.comment("It seems to hold a token: see to it who may read this file.");
        }
        body.set("user_data", text);
    }
    fields::report(&data, fields::TEMPLATE, "LaunchTemplateData", &mut losses);
    Built {
        of: of.to_owned(),
        block: Block {
            kind: "node_class",
            label: Some(name.to_owned()),
            body,
        },
        losses: losses.all,
        left_out: false,
        words: Words::Ours,
    }
}

/// The user data that is the user's own. What EKS has made of it is EKS' way to join a cluster.
fn user_data(
    is_managed: bool,
    launched: &Launched,
    data: &mut Map<String, Value>,
    losses: &mut Losses,
) -> Option<String> {
    let encoded = take(data, "UserData");
    let encoded = match (is_managed, &launched.given) {
        (true, Some(given)) => given.get("UserData").cloned(),
        (true, None) => None,
        (false, _) => encoded,
    };
    let encoded = encoded.as_ref().and_then(Value::as_str)?;
    let decoded = STANDARD.decode(encoded.trim()).ok();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    if decoded.is_none() {
        let why = "it is no text in base64: nodes would not join without it";
        losses.add("LaunchTemplateData.UserData", why);
    }
    decoded.filter(|text| !text.trim().is_empty())
}

/// The image, and whether it is one whose user data is all its own: what a group launches by itself
/// joins its cluster by itself, and is launched here to the letter.
fn image(
    group: &Group,
    data: &mut Map<String, Value>,
    losses: &mut Losses,
) -> Option<(Body, bool)> {
    let mut inner = Body::default();
    let kind = group.managed("amiType").and_then(Value::as_str);
    let family = kind.and_then(|kind| IMAGES.iter().find(|(start, _)| kind.starts_with(start)));
    let own = take(data, "ImageId").as_ref().and_then(text);
    if let Some((_, family)) = family {
        inner.set("alias", format!("{family}@{}", version(group, family)));
        return Some((inner, false));
    }
    if let Some(kind) = kind.filter(|kind| *kind != "CUSTOM") {
        losses.add(
            format!("amiType: {kind}"),
            "there is no family of this kind",
        );
    }
    match own.as_deref() {
        Some(own) if own.starts_with("ami-") => inner.set("id", own),
        Some(own) if own.starts_with("resolve:ssm:") => {
            inner.set("ssm_parameter", own.trim_start_matches("resolve:ssm:"));
        }
        Some(own) => losses.add(
            format!("LaunchTemplateData.ImageId: {own}"),
            "it is no image",
        ),
        None => losses.miss("ami", TELL),
    }
    (!inner.is_empty()).then_some((inner, true))
}

/// The version of the images that a group of EKS has, where we can ask for it by its name.
fn version(group: &Group, family: &str) -> String {
    let release = group.managed("releaseVersion").and_then(Value::as_str);
    let date = release
        .and_then(|own| own.rsplit_once('-'))
        .map(|(_, date)| date);
    let is_date = |own: &&str| own.len() == 8 && own.chars().all(|c| c.is_ascii_digit());
    match date.filter(is_date) {
        Some(date) if family.starts_with("al2") => format!("v{date}"),
        _ => "latest".to_owned(),
    }
}

/// Who the nodes are to IAM, whose names are unique whatever their paths.
fn identity(group: &Group, data: &mut Map<String, Value>, body: &mut Body, losses: &mut Losses) {
    let last = |text: String| text.rsplit('/').next().unwrap_or_default().to_owned();
    let profile = take(data, "IamInstanceProfile");
    if let Some(role) = group.managed("nodeRole").and_then(text) {
        body.set("role", last(role));
        return;
    }
    let profile = profile.and_then(|own| own.get("Name").or(own.get("Arn")).and_then(text));
    match profile {
        Some(own) => body.set("instance_profile", last(own)),
        None => losses.miss("role or instance_profile", TELL),
    }
}

/// Arguments that are no blocks.
fn arguments(group: &Group, data: &mut Map<String, Value>, body: &mut Body, losses: &mut Losses) {
    let first = data.get("NetworkInterfaces").and_then(|own| own.get(0));
    let public = first.and_then(|own| own.get("AssociatePublicIpAddress"));
    if let Some(public) = public.and_then(Value::as_bool) {
        body.set("associate_public_ip", public);
    }
    let mut tags = Map::new();
    let of_template = take(data, "TagSpecifications");
    let of_template = of_template.iter().filter_map(Value::as_array).flatten();
    let of_template =
        of_template.filter(|own| own.get("ResourceType").is_some_and(|it| it == "instance"));
    let of_template = of_template
        .filter_map(|own| own.get("Tags")?.as_array())
        .flatten();
    let of_template =
        of_template.filter_map(|tag| Some((text(tag.get("Key")?)?, text(tag.get("Value")?)?)));
    let of_group = group.tags.iter().filter(|tag| tag.is_launched);
    let of_group = of_group.map(|tag| (tag.key.clone(), tag.value.clone()));
    for (key, value) in of_template.chain(of_group) {
        if !key.is_empty() && !NOT_OURS.iter().any(|start| key.starts_with(start)) {
            tags.insert(key, Value::from(value));
        }
    }
    if !tags.is_empty() {
        body.set("tags", Value::Object(tags));
    }
    let monitored = take(data, "Monitoring");
    if monitored.is_some_and(|own| own.get("Enabled") == Some(&Value::Bool(true))) {
        body.set("detailed_monitoring", true);
    }
    let market = take(data, "InstanceMarketOptions");
    let spot = market.as_ref().and_then(|own| own.get("SpotOptions"));
    if spot.is_some_and(|own| own.get("MaxPrice").is_some()) {
        let why = "spot instances cost what they cost, and at most as much as on demand";
        losses.add(
            "LaunchTemplateData.InstanceMarketOptions.SpotOptions.MaxPrice",
            why,
        );
    }
}

/// Subnets, security groups, and where else instances are put.
fn network(group: &mut Group, data: &mut Map<String, Value>, body: &mut Body, losses: &mut Losses) {
    let list = |value: Option<&Value>| -> Vec<String> {
        let items = value.and_then(Value::as_array).into_iter().flatten();
        items.filter_map(text).collect()
    };
    let written = group.take("VPCZoneIdentifier").as_ref().and_then(text);
    let written = written.unwrap_or_default();
    let parts = written.split(',').map(|own| own.trim().to_owned());
    let mut subnets: Vec<String> = parts.filter(|own| !own.is_empty()).collect();
    if subnets.is_empty() {
        subnets = list(group.managed("subnets"));
    }
    if subnets.is_empty() {
        losses.miss("subnet", "nothing tells its subnets: write them");
    }
    let mut add = |kind: &'static str, name: &'static str, values: &[String]| {
        for value in values {
            let mut inner = Body::default();
            inner.set(name, value.as_str());
            body.block(kind, None, inner);
        }
    };
    add("subnet", "id", &subnets);
    let interfaces = take(data, "NetworkInterfaces");
    let interfaces = interfaces.iter().filter_map(Value::as_array).flatten();
    let interfaces: Vec<&Value> = interfaces.collect();
    let mut ids = list(take(data, "SecurityGroupIds").as_ref());
    ids.extend(list(interfaces.first().and_then(|own| own.get("Groups"))));
    ids.dedup();
    let names = list(take(data, "SecurityGroups").as_ref());
    if ids.is_empty() && names.is_empty() {
        losses.miss("security_group", TELL);
    }
    add("security_group", "id", &ids);
    add("security_group", "name", &names);
    let is_other = |own: &&Value| {
        own.get("InterfaceType")
            .is_some_and(|own| own != "interface")
    };
    if interfaces.len() > 1 || interfaces.iter().any(is_other) {
        let why = "one plain interface is what nodes have: network_interface blocks say more";
        losses.add("LaunchTemplateData.NetworkInterfaces", why);
    }
    let reserved =
        "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";
    if let Some(id) = take(data, reserved).as_ref().and_then(text) {
        add("capacity_reservation", "id", &[id]);
    }
    let mut placement = match take(data, "Placement") {
        Some(Value::Object(own)) => own,
        _ => Map::new(),
    };
    let by_group = group.take("PlacementGroup").as_ref().and_then(text);
    let id = take(&mut placement, "GroupId").as_ref().and_then(text);
    let name = take(&mut placement, "GroupName").as_ref().and_then(text);
    match (id, name.or(by_group).filter(|own| !own.is_empty())) {
        (Some(id), _) => add("placement_group", "id", &[id]),
        (None, Some(name)) => add("placement_group", "name", &[name]),
        (None, None) => {}
    }
    placement_rest(&placement, losses);
}

fn placement_rest(placement: &Map<String, Value>, losses: &mut Losses) {
    for (name, value) in placement {
        let why = match (name.as_str(), value.as_str()) {
            (_, None | Some("" | "default")) => continue,
            ("Tenancy", Some("dedicated")) => {
                "a pool asks for it: require \"karpenter.k8s.aws/instance-tenancy\" { in = \
                 [\"dedicated\"] }"
            }
            _ => "there is nothing like it",
        };
        losses.add(format!("LaunchTemplateData.Placement.{name}"), why);
    }
}

/// Disks.
fn disks(group: &Group, data: &mut Map<String, Value>, body: &mut Body, losses: &mut Losses) {
    let mappings = take(data, "BlockDeviceMappings");
    let mappings = mappings.iter().filter_map(Value::as_array).flatten();
    let mut is_told = false;
    for (index, mapping) in mappings.enumerate() {
        let path = format!("LaunchTemplateData.BlockDeviceMappings[{index}]");
        let Value::Object(mut own) = mapping.clone() else {
            losses.add(path, "it is no object");
            continue;
        };
        let device = take(&mut own, "DeviceName").as_ref().and_then(text);
        let Some(device) = device.filter(|_| own.contains_key("Ebs")) else {
            losses.add(path, "only volumes of EBS can be said");
            continue;
        };
        if let Some(size) = own.get_mut("Ebs").and_then(|own| own.get_mut("VolumeSize"))
            && let Some(gib) = size.as_i64()
        {
            *size = Value::from(format!("{gib}Gi"));
        }
        let mut inner = Body::default();
        carry::import(DISK, &mut own, &path, &mut inner, losses);
        body.block("block_device", Some(&device), inner);
        is_told = true;
    }
    let size = group.managed("diskSize").and_then(Value::as_i64);
    let kind = group
        .managed("amiType")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if let Some(gib) = size.filter(|_| !is_told) {
        // Bottlerocket keeps what pods need on its second disk.
        let device = match kind {
            _ if kind.starts_with("BOTTLEROCKET_") => "/dev/xvdb",
            _ if kind.starts_with("WINDOWS_") => "/dev/sda1",
            _ => "/dev/xvda",
        };
        let mut inner = Body::default();
        inner.set("volume_size", format!("{gib}Gi"));
        body.block("block_device", Some(device), inner);
    }
}
