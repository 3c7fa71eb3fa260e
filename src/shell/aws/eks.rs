//! The API of an EKS cluster: where it is, and tokens for it that are made in process.
//! It must not know what is asked of the API.

use std::sync::Arc;
use std::time::Duration;

use aws_smithy_types::base64;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::model::cluster::{Cluster, Eks};
use crate::shell::aws::account::Account;
use crate::shell::aws::cluster::describe;
use crate::shell::aws::token::{self, Token};
use crate::shell::clock;
use crate::shell::kube::client::Issued;
use crate::shell::text;

/// Another token is made when this much of the life of the last is left.
const RENEW: Duration = Duration::from_mins(4);
/// Where that fails it is tried again after this long.
const RETRY: Duration = Duration::from_secs(15);

/// Makes tokens for a cluster, one after the other, for as long as somebody reads them.
async fn renew(
    account: Arc<Account>,
    cluster: String,
    tokens: watch::Sender<String>,
    mut wait: Duration,
) {
    loop {
        tokio::select! {
            () = sleep(wait) => {}
            () = tokens.closed() => return,
        }
        match token::token(&account.config, &account.key.region, &cluster).await {
            Ok(own) => {
                wait = renewal(&own);
                tokens.send_replace(own.text);
            }
            Err(error) => {
                let why = text::chain(&error);
                tracing::warn!(cluster, why, "no new token for the API");
                wait = RETRY;
            }
        }
    }
}

/// How long a token is used.
fn renewal(own: &Token) -> Duration {
    clock::until(own.until).saturating_sub(RENEW).max(RETRY)
}

/// Where the API of a cluster is, and how it is reached. EKS is asked for what is not configured.
pub(crate) async fn issued(
    account: Arc<Account>,
    cluster: &Cluster,
    eks: &Eks,
) -> Result<Issued, String> {
    let name = eks.name.clone().unwrap_or(cluster.name.to_string());
    let (endpoint, ca) = match (&eks.endpoint, &eks.ca_data) {
        (Some(endpoint), Some(ca)) => (endpoint.clone(), ca.clone()),
        (endpoint, ca) => {
            let listed = describe(&account, &name).await;
            let listed = listed.map_err(|fault| fault.sorted("eks").text)?;
            let known = listed.certificate_authority().and_then(|own| own.data());
            let own = |given: &Option<String>, known: Option<&str>, what: &str| {
                let text = given.clone().or(known.map(str::to_owned));
                text.ok_or_else(|| format!("EKS does not name the {what} of {name:?} yet"))
            };
            (
                own(endpoint, listed.endpoint(), "endpoint")?,
                own(ca, known, "CA")?,
            )
        }
    };
    let ca = base64::decode(&ca).map_err(|_| "its CA is no base64".to_owned())?;
    let first = token::token(&account.config, &account.key.region, &name).await;
    let first = first.map_err(|error| text::chain(&error))?;
    let wait = renewal(&first);
    let (tokens, token) = watch::channel(first.text);
    tokio::spawn(renew(account, name, tokens, wait));
    Ok(Issued {
        endpoint,
        ca,
        token,
    })
}
