//! `outrigger pause`: nothing voluntary is done in a cluster, or in one of its pools, for a while.
//! It must not know what is done otherwise, nor who does it: the cluster's Lease tells them.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use super::args::ConfigArguments;
use super::cluster_source::chosen;
use crate::coordination::lease_annotations::{Pause, REASON_MAX, pause_key};
use crate::engine::command::LeasePatch;
use crate::host::clock;
use crate::kubernetes::lease;
use crate::model::cluster::Cluster;
use crate::model::id::PoolName;
use crate::runtime::clusters::ClusterSet;

/// Longest pause with an end: a year.
const LONGEST: SignedDuration = SignedDuration::from_hours(24 * 366);

/// Time for all that is asked of the cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// Others may write the Lease at the same moment: it is tried so often.
const TRIES: u32 = 5;

/// A cluster, or one of its pools.
#[derive(Args, Debug)]
pub(super) struct PauseTarget {
    #[command(flatten)]
    config: ConfigArguments,
    /// The cluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// One pool of it; all if missing
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    target: PauseTarget,
    /// For how long, such as 2h or 90m; until it is resumed if missing
    #[arg(long = "for", value_name = "DURATION", value_parser = span)]
    span: Option<SignedDuration>,
    /// Why, for those who will wonder
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
}

fn span(text: &str) -> Result<SignedDuration, String> {
    let span: SignedDuration = text.parse().map_err(|_| "write it like 2h or 90m")?;
    if span <= SignedDuration::ZERO || span > LONGEST {
        return Err("a pause lasts from a moment to a year".to_owned());
    }
    Ok(span)
}

fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > REASON_MAX || text.contains(char::is_control) {
        return Err(format!(
            "a reason has one line of 1 to {REASON_MAX} characters"
        ));
    }
    Ok(text.to_owned())
}

pub(crate) fn execute(arguments: &PauseArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let target = &arguments.target;
    let Some(cluster) = target.read(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    target.find_pool(&cluster)?;
    let until = arguments.span.map(|span| clock::now() + span);
    // Nobody needs fractions of a second.
    let until = until.map(|at| Timestamp::from_second(at.as_second()));
    let pause = Pause {
        until: until.transpose()?,
        reason: arguments.reason.clone(),
    };
    target.write(&cluster, Some(pause.to_string()))?;
    let would = if target.dry_run { "would be" } else { "is" };
    let until = match pause.until {
        Some(until) => format!("until {until}"),
        None => "until it is resumed".to_owned(),
    };
    let (what, why) = (target.what(), pause.reason);
    writeln!(io::stdout().lock(), "{what} {would} paused {until}: {why}")?;
    Ok(ExitCode::SUCCESS)
}

impl PauseTarget {
    /// The cluster as it is configured. None where the configuration is bad, which is said then.
    pub(super) fn read(&self, colour: bool) -> anyhow::Result<Option<Cluster>> {
        let Some(config) = self.config.read(colour)? else {
            return Ok(None);
        };
        chosen(config.clusters, Some(&self.cluster)).map(Some)
    }

    /// What is paused or resumed, in words.
    pub(super) fn what(&self) -> String {
        match &self.pool {
            Some(pool) => format!("pool {pool} of cluster {}", self.cluster),
            None => format!("cluster {}", self.cluster),
        }
    }

    /// Fails where it is a pool that the cluster does not have.
    pub(super) fn find_pool(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let pool = self.pool.as_deref();
        if let Some(pool) = pool.filter(|name| cluster.pool(name).is_none()) {
            let names: Vec<&str> = cluster.pools.iter().map(|own| own.name.as_str()).collect();
            let (name, names) = (&cluster.name, names.join(", "));
            bail!("there is no pool {pool:?} in cluster {name}; it has {names}");
        }
        Ok(())
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Has the Lease of the cluster say this, or no more. Returns whether it says something else
    /// now, or would.
    pub(super) fn write(&self, cluster: &Cluster, value: Option<String>) -> anyhow::Result<bool> {
        let key = pause_key(self.pool.as_deref().map(PoolName::from).as_ref());
        annotate(cluster, &key, |_| value.clone(), self.dry_run)
    }
}

/// Has the Lease of a cluster say something by an annotation, which depends on what it says before,
/// or nothing. Returns whether it says something else now, or would.
pub(super) fn annotate(
    cluster: &Cluster,
    key: &str,
    value: impl Fn(Option<&str>) -> Option<String>,
    dry_run: bool,
) -> anyhow::Result<bool> {
    let writing = async {
        let written = timeout(PATIENCE, written(cluster, key, value, dry_run)).await;
        let late = || format!("no answer within {} s", PATIENCE.as_secs());
        written.with_context(late)?
    };
    super::wait_for(writing)?
        .with_context(|| format!("change the Lease of cluster {}", cluster.name))
}

async fn written(
    cluster: &Cluster,
    key: &str,
    value: impl Fn(Option<&str>) -> Option<String>,
    dry_run: bool,
) -> anyhow::Result<bool> {
    let connection = ClusterSet::start().connect(cluster).await?;
    for _ in 0..TRIES {
        let known = lease::read(&connection).await?;
        let said = known.as_ref().and_then(|own| own.annotations.get(key));
        let value = value(said.map(String::as_str));
        if said == value.as_ref() || dry_run {
            return Ok(said != value.as_ref());
        }
        let patch = LeasePatch {
            version: known.as_ref().map(|own| own.version.clone()),
            annotations: vec![(key.to_owned(), value)],
        };
        match lease::write(&connection, &patch).await {
            Ok(_) => return Ok(true),
            // Somebody else has written, made or deleted it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("others have written it {TRIES} times meanwhile")
}
