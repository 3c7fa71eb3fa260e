//! Image aliases: the SSM parameters with the images that AWS publishes for a family.
//!
//! Source: spec/aws.md §2.1.

use thiserror::Error;

use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::resolved::Variant;

/// Why an alias is not supported, and the fix. A retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct UnsupportedAlias(String);

/// An SSM parameter and the variants of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsmParameter {
    /// Path.
    pub path: String,
    /// Variants of the image. Empty if the image has no variants.
    pub variants: Vec<Variant>,
}

impl SsmParameter {
    /// Returns whether the value of the parameter may change.
    pub fn is_mutable(&self) -> bool {
        let mut parts = self.path.split('/');
        let windows = self.path.starts_with("/aws/service/ami-windows-latest/");
        windows || parts.any(|part| matches!(part, "latest" | "recommended"))
    }
}

/// First minor version of Kubernetes without AL2 images.
const AL2_ENDS: u32 = 33;
/// First minor version of Kubernetes with Windows 2025 images.
const WINDOWS_2025_BEGINS: u32 = 35;

/// The parameters of an alias for a cluster of this version (`1.33`, or a minor version with `+`).
pub fn ssm_parameters(
    family: AmiFamily,
    version: &str,
    kubernetes: &str,
) -> Result<Vec<SsmParameter>, UnsupportedAlias> {
    let unsupported = |text: String| Err(UnsupportedAlias(text));
    let Some((major, minor)) = major_minor(kubernetes) else {
        let start: String = kubernetes.chars().take(32).collect();
        return unsupported(format!("{start:?} is not a Kubernetes version such as 1.33"));
    };
    let k = format!("{major}.{minor}");
    let advice = match family {
        AmiFamily::Al2 if minor >= AL2_ENDS => Some("use al2023 or bottlerocket"),
        AmiFamily::Windows2025 if minor < WINDOWS_2025_BEGINS => {
            Some("use windows2022, or Kubernetes 1.35")
        }
        _ => None,
    };
    let name = family.as_str();
    if let Some(advice) = advice {
        return unsupported(format!("no {name} images exist for Kubernetes {k}; {advice}"));
    }
    match family {
        AmiFamily::Al2 => Ok(al2(&k, version)),
        AmiFamily::Al2023 => Ok(al2023(&k, version)),
        AmiFamily::Bottlerocket => Ok(bottlerocket(&k, version)),
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => match version {
            "latest" => Ok(windows(family, &k)),
            _ => unsupported(format!("{name} has no pinned versions; use {name}@latest")),
        },
        AmiFamily::Custom => {
            let text = "custom images have no alias; select them by id, tags or SSM parameter";
            unsupported(text.to_owned())
        }
    }
}

/// The major and minor version in a Kubernetes version.
fn major_minor(kubernetes: &str) -> Option<(u32, u32)> {
    let (major, minor) = kubernetes.split_once('.')?;
    let minor = minor.trim_end_matches('+').parse().ok()?;
    Some((major.parse().ok()?, minor))
}

fn ssm_parameter(path: String, variants: &[Variant]) -> SsmParameter {
    SsmParameter { path, variants: variants.to_vec() }
}

fn al2(k: &str, version: &str) -> Vec<SsmParameter> {
    let kinds: [(&str, &str, &[Variant]); 3] = [
        ("amazon-linux-2", "amazon-eks-node", &[Variant::Standard]),
        ("amazon-linux-2-arm64", "amazon-eks-arm64-node", &[Variant::Standard]),
        ("amazon-linux-2-gpu", "amazon-eks-gpu-node", &[Variant::Neuron, Variant::Nvidia]),
    ];
    kinds
        .into_iter()
        .map(|(kind, name, variants)| {
            let image = match version {
                "latest" => "recommended".to_owned(),
                pinned => format!("{name}-{k}-{pinned}"),
            };
            let path = format!("/aws/service/eks/optimized-ami/{k}/{kind}/{image}/image_id");
            ssm_parameter(path, variants)
        })
        .collect()
}

