//! The launch template of a group, with its image and user data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::node_groups::{LaunchTemplateVersion, NodeGroup, assumed_latest, referenced_version};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{scalar_text, take_field, take_text};
use crate::migrate::hcl::HclBody;

/// Why a value is missing if the launch template is not part of the input.
pub(super) const TELL: &str = "not in the input; pass the output of aws ec2 \
                               describe-launch-template-versions with --asg, or add it";

/// The EKS image type of custom images.
const CUSTOM: &str = "CUSTOM";

/// EKS image types with the corresponding family. All other image types are different builds: FIPS
/// images, and Windows with desktop.
const IMAGES: [(&str, &str); 15] = [
    ("AL2023_ARM_64_NVIDIA", "al2023"),
    ("AL2023_ARM_64_STANDARD", "al2023"),
    ("AL2023_x86_64_NEURON", "al2023"),
    ("AL2023_x86_64_NVIDIA", "al2023"),
    ("AL2023_x86_64_STANDARD", "al2023"),
    ("AL2_ARM_64", "al2"),
    ("AL2_x86_64", "al2"),
    ("AL2_x86_64_GPU", "al2"),
    ("BOTTLEROCKET_ARM_64", "bottlerocket"),
    ("BOTTLEROCKET_ARM_64_NVIDIA", "bottlerocket"),
    ("BOTTLEROCKET_x86_64", "bottlerocket"),
    ("BOTTLEROCKET_x86_64_NVIDIA", "bottlerocket"),
    ("WINDOWS_CORE_2019_x86_64", "windows2019"),
    ("WINDOWS_CORE_2022_x86_64", "windows2022"),
    ("WINDOWS_CORE_2025_x86_64", "windows2025"),
];

/// The launch template of a group, as far as the input has it.
#[derive(Clone, Debug, Default)]
pub(super) struct LaunchSource {
    /// The launch template. For an EKS node group, the one that EKS created.
    pub(super) data: Option<Map<String, Value>>,
    /// The launch template that the user passed to EKS.
    pub(super) given: Option<Map<String, Value>>,
    /// The name of the launch template that the user passed to EKS, if the input does not have it.
    missing: Option<String>,
    /// Versions that are assumed to be the latest, because the input has no others.
    pub(super) latest: Vec<i64>,
}

impl LaunchSource {
    /// Finds the launch template of a group.
    pub(super) fn from_group(group: &NodeGroup, templates: &[LaunchTemplateVersion]) -> Self {
        let mixed = group
            .fields
            .get("MixedInstancesPolicy")
            .and_then(|policy| policy.get("LaunchTemplate")?.get("LaunchTemplateSpecification"));
        let specification = mixed.or_else(|| group.fields.get("LaunchTemplate"));
        let named = group.managed_field("launchTemplate");
        let given = template_data(named, templates);
        let missing = named.filter(|_| given.is_none()).map(|reference| {
            let [id, name, version] =
                ["id", "name", "version"].map(|field| reference.get(field).and_then(scalar_text));
            let template = id.or(name).unwrap_or_default();
            let version = version.unwrap_or_else(|| "$Default".to_owned());
            format!("launchTemplate {template} version {version}")
        });
        let references = [specification, named].into_iter().flatten();
        let latest =
            references.filter_map(|reference| assumed_latest(reference.as_object()?, templates));
        Self {
            data: template_data(specification, templates),
            given,
            missing,
            latest: latest.collect(),
        }
    }

    /// Returns why a group cannot be converted. `None` if it can be converted.
    pub(super) fn conversion_fault(&self, group: &NodeGroup) -> Option<String> {
        let kind = image_type(group)?;
        if kind != CUSTOM && image_family(kind).is_none() {
            let why = "no alias selects images of the type";
            return Some(format!(
                "{why} {kind}; use ami blocks with ami_family and the SSM parameter of the image"
            ));
        }
        let is_known = self.data.is_some() || self.given.is_some();
        (kind == CUSTOM && !is_known).then(|| {
            let template = self.missing.as_deref().unwrap_or("its launch template");
            let why = "the input has neither the image nor the user data of the nodes";
            format!("{why}; pass {template} with --asg")
        })
    }
}

/// Returns the launch template of a reference, if the input has it.
fn template_data(
    reference: Option<&Value>,
    templates: &[LaunchTemplateVersion],
) -> Option<Map<String, Value>> {
    let version = referenced_version(reference?.as_object()?, templates)?;
    Some(version.data.clone())
}

