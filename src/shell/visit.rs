//! Looks at live clusters once: an engine of each observes until it knows all that a plan takes
//! into account. Nothing is written anywhere, and no message is taken from a queue.
//! It must not know what is made of what is seen.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::engine::Engine;
use crate::model::cluster::{Cluster, Mode};
use crate::model::fleet::FleetLimits;
use crate::model::id::ClusterName;
use crate::shell::clock;
use crate::shell::drivers::{Drivers, Prepared};
use crate::shell::front::Front;
use crate::shell::text;
use crate::state::State;

/// An engine is asked this often whether it knows everything.
const LOOK: Duration = Duration::from_millis(100);

/// Time for engines to end that have told what they know.
const STOP: Duration = Duration::from_secs(1);

/// What was seen of a cluster.
pub(crate) struct Sight {
    pub(crate) cluster: ClusterName,
    /// What is known of it, or why nothing can be said.
    pub(crate) seen: Result<Box<State>, String>,
    /// What is not known, where something can be said all the same.
    pub(crate) missing: Option<String>,
}

impl Sight {
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
) -> Vec<Sight> {
    let until = clock::monotonic() + patience;
    let order: Vec<ClusterName> = clusters.iter().map(|own| own.name.clone()).collect();
    let mut drivers = Drivers::start();
    let prepared = clusters
        .into_iter()
        .map(|own| prepared(&drivers, own, until));
    let (mut ready, mut sights) = (Vec::new(), Vec::new());
    for (cluster, outcome) in join_all(prepared).await {
        match outcome {
            Ok(own) => ready.extend(own),
            Err(why) => sights.push(Sight::failed(cluster, why)),
        }
    }
    if let Err(error) = drivers.apply(ready, limits).await {
        let why = text::chain(&error);
        sights.extend(order.into_iter().map(|own| Sight::failed(own, why.clone())));
        return sights;
    }
    let shown = drivers.shown();
    sights.extend(join_all(shown.iter().map(|own| sight(own, until))).await);
    // Nobody waits for what no answer comes to.
    drop(timeout(STOP, drivers.stop()).await);
    let place = |own: &Sight| order.iter().position(|name| *name == own.cluster);
    sights.sort_by_key(place);
    sights
}

/// What a cluster is looked at with. Others may read its queue: a message that is taken here would
/// be missing there.
async fn prepared(
    drivers: &Drivers,
    own: Cluster,
    until: Instant,
) -> (ClusterName, Result<Vec<Prepared>, String>) {
    let name = own.name.clone();
    let observed = Arc::new(Cluster {
        mode: Mode::Observe,
        interruption: None,
        ..own
    });
    let outcome = match timeout_at(until, drivers.prepare(vec![observed])).await {
        Ok(Ok(prepared)) => Ok(prepared),
        Ok(Err(error)) => Err(text::chain(&error)),
        Err(_) => Err("it could not be connected to in time".to_owned()),
    };
    (name, outcome)
}

/// Waits until an engine knows everything, or time is over.
async fn sight(front: &Front, until: Instant) -> Sight {
    let cluster = front.name.clone();
    loop {
        let is_last = clock::monotonic() >= until;
        let look = move |engine: &Engine, now| {
            let missing = engine.missing(now);
            let tells = missing.is_none() || (is_last && engine.is_ready());
            (tells.then(|| engine.state().clone()), missing)
        };
        match front.ask(look).await {
            Some((Some(state), missing)) => {
                return Sight {
                    cluster,
                    seen: Ok(Box::new(state)),
                    missing,
                };
            }
            Some((None, Some(why))) if is_last => return Sight::failed(cluster, why),
            None if is_last => {
                return Sight::failed(cluster, "its engine does not answer".to_owned());
            }
            _ => sleep(LOOK).await,
        }
    }
}