fn al2023(k: &str, version: &str) -> Vec<SsmParameter> {
    let kinds = [
        ("x86_64", "standard", Variant::Standard),
        ("x86_64", "nvidia", Variant::Nvidia),
        ("x86_64", "neuron", Variant::Neuron),
        ("arm64", "standard", Variant::Standard),
        ("arm64", "nvidia", Variant::Nvidia),
    ];
    kinds
        .into_iter()
        .map(|(arch, kind, variant)| {
            let image = match version {
                "latest" => "recommended".to_owned(),
                pinned => format!("amazon-eks-node-al2023-{arch}-{kind}-{k}-{pinned}"),
            };
            let prefix = format!("/aws/service/eks/optimized-ami/{k}/amazon-linux-2023");
            ssm_parameter(format!("{prefix}/{arch}/{kind}/{image}/image_id"), &[variant])
        })
        .collect()
}

fn bottlerocket(k: &str, version: &str) -> Vec<SsmParameter> {
    // The path has no `v` before the version, but users may write one (spec §10, 13).
    let version = version.strip_prefix('v').unwrap_or(version);
    let kinds: [(&str, &str, &[Variant]); 4] = [
        ("", "x86_64", &[Variant::Standard, Variant::Neuron]),
        ("", "arm64", &[Variant::Standard]),
        ("-nvidia", "x86_64", &[Variant::Nvidia]),
        ("-nvidia", "arm64", &[Variant::Nvidia]),
    ];
    kinds
        .into_iter()
        .map(|(kind, arch, variants)| {
            let path =
                format!("/aws/service/bottlerocket/aws-k8s-{k}{kind}/{arch}/{version}/image_id");
            ssm_parameter(path, variants)
        })
        .collect()
}

fn windows(family: AmiFamily, k: &str) -> Vec<SsmParameter> {
    let year = family.as_str().trim_start_matches("windows");
    let name = format!("Windows_Server-{year}-English-Core-EKS_Optimized-{k}");
    let path = format!("/aws/service/ami-windows-latest/{name}/image_id");
    vec![ssm_parameter(path, &[])]
}

#[cfg(test)]
mod tests {
    use super::{UnsupportedAlias, ssm_parameters};
    use crate::model::node_class::image::AmiFamily;
    use crate::model::node_class::resolved::Variant;

    const EKS: &str = "/aws/service/eks/optimized-ami/";
    const BOTTLEROCKET: &str = "/aws/service/bottlerocket/aws-k8s-";

    /// Family, version, Kubernetes, and each path with the initials of its variants.
    type Row = (AmiFamily, &'static str, &'static str, Vec<String>);

    #[expect(clippy::too_many_lines, reason = "a table: one row per family")]
    fn rows() -> Vec<Row> {
        let all = |prefix: &str, paths: &[&str]| {
            paths.iter().map(|path| format!("{prefix}{path}")).collect()
        };
        vec![
            (
                AmiFamily::Al2,
                "latest",
                "1.32",
                all(
                    EKS,
                    &[
                        "1.32/amazon-linux-2/recommended/image_id S",
                        "1.32/amazon-linux-2-arm64/recommended/image_id S",
                        "1.32/amazon-linux-2-gpu/recommended/image_id NeNv",
                    ],
                ),
            ),
            (
                AmiFamily::Al2,
                "v20240807",
                "1.31+",
                all(
                    EKS,
                    &[
                        "1.31/amazon-linux-2/amazon-eks-node-1.31-v20240807/image_id S",
                        "1.31/amazon-linux-2-arm64/amazon-eks-arm64-node-1.31-v20240807/image_id S",
                        "1.31/amazon-linux-2-gpu/amazon-eks-gpu-node-1.31-v20240807/image_id NeNv",
                    ],
                ),
            ),
            (
                AmiFamily::Al2023,
                "latest",
                "1.33",
                all(
                    EKS,
                    &[
                        "1.33/amazon-linux-2023/x86_64/standard/recommended/image_id S",
                        "1.33/amazon-linux-2023/x86_64/nvidia/recommended/image_id Nv",
                        "1.33/amazon-linux-2023/x86_64/neuron/recommended/image_id Ne",
                        "1.33/amazon-linux-2023/arm64/standard/recommended/image_id S",
                        "1.33/amazon-linux-2023/arm64/nvidia/recommended/image_id Nv",
                    ],
                ),
            ),
            (
                AmiFamily::Bottlerocket,
                "v1.46.0",
                "1.33",
                all(
                    BOTTLEROCKET,
                    &[
                        "1.33/x86_64/1.46.0/image_id SNe",
                        "1.33/arm64/1.46.0/image_id S",
                        "1.33-nvidia/x86_64/1.46.0/image_id Nv",
                        "1.33-nvidia/arm64/1.46.0/image_id Nv",
                    ],
                ),
            ),
            (
                AmiFamily::Windows2022,
                "latest",
                "1.33",
                all(
                    "/aws/service/ami-windows-latest/Windows_Server-",
                    &["2022-English-Core-EKS_Optimized-1.33/image_id "],
                ),
            ),
            (
                AmiFamily::Windows2019,
                "latest",
                "1.26",
                all(
                    "/aws/service/ami-windows-latest/Windows_Server-",
                    &["2019-English-Core-EKS_Optimized-1.26/image_id "],
                ),
            ),
            (
                AmiFamily::Windows2025,
                "latest",
                "1.35",
                all(
                    "/aws/service/ami-windows-latest/Windows_Server-",
                    &["2025-English-Core-EKS_Optimized-1.35/image_id "],
                ),
            ),
        ]
    }