/// Returns the image type of an EKS node group.
fn image_type(group: &NodeGroup) -> Option<&str> {
    group.managed_field("amiType").and_then(Value::as_str)
}

/// Returns the family of an image type.
fn image_family(kind: &str) -> Option<&'static str> {
    let found = IMAGES.iter().find(|(ami_type, _)| *ami_type == kind);
    found.map(|(_, family)| *family)
}

/// Returns the user data that the user wrote. EKS adds its bootstrap to this user data, except for
/// custom images.
pub(super) fn user_data(
    group: &NodeGroup,
    launched: &LaunchSource,
    data: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) -> Option<String> {
    let encoded = take_field(data, "UserData");
    let is_own = group.managed.is_none() || image_type(group) == Some(CUSTOM);
    let encoded = match &launched.given {
        Some(given) if !is_own => given.get("UserData").cloned(),
        None if !is_own => None,
        _ => encoded,
    };
    if let Some(path) = launched.missing.as_deref().filter(|_| !is_own) {
        let why =
            "the user data can contain more than the EKS bootstrap; pass this version with --asg";
        losses.add_missing(path, why);
    }
    let encoded = encoded.as_ref().and_then(Value::as_str)?;
    let decoded = STANDARD.decode(encoded.trim()).ok();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    if decoded.is_none() {
        let why = "not valid base64; nodes cannot join without this user data";
        losses.add("LaunchTemplateData.UserData", why);
    }
    decoded.filter(|text| !text.trim().is_empty())
}

/// Converts the image. Returns whether the user data is used unchanged: nodes of a self-managed
/// group join the cluster with their own user data.
pub(super) fn convert_image(
    group: &NodeGroup,
    data: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) -> Option<(HclBody, bool)> {
    let mut inner = HclBody::default();
    let image_id = take_text(data, "ImageId");
    if let Some(kind) = image_type(group).filter(|kind| *kind != CUSTOM) {
        // Without a family, the pool is also dropped.
        let family = image_family(kind)?;
        let version = image_version(group, family, losses);
        inner.set("alias", format!("{family}@{version}"));
        return Some((inner, false));
    }
    match image_id.as_deref() {
        Some(id) if id.starts_with("ami-") => inner.set("id", id),
        Some(id) if id.starts_with("resolve:ssm:") => {
            inner.set("ssm_parameter", id.trim_start_matches("resolve:ssm:"));
        }
        Some(id) => losses.add(format!("LaunchTemplateData.ImageId: {id}"), "not an image ID"),
        None => losses.add_missing("ami", TELL),
    }
    (!inner.is_empty()).then_some((inner, true))
}

/// Returns the image version of an EKS node group if an alias can select it.
fn image_version(group: &NodeGroup, family: &str, losses: &mut DroppedFields) -> String {
    const LATEST: &str = "latest";
    let Some(release) = group.managed_field("releaseVersion").and_then(scalar_text) else {
        return LATEST.to_owned();
    };
    let pinned = release.split_once('-').and_then(|(first, suffix)| match family {
        // The release is the Kubernetes version and the build date.
        "al2" | "al2023" => is_date(suffix).then(|| format!("v{suffix}")),
        // The release is the version and the commit of the build.
        "bottlerocket" => is_version(first).then(|| first.to_owned()),
        _ => None,
    });
    pinned.unwrap_or_else(|| {
        let why = format!("no alias of {family} selects it; nodes use the newest images");
        losses.add(format!("releaseVersion: {release}"), why);
        LATEST.to_owned()
    })
}

fn is_date(text: &str) -> bool {
    text.len() == 8 && text.chars().all(|c| c.is_ascii_digit())
}

fn is_version(text: &str) -> bool {
    text.split('.').count() == 3
        && text.split('.').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{IMAGES, image_family};
    use crate::model::node_class::image::AmiFamily;

    #[test]
    fn eks_ami_types_map_to_image_families() {
        for (kind, family) in IMAGES {
            assert!(AmiFamily::parse(family).is_some(), "{kind}: {family}");
        }
        for other in [
            "BOTTLEROCKET_ARM_64_FIPS",
            "BOTTLEROCKET_x86_64_NVIDIA_FIPS",
            "WINDOWS_FULL_2022_x86_64",
            "AL2023_RISCV_STANDARD",
            "CUSTOM",
        ] {
            assert_eq!(image_family(other), None, "{other}");
        }
    }
}
