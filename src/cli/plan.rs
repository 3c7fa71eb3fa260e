//! `outrigger plan`: what would be done about a cluster whose state is in a file.
//! It must not know how a plan is made, nor contact anyone.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;

use super::arguments::ConfigArguments;
use super::diagnostics;
use crate::catalog::{self, Catalog};
use crate::model::cluster::Cluster;
use crate::model::fleet::FleetView;
use crate::model::object::Object;
use crate::model::pool::Limits;
use crate::plan;
use crate::plan::render::Shown;
use crate::shell::clock::{self, Stopwatch};
use crate::shell::files;
use crate::shell::kube::state_file;
use crate::state::State;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    given: Given,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A cluster at rest: its configuration, its state and what it can be given.
#[derive(Args, Debug)]
pub(crate) struct Given {
    #[command(flatten)]
    config: ConfigArguments,
    /// State of the cluster as `kubectl get pods,nodes,… -A -o json` prints it; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    cluster_state: PathBuf,
    /// The cluster, where the configuration has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Instance types: a table in the shipped format, or JSON as Karpenter's kwok provider has it
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
}

impl Given {
    /// Reads everything. None where the configuration is bad, which is said then.
    pub(crate) fn read(&self, colour: bool) -> anyhow::Result<Option<Still>> {
        let config = match files::load(&self.config.wanted()) {
            Ok(config) => config,
            Err(problems) => {
                diagnostics::show(&problems, colour);
                return Ok(None);
            }
        };
        diagnostics::show(&config.warnings, colour);
        let limits = config.fleet.limits;
        let cluster = chosen(config.clusters, self.cluster.as_deref())?;
        let catalog = read_catalog(&cluster, self.catalog.as_deref())?;
        let path = self.cluster_state.as_path();
        let text = if path == Path::new("-") {
            read_stdin()?
        } else {
            files::read_text(path)?
        };
        let objects =
            state_file::parse(&text).with_context(|| format!("read {}", path.display()))?;
        Ok(Some(Still {
            cluster: Arc::new(cluster),
            catalog: Arc::new(catalog),
            objects,
            limits,
        }))
    }
}

/// What was read.
pub(crate) struct Still {
    cluster: Arc<Cluster>,
    catalog: Arc<Catalog>,
    objects: Vec<Object>,
    /// Of the fleet.
    limits: Limits,
}

impl Still {
    /// The state of the cluster at a moment.
    pub(crate) fn state(self, now: Timestamp) -> State {
        let mut state = State::offline(self.cluster, self.catalog, self.objects, now);
        // Nothing is known of other clusters: they are taken to have nothing.
        state.fleet = Some(Arc::new(FleetView {
            share: self.limits.clone(),
            limits: self.limits,
            closed: None,
            ..FleetView::default()
        }));
        state
    }
}

pub(crate) fn execute(arguments: &Arguments, colour: bool) -> anyhow::Result<ExitCode> {
    let Some(still) = arguments.given.read(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    let now = clock::now();
    let began = Stopwatch::start();
    let state = still.state(now);
    let plan = plan::whole(&state.snapshot(now), &state.roster(now), now);
    let shown = Shown {
        cluster: state.cluster.name.as_str(),
        plan: &plan,
        solve_seconds: began.elapsed().as_secs_f64(),
        before: state.cost(),
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", shown.json())?;
    } else {
        out.write_all(shown.text().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The cluster of this name, or the only one.
pub(crate) fn chosen(clusters: Vec<Cluster>, name: Option<&str>) -> anyhow::Result<Cluster> {
    let names: Vec<String> = clusters.iter().map(|it| it.name.to_string()).collect();
    let mut found = clusters
        .into_iter()
        .filter(|it| name.is_none_or(|name| it.name.as_str() == name));
    match (found.next(), found.next()) {
        (Some(cluster), None) => Ok(cluster),
        (None, _) if names.is_empty() => {
            bail!("the configuration names no cluster; write cluster \"NAME\" {{ … }}")
        }
        (None, _) => bail!(
            "there is no cluster {:?}; the configuration has {}",
            name.unwrap_or_default(),
            names.join(", ")
        ),
        (Some(_), Some(_)) => {
            bail!(
                "the configuration has several clusters: name one of {} with --cluster",
                { names.join(", ") }
            )
        }
    }
}

/// The instance types of a file, else those configured for the cluster, else those shipped.
pub(crate) fn read_catalog(cluster: &Cluster, file: Option<&Path>) -> anyhow::Result<Catalog> {
    let simulated = cluster.simulated.as_ref().map(|it| &it.catalog);
    let exec = cluster.exec.as_ref().map(|it| &it.catalog);
    let configured = simulated.or(exec).and_then(|it| it.as_deref());
    match file.or(configured) {
        None => Ok(Catalog::shipped()),
        Some(path) => Ok(catalog::parse(
            &path.display().to_string(),
            &files::read_text(path)?,
        )?),
    }
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .read_to_string(&mut text)
        .context("read the state from stdin")?;
    Ok(text)
}
