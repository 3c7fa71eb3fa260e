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
use crate::providers::aws::cluster_info::describe_cluster;
use crate::providers::aws::eks_token::{TokenError, create_token};
use crate::providers::aws::error::AwsError;

/// Why EKS does not provide access to a cluster.
#[derive(Debug, Error)]
pub(crate) enum EksError {
    #[error("{}", .0.to_failure("eks").text)]
    Describe(AwsError),
    #[error("EKS does not return the endpoint of {0:?} yet")]
    NoEndpoint(String),
    #[error("EKS does not return the CA of {0:?} yet")]
    NoCa(String),
    #[error("its CA is not valid base64")]
    InvalidCa,
    #[error("{}", text::error_chain(.0))]
    Token(TokenError),
}

/// Returns the endpoint and CA of a cluster. Reads values that are not configured from EKS.
pub(crate) async fn cluster_access(
    account: Arc<AwsClients>,
    cluster: &Cluster,
    eks: &Eks,
) -> Result<TokenCluster, EksError> {
    let name = eks.name.clone().unwrap_or(cluster.name.to_string());
    let (endpoint, ca) = match (eks.endpoint.clone(), eks.ca_data.clone()) {
        (Some(endpoint), Some(ca)) => (endpoint, ca),
        (endpoint, ca) => {
            let listed = describe_cluster(&account, &name).await;
            let listed = listed.map_err(EksError::Describe)?;
            let listed_ca = listed.certificate_authority.and_then(|it| it.data);
            let endpoint = endpoint.or(listed.endpoint);
            (
                endpoint.ok_or(EksError::NoEndpoint(name.clone()))?,
                ca.or(listed_ca).ok_or(EksError::NoCa(name.clone()))?,
            )
        }
    };
    let ca = base64::decode(&ca).map_err(|_| EksError::InvalidCa)?;
    let first = issue_token(&account, &name).await?;
    let bearer = TokenLayer::start(&endpoint, first, move || {
        let (account, name) = (account.clone(), name.clone());
        async move {
            let token = issue_token(&account, &name).await;
            token.map_err(|error| error.to_string())
        }
        .boxed()
    });
    Ok(TokenCluster { endpoint, ca, bearer })
}

async fn issue_token(account: &AwsClients, cluster: &str) -> Result<BearerToken, EksError> {
    let token = create_token(&account.config, &account.key.region, cluster).await;
    token.map_err(EksError::Token)
}
