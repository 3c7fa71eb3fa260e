//! `outrigger explain`: explains the placement of a pod, the disruption of a node or the launches
//! of a pool. It writes nothing.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::args::MalformedArgument;
use super::cluster_source::ClusterSource;
use super::success_or;
use crate::host::clock;
use crate::host::text::bounded_line;
use crate::model::id::PodKey;
use crate::plan::explain_node::{explain_node, similar_nodes};
use crate::plan::explain_pod::{explain, similar_pods};
use crate::plan::explain_pool::{explain_pool, similar_pools};

/// The exit code for a pod that gets no node, and for a pool that can have no node.
const BLOCKED: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Explain a pod: its requirements, its node, or why each pool rejects it; exits with status 2
    /// if the pod gets no node
    Pod {
        /// Pod to explain, as NAMESPACE/NAME; the namespace defaults to `default`
        #[arg(value_name = "NS/NAME", value_parser = parse_pod_key)]
        pod: PodKey,
        #[command(flatten)]
        form: Form,
    },
    /// Explain a node: whether it would be disrupted for each reason, and what blocks disruption,
    /// pod by pod
    Node {
        /// Name of the node to explain
        #[arg(value_name = "NAME")]
        node: String,
        #[command(flatten)]
        form: Form,
    },
    /// Explain a pool: its instance types, what it would launch now, and what keeps its nodes;
    /// exits with status 2 if the pool can have no node
    Pool {
        /// Name of the pool to explain
        #[arg(value_name = "NAME")]
        pool: String,
        #[command(flatten)]
        form: Form,
    },
}

// The cluster to read, and the format of the output.
#[derive(Args, Debug)]
struct Form {
    #[command(flatten)]
    given: ClusterSource,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Print one JSON object, like `--output json`
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

fn parse_pod_key(text: &str) -> Result<PodKey, MalformedArgument> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(MalformedArgument("kube-system/coredns-5d78c9869d-abcde"));
    }
    Ok(PodKey::new(namespace, name))
}

/// Formats a suggestion of similar names.
fn format_suggestion(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    }
}

pub(crate) fn execute(arguments: &ExplainArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let (What::Pod { form, .. } | What::Node { form, .. } | What::Pool { form, .. }) =
        &arguments.what;
    let Some(state) = form.given.load_one(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let is_fine = match &arguments.what {
        What::Pod { pod, .. } => {
            let Some(explained) = explain(&state, pod, clock::now()) else {
                let near = format_suggestion(&similar_pods(&state, pod));
                let key = bounded_line(&pod.to_string());
                bail!("the state of the cluster has no pod {key}{near}");
            };
            form.print(|| explained.text(), || explained.json())?;
            explained.is_handled()
        }
        What::Node { node, .. } => {
            let Some(explained) = explain_node(&state, node, clock::now()) else {
                let near = format_suggestion(&similar_nodes(&state, node));
                let name = bounded_line(node);
                bail!("the state of the cluster has no node {name}{near}");
            };
            form.print(|| explained.text(), || explained.json())?;
            true
        }
        What::Pool { pool, .. } => {
            let Some(explained) = explain_pool(&state, pool, clock::now()) else {
                let near = format_suggestion(&similar_pools(&state, pool));
                let name = bounded_line(pool);
                bail!("the configuration of the cluster has no pool {name}{near}");
            };
            form.print(|| explained.text(), || explained.json())?;
            explained.can_launch()
        }
    };
    Ok(success_or(BLOCKED, is_fine))
}
