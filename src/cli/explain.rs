//! `outrigger explain`: why one pod of a cluster whose state is in a file has its place, or none.
//! It must not know how that is found out, nor contact anyone.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};

use super::plan::Given;
use crate::model::id::PodKey;
use crate::plan::explain::{explain, similar};
use crate::shell::clock;
use crate::shell::text::bounded;

/// The exit code where nothing is done for what is explained.
const BLOCKED: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Explain a pod: what it asks for, and where it goes or what stops it in each pool
    Pod(PodArguments),
}

#[derive(Args, Debug)]
struct PodArguments {
    /// Its namespace and name; without a namespace, `default`
    #[arg(value_name = "NS/NAME", value_parser = key)]
    pod: PodKey,
    #[command(flatten)]
    given: Given,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Print one JSON object, as `--output json` does
    #[arg(long, conflicts_with = "output")]
    json: bool,
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

pub(crate) fn execute(arguments: &Arguments, colour: bool) -> anyhow::Result<ExitCode> {
    let What::Pod(arguments) = &arguments.what;
    let Some(still) = arguments.given.read(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = clock::now();
    let state = still.state(now);
    let key = &arguments.pod;
    let Some(explained) = explain(&state, key, now) else {
        let near = match &similar(&state, key)[..] {
            [] => String::new(),
            near => format!("; did you mean {}?", near.join(" or ")),
        };
        let key = bounded(&key.to_string());
        bail!("there is no pod {key} in the state of the cluster{near}");
    };
    let mut out = io::stdout().lock();
    if arguments.json || arguments.output == Output::Json {
        writeln!(out, "{:#}", explained.json())?;
    } else {
        out.write_all(explained.text().as_bytes())?;
    }
    Ok(match explained.is_well() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BLOCKED),
    })
}
