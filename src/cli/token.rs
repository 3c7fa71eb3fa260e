//! `outrigger token`: prints a token for the API of an EKS cluster, as a kubectl exec plugin.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;

use crate::providers::aws::clients::{AccountKey, Accounts};
use crate::providers::aws::eks_token;

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// Name of the EKS cluster
    #[arg(long)]
    cluster_name: String,
    /// AWS region of the cluster
    #[arg(long)]
    region: String,
    /// ARN of an IAM role to assume
    #[arg(long)]
    role_arn: Option<String>,
    /// External ID with which the role is assumed
    #[arg(long, requires = "role_arn")]
    external_id: Option<String>,
}

pub(crate) fn execute(arguments: TokenArgs) -> anyhow::Result<ExitCode> {
    let TokenArgs { cluster_name, region, role_arn, external_id } = arguments;
    let key = AccountKey { region, role: role_arn, external_id };
    let token = super::wait_for(async {
        let account = Accounts::default().get(&key).await;
        eks_token::create_token(&account.config, &key.region, &cluster_name).await
    });
    let token = token?.context("cannot create a token")?;
    // Kubernetes requires whole seconds.
    let until = token.until.map(|until| format!("{until:.0}"));
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token.text, "expirationTimestamp": until},
    });
    writeln!(io::stdout().lock(), "{credential}")?;
    Ok(ExitCode::SUCCESS)
}
