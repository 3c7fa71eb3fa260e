//! Reads live clusters once. Each engine runs in observe mode until it knows everything that a plan
//! needs. The engine writes nothing and receives no messages from queues.

#[cfg(feature = "aws")]
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine::Engine;
use crate::host::{clock, text};
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
use crate::runtime::cluster_handle::ClusterHandle;
use crate::runtime::clusters::{ApplyError, ClusterSet, PrepareError, Prepared};
use crate::state::State;

/// Poll interval until an engine is ready.
const LOOK: Duration = Duration::from_millis(100);

/// Time for engines to stop after they returned their result. These engines have no commands in
/// flight.
const STOP: Duration = Duration::from_secs(5);

/// Retry interval of failed AWS requests.
#[cfg(feature = "aws")]
const AGAIN: Duration = Duration::from_secs(5);

/// Why the state of a cluster cannot be read.
#[derive(Debug, Error)]
pub(crate) enum ObserveError {
    #[error("{} [{}]", text::error_chain(.0), .0.code())]
    Prepare(PrepareError),
    #[error("cannot connect in time")]
    Late,
    #[error("{}", text::error_chain(.0))]
    Apply(ApplyError),
    #[error("its engine does not respond")]
    Unresponsive,
    #[error("{missing}")]
    Incomplete { missing: String },
}

/// The result for a cluster.
pub(crate) struct ObservedCluster {
    pub(crate) cluster: ClusterName,
    /// The state of the cluster, or an error.
    pub(crate) seen: Result<Box<State>, ObserveError>,
    /// Missing data of an incomplete state.
    pub(crate) missing: Option<String>,
}

impl ObservedCluster {
    fn failed(cluster: ClusterName, error: ObserveError) -> Self {
        Self { cluster, seen: Err(error), missing: None }
    }
}

/// Reads these clusters within this time. Returns the results in the order of the clusters. An
/// error of one cluster does not affect the others.
pub(crate) async fn observe_clusters(
    clusters: Vec<Cluster>,
    limits: FleetLimits,
    patience: Duration,
) -> Vec<ObservedCluster> {
    let until = clock::monotonic_now() + patience;
    let shares = limits.has_limits();
    let order: Vec<ClusterName> = clusters.iter().map(|cluster| cluster.name.clone()).collect();
    let mut cluster_set = ClusterSet::start();
    let prepared =
        clusters.into_iter().map(|cluster| prepare_observer(&cluster_set, cluster, until));
    let (mut ready, mut results) = (Vec::new(), Vec::new());
    for (cluster, outcome) in join_all(prepared).await {
        match outcome {
            Ok(parts) => ready.extend(parts),
            Err(error) => results.push(ObservedCluster::failed(cluster, error)),
        }
    }
    if let Err(error) = cluster_set.apply(ready, Vec::new(), limits).await {
        results.extend(
            order.into_iter().map(|cluster| {
                ObservedCluster::failed(cluster, ObserveError::Apply(error.clone()))
            }),
        );
        return results;
    }
    let handles = cluster_set.cluster_handles();
    let observed = join_all(handles.iter().map(|cluster| observe_engine(cluster, until)));
    #[cfg(feature = "aws")]
    let observed = retry_aws_until_done(&cluster_set, observed);
    results.extend(observed.await);
    if shares {
        // Read the states again, because each cluster counts toward the limits of the fleet, and
        // only now are all clusters known.
        for result in results.iter_mut().filter(|result| result.seen.is_ok()) {
            let handle = handles.iter().find(|handle| handle.name == result.cluster);
            if let Some(again) =
                handle.map(|handle| handle.query_engine(|engine, _| settled_state(engine)))
            {
                result.seen = again.await.ok_or(ObserveError::Unresponsive);
            }
        }
    }
    drop(timeout(STOP, cluster_set.stop()).await);
    results.sort_by_key(|result| order.iter().position(|name| *name == result.cluster));
    results
}

/// Retries failed AWS requests until `work` is complete.
#[cfg(feature = "aws")]
async fn retry_aws_until_done<T>(cluster_set: &ClusterSet, work: impl Future<Output = T>) -> T {
    let regions = cluster_set.region_tasks();
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = sleep(AGAIN) => regions.trigger_reads().await,
        }
    }
}

/// Prepares a cluster in observe mode. It does not read the interruption queue, because the daemon
/// would miss the messages.
async fn prepare_observer(
    cluster_set: &ClusterSet,
    cluster: Cluster,
    until: Instant,
) -> (ClusterName, Result<Vec<Prepared>, ObserveError>) {
    let name = cluster.name.clone();
    let observed =
        Arc::new(Cluster { mode: ManagementMode::Observe, interruption: None, ..cluster });
    let outcome = match timeout_at(until, cluster_set.prepare_all(vec![observed])).await {
        Ok(prepared) => prepared.map_err(ObserveError::Prepare),
        Err(_) => Err(ObserveError::Late),
    };
    (name, outcome)
}

/// Waits until an engine knows everything, or until the timeout.
async fn observe_engine(handle: &ClusterHandle, until: Instant) -> ObservedCluster {
    let cluster = handle.name.clone();
    loop {
        let is_last = clock::monotonic_now() >= until;
        let answer = handle.query_engine(move |engine, now| {
            let missing = engine.missing_information(now);
            let is_enough = missing.is_none() || (is_last && engine.is_ready());
            (is_enough.then(|| settled_state(engine)), missing)
        });
        match answer.await {
            Some((Some(state), missing)) => {
                return ObservedCluster { cluster, seen: Ok(state), missing };
            }
            Some((None, Some(missing))) if is_last => {
                let error = ObserveError::Incomplete { missing };
                return ObservedCluster::failed(cluster, error);
            }
            None if is_last => {
                return ObservedCluster::failed(cluster, ObserveError::Unresponsive);
            }
            _ => sleep(LOOK).await,
        }
    }
}

/// Returns the state of an engine, changed as if the engine had watched the cluster for a long
/// time. If a simulated cloud runs in the process of the daemon, this process cannot reach it, and
/// uses the data of the Nodes instead.
fn settled_state(engine: &Engine) -> Box<State> {
    let mut state = engine.state().clone();
    state.forget_observed_changes();
    let cloud = state.cluster.simulated.as_ref();
    if cloud.is_some_and(|cloud| cloud.address.is_none()) && state.cluster.exec.is_none() {
        state.count_by_labels();
    }
    Box::new(state)
}