    #[test]
    fn ami_alias_resolves_to_ssm_parameters() {
        for (family, version, kubernetes, expect) in rows() {
            let all = ssm_parameters(family, version, kubernetes).expect("supported");
            let texts = all.iter().map(|parameter| {
                let variants = parameter.variants.iter().map(|variant| match variant {
                    Variant::Standard => "S",
                    Variant::Nvidia => "Nv",
                    Variant::Neuron => "Ne",
                });
                format!("{} {}", parameter.path, variants.collect::<String>())
            });
            assert_eq!(texts.collect::<Vec<_>>(), expect);
            let pinned = version != "latest";
            assert!(all.iter().all(|parameter| parameter.is_mutable() != pinned), "{all:?}");
        }
        let pinned = ssm_parameters(AmiFamily::Al2023, "v20250601", "1.33").expect("supported");
        let path = "1.33/amazon-linux-2023/arm64/nvidia/\
            amazon-eks-node-al2023-arm64-nvidia-1.33-v20250601/image_id";
        assert_eq!(pinned[4].path, format!("{EKS}{path}"));
        // Versions of Bottlerocket may be written with a `v`, and without.
        let [with, without] = ["v1.46.0", "1.46.0"]
            .map(|version| ssm_parameters(AmiFamily::Bottlerocket, version, "1.33"));
        assert_eq!(with, without);
    }

    #[test]
    fn unsupported_ami_aliases_are_rejected_with_a_hint() {
        let cases = [
            (AmiFamily::Al2, "latest", "1.33", "use al2023"),
            (AmiFamily::Al2, "latest", "1.34", "use al2023"),
            (AmiFamily::Windows2025, "latest", "1.34", "use windows2022"),
            (AmiFamily::Windows2019, "v1", "1.33", "windows2019@latest"),
            (AmiFamily::Custom, "latest", "1.33", "custom images"),
            (AmiFamily::Al2023, "latest", "one", "not a Kubernetes version"),
            (AmiFamily::Al2023, "latest", "1.x", "not a Kubernetes version"),
            (AmiFamily::Al2023, "latest", "1.33/../..", "not a Kubernetes"),
        ];
        for (family, version, kubernetes, expect) in cases {
            let why: UnsupportedAlias =
                ssm_parameters(family, version, kubernetes).expect_err("unsupported");
            assert!(why.to_string().contains(expect), "{why}");
        }
        for (family, kubernetes) in [(AmiFamily::Al2, "1.32"), (AmiFamily::Windows2025, "1.35")] {
            assert!(ssm_parameters(family, "latest", kubernetes).is_ok());
        }
    }
}
