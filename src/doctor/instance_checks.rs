//! Checks that the instances of a cluster were launched for the API server that this host connects
//! to.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};

use crate::coordination::lease_annotations::LeaseAnnotations;
use crate::doctor::report::Check;
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease;
use crate::model::cluster::Cluster;
use crate::model::watched_object::{self, WatchedObject};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::instances::Lister;
use crate::state::State;

/// The name of the check.
pub(super) const NAME: &str = "instances";

/// Compares the cluster tags of running instances with the API server.
pub(super) async fn check_instances(
    account: &AwsClients,
    cluster: &Cluster,
    connection: &Connection,
) -> Result<Check, AwsError> {
    let namespaces: Api<Namespace> = Api::all(connection.client.clone());
    let wanted = ListParams::default().fields("metadata.name=kube-system");
    let found = match namespaces.list(&wanted).await {
        Ok(listed) => listed,
        Err(error) => {
            let why = format!("the cluster cannot be identified: {}", text::error_chain(&error));
            return Ok(Check::skipped(NAME, &why, None));
        }
    };
    let listed = Lister::default();
    let listed = listed.list(account, &cluster.installation, &cluster.name).await?;
    let (mut state, now) = (State::default(), clock::now());
    // A different check reports an unreadable Lease. In that case, no difference counts as
    // approved.
    let lease = lease::read_annotations(connection).await.ok().flatten();
    state.notes = LeaseAnnotations::from_lease(lease.as_ref(), &LeaseAnnotations::default());
    let cluster = Arc::new(cluster.clone());
    state.apply_configuration(cluster.clone());
    for namespace in found.items {
        let uid = namespace.metadata.uid.unwrap_or_default();
        let namespace = watched_object::Namespace {
            name: namespace.metadata.name.unwrap_or_default(),
            uid,
            ..watched_object::Namespace::default()
        };
        state.objects.apply(WatchedObject::Namespace(namespace), now);
    }
    state.ledger.apply_listing(listed, &cluster, now);
    let count = state.running_claims().count();
    Ok(match state.identity_mismatch() {
        None => Check::ok(NAME, &format!("{count} running, all launched for this cluster")),
        Some(mismatch) => {
            let fix = "correct the kubeconfig, the Lease or the region";
            Check::failed((NAME, mismatch.code()), &mismatch.to_string(), fix)
        }
    })
}
