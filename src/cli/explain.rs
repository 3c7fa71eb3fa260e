//! `outrigger explain`: why one pod of a cluster has its place, or none, whether one of its nodes
//! leaves, and what one of its pools can have. Nothing is written.
//! It must not know how that is found out, nor how the cluster is seen.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::cluster_source::ClusterSource;
use crate::host::clock;
use crate::host::text::bounded;
use crate::model::id::PodKey;
use crate::plan::explain_node::{explain_node, similar_nodes};
use crate::plan::explain_pod::{explain, similar};
use crate::plan::explain_pool::{explain_pool, similar_pools};

/// The exit code where nothing is done for what is explained, or can be.
const BLOCKED: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Explain a pod: what it asks for, and where it goes or what stops it in each pool
    Pod(PodArguments),
    /// Explain a node: for each reason whether it leaves, and what keeps it, pod by pod
    Node(NodeArguments),
    /// Explain a pool: what it can have, what would be made in it now or is not, and what keeps
    /// its nodes; ends with 2 where it can have no node at all
    Pool(PoolArguments),
}

#[derive(Args, Debug)]
struct PodArguments {
    /// Its namespace and name; without a namespace, `default`
    #[arg(value_name = "NS/NAME", value_parser = key)]
    pod: PodKey,
    #[command(flatten)]
    given: ClusterSource,
    #[command(flatten)]
    form: Form,
}

#[derive(Args, Debug)]
struct NodeArguments {
    /// Its name
    #[arg(value_name = "NAME")]
    node: String,
    #[command(flatten)]
    given: ClusterSource,
    #[command(flatten)]
    form: Form,
}

#[derive(Args, Debug)]
struct PoolArguments {
    /// Its name
    #[arg(value_name = "NAME")]
    pool: String,
    #[command(flatten)]
    given: ClusterSource,
    #[command(flatten)]
    form: Form,
}

#[derive(Args, Debug)]
struct Form {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Print one JSON object, as `--output json` does
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Form {
    fn print(&self, text: impl Fn() -> String, json: impl Fn() -> Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json || self.output == Output::Json {
            writeln!(out, "{:#}", json())
        } else {
            out.write_all(text().as_bytes())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn key(text: &str) -> Result<PodKey, String> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err("write it like kube-system/coredns-5d78c9869d-abcde".to_owned());
    }
    Ok(PodKey::new(namespace, name))
}

/// What may have been meant instead.
fn meant(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    }
}

pub(crate) fn execute(arguments: &ExplainArgs, colour: bool) -> anyhow::Result<ExitCode> {
    match &arguments.what {
        What::Pod(arguments) => pod(arguments, colour),
        What::Node(arguments) => node(arguments, colour),
        What::Pool(arguments) => pool(arguments, colour),
    }
}

fn pod(arguments: &PodArguments, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(state) = arguments.given.one(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = clock::now();
    let key = &arguments.pod;
    let Some(explained) = explain(&state, key, now) else {
        let near = meant(&similar(&state, key));
        let key = bounded(&key.to_string());
        bail!("there is no pod {key} in the state of the cluster{near}");
    };
    let form = &arguments.form;
    form.print(|| explained.text(), || explained.json())?;
    Ok(match explained.is_well() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BLOCKED),
    })
}

fn node(arguments: &NodeArguments, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(state) = arguments.given.one(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = clock::now();
    let name = arguments.node.as_str();
    let Some(explained) = explain_node(&state, name, now) else {
        let near = meant(&similar_nodes(&state, name));
        let name = bounded(name);
        bail!("there is no node {name} in the state of the cluster{near}");
    };
    let form = &arguments.form;
    form.print(|| explained.text(), || explained.json())?;
    Ok(ExitCode::SUCCESS)
}

fn pool(arguments: &PoolArguments, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(state) = arguments.given.one(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = clock::now();
    let name = arguments.pool.as_str();
    let Some(explained) = explain_pool(&state, name, now) else {
        let near = meant(&similar_pools(&state, name));
        let name = bounded(name);
        bail!("there is no pool {name} in the configuration of the cluster{near}");
    };
    let form = &arguments.form;
    form.print(|| explained.text(), || explained.json())?;
    Ok(match explained.is_well() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BLOCKED),
    })
}
