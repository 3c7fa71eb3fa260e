//! What the nodes of a group are launched from: a launch template, its image and its user data.
//! It must not know what else a node class says.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::node_groups::{LaunchTemplateVersion, NodeGroup, meant, only};
use crate::migrate::dropped::DroppedFields;
use crate::migrate::field_mapping::{take, text};
use crate::migrate::hcl::HclBody;

/// What is asked for where nothing tells.
pub(super) const TELL: &str = "nothing tells: give the answer of aws ec2 \
                               describe-launch-template-versions with --asg, too, or write it";

/// What EKS calls images that are not its own.
const CUSTOM: &str = "CUSTOM";

/// Images of EKS' groups with the family that has the same here. The rest of what EKS has are other
/// builds: those with FIPS, and Windows with its desktop.
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

/// What a group launches, as far as it was told.
#[derive(Clone, Debug, Default)]
pub(super) struct LaunchSource {
    /// Its launch template; of a group of EKS the one that EKS has made.
    pub(super) data: Option<Map<String, Value>>,
    /// What the user has given EKS for it.
    pub(super) given: Option<Map<String, Value>>,
    /// What the user has given EKS for it, where nobody has told what is in it.
    untold: Option<String>,
    /// Versions that are taken for the latest, where nobody has told of others.
    pub(super) latest: Vec<i64>,
}

impl LaunchSource {
    /// Looks for it among the launch templates.
    pub(super) fn of(group: &NodeGroup, templates: &[LaunchTemplateVersion]) -> Self {
        let mixed = group.fields.get("MixedInstancesPolicy");
        let mixed = mixed.and_then(|own| own.get("LaunchTemplate"));
        let mixed = mixed.and_then(|own| own.get("LaunchTemplateSpecification"));
        let found = |reference: Option<&Value>| {
            let template = meant(reference?.as_object()?, templates)?;
            Some(template.data.clone())
        };
        let named = group.managed("launchTemplate");
        let given = found(named);
        let untold = named.filter(|_| given.is_none()).map(|own| {
            let word = |name: &str| own.get(name).and_then(text);
            let template = word("id").or_else(|| word("name")).unwrap_or_default();
            let version = word("version").unwrap_or_else(|| "$Default".to_owned());
            format!("launchTemplate {template} version {version}")
        });
        let own = mixed.or_else(|| group.fields.get("LaunchTemplate"));
        let references = [own, named].into_iter().flatten();
        let references = references.filter_map(Value::as_object);
        let latest = references.filter_map(|own| only(own, templates));
        Self {
            data: found(own),
            given,
            untold,
            latest: latest.collect(),
        }
    }

    /// Why nodes of a group would be others than its own, if they would.
    pub(super) fn fault(&self, group: &NodeGroup) -> Option<String> {
        let kind = kind(group)?;
        if kind != CUSTOM && family(kind).is_none() {
            let why = "no alias stands for images of the type";
            return Some(format!(
                "{why} {kind}: ami blocks with ami_family name them by their SSM parameter"
            ));
        }
        let is_told = self.data.is_some() || self.given.is_some();
        (kind == CUSTOM && !is_told).then(|| {
            let template = self.untold.as_deref().unwrap_or("its launch template");
            let why = "nothing tells the image and the user data by which its nodes join";
            format!("{why}: give {template} with --asg, too")
        })
    }
}

/// The type of the images of a group of EKS.
fn kind(group: &NodeGroup) -> Option<&str> {
    group.managed("amiType").and_then(Value::as_str)
}

/// The family that has the images of a type.
fn family(kind: &str) -> Option<&'static str> {
    let found = IMAGES.iter().find(|(own, _)| *own == kind);
    found.map(|(_, family)| *family)
}

/// The user data that is the user's own. What EKS has made of it is EKS' way to join a cluster, but
/// for images that are not its own: to these it adds nothing.
pub(super) fn user_data(
    group: &NodeGroup,
    launched: &LaunchSource,
    data: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) -> Option<String> {
    let encoded = take(data, "UserData");
    let is_own = group.managed.is_none() || kind(group) == Some(CUSTOM);
    let encoded = match &launched.given {
        Some(given) if !is_own => given.get("UserData").cloned(),
        None if !is_own => None,
        _ => encoded,
    };
    if let Some(path) = launched.untold.as_deref().filter(|_| !is_own) {
        let why =
            "its user data may be more than how nodes join: give this version with --asg, too";
        losses.miss(path, why);
    }
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
pub(super) fn image(
    group: &NodeGroup,
    data: &mut Map<String, Value>,
    losses: &mut DroppedFields,
) -> Option<(HclBody, bool)> {
    let mut inner = HclBody::default();
    let own = take(data, "ImageId").as_ref().and_then(text);
    if let Some(kind) = kind(group).filter(|kind| *kind != CUSTOM) {
        // Without a family there is no pool, either.
        let family = family(kind)?;
        let version = version(group, family, losses);
        inner.set("alias", format!("{family}@{version}"));
        return Some((inner, false));
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
fn version(group: &NodeGroup, family: &str, losses: &mut DroppedFields) -> String {
    const LATEST: &str = "latest";
    let Some(release) = group.managed("releaseVersion").and_then(text) else {
        return LATEST.to_owned();
    };
    let pinned = release
        .split_once('-')
        .and_then(|(first, rest)| match family {
            // After the version of Kubernetes there is the day on which they were built.
            "al2" | "al2023" => is_date(rest).then(|| format!("v{rest}")),
            // After their own version there is the commit of which they were built.
            "bottlerocket" => is_version(first).then(|| first.to_owned()),
            _ => None,
        });
    pinned.unwrap_or_else(|| {
        let why = format!("no alias of {family} names it: nodes have the newest images");
        losses.add(format!("releaseVersion: {release}"), why);
        LATEST.to_owned()
    })
}

fn is_date(text: &str) -> bool {
    text.len() == 8 && text.chars().all(|c| c.is_ascii_digit())
}

fn is_version(text: &str) -> bool {
    let is_number = |own: &str| !own.is_empty() && own.chars().all(|c| c.is_ascii_digit());
    text.split('.').count() == 3 && text.split('.').all(is_number)
}

#[cfg(test)]
mod tests {
    use super::{IMAGES, family};
    use crate::model::node_class::image::AmiFamily;

    #[test]
    fn images_are_of_the_family_that_has_the_same() {
        for (kind, own) in IMAGES {
            assert!(AmiFamily::parse(own).is_some(), "{kind}: {own}");
        }
        for other in [
            "BOTTLEROCKET_ARM_64_FIPS",
            "BOTTLEROCKET_x86_64_NVIDIA_FIPS",
            "WINDOWS_FULL_2022_x86_64",
            "AL2023_RISCV_STANDARD",
            "CUSTOM",
        ] {
            assert_eq!(family(other), None, "{other}");
        }
    }
}
