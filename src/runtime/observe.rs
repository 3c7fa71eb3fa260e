//! Looks at live clusters once: an engine of each observes until it knows all that a plan takes
//! into account. Nothing is written anywhere, and no message is taken from a queue.
//! It must not know what is made of what is seen.

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

/// An engine is asked this often whether it knows everything.
const LOOK: Duration = Duration::from_millis(100);

/// Time for engines to end that have told what they know: none of them waits for an answer.
const STOP: Duration = Duration::from_secs(5);

/// What could not be asked of AWS is asked again this often.
#[cfg(feature = "aws")]
const AGAIN: Duration = Duration::from_secs(5);

/// What is said of an engine that says nothing.
const DEAF: &str = "its engine does not answer";

/// What was seen of a cluster.
pub(crate) struct ObservedCluster {
    pub(crate) cluster: ClusterName,
    /// What is known of it, or why nothing can be said.
    pub(crate) seen: Result<Box<State>, String>,
    /// What is not known, where something can be said all the same.
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

/// What these clusters are like, in their order, within this time. What is wrong with one is no
/// matter of the others.
pub(crate) async fn visit(
    clusters: Vec<Cluster>,
    limits: FleetLimits,
    patience: Duration,
) -> Vec<ObservedCluster> {
    let until = clock::monotonic() + patience;
    let shares = limits.is_some();
    let order: Vec<ClusterName> = clusters.iter().map(|own| own.name.clone()).collect();
    let mut drivers = ClusterSet::start();
    let prepared = clusters
        .into_iter()
        .map(|own| prepared(&drivers, own, until));
    let (mut ready, mut sights) = (Vec::new(), Vec::new());
    for (cluster, outcome) in join_all(prepared).await {
        match outcome {
            Ok(own) => ready.extend(own),
            Err(why) => sights.push(ObservedCluster::failed(cluster, why)),
        }
    }
    if let Err(error) = drivers.apply(ready, Vec::new(), limits).await {
        let why = text::chain(&error);
        sights.extend(
            order
                .into_iter()
                .map(|own| ObservedCluster::failed(own, why.clone())),
        );
        return sights;
    }
    let shown = drivers.shown();
    let seen = join_all(shown.iter().map(|own| sight(own, until)));
    #[cfg(feature = "aws")]
    let seen = asking(&drivers, seen);
    sights.extend(seen.await);
    if shares {
        // What each has counts for the others, and is known by now.
        for own in sights.iter_mut().filter(|own| own.seen.is_ok()) {
            let front = shown.iter().find(|front| front.name == own.cluster);
            if let Some(again) = front.map(|front| front.ask(|engine, _| known(engine))) {
                own.seen = again.await.map_or_else(|| Err(DEAF.to_owned()), Ok);
            }
        }
    }
    drop(timeout(STOP, drivers.stop()).await);
    let place = |own: &ObservedCluster| order.iter().position(|name| *name == own.cluster);
    sights.sort_by_key(place);
    sights
}

/// Asks AWS again for what it has not said, until the work is done.
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

/// What a cluster is looked at with. Others may read its queue: a message that is taken here would
/// be missing there.
async fn prepared(
    drivers: &ClusterSet,
    own: Cluster,
    until: Instant,
) -> (ClusterName, Result<Vec<Prepared>, String>) {
    let name = own.name.clone();
    let observed = Arc::new(Cluster {
        mode: ManagementMode::Observe,
        interruption: None,
        ..own
    });
    let outcome = match timeout_at(until, drivers.prepare(vec![observed])).await {
        Ok(Ok(prepared)) => Ok(prepared),
        Ok(Err(error)) => Err(format!("{} [{}]", text::chain(&error), error.code())),
        Err(_) => Err("it could not be connected to in time".to_owned()),
    };
    (name, outcome)
}

/// Waits until an engine knows everything, or time is over.
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

/// What an engine knows, as if it had watched for long. A simulated cloud in the daemon's own
/// process cannot be asked from here: what its nodes say of themselves counts.
fn known(engine: &Engine) -> Box<State> {
    let mut state = engine.state().clone();
    state.settle();
    let cloud = state.cluster.simulated.as_ref();
    if cloud.is_some_and(|own| own.address.is_none()) && state.cluster.exec.is_none() {
        state.count_by_labels();
    }
    Box::new(state)
}
