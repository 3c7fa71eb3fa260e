//! `outrigger pause`: pauses voluntary disruption in a cluster or in one of its pools.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::time::timeout;

use super::args::{ConfigArguments, MalformedArgument};
use super::cluster_source::choose_cluster;
use crate::coordination::lease_annotations::{Pause, REASON_MAX, pause_key};
use crate::engine::command::LeasePatch;
use crate::host::clock;
use crate::kubernetes::lease;
use crate::model::cluster::Cluster;
use crate::model::id::PoolName;
use crate::runtime::clusters::ClusterSet;

/// The longest duration of a pause: 366 days.
const LONGEST: SignedDuration = SignedDuration::from_hours(24 * 366);

/// Time limit for all requests to the cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum number of attempts to write the Lease if other clients change it at the same time.
const TRIES: u32 = 5;

/// A cluster, or one of its pools, with the options to change it.
#[derive(Args, Debug)]
pub(super) struct PauseTarget {
    #[command(flatten)]
    config: ConfigArguments,
    /// The name of the cluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// One pool of the cluster; default: the whole cluster
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    target: PauseTarget,
    /// Duration of the pause, such as 2h or 90m; default: until `outrigger resume`
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    span: Option<SignedDuration>,
    /// Reason for the pause, shown in status and logs
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
}

/// Why the duration or the reason of a pause is invalid.
#[derive(Debug, Error)]
enum PauseArgumentError {
    #[error(transparent)]
    Malformed(#[from] MalformedArgument),
    #[error("the duration must be greater than 0 and at most 8784h")]
    DurationOutOfRange,
    #[error("the reason must be one line of 1 to {REASON_MAX} characters")]
    InvalidReason,
}

fn parse_duration(text: &str) -> Result<SignedDuration, PauseArgumentError> {
    let span: SignedDuration = text.parse().map_err(|_| MalformedArgument("2h or 90m"))?;
    if span <= SignedDuration::ZERO || span > LONGEST {
        return Err(PauseArgumentError::DurationOutOfRange);
    }
    Ok(span)
}

fn parse_reason(text: &str) -> Result<String, PauseArgumentError> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > REASON_MAX || text.contains(char::is_control) {
        return Err(PauseArgumentError::InvalidReason);
    }
    Ok(text.to_owned())
}

pub(crate) fn execute(arguments: &PauseArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let target = &arguments.target;
    let Some(cluster) = target.read_cluster(colour)? else {
        return Ok(ExitCode::FAILURE);
    };
    target.find_pool(&cluster)?;
    // The end of a pause is rounded down to a whole second.
    let until =
        arguments.span.map(|span| Timestamp::from_second((clock::now() + span).as_second()));
    let pause = Pause { until: until.transpose()?, reason: arguments.reason.clone() };
    target.write_pause(&cluster, Some(pause.to_string()))?;
    let would = if target.dry_run { "would be" } else { "is" };
    let until = match pause.until {
        Some(until) => format!("until {until}"),
        None => "until it is resumed".to_owned(),
    };
    let (target, why) = (target.describe_target(), pause.reason);
    writeln!(io::stdout().lock(), "{target} {would} paused {until}: {why}")?;
    Ok(ExitCode::SUCCESS)
}

impl PauseTarget {
    /// Reads the cluster's configuration. Returns `None` after printing the problems of an invalid
    /// configuration.
    pub(super) fn read_cluster(&self, colour: bool) -> anyhow::Result<Option<Cluster>> {
        let Some(config) = self.config.read_config(colour)? else {
            return Ok(None);
        };
        choose_cluster(config.clusters, Some(&self.cluster)).map(Some)
    }

    /// Describes the cluster or pool that is paused or resumed.
    pub(super) fn describe_target(&self) -> String {
        match &self.pool {
            Some(pool) => format!("pool {pool} of cluster {}", self.cluster),
            None => format!("cluster {}", self.cluster),
        }
    }

    /// Fails if the pool is not a pool of the cluster.
    pub(super) fn find_pool(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let pool = self.pool.as_deref();
        if let Some(pool) = pool.filter(|name| cluster.pool(name).is_none()) {
            let names: Vec<&str> = cluster.pools.iter().map(|pool| pool.name.as_str()).collect();
            let (name, names) = (&cluster.name, names.join(", "));
            bail!("cluster {name} has no pool {pool:?}; it has {names}");
        }
        Ok(())
    }

    /// Sets or removes the pause annotation on the cluster's Lease. Returns whether the annotation
    /// changed, or would change.
    pub(super) fn write_pause(
        &self,
        cluster: &Cluster,
        value: Option<String>,
    ) -> anyhow::Result<bool> {
        let key = pause_key(self.pool.as_deref().map(PoolName::from).as_ref());
        annotate_lease(cluster, &key, |_| value.clone(), self.dry_run)
    }
}

/// Sets or removes an annotation on a cluster's Lease. `value` computes the new value from the
/// current one. Returns whether the annotation changed, or would change.
pub(super) fn annotate_lease(
    cluster: &Cluster,
    key: &str,
    value: impl Fn(Option<&str>) -> Option<String>,
    dry_run: bool,
) -> anyhow::Result<bool> {
    let writing = async {
        let updated = timeout(PATIENCE, update_annotation(cluster, key, value, dry_run)).await;
        updated.with_context(|| format!("no response within {} s", PATIENCE.as_secs()))?
    };
    super::wait_for(writing)?
        .with_context(|| format!("cannot update the Lease of cluster {}", cluster.name))
}

async fn update_annotation(
    cluster: &Cluster,
    key: &str,
    value: impl Fn(Option<&str>) -> Option<String>,
    dry_run: bool,
) -> anyhow::Result<bool> {
    let connection = ClusterSet::start().connect(cluster).await?;
    for _ in 0..TRIES {
        let lease = lease::read_annotations(&connection).await?;
        let current = lease.as_ref().and_then(|lease| lease.annotations.get(key));
        let value = value(current.map(String::as_str));
        if current == value.as_ref() || dry_run {
            return Ok(current != value.as_ref());
        }
        let patch = LeasePatch {
            version: lease.as_ref().map(|lease| lease.version.clone()),
            annotations: vec![(key.to_owned(), value)],
        };
        match lease::write_annotations(&connection, &patch).await {
            Ok(_) => return Ok(true),
            // Another client has changed, created or deleted the Lease.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("another client changed the Lease during each of {TRIES} attempts")
}
