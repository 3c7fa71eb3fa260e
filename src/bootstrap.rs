//! User data: what an instance is told so that it becomes a node of its cluster.
//! It must not know how instances are launched, nor where a secret came from.
//!
//! ```text
//! NodeClass ─┐
//! Home ──────┼─► node (labels, taints, kubelet settings) ─► a format ─► fit (gzip) ─► UserData
//! Seed ──────┘
//! ```
//!
//! Source: spec/aws.md §3 and §9; where it is done otherwise: docs/decisions/015-user-data.md.

// Quoting for shells, PowerShell and flags.
mod shell_quote;
// MIME multipart archives for cloud-init and nodeadm.
mod mime;
// Kubelet settings as flags and as KubeletConfiguration.
mod kubelet_config;
// Labels, taints and kubelet settings of one node.
mod node_config;
// User data of Amazon Linux 2.
mod al2;
// User data of Amazon Linux 2023: NodeConfig.
mod nodeadm;
// User data of Bottlerocket: TOML settings.
mod bottlerocket;
// User data of Windows: PowerShell.
mod windows;
// CA public key hash for kubeadm discovery.
mod ca_cert_hash;
// Common parts of join scripts without EKS.
mod join_script;
// User data for `kubeadm join`.
mod kubeadm;
// User data for k3s and RKE2 agents.
mod k3s_rke2;
// User data of Talos: machine configuration.
mod talos;
// Placeholders `{{ name }}` in user templates.
mod template;

use core::fmt;
use core::net::IpAddr;
use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use thiserror::Error;

use crate::bootstrap::node_config::NodeConfig;
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::node_class::image::AmiFamily;
use crate::model::node_class::resolved::Cause;
use crate::model::taint::Taint;

/// Bytes of user data that EC2 takes, before base64.
pub const USER_DATA_MAX: usize = 16_384;

/// The cluster that a node is to join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Name, as EKS knows it.
    pub name: String,
    /// URL of the API.
    pub endpoint: String,
    /// Base64 of the PEM of the authorities of the API; empty where nobody knows them.
    pub ca: String,
    /// Addresses of its Services.
    pub service_cidr: Option<String>,
    /// Address of its DNS.
    pub dns: Option<IpAddr>,
    /// Whether its pods have IPv6 addresses.
    pub ipv6: bool,
    /// Kubernetes version, such as `1.33`.
    pub version: String,
}

/// What is of one launch.
#[derive(Clone, Copy)]
pub struct LaunchContext<'a> {
    /// Labels of the node.
    pub labels: &'a Labels,
    /// Taints of the node as it registers, the unregistered one among them.
    pub taints: &'a [Taint],
    /// Pods it takes at most, where the node class does not say.
    pub max_pods: i64,
    /// Name of the image, where it is known.
    pub image_name: Option<&'a str>,
    /// The join token or machine configuration, where the bootstrap takes one.
    pub secret: Option<&'a str>,
}

/// What EC2 gets as user data, before base64. It may hold a secret: it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(pub Vec<u8>);

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.0.len())
    }
}

