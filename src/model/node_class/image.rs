//! Image families and image terms of a node class.

use crate::model::labels::Labels;
use crate::model::named_enum::named_enum;

named_enum! {
    /// An image family. Source: spec/aws.md §2 and §3. The names are those of aliases and of the
    /// argument `ami_family`; `custom` is not an alias.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum AmiFamily {
        /// Amazon Linux 2, with `/etc/eks/bootstrap.sh`.
        Al2 => "al2",
        /// Amazon Linux 2023, with nodeadm.
        Al2023 => "al2023",
        /// Bottlerocket.
        Bottlerocket => "bottlerocket",
        /// Windows Server 2019.
        Windows2019 => "windows2019",
        /// Windows Server 2022.
        Windows2022 => "windows2022",
        /// Windows Server 2025.
        Windows2025 => "windows2025",
        /// A custom image. Its author provides the entire user data.
        #[default]
        Custom => "custom",
    }
}

impl AmiFamily {
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
    /// The image with this ID.
    Id(String),
    /// The image whose ID is in an SSM parameter, given by name or ARN.
    SsmParameter(String),
    /// Images with this name and these tags.
    Search {
        /// Name, `*` allowed.
        name: Option<String>,
        /// Account ID, `self`, or an alias such as `amazon`. `None` means the account of the
        /// credentials and Amazon if a name is set, and any account otherwise.
        owner: Option<String>,
        /// Tags. The value `*` matches any value. May be empty if a name is set.
        tags: Labels,
    },
}
