//! Image families and image terms of a node class.

use crate::model::labels::Labels;

/// An image family. Source: spec/aws.md §2 and §3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AmiFamily {
    /// Amazon Linux 2, with `/etc/eks/bootstrap.sh`.
    Al2,
    /// Amazon Linux 2023, with nodeadm.
    Al2023,
    /// Bottlerocket.
    Bottlerocket,
    /// Windows Server 2019.
    Windows2019,
    /// Windows Server 2022.
    Windows2022,
    /// Windows Server 2025.
    Windows2025,
    /// A custom image. Its author provides the entire user data.
    #[default]
    Custom,
}

impl AmiFamily {
    /// All families, as an alias or the argument `ami_family` spells them. `custom` is not an
    /// alias.
    pub const NAMES: [&str; 7] =
        ["al2", "al2023", "bottlerocket", "windows2019", "windows2022", "windows2025", "custom"];

    const ALL: [Self; 7] = [
        Self::Al2,
        Self::Al2023,
        Self::Bottlerocket,
        Self::Windows2019,
        Self::Windows2022,
        Self::Windows2025,
        Self::Custom,
    ];

    /// The spelling.
    pub fn as_str(self) -> &'static str {
        let index = Self::ALL.iter().position(|family| *family == self);
        index.map_or("", |index| Self::NAMES[index])
    }

    /// Parses a family.
    pub fn parse(text: &str) -> Option<Self> {
        let index = Self::NAMES.iter().position(|name| *name == text)?;
        Some(Self::ALL[index])
    }

    /// The value of the label `node.kubernetes.io/windows-build`. `None` on Linux.
    pub fn windows_build(self) -> Option<&'static str> {
        match self {
            Self::Windows2019 => Some("10.0.17763"),
            Self::Windows2022 => Some("10.0.20348"),
            Self::Windows2025 => Some("10.0.26100"),
            _ => None,
        }
    }
}

/// An image term. All its fields must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageTerm {
    /// The images that AWS publishes for a family and the cluster's Kubernetes version.
    Alias {
        /// Family; never `Custom`.
        family: AmiFamily,
        /// `latest`, or a version.
        version: String,
    },
    /// This image.
    Id(String),
    /// The image whose ID is in an SSM parameter, given by name or ARN.
    SsmParameter(String),
    /// Images with this name and these tags.
    Search {
        /// Name, `*` allowed.
        name: Option<String>,
        /// Account ID, `self`, or an alias such as `amazon`. `None` means the own account and
        /// Amazon if a name is set, and any account otherwise.
        owner: Option<String>,
        /// Tags. The value `*` matches any value. May be empty if a name is set.
        tags: Labels,
    },
}