/// Why there is no user data. No variant holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootstrapError {
    /// nodeadm wants the addresses of Services.
    #[error("render user data: the addresses of the cluster's Services (service CIDR) are unknown")]
    ServiceCidrUnknown,
    /// No node finds a cluster without this.
    #[error("render user data: the cluster's {0} is unknown")]
    Unknown(&'static str),
    /// No certificate can be read from what should be the cluster's authorities.
    #[error("read the cluster's certificate authority: {0}")]
    Authority(&'static str),
    /// The join token or machine configuration is missing.
    #[error("render user data for `{0}`: its secret is missing or empty")]
    SecretMissing(&'static str),
    /// A node without instance metadata cannot say which instance it is.
    #[error(
        "render user data for `{0}`: it needs the instance metadata service, which is disabled"
    )]
    MetadataDisabled(&'static str),
    /// Neither a shell nor a kubelet's flag takes such a text.
    #[error("render user data: {what} {text:?} has characters that are none of Kubernetes'")]
    Malformed {
        /// What it is.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A way to join that images of the family do not have.
    #[error("render user data: images of family {family} do not join by `{bootstrap}`")]
    NotForFamily {
        /// The way to join.
        bootstrap: &'static str,
        /// The family.
        family: &'static str,
    },
    /// A setting of the kubelet that cannot be said.
    #[error("render user data: kubelet setting {setting} has no place in user data for {format}")]
    Setting {
        /// The setting, as the kubelet calls it.
        setting: String,
        /// What takes user data.
        format: &'static str,
    },
    /// The user's own user data cannot be merged.
    #[error("merge user data for {format}: {reason}")]
    UserData {
        /// What takes user data.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A custom template, or a machine configuration, cannot be filled in.
    #[error("fill in the {what}: {reason}")]
    Template {
        /// Which of them.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// It does not go into user data.
    #[error(
        "render user data: it has {size} bytes{}, EC2 takes {USER_DATA_MAX}: put what is large \
         where the instance can fetch it at boot", with_gzip(*.packed)
    )]
    TooLarge {
        /// Bytes of the text.
        size: usize,
        /// Bytes with gzip, where the image can unpack it.
        packed: Option<usize>,
    },
}

impl BootstrapError {
    /// The reason of a node class' condition.
    pub fn cause(&self) -> Cause {
        match self {
            Self::ServiceCidrUnknown => Cause::ClusterCidrUnknown,
            Self::Setting { .. } => Cause::UnsupportedKubeletSetting,
            Self::TooLarge { .. } => Cause::UserDataTooLarge,
            // Somebody else may say it in a moment.
            Self::Unknown(_) | Self::SecretMissing(_) => Cause::Unavailable,
            _ => Cause::UserDataInvalid,
        }
    }
}

fn with_gzip(packed: Option<usize>) -> String {
    packed.map_or_else(
        || " and its image unpacks none".to_owned(),
        |packed| format!(", {packed} with gzip"),
    )
}

/// The user data of a node of this class in this cluster. The same arguments give the same bytes.
///
/// # Errors
/// Where user data of this class cannot be: see [`BootstrapError`].
pub fn render(
    class: &NodeClass,
    home: &ClusterEndpoint,
    seed: &LaunchContext<'_>,
) -> Result<UserData, BootstrapError> {
    let node = || NodeConfig::of(class, home, seed);
    let plain = class.family == AmiFamily::Custom;
    let shell = plain || matches!(class.family, AmiFamily::Al2 | AmiFamily::Al2023);
    let (text, unpacked) = match (&class.bootstrap, class.family) {
        (Bootstrap::Eks, AmiFamily::Al2) => (al2::render(&node()?)?, true),
        (Bootstrap::Eks, AmiFamily::Al2023) => (nodeadm::render(&node()?)?, true),
        (Bootstrap::Eks, AmiFamily::Bottlerocket) => (bottlerocket::render(&node()?)?, true),
        (
            Bootstrap::Eks,
            AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025,
        ) => (windows::render(&node()?)?, false),
        (Bootstrap::Eks, AmiFamily::Custom) => (
            class.user_data.clone(),
            mime::for_cloud_init(&class.user_data),
        ),
        (Bootstrap::Kubeadm { .. }, _) if shell => (kubeadm::render(&node()?)?, true),
        (Bootstrap::K3s(own), _) if shell => (k3s_rke2::K3S.render(own, &node()?)?, true),
        (Bootstrap::Rke2(own), _) if shell => (k3s_rke2::RKE2.render(own, &node()?)?, true),
        (Bootstrap::Talos { .. }, AmiFamily::Custom) => (talos::render(&node()?)?, true),
        (Bootstrap::Custom { template, .. }, _) => {
            let text = template::render(template, &node()?)?;
            let unpacked = mime::for_cloud_init(&text);
            (text, unpacked)
        }
        (other, family) => {
            return Err(BootstrapError::NotForFamily {
                bootstrap: other.as_str(),
                family: family.as_str(),
            });
        }
    };
    fit(text, unpacked)
}

/// The text as it is, or with gzip where it is too long and whoever reads it unpacks it:
/// cloud-init, nodeadm (`decompressIfGZIP`), Bottlerocket (`expand_slice_maybe`) and Talos do.
fn fit(text: String, unpacked: bool) -> Result<UserData, BootstrapError> {
    let size = text.len();
    if size <= USER_DATA_MAX {
        return Ok(UserData(text.into_bytes()));
    }
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    // A vector takes all that is written to it.
    let done = packer.write_all(text.as_bytes()).and(packer.finish());
    let packed = done.ok().filter(|_| unpacked);
    match packed {
        Some(bytes) if bytes.len() <= USER_DATA_MAX => Ok(UserData(bytes)),
        packed => Err(BootstrapError::TooLarge {
            size,
            packed: packed.map(|bytes| bytes.len()),
        }),
    }
}
