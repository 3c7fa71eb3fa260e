//! Endpoint and tokens of an EKS cluster.

use std::sync::Arc;

use aws_smithy_types::base64;
use futures::FutureExt;

use crate::host::text;
use crate::kubernetes::client::TokenCluster;
use crate::kubernetes::token_layer::{BearerToken, TokenLayer};
use crate::model::cluster::{Cluster, Eks};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::cluster_info::describe;
use crate::providers::aws::eks_token::token;

/// Returns the endpoint and CA of a cluster. Reads values that are not configured from EKS.
pub(crate) async fn issued(
    account: Arc<AwsClients>,
    cluster: &Cluster,
    eks: &Eks,
) -> Result<TokenCluster, String> {
    let name = eks.name.clone().unwrap_or(cluster.name.to_string());
    let (endpoint, ca) = match (&eks.endpoint, &eks.ca_data) {
        (Some(endpoint), Some(ca)) => (endpoint.clone(), ca.clone()),
        (endpoint, ca) => {
            let listed = describe(&account, &name).await;
            let listed = listed.map_err(|fault| fault.sorted("eks").text)?;
            let known = listed
                .certificate_authority()
                .and_then(|certificate_authority| certificate_authority.data());
            let own = |given: &Option<String>, known: Option<&str>, what: &str| {
                let text = given.clone().or(known.map(str::to_owned));
                text.ok_or_else(|| format!("EKS does not return the {what} of {name:?} yet"))
            };
            (
                own(endpoint, listed.endpoint(), "endpoint")?,
                own(ca, known, "CA")?,
            )
        }
    };
    let ca = base64::decode(&ca).map_err(|_| "its CA is not valid base64".to_owned())?;
    let first = issue(&account, &name).await?;
    let bearer = TokenLayer::start(&endpoint, first, move || {
        let (account, name) = (account.clone(), name.clone());
        async move { issue(&account, &name).await }.boxed()
    });
    Ok(TokenCluster {
        endpoint,
        ca,
        bearer,
    })
}

async fn issue(account: &AwsClients, cluster: &str) -> Result<BearerToken, String> {
    let own = token(&account.config, &account.key.region, cluster).await;
    own.map_err(|error| text::chain(&error))
}
