//! How a node finds and joins its cluster.
//! It must not know how that is written for an image.
//!
//! Source: spec/aws.md §9.

/// Where a secret comes from. Secrets are never in the configuration's values, hashes, tags or
/// logs: they are fetched when user data is rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A file, such as one of systemd's credentials.
    File(std::path::PathBuf),
    /// An SSM parameter.
    SsmParameter(String),
    /// A bootstrap token made in the cluster (`kube-system/bootstrap-token-…`), short-lived and
    /// renewed. Source: Kubernetes, authenticating with bootstrap tokens.
    Minted,
}

/// How a node joins its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Bootstrap {
    /// As images of EKS do.
    #[default]
    Eks,
    /// `kubeadm join`; runtime, kubelet and kubeadm are in the image.
    Kubeadm {
        /// The bootstrap token.
        token: SecretSource,
    },
    /// A k3s agent.
    K3s(AgentBootstrap),
    /// An RKE2 agent.
    Rke2(AgentBootstrap),
    /// A Talos worker: user data is its machine configuration.
    Talos {
        /// A machine configuration as `talosctl gen config` makes it for workers, with all its
        /// secrets: what is ours is put in.
        machine_config: SecretSource,
    },
    /// A template of the user's own.
    Custom {
        /// User data with `{{ name }}` in it.
        template: String,
        /// What `{{ token }}` stands for; none where it is not used.
        token: Option<SecretSource>,
    },
}

/// What k3s and RKE2 agents need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentBootstrap {
    /// URL of the supervisor; none means the API's host with the distribution's usual port.
    pub server: Option<String>,
    /// The join token.
    pub token: SecretSource,
    /// Version to install where the image has none; none means that the image has it.
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
