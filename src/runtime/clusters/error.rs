//! Errors when clusters are started, with fixes.

use thiserror::Error;

use crate::catalog::CatalogError;
use crate::host::files::FilesError;
use crate::host::text;
use crate::kubernetes::client::ConnectError;
use crate::kubernetes::exec_credential::PluginError;
use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;

/// Text that is added to an error in builds without EC2 support, if EC2 support may resolve the
/// error.
const WITHOUT_AWS: &str = if cfg!(feature = "aws") {
    ""
} else {
    "; this build was compiled without the feature \"aws\""
};

/// Why a cluster cannot be started.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    #[error("cluster \"{0}\" has no kubeconfig{WITHOUT_AWS}")]
    NoKubeconfig(ClusterName),
    #[error("cluster \"{0}\" has no provider to launch instances{WITHOUT_AWS}")]
    NoProvider(ClusterName),
    #[cfg(feature = "aws")]
    #[error("cluster \"{0}\": cannot find the API endpoint: {1}")]
    Eks(ClusterName, String),
    #[error(
        "the configuration would leave {nodes} of {total} nodes unmanaged, those of {clusters}, \
         more than max_disrupted_per_reload allows: their clusters are removed, or the \
         installation, region, account or provider changed; if this is intended, set mode = \
         \"observe\" for them first"
    )]
    TooMuch { clusters: String, nodes: usize, total: usize },
    #[error("cluster \"{0}\": cannot connect")]
    Connect(ClusterName, #[source] ConnectError),
    #[error("cluster \"{0}\": the engine stopped unexpectedly, which is a bug; see the log")]
    Ended(ClusterName),
    #[error("cluster \"{0}\": cannot read instance types")]
    CatalogFile(ClusterName, #[source] FilesError),
    #[error("cluster \"{0}\": cannot read instance types")]
    Catalog(ClusterName, #[source] CatalogError),
}

impl PrepareError {
    /// Returns the error for a cluster whose source of credentials or of the endpoint has not
    /// responded in time.
    pub(crate) fn connect_timeout(cluster: &Cluster) -> Self {
        let name = cluster.name.clone();
        match &cluster.kubeconfig {
            Some(kubeconfig) => {
                let late = ConnectError::Plugin(kubeconfig.path.clone(), PluginError::Late);
                Self::Connect(name, late)
            }
            #[cfg(feature = "aws")]
            None => Self::Eks(name, "EKS has not responded yet".to_owned()),
            #[cfg(not(feature = "aws"))]
            None => Self::NoKubeconfig(name),
        }
    }

    /// Returns whether a retry may succeed, because a source of credentials or of an endpoint was
    /// unavailable.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            #[cfg(feature = "aws")]
            Self::Eks(..) => true,
            Self::Ended(_) => true,
            Self::Connect(_, why) => why.is_retryable(),
            Self::NoKubeconfig(_)
            | Self::TooMuch { .. }
            | Self::NoProvider(_)
            | Self::CatalogFile(..)
            | Self::Catalog(..) => false,
        }
    }

    /// The stable code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoKubeconfig(_) => "no-kubeconfig",
            Self::NoProvider(_) => "no-provider",
            Self::TooMuch { .. } => "reload-too-large",
            Self::Ended(_) => "engine-ended",
            #[cfg(feature = "aws")]
            Self::Eks(..) => "eks-describe-failed",
            Self::CatalogFile(..) => "catalog-unreadable",
            Self::Catalog(..) => "catalog-invalid",
            Self::Connect(_, why) => why.code(),
        }
    }

    /// The fix.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::NoKubeconfig(_) => "set kubeconfig { path = \"/etc/outrigger/kubeconfig\" }",
            Self::NoProvider(_) => {
                "set a region and node classes, add exec { command = [\"/path/to/program\"] } or \
                 simulated {}, or set mode = \"observe\""
            }
            #[cfg(feature = "aws")]
            Self::Eks(..) => "set endpoint and ca_data in the eks block, or grant the permission",
            Self::TooMuch { .. } => {
                "restore the clusters, or set mode = \"observe\" for them \
                                     first"
            }
            Self::Ended(_) => {
                "Outrigger restarts the engine; please report the preceding log lines with the \
                 output of `outrigger version`"
            }
            Self::Connect(..) => {
                "set a file that `kubectl --kubeconfig FILE get nodes` can use, and one of its \
                 contexts"
            }
            Self::CatalogFile(..) | Self::Catalog(..) => {
                "set a table in the shipped format, or JSON in the format of Karpenter's kwok \
                 provider"
            }
        }
    }
}

/// Why a prepared change could not be fully applied.
#[derive(Clone, Debug, Error)]
pub(crate) enum ApplyError {
    #[error("cannot apply the change to cluster \"{0}\": its engine does not respond")]
    Deaf(ClusterName),
}

/// Why a configuration is not applied.
#[derive(Debug, Error)]
pub(crate) enum ConfigRefusal {
    /// The configuration is invalid. The value is its first error as one line.
    #[error("{first_error}")]
    Invalid { first_error: String },
    #[error("the new configuration has no cluster [no-cluster]")]
    NoCluster,
    #[error("{} [{}]", text::error_chain(.0), .0.code())]
    Prepare(PrepareError),
}

/// Why a reload has no effect, or why only a part of it is in effect.
#[derive(Debug, Error)]
pub(crate) enum ReloadError {
    #[error("the previous configuration stays in effect: {0}")]
    Refused(ConfigRefusal),
    #[error("the configuration is only partly in effect: {}", text::error_chain(.0))]
    Partial(ApplyError),
}
