//! The clusters that read-only verbs use: live clusters, or a cluster whose state is in a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(feature = "daemon")]
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::args::ConfigArguments;
use super::{diagnostics, stdin};
use crate::catalog::{self, Catalog};
#[cfg(feature = "daemon")]
use crate::host::text::single_line;
use crate::host::{clock, files};
use crate::kubernetes_convert::offline_state;
use crate::model::cluster::Cluster;
use crate::model::fleet::{FleetLimits, FleetView};
use crate::model::id::ClusterName;
use crate::model::pool::Limits;
#[cfg(feature = "daemon")]
use crate::runtime::observe::{ObservedCluster, observe_clusters};
use crate::state::State;

const NO_CLUSTER: &str = "the configuration has no cluster; add a block cluster \"NAME\" { … }";

/// The clusters to read, and where to read their state.
#[derive(Args, Debug)]
pub(crate) struct ClusterSource {
    #[command(flatten)]
    config: ConfigArguments,
    /// Work offline: read the state of the cluster from the output of `kubectl get pods,nodes,… -A
    /// -o json` in this file; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    cluster_state: Option<PathBuf>,
    /// The cluster to use if the configuration has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Instance types for --cluster-state: a table in the format of the built-in catalog, or the
    /// JSON of Karpenter's kwok provider
    #[arg(long, value_name = "FILE", requires = "cluster_state")]
    catalog: Option<PathBuf>,
    /// Seconds to wait until the state of a live cluster is in sync
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    timeout: u64,
}

/// The clusters with their current state.
#[derive(Default)]
pub(crate) struct LoadedClusters {
    /// The clusters whose state was read, each with a description of missing parts.
    pub(crate) states: Vec<(State, Option<String>)>,
    /// The clusters whose state could not be read, each with its cause, which was already printed.
    pub(crate) unseen: Vec<(ClusterName, String)>,
    /// Whether the state of any cluster is missing or incomplete. The cause was already printed.
    pub(crate) failed: bool,
}

impl ClusterSource {
    /// Returns whether the arguments choose one cluster instead of all.
    pub(crate) fn is_one(&self) -> bool {
        self.cluster_state.is_some() || self.cluster.is_some()
    }

    /// Reads the clusters. Returns `None` after printing the problems of an invalid configuration.
    pub(crate) fn load_all(&self, colour: bool) -> anyhow::Result<Option<LoadedClusters>> {
        self.load_clusters(self.is_one(), colour)
    }

    /// Reads the chosen cluster, or the only one of the configuration. Returns `None` after
    /// printing why its state could not be read.
    pub(crate) fn load_one(&self, colour: bool) -> anyhow::Result<Option<State>> {
        let loaded = self.load_clusters(true, colour)?;
        let first = loaded.and_then(|loaded| loaded.states.into_iter().next());
        Ok(first.map(|(state, _)| state))
    }

    fn load_clusters(&self, is_one: bool, colour: bool) -> anyhow::Result<Option<LoadedClusters>> {
        let read = match self.cluster_state {
            Some(_) => self.config.read_offline(colour),
            None => self.config.read_config(colour)?,
        };
        let Some(config) = read else {
            return Ok(None);
        };
        diagnostics::print_problems(&config.warnings, colour);
        let clusters = match is_one {
            true => vec![choose_cluster(config.clusters, self.cluster.as_deref())?],
            false => config.clusters,
        };
        if clusters.is_empty() {
            bail!("{NO_CLUSTER}");
        }
        if let Some(path) = &self.cluster_state {
            let states: anyhow::Result<_> = clusters
                .into_iter()
                .map(|cluster| {
                    let limits = config.fleet.limits.clone();
                    Ok((self.load_from_file(cluster, limits, path)?, None))
                })
                .collect();
            return Ok(Some(LoadedClusters { states: states?, ..LoadedClusters::default() }));
        }
        self.load_live(clusters, config.fleet).map(Some)
    }

