//! The clusters that a verb only looks at: live ones, or one whose state is in a file.
//! It must not know what a verb makes of them, nor write anything.

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
use crate::host::text::line;
use crate::host::{clock, files};
use crate::kubernetes_convert::offline_state;
use crate::model::cluster::Cluster;
use crate::model::fleet::{FleetLimits, FleetView};
use crate::model::id::ClusterName;
use crate::model::pool::Limits;
#[cfg(feature = "daemon")]
use crate::runtime::observe::{ObservedCluster, visit};
use crate::state::State;

const NO_CLUSTER: &str = "the configuration names no cluster; write cluster \"NAME\" { … }";

/// Which clusters, and how they are seen.
#[derive(Args, Debug)]
pub(crate) struct ClusterSource {
    #[command(flatten)]
    config: ConfigArguments,
    /// Ask nobody: read the state of the cluster from a file that `kubectl get pods,nodes,… -A -o
    /// json` has printed; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    cluster_state: Option<PathBuf>,
    /// The cluster, where the configuration has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Instance types of such a state: a table in the shipped format, or JSON as Karpenter's kwok
    /// provider has it
    #[arg(long, value_name = "FILE", requires = "cluster_state")]
    catalog: Option<PathBuf>,
    /// Seconds to wait until all is known of a live cluster
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    timeout: u64,
}

/// Clusters as they are.
pub(crate) struct LoadedClusters {
    /// Those that something can be said of, with what is not known of each.
    pub(crate) states: Vec<(State, Option<String>)>,
    /// Those of which nothing is known, and why, which is told already.
    pub(crate) unseen: Vec<(ClusterName, String)>,
    /// Whether anything is not known of these or others, which is told already.
    pub(crate) failed: bool,
}

impl ClusterSource {
    /// Whether one cluster was asked for, rather than all there are.
    pub(crate) fn is_one(&self) -> bool {
        self.cluster_state.is_some() || self.cluster.is_some()
    }

    /// The clusters. None where the configuration is bad, which is told then.
    pub(crate) fn all(&self, colour: bool) -> anyhow::Result<Option<LoadedClusters>> {
        self.seen(self.is_one(), colour)
    }

    /// The cluster that was asked for, else the only one there is; none where nothing can be said
    /// of it, which is told then.
    pub(crate) fn one(&self, colour: bool) -> anyhow::Result<Option<State>> {
        let seen = self.seen(true, colour)?;
        let first = seen.and_then(|own| own.states.into_iter().next());
        Ok(first.map(|(state, _)| state))
    }

    fn seen(&self, one: bool, colour: bool) -> anyhow::Result<Option<LoadedClusters>> {
        let read = match self.cluster_state {
            Some(_) => self.config.read_offline(colour),
            None => self.config.read(colour)?,
        };
        let Some(config) = read else {
            return Ok(None);
        };
        diagnostics::show(&config.warnings, colour);
        let clusters = match one {
            true => vec![chosen(config.clusters, self.cluster.as_deref())?],
            false => config.clusters,
        };
        if clusters.is_empty() {
            bail!("{NO_CLUSTER}");
        }
        if let Some(path) = &self.cluster_state {
            let of_file = |own| self.of_file(own, config.fleet.limits.clone(), path);
            let known = |own| Ok((of_file(own)?, None));
            let states: anyhow::Result<_> = clusters.into_iter().map(known).collect();
            return Ok(Some(LoadedClusters {
                states: states?,
                unseen: Vec::new(),
                failed: false,
            }));
        }
        self.live(clusters, config.fleet).map(Some)
    }

    /// Live clusters, each asked within the time there is.
    #[cfg(feature = "daemon")]
    fn live(&self, clusters: Vec<Cluster>, limits: FleetLimits) -> anyhow::Result<LoadedClusters> {
        let patience = Duration::from_secs(self.timeout);
        let sights = super::wait_for(visit(clusters, limits, patience))?;
        Ok(told(sights))
    }

    /// Live clusters, which this build cannot ask.
    #[cfg(not(feature = "daemon"))]
    fn live(&self, _: Vec<Cluster>, _: FleetLimits) -> anyhow::Result<LoadedClusters> {
        Err(super::features::refused(
            "look at a live cluster",
            "name a file with --cluster-state",
        ))
    }

    /// A cluster whose state is in a file. Nothing is known of others: they are taken to have
    /// nothing.
    fn of_file(&self, cluster: Cluster, limits: Limits, path: &Path) -> anyhow::Result<State> {
        let catalog = read_catalog(&cluster, self.catalog.as_deref())?;
        let text = match path == Path::new("-") {
            true => stdin::read_state()?,
            false => files::read_text(path)?,
        };
        let objects = offline_state::parse(&text);
        let objects = objects.with_context(|| format!("read {}", path.display()))?;
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

/// Says on stderr what is not known.
#[cfg(feature = "daemon")]
fn told(sights: Vec<ObservedCluster>) -> LoadedClusters {
    let mut all = LoadedClusters {
        states: Vec::new(),
        unseen: Vec::new(),
        failed: false,
    };
    for own in sights {
        let cluster = own.cluster;
        match own.seen {
            Ok(state) => {
                let missing = own.missing.map(|own| line(&own));
                if let Some(missing) = &missing {
                    all.failed = true;
                    super::say(&format!(
                        "Warning: cluster \"{cluster}\": this is not known: {missing}"
                    ));
                }
                all.states.push((*state, missing));
            }
            Err(why) => {
                all.failed = true;
                let why = line(&why);
                super::say(&format!(
                    "Error: cluster \"{cluster}\": it cannot be seen\n  because: {why}\n\n  \
                     = help: outrigger doctor --cluster {cluster} says what is wrong"
                ));
                all.unseen.push((cluster, why));
            }
        }
    }
    all
}

/// The cluster of this name, or the only one.
pub(crate) fn chosen(clusters: Vec<Cluster>, name: Option<&str>) -> anyhow::Result<Cluster> {
    let names: Vec<String> = clusters.iter().map(|it| it.name.to_string()).collect();
    let mut found = clusters
        .into_iter()
        .filter(|it| name.is_none_or(|name| it.name.as_str() == name));
    match (found.next(), found.next()) {
        (Some(cluster), None) => Ok(cluster),
        (None, _) if names.is_empty() => bail!("{NO_CLUSTER}"),
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
