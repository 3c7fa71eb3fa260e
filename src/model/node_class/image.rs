//! Images of a node class: families, and the terms that find them.
//! It must not know which images there are.

use crate::model::labels::Labels;

/// What an image is. Source: spec/aws.md §2 and §3.
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
    /// Anything else: its author sees to everything.
    #[default]
    Custom,
}

impl AmiFamily {
    /// All of them, as an alias or the argument `ami_family` spells them; `custom` is no alias.
    pub const NAMES: [&str; 7] = [
        "al2",
        "al2023",
        "bottlerocket",
        "windows2019",
        "windows2022",
        "windows2025",
        "custom",
    ];

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
        let place = Self::ALL.iter().position(|own| *own == self);
        place.map_or("", |place| Self::NAMES[place])
    }

    /// The family of this spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|name| *name == text)?;
        Some(Self::ALL[place])
    }

    /// The build that the label `node.kubernetes.io/windows-build` names; none on Linux.
    pub fn windows_build(self) -> Option<&'static str> {
        match self {
            Self::Windows2019 => Some("10.0.17763"),
            Self::Windows2022 => Some("10.0.20348"),
            Self::Windows2025 => Some("10.0.26100"),
            _ => None,
        }
    }
}

/// One way to find images. All that a term names must fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageTerm {
    /// The images that AWS publishes for a family and the cluster's Kubernetes version.
    Alias {
        /// Family; never `Custom`.
        family: AmiFamily,
        /// `latest`, or a version as typed.
        version: String,
    },
    /// This image.
    Id(String),
    /// The image whose id an SSM parameter holds: its name or ARN.
    SsmParameter(String),
    /// Whatever has this name and these tags.
    Search {
        /// Name, `*` allowed.
        name: Option<String>,
        /// Account id, `self`, or an alias such as `amazon`; none means ourselves and Amazon where
        /// a name is given, and anyone where it is not.
        owner: Option<String>,
        /// Tags; the value `*` means that the key is there. May be empty where a name is given.
        tags: Labels,
    },
}
