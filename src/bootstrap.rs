//! User data: the script or configuration with which an instance joins its cluster.
//!
//! ```text
//! NodeClass ───────┐
//! ClusterEndpoint ─┼─► NodeConfig (labels, taints, kubelet) ─► a format ─► fit (gzip) ─► UserData
//! LaunchContext ───┘
//! ```
//!
//! Source: spec/aws.md §3 and §9. Differences: docs/decisions/015-user-data.md.

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

/// Maximum size of EC2 user data in bytes, before base64.
pub const USER_DATA_MAX: usize = 16_384;

/// The cluster that a node joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterEndpoint {
    /// Name of the cluster in EKS.
    pub name: String,
    /// URL of the API server.
    pub endpoint: String,
    /// CA certificates of the API server as base64 of PEM. Empty if not known.
    pub ca: String,
    /// CIDR of its Services.
    pub service_cidr: Option<String>,
    /// IP address of its DNS.
    pub dns: Option<IpAddr>,
    /// Whether its pods have IPv6 addresses.
    pub ipv6: bool,
    /// Kubernetes version, such as `1.33`.
    pub version: String,
}

/// Values of a single launch.
#[derive(Clone, Copy)]
pub struct LaunchContext<'a> {
    /// Labels of the node.
    pub labels: &'a Labels,
    /// Taints that the node registers with, including the unregistered taint.
    pub taints: &'a [Taint],
    /// Maximum number of pods, if the node class does not set it.
    pub max_pods: i64,
    /// Name of the image, if known.
    pub image_name: Option<&'a str>,
    /// The join token or machine configuration, if the bootstrap needs one.
    pub secret: Option<&'a str>,
}

/// User data for EC2, before base64. It may contain a secret and is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData(pub Vec<u8>);

impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({} bytes)", self.0.len())
    }
}

/// Reason why user data cannot be rendered. No variant contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootstrapError {
    /// nodeadm requires the Service CIDR of the cluster, which is not known.
    #[error("render user data: the addresses of the cluster's Services (service CIDR) are unknown")]
    ServiceCidrUnknown,
    /// A node cannot join the cluster without this value.
    #[error("render user data: the cluster's {0} is unknown")]
    Unknown(&'static str),
    /// The CA of the cluster contains no readable certificate.
    #[error("read the cluster's certificate authority: {0}")]
    Authority(&'static str),
    /// The join token or machine configuration is missing.
    #[error("render user data for `{0}`: its secret is missing or empty")]
    SecretMissing(&'static str),
    /// Without instance metadata, a node cannot determine its instance ID.
    #[error(
        "render user data for `{0}`: it needs the instance metadata service, which is disabled"
    )]
    MetadataDisabled(&'static str),
    /// The value is not valid in a shell or a kubelet flag.
    #[error("render user data: {what} {text:?} has characters that are none of Kubernetes'")]
    Malformed {
        /// Name of the value.
        what: &'static str,
        /// The value.
        text: String,
    },
    /// Images of this family do not support the bootstrap.
    #[error("render user data: images of family {family} do not join by `{bootstrap}`")]
    NotForFamily {
        /// The bootstrap.
        bootstrap: &'static str,
        /// The family.
        family: &'static str,
    },
    /// The user data format does not support a kubelet setting.
    #[error("render user data: kubelet setting {setting} has no place in user data for {format}")]
    Setting {
        /// Name of the setting in the kubelet configuration.
        setting: String,
        /// The user data format.
        format: &'static str,
    },
    /// The user's own user data cannot be merged.
    #[error("merge user data for {format}: {reason}")]
    UserData {
        /// The user data format.
        format: &'static str,
        /// The reason.
        reason: String,
    },
    /// A custom template or a machine configuration cannot be rendered.
    #[error("fill in the {what}: {reason}")]
    Template {
        /// The name of the template or configuration in the message.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// The user data is too large.
    #[error(
        "render user data: it has {size} bytes{}, EC2 takes {USER_DATA_MAX}: put what is large \
         where the instance can fetch it at boot", with_gzip(*.packed)
    )]
    TooLarge {
        /// Size in bytes.
        size: usize,
        /// Size in bytes with gzip, if the image supports gzip.
        packed: Option<usize>,
    },
}

impl BootstrapError {
    /// Returns the reason for the condition of a node class.
    pub fn cause(&self) -> Cause {
        match self {
            Self::ServiceCidrUnknown => Cause::ClusterCidrUnknown,
            Self::Setting { .. } => Cause::UnsupportedKubeletSetting,
            Self::TooLarge { .. } => Cause::UserDataTooLarge,
            // The value may become available later.
            Self::Unknown(_) | Self::SecretMissing(_) => Cause::Unavailable,
            _ => Cause::UserDataInvalid,
        }
    }
}

/// Returns whether the line is neither blank nor a comment.
fn is_content(line: &str) -> bool {
    !line.trim().is_empty() && !line.trim_start().starts_with('#')
}

fn with_gzip(packed: Option<usize>) -> String {
    packed.map_or_else(
        || " and its image unpacks none".to_owned(),
        |packed| format!(", {packed} with gzip"),
    )
}

/// Renders the user data of a node. The same arguments give the same bytes.
///
/// # Errors
/// Returns a [`BootstrapError`] if this class cannot have user data.
pub fn render(
    class: &NodeClass,
    home: &ClusterEndpoint,
    seed: &LaunchContext<'_>,
) -> Result<UserData, BootstrapError> {
    let node = || NodeConfig::for_launch(class, home, seed);
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
        (Bootstrap::Eks, AmiFamily::Custom) => {
            (class.user_data.clone(), mime::for_cloud_init(&class.user_data))
        }
        (Bootstrap::Kubeadm { .. }, _) if shell => (kubeadm::render(&node()?)?, true),
        (Bootstrap::K3s(agent), _) if shell => (k3s_rke2::K3S.render(agent, &node()?)?, true),
        (Bootstrap::Rke2(agent), _) if shell => (k3s_rke2::RKE2.render(agent, &node()?)?, true),
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
    fit_user_data(text, unpacked)
}

/// Returns the text unchanged, or compressed with gzip if it is too long and its reader supports
/// gzip. These readers support gzip: cloud-init, nodeadm (`decompressIfGZIP`), Bottlerocket
/// (`expand_slice_maybe`) and Talos.
fn fit_user_data(text: String, unpacked: bool) -> Result<UserData, BootstrapError> {
    let size = text.len();
    if size <= USER_DATA_MAX {
        return Ok(UserData(text.into_bytes()));
    }
    let mut packer = GzBuilder::new().write(Vec::new(), Compression::best());
    // Writes to a vector do not fail.
    let done = packer.write_all(text.as_bytes()).and(packer.finish());
    let packed = done.ok().filter(|_| unpacked);
    match packed {
        Some(bytes) if bytes.len() <= USER_DATA_MAX => Ok(UserData(bytes)),
        packed => Err(BootstrapError::TooLarge { size, packed: packed.map(|bytes| bytes.len()) }),
    }
}
