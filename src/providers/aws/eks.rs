//! Endpoint and tokens of an EKS cluster.

use std::sync::Arc;

use aws_smithy_types::base64;
use futures::FutureExt;
use thiserror::Error;

use crate::host::text;
use crate::kubernetes::client::TokenCluster;
use crate::kubernetes::token_layer::{BearerToken, TokenLayer};
use crate::model::cluster::{Cluster, Eks};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::cluster_info::describe;
use crate::providers::aws::eks_token::{TokenError, token};
use crate::providers::aws::error::AwsError;

/// Why EKS does not provide access to a cluster.
#[derive(Debug, Error)]
pub(crate) enum EksError {
    #[error("{}", .0.sorted("eks").text)]
    Describe(AwsError),
    #[error("EKS does not return the {field} of {cluster:?} yet")]
    NotYet {
        field: &'static str,
        cluster: String,
    },
    #[error("its CA is not valid base64")]
    InvalidCa,
    #[error("{}", text::chain(.0))]
    Token(TokenError),
}

/// Returns the endpoint and CA of a cluster. Reads values that are not configured from EKS.
pub(crate) async fn issued(
    account: Arc<AwsClients>,
    cluster: &Cluster,
    eks: &Eks,
) -> Result<TokenCluster, EksError> {
    let name = eks.name.clone().unwrap_or(cluster.name.to_string());
    let (endpoint, ca) = match (&eks.endpoint, &eks.ca_data) {
        (Some(endpoint), Some(ca)) => (endpoint.clone(), ca.clone()),
        (endpoint, ca) => {
            let listed = describe(&account, &name).await;
            let listed = listed.map_err(EksError::Describe)?;
            let known = listed
                .certificate_authority()
                .and_then(|certificate_authority| certificate_authority.data());
            let endpoint = endpoint.as_deref().or(listed.endpoint());
            let ca = ca.as_deref().or(known);
            (
                endpoint
                    .ok_or_else(|| not_yet("endpoint", &name))?
                    .to_owned(),
                ca.ok_or_else(|| not_yet("CA", &name))?.to_owned(),
            )
        }
    };
    let ca = base64::decode(&ca).map_err(|_| EksError::InvalidCa)?;
    let first = issue(&account, &name).await?;
    let bearer = TokenLayer::start(&endpoint, first, move || {
        let (account, name) = (account.clone(), name.clone());
        async move {
            let token = issue(&account, &name).await;
            token.map_err(|error| error.to_string())
        }
        .boxed()
    });
    Ok(TokenCluster {
        endpoint,
        ca,
        bearer,
    })
}

/// The error of a field that EKS provides only after the cluster was created.
fn not_yet(field: &'static str, cluster: &str) -> EksError {
    let cluster = cluster.to_owned();
    EksError::NotYet { field, cluster }
}

async fn issue(account: &AwsClients, cluster: &str) -> Result<BearerToken, EksError> {
    let token = token(&account.config, &account.key.region, cluster).await;
    token.map_err(EksError::Token)
}
