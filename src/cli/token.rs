//! `outrigger token`: a token for the API of an EKS cluster, as kubectl's exec plugins print one.
//! It must not know how the token is made.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::providers::aws::clients::{AccountKey, Accounts};
use crate::providers::aws::eks_token;

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// The cluster's name in EKS
    #[arg(long)]
    cluster_name: String,
    /// Its region
    #[arg(long)]
    region: String,
    /// Role to assume
    #[arg(long)]
    role_arn: Option<String>,
}

pub(crate) fn execute(arguments: TokenArgs) -> anyhow::Result<ExitCode> {
    let key = AccountKey {
        region: arguments.region,
        role: arguments.role_arn,
    };
    let own = super::wait_for(async {
        let account = Accounts::default().get(&key).await;
        eks_token::token(&account.config, &key.region, &arguments.cluster_name).await
    });
    let own = own?.context("make a token")?;
    // Kubernetes wants whole seconds.
    let until = own.until.map(|own| format!("{own:.0}"));
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": own.text, "expirationTimestamp": until},
    });
    writeln!(io::stdout().lock(), "{credential}")?;
    Ok(ExitCode::SUCCESS)
}
