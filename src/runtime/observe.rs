//! Reads live clusters once. Each engine runs in observe mode until it knows everything that a plan
//! needs. It writes nothing and receives no messages from queues.

#[cfg(feature = "aws")]
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine::Engine;
use crate::host::{clock, text};
use crate::model::cluster::{Cluster, ManagementMode};
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
use crate::runtime::cluster_handle::ClusterHandle;
use crate::runtime::clusters::{ClusterSet, Prepared};
use crate::state::State;

/// Poll interval until an engine is ready.
const LOOK: Duration = Duration::from_millis(100);

/// Time for engines to stop after they returned their result. They have no commands in flight.
const STOP: Duration = Duration::from_secs(5);

/// Retry interval of failed AWS requests.
#[cfg(feature = "aws")]
const AGAIN: Duration = Duration::from_secs(5);

/// The error for an engine that does not respond.
const DEAF: &str = "its engine does not respond";

/// The result for a cluster.
pub(crate) struct ObservedCluster {
    pub(crate) cluster: ClusterName,
    /// Its state, or an error.
    pub(crate) seen: Result<Box<State>, String>,
    /// Missing data of an incomplete state.
    pub(crate) missing: Option<String>,
}

impl ObservedCluster {
    fn failed(cluster: ClusterName, why: String) -> Self {
        Self {
            cluster,
            seen: Err(why),
            missing: None,
        }
    }
}

/// Reads these clusters within this time. Results are in the same order. An error of one cluster
/// does not affect the others.
pub(crate) async fn visit(
    clusters: Vec<Cluster>,
    limits: FleetLimits,
    patience: Duration,
) -> Vec<ObservedCluster> {
    let until = clock::monotonic() + patience;
    let shares = limits.is_some();
    let order: Vec<ClusterName> = clusters
        .iter()
        .map(|cluster| cluster.name.clone())
        .collect();
    let mut drivers = ClusterSet::start();
    let prepared = clusters
        .into_iter()
        .map(|cluster| prepared(&drivers, cluster, until));
    let (mut ready, mut sights) = (Vec::new(), Vec::new());
    for (cluster, outcome) in join_all(prepared).await {
        match outcome {
            Ok(parts) => ready.extend(parts),
            Err(why) => sights.push(ObservedCluster::failed(cluster, why)),
        }
    }
    if let Err(error) = drivers.apply(ready, Vec::new(), limits).await {
        let why = text::chain(&error);
        sights.extend(
            order
                .into_iter()
                .map(|order| ObservedCluster::failed(order, why.clone())),
        );
        return sights;
    }
    let shown = drivers.shown();
    let seen = join_all(shown.iter().map(|cluster| sight(cluster, until)));
    #[cfg(feature = "aws")]
    let seen = asking(&drivers, seen);
    sights.extend(seen.await);
    if shares {
        // Each cluster counts toward the limits of the fleet, and all are known now.
        for result in sights.iter_mut().filter(|result| result.seen.is_ok()) {
            let front = shown.iter().find(|front| front.name == result.cluster);
            if let Some(again) = front.map(|front| front.ask(|engine, _| known(engine))) {
                result.seen = again.await.map_or_else(|| Err(DEAF.to_owned()), Ok);
            }
        }
    }
    drop(timeout(STOP, drivers.stop()).await);
    sights.sort_by_key(|result| order.iter().position(|name| *name == result.cluster));
    sights
}

/// Retries failed AWS requests until the work is done.
#[cfg(feature = "aws")]
async fn asking<T>(drivers: &ClusterSet, work: impl Future<Output = T>) -> T {
    let keepers = drivers.keepers();
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = sleep(AGAIN) => keepers.tick().await,
        }
    }
}

/// The parts that observe a cluster. It does not read the queue, because the daemon would miss the
/// messages.
async fn prepared(
    drivers: &ClusterSet,
    cluster: Cluster,
    until: Instant,
) -> (ClusterName, Result<Vec<Prepared>, String>) {
    let name = cluster.name.clone();
    let observed = Arc::new(Cluster {
        mode: ManagementMode::Observe,
        interruption: None,
        ..cluster
    });
    let outcome = match timeout_at(until, drivers.prepare(vec![observed])).await {
        Ok(Ok(prepared)) => Ok(prepared),
        Ok(Err(error)) => Err(format!("{} [{}]", text::chain(&error), error.code())),
        Err(_) => Err("cannot connect in time".to_owned()),
    };
    (name, outcome)
}

/// Waits until an engine knows everything, or until the timeout.
async fn sight(front: &ClusterHandle, until: Instant) -> ObservedCluster {
    let cluster = front.name.clone();
    loop {
        let is_last = clock::monotonic() >= until;
        let look = move |engine: &Engine, now| {
            let missing = engine.missing(now);
            let tells = missing.is_none() || (is_last && engine.is_ready());
            (tells.then(|| known(engine)), missing)
        };
        match front.ask(look).await {
            Some((Some(state), missing)) => {
                return ObservedCluster {
                    cluster,
                    seen: Ok(state),
                    missing,
                };
            }
            Some((None, Some(why))) if is_last => return ObservedCluster::failed(cluster, why),
            None if is_last => {
                return ObservedCluster::failed(cluster, DEAF.to_owned());
            }
            _ => sleep(LOOK).await,
        }
    }
}

/// The state of an engine, treated as if it had watched for a long time. A simulated cloud in the
/// process of the daemon is not reachable from here, so the data of its Nodes is used.
fn known(engine: &Engine) -> Box<State> {
    let mut state = engine.state().clone();
    state.settle();
    let cloud = state.cluster.simulated.as_ref();
    if cloud.is_some_and(|cloud| cloud.address.is_none()) && state.cluster.exec.is_none() {
        state.count_by_labels();
    }
    Box::new(state)
}