    /// Reads the state of live clusters within `--timeout`.
    #[cfg(feature = "daemon")]
    fn load_live(
        &self,
        clusters: Vec<Cluster>,
        limits: FleetLimits,
    ) -> anyhow::Result<LoadedClusters> {
        let patience = Duration::from_secs(self.timeout);
        let observed = super::wait_for(observe_clusters(clusters, limits, patience))?;
        Ok(print_missing(observed))
    }

    /// Fails: this build cannot connect to clusters.
    #[cfg(not(feature = "daemon"))]
    fn load_live(&self, _: Vec<Cluster>, _: FleetLimits) -> anyhow::Result<LoadedClusters> {
        Err(super::features::unsupported_operation(
            "cannot read a live cluster",
            "give a file with --cluster-state",
        ))
    }

    /// Reads the state of a cluster from a file. The usage of other clusters is unknown and is
    /// treated as zero.
    fn load_from_file(
        &self,
        cluster: Cluster,
        limits: Limits,
        path: &Path,
    ) -> anyhow::Result<State> {
        let catalog = read_catalog(&cluster, self.catalog.as_deref())?;
        let text = match path == Path::new("-") {
            true => stdin::read_state()?,
            false => files::read_text(path)?,
        };
        let objects = offline_state::parse(&text);
        let objects = objects.with_context(|| format!("cannot read {}", path.display()))?;
        let mut state = State::offline(Arc::new(cluster), Arc::new(catalog), objects, clock::now());
        state.fleet = Some(Arc::new(FleetView {
            share: limits.clone(),
            limits,
            closed: None,
            ..FleetView::default()
        }));
        Ok(state)
    }
}

/// Prints on stderr which parts of the observed state are missing.
#[cfg(feature = "daemon")]
fn print_missing(observed: Vec<ObservedCluster>) -> LoadedClusters {
    let mut all = LoadedClusters::default();
    for cluster_result in observed {
        let cluster = cluster_result.cluster;
        match cluster_result.seen {
            Ok(state) => {
                let missing = cluster_result.missing.map(|missing| single_line(&missing));
                if let Some(missing) = &missing {
                    all.failed = true;
                    super::print_error_line(&format!(
                        "Warning: cluster \"{cluster}\": state is incomplete: {missing}"
                    ));
                }
                all.states.push((*state, missing));
            }
            Err(error) => {
                all.failed = true;
                let why = single_line(&error.to_string());
                super::print_error_line(&format!(
                    "Error: cluster \"{cluster}\": cannot read its state\n  because: {why}\n\n  \
                     = help: run outrigger doctor --cluster {cluster} to find the cause"
                ));
                all.unseen.push((cluster, why));
            }
        }
    }
    all
}

/// Returns the cluster of this name, or the only cluster if there is no name.
pub(crate) fn choose_cluster(
    clusters: Vec<Cluster>,
    name: Option<&str>,
) -> anyhow::Result<Cluster> {
    let names: Vec<String> = clusters.iter().map(|it| it.name.to_string()).collect();
    let mut found =
        clusters.into_iter().filter(|it| name.is_none_or(|name| it.name.as_str() == name));
    match (found.next(), found.next()) {
        (Some(cluster), None) => Ok(cluster),
        (None, _) if names.is_empty() => bail!("{NO_CLUSTER}"),
        (None, _) => bail!(
            "the configuration has no cluster {:?}; it has {}",
            name.unwrap_or_default(),
            names.join(", ")
        ),
        (Some(_), Some(_)) => {
            bail!("the configuration has several clusters: choose one of {} with --cluster", {
                names.join(", ")
            })
        }
    }
}

/// Returns the instance types of a file, else of the cluster's catalog, else of the built-in
/// catalog.
pub(crate) fn read_catalog(cluster: &Cluster, file: Option<&Path>) -> anyhow::Result<Catalog> {
    let simulated = cluster.simulated.as_ref().map(|it| &it.catalog);
    let exec = cluster.exec.as_ref().map(|it| &it.catalog);
    let configured = simulated.or(exec).and_then(|it| it.as_deref());
    match file.or(configured) {
        None => Ok(Catalog::shipped()),
        Some(path) => Ok(catalog::parse(&path.display().to_string(), &files::read_text(path)?)?),
    }
}
