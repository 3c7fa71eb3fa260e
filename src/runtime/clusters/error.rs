//! Why clusters cannot be driven, and what would put it right.
//! It must not know what is done about it.

use thiserror::Error;

use crate::catalog::CatalogError;
use crate::host::files::FilesError;
use crate::kubernetes::client::ConnectError;
use crate::kubernetes::exec_credential::PluginError;
use crate::model::cluster::Cluster;
use crate::model::id::ClusterName;

/// What a build without EC2 adds where EC2 may be what is missing.
const WITHOUT_AWS: &str = if cfg!(feature = "aws") {
    ""
} else {
    "; this build was compiled without the feature \"aws\""
};

/// Why a cluster cannot be driven.
#[derive(Debug, Error)]
pub(crate) enum PrepareError {
    #[error("cluster \"{0}\": it has no kubeconfig{WITHOUT_AWS}")]
    NoKubeconfig(ClusterName),
    #[error("cluster \"{0}\": nothing here can launch instances for it{WITHOUT_AWS}")]
    NoProvider(ClusterName),
    #[cfg(feature = "aws")]
    #[error("cluster \"{0}\": find its API: {1}")]
    Eks(ClusterName, String),
    #[error(
        "nobody would look after {nodes} of {total} nodes any more, those of {clusters}, which is \
         more than max_retired allows: they are gone, or of another installation, region, \
         account or provider; say mode = \"observe\" for them first, where it is meant"
    )]
    TooMuch {
        clusters: String,
        nodes: usize,
        total: usize,
    },
    #[error("cluster \"{0}\": connect")]
    Connect(ClusterName, #[source] ConnectError),
    #[error("cluster \"{0}\": its engine has ended by itself, a fault of ours: see the log")]
    Ended(ClusterName),
    #[error("cluster \"{0}\": read its instance types")]
    CatalogFile(ClusterName, #[source] FilesError),
    #[error("cluster \"{0}\": read its instance types")]
    Catalog(ClusterName, #[source] CatalogError),
}

impl PrepareError {
    /// Whoever gives a cluster's credentials or its endpoint has not done so yet.
    pub(crate) fn late(cluster: &Cluster) -> Self {
        let name = cluster.name.clone();
        match &cluster.kubeconfig {
            Some(own) => {
                let late = ConnectError::Plugin(own.path.clone(), PluginError::Late);
                Self::Connect(name, late)
            }
            #[cfg(feature = "aws")]
            None => Self::Eks(name, "EKS has not answered yet".to_owned()),
            #[cfg(not(feature = "aws"))]
            None => Self::NoKubeconfig(name),
        }
    }

    /// Whether it may be over by itself, so that another start may help: who gives credentials or
    /// an endpoint was not to be had.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            #[cfg(feature = "aws")]
            Self::Eks(..) => true,
            Self::Ended(_) => true,
            Self::Connect(_, why) => why.may_pass(),
            Self::NoKubeconfig(_)
            | Self::TooMuch { .. }
            | Self::NoProvider(_)
            | Self::CatalogFile(..)
            | Self::Catalog(..) => false,
        }
    }

    /// The stable name.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoKubeconfig(_) => "no-kubeconfig",
            Self::NoProvider(_) => "no-provider",
            Self::TooMuch { .. } => "too-much",
            Self::Ended(_) => "engine-ended",
            #[cfg(feature = "aws")]
            Self::Eks(..) => "eks-untold",
            Self::CatalogFile(..) => "catalog-unreadable",
            Self::Catalog(..) => "catalog-invalid",
            Self::Connect(_, why) => why.code(),
        }
    }

    /// What would put it right.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::NoKubeconfig(_) => "write kubeconfig { path = \"/etc/outrigger/kubeconfig\" }",
            Self::NoProvider(_) => {
                "give it a region and node classes, add \
                 exec { command = [\"/path/of/a/program\"] } or simulated {}, or write \
                 mode = \"observe\""
            }
            #[cfg(feature = "aws")]
            Self::Eks(..) => "write endpoint and ca_data in its eks block, or grant the right",
            Self::TooMuch { .. } => "put them back, or say mode = \"observe\" for them first",
            Self::Ended(_) => {
                "it is begun anew by itself; please report what the log says before, with \
                 `outrigger version`"
            }
            Self::Connect(..) => {
                "name a file that `kubectl --kubeconfig FILE get nodes` can use, and one of its \
                 contexts"
            }
            Self::CatalogFile(..) | Self::Catalog(..) => {
                "name a table in the shipped format, or JSON as Karpenter's kwok provider has it"
            }
        }
    }
}

/// Why not everything that was prepared is driven.
#[derive(Debug, Error)]
pub(crate) enum ApplyError {
    #[error("tell the engine of cluster \"{0}\" what has changed: it does not listen")]
    Deaf(ClusterName),
}
