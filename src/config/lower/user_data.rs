//! Checks that user data can be generated for node classes, as far as the files determine it. The
//! check uses placeholders that are never longer than the real values, so that a size error is
//! certain.

use crate::bootstrap::{BootstrapError, ClusterEndpoint, LaunchContext, render};
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::lower::node_class;
use crate::config::report::error_at;
use crate::config::source::Span;
use crate::model::cluster::Cluster;
use crate::model::labels::TAINT_UNREGISTERED;
use crate::model::node_class::bootstrap::Bootstrap;
use crate::model::taint::{Effect, Taint};

/// Base64 of the PEM of the shortest certificate with a public key: every element in it is empty.
const AUTHORITY: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BOHdEUUlCQURBQU1BQXdB\
    REFBTUFBPQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";

/// The usual maximum number of pods on a node. Only its number of digits affects the size.
const PODS: i64 = 110;

/// Reports node classes of a cluster whose user data cannot be generated for one of its pools.
pub(super) fn check_user_data(cluster: &Cluster, used: &[&node_class::NodeClassSpec]) {
    let home = placeholder_endpoint(cluster);
    for pool in &cluster.pools {
        let mut drafts = used.iter();
        let draft = drafts.find(|draft| Some(&draft.class.name) == pool.node_class.as_ref());
        // The Talos machine configuration is read from a different source, and is the complete user
        // data.
        let Some(draft) =
            draft.filter(|draft| !matches!(draft.class.bootstrap, Bootstrap::Talos { .. }))
        else {
            continue;
        };
        let mut taints = pool.taints.clone();
        taints.extend(pool.startup_taints.iter().cloned());
        taints.push(Taint::new(TAINT_UNREGISTERED, Effect::NoExecute));
        let seed = LaunchContext {
            labels: &pool.labels,
            taints: &taints,
            max_pods: PODS,
            image_name: None,
            secret: Some("x"),
        };
        let Err(error) = render(&draft.class, &home, &seed) else {
            continue;
        };
        let Some(span) = error_span(&error, &draft.section) else {
            continue;
        };
        let (cluster, pool) = (cluster.name.as_str(), pool.name.as_str());
        let detail = format!(
            "For the pool {pool:?} of the cluster {cluster:?} Outrigger would fail to {error}."
        );
        let finding = error_at(ProblemCode::InvalidValue, span, detail);
        finding.once().report(&draft.section);
    }
}

/// The cluster settings in user data, with placeholders for values that are not in the files.
fn placeholder_endpoint(cluster: &Cluster) -> ClusterEndpoint {
    let eks = cluster.eks.clone().unwrap_or_default();
    let cidr = eks.service_cidr.unwrap_or_else(|| "10.0.0.0/8".to_owned());
    ClusterEndpoint {
        name: eks.name.unwrap_or_else(|| cluster.name.0.clone()),
        endpoint: eks.endpoint.unwrap_or_else(|| "https://[::1]".to_owned()),
        ca: eks.ca_data.unwrap_or_else(|| AUTHORITY.to_owned()),
        service_cidr: Some(cidr),
        dns: Some([10, 0, 0, 10].into()),
        ipv6: false,
        version: "1.33".to_owned(),
    }
}

/// The span of the argument that causes an error. `None` if the cause may be outside of the files.
fn error_span(error: &BootstrapError, class: &DecodedBlock) -> Option<Span> {
    let bootstrap = class.block("bootstrap");
    let join = bootstrap.map_or(class.header, |bootstrap| bootstrap.header);
    match error {
        BootstrapError::ServiceCidrUnknown
        | BootstrapError::Unknown(_)
        | BootstrapError::Authority(_)
        | BootstrapError::SecretMissing(_) => None,
        BootstrapError::Setting { .. } => {
            let kubelet = class.block("kubelet");
            Some(kubelet.map_or(class.header, |kubelet| kubelet.header))
        }
        BootstrapError::UserData { .. } => Some(class.value_span("user_data")),
        BootstrapError::TooLarge { .. } if class.is_set("user_data") => {
            Some(class.value_span("user_data"))
        }
        BootstrapError::TooLarge { .. } | BootstrapError::Template { .. } => {
            Some(bootstrap.map_or(class.header, |bootstrap| bootstrap.value_span("template")))
        }
        BootstrapError::MetadataDisabled(_) => {
            let metadata = class.block("metadata_options");
            Some(metadata.map_or(join, |metadata| metadata.header))
        }
        BootstrapError::Malformed { .. } | BootstrapError::NotForFamily { .. } => Some(join),
    }
}
