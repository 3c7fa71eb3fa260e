//! How a node joins its cluster.
//!
//! Source: spec/aws.md §9.

/// The source of a secret. Secrets are never stored in the configuration's values, hashes, tags or
/// logs: they are read when user data is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, such as a systemd credential.
    File(std::path::PathBuf),
    /// An SSM parameter.
    SsmParameter(String),
    /// A bootstrap token that Outrigger creates in the cluster (`kube-system/bootstrap-token-…`).
    /// It is short-lived and renewed. Source: Kubernetes, authenticating with bootstrap tokens.
    Minted,
}

/// How a node joins its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bootstrap {
    /// The bootstrap of the EKS images.
    #[default]
    Eks,
    /// `kubeadm join`. Container runtime, kubelet and kubeadm are in the image.
    Kubeadm {
        /// The bootstrap token.
        token: SecretSource,
    },
    /// A k3s agent.
    K3s(AgentBootstrap),
    /// An RKE2 agent.
    Rke2(AgentBootstrap),
    /// A Talos worker. User data is its machine configuration.
    Talos {
        /// A worker machine configuration from `talosctl gen config`, including all secrets.
        /// Outrigger adds its own settings.
        machine_config: SecretSource,
    },
    /// A user-supplied template.
    Custom {
        /// User data with `{{ name }}` placeholders.
        template: String,
        /// The value of `{{ token }}`. `None` if the template does not use it.
        token: Option<SecretSource>,
    },
}

/// Settings of k3s and RKE2 agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBootstrap {
    /// URL of the supervisor. `None` means the API's host with the distribution's default port.
    pub server: Option<String>,
    /// The join token.
    pub token: SecretSource,
    /// Version to install. `None` means that the image contains the agent.
    pub version: Option<String>,
}

impl Bootstrap {
    /// The name of the block.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Eks => "eks",
            Self::Kubeadm { .. } => "kubeadm",
            Self::K3s(_) => "k3s",
            Self::Rke2(_) => "rke2",
            Self::Talos { .. } => "talos",
            Self::Custom { .. } => "custom",
        }
    }
}
